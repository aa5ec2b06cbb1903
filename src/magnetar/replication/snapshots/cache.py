"""The snapshots that a subscription may still pass.

The cache is bounded. A subscription with a large backlog needs snapshots all over the range between its cursor and the end; one
that keeps up needs only the newest. So when there are too many, the one in the middle that is nearest to its neighbours is
dropped, and the first and the last stay. (Dropping the oldest leaves a slow subscription with snapshots that it never reaches:
Pulsar #24300.)
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from magnetar.core.ids import Position
from magnetar.replication.snapshots.message_runs import MessageRuns
from magnetar.storage.topiclog import TopicLog

CACHED_MIN: Final = 3
"""Fewer could not span a range: a first, a last and one between them."""


@dataclass(slots=True, frozen=True)
class CachedSnapshot:
    """A snapshot.

    Attributes:
        local: it covers every entry at or below this position.
        clusters: position in each cluster that answered.
        held: the messages of the log at `local`; shared, not to be changed.
    """

    local: Position
    clusters: dict[str, Position]
    held: MessageRuns = field(repr=False)


def reached(log: TopicLog, mark_delete: Position, position: Position) -> bool:
    """Whether only markers are left between mark-delete and a position: they are as good as acknowledged."""
    if position <= mark_delete:
        return True
    return log.entries_between(mark_delete, position) == log.markers_between(mark_delete, position)


class Cache:
    """Snapshots in the order of their local positions.

    Args:
        log: of the topic.
        cached_max: how many; at least `CACHED_MIN`.
    """

    def __init__(self, log: TopicLog, cached_max: int) -> None:
        self._log = log
        self._max = max(CACHED_MIN, cached_max)
        self.items: list[CachedSnapshot] = []

    def __len__(self) -> int:
        return len(self.items)

    def add(self, taken: CachedSnapshot) -> None:
        """One more; one that is not above the last (read twice) changes nothing."""
        if self.items and taken.local <= self.items[-1].local:
            return
        self.items.append(taken)
        if len(self.items) > self._max:
            distances = [
                self._log.entries_between(self.items[at - 1].local, self.items[at + 1].local)
                for at in range(1, len(self.items) - 1)
            ]
            del self.items[1 + distances.index(min(distances))]

    def passed(self, mark_delete: Position) -> CachedSnapshot | None:
        """The newest that a subscription with this mark-delete has passed, or None."""
        found = None
        for taken in self.items:
            if not reached(self._log, mark_delete, taken.local):
                break
            found = taken
        return found

    def drop(self, up_to: Position) -> None:
        """Forget those at or below a position."""
        while self.items and self.items[0].local <= up_to:
            del self.items[0]

    def clear(self) -> None:
        """Forget all."""
        self.items.clear()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert len(self.items) <= self._max, f"{len(self.items)} snapshots are cached; at most {self._max}"
        assert all(a.local < b.local for a, b in pairwise(self.items)), "out of order"
