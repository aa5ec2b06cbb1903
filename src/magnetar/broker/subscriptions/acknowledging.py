"""What is acknowledged on a subscription, and where it comes from: its own consumers, or those of other clusters.

ACK of a consumer     -> cursor -> `on_acked`: a replicated subscription tells the others
from another cluster  -> cursor, and nobody is told
a seek                -> acknowledgements of what was sent before it, and not again since, are dropped
                      (docs/design/acknowledged-sets.md#coming-back)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.publish.idempotency.withdrawals import Withdrawals
from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.base import Dispatcher
from magnetar.broker.subscriptions.dispatch.context import DispatchLog, Surroundings
from magnetar.broker.topics.compaction import Compacted, Deletions
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Outbox
from magnetar.replication.host import Acked
from magnetar.storage.cursor import Cursor, bits_of
from magnetar.storage.positions import PositionSet
from magnetar.wire.pulsar_pb2 import MessageIdData

OnAcked = Callable[[str, Acked], None]
OnExpired = Callable[[str, Position, Position], None]

_SHARED_TYPES: Final = (SubType.SHARED, SubType.KEY_SHARED)


@dataclass(slots=True)
class Moments:
    """When something last happened, wall clock ms; 0 for never."""

    flow_ms: int = 0
    acked_ms: int = 0
    mark_delete_moved_ms: int = 0
    expired_ms: int = 0


class AckedSubscription(ABC):
    """The acknowledging half of `broker.subscriptions.subscription.Subscription`.

    Attributes:
        name, durable, cursor: see there.
        on_acked: told what consumers and operators here acknowledge (a replicated subscription); None: nobody asks.
        on_expired: told what expires here, after < p <= up_to.
        withdrawals: of the topic; None: nothing is ever withdrawn (tests).
        compacted: of the topic, when its consumer reads compacted.
        begins: it was made at the beginning of the topic, and nobody has read it yet.
    """

    name: str
    durable: bool
    cursor: Cursor
    _outbox: Outbox
    _log: DispatchLog
    _around: Surroundings
    _dispatcher: Dispatcher

    def __init__(self) -> None:
        self.moments = Moments()
        self._late_up_to = NONE
        self.on_acked: OnAcked | None = None
        self.on_expired: OnExpired | None = None
        self.withdrawals: Withdrawals | None = None
        self.compacted: Compacted | None = None
        self.begins = False
        self._spared: Deletions | None = None
        """What it was not told of deletions, for it had nothing to delete."""

    @abstractmethod
    def disconnect_all(self) -> None:
        """Tell all consumers to go and come back."""

    @abstractmethod
    def _changed(self, mark_delete_before: Position) -> None:
        """The cursor may have changed."""

    def ack(self, consumer: Consumer, ids: Sequence[MessageIdData], *, cumulative: bool) -> bool:
        """Acknowledge: entries, messages of batches (ack_set), or everything up to one id.

        What is no entry of this topic, or acknowledged already, is passed over.

        Returns:
            Whether the cursor changed (then it is stored soon).

        Raises:
            BrokerError: NOT_ALLOWED for a cumulative acknowledgement on a Shared or Key_Shared subscription, or one with
                another number of ids than one.
        """
        before = self.cursor.mark_delete
        if self._late_up_to != NONE:
            ids = self._without_late(ids)
            if not ids:
                return False
        if not cumulative and self._dispatcher.sub_type in _SHARED_TYPES:
            changed = self._ack_shared(consumer, ids)
        else:
            consumer.cumulative |= cumulative
            tally = self.cursor.tally()
            changed = self._ack_cumulative(ids) if cumulative else self._ack_single(ids)
            consumer.messages_acked += self.cursor.acknowledged_since(tally)
        if changed:
            consumer.last_acked_ms = self.moments.acked_ms = self._outbox.now_ms
            self._changed(before)
        return changed

    def _without_late(self, ids: Sequence[MessageIdData]) -> Sequence[MessageIdData]:
        """Without acknowledgements of what was sent before a seek: it would undo the seek.

        See docs/design/acknowledged-sets.md#coming-back.

        What has not been sent again since cannot be meant. Once everything has been, nothing can be told apart any more.
        """
        read = self._dispatcher.reading.after
        if read >= self._late_up_to:
            self._late_up_to = NONE
            return ids
        return [item for item in ids if not read < position_of(item) <= self._late_up_to]

    def _left(self, position: Position, item: MessageIdData) -> int:
        """The messages of an entry that an ACK leaves, as a bit set; 0 where there is no entry, or no ack_set.

        Of an ack_set no more is read than the batch has messages: how long it is, the client decides.
        """
        if not item.ack_set or not self._log.valid(position):
            return 0
        return bits_of(item.ack_set[: (self._log.count_at(position) + 63) // 64])

    def _ack_cumulative(self, ids: Sequence[MessageIdData]) -> bool:
        if self._dispatcher.sub_type in _SHARED_TYPES:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"{self._around} is {self._dispatcher.sub_type.shown}: acknowledge messages one by one, not cumulatively",
            )
        if len(ids) != 1:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, f"a cumulative acknowledgement names one message id, not {len(ids)}"
            )
        position = position_of(ids[0])
        if position.entry == -1 and self._log.valid(Position(position.ledger, 0)):
            # From within a ledger's first batch C++ clients acknowledge what is in front of it by counting down its entry.
            position = self._log.position_before(position)
        if not self._log.valid(position):
            # Of a message of another cluster, sent late by a consumer that was moved here: it says nothing about this log.
            return False
        bits = self._left(position, ids[0])
        before = self.cursor.mark_delete
        changed = self.cursor.ack_up_to(position, bits)
        if changed and self.on_acked is not None:
            self._tell_range(before, position, bits)
        return changed

    def _tell_range(self, before: Position, position: Position, bits: int = 0) -> None:
        """A cumulative acknowledgement; with `bits`, of its own batch only the messages with bit 0."""
        assert self.on_acked is not None
        if not bits or self.cursor.is_acked(position) or not self._log.valid(position):
            self.on_acked(self.name, Acked(before, position))
            return
        acked = ((1 << self._log.count_at(position)) - 1) & ~bits
        self.on_acked(self.name, Acked(before, Position(position.ledger, position.entry - 1), (), {position: acked}))

    def _named(self, whole: Sequence[Position], parts: Sequence[MessageIdData]) -> Acked:
        """What an ACK names, also what the cursor had: an entry may have expired here and be acknowledged all the same.

        What is no entry of this log says nothing about it: a consumer that was moved here may be late with another cluster's ids.

        Args:
            whole: entries.
            parts: of batches.
        """
        log = self._log
        whole = [position for position in whole if log.valid(position)]
        if not parts:
            return Acked(NONE, NONE, whole)
        partial: dict[Position, int] = {}
        for item in parts:
            position = Position(item.ledgerId, item.entryId)
            if log.valid(position):
                acked = ((1 << log.count_at(position)) - 1) & ~self._left(position, item)
                partial[position] = partial.get(position, 0) | acked
        return Acked(NONE, NONE, [position for position in whole if position not in partial], partial)

    def _ack_single(self, ids: Sequence[MessageIdData]) -> bool:
        whole: list[Position] = []
        parts: list[MessageIdData] = []
        changed = 0
        for item in ids:
            if item.ack_set:
                parts.append(item)
                position = position_of(item)
                changed += self.cursor.ack_indexes(position, self._left(position, item))
            else:
                whole.append(Position(item.ledgerId, item.entryId))
        fresh = self.cursor.ack(whole)
        if self.on_acked is not None:
            self.on_acked(self.name, self._named(whole, parts))
        return fresh + changed > 0

    def _ack_shared(self, consumer: Consumer, ids: Sequence[MessageIdData]) -> bool:
        cursor = self.cursor
        whole: list[Position] = []
        parts: list[MessageIdData] = []
        changed = 0
        for item in ids:
            position = Position(item.ledgerId, item.entryId)
            if not item.ack_set:
                whole.append(position)
                continue
            parts.append(item)
            messages = cursor.ack_indexes(position, self._left(position, item))
            changed += messages
            if cursor.is_acked(position):
                whole.append(position)
            elif messages:
                self._dispatcher.settled_part(consumer, position, messages)
        changed += cursor.ack(whole)
        if self.on_acked is not None:
            self.on_acked(self.name, self._named(whole, parts))
        self._dispatcher.settled(consumer, whole)
        return changed > 0

    # ------------------------------------------------------------------------------------------- from other clusters

    def acknowledged_elsewhere(self, entries: PositionSet, partial: Mapping[Position, int]) -> bool:
        """Other clusters' consumers acknowledged entries, and messages of batches (bit sets, 1 = acknowledged).

        Nothing is sent by that; call `available` at the end of the event.

        Returns:
            Whether the cursor changed.
        """
        cursor, before = self.cursor, self.cursor.mark_delete
        fresh = cursor.ack_set(entries)
        parts: dict[Position, int] = {}
        for position, acked in partial.items():
            if self._log.valid(position):
                left = ((1 << self._log.count_at(position)) - 1) & ~acked
                messages = cursor.ack_indexes(position, left)
                if messages and cursor.is_acked(position):
                    fresh.add(*position)
                elif messages:
                    parts[position] = messages
        if not fresh and not parts:
            return False
        self._dispatcher.acknowledged_elsewhere(fresh, parts)
        self._changed(before)
        return True

    def rebuild(self, acked: PositionSet, partial: Mapping[Position, int]) -> None:
        """Consumed messages came back: consumers are disconnected, the cursor covers exactly this and what expired here."""
        self.disconnect_all()
        before = self.cursor.mark_delete
        self.cursor.replace(acked, partial, self.expired)
        self._cover_withdrawn()
        self._late_up_to = self._log.last
        self._dispatcher.restart()
        self._changed(before)

    def withdrawn(self, positions: Collection[Position]) -> set[Position]:
        """Messages of these entries have just been withdrawn from the topic; nothing is sent by that.

        They count as acknowledged also if a consumer has them: who has processed the one needs no other, and who has not is
        given the one that stays.

        Returns:
            Those of the entries that this subscription was given, or has acknowledged.
        """
        cursor, read = self.cursor, self._dispatcher.reading.after
        had = {position for position in positions if position <= read or cursor.is_acked(position)}
        entries, parts = PositionSet(), {}
        if self.withdrawals is not None:
            for position in positions:
                if position in self.withdrawals.entries:
                    entries.add(*position)
                else:
                    parts[position] = self.withdrawals.parts.get(position, 0)
        self.acknowledged_elsewhere(entries, parts)
        return had

    def read(self, compacted: Compacted | None) -> None:
        """Its consumer wants the compacted topic, in which nothing superfluous is left to deliver; None: the whole.

        Who begins needs no deletions. Whatever else the consumer is, it may have had older messages of their keys.
        """
        self.compacted = compacted
        if compacted is not None:
            compacted.cover(self.cursor)
            if self.begins:
                self._spared = compacted.deletions
                self._spared.cover(self.cursor)
        self.begins = False

    def left_out(self) -> list[Withdrawals]:
        """Messages that compaction keeps from its consumer."""
        if self.compacted is None:
            return []
        return [self.compacted.gone, *(self._spared.groups.values() if self._spared is not None else ())]

    def _cover_withdrawn(self) -> None:
        """The cursor was moved anywhere: what is withdrawn stays so."""
        self.begins, self._spared = False, None
        if self.withdrawals:
            self.withdrawals.cover(self.cursor)
        if self.compacted is not None:
            self.compacted.cover(self.cursor)

    @property
    def expired(self) -> Position:
        """Everything at or below has expired here; NONE when that is not known of anything."""
        return self.cursor.expired


def position_of(item: MessageIdData) -> Position:
    """Ids travel as unsigned; Pulsar's -1 arrives as 2^64 - 1."""
    ledger, entry = item.ledgerId, item.entryId
    return Position(ledger - (1 << 64) if ledger >> 63 else ledger, entry - (1 << 64) if entry >> 63 else entry)
