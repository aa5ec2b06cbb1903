"""A subscription: a cursor, its consumers, and the policy that divides entries among them.

    add_consumer -> the first one decides the type -> dispatcher of that type
    flow, available, resume, answers to reads and timers -> dispatcher.dispatch -> Send
    ack -> cursor -> dirty -> (`CursorFlusher` stores it) ; dispatcher forgets the pending entries
    seek, skip, expire -> cursor ; a seek drops all consumers first, as in Pulsar

The type may change whenever there are no consumers. All of this is one machine: it handles one event at a time, and
acts only through its outbox, the two callbacks, and the listener of a replicated subscription.

Acknowledgements come from

    ACK of a consumer here   -> cursor -> the listener: the other clusters have to learn it
    another cluster          -> cursor, and the listener is not called
    before a seek            -> dropped, unless the message was sent again since (docs/design/acknowledged-sets.md#coming-back)
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.publish.idempotency.withdrawals import Withdrawals
from magnetar.broker.subscriptions.acked_ids import acked_by, acked_up_to, messages_left, position_of
from magnetar.broker.subscriptions.activity import Activity
from magnetar.broker.subscriptions.consumer import Consumer, Counters, SubType
from magnetar.broker.subscriptions.cursor_encoder import CursorEncoder
from magnetar.broker.subscriptions.dispatch.base import Dispatcher, KeySharedPolicy
from magnetar.broker.subscriptions.dispatch.context import DispatchContext, DispatchLog, Limits
from magnetar.broker.subscriptions.dispatch.exclusive import Exclusive
from magnetar.broker.subscriptions.dispatch.failover import Failover
from magnetar.broker.subscriptions.dispatch.key_shared import KeyShared
from magnetar.broker.subscriptions.dispatch.shared import Shared
from magnetar.broker.subscriptions.omissions import CompactedTopic, Omissions
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.meter import Meter
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Note, Outbox, Send
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import EXPIRED_ENTRY, EXPIRED_LEDGER, USED, Cursor, bits_of
from magnetar.storage.positions import PositionSet
from magnetar.wire import commands
from magnetar.wire.pulsar_pb2 import KeySharedMeta, MessageIdData
from magnetar.wire.versions import may_push

REPLICATED: Final = "pulsar.replicated.subscription"
"""Pulsar's name of the cursor property that marks a replicated subscription."""

_UNLIMITED: Final = 1 << 62
_TOPIC_MIGRATED: Final = 68

_DISPATCHERS: Final[dict[SubType, type[Dispatcher]]] = {
    SubType.EXCLUSIVE: Exclusive,
    SubType.FAILOVER: Failover,
    SubType.SHARED: Shared,
    SubType.KEY_SHARED: KeyShared,
}
_SHARED_TYPES: Final = (SubType.SHARED, SubType.KEY_SHARED)


class SubscriptionConfig(Protocol):
    """The settings of `core.settings.BrokerConfig` that a subscription uses."""

    @property
    def unacked_messages_per_consumer_max(self) -> int:
        """0 for none."""

    @property
    def unacked_messages_per_subscription_max(self) -> int:
        """0 for none."""

    @property
    def cursor_ranges_max(self) -> int:
        """Runs of individually acknowledged entries that are stored."""

    @property
    def redeliveries_max(self) -> int:
        """Entries whose redeliveries are counted."""

    @property
    def delayed_messages_max(self) -> int:
        """Entries remembered until their time."""


class AckListener(Protocol):
    """Receives the events of a replicated subscription (`replicated_subscriptions.topic.ReplicatedTopic`)."""

    def acknowledged(self, name: str, acked: Acked) -> None:
        """A consumer or an operator here acknowledged something; the cursor has it."""

    def expired(self, name: str, after: Position, up_to: Position) -> None:
        """Messages with after < p <= up_to expired here."""


class Subscription:
    """One subscription of one topic.

    Args:
        outbox: the broker's.
        log: the topic's.
        topic: its full name.
        name: the subscription's name.
        cursor: its cursor; for an existing subscription as decoded, for a new one `Cursor.at(log, where)`.
        durable: kept across restarts; False for readers.
        partition: the topic's number, -1 if it is not a partition.
        config: limits.
        bytes_max: largest size of the stored cursor in addition to its position, as the store allows.
        withdrawals: the topic's withdrawn messages.
        from_beginning: it is created at the beginning of the topic, and no consumer has read it yet.
        ended: the topic is terminated.
        command: formats a command of `magnetar`, from its words, for messages.
        on_dirty: called when the cursor has to be stored; again only after `encode`.
        on_detached: called with connection and consumer id for each consumer that the subscription disconnects.
        on_left_out: called with the increase of the number of ranges or batches that the stored cursor leaves out.

    Attributes:
        log: the topic's.
        consumers: in the order of their arrival.
        left_ms: when its consumers were last disconnected, or it was created; it may have consumers again.
        used_ms: last known time with a consumer; it is stored from time to time (`note_use`).
        durable_mark_delete: the stored position; updated by the code that stores `encode()`.
        sought: it was moved since its last consumer left.
        activity: its activity since it was loaded.
        context: the context of its dispatcher.
    """

    def __init__(
        self,
        outbox: Outbox,
        log: DispatchLog,
        topic: str,
        name: str,
        cursor: Cursor,
        *,
        durable: bool,
        partition: int,
        config: SubscriptionConfig,
        bytes_max: int,
        withdrawals: Withdrawals,
        from_beginning: bool,
        ended: bool,
        command: Callable[..., str],
        on_dirty: Callable[["Subscription"], None],
        on_detached: Callable[[int, int], None],
        on_left_out: Callable[[int], None],
    ) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.durable_mark_delete = cursor.mark_delete
        self.created_ms = self.left_ms = outbox.now_ms
        self.used_ms = cursor.properties.get(USED, outbox.day_ms)
        self.closed = False
        self.ended = ended
        self.sought = False
        self.log = log
        self.activity = Activity(outbox.now_ms)
        limits = Limits(
            unacked_per_consumer_max=config.unacked_messages_per_consumer_max or _UNLIMITED,
            unacked_per_subscription_max=config.unacked_messages_per_subscription_max or _UNLIMITED,
            redeliveries_max=config.redeliveries_max,
            delayed_entries_max=config.delayed_messages_max,
        )
        self.context = DispatchContext(outbox, log, cursor, topic, name, partition, limits, command)
        self._outbox = outbox
        self._on_dirty = on_dirty
        self._on_detached = on_detached
        self._omissions = Omissions(cursor, withdrawals, from_beginning=from_beginning)
        self._encoder = CursorEncoder(outbox, str(self.context), config.cursor_ranges_max, bytes_max, on_left_out)
        self._listener: AckListener | None = None
        self._late_up_to = NONE
        """Acknowledgements at or below are late, unless the message was sent again: they were sent before a seek."""
        self._dispatcher: Dispatcher = Exclusive(self.context)
        self._typed = False

    # ---------------------------------------------------------------------------------------------------- consumers

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers in the order of their arrival; not to be changed."""
        return self._dispatcher.consumers

    def in_the_way(self, consumer: Consumer, key_shared: KeySharedMeta | None) -> Consumer | None:
        """The consumer with the exclusive access, or the hash ranges, that a consumer of the same type requires; None:
        there is none.
        """
        same = consumer.sub_type is self._dispatcher.sub_type
        return self._dispatcher.in_the_way(consumer, policy_of(key_shared)) if same else None

    @property
    def sub_type(self) -> SubType | None:
        """The type that the consumers gave it, the last ones if there are none; None before the first."""
        return self._dispatcher.sub_type if self._typed else None

    def add_consumer(
        self,
        consumer: Consumer,
        key_shared: KeySharedMeta | None = None,
        accepted: Callable[[], None] | None = None,
    ) -> None:
        """Add a consumer. Nothing is sent to it before its first FLOW.

        Args:
            consumer: the new consumer.
            key_shared: its policy, for a Key_Shared one.
            accepted: called when it is certain that it is accepted, before it is added.

        Raises:
            BrokerError: CONSUMER_BUSY for a second exclusive consumer, or a type other than that of the present
                consumers; CONSUMER_ASSIGN for sticky hash ranges that are missing, wrong or taken.
        """
        if self.closed:
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"{self.context} is being closed")
        policy = policy_of(key_shared)
        dispatcher = former = self._dispatcher
        if consumer.sub_type is not former.sub_type:
            if former.consumers:
                raise BrokerError(
                    ErrorCode.CONSUMER_BUSY,
                    f"{self.context} is {former.sub_type.shown}; a consumer of type {consumer.sub_type.shown} "
                    "cannot join while others are connected",
                )
            dispatcher = _DISPATCHERS[consumer.sub_type](self.context)
        dispatcher.check(consumer, policy)
        if accepted is not None:
            accepted()
        if dispatcher is not former:
            former.close()
        self._dispatcher = dispatcher
        self._typed = True
        self.sought = False
        dispatcher.add(consumer, policy)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer closed, or its connection did; its unacknowledged entries go to others."""
        if consumer in self._dispatcher.consumers:
            self.used_ms = self._outbox.day_ms
            self.activity.consumer_left(consumer)
            self._dispatcher.remove(consumer)

    def disconnect_all(self, *, migrated_to: str = "", migrated_to_tls: str = "") -> None:
        """Disconnect all consumers (CLOSE_CONSUMER), after which they reconnect, and forget them.

        Args:
            migrated_to, migrated_to_tls: `pulsar://host:port` of another cluster to which they connect instead, and the
                same by TLS.
        """
        gone = list(self._dispatcher.consumers)
        self.left_ms = self._outbox.now_ms
        if gone:
            self.used_ms = self._outbox.day_ms
        self._dispatcher.remove_all()
        for consumer in gone:
            self.activity.consumer_left(consumer)
            if migrated_to and may_push(_TOPIC_MIGRATED, consumer.protocol_version):
                farewell = commands.consumer_migrated(
                    consumer.consumer_id, migrated_to, migrated_to_tls, named=consumer.remembers
                )
            else:
                farewell = (commands.close_consumer(consumer.consumer_id),)
            self._outbox.put(Send(consumer.connection, farewell))
            self._on_detached(consumer.connection, consumer.consumer_id)

    def note_use(self, step_ms: int) -> None:
        """Store the time of the last consumer, if the stored one is more than `step_ms` earlier."""
        if self.consumers:
            self.used_ms = self._outbox.day_ms
        if self.used_ms - self.cursor.properties.get(USED, 0) > step_ms:
            self.cursor.properties[USED] = self.used_ms
            self._on_dirty(self)

    def close(self, reason: str) -> None:
        """The subscription is removed from here: its consumers are disconnected, and nothing is sent."""
        self.disconnect_all()
        self.closed = True
        self._dispatcher.close()
        self._outbox.put(Note("debug", f"{self.context} is closed: {reason}"))

    def pause(self, connection: int) -> None:
        """A connection takes no more bytes."""
        for consumer in self._dispatcher.consumers:
            if consumer.connection == connection:
                consumer.paused = True

    def resume(self, connection: int) -> None:
        """A connection takes bytes again."""
        for consumer in self._dispatcher.consumers:
            if consumer.connection == connection:
                consumer.paused = False
        self._dispatcher.dispatch()

    def follow(
        self,
        *,
        unacked_per_consumer_max: int,
        unacked_per_subscription_max: int,
        broker_rate: Rate | None,
        topic_rate: Rate | None,
        own_rate: Rate | None,
        delays: bool,
    ) -> None:
        """Apply changed policies.

        Args:
            unacked_per_consumer_max, unacked_per_subscription_max: see `Limits`.
            broker_rate: rate of dispatch shared by all subscriptions of the broker.
            topic_rate: the same for the topic's subscriptions.
            own_rate: the same for this subscription alone.
            delays: whether `deliver_at` is respected.
        """
        self.context.follow(
            unacked_per_consumer_max=unacked_per_consumer_max,
            unacked_per_subscription_max=unacked_per_subscription_max,
            broker_rate=broker_rate,
            topic_rate=topic_rate,
            own_rate=own_rate,
            delays=delays,
        )
        self._dispatcher.limits_changed()

    @property
    def own_rate(self) -> Rate | None:
        """The rate of dispatch that is this subscription's alone; None: none."""
        return self.context.own_rate

    @property
    def held(self) -> bool:
        """Whether nothing is sent because the subscription is fenced."""
        return self.context.held

    def hold(self, held: bool) -> None:
        """Send nothing more, or continue; acknowledgements are accepted in both cases."""
        if held != self.context.held:
            self.context.held = held
            self._dispatcher.dispatch()

    def in_flight(self) -> int:
        """Messages that the consumers were sent and did not acknowledge."""
        return self._dispatcher.in_flight()

    # ----------------------------------------------------------------------------------------------------- messages

    def flow(self, consumer: Consumer, permits: int) -> None:
        """A consumer requests this many more messages."""
        now_ms = self.activity.flow_ms = self._outbox.now_ms
        consumer.grant(permits, now_ms)
        self._dispatcher.dispatch()
        if self.ended:
            self._tell_end()

    def available(self) -> bool:
        """The log has new entries. Markers next to mark-delete are stepped over, whether there are consumers or not.

        Returns:
            Whether a consumer was sent something.
        """
        sent = self.cursor.step_over_markers() and self._dispatcher.mark_delete_moved()
        return self._dispatcher.dispatch() or sent

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None = None, epoch: int | None = None
    ) -> None:
        """Send the unacknowledged entries of this consumer again.

        Shared and Key_Shared: the entries at `positions` that are pending on it, or all. Exclusive and Failover: from
        mark-delete on. `epoch` is echoed in the MESSAGEs from now on; a request with an older one is late and ignored.
        """
        if epoch is not None:
            if consumer.epoch is not None and epoch < consumer.epoch:
                return
            consumer.epoch = epoch
        self._dispatcher.redeliver(consumer, positions)

    # ----------------------------------------------------------------------------------------------- acknowledgements

    def ack(self, consumer: Consumer, ids: Sequence[MessageIdData], *, cumulative: bool) -> bool:
        """Acknowledge: entries, messages of batches (ack_set), or everything up to one id.

        Ids that are not entries of this topic, or are acknowledged already, are ignored.

        Returns:
            Whether the cursor changed (then it is stored soon).

        Raises:
            BrokerError: NOT_ALLOWED for a cumulative acknowledgement on a Shared or Key_Shared subscription, or one
                without exactly one id.
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
            consumer.last_acked_ms = self.activity.acked_ms = self._outbox.now_ms
            self._changed(before)
        return changed

    def _without_late(self, ids: Sequence[MessageIdData]) -> Sequence[MessageIdData]:
        """Remove acknowledgements of entries that were sent before a seek: they would undo the seek.

        See docs/design/acknowledged-sets.md#coming-back.

        An entry that has not been sent again since cannot be meant. Once all have been sent again, the two cases cannot
        be distinguished.
        """
        read = self._dispatcher.reading.after
        if read >= self._late_up_to:
            self._late_up_to = NONE
            return ids
        return [item for item in ids if not read < position_of(item) <= self._late_up_to]

    def _ack_cumulative(self, ids: Sequence[MessageIdData]) -> bool:
        if self._dispatcher.sub_type in _SHARED_TYPES:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"{self.context} is {self._dispatcher.sub_type.shown}: acknowledge messages one by one, not cumulatively",
            )
        if len(ids) != 1:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, f"a cumulative acknowledgement names one message id, not {len(ids)}"
            )
        position = position_of(ids[0])
        if position.entry == -1 and self.log.valid(Position(position.ledger, 0)):
            # For an id within a ledger's first batch, C++ clients acknowledge the entry before it by subtracting one
            # from the entry id.
            position = self.log.position_before(position)
        if not self.log.valid(position):
            # An id of another cluster, sent late by a consumer that was moved here: it has no meaning in this log.
            return False
        bits = messages_left(self.log, position, ids[0])
        before = self.cursor.mark_delete
        changed = self.cursor.ack_up_to(position, bits)
        if changed and self._listener is not None:
            left = bits if not self.cursor.is_acked(position) else 0
            self._listener.acknowledged(self.name, acked_up_to(self.log, before, position, left))
        return changed

    def _ack_single(self, ids: Sequence[MessageIdData]) -> bool:
        whole: list[Position] = []
        parts: list[MessageIdData] = []
        changed = 0
        for item in ids:
            if item.ack_set:
                parts.append(item)
                position = position_of(item)
                changed += self.cursor.ack_indexes(position, messages_left(self.log, position, item))
            else:
                whole.append(Position(item.ledgerId, item.entryId))
        fresh = self.cursor.ack(whole)
        if self._listener is not None:
            self._listener.acknowledged(self.name, acked_by(self.log, whole, parts))
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
            messages = cursor.ack_indexes(position, messages_left(self.log, position, item))
            changed += messages
            if cursor.is_acked(position):
                whole.append(position)
            elif messages:
                self._dispatcher.settled_part(consumer, position, messages)
        changed += cursor.ack(whole)
        if self._listener is not None:
            self._listener.acknowledged(self.name, acked_by(self.log, whole, parts))
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
            if self.log.valid(position):
                left = ((1 << self.log.count_at(position)) - 1) & ~acked
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
        self.cursor.replace(acked, partial, self.cursor.expired)
        self._omissions.moved()
        self._late_up_to = self.log.last
        self._dispatcher.restart()
        self._changed(before)

    def withdrawn(self, positions: Collection[Position]) -> set[Position]:
        """Messages of these entries have just been withdrawn from the topic; this sends nothing.

        They count as acknowledged also if a consumer has them: a consumer that processed the withdrawn message does not
        need the other one, and a consumer that did not will get the other one.

        Returns:
            Those of the entries that were dispatched on this subscription, or are acknowledged.
        """
        cursor, read = self.cursor, self._dispatcher.reading.after
        had = {position for position in positions if position <= read or cursor.is_acked(position)}
        entries, parts = self._omissions.withdrawn(positions)
        self.acknowledged_elsewhere(entries, parts)
        return had

    def read(self, compacted: CompactedTopic | None) -> None:
        """Its consumer reads the compacted topic, of which nothing superfluous is delivered; None: the whole topic."""
        self._omissions.read(compacted)

    @property
    def compacted(self) -> CompactedTopic | None:
        """The topic's removed messages, if its consumers read compacted."""
        return self._omissions.compacted

    def left_out(self) -> list[Withdrawals]:
        """Messages that compaction keeps from its consumers."""
        return self._omissions.compacted_away()

    @property
    def listener(self) -> AckListener | None:
        """The listener for acknowledgements and expiry of a replicated subscription."""
        return self._listener

    def listen(self, listener: AckListener | None) -> None:
        """Set the listener for acknowledgements and expiry here; None: the subscription is not replicated."""
        self._listener = listener

    # --------------------------------------------------------------------------------------------- moving the cursor

    def seek_to(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        """Seek: all consumers are disconnected; the next entry is the one at `position`, or the next there is.

        EARLIEST and LATEST are allowed. `ack_set` marks messages of that entry as acknowledged. The answer to the client
        has to wait until `encode()` is stored (a durable subscription).
        """
        self.disconnect_all()
        self.reset_to(position, ack_set)

    def seek_time(self, publish_time_ms: int) -> None:
        """Seek to the first entry published at that time or later."""
        self.seek_to(self.log.seek_time(publish_time_ms))

    def reset_to(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        """Move the cursor, as `seek_to`, of a subscription that has no consumers."""
        before, noted = self.cursor.mark_delete, EXPIRED_LEDGER in self.cursor.properties
        for key in (EXPIRED_LEDGER, EXPIRED_ENTRY):
            self.cursor.properties.pop(key, None)
        if not self.replicated and noted:
            self._note_expiry(NONE)
        # The client decides the length of an ack_set: only as many bits are read as the batch has messages.
        messages = self.log.count_at(position) if self.log.valid(position) else 0
        self.cursor.reset(position, bits_of(ack_set[: (messages + 63) // 64]))
        self.sought = True
        self._omissions.moved()
        self._late_up_to = self.log.last
        self._dispatcher.restart()
        self._changed(before)

    @property
    def stopped(self) -> tuple[Position, str] | None:
        """The entry before which it is stopped because it cannot be read, and the reason; None: it is not stopped."""
        return self._dispatcher.stopped

    def skip(self, entries: int) -> int:
        """Acknowledge the next unacknowledged entries, up to this number; returns their number."""
        position, found = self.cursor.nth_open(entries)
        if found:
            self._ack_up_to(position)
        return found

    def skip_all(self) -> None:
        """Acknowledge everything there is now."""
        self._ack_up_to(self.log.last)

    def expire(self, before_ms: int) -> None:
        """Give up everything in front of the first entry published (and stored) at that time or later, in this cluster."""
        first_kept = Cursor.at(self.log, self.log.first_since(before_ms))
        self.expire_to(first_kept.mark_delete)

    def expire_to(self, position: Position) -> None:
        """Give up everything at or below `position` in this cluster because it is old, or an administrator says that it
        is, unless that is a step back or after the newest entry.
        """
        self.activity.expired_ms = self._outbox.now_ms
        self.activity.expired_entries += self._give_up(position)

    def advance_to(self, position: Position) -> None:
        """Give up everything at or below `position` in this cluster (a backlog quota), unless that is a step back or
        after the newest entry.
        """
        self._give_up(position)

    def _give_up(self, position: Position) -> int:
        """Acknowledge here without informing other clusters, because no consumer acknowledged it. Returns the number of
        entries.
        """
        before = self.cursor.mark_delete
        if position <= before or position > self.log.last:
            return 0
        backlog = self.backlog_entries()
        if self.replicated or EXPIRED_LEDGER in self.cursor.properties:
            self._note_expiry(position)
        self._ack_up_to(position, tell=False)
        if self._listener is not None:
            self._listener.expired(self.name, before, position)
        return backlog - self.backlog_entries()

    def _note_expiry(self, position: Position) -> None:
        """Note that everything at or below has expired here. This is noted for subscriptions that are or were
        replicated: if one is replicated again, entries that expired in the meantime are not reported as acknowledged.
        """
        self.cursor.properties[EXPIRED_LEDGER], self.cursor.properties[EXPIRED_ENTRY] = position

    def nth_unacknowledged(self, number: int) -> Position | None:
        """The `number`-th (from 1) entry that is not acknowledged, or None."""
        position, found = self.cursor.nth_open(number)
        return position if found == number else None

    def _ack_up_to(self, position: Position, *, tell: bool = True) -> None:
        before = self.cursor.mark_delete
        if self.cursor.ack_up_to(position):
            if tell and self._listener is not None:
                self._listener.acknowledged(self.name, acked_up_to(self.log, before, position, 0))
            self._dispatcher.mark_delete_moved()
            self._changed(before)

    def _changed(self, mark_delete_before: Position) -> None:
        if self.cursor.mark_delete != mark_delete_before:
            self.activity.mark_delete_moved_ms = self._outbox.now_ms
        if self.cursor.dirty:
            self._on_dirty(self)
        if self.ended:
            self._tell_end()

    def end(self) -> None:
        """The topic is terminated: consumers are informed once they have acknowledged everything."""
        self.ended = True
        self._tell_end()

    def _tell_end(self) -> None:
        if self.backlog_entries():
            return
        for consumer in self.consumers:
            if consumer.learns_end and consumer.first_flow_ms:
                consumer.learns_end = False
                self._outbox.put(Send(consumer.connection, (commands.reached_end_of_topic(consumer.consumer_id),)))

    # ------------------------------------------------------------------------------------------------------- storing

    @property
    def mark_delete(self) -> Position:
        """Everything at or below is acknowledged in memory; the stored position is `durable_mark_delete`."""
        return self.cursor.mark_delete

    def encode(self) -> bytes:
        """The cursor as stored. A note is put out when it begins to have more holes than are stored."""
        return self._encoder.encode(self.cursor)

    @property
    def replicated(self) -> bool:
        """Whether its state follows to other clusters."""
        return REPLICATED in self.cursor.properties

    def set_replicated(self, replicated: bool) -> None:
        """Let its state follow to other clusters, or no longer."""
        if replicated == self.replicated:
            return
        if replicated:
            self.cursor.properties[REPLICATED] = 1
        else:
            del self.cursor.properties[REPLICATED]
            self._note_expiry(self.cursor.expired)
        self.cursor.dirty = True
        self._on_dirty(self)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the texts that are kept with it, in this cluster."""
        self.cursor.labels = dict(properties)
        self.cursor.dirty = True
        self._on_dirty(self)

    # ---------------------------------------------------------------------------------------------------- statistics

    def backlog_entries(self) -> int:
        """Entries not acknowledged, without markers."""
        return self.cursor.backlog_entries()

    def counters(self) -> Counters:
        """Sums since the subscription was loaded, over all present and former consumers."""
        return self.activity.counters(self._dispatcher.consumers)

    @property
    def meter(self) -> Meter:
        """Rates of `counters`."""
        return self.activity.meter

    @property
    def messages_out(self) -> int:
        """Messages sent, redeliveries counted."""
        return self.counters().messages_out

    @property
    def bytes_out(self) -> int:
        """Bytes of entries sent."""
        return self.counters().bytes_out

    @property
    def dispatcher(self) -> Dispatcher:
        """The policy of its type, for statistics."""
        return self._dispatcher

    def update_rates(self, now_ms: int) -> None:
        """Take the counters for the rates; call it at regular times."""
        self.activity.update_rates(now_ms, self._dispatcher.consumers)

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.cursor.validate()
        self._dispatcher.validate()
        assert all(consumer.sub_type is self._dispatcher.sub_type for consumer in self.consumers), "mixed types"


def policy_of(meta: KeySharedMeta | None) -> KeySharedPolicy:
    """The options of a consumer from its SUBSCRIBE; the default without."""
    if meta is None:
        return KeySharedPolicy()
    return KeySharedPolicy(
        sticky=meta.keySharedMode == 1,
        ranges=tuple((each.start, each.end) for each in meta.hashRanges),
        out_of_order=meta.allowOutOfOrderDelivery,
    )
