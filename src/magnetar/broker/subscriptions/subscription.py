"""A subscription: a cursor, its consumers, and the policy that shares entries out between them.

    add_consumer -> the first one decides the type -> dispatcher of that type
    flow, available, resume, answers to reads and timers -> dispatcher.dispatch -> Send
    ack -> cursor -> dirty -> (the keeper stores it) ; dispatcher forgets what was pending
    seek, skip, expire -> cursor ; a seek drops all consumers first, as in Pulsar

The type may change whenever there are no consumers. Everything here is one machine: it is entered by one event at a time
and asks for things only through its outbox and the two callbacks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from magnetar.broker.statistics import subscription_stats
from magnetar.broker.subscriptions.acknowledging import AckedSubscription
from magnetar.broker.subscriptions.consumer import Consumer, Counters, SubType
from magnetar.broker.subscriptions.dispatch.base import Dispatcher, KeySharedPolicy
from magnetar.broker.subscriptions.dispatch.context import DispatchLog, Limits, Surroundings
from magnetar.broker.subscriptions.dispatch.exclusive import Exclusive
from magnetar.broker.subscriptions.dispatch.failover import Failover
from magnetar.broker.subscriptions.dispatch.key_shared import KeyShared
from magnetar.broker.subscriptions.dispatch.shared import Shared
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.meter import Meter
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Note, Outbox, Send
from magnetar.storage.cursor import BYTES_STORED_MAX, EXPIRED_ENTRY, EXPIRED_LEDGER, USED, Cursor, bits_of
from magnetar.wire import commands
from magnetar.wire.pulsar_pb2 import KeySharedMeta
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


class SubscriptionConfig(Protocol):
    """What a subscription reads of `core.config.BrokerConfig`."""

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


class Subscription(AckedSubscription):
    """One subscription of one topic.

    Args:
        outbox: the broker's.
        log: the topic's.
        topic: its full name.
        name: of the subscription.
        cursor: its place; of an existing subscription as decoded, of a new one `Cursor.at(log, where)`.
        durable: kept across restarts; False for readers.
        partition: the topic's number, -1 when it is no partition.
        config: limits.
        on_dirty: called when the cursor has to be stored; again only after `encode`.
        on_detached: called with connection and consumer id for each consumer that the subscription drops by itself.

    Attributes:
        consumers: in the order of their coming.
        left_ms: when its consumers were last told to go, or it was made; whether any are there is another matter.
        used_ms: when a consumer was last there, as far as is known; a moment that is stored now and then (`note_use`).
        durable_mark_delete: what is known to be stored; moved by whoever stores `encode()`.
        ended: the topic is terminated.
        bytes_max: of what the stored cursor says beside its place, as far as the store takes it.
        sought: it was moved since its last consumer went.
        on_left_out: told how many more ranges or batches the stored cursor has no room for than the one before had.
        expired_entries: given up since the subscription was loaded, because of their age or an administrator's word; what a
            quota on bytes took is not among them, as in Pulsar.
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
        on_dirty: Callable[["Subscription"], None],
        on_detached: Callable[[int, int], None],
    ) -> None:
        super().__init__()
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.durable_mark_delete = cursor.mark_delete
        self.created_ms = self.left_ms = outbox.now_ms
        self.used_ms = cursor.properties.get(USED, outbox.day_ms)
        self.closed = False
        self.ended = False
        self.sought = False
        self._outbox = outbox
        self._log = log
        self._on_dirty = on_dirty
        self._on_detached = on_detached
        self._ranges_max = config.cursor_ranges_max
        self.bytes_max = BYTES_STORED_MAX
        self._left_out = 0
        self.on_left_out: Callable[[int], None] | None = None
        self.meter = Meter(len(Counters._fields), outbox.now_ms)
        self.expired_entries = 0
        self.expired_meter = Meter(1, outbox.now_ms)
        self._gone = Counters()
        limits = Limits(
            unacked_per_consumer_max=config.unacked_messages_per_consumer_max or _UNLIMITED,
            unacked_per_subscription_max=config.unacked_messages_per_subscription_max or _UNLIMITED,
            redeliveries_max=config.redeliveries_max,
            delayed_entries_max=config.delayed_messages_max,
        )
        self._around = Surroundings(outbox, log, cursor, topic, name, partition, limits)
        self._dispatcher: Dispatcher = Exclusive(self._around)
        self._typed = False

    # ---------------------------------------------------------------------------------------------------- consumers

    @property
    def consumers(self) -> list[Consumer]:
        """In the order of their coming; not to be changed."""
        return self._dispatcher.consumers

    def in_the_way(self, consumer: Consumer, key_shared: KeySharedMeta | None) -> Consumer | None:
        """Who has what a consumer of the same type wants for itself alone: the place, or hash ranges; None: nobody."""
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
        """Let a consumer in. It is sent nothing before its first FLOW.

        Args:
            consumer: who comes.
            key_shared: its policy, of a Key_Shared one.
            accepted: called when it is certain that it is let in, and before it is.

        Raises:
            BrokerError: CONSUMER_BUSY for a second exclusive consumer or another type than that of the consumers there;
                CONSUMER_ASSIGN for sticky hash ranges that are missing, wrong or taken.
        """
        if self.closed:
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"{self._around} is being closed")
        policy = policy_of(key_shared)
        dispatcher = former = self._dispatcher
        if consumer.sub_type is not former.sub_type:
            if former.consumers:
                raise BrokerError(
                    ErrorCode.CONSUMER_BUSY,
                    f"{self._around} is {former.sub_type.shown}; a consumer of type {consumer.sub_type.shown} "
                    "cannot join while others are connected",
                )
            dispatcher = _DISPATCHERS[consumer.sub_type](self._around)
        dispatcher.check(consumer, policy)
        if accepted is not None:
            accepted()
        if dispatcher is not former:
            former.close()
        self._dispatcher = dispatcher
        self._typed = True
        self.sought = False
        consumer.owner = self
        dispatcher.add(consumer, policy)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer closed, or its connection did; what it did not acknowledge goes to others."""
        if consumer in self._dispatcher.consumers:
            self.used_ms = self._outbox.day_ms
            self._gone += Counters.of(consumer)
            self._dispatcher.remove(consumer)

    def disconnect_all(self, *, migrated_to: str = "", migrated_to_tls: str = "") -> None:
        """Tell all consumers to go and come back (CLOSE_CONSUMER), and forget them.

        Args:
            migrated_to, migrated_to_tls: `pulsar://host:port` of another cluster that they shall come to instead, and
                the same by TLS.
        """
        gone = list(self._dispatcher.consumers)
        self.left_ms = self._outbox.now_ms
        if gone:
            self.used_ms = self._outbox.day_ms
        self._dispatcher.remove_all()
        for consumer in gone:
            self._gone += Counters.of(consumer)
            if migrated_to and may_push(_TOPIC_MIGRATED, consumer.protocol_version):
                told = commands.consumer_migrated(
                    consumer.consumer_id, migrated_to, migrated_to_tls, named=consumer.remembers
                )
            else:
                told = (commands.close_consumer(consumer.consumer_id),)
            self._outbox.put(Send(consumer.connection, told))
            self._on_detached(consumer.connection, consumer.consumer_id)

    def note_use(self, step_ms: int) -> None:
        """Store when a consumer was last there, if what is stored is more than `step_ms` behind."""
        if self.consumers:
            self.used_ms = self._outbox.day_ms
        if self.used_ms - self.cursor.properties.get(USED, 0) > step_ms:
            self.cursor.properties[USED] = self.used_ms
            self._on_dirty(self)

    def close(self, reason: str) -> None:
        """The subscription is gone from here: consumers are told, nothing is sent any more."""
        self.disconnect_all()
        self.closed = True
        self._dispatcher.close()
        self._outbox.put(Note("debug", f"{self._around} is closed: {reason}"))

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
        """Policies changed: go on by these.

        Args:
            unacked_per_consumer_max, unacked_per_subscription_max: see `Limits`.
            broker_rate: of dispatch, shared by all subscriptions of the broker.
            topic_rate: the same of the topic's subscriptions.
            own_rate: of this subscription alone.
            delays: whether `deliver_at` is kept to.
        """
        around = self._around
        around.limits = replace(
            around.limits,
            unacked_per_consumer_max=unacked_per_consumer_max,
            unacked_per_subscription_max=unacked_per_subscription_max,
        )
        around.rates = tuple(rate for rate in (broker_rate, topic_rate, own_rate) if rate is not None)
        around.broker_rate, around.own_rate = broker_rate, own_rate
        around.delays = delays
        self._dispatcher.limits_changed()

    @property
    def own_rate(self) -> Rate | None:
        """The rate of dispatch that is this subscription's alone; None: none."""
        return self._around.own_rate

    @property
    def held(self) -> bool:
        """Whether nothing is sent because the subscription is fenced."""
        return self._around.held

    def hold(self, held: bool) -> None:
        """Send nothing more, or go on; acknowledgements are taken in both cases."""
        if held != self._around.held:
            self._around.held = held
            self._dispatcher.dispatch()

    def in_flight(self) -> int:
        """Messages that the consumers were sent and did not acknowledge."""
        return self._dispatcher.in_flight()

    # ----------------------------------------------------------------------------------------------------- messages

    def flow(self, consumer: Consumer, permits: int) -> None:
        """A consumer asks for so many messages more."""
        now_ms = self.moments.flow_ms = self._outbox.now_ms
        consumer.grant(permits, now_ms)
        self._dispatcher.dispatch()
        if self.ended:
            self._tell_end()

    def available(self) -> None:
        """The log has new entries. Markers next to mark-delete are stepped over, whether there are consumers or not."""
        if self.cursor.step_over_markers():
            self._dispatcher.mark_delete_moved()
        self._dispatcher.dispatch()

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None = None, epoch: int | None = None
    ) -> None:
        """Send again what this consumer did not acknowledge.

        Shared and Key_Shared: the entries at `positions` that are pending on it, or all. Exclusive and Failover: from
        mark-delete on. `epoch` is echoed in the MESSAGEs from now on; a request with an older one is late and ignored.
        """
        if epoch is not None:
            if consumer.epoch is not None and epoch < consumer.epoch:
                return
            consumer.epoch = epoch
        self._dispatcher.redeliver(consumer, positions)

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
        self.seek_to(self._log.seek_time(publish_time_ms))

    def reset_to(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        """Move the cursor, as `seek_to`, of a subscription that has no consumers."""
        before, noted = self.cursor.mark_delete, EXPIRED_LEDGER in self.cursor.properties
        for key in (EXPIRED_LEDGER, EXPIRED_ENTRY):
            self.cursor.properties.pop(key, None)
        if not self.replicated and noted:
            self._note_expiry(NONE)
        # How long an ack_set is, its client decides: of it no more is read than the batch has messages.
        messages = self._log.count_at(position) if self._log.valid(position) else 0
        self.cursor.reset(position, bits_of(ack_set[: (messages + 63) // 64]))
        self.sought = True
        self._cover_withdrawn()
        self._late_up_to = self._log.last
        self._dispatcher.restart()
        self._changed(before)

    def print_commands_by(self, command: Callable[..., str]) -> None:
        """How messages print a command of `magnetar`, from its words."""
        self._around.command = command

    @property
    def stopped(self) -> tuple[Position, str] | None:
        """The entry in front of which it stands because it cannot be read, and why; None: none."""
        return self._dispatcher.stopped

    def skip(self, entries: int) -> int:
        """Acknowledge the next so many unacknowledged entries; how many there were."""
        position, found = self.cursor.nth_open(entries)
        if found:
            self._ack_up_to(position)
        return found

    def skip_all(self) -> None:
        """Acknowledge everything there is now."""
        self._ack_up_to(self._log.last)

    def expire(self, before_ms: int) -> None:
        """Give up everything in front of the first entry published (and stored) at that time or later, in this cluster."""
        first_kept = Cursor.at(self._log, self._log.first_since(before_ms))
        self.expire_to(first_kept.mark_delete)

    def expire_to(self, position: Position) -> None:
        """Give up everything at or below `position` in this cluster because it is old, or an administrator says that it is,
        unless that is a step back or behind the newest entry.
        """
        self.moments.expired_ms = self._outbox.now_ms
        self.expired_entries += self._give_up(position)

    def advance_to(self, position: Position) -> None:
        """Give up everything at or below `position` in this cluster (a backlog quota), unless that is a step back or behind
        the newest entry.
        """
        self._give_up(position)

    def _give_up(self, position: Position) -> int:
        """As acknowledging, but other clusters are not told: it is nobody's acknowledgement. How many entries it was."""
        before = self.cursor.mark_delete
        if position <= before or position > self._log.last:
            return 0
        backlog = self.backlog_entries()
        if self.replicated or EXPIRED_LEDGER in self.cursor.properties:
            self._note_expiry(position)
        self._ack_up_to(position, tell=False)
        if self.on_expired is not None:
            self.on_expired(self.name, before, position)
        return backlog - self.backlog_entries()

    def _note_expiry(self, position: Position) -> None:
        """Everything at or below has expired here. Whose expiry is noted is replicated, or was: should it be again, what expired
        meanwhile is not told as acknowledged.
        """
        self.cursor.properties[EXPIRED_LEDGER], self.cursor.properties[EXPIRED_ENTRY] = position

    def nth_unacknowledged(self, number: int) -> Position | None:
        """The `number`-th (from 1) entry that is not acknowledged, or None."""
        position, found = self.cursor.nth_open(number)
        return position if found == number else None

    def _ack_up_to(self, position: Position, *, tell: bool = True) -> None:
        before = self.cursor.mark_delete
        if self.cursor.ack_up_to(position):
            if tell and self.on_acked is not None:
                self._tell_range(before, position)
            self._dispatcher.mark_delete_moved()
            self._changed(before)

    def _changed(self, mark_delete_before: Position) -> None:
        if self.cursor.mark_delete != mark_delete_before:
            self.moments.mark_delete_moved_ms = self._outbox.now_ms
        if self.cursor.dirty:
            self._on_dirty(self)
        if self.ended:
            self._tell_end()

    def end(self) -> None:
        """The topic is terminated: consumers are told, once they have acknowledged all there is."""
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
        """Everything at or below is acknowledged, as far as memory knows; what is stored is `durable_mark_delete`."""
        return self.cursor.mark_delete

    def encode(self) -> bytes:
        """The cursor as stored. Says so when it has more holes than are stored."""
        data = self.cursor.encode(self._ranges_max, bytes_max=self.bytes_max)
        left_out = self.cursor.runs_left_out + self.cursor.partials_left_out
        if left_out and not self._left_out:
            limit = f"cursor_ranges_max = {self._ranges_max}"
            if self.bytes_max < BYTES_STORED_MAX:
                limit += f", and {self.bytes_max} bytes of a cursor in ZooKeeper"
            self._outbox.put(
                Note(
                    "warning",
                    f"{self._around} has more acknowledgements out of order than are stored: {left_out} ranges or batches "
                    f"are kept in memory only and come again after a restart ({limit})",
                )
            )
        if left_out > self._left_out and self.on_left_out is not None:
            self.on_left_out(left_out - self._left_out)
        self._left_out = left_out
        return data

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
            self._note_expiry(self.expired)
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
        """Since the subscription was loaded, of all consumers that are or were there."""
        return sum(map(Counters.of, self.consumers), self._gone)

    @property
    def messages_out(self) -> int:
        """Messages sent, redeliveries counted."""
        return self.counters().messages_out

    @property
    def bytes_out(self) -> int:
        """Bytes of entries sent."""
        return self.counters().bytes_out

    def update_rates(self, now_ms: int) -> None:
        """Take the counters for the rates; call it at regular times."""
        for consumer in self.consumers:
            consumer.meter.update(now_ms, Counters.of(consumer))
        self.meter.update(now_ms, self.counters())
        self.expired_meter.update(now_ms, (self.expired_entries,))

    def stats(self, *, consumers: bool = True) -> dict[str, Any]:
        """With Pulsar's keys (SubscriptionStats), with its consumers or without."""
        shown = subscription_stats.stats(self, self._dispatcher, self._log)
        return shown | {"consumers": [self.stats_of(one) for one in self.consumers]} if consumers else shown

    def stats_of(self, consumer: Consumer) -> dict[str, Any]:
        """Of one of its consumers, with Pulsar's keys (ConsumerStats)."""
        return consumer.stats() | self._dispatcher.consumer_stats(consumer)

    def internal_stats(self) -> dict[str, Any]:
        """With Pulsar's keys (ManagedLedgerInternalStats.CursorStats)."""
        return subscription_stats.internal_stats(self, self._dispatcher)

    def consumer_stats(self, consumer: Consumer) -> dict[str, Any]:
        """One consumer's, with the field names of CommandConsumerStatsResponse."""
        return subscription_stats.consumer_stats(self, consumer)

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.cursor.validate()
        self._dispatcher.validate()
        assert all(consumer.owner is self for consumer in self.consumers), "a consumer of another subscription"
        assert all(consumer.sub_type is self._dispatcher.sub_type for consumer in self.consumers), "mixed types"


def policy_of(meta: KeySharedMeta | None) -> KeySharedPolicy:
    """What a consumer asks for, from its SUBSCRIBE; the default without."""
    if meta is None:
        return KeySharedPolicy()
    return KeySharedPolicy(
        sticky=meta.keySharedMode == 1,
        ranges=tuple((each.start, each.end) for each in meta.hashRanges),
        out_of_order=meta.allowOutOfOrderDelivery,
    )
