"""Exclusive: one consumer gets everything, in order.

Sent entries are not remembered: after a consumer left or requested redelivery, reading starts again after mark-delete.
Entries above it that are individually acknowledged are left out. Delayed delivery is ignored, as in Pulsar.

An Exclusive consumer may name hash ranges, as those of sticky Key_Shared: Java's readers do (`keyHashRange`). Only
entries in its ranges are sent to it; the others are skipped, which does not acknowledge them. Several such readers can
divide a topic by keys.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.base import (
    CHUNK,
    MARKER,
    Dispatcher,
    KeySharedPolicy,
    append_message,
    count_sent,
)
from magnetar.broker.subscriptions.dispatch.context import DispatchContext
from magnetar.broker.subscriptions.dispatch.hashing import StickyRanges, slot_of_entry
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import Position
from magnetar.effects.outbox import Send
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet


class Exclusive(Dispatcher):
    """The policy of Exclusive subscriptions, and the sending of Failover ones."""

    sub_type: ClassVar = SubType.EXCLUSIVE

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._active: Consumer | None = None
        self._started = False
        self._ranges: StickyRanges | None = None

    @property
    def active(self) -> Consumer | None:
        """The one that gets everything."""
        return self._active

    @property
    def waits(self) -> bool:
        """Whether the active one could take more, and everything there is was read."""
        return self._started and self._active is not None and self._active.can_receive and self._at_end

    def check(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """Only one."""
        if self.consumers:
            holder = self.consumers[0]
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY,
                f"{self.context} has an exclusive consumer already: {holder.name} from {holder.address}",
            )
        if policy.ranges and (problem := StickyRanges().overlap(policy.ranges)):
            raise BrokerError(ErrorCode.CONSUMER_ASSIGN, f"{self.context}: consumer {consumer.name}: {problem}")

    def in_the_way(self, consumer: Consumer, policy: KeySharedPolicy) -> Consumer | None:
        """The one that is there."""
        return self.consumers[0] if self.consumers and self.sub_type is SubType.EXCLUSIVE else None

    def add(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """It is the active one at once."""
        self.consumers.append(consumer)
        self._active = consumer
        self._ranges = None
        if policy.ranges:
            self._ranges = StickyRanges()
            self._ranges.add(consumer, policy.ranges)
        self.start()

    def start(self) -> None:
        """The active consumer begins after mark-delete."""
        self._started = True
        self.reading.rewind(self.context.cursor.mark_delete)
        self.dispatch()

    def remove(self, consumer: Consumer) -> None:
        """No consumer is left."""
        self.consumers.remove(consumer)
        self.stop()

    def remove_all(self) -> None:
        """No consumer is left."""
        self.consumers.clear()
        self.stop()

    def stop(self) -> None:
        """No consumer is active; nothing is read."""
        self._active = None
        self._started = False
        self.reading.rewind(self.context.cursor.mark_delete)

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """Start again after mark-delete. Single entries cannot be sent again here without breaking the order, so a
        request for some redelivers all, as in Pulsar. A standby consumer has nothing to request.
        """
        if consumer is self._active and self._started:
            self.reading.rewind(self.context.cursor.mark_delete)
            self.dispatch()

    def settled(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        """Sent entries are not remembered."""

    def settled_part(self, consumer: Consumer, position: Position, messages: int) -> None:
        """Sent entries are not remembered."""

    def acknowledged_elsewhere(self, entries: PositionSet, parts: Mapping[Position, int]) -> None:
        """Sent entries are not remembered."""

    def mark_delete_moved(self) -> bool:
        """Nothing to do: reading continues after it."""
        return False

    def restart(self) -> None:
        """Read from the cursor's new position."""
        self.reading.rewind(self.context.cursor.mark_delete)

    def dispatch(self) -> bool:
        """Send to the active consumer what its permits allow, in one effect."""
        consumer = self._active
        if consumer is None or not self._started or self.context.held or not consumer.can_receive:
            return False
        budget, left = self.context.limits.dispatch_bytes_max, self.context.limits.dispatch_entries_max
        buffers: list[bytes] = []
        while consumer.can_receive:
            if budget <= 0 or left <= 0:
                self.dispatch_again()
                break
            if self.throttled():
                break
            room = consumer.permits
            if self.context.rates:
                room = min(room, self.context.messages_by_rate())
                budget = min(budget, self.context.bytes_by_rate())
            entries = self.reading.peek(min(room, left), budget)
            if not entries:
                break
            left -= len(entries)
            budget -= self._send(consumer, entries, buffers, room)
        if buffers:
            self.context.outbox.put(Send(consumer.connection, buffers))
        return bool(buffers)

    def _send(self, consumer: Consumer, entries: list[StoredEntry], buffers: list[bytes], permits: int) -> int:
        """Add entries to the buffers until they contain this many messages; returns their bytes."""
        cursor = self.context.cursor
        partition = self.context.partition
        look_up = not cursor.in_order
        ranges = self._ranges
        messages = sent = size = dealt_with = chunks = 0
        for entry in entries:
            if messages >= permits:
                break
            dealt_with += 1
            if entry.flags & MARKER:
                continue
            if ranges is not None and ranges.owner(slot_of_entry(entry)) is None:
                continue
            count = entry.count
            bits = 0
            if look_up:
                position = Position(entry.ledger, entry.entry)
                if position in cursor.acked:
                    continue
                partial = cursor.partial.get(position)
                if partial is not None:
                    bits = partial.bits
                    count = bits.bit_count()
            append_message(buffers, consumer, partition, entry, 0, bits)
            chunks += entry.flags & CHUNK
            messages += count
            sent += 1
            size += len(entry.data)
        self.reading.take(entries, dealt_with)
        consumer.chunks_out += chunks // CHUNK
        count_sent(consumer, sent, messages, size, self.context.outbox.now_ms)
        if self.context.rates:
            self.context.sent(messages, size)
        return size

    def in_flight(self) -> int:
        """Messages between mark-delete and what was read that are not acknowledged."""
        cursor, log, read = self.context.cursor, self.context.log, self.reading.after
        following = log.next_after(cursor.mark_delete)
        if following is None or following > read:
            return 0
        acked = sum(
            log.messages_between(Position(first.ledger, first.entry - 1), min(last, read))
            for first, last in cursor.acked.runs()
            if first <= read
        )
        partly = sum(
            partial.size - partial.bits.bit_count() for position, partial in cursor.partial.items() if position <= read
        )
        return log.messages_between(cursor.mark_delete, read) - acked - partly

    def validate(self) -> None:
        """Check what must hold after every step."""
        super().validate()
        assert self._active is None or self._active in self.consumers, "the active consumer is gone"
        assert not self._started or self._active is not None, "started without a consumer"
        assert not any(consumer.pending for consumer in self.consumers), "pending entries are of no use here"
        if self.sub_type is SubType.EXCLUSIVE:
            assert len(self.consumers) <= 1, "more than one exclusive consumer"
