"""Messages that one subscription never delivers although no consumer acknowledged them.

    withdrawn    messages that lost to another one with the same idempotency key: for every subscription
    compacted    messages that compaction removes: for a subscription whose consumers read compacted
    deletions    deletions in the compacted topic, for a reader that began at the beginning and has nothing to delete

They count as acknowledged on the cursor, also after it was moved.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from magnetar.broker.publish.idempotency.withdrawals import Withdrawals
from magnetar.core.ids import Position
from magnetar.storage.cursor import Cursor
from magnetar.storage.positions import PositionSet


class DeletionGroups(Protocol):
    """Deletions that compaction keeps for a time (`topics.compaction.Deletions`)."""

    @property
    def groups(self) -> Mapping[int, Withdrawals]:
        """The removed messages, by the position from which they are passed."""

    def acknowledge_in(self, cursor: Cursor) -> None:
        """Acknowledge them on a cursor."""


class CompactedTopic(Protocol):
    """The messages that compaction has removed from a topic (`topics.compaction.Compacted`)."""

    @property
    def gone(self) -> Withdrawals:
        """Superfluous messages."""

    @property
    def deletions(self) -> DeletionGroups:
        """Deletions that are kept for a time; another object after each compaction."""

    def acknowledge_in(self, cursor: Cursor) -> None:
        """Acknowledge the removed messages on a cursor."""


class Omissions:
    """The messages that one subscription leaves out.

    Args:
        cursor: the subscription's cursor.
        withdrawals: the topic's withdrawn messages.
        from_beginning: the subscription was created at the beginning of the topic, and no consumer has read it yet.

    Attributes:
        compacted: the topic's removed messages if the subscription's consumers read compacted; else None.
    """

    def __init__(self, cursor: Cursor, withdrawals: Withdrawals, *, from_beginning: bool) -> None:
        self.compacted: CompactedTopic | None = None
        self._cursor = cursor
        self._withdrawals = withdrawals
        self._from_beginning = from_beginning
        self._spared: DeletionGroups | None = None
        """Deletions that are not delivered to a reader that began with nothing to delete."""

    def read(self, compacted: CompactedTopic | None) -> None:
        """A consumer comes that reads the compacted topic; None: the whole topic.

        A reader that begins needs no deletions. Any other may have had older messages of their keys.
        """
        self.compacted = compacted
        if compacted is not None:
            compacted.acknowledge_in(self._cursor)
            if self._from_beginning:
                self._spared = compacted.deletions
                self._spared.acknowledge_in(self._cursor)
        self._from_beginning = False

    def moved(self) -> None:
        """The cursor was moved: acknowledge the left-out messages again."""
        self._from_beginning, self._spared = False, None
        if self._withdrawals:
            self._withdrawals.acknowledge_in(self._cursor)
        if self.compacted is not None:
            self.compacted.acknowledge_in(self._cursor)

    def withdrawn(self, positions: Iterable[Position]) -> tuple[PositionSet, dict[Position, int]]:
        """For entries with withdrawn messages: those that are withdrawn as a whole, and bit sets of messages of the
        others.
        """
        entries, parts = PositionSet(), {}
        for position in positions:
            if position in self._withdrawals.entries:
                entries.add(*position)
            else:
                parts[position] = self._withdrawals.parts.get(position, 0)
        return entries, parts

    def compacted_away(self) -> list[Withdrawals]:
        """Messages that compaction keeps from the consumers."""
        if self.compacted is None:
            return []
        return [self.compacted.gone, *(self._spared.groups.values() if self._spared is not None else ())]
