"""Shared: entries go to all consumers in turn that can receive them, those of higher priority first.

Entries that have to be sent again come before new ones. There is no order between consumers. Chunks of one message go
to one consumer (`chunks`).
"""

from itertools import filterfalse, islice
from typing import ClassVar

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.base import CHUNK, KeySharedPolicy
from magnetar.broker.subscriptions.dispatch.chunks import Chunks
from magnetar.broker.subscriptions.dispatch.context import DispatchContext
from magnetar.broker.subscriptions.dispatch.multiple import MultipleConsumers
from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet

ROUND_ENTRIES_MAX = 20
"""Entries for one consumer before the next one's turn (Pulsar's dispatcherMaxRoundRobinBatchSize): enough to fill a
packet, few enough that no consumer waits long.
"""


class Shared(MultipleConsumers):
    """The policy of Shared subscriptions."""

    sub_type: ClassVar = SubType.SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.again = PositionSet()
        self.chunks = Chunks()

    def check(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """Any number may join."""

    def is_waiting(self, position: Position) -> bool:
        """Whether an entry has to be sent again."""
        return position in self.again or position in self.chunks

    def waiting_count(self) -> int:
        """The number of entries that have to be sent again."""
        return len(self.again) + len(self.chunks)

    def to_send_again(self, positions: list[Position]) -> None:
        """These entries have to be sent again."""
        for position in positions:
            self.again.add(*position)

    def not_to_send(self, position: Position) -> None:
        """An entry is not to be sent again."""
        self.again.discard(*position)
        self.chunks.discard(position)

    def forget_up_to(self, mark_delete: Position) -> None:
        """Forget entries at or below mark-delete."""
        for ledger, entries in self.again.take_up_to(mark_delete).items():
            for entry in entries:
                self.refetch.drop(Position(ledger, entry))
        for position in self.chunks.take_up_to(mark_delete):
            self.refetch.drop(position)

    def forget_all(self) -> None:
        """Nothing is to be sent again."""
        self.again.clear()
        self.chunks.clear()

    def consumers_changed(self) -> None:
        """Chunks that waited for a consumer that left may go to any consumer."""
        self.to_send_again(self.chunks.take_of_gone(self.consumers))

    def send_ready(self) -> None:
        """Take turns until no consumer can receive more or no entry is available."""
        budget = self.context.limits.dispatch_bytes_max
        for owner in list(self.chunks.waiting):
            budget -= self._send_chunks(owner, budget)
        while not self.blocked:
            consumer = self.whose_turn()
            if consumer is None:
                return
            if self.enough(budget):
                return
            if self.throttled():
                return
            room = self.room(consumer)
            entries = self._old(room) if self.again else []
            # An entry that cannot be read does not stop the others.
            if not entries and (self.refetch.failed or len(self.again) <= len(self.refetch.damaged)):
                entries = self._new(room, budget)
            if not entries:
                return
            self.turn_taken(consumer)
            budget -= self._share_out(consumer, entries)

    def _new(self, room: int, budget: int) -> list[StoredEntry]:
        """The next new entries, unless too many chunks wait for their owners."""
        if len(self.chunks) >= self.context.limits.look_ahead_entries_max:
            return []
        return self.take_new(min(room, ROUND_ENTRIES_MAX), room, budget)

    def _old(self, messages_max: int) -> list[StoredEntry]:
        """The first entries of those to be sent again, as far as they are at hand."""
        entries = self._at_hand(self.again, messages_max)
        for entry in entries:
            self.again.discard(entry.ledger, entry.entry)
            self.refetch.drop(entry.position)
        return entries

    def _at_hand(self, waiting: PositionSet, messages_max: int) -> list[StoredEntry]:
        entries: list[StoredEntry] = []
        messages = 0
        damaged = self.refetch.damaged
        wanted = filterfalse(damaged.__contains__, waiting) if damaged else iter(waiting)
        for position in islice(wanted, ROUND_ENTRIES_MAX):
            entry = self.refetch.get(position, waiting) if messages < messages_max else None
            if entry is None:
                break
            entries.append(entry)
            messages += entry.count
        return entries

    def _share_out(self, consumer: Consumer, entries: list[StoredEntry]) -> int:
        """Give entries to whose turn it is, but chunks to the owners of their messages; the bytes that are sent."""
        flags = 0
        for entry in entries:
            flags |= entry.flags
        if not flags & CHUNK:
            return self.give(consumer, entries)
        size, its_own = 0, []
        for entry in entries:
            owner = self.chunks.owner(entry, consumer) if entry.flags & CHUNK else consumer
            if owner in self.chunks.waiting or (owner is not consumer and (self.blocked or not owner.can_receive)):
                self.chunks.wait(owner, entry.position)
                self.refetch.keep(entry)
            elif owner is consumer:
                its_own.append(entry)
            else:
                size += self.give(owner, [entry])
        return size + self.give(consumer, its_own) if its_own else size

    def _send_chunks(self, owner: Consumer, budget: int) -> int:
        """Give an owner chunks that wait for it; their bytes."""
        size = 0
        while owner.can_receive and not self.blocked and owner in self.chunks.waiting:
            if self.throttled() or self.enough(budget - size):
                break
            entries = self._at_hand(self.chunks.waiting[owner], self.room(owner))
            if not entries:
                break
            for entry in entries:
                self.chunks.no_more(owner, entry.position)
                self.refetch.drop(entry.position)
            size += self.give(owner, entries)
        return size

    def validate(self) -> None:
        """Check what must hold after every step."""
        super().validate()
        self.again.validate()
        self.chunks.validate()
        assert all(owner in self.consumers for owner in self.chunks.waiting), "chunks wait for one who is gone"
        for position in (*self.again, *(each for waiting in self.chunks.waiting.values() for each in waiting)):
            assert not self.context.cursor.is_acked(position), f"{position} is to be sent again and acknowledged"
            assert position <= self.reading.after, f"{position} is to be sent again and not yet read"
