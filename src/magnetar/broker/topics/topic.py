"""One topic: its log, its producers, its subscriptions.

    publish:  entries -> TopicLog.stage -> Write ... appended -> TopicLog.confirm -> receipts, dispatch, links
    failure:  append_failed -> write_failed: nothing more is staged, producers are closed and reconnect -> healed

The receipt of a stored entry cannot exist before its append is confirmed: `PublishToken` makes it while that event is
handled. The receipt of a duplicate (`Topic.repeat`) states that its first copy is durable. It waits for the receipts of its
producer's earlier messages, or, in a topic with idempotency keys, of all staged entries (`Topic.answer`).
Subscriptions and links read confirmed entries only.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from magnetar.broker.publish.deduplication import TopicDeduplication
from magnetar.broker.publish.idempotency.topic import TopicIdempotency
from magnetar.broker.publish.idempotency.withdrawals import Loser, Withdrawals
from magnetar.broker.publish.producers import Producer, Producers
from magnetar.broker.publish.sequence_numbers import Numbers, SequenceMark
from magnetar.broker.publish.throttling import PublishThrottle, throttle_at
from magnetar.broker.statistics.cardinality import Traffic
from magnetar.broker.statistics.latency import Writes
from magnetar.broker.statistics.link_flow import LinkFlow
from magnetar.broker.subscriptions.consumer import Counters
from magnetar.broker.subscriptions.subscribe_rate import Subscribing
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.compaction import Compacted
from magnetar.broker.topics.limits import TopicLimits
from magnetar.broker.topics.replicated_subscriptions import TopicReplicatedSubscriptions
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.meter import Meter
from magnetar.core.names import TopicName
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Outbox, Send, Timer, Write
from magnetar.metadata.topic_records import TopicRecord
from magnetar.storage.entries import Append, EntryFlags, Location, NewEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import commands
from magnetar.wire.metadata import Inspected
from magnetar.wire.pulsar_pb2 import CommandProducer


class MessageNotAllowed(BrokerError):
    """A policy does not allow one message: it is too large, or its delay is too long. NOT_ALLOWED, as in Pulsar.

    Java's client fails only the message, if it is its oldest pending one. Clients based on the C++ client react to it
    (and to every other error of a SEND) by closing the connection, connecting again and sending the same message again,
    for ever, because reconnecting restarts their send timeout. There is one error for which they fail only the message,
    that of a wrong checksum. So they get that one (decision 0013).
    """


def check_size(seen: Inspected, size: int, limits: TopicLimits, topic: str) -> None:
    """Refuse a message that is larger than the limits of its topic allow; chunks are cut by another measure.

    Raises:
        MessageNotAllowed: NOT_ALLOWED.
    """
    if size > limits.message_bytes and not seen.flags & EntryFlags.CHUNK:
        raise MessageNotAllowed(
            ErrorCode.NOT_ALLOWED,
            f"a message of {size} bytes is over the {limits.message_bytes} that {limits.sources['max-message-size']} allows on "
            f"{topic}",
        )


def check_encrypted(seen: Inspected, limits: TopicLimits, topic: str) -> None:
    """Refuse a message that is not encrypted where the namespace wants all to be.

    Raises:
        MessageNotAllowed: METADATA, as in Pulsar.
    """
    if limits.encrypted and not seen.metadata.encryption_keys:
        raise MessageNotAllowed(
            ErrorCode.METADATA,
            f"the message for {topic} is not encrypted, and {limits.sources['encryption-required']} says it must be",
        )


def check_encrypts(command: CommandProducer, limits: TopicLimits, topic: str) -> None:
    """Refuse a producer that does not say that it encrypts where the namespace wants all messages to be encrypted.

    Raises:
        BrokerError: METADATA, as in Pulsar.
    """
    if limits.encrypted and not command.encrypted:
        raise BrokerError(
            ErrorCode.METADATA,
            f"{topic} lets only producers in that encrypt ({limits.sources['encryption-required']}): give yours keys",
        )


class AppendToken(Protocol):
    """The sender of an append: called once with the result, "" when it is stored as `fsync` says."""

    def __call__(self, append: Append, error: str) -> None:
        """Take the outcome."""


class PublishToken:
    """A producer's batch on its way to the log.

    Args:
        topic, producer: the topic and the producer.
        receipts: (sequence id, highest sequence id) of each entry, in order.
        mark: with deduplication, the producer's numbers after this batch.

    Attributes:
        repeated: duplicates that arrived after the batch, as `receipts`: a client expects receipts in the order of
            sending.
    """

    __slots__ = ("mark", "numbers", "producer", "receipts", "repeated", "topic")

    def __init__(
        self, topic: "Topic", producer: Producer, receipts: list[tuple[int, int]], mark: SequenceMark | None = None
    ) -> None:
        self.topic = topic
        self.producer = producer
        self.receipts = receipts
        self.mark = mark
        self.numbers: Numbers | None = producer.numbers
        self.repeated: list[tuple[int, int]] = []

    def __call__(self, append: Append, error: str) -> None:
        """Answer the producer."""
        producer = self.producer
        producer.pending -= len(self.receipts)
        if self.mark is not None and self.numbers is not None and not error:
            self.numbers.persist(self.mark)
        if producer.last_publish is self:
            producer.last_publish = None
        if producer.closed:
            return
        outbox = self.topic.outbox
        if error:
            buffer = commands.send_error(producer.producer_id, max(self.receipts[0]), ErrorCode.PERSISTENCE, error)
        else:
            buffer = commands.receipts(
                producer.producer_id,
                [
                    (sequence, highest, entry.ledger, entry.entry)
                    for (sequence, highest), entry in zip(self.receipts, append.entries, strict=True)
                ]
                + [(sequence, highest, -1, -1) for sequence, highest in self.repeated],
            )
        outbox.put(Send(producer.connection, [buffer]))


class QuotaStop(NamedTuple):
    """Why producers are stopped: a subscription lags more than a backlog quota allows.

    Attributes:
        code: for their clients.
        reason: one line.
    """

    code: ErrorCode
    reason: str


_CHUNK: Final = int(EntryFlags.CHUNK)

NO_FLOWS: Final[Mapping[str, LinkFlow]] = MappingProxyType({})
NO_SUBSCRIPTIONS: Final[Mapping[str, Subscription]] = MappingProxyType({})
NO_EVICTIONS: Final[Mapping[str, int]] = MappingProxyType({})
NO_COUNTERS: Final = Counters()

SENDING_AT_ONCE: Final = 2
"""The number of subscriptions that may send messages in one event of new entries: 0.2 ms each."""

WOKEN_AT_ONCE: Final = 32
"""The number of subscriptions that may be woken without sending, because they have no consumers or no permits. That
takes 10 us each.
"""


class Topic:
    """A persistent topic (or one partition) of this broker.

    Args:
        name: fully qualified.
        record: its durable facts.
        log: its part of the broker's log.
        outbox: the broker's.
        limits: the limits from its policies; kept up to date by `broker.catalog.policy_limits`.
        on_confirmed: called with this topic after entries became readable (links and fences).

    Attributes:
        entries_staged, entries_in: entries that were handed to the log, and those of them that it has.
        chunked: a producer published a message in chunks since the topic was loaded.
        publish_limited: number of times that SENDs had to wait for the publish rate.
        flows: by cluster, the traffic of links from and to it.
    """

    __slots__ = (
        "_after_drain", "_compacted", "_newest", "_on_confirmed", "_to_wake", "_withdrawals", "bytes_in", "chunked",
        "deduplication", "deleting", "dispatch_rate", "durable", "ended", "entries_in", "entries_staged", "evictions",
        "flows", "gone_out", "idempotency", "in_flight", "limits", "log", "messages_in", "meter", "name", "outbox",
        "producers", "publish_limited", "publish_throttle", "quota_stop", "read_meter", "record",
        "replicated_subscriptions", "subscribing", "subscriptions", "text", "topic_epoch_stored", "used_ms",
        "write_failed", "writes",
    )  # fmt: skip
    """A dictionary for 40 attributes takes four times as much memory, and most of a hundred thousand topics are idle. For the
    same reason, what few topics need is made when it is first needed."""

    def __init__(
        self,
        name: TopicName,
        record: TopicRecord,
        log: TopicLog,
        outbox: Outbox,
        *,
        limits: TopicLimits,
        on_confirmed: Callable[["Topic"], None],
    ) -> None:
        self.name = name
        self.text = log.name
        self.record = record
        self.log = log
        self.outbox = outbox
        self.limits = limits
        self.publish_throttle: PublishThrottle | None = None
        self.dispatch_rate: Rate | None = None
        self.subscribing: Subscribing | None = None
        self.used_ms = outbox.now_ms
        """The last time at which something was stored, or a client was connected."""
        self.producers = Producers(limits.producers, record.topic_epoch)
        self.topic_epoch_stored = record.topic_epoch
        """The last epoch of its producers that is durable."""
        self.subscriptions: Mapping[str, Subscription] = NO_SUBSCRIPTIONS
        self.durable = True
        self.write_failed = False
        """A write or sync failed, and the storage is not sound again. Pulsar calls such a topic fenced."""
        self.ended = record.terminated
        """It is terminated, durably, and has no appends in flight."""
        self.deleting = False
        self.quota_stop: QuotaStop | None = None
        self.deduplication: TopicDeduplication | None = None
        self.idempotency: TopicIdempotency | None = None
        self._withdrawals: Withdrawals | None = None
        self._compacted: Compacted | None = None
        self.replicated_subscriptions: TopicReplicatedSubscriptions | None = None
        self.in_flight = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.meter = Meter(2, outbox.now_ms)
        self.read_meter: Meter | None = None
        """None until a reader needs the disk."""
        self.flows: Mapping[str, LinkFlow] = NO_FLOWS
        self.entries_staged = 0
        self.entries_in = 0
        self.chunked = False
        self.publish_limited = 0
        self.writes: Writes | None = None
        """None while nothing is written."""
        self.evictions: Mapping[str, int] = NO_EVICTIONS
        """Kind of backlog quota -> how often it took messages from subscriptions."""
        self.gone_out = NO_COUNTERS
        """The sums of subscriptions that are gone."""
        self._on_confirmed = on_confirmed
        self._newest: Append | None = None
        """The newest append that is in flight."""
        self._after_drain: tuple[Callable[[], None], ...] = ()
        self._to_wake: dict[str, None] | None = None
        """Subscriptions to wake for new entries, longest waiting first; None: there were none so far."""

    # ------------------------------------------------------------------------------------------------------- writing

    def begin_deletion(self) -> None:
        """It is being deleted: from now on nothing is appended, and nothing of it is changed."""
        self.deleting = True

    def deletion_failed(self) -> None:
        """The store refused the deletion: the topic stays."""
        self.deleting = False

    @property
    def leaving(self) -> BrokerError | None:
        """The reason why the topic may not be changed: it is being deleted; None: it may.

        A change that is stored after the deletion would be found by the next topic of this name.
        """
        if not self.deleting:
            return None
        return BrokerError(ErrorCode.SERVICE_NOT_READY, f"topic {self.text} is being deleted")

    def published(self) -> tuple[int, int]:
        """Messages and bytes that came since the topic was loaded."""
        return self.messages_in, self.bytes_in

    @property
    def terminated(self) -> bool:
        """Whether it accepts no more messages."""
        return self.record.terminated

    def check_stays(self) -> None:
        """Refuse a change of a topic that is being deleted.

        Raises:
            BrokerError: SERVICE_NOT_READY.
        """
        if leaving := self.leaving:
            raise leaving

    def check_writable(self, *, marker: bool = False) -> None:
        """Refuse when nothing may be appended now.

        Args:
            marker: a marker is accepted by a terminated topic too: its subscriptions continue.

        Raises:
            BrokerError: a write failed and the storage has not recovered, or the topic is being deleted, or it is
                terminated.
        """
        self.check_stays()
        if self.terminated and not marker:
            raise BrokerError(ErrorCode.TOPIC_TERMINATED, f"topic {self.text} was terminated")
        if self.write_failed:
            raise BrokerError(
                ErrorCode.SERVICE_NOT_READY,
                f"topic {self.text} waits for its storage to come back",
            )

    def check_entry(self, seen: Inspected, size: int) -> None:
        """Refuse what a client's message may not be by policy.

        Args:
            seen: the message, or batch.
            size: its bytes.

        Raises:
            MessageNotAllowed: NOT_ALLOWED: it is too large, or wants to wait for too long; METADATA: it is not encrypted.
        """
        limits = self.limits
        if size > limits.message_bytes:
            check_size(seen, size, limits, self.text)
        check_encrypted(seen, limits, self.text)
        if seen.flags & EntryFlags.DELAYED and limits.delayed.active and limits.delayed.delay_ms_max:
            wait_ms = seen.metadata.deliver_at_time - self.outbox.day_ms
            if wait_ms > limits.delayed.delay_ms_max:
                raise MessageNotAllowed(
                    ErrorCode.NOT_ALLOWED,
                    f"a delay of {wait_ms} ms is over the {limits.delayed.delay_ms_max} that "
                    f"{limits.sources['delayed-delivery']} allows on {self.text}",
                )

    def append(
        self,
        entries: list[NewEntry],
        token: AppendToken,
        *,
        durable: bool | None = None,
        marker: bool = False,
    ) -> Append:
        """Hand entries to the log; `token` is called with the result.

        Returns:
            The append, with the positions that the entries will have.

        Raises:
            BrokerError: nothing may be appended now.
        """
        self.check_writable(marker=marker)
        append = self.log.stage(
            entries,
            self.outbox.day_ms,
            durable=self.durable if durable is None else durable,
            token=token,
        )
        append.asked_s = self.outbox.moment_s
        self.in_flight += 1
        self.entries_staged += len(entries)
        self._newest = append
        if self.idempotency is not None:
            self.idempotency.staged(append)
        self.outbox.put(Write(append))
        return append

    def publish(
        self,
        producer: Producer,
        entries: list[NewEntry],
        receipts: list[tuple[int, int]],
        mark: SequenceMark | None = None,
    ) -> Append:
        """Append what a producer sent; its receipts follow when it is stored as `fsync` says.

        Args:
            producer, entries, receipts: see `PublishToken`.
            mark: with deduplication, how far its numbers are with these entries.

        Raises:
            BrokerError: nothing may be appended now.
        """
        token = PublishToken(self, producer, receipts, mark)
        append = self.append(entries, token)
        producer.last_publish = token
        producer.pending += len(entries)
        producer.entries += len(entries)
        size = sum([len(entry.data) for entry in entries])
        count = sum([entry.count for entry in entries])
        chunks = sum([entry.flags & _CHUNK for entry in entries])
        producer.messages += count
        producer.bytes += size
        if chunks:
            producer.chunks += chunks // _CHUNK
            self.chunked = True
        if self.publish_throttle is not None:
            self.publish_throttle.take(count, size)
        return append

    def repeat(self, producer: Producer, receipt: tuple[int, int]) -> None:
        """Answer a duplicate as stored, after the receipts of its producer's earlier messages.

        If the topic has idempotency keys, or if other answers wait already, it waits for everything that is staged (`answer`).
        """
        behind = self._newest is not None and self._newest.behind is not None
        if self.idempotency is not None or behind:
            self.answer(producer, receipt, NONE)
        elif producer.last_publish is not None:
            producer.last_publish.repeated.append(receipt)
        else:
            buffer = commands.receipts(producer.producer_id, [(*receipt, -1, -1)])
            self.outbox.put(Send(producer.connection, [buffer]))

    def answer(self, producer: Producer, receipt: tuple[int, int], stored: Position) -> None:
        """Answer a message as stored, as soon as everything that is staged now is in the log; never if that fails.

        Args:
            producer: its producer.
            receipt: its (sequence id, highest sequence id).
            stored: its position, or NONE.
        """
        self._behind_newest(partial(self._send_receipt, producer, receipt, stored))

    def answer_behind(self, append: Append) -> None:
        """An append is in the log and answered: answer what waited for it (see `answer`)."""
        waiting, append.behind = append.behind, None
        for send in waiting or ():
            send()

    @property
    def appending(self) -> bool:
        """Whether something is on its way to the log, and not failed so far."""
        return self._newest is not None

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call `then` after the answers to everything that is staged now (at once if there is nothing), with any
        results.
        """
        if self._newest is None:
            then()
        else:
            self._newest.answered = [*(self._newest.answered or ()), then]

    def answered(self, append: Append) -> None:
        """An append is answered, and what waited for it: do what waited for that (see `when_answered`)."""
        waiting, append.answered = append.answered, None
        for then in waiting or ():
            then()

    def refuse(self, producer: Producer, sequence_id: int, error: BrokerError) -> None:
        """Refuse one message, after the receipts of the client's earlier ones: Java's client ignores an error for
        another message than its oldest pending one, and the C++ client closes its connection.
        """
        self._behind_newest(partial(self._send_refusal, producer, sequence_id, error))

    def _behind_newest(self, send: Callable[[], None]) -> None:
        if self._newest is None:
            send()
        elif self._newest.behind is None:
            self._newest.behind = [send]
        else:
            self._newest.behind.append(send)

    def _send_receipt(self, producer: Producer, receipt: tuple[int, int], stored: Position) -> None:
        if not producer.closed:
            buffer = commands.receipts(producer.producer_id, [(*receipt, *stored)])
            self.outbox.put(Send(producer.connection, [buffer]))

    def _send_refusal(self, producer: Producer, sequence_id: int, error: BrokerError) -> None:
        if not producer.closed:
            buffer = commands.send_error(producer.producer_id, sequence_id, error.code, error.message)
            self.outbox.put(Send(producer.connection, [buffer]))

    def confirm(self, append: Append, location: Location) -> None:
        """The log has stored it: make it readable. The answer follows (its token), then `dispatch`."""
        self.in_flight -= 1
        self.used_ms = self.outbox.now_ms
        self.log.confirm(append, location)
        if self.deduplication is not None:
            self.deduplication.confirmed(append.entries)
        if self.idempotency is not None:
            self.idempotency.confirmed(append)
        if self._newest is append:
            self._newest = None
        entries = append.entries
        self.entries_in += len(entries)
        self.messages_in += sum([entry.count for entry in entries])
        if self.writes is None:
            self.writes = Writes(self.meter.since_ms)
        self.bytes_in += self.writes.add(entries, self.outbox.moment_s - append.asked_s)

    def dispatch(self) -> None:
        """New entries are readable: wake the subscriptions and the links."""
        if self.subscriptions:
            self._wake_for_new()
        self._on_confirmed(self)
        self._drained()

    def _wake_for_new(self) -> None:
        to_wake = self._to_wake
        if to_wake is None:
            to_wake = self._to_wake = {}
        going_on = bool(to_wake)
        to_wake.update(dict.fromkeys(self.subscriptions))
        if going_on:
            return
        if len(to_wake) > SENDING_AT_ONCE:
            self._wake_on()  # not in this event: receipts wait for its end
        else:
            self._wake(to_wake)

    def _wake(self, to_wake: dict[str, None]) -> None:
        """Some subscriptions; the next ones in an event of their own, so that others get their turn."""
        sending = 0
        for name in list(islice(to_wake, WOKEN_AT_ONCE)):
            del to_wake[name]
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                sending += subscription.available()
                if sending >= SENDING_AT_ONCE:
                    break
        if to_wake:
            self._wake_on()

    def _wake_on(self) -> None:
        self.outbox.put(Timer(self.outbox.now_ms, lambda _now_ms: self._wake(self._to_wake or {})))

    def fail(self) -> None:
        """An append failed: whatever was staged never was; no position is given until the storage healed."""
        self.in_flight -= 1
        if not self.log.fail():
            return  # another append of the same failure was first
        self.write_failed = True
        self.entries_staged = self.entries_in
        if self.deduplication is not None:
            self.deduplication.fail()
        if self.idempotency is not None:
            self.idempotency.fail()
        if self._newest is not None and self._newest.write_epoch != self.log.write_epoch:
            self._newest = None

    def failed_all(self) -> None:
        """Every append of the failure is reported."""
        self._drained()

    def healed(self) -> None:
        """The storage is sound again."""
        self.write_failed = False

    def when_drained(self, then: Callable[[], None]) -> None:
        """Call `then` when no append is in flight (at once if none is)."""
        if self.in_flight == 0:
            then()
        else:
            self._after_drain = (*self._after_drain, then)

    def _drained(self) -> None:
        if self.in_flight == 0 and self._after_drain:
            waiting, self._after_drain = self._after_drain, ()
            for then in waiting:
                then()

    # ------------------------------------------------------------------------------------- policies and collaborators

    def set_limits(self, limits: TopicLimits, *, dispatch_rate: Rate | None, subscribing: Subscribing | None) -> None:
        """Policies say something new.

        Args:
            limits: all that they say.
            dispatch_rate, subscribing: the rates that follow from it; None: no limit.
        """
        self.limits = limits
        self.dispatch_rate = dispatch_rate
        self.subscribing = subscribing

    def set_publish_rate(self, rate: Rate | None) -> None:
        """Policies limit the publish rate (None: no longer); waiting messages continue to wait at the new rate."""
        self.publish_throttle = throttle_at(self.outbox, rate, self.publish_throttle)

    def publish_was_limited(self) -> None:
        """SENDs had to wait for the publish rate."""
        self.publish_limited += 1

    def set_durable(self, durable: bool) -> None:
        """Whether every append is synced before its answer, whatever the broker's `fsync` setting says."""
        self.durable = durable

    def stop_for_quota(self, stop: QuotaStop | None) -> None:
        """A subscription lags more than a backlog quota allows: no producer is accepted; None: none lags now."""
        self.quota_stop = stop

    def quota_evicted(self, kind: str) -> None:
        """A backlog quota of this kind took messages from a subscription."""
        self.evictions = {**self.evictions, kind: self.evictions.get(kind, 0) + 1}

    def switch_deduplication(self, found: TopicDeduplication | None) -> None:
        """Numbers of producers are judged by this from now on; None: by nothing."""
        self.deduplication = found

    def switch_idempotency(self, found: TopicIdempotency | None) -> None:
        """Idempotency keys are judged by this from now on; None: by nothing."""
        self.idempotency = found

    def switch_replicated_subscriptions(self, found: TopicReplicatedSubscriptions | None) -> None:
        """Replicated subscriptions of the topic are kept by this from now on; None: it has none."""
        self.replicated_subscriptions = found

    def record_topic_epoch(self, epoch: int) -> None:
        """The record that is about to be stored has this epoch of the topic's producers."""
        self.record.topic_epoch = epoch

    def topic_epoch_is_durable(self, epoch: int) -> None:
        """An epoch of the topic's producers is stored."""
        self.topic_epoch_stored = max(self.topic_epoch_stored, epoch)

    def producer_left(self) -> None:
        """A producer is gone: until now the topic was in use."""
        self.used_ms = self.outbox.now_ms

    def idle_ms(self, day_ms: int) -> int:
        """The time without a connected client and without a stored message.

        Args:
            day_ms: the wall clock, which may have been set back.
        """
        if self.producers.live or self.producers.waiting or self.consumer_count():
            self.used_ms = day_ms
        self.used_ms = min(self.used_ms, day_ms)  # else it was set by a clock that was wrong
        return day_ms - self.used_ms

    def begin_termination(self) -> None:
        """It accepts no more messages, as soon as its record is stored.

        Raises:
            BrokerError: it is being deleted.
        """
        self.check_stays()
        self.record.terminated = True

    def termination_failed(self) -> None:
        """The store refused the termination."""
        self.record.terminated = False

    def end(self) -> None:
        """The termination is durable, and no appends are in flight: consumers that have read everything are
        informed.
        """
        self.ended = True

    # ------------------------------------------------------------------------------------------------------- reading

    def add_subscription(self, subscription: Subscription) -> None:
        """A subscription is the topic's from now on; new entries wake it."""
        if isinstance(self.subscriptions, dict):  # not copied: a topic may have thousands
            self.subscriptions[subscription.name] = subscription
        else:
            self.subscriptions = {subscription.name: subscription}

    def consumer_count(self) -> int:
        """Consumers of all subscriptions."""
        return sum(len(subscription.consumers) for subscription in self.subscriptions.values())

    def in_use(self) -> bool:
        """Whether a client publishes or reads with a schema, or anything is stored: then a new schema comes too late to
        become the topic's automatically (docs/design/pulsar.md#schema-check).
        """
        readers = (one for subscription in self.subscriptions.values() for one in subscription.consumers)
        return bool(self.producers.live) or self.log.bytes_retained > 0 or any(not one.auto_schema for one in readers)

    def forget(self, subscription: Subscription) -> None:
        """A subscription no longer belongs to the topic; its sums stay."""
        assert isinstance(self.subscriptions, dict), "there is one"
        del self.subscriptions[subscription.name]
        if not self.subscriptions:
            self.subscriptions = NO_SUBSCRIPTIONS
        self.gone_out += subscription.counters()

    def traffic(self) -> Traffic:
        """Traffic in and out since the topic was loaded; the counters never fall."""
        out = self.gone_out
        for one in self.subscriptions.values():
            out += one.counters()
        return Traffic(self.messages_in, self.bytes_in, out.messages_out, out.bytes_out)

    def durable_subscriptions(self) -> Iterable[Subscription]:
        """The subscriptions that hold back retention."""
        return (subscription for subscription in self.subscriptions.values() if subscription.durable)

    @property
    def withdrawals(self) -> Withdrawals:
        """The withdrawn messages; made when first asked for."""
        found = self._withdrawals
        if found is None:
            found = self._withdrawals = Withdrawals(self.log)
        return found

    @property
    def compacted(self) -> Compacted:
        """The messages that compaction has removed; made when first asked for."""
        found = self._compacted
        if found is None:
            found = self._compacted = Compacted(self.log)
        return found

    @property
    def compacted_if_any(self) -> Compacted | None:
        """Likewise; None: no compaction was ever begun. For what looks at all topics."""
        return self._compacted

    @property
    def horizon(self) -> Position:
        """The position up to which it is compacted; NONE: it never was."""
        return NONE if self._compacted is None else self._compacted.horizon

    def trimmed(self) -> None:
        """Retention deleted ledgers: forget what was in them."""
        if self._withdrawals is not None:
            self._withdrawals.trim()
        if self._compacted is not None:
            self._compacted.trim()

    def last_message_position(self) -> Position:
        """The newest entry that a consumer can be given (markers and withdrawn ones are not), or NONE."""
        return self.withdrawals.last()

    def withdraw(self, losers: list[Loser]) -> tuple[int, int]:
        """Withdraw messages that are in the log (`broker.publish.idempotency.withdrawals`): no consumer gets them.

        Returns:
            The number of messages withdrawn before any dispatch, and the number of others: they may have been
            dispatched, or too many are withdrawn.
        """
        fresh = self.withdrawals.add(losers)
        positions = {loser.position for loser in fresh}
        had: set[Position] = set()
        for subscription in self.subscriptions.values():
            had |= subscription.withdrawn(positions)
        given = sum(loser.position in had for loser in fresh)
        known = sum(self.withdrawals.has(loser) for loser in losers)
        return len(fresh) - given, given + len(losers) - known

    # --------------------------------------------------------------------------------------------------- statistics

    @property
    def entries_pending(self) -> int:
        """Entries on their way to the log."""
        return self.entries_staged - self.entries_in

    def flow(self, cluster: str) -> LinkFlow:
        """The traffic of links from and to a cluster, for them to count."""
        found = self.flows.get(cluster)
        if found is None:
            # Nothing moved so far in the interval that is running for the topic.
            found = LinkFlow(self.meter.since_ms)
            self.flows = {**self.flows, cluster: found}
        return found

    def update_rates(self, now_ms: int) -> None:
        """End the interval of its own rates and those of its links, and begin another."""
        before_ms = self.meter.since_ms
        self.meter.update(now_ms, (self.messages_in, self.bytes_in))
        read = self.log.read_entries
        if read and self.read_meter is None:
            self.read_meter = Meter(1, before_ms)
        if self.read_meter is not None:
            self.read_meter.update(now_ms, (read,))
        if self.writes is not None and not self.writes.end(now_ms):
            self.writes = None
        for flow in self.flows.values():
            flow.update(now_ms)

    @property
    def read_per_s(self) -> float:
        """Entries read from the disk a second, over the last interval."""
        return 0.0 if self.read_meter is None else self.read_meter.per_s[0]

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self.in_flight >= 0, "more appends answered than sent"
        assert self.entries_pending >= 0, "more entries are in the log than were sent there"
        assert not (self.write_failed and self.log.staged_last > self.log.last), "entries staged after a failed write"
        assert self._newest is None or self.in_flight, "an append is in flight that nobody counts"
        self.producers.validate()
        if self._compacted is not None:
            self._compacted.validate()
        if self.publish_throttle is not None:
            self.publish_throttle.validate()
