"""Measures how long a link needs for an entry: from the moment at which it can be read to the destination's confirmation.

One entry at a time is followed, in any topic, and one in `PAUSE_MS`, so the cost does not depend on the traffic. A long batch
confirms it at once, while other confirmations wait (`pipeline.long.fetch_write`). Others adapt to the result: acknowledgements
are collected for less time when the link is fast (`broker.replicated_subscriptions.ack_interval`).

A part of the time is the distance: a confirmation is at least one round trip late. In long batches nothing waits for that round
trip, so the distance says nothing about how busy the link is. It is taken to be the shortest time of the last half minute. A
short batch begins after the last one is confirmed, so its whole time counts.
"""

from typing import Final

from magnetar.core.ids import NONE, Position

GIVEN_UP_MS: Final = 1_000
"""An entry that takes longer counts as this: its topic may be blocked or have a backlog, and another topic is followed."""

PAUSE_MS: Final = 100
"""Time from an entry that is followed to the next one: each costs a confirmation of its own."""

PART: Final = 4
"""A new measurement changes the average by a quarter of the difference: it follows a change within some ten entries, a second."""

DISTANCE_MS: Final = 30_000
"""The shortest time of this period and the one before it is the distance: a link that becomes slower for longer than a minute
counts as one that is farther away."""


class DeliveryTime:
    """The delivery time of one link.

    Attributes:
        follows: whether an entry is being followed.
    """

    __slots__ = (
        "_average_ms",
        "_former_ms",
        "_marked",
        "_period_ms",
        "_position",
        "_shortest_ms",
        "_since_ms",
        "_topic",
        "follows",
    )

    def __init__(self) -> None:
        self.follows = False
        self._marked = False
        self._topic = ""
        self._position = NONE
        self._since_ms = -PAUSE_MS
        self._average_ms = -1.0
        self._shortest_ms = self._former_ms = 0
        """The shortest times of the present period and of the one before it."""
        self._period_ms = -1
        """The beginning of the present period; -1: the last entry came in a short batch, or there was none."""

    def begin(self, topic: str, position: Position, now_ms: int) -> None:
        """An entry that the link has to carry can be read: follow it, unless another one is, or was a short time ago."""
        if not self.follows and not 0 <= now_ms - self._since_ms < PAUSE_MS:
            self.follows, self._marked = True, False
            self._topic, self._position, self._since_ms = topic, position, now_ms

    def mark(self, topic: str, end: Position) -> bool:
        """Whether entries of a topic up to a position have the one that is followed, and none before them was marked.

        Further entries are handed out before a far cluster has confirmed the marked ones. If they were marked, too, the task
        would confirm each of them at once.
        """
        found = self._is(topic, end) and not self._marked
        self._marked = self._marked or found
        return found

    def confirmed(self, topic: str, c: Position, s: Position, now_ms: int, *, long: bool) -> None:
        """A cursor moved.

        Args:
            topic: of the cursor.
            c: everything up to here is settled.
            s: the last entry that the destination has from this link. An entry after it was settled without the destination,
                as one that came over another link. The time of that says nothing.
            now_ms: the clock.
            long: by a long batch.
        """
        if not self._is(topic, c):
            return
        if s < self._position:
            self.follows = False
            return
        measured_ms = now_ms - self._since_ms
        self._take(measured_ms)
        self._note_distance(measured_ms, now_ms, long=long)

    def _is(self, topic: str, end: Position) -> bool:
        """Whether the entry that is followed is this topic's, and at or before a position."""
        return self.follows and end >= self._position and topic == self._topic

    def _note_distance(self, measured_ms: int, now_ms: int, *, long: bool) -> None:
        if not long:
            self._period_ms = -1
        elif self._period_ms < 0 or now_ms - self._period_ms >= 2 * DISTANCE_MS:
            self._shortest_ms = self._former_ms = measured_ms
            self._period_ms = now_ms
        elif now_ms - self._period_ms >= DISTANCE_MS:
            self._former_ms, self._shortest_ms = self._shortest_ms, measured_ms
            self._period_ms = now_ms
        else:
            self._shortest_ms = min(self._shortest_ms, measured_ms)

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

    def without_distance_ms(self, now_ms: int) -> int:
        """The same as `ms` without what the distance takes; -1: nothing was confirmed yet."""
        whole_ms = self.ms(now_ms)
        distance_ms = 0 if self._period_ms < 0 else min(self._shortest_ms, self._former_ms)
        return whole_ms if whole_ms < 0 else max(0, whole_ms - distance_ms)
