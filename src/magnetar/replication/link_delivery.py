"""Measures how long a link needs for an entry: from the moment at which it can be read to the destination's confirmation.

One entry at a time is followed, in any topic, so the cost does not depend on the traffic. Others adapt to the result:
acknowledgements are collected for less time when the link is fast (`broker.replicated_subscriptions.ack_interval`).
"""

from typing import Final

from magnetar.core.ids import NONE, Position

GIVEN_UP_MS: Final = 1_000
"""An entry that takes longer counts as this: its topic may be blocked or have a backlog, and another topic is followed."""

PART: Final = 4
"""A new measurement changes the average by a quarter of the difference: it follows a change within some ten entries."""


class DeliveryTime:
    """The delivery time of one link.

    Attributes:
        follows: whether an entry is being followed; `begin` need not be called while it is.
    """

    __slots__ = ("_average_ms", "_position", "_since_ms", "_topic", "follows")

    def __init__(self) -> None:
        self.follows = False
        self._topic = ""
        self._position = NONE
        self._since_ms = 0
        self._average_ms = -1.0

    def begin(self, topic: str, position: Position, now_ms: int) -> None:
        """An entry that the link has to carry can be read: follow it, unless another one is followed."""
        if not self.follows:
            self.follows = True
            self._topic, self._position, self._since_ms = topic, position, now_ms

    def confirmed(self, topic: str, c: Position, now_ms: int) -> None:
        """Everything of a topic up to `c` is confirmed."""
        if self.follows and c >= self._position and topic == self._topic:
            self._take(now_ms - self._since_ms)

    def _take(self, measured_ms: int) -> None:
        self.follows = False
        measured_ms = min(measured_ms, GIVEN_UP_MS)
        self._average_ms = (
            measured_ms if self._average_ms < 0 else self._average_ms + (measured_ms - self._average_ms) / PART
        )

    def ms(self, now_ms: int) -> int:
        """The average, or the time that the followed entry has taken so far if that is longer; -1: nothing was confirmed yet."""
        waited_ms = now_ms - self._since_ms if self.follows else 0
        if waited_ms >= GIVEN_UP_MS:
            self._take(GIVEN_UP_MS)
        if self._average_ms < 0:
            return -1
        return max(round(self._average_ms), waited_ms if self.follows else 0)
