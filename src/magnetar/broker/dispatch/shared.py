"""Shared: entries go round all consumers that can take them, those of higher priority first.

What has to be sent again goes before what is new. There is no order between consumers.
"""

from itertools import islice

from magnetar.broker.consumer import Consumer, SubType
from magnetar.broker.dispatch.base import KeySharedPolicy
from magnetar.broker.dispatch.multiple import MultipleConsumers
from magnetar.broker.dispatch.surroundings import Surroundings
from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet

ROUND_ENTRIES_MAX = 20
"""Entries for one consumer before it is the next one's turn (Pulsar's dispatcherMaxRoundRobinBatchSize): large enough to
fill a packet, small enough that nobody waits long."""


class Shared(MultipleConsumers):
    """The policy of Shared subscriptions."""

    sub_type = SubType.SHARED

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self.again = PositionSet()

    def check(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """Any number may come."""

    def is_waiting(self, position: Position) -> bool:
        """Whether an entry has to be sent again."""
        return position in self.again

    def waiting_count(self) -> int:
        """How many entries have to be sent again."""
        return len(self.again)

    def to_send_again(self, positions: list[Position]) -> None:
        """These entries have to be sent again."""
        for position in positions:
            self.again.add(*position)

    def not_to_send(self, position: Position) -> None:
        """An entry is not to be sent again."""
        self.again.discard(*position)

    def forget_up_to(self, mark_delete: Position) -> None:
        """What is at or below mark-delete is not to be sent again."""
        for ledger, entries in self.again.take_up_to(mark_delete).items():
            for entry in entries:
                self.refetch.drop(Position(ledger, entry))

    def forget_all(self) -> None:
        """Nothing is to be sent again."""
        self.again.clear()

    def send_ready(self) -> None:
        """One turn after the other, until nobody can take more or nothing is at hand."""
        budget = self.around.limits.dispatch_bytes_max
        while not self.blocked:
            consumer = self.next_consumer()
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
                entries = self.take_new(min(room, ROUND_ENTRIES_MAX), room, budget)
            if not entries:
                return
            budget -= self.give(consumer, entries)

    def _old(self, messages_max: int) -> list[StoredEntry]:
        """The first entries of those to be sent again, as far as they are at hand."""
        entries: list[StoredEntry] = []
        messages = 0
        damaged = self.refetch.damaged
        wanted = (each for each in self.again if each not in damaged) if damaged else iter(self.again)
        for position in islice(wanted, ROUND_ENTRIES_MAX):
            entry = self.refetch.get(position, self.again) if messages < messages_max else None
            if entry is None:
                break
            entries.append(entry)
            messages += entry.count
        for entry in entries:
            self.again.discard(entry.ledger, entry.entry)
            self.refetch.drop(entry.position)
        return entries

    def validate(self) -> None:
        """Check what must hold after every step."""
        super().validate()
        self.again.validate()
        for position in self.again:
            assert not self.around.cursor.is_acked(position), f"{position} is to be sent again and acknowledged"
            assert position <= self.reading.after, f"{position} is to be sent again and not yet read"
