"""How far other clusters are behind with what is acknowledged here: counted, for people, never decided by."""

from collections import deque
from typing import Final, NamedTuple

from magnetar.core.ids import NONE, Position
from magnetar.geo.host import Acked
from magnetar.storage.topiclog import TopicLog

MARKERS_MAX: Final = 1_000
"""Markers remembered that some link has not carried; of more the oldest two become one, which only makes the time coarser."""


class _Written(NamedTuple):
    position: Position
    at_ms: int
    counts: dict[str, int]


class Lag(NamedTuple):
    """What a cluster lacks of one subscription.

    Attributes:
        messages: acknowledged here and not carried there; an upper bound, as a message acknowledged twice counts twice.
        since_ms: when the oldest marker that was not carried became durable; 0 when there is none.
    """

    messages: int
    since_ms: int


class Progress:
    """Acknowledgements of one topic on their way into markers and over links.

    Args:
        log: of the topic.
    """

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._collected: dict[str, int] = {}
        self._written: deque[_Written] = deque()

    def acknowledged(self, subscription: str, acked: Acked) -> None:
        """A consumer or operator here acknowledged something."""
        log = self._log
        messages = sum(bits.bit_count() for bits in acked.partial.values())
        if acked.up_to != NONE:
            messages += log.messages_between(acked.after, acked.up_to)
        first = last = NONE
        for position in acked.entries:
            if position[1] != last[1] + 1 or position[0] != last[0]:
                messages += log.messages_between(Position(first[0], first[1] - 1), last)
                first = position
            last = position
        messages += log.messages_between(Position(first[0], first[1] - 1), last)
        self._collected[subscription] = self._collected.get(subscription, 0) + messages

    def written(self, position: Position, now_ms: int) -> None:
        """A marker for other clusters is durable; it holds what was collected."""
        counts, self._collected = self._collected, {}
        self._written.append(_Written(position, now_ms, counts))
        if len(self._written) > MARKERS_MAX:
            first, second = self._written.popleft(), self._written.popleft()
            both = {
                name: first.counts.get(name, 0) + second.counts.get(name, 0) for name in first.counts | second.counts
            }
            self._written.appendleft(_Written(second.position, first.at_ms, both))

    def carried(self, up_to: Position) -> None:
        """Every link is done with everything at or below."""
        while self._written and self._written[0].position <= up_to:
            self._written.popleft()

    def waiting_since(self, carried: Position) -> int:
        """When the oldest marker was written that a link has not carried; 0 when it has carried all."""
        return next((one.at_ms for one in self._written if one.position > carried), 0)

    def lag(self, subscription: str, carried: Position) -> Lag:
        """What a cluster lacks whose link is done with everything at or below `carried`."""
        missing = [one for one in self._written if one.position > carried]
        messages = self._collected.get(subscription, 0) + sum(one.counts.get(subscription, 0) for one in missing)
        return Lag(messages, missing[0].at_ms if missing else 0)

    def forget(self, subscription: str) -> None:
        """A subscription is gone."""
        self._collected.pop(subscription, None)
