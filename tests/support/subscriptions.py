"""A topic's log and its subscriptions without a broker: time, disk and sockets are in the test's hands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from magnetar.broker.publish.idempotency.withdrawals import Withdrawals
from magnetar.broker.statistics import subscription_stats
from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.multiple import MultipleConsumers
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.hints import command
from magnetar.core.ids import EARLIEST, Position
from magnetar.effects.outbox import Outbox, Read, Send
from magnetar.storage.cursor import BYTES_STORED_MAX, Cursor
from magnetar.storage.entries import EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder
from magnetar_sim.host.host import Host, find

TOPIC = "persistent://public/default/t"
FIRST_LEDGER = 100


def new_log(cache_bytes: int = 1 << 24, ledger_entries_max: int = 50_000) -> TopicLog:
    """An empty log; ledger ids are 100, 101, ... as long as the clock says less."""
    return TopicLog(
        TOPIC, FIRST_LEDGER, LedgerIds(FIRST_LEDGER - 1), EntryCache(cache_bytes), ledger_entries_max=ledger_entries_max
    )


def add_entries(log: TopicLog, entries: list[NewEntry], now_ms: int = 0) -> list[StoredEntry]:
    """Append, and confirm at once."""
    append = log.stage(entries, now_ms)
    log.confirm(append, Location(1, 0))
    return append.entries


def entry(
    payload: bytes = b"x",
    *,
    count: int = 1,
    marker: bool = False,
    key: str | None = None,
    deliver_at: int | None = None,
    publish_time: int = 0,
    chunk: tuple[str, int, int] | None = None,
) -> NewEntry:
    """An entry as a client would have sent it; a batch if `count` is not 1. `chunk`: uuid, number, and how many there are."""
    meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time)
    flags = 0
    if marker:
        meta.marker_type = 10
        flags, count = EntryFlags.MARKER, 0
    if count > 1:
        meta.num_messages_in_batch = count
        flags |= EntryFlags.BATCH
    if key is not None:
        meta.partition_key = key
        flags |= EntryFlags.KEYED
    if chunk is not None:
        meta.uuid, meta.chunk_id, meta.num_chunks_from_msg = chunk
        flags |= EntryFlags.CHUNK
    if deliver_at is not None:
        meta.deliver_at_time = deliver_at
        flags |= EntryFlags.DELAYED
    return NewEntry(metadata.build(meta, payload), int(flags), count, publish_time)


class Received(NamedTuple):
    """One MESSAGE as a client sees it."""

    consumer_id: int
    position: Position
    redelivery: int
    ack_set: tuple[int, ...]
    epoch: int | None
    partition: int
    payload: bytes


@dataclass
class Limits:
    """The part of BrokerConfig that subscriptions read."""

    unacked_messages_per_consumer_max: int = 50_000
    unacked_messages_per_subscription_max: int = 200_000
    cursor_ranges_max: int = 10_000
    redeliveries_max: int = 100_000
    delayed_messages_max: int = 4_000_000


@dataclass
class World:
    """One topic with one subscription, and everything around it.

    Attributes:
        auto_read: answer reads as soon as they are asked; else `answer_reads` does.
        disk_error: what reads are answered with, if not empty.
        damaged: entries that cannot be read; a read ends in front of one, and fails if it is the first.
        writable: connections to which nothing is wrong; a Send to another one fails the test.
    """

    cache_bytes: int = 1 << 24
    ledger_entries_max: int = 50_000
    partition: int = -1
    durable: bool = True
    limits: Limits = field(default_factory=Limits)
    auto_read: bool = True
    disk_error: str = ""

    def __post_init__(self) -> None:
        self.log = new_log(self.cache_bytes, self.ledger_entries_max)
        self.outbox = Outbox(now_ms=0)
        self.withdrawals = Withdrawals(self.log)
        self.left_out: list[int] = []
        self.disk: list[StoredEntry] = []
        self.damaged: set[Position] = set()
        self.received: dict[int, list[Received]] = {}
        self.commands: list[tuple[int, pb.BaseCommand]] = []
        self.sends: list[Send] = []
        self.reads: list[Read] = []
        self.reads_asked = 0
        self.dirty = 0
        self.detached: list[tuple[int, int]] = []
        self.on_stored: Callable[[list[StoredEntry]], None] = lambda stored: None
        self.on_command: Callable[[int, pb.BaseCommand], None] = lambda connection, command: None
        self.on_message: Callable[[int, Received], None] = lambda connection, received: None
        self.host = Host(self.outbox, {Send: self._sent, Read: self._read}, after=self._check)
        self.timers, self.notes = self.host.timers, self.host.notes
        self.patient = False
        """Timers that are due wait, too: others' events come first."""
        self._next_connection = 1
        self.subscription = self.subscribe()

    def subscribe(self, cursor: Cursor | None = None, start: Position = EARLIEST) -> Subscription:
        """Make a subscription over this log."""

        def on_dirty(subscription: Subscription) -> None:
            self.dirty += 1

        return Subscription(
            self.outbox,
            self.log,
            TOPIC,
            "s",
            cursor or Cursor.at(self.log, start),
            durable=self.durable,
            partition=self.partition,
            config=self.limits,
            bytes_max=BYTES_STORED_MAX,
            withdrawals=self.withdrawals,
            from_beginning=start == EARLIEST and cursor is None,
            ended=False,
            command=command,
            on_left_out=self.left_out.append,
            on_dirty=on_dirty,
            on_detached=lambda connection, consumer: self.detached.append((connection, consumer)),
        )

    def set_limits(self, **changes: int) -> None:
        """Change limits of dispatch that are not in the configuration."""
        from dataclasses import replace

        context = self.subscription.context
        context.limits = replace(context.limits, **changes)

    # ----------------------------------------------------------------------------------------------------- the topic

    def publish(self, *entries: NewEntry) -> list[Position]:
        """Append entries and tell the subscription."""
        stored = add_entries(self.log, list(entries), self.outbox.now_ms)
        self.disk += stored
        self.on_stored(stored)
        self.subscription.available()
        self.pump()
        return [each.position for each in stored]

    def publish_many(self, number: int) -> list[Position]:
        """Append so many small messages, one by one numbered."""
        return self.publish(*(entry(b"%d" % each) for each in range(number)))

    # ------------------------------------------------------------------------------------------------------ clients

    def new_consumer(
        self,
        name: str,
        sub_type: SubType = SubType.EXCLUSIVE,
        *,
        priority: int = 0,
        epoch: int | None = None,
        protocol_version: int = 20,
    ) -> Consumer:
        """A consumer with a connection of its own, not yet on the subscription."""
        consumer = Consumer(
            connection=self._next_connection,
            consumer_id=7,
            name=name,
            sub_type=sub_type,
            priority=priority,
            epoch=epoch,
            protocol_version=protocol_version,
            address=f"client-{name}",
        )
        self._next_connection += 1
        self.received[consumer.connection] = []
        return consumer

    def connect(
        self, consumer: Consumer, *, ranges: Sequence[tuple[int, int]] = (), out_of_order: bool = False
    ) -> None:
        """SUBSCRIBE."""
        meta = None
        if ranges or out_of_order:
            meta = pb.KeySharedMeta(keySharedMode=1 if ranges else 0, allowOutOfOrderDelivery=out_of_order)
            for first, last in ranges:
                meta.hashRanges.add(start=first, end=last)
        self.subscription.add_consumer(consumer, meta)
        self.pump()

    def consumer(
        self,
        name: str,
        sub_type: SubType = SubType.EXCLUSIVE,
        *,
        permits: int = 0,
        priority: int = 0,
        ranges: Sequence[tuple[int, int]] = (),
        out_of_order: bool = False,
        epoch: int | None = None,
        protocol_version: int = 20,
    ) -> Consumer:
        """Connect a new consumer."""
        consumer = self.new_consumer(name, sub_type, priority=priority, epoch=epoch, protocol_version=protocol_version)
        self.connect(consumer, ranges=ranges, out_of_order=out_of_order)
        if permits:
            self.flow(consumer, permits)
        return consumer

    def flow(self, consumer: Consumer, permits: int) -> None:
        """FLOW."""
        self.subscription.flow(consumer, permits)
        self.pump()

    def ack(
        self, consumer: Consumer, *positions: Position, cumulative: bool = False, ack_set: Sequence[int] = ()
    ) -> bool:
        """ACK."""
        ids = [pb.MessageIdData(ledgerId=each[0], entryId=each[1], ack_set=ack_set) for each in positions]
        changed = self.subscription.ack(consumer, ids, cumulative=cumulative)
        self.pump()
        return changed

    def redeliver(self, consumer: Consumer, *positions: Position, epoch: int | None = None) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        self.subscription.redeliver(consumer, positions or None, epoch)
        self.pump()

    def leave(self, consumer: Consumer) -> None:
        """CLOSE_CONSUMER from the client, or the end of its connection."""
        self.subscription.remove_consumer(consumer)
        self.pump()

    def got(self, consumer: Consumer) -> list[Position]:
        """What a consumer was sent, in order."""
        return [each.position for each in self.received[consumer.connection]]

    def take(self, consumer: Consumer) -> list[Received]:
        """What a consumer was sent since the last call."""
        messages, self.received[consumer.connection] = self.received[consumer.connection], []
        return messages

    # ---------------------------------------------------------------------------------------------------- the driver

    def pump(self) -> None:
        """Carry out effects until there are none; timers wait for `advance`, except those that are due."""
        while True:
            self.host.pump()
            if self.auto_read and self.reads:
                self.answer_read()
            elif self.patient or self.timers.next_by(self.outbox.now_ms) is None:
                return
            else:
                self.host.run(self.timers.pop(), self.outbox.now_ms)

    def stats(self) -> dict[str, Any]:
        """Statistics of the subscription."""
        return subscription_stats.stats(self.subscription)

    def internal_stats(self) -> dict[str, Any]:
        """Its internal ones."""
        return subscription_stats.internal_stats(self.subscription)

    def failing(self) -> bool:
        """Whether a read failed and waits to be tried again."""
        dispatcher = self.subscription._dispatcher
        return dispatcher.reading._failed or (isinstance(dispatcher, MultipleConsumers) and dispatcher.refetch.failed)

    def answer_read(self) -> None:
        """The disk answers the oldest read."""
        read = self.reads.pop(0)
        if self.disk_error:
            read.then([], self.disk_error)
            return
        read.then(*find(read, (each for each in self.disk if self.log.valid(each.position)), self.damaged))

    def advance(self, ms: int) -> None:
        """Time passes; timers fire in their order."""
        end = self.outbox.now_ms + ms
        while not self.patient and (at_ms := self.timers.next_by(end)) is not None:
            self.outbox.now_ms = max(self.outbox.now_ms, at_ms)
            self.pump()
        self.outbox.now_ms = end
        self.pump()

    def _check(self) -> None:
        self.subscription.validate()  # a test may make another subscription

    def _read(self, effect: Read) -> None:
        self.reads_asked += 1
        self.reads.append(effect)

    def _sent(self, effect: Send) -> None:
        self.sends.append(effect)
        for frame in FrameDecoder(1 << 30).feed(b"".join(effect.buffers)):
            command = frame.command
            if command.type != 9:
                self.commands.append((effect.connection, command))
                self.on_command(effect.connection, command)
                continue
            message = command.message
            received = Received(
                message.consumer_id,
                Position(message.message_id.ledgerId, message.message_id.entryId),
                message.redelivery_count,
                tuple(message.ack_set),
                message.consumer_epoch if message.HasField("consumer_epoch") else None,
                message.message_id.partition,
                frame.payload[metadata.split(frame.payload) :],
            )
            self.received.setdefault(effect.connection, []).append(received)
            self.on_message(effect.connection, received)
