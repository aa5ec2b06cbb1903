"""The context of a dispatch policy, and its limits."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from magnetar.core.hints import command
from magnetar.core.ids import Position
from magnetar.core.rates import UNLIMITED, Rate
from magnetar.effects.outbox import Outbox
from magnetar.storage.cursor import Cursor, CursorLog
from magnetar.storage.entries import StoredEntry


class DispatchLog(CursorLog, Protocol):
    """The part of the topic's log (`storage.topiclog.TopicLog`) that dispatch uses."""

    @property
    def cached_bytes(self) -> int:
        """The bytes of all entries of the last result of `cached`."""

    def cached(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Entries from `start` on that are in memory, in order; none if the first is not."""

    def count_hits(self, entries: int, size: int) -> None:
        """Count entries and bytes that were taken from memory."""

    def cached_at(self, position: Position) -> StoredEntry | None:
        """The entry at a position, if it is in memory."""

    def seek_time(self, publish_time_ms: int) -> Position:
        """The first entry published at that time or later."""

    def first_since(self, time_ms: int) -> Position:
        """The first message that was not there before that time, whatever its producer's clock said."""

    def size_at(self, position: Position) -> int:
        """Bytes of an entry that is there."""

    def bytes_between(self, after: Position, up_to: Position) -> int:
        """Bytes of the entries with after < p <= up_to."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one subscription.

    Attributes:
        unacked_per_consumer_max: back-pressure on Shared and Key_Shared consumers that do not acknowledge (Pulsar's
            maxUnackedMessagesPerConsumer); dispatch continues when half of them are acknowledged.
        unacked_per_subscription_max: the same for all consumers of a subscription (Pulsar's
            maxUnackedMessagesPerSubscription).
        dispatch_bytes_max: back-pressure: bytes that one event may put into the outbox for a subscription; the next
            event continues. As much as a connection's write buffer accepts before it is full.
        dispatch_entries_max: the same in entries: some 0.5 ms, after which others get their turn. The client chooses
            its permits, and 4 MiB of small messages are tens of thousands.
        read_bytes_max: bytes of one read from disk, and of entries read ahead: memory per subscription that catches up.
            A read of 1 MiB takes well below a millisecond on an SSD, so larger ones gain nothing.
        read_entries_max: entries of one read from disk: the work of a reader thread, and then of the loop, in one step.
            With 400 small entries instead of 60 a subscription that catches up gets 1.1 times as many, and publishes at
            the same time take 1.5 to 2 times as long (docs/decisions/0022).
        delayed_entries_max: back-pressure: entries remembered until their delivery time; at this number nothing new is
            read until some are due. 22 bytes each: 88 MiB for four million.
        redeliveries_max: entries whose redeliveries are counted, per subscription; for further ones the count stays 0.
            About 150 bytes each.
        look_ahead_entries_max: back-pressure on Key_Shared: entries that wait for their key's consumer while others are
            sent (Pulsar's keySharedLookAheadMsgInReplayThresholdPerSubscription).
        look_ahead_bytes_max: bytes of those that are kept in memory; the rest is read again.
        again_entries_max: entries of one read of entries that are needed again (redelivered, or delayed and due),
            anywhere in the log: 50 of them take a reader thread some 0.5 ms, and their dispatch takes the loop as long.
        again_reads_max: such reads in flight at a time for one subscription. Two, in two threads, delayed each other
            and everything else because of the interpreter's lock, and were slower in sum. With `read_bytes_max` it
            bounds the memory.
        failover_delay_ms: time that the previous consumer of a Failover subscription has for its last acknowledgements,
            if it is still connected, before the next one starts (Pulsar's activeConsumerFailoverDelayTimeMillis).
    """

    unacked_per_consumer_max: int = 50_000
    unacked_per_subscription_max: int = 200_000
    dispatch_bytes_max: int = 4 * 1024 * 1024
    dispatch_entries_max: int = 60
    read_bytes_max: int = 1024 * 1024
    read_entries_max: int = 60
    delayed_entries_max: int = 4_000_000
    redeliveries_max: int = 100_000
    look_ahead_entries_max: int = 20_000
    look_ahead_bytes_max: int = 8 * 1024 * 1024
    again_entries_max: int = 50
    again_reads_max: int = 1
    failover_delay_ms: int = 1_000


@dataclass(slots=True)
class ThrottleCounts:
    """The number of waits of a subscription for a rate of dispatch (messages, bytes): its own, its topic's, its
    broker's.
    """

    messages_own: int = 0
    bytes_own: int = 0
    messages_topic: int = 0
    bytes_topic: int = 0
    messages_broker: int = 0
    bytes_broker: int = 0


@dataclass(slots=True)
class DispatchContext:
    """The context of the dispatcher of one subscription.

    Attributes:
        topic, subscription: names, for reads and for messages to users.
        partition: the topic's number, -1 if it is not a partition.
        command: formats a command of `magnetar`, from its words, for messages.
        held: nothing is sent: the subscription is fenced (`broker.failover.fencing`).
        rates: dispatch rates, the broker's, the topic's and the subscription's own; usually none.
        broker_rate: the one of `rates` that all subscriptions of the broker share.
        own_rate: the one of `rates` that is the subscription's own.
        delays: whether entries wait for their `deliver_at_time`.
        served: something was sent since `take_served` was called last.
        throttled: counts since the subscription was loaded.
    """

    outbox: Outbox
    log: DispatchLog
    cursor: Cursor
    topic: str
    subscription: str
    partition: int = -1
    limits: Limits = field(default_factory=Limits)
    command: Callable[..., str] = command
    held: bool = False
    rates: tuple[Rate, ...] = ()
    broker_rate: Rate | None = None
    own_rate: Rate | None = None
    delays: bool = True
    served: bool = False
    throttled: ThrottleCounts = field(default_factory=ThrottleCounts)

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
        """Apply changed policies; see `Subscription.follow`."""
        self.limits = replace(
            self.limits,
            unacked_per_consumer_max=unacked_per_consumer_max,
            unacked_per_subscription_max=unacked_per_subscription_max,
        )
        self.rates = tuple(rate for rate in (broker_rate, topic_rate, own_rate) if rate is not None)
        self.broker_rate, self.own_rate = broker_rate, own_rate
        self.delays = delays

    def messages_by_rate(self) -> int:
        """Messages that the rates let go now."""
        now_ms = self.outbox.now_ms
        return min((rate.messages(now_ms) for rate in self.rates), default=UNLIMITED)

    def bytes_by_rate(self) -> int:
        """Bytes that the rates let go now."""
        now_ms = self.outbox.now_ms
        return min((rate.bytes(now_ms) for rate in self.rates), default=UNLIMITED)

    def sent(self, messages: int, size: int) -> None:
        """Messages of this number and size were sent to consumers."""
        for rate in self.rates:
            self.served = True
            rate.take(messages, size)

    def take_served(self) -> bool:
        """Whether something was sent since the last call."""
        served, self.served = self.served, False
        return served

    def count_throttled(self) -> None:
        """Nothing may be sent now: count whose rate says so, and of what."""
        counts, now_ms = self.throttled, self.outbox.now_ms
        for rate in self.rates:
            messages, size = rate.used_up(now_ms)
            if rate is self.own_rate:
                counts.messages_own += messages
                counts.bytes_own += size
            elif rate is self.broker_rate:
                counts.messages_broker += messages
                counts.bytes_broker += size
            else:
                counts.messages_topic += messages
                counts.bytes_topic += size

    def wait_ms(self) -> int:
        """The time until the rates allow sending; 0: now."""
        now_ms = self.outbox.now_ms
        return max((rate.wait_ms(now_ms) for rate in self.rates), default=0)

    def __str__(self) -> str:
        return f"subscription {self.subscription} of {self.topic}"
