"""Statistics of a broker for administration and `/metrics`; the rules are those of `broker.admin.controller`."""

from collections import Counter
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from magnetar.broker.admin.events import AdminEvents
from magnetar.broker.broker import Broker
from magnetar.broker.catalog.maintenance import CacheRates, Totals
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.publish.deduplication import TopicDeduplication
from magnetar.broker.publish.idempotency.topic import TopicIdempotency
from magnetar.broker.statistics.cardinality import Shown, SubscriptionKey
from magnetar.broker.statistics.latency import Connections, Interval, PublishLatency
from magnetar.broker.statistics.topic_stats import Steps, TopicStatistics, at_once, compacted_entries
from magnetar.broker.topics.compaction_runs import State
from magnetar.broker.topics.topic import Topic
from magnetar.core.names import TopicName
from magnetar.metadata.policies.namespace import BacklogQuota

NO_LIMIT = BacklogQuota()

TOPICS_A_STEP: Final = 50
"""Topics that are read for the figures of the whole broker before others get their turn: some 0.3 ms."""

Scrape = tuple[dict[str, Any], "BrokerFigures", Shown[str], Shown[SubscriptionKey]]
ScrapeSteps = Generator[None, None, Scrape]


class BrokerFigures(NamedTuple):
    """Figures of the whole broker.

    Attributes:
        topics, subscriptions, producers, consumers: numbers in both domains.
        watchers, patterns: number of watchers of topic lists, and of different patterns.
        watch_updates: updates sent to them since the start.
        by_namespace: number of topics of each `tenant/namespace`.
        totals: rates and backlog, of the last round of maintenance.
        connections, latency: since the start; not to be changed.
        cache: rates of the cache of recent entries, of the last round of maintenance.
    """

    topics: int
    subscriptions: int
    producers: int
    consumers: int
    by_namespace: dict[str, int]
    totals: Totals
    connections: Connections
    latency: PublishLatency
    watchers: int = 0
    patterns: int = 0
    watch_updates: int = 0
    cache: CacheRates = CacheRates()


class CompactionFigures(NamedTuple):
    """Figures of the compactions of one topic since the broker's start; `took_ms` and `read_per_s` (bytes) are those of
    the last one.
    """

    removed: int
    successes: int
    failures: int
    took_ms: int
    read_per_s: float
    entries: int
    """Entries of the compacted part that a reader of the compacted topic gets."""


class TopicFigures(NamedTuple):
    """Figures of one topic.

    Attributes:
        latency, size: latencies and sizes of entries written in the last interval (`broker.statistics.latency`); None:
            none since the start.
        compaction: None: there was none.
        rate_limited: number of publishes that had to wait for a publish rate.
        quota_bytes, quota_s: the largest lag of a subscription by its backlog quotas; -1: no limit.
        evictions: how often each kind of backlog quota removed messages.
        drops_per_s: subscription -> messages that no consumer could receive (non-persistent topics).
        read_per_s: entries read from the disk.
    """

    latency: Interval | None = None
    size: Interval | None = None
    compaction: CompactionFigures | None = None
    rate_limited: int = 0
    quota_bytes: int = -1
    quota_s: int = -1
    evictions: dict[str, int] = {}  # noqa: RUF012 - never changed
    drops_per_s: dict[str, float] = {}  # noqa: RUF012
    read_per_s: float = 0.0


class StatisticsControl:
    """Statistics of topics and of the broker.

    Args:
        broker: the machine; whole, because it is counted whole.
        topics: describes its topics.
        events: how changes enter the broker.
    """

    def __init__(self, broker: Broker, topics: TopicStatistics, events: AdminEvents) -> None:
        self._broker = broker
        self._topics = topics
        self._events = events

    def topic(self, topic: str) -> dict[str, Any]:
        """Pulsar's topic stats (docs/design/pulsar.md#admin on their keys) of one topic or partition.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        return at_once(self.topic_steps(topic))

    def topic_steps(self, topic: str, *, publishers: bool = True, consumers: bool = True) -> Steps:
        """The same in steps, each of some tenths of a millisecond; without producers, without consumers if they are not wanted.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        nonpersistent = self._broker.nonpersistent.topics.get(topic)
        if nonpersistent is not None:
            return self._topics.nonpersistent(nonpersistent, publishers=publishers, consumers=consumers)
        name = TopicName.parse(topic)
        if not name.persistent and 0 <= name.partition < (self._broker.resources.partitions(name.base) or 0):
            return self._topics.unopened(name)
        return self._topics.stored(self._events.topic(topic), publishers=publishers, consumers=consumers)

    def internal(self, topic: str) -> dict[str, Any]:
        """Pulsar's internal stats of one topic or partition.

        Raises:
            BrokerError: TOPIC_NOT_FOUND.
        """
        return at_once(self.internal_steps(topic))

    def internal_steps(self, topic: str) -> Steps:
        """The same in steps, as `topic_steps`."""
        return self._topics.internal(self._events.topic(topic))

    def broker(self) -> dict[str, Any]:
        """Whole-broker figures: `connections`, `producers`, `consumers`, `topics`, `subscriptions` (counts),
        `msgInCounter`, `bytesInCounter`, `msgOutCounter`, `bytesOutCounter` (totals since the start),
        `pendingPublishBytes`, `cacheSize`, `storageSize` (bytes), `cacheEntries`, `cursorRangesLeftOut` (since the start),
        `unknownTopics` (in the log and not in the metadata store), `lostEntries` (stored once and not in the log),
        `ready` (bool), `state` (one line, such as that the disk is full; "" when all is well).
        """
        counts = _Counts()
        for topic in self._broker.topics.values():
            counts.add_stored(topic)
        return self._broker_fields(counts)

    def _broker_fields(self, counts: "_Counts") -> dict[str, Any]:
        broker = self._broker
        return {
            "connections": len(broker.sessions),
            **counts.stored,
            "pendingPublishBytes": broker.pending_bytes,
            "cacheSize": broker.cache.bytes,
            "cacheEntries": broker.cache.entries,
            "cursorRangesLeftOut": broker.loaded.ranges_left_out,
            "unknownTopics": len(broker.proofs.unknown),
            "lostEntries": broker.lost_entries,
            "damagedGivenUp": broker.damage.given_up,
            "deduplication": broker.deduplications.stats(counts.deduplications),
            "idempotency": broker.idempotencies.stats(counts.idempotencies),
            "schemas": broker.schemas.stats(),
            "security": broker.access.stats(),
            "ready": broker.healthy,
            "state": "" if broker.healthy else "the log cannot be written; publishing waits until it can",
        }

    def broker_figures(self) -> BrokerFigures:
        """The figures of the whole broker."""
        counts = _Counts()
        for topic in self._all():
            counts.add(topic)
        return self._figures(counts)

    def _all(self) -> list[Topic | NonPersistentTopic]:
        """The topics of both domains, as they are now."""
        return [*self._broker.topics.values(), *self._broker.nonpersistent.topics.values()]

    def _figures(self, counts: "_Counts") -> BrokerFigures:
        broker = self._broker
        return BrokerFigures(
            counts.topics,
            counts.subscriptions,
            counts.producers,
            counts.consumers,
            counts.by_namespace,
            broker.upkeep.totals,
            broker.connections,
            broker.publish_latency,
            broker.watches.count,
            broker.watches.patterns,
            broker.watches.updates,
            broker.upkeep.cache,
        )

    def topic_figures(self, topic: str) -> TopicFigures:
        """The figures of one topic or partition; empty ones if there is no such topic."""
        broker = self._broker
        nonpersistent = broker.nonpersistent.topics.get(topic)
        if nonpersistent is not None:
            drops = {name: one.drop_meter.per_s[0] for name, one in nonpersistent.subscriptions.items()}
            return TopicFigures(drops_per_s=drops)
        found = broker.topics.get(topic)
        if found is None:
            return TopicFigures()
        writes = found.writes
        quotas = broker.resources.backlog_quotas(found.name)
        return TopicFigures(
            writes.latency.last_interval if writes is not None else None,
            writes.size.last_interval if writes is not None else None,
            self._compaction(topic),
            found.publish_limited,
            quotas.get("destination_storage", NO_LIMIT).limit_size,
            quotas.get("message_age", NO_LIMIT).limit_time,
            dict(found.evictions),
            read_per_s=found.read_per_s,
        )

    def _compaction(self, topic: str) -> CompactionFigures | None:
        found = self._broker.topics[topic]
        status = self._broker.compactions.status(found)
        if status.state is State.NOT_RUN:
            return None
        took_s = max(1, status.took_ms) / 1000
        return CompactionFigures(
            status.removed_total,
            status.successes,
            status.failures,
            status.took_ms,
            status.read_bytes / took_s,
            max(0, compacted_entries(found)),
        )

    def scrape_steps(self, topics_max: int, subscriptions_max: int) -> ScrapeSteps:
        """`broker`, `broker_figures`, and the rows of topics and of subscriptions with what each counted
        (`broker.statistics.cardinality`), in steps of `TOPICS_A_STEP` topics.
        """
        broker = self._broker
        series = broker.series
        while series.busy:
            yield

        def found(text: str) -> Topic | NonPersistentTopic | None:
            return broker.topics.get(text) or broker.nonpersistent.topics.get(text)

        def has(key: SubscriptionKey) -> bool:
            topic = found(key[0])
            return topic is not None and key[1] in topic.subscriptions

        counts = _Counts()
        series.begin(topics_max, subscriptions_max, lambda text: found(text) is not None, has)
        try:
            for number, topic in enumerate(self._all(), 1):
                if found(topic.text) is topic:  # it may have been deleted since
                    counts.add(topic)
                    if isinstance(topic, Topic):
                        counts.add_stored(topic)
                    sent = [(name, one.counters()[:2]) for name, one in topic.subscriptions.items()]
                    series.read(topic.text, topic.traffic(), sent)
                if number % TOPICS_A_STEP == 0:
                    yield
        except BaseException:
            series.give_up()  # also when the generator is closed
            raise
        topics, subscriptions = series.end()
        return self._broker_fields(counts), self._figures(counts), topics, subscriptions


class _Counts:
    """Counts of topics, taken one by one."""

    def __init__(self) -> None:
        self.topics = self.subscriptions = self.producers = self.consumers = 0
        self.by_namespace: Counter[str] = Counter()
        self.deduplications: list[TopicDeduplication] = []
        self.idempotencies: list[TopicIdempotency] = []
        self.stored = dict.fromkeys(
            (
                "producers", "consumers", "topics", "subscriptions",
                "msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize",
            ),
            0,
        )  # fmt: skip

    def add_stored(self, topic: Topic) -> None:
        """Count one for the keys of `StatisticsControl.broker` that are about persistent topics."""
        stored = self.stored
        stored["topics"] += 1
        stored["producers"] += len(topic.producers.live)
        stored["msgInCounter"] += topic.messages_in
        stored["bytesInCounter"] += topic.bytes_in
        stored["storageSize"] += topic.log.bytes_retained
        if topic.deduplication is not None:
            self.deduplications.append(topic.deduplication)
        if topic.idempotency is not None:
            self.idempotencies.append(topic.idempotency)
        if topic.subscriptions:
            stored["subscriptions"] += len(topic.subscriptions)
            for subscription in topic.subscriptions.values():
                stored["consumers"] += len(subscription.consumers)
                stored["msgOutCounter"] += subscription.messages_out
                stored["bytesOutCounter"] += subscription.bytes_out

    def add(self, topic: Topic | NonPersistentTopic) -> None:
        """Count one."""
        self.topics += 1
        self.producers += len(topic.producers.live)
        if topic.subscriptions:
            self.subscriptions += len(topic.subscriptions)
            self.consumers += topic.consumer_count()
        self.by_namespace[f"{topic.name.tenant}/{topic.name.namespace}"] += 1
