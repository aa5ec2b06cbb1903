"""A topic that stores nothing: its producers and its subscriptions."""

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.nonpersistent.subscription import NonPersistentSubscription
from magnetar.broker.publish.producers import Producer, Producers, rates_in
from magnetar.broker.publish.throttling import PublishThrottle, throttle_at
from magnetar.broker.statistics import constant_fields as statkeys
from magnetar.broker.statistics.cardinality import Traffic
from magnetar.broker.subscriptions.consumer import Counters
from magnetar.core.ids import NONE
from magnetar.core.meter import Meter
from magnetar.core.names import TopicName
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Outbox, Send
from magnetar.storage.entries import EntryFlags, NewEntry, StoredEntry
from magnetar.wire import commands

_CHUNK: Final = int(EntryFlags.CHUNK)


class NonPersistentTopic:
    """A non-persistent topic (or one partition) of this broker. It exists while it has clients.

    Args:
        name: fully qualified.
        outbox: the broker's.
        ledger: ledger id of its message ids; no other topic has it.
    """

    def __init__(self, name: TopicName, outbox: Outbox, ledger: int) -> None:
        self.name = name
        self.text = str(name)
        self.producers = Producers(0)  # until `broker.catalog.policy_limits` says how many
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.kept = False
        """Created by an administrator: it stays without clients."""
        self.expecting = False
        """Its clients were asked to reconnect: it stays until they had the time for it."""
        self.messages_in = 0
        self.bytes_in = 0
        self.meter = Meter(2, outbox.now_ms)
        self.created_ms = outbox.now_ms
        self.published_ms = 0
        self.chunked = False
        self.publish_throttle: PublishThrottle | None = None
        """The publish rate of its policies; kept up to date by `broker.catalog.policy_limits`."""
        self.publish_limited = 0
        """The number of times that SENDs had to wait for it."""
        self._outbox = outbox
        self._ledger = ledger
        self._next = 0
        self._gone_out = Counters()

    @property
    def used(self) -> bool:
        """Whether it has clients."""
        return bool(self.producers.live or self.producers.waiting or self.subscriptions)

    def in_use(self) -> bool:
        """Whether a client publishes, or reads with a schema: a new schema comes too late then.

        See docs/design/pulsar.md#schema-check.
        """
        readers = (one for subscription in self.subscriptions.values() for one in subscription.consumers)
        return bool(self.producers.live) or any(not one.auto_schema for one in readers)

    def update_rates(self, now_ms: int) -> None:
        """End the interval of its own rates, and begin another."""
        self.meter.update(now_ms, (self.messages_in, self.bytes_in))

    def keep(self, keep: bool) -> None:
        """Set whether it stays without clients."""
        self.kept = keep

    def expect_clients(self, expect: bool) -> None:
        """Whether it stays for clients that were sent away and come back."""
        self.expecting = expect

    def set_publish_rate(self, rate: Rate | None) -> None:
        """Policies limit the publish rate (None: no longer); waiting messages continue to wait at the new rate."""
        self.publish_throttle = throttle_at(self._outbox, rate, self.publish_throttle)

    def publish_was_limited(self) -> None:
        """SENDs had to wait for the publish rate."""
        self.publish_limited += 1

    def publish(self, producer: Producer, entries: list[NewEntry], receipts: list[tuple[int, int]]) -> None:
        """Send entries to the consumers that can receive them now, and send the receipts.

        Args:
            producer: their producer.
            entries: in order.
            receipts: (sequence id, highest sequence id) of each.
        """
        now_ms = self._outbox.now_ms
        messages_before, bytes_before = self.messages_in, self.bytes_in
        stored = []
        for entry in entries:
            stored.append(
                StoredEntry(
                    self._ledger,
                    self._next,
                    entry.flags,
                    entry.count,
                    entry.publish_time,
                    now_ms,
                    "",
                    self._ledger,
                    -1,
                    NONE,
                    entry.data,
                )
            )
            self._next += 1
            self.messages_in += entry.count
            self.bytes_in += len(entry.data)
            producer.messages += entry.count
            producer.bytes += len(entry.data)
            if entry.flags & _CHUNK:
                producer.chunks += 1
                self.chunked = True
        producer.entries += len(entries)
        if self.publish_throttle is not None:
            self.publish_throttle.take(self.messages_in - messages_before, self.bytes_in - bytes_before)
        self.published_ms = entries[-1].publish_time
        for subscription in self.subscriptions.values():
            subscription.deliver(stored)
        answer = commands.receipts(
            producer.producer_id,
            [(*receipt, entry.ledger, entry.entry) for receipt, entry in zip(receipts, stored, strict=True)],
        )
        self._outbox.put(Send(producer.connection, [answer]))

    def add_subscription(self, subscription: NonPersistentSubscription) -> None:
        """A subscription is the topic's from now on: it is given new entries."""
        self.subscriptions[subscription.name] = subscription

    def drop_subscription(self, name: str) -> None:
        """Remove a subscription; its sums stay."""
        self._gone_out += self.subscriptions.pop(name).counters()

    def traffic(self) -> Traffic:
        """Traffic in and out; the counters never fall."""
        out = sum((one.counters() for one in self.subscriptions.values()), self._gone_out)
        return Traffic(self.messages_in, self.bytes_in, out.messages_out, out.bytes_out)

    def consumer_count(self) -> int:
        """Consumers of all subscriptions."""
        return sum(len(subscription.consumers) for subscription in self.subscriptions.values())

    def stats(self, subscriptions: Mapping[str, dict[str, Any]] | None = None) -> dict[str, Any]:
        """Statistics with Pulsar's keys (NonPersistentTopicStats), without publishers; `msgDropCount` is an addition of
        ours.

        Args:
            subscriptions: the statistics of its subscriptions; None: they are computed.
        """
        if subscriptions is None:
            subscriptions = {name: subscription.stats() for name, subscription in self.subscriptions.items()}
        return (
            rates_in(self.meter)
            | statkeys.of_topics_without_log()
            | {
                "msgRateOut": sum(one["msgRateOut"] for one in subscriptions.values()),
                "msgThroughputOut": sum(one["msgThroughputOut"] for one in subscriptions.values()),
                "msgInCounter": self.messages_in,
                "bytesInCounter": self.bytes_in,
                "msgOutCounter": self.traffic().messages_out,
                "bytesOutCounter": self.traffic().bytes_out,
                "msgDropCount": sum(one["msgDropCount"] for one in subscriptions.values()),
                "msgDropRate": sum(one["msgDropRate"] for one in subscriptions.values()),
                "publishRateLimitedTimes": self.publish_limited,
                "systemTopicBytesInCounter": self.bytes_in if self.name.local.startswith("__") else 0,
                "msgChunkPublished": self.chunked,
                "topicCreationTimeStamp": self.created_ms,
                "lastPublishTimeStamp": self.published_ms,
                "publishers": [],
                "waitingPublishers": len(self.producers.waiting),
                "subscriptions": subscriptions,
            }
        )

    def validate(self) -> None:
        """Check what must hold after every step."""
        self.producers.validate()
        if self.publish_throttle is not None:
            self.publish_throttle.validate()
        for subscription in self.subscriptions.values():
            assert subscription.consumers, f"subscription {subscription.name} of {self.text} outlived its consumers"
