"""A subscription of a non-persistent topic: choosing the consumer of a message, if one can receive it now."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.nonpersistent.sent import Sent
from magnetar.broker.statistics import constant_fields as statkeys
from magnetar.broker.subscriptions.consumer import Consumer, Counters, SubType, rates_out
from magnetar.broker.subscriptions.dispatch.base import (
    ACTIVE_CHANGE_VERSION,
    CHUNK,
    NOTHING_DRAINS,
    KeySharedPolicy,
    append_message,
    count_sent,
)
from magnetar.broker.subscriptions.dispatch.hashing import Ring, StickyRanges, shown_ranges, slot_of, slot_of_any
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import Position
from magnetar.core.meter import Meter
from magnetar.effects.outbox import Outbox, Send
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire import commands
from magnetar.wire.metadata import sticky_key
from magnetar.wire.pulsar_pb2 import MessageIdData

if TYPE_CHECKING:
    from magnetar.broker.nonpersistent.topic import NonPersistentTopic

_KEYED: Final = int(EntryFlags.KEYED)


class NonPersistentSubscription:
    """The consumers of one subscription name. It exists while it has any.

    Args:
        outbox: the broker's.
        topic: its topic.
        name: its name.
        partition: number of the topic's partition, or -1.

    Attributes:
        consumers: in the order of their arrival.
        dropped: messages that no consumer could receive.
    """

    def __init__(self, outbox: Outbox, topic: "NonPersistentTopic", name: str, partition: int) -> None:
        self.topic = topic
        self.name = name
        self.consumers: list[Consumer] = []
        self.dropped = 0
        self.meter = Meter(len(Counters._fields), outbox.now_ms)
        self.drop_meter = Meter(1, outbox.now_ms)
        self._outbox = outbox
        self._partition = partition
        self._sent: dict[Consumer, Sent] = {}
        self._policy = KeySharedPolicy()
        self._ring: Ring | StickyRanges = Ring()
        self._turn = 0
        self._active: Consumer | None = None
        self._gone = Counters()

    # ---------------------------------------------------------------------------------------------------- consumers

    @property
    def sub_type(self) -> SubType:
        """Its type is that of its consumers."""
        return self.consumers[0].sub_type if self.consumers else SubType.EXCLUSIVE

    def in_the_way(self, consumer: Consumer, policy: KeySharedPolicy) -> Consumer | None:
        """The consumer with the exclusive access, or the hash ranges, that a consumer of the same type requires; None:
        there is none.
        """
        if not self.consumers or consumer.sub_type is not self.sub_type:
            return None
        if self.sub_type is SubType.EXCLUSIVE:
            return self.consumers[0]
        sticky = self.sub_type is SubType.KEY_SHARED and policy.sticky
        return self._ring.holder(policy.ranges) if sticky and isinstance(self._ring, StickyRanges) else None

    def add(self, consumer: Consumer, policy: KeySharedPolicy, accepted: Callable[[], None]) -> None:
        """Add a consumer.

        Args:
            consumer, policy: the new consumer, and its options.
            accepted: called when it is certain that it is accepted, before it is added.

        Raises:
            BrokerError: CONSUMER_BUSY: the subscription has consumers of another type or policy, or one that is exclusive.
        """
        if self.consumers:
            if consumer.sub_type is not self.sub_type or consumer.sub_type is SubType.EXCLUSIVE:
                raise BrokerError(
                    ErrorCode.CONSUMER_BUSY,
                    f"subscription {self.name} of {self.topic.text} has a consumer of type {self.sub_type.shown}",
                )
            if (policy.sticky, policy.out_of_order) != (self._policy.sticky, self._policy.out_of_order):
                raise BrokerError(
                    ErrorCode.CONSUMER_BUSY,
                    f"subscription {self.name} of {self.topic.text} has consumers with another Key_Shared policy",
                )
        if consumer.sub_type is SubType.KEY_SHARED and policy.sticky:
            ranges = self._ring if self.consumers and isinstance(self._ring, StickyRanges) else StickyRanges()
            problem = ranges.overlap(policy.ranges)
            if problem:
                raise BrokerError(ErrorCode.CONSUMER_ASSIGN, f"consumer {consumer.name}: {problem}")
            ranges.add(consumer, policy.ranges)
            self._ring = ranges
        self._policy = policy
        accepted()
        self.consumers.append(consumer)
        self._sent[consumer] = Sent()
        self._changed(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; messages sent to it are not sent again."""
        self.consumers.remove(consumer)
        del self._sent[consumer]
        self._gone += Counters.of(consumer)
        if isinstance(self._ring, StickyRanges):
            self._ring.remove(consumer)
        self._changed(None)

    def _changed(self, newcomer: Consumer | None) -> None:
        if isinstance(self._ring, Ring):
            self._ring.rebuild(self.consumers if self.sub_type is SubType.KEY_SHARED else [])
        if not self.consumers:
            self._active = None
            return
        if self.sub_type is SubType.FAILOVER:
            # As with persistent topics: the first by priority and name; partitions go round.
            ordered = sorted(self.consumers, key=lambda one: (one.priority, one.name))
            best = [one for one in ordered if one.priority == ordered[0].priority]
            active = best[max(self._partition, 0) % len(best)]
            if active is not self._active:
                if self._active in self.consumers:
                    self._tell(self._active, active=False)
                self._tell(active, active=True)
            if newcomer is not None and newcomer is not active:
                self._tell(newcomer, active=False)
            self._active = active
        else:
            self._active = self.consumers[0]

    def _tell(self, consumer: Consumer | None, *, active: bool) -> None:
        if consumer is not None and consumer.protocol_version >= ACTIVE_CHANGE_VERSION:
            command = commands.active_consumer_change(consumer.consumer_id, active)
            self._outbox.put(Send(consumer.connection, (command,)))

    # ----------------------------------------------------------------------------------------------------- messages

    def deliver(self, entries: list[StoredEntry]) -> None:
        """Send each entry to the consumer whose turn it is; drop those that it cannot take now."""
        choose = self._chooser()
        buffers: dict[Consumer, list[bytes]] = {}
        for entry in entries:
            consumer = choose(entry)
            if consumer is None or not consumer.can_receive:
                self.dropped += entry.count
                continue
            append_message(buffers.setdefault(consumer, []), consumer, self._partition, entry, 0, 0)
            self._sent[consumer].add(entry.entry, entry.count)
            consumer.chunks_out += entry.flags & CHUNK != 0
            count_sent(consumer, 1, entry.count, len(entry.data), self._outbox.now_ms)
        for consumer, messages in buffers.items():
            self._outbox.put(Send(consumer.connection, messages))

    def flow(self, consumer: Consumer, permits: int) -> None:
        """A consumer requests this many more messages."""
        consumer.grant(permits, self._outbox.now_ms)

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None = None, epoch: int | None = None
    ) -> None:
        """Nothing that was sent can be sent again."""

    def pause(self, connection: int) -> None:
        """A connection accepts no more bytes: messages for its consumers are dropped meanwhile."""
        self._set_paused(connection, True)

    def resume(self, connection: int) -> None:
        """A connection takes bytes again."""
        self._set_paused(connection, False)

    def _set_paused(self, connection: int, paused: bool) -> None:
        for consumer in self.consumers:
            if consumer.connection == connection:
                consumer.paused = paused

    def ack(self, consumer: Consumer, ids: Iterable[MessageIdData], *, cumulative: bool) -> bool:
        """Count what a consumer acknowledges. As with stored messages, consumers that share do not do so cumulatively.

        Returns:
            False: nothing of it is stored.
        """
        consumer.last_acked_ms = self._outbox.now_ms
        if not (cumulative and self.sub_type in {SubType.SHARED, SubType.KEY_SHARED}):
            consumer.messages_acked += self._sent[consumer].acknowledged(ids, cumulative=cumulative)
        return False

    def _chooser(self) -> Callable[[StoredEntry], Consumer | None]:
        if self.sub_type is SubType.SHARED:
            return self._next
        if self.sub_type is SubType.KEY_SHARED:
            return self._owner
        return lambda _entry: self._active

    def _next(self, _entry: StoredEntry) -> Consumer | None:
        """The next consumer in turn, of the best priority with permits."""
        able = [consumer for consumer in self.consumers if consumer.can_receive]
        if not able:
            return None
        best = min(consumer.priority for consumer in able)
        among = [consumer for consumer in able if consumer.priority == best]
        self._turn += 1
        return among[self._turn % len(among)]

    def _owner(self, entry: StoredEntry) -> Consumer | None:
        key = sticky_key(entry.data) if entry.flags & _KEYED else None
        if key is None:
            self._turn += 1
            return self._ring.owner(slot_of(self._turn.to_bytes(8, "big")))
        return self._ring.owner(slot_of_any(key))

    # --------------------------------------------------------------------------------------------------- statistics

    def counters(self) -> Counters:
        """Sums since the subscription began, of consumers that left too."""
        total = self._gone
        for consumer in self.consumers:
            total += Counters.of(consumer)
        return total

    def update_rates(self, now_ms: int) -> None:
        """Work out what happened per second since the last call."""
        self.meter.update(now_ms, self.counters())
        self.drop_meter.update(now_ms, (self.dropped,))
        for consumer in self.consumers:
            consumer.meter.update(now_ms, Counters.of(consumer))

    def stats(self, *, consumers: bool = True) -> dict[str, Any]:
        """Statistics with Pulsar's keys (NonPersistentSubscriptionStats), with its consumers or without; `msgDropCount`
        is an addition of ours.
        """
        counters, present, keyed = self.counters(), self.consumers, self.sub_type is SubType.KEY_SHARED
        shown = (
            rates_out(self.meter)
            | statkeys.of_subscriptions_without_log()
            | NOTHING_DRAINS  # sent messages are not tracked: no slot has to wait for them
            | {
                "type": self.sub_type.shown,
                "msgOutCounter": counters.messages_out,
                "bytesOutCounter": counters.bytes_out,
                "msgDropCount": self.dropped,
                "msgDropRate": self.drop_meter.per_s[0],
                "activeConsumerName": self._active.name if self._active is not None else "",
                "lastConsumedFlowTimestamp": max((consumer.flow_ms for consumer in present), default=0),
                "lastConsumedTimestamp": max((consumer.last_consumed_ms for consumer in present), default=0),
                "lastAckedTimestamp": max((consumer.last_acked_ms for consumer in present), default=0),
                "allowOutOfOrderDelivery": keyed and self._policy.out_of_order,
                "consumers": [self.stats_of(consumer) for consumer in present] if consumers else [],
            }
        )
        if keyed:
            shown["keySharedMode"] = self._policy.mode
        return shown

    def stats_of(self, consumer: Consumer) -> dict[str, Any]:
        """Statistics of one of its consumers, with Pulsar's keys (ConsumerStats)."""
        shown = consumer.stats() | NOTHING_DRAINS
        if self.sub_type is SubType.KEY_SHARED:
            shown |= shown_ranges(self._ring.ranges().get(consumer, [])) | {"drainingHashes": []}
        return shown
