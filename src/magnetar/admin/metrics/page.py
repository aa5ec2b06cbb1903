"""`/metrics` for Prometheus: Pulsar's names for metrics that Pulsar has with the same meaning, `magnetar_*` for others.

The figures are read from the broker at each request; nothing is counted twice. Topics without rows of their own,
because of the limits below, are included in the rows with the topic `(other)`, so that sums stay right
(`broker.statistics.cardinality`).
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from aiohttp import web

from magnetar.admin.http.call import Call
from magnetar.admin.http.routing import Routes
from magnetar.admin.http.zipped import text_answer
from magnetar.admin.metrics import families as table
from magnetar.admin.metrics import metadata_families as metadata_metrics
from magnetar.admin.metrics.exposition import CONTENT_TYPE, Row, Writer
from magnetar.admin.metrics.families import Family
from magnetar.admin.metrics.host import HOST, Process, Usage
from magnetar.admin.routes.replicated import collect
from magnetar.broker.admin.statistics import BrokerFigures, TopicFigures
from magnetar.broker.links.states import LinkState
from magnetar.broker.statistics.cardinality import Shown, SubscriptionKey
from magnetar.broker.statistics.latency import LATENCY_BOUNDS_MS, Interval
from magnetar.broker.waiting.registration import NO_BROKERS, Brokers

METRIC_TOPICS_MAX: Final = 1_000
"""A ceiling on topics with rows of their own: some twenty each, and twice as many where something is written. This
number makes 70,000 lines, which take 0.25 s of processor, in a turn for each metric; Prometheus suffers from targets
with far more.
"""

METRIC_SUBSCRIPTIONS_MAX: Final = 2_000
"""A ceiling on subscriptions with rows of their own."""

TOPICS_PER_TURN: Final = 20
"""Topics read before other tasks of the loop get their turn: a scrape must not hold up a publish."""

OTHER: Final = "(other)"

STATES: Final = ("up", "down", "paused", "blocked", "idle")

site = Routes("Observation")


def _no_rows() -> Shown[Any]:
    return Shown({}, None, 0)


@dataclass
class Snapshot:
    """The figures of one scrape."""

    broker: dict[str, Any]
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: list[LinkState] = field(default_factory=list)
    replicated: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    incoming: dict[str, dict[str, Any]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    whole: BrokerFigures | None = None
    figures: dict[str, TopicFigures] = field(default_factory=dict)
    topic_rows: Shown[str] = field(default_factory=_no_rows)
    subscription_rows: Shown[SubscriptionKey] = field(default_factory=_no_rows)
    now_ms: int = 0
    process: Process | None = None
    usage: Usage | None = None
    brokers: Brokers = NO_BROKERS


def serving_rows(brokers: Brokers) -> list[Row]:
    """The rows of `families.SERVING`."""
    serving = brokers.serving.broker if brokers.serving is not None else ""
    return [((one.broker,), int(one.broker == serving)) for one in brokers.all]


async def collect_topics(call: Call, most: int) -> dict[str, dict[str, Any]]:
    """Statistics of the first topics of all namespaces, letting other tasks run in between."""
    found: dict[str, dict[str, Any]] = {}
    for namespace in call.resources.all_namespaces():
        for name in call.control.topics.names(str(namespace)):
            if len(found) >= most:
                return found
            if len(found) % TOPICS_PER_TURN == 0:
                await call.others()
            if call.control.topics.partitions(name) is not None:  # it may have been deleted while others had their turn
                found[name] = call.control.statistics.topic(name)
        await call.others()
    return found


async def _read_rows(call: Call, rows: Iterable[str], seen: Snapshot) -> None:
    """Statistics of the topics that have rows, letting other tasks run in between."""
    for number, name in enumerate(rows):
        if number % TOPICS_PER_TURN == 0:
            await call.others()
        if call.control.topics.partitions(name) is not None:  # it may have been deleted while others had their turn
            seen.topics[name] = call.control.statistics.topic(name)
            seen.figures[name] = call.control.statistics.topic_figures(name)


@site.add("GET", "/metrics", "Metrics for Prometheus; docs/reference/metrics.md lists them.", reply="text")
async def metrics(call: Call) -> web.Response:
    """Text exposition format, compressed if the request says `Accept-Encoding: gzip`."""
    control = call.control
    steps = control.statistics.scrape_steps(METRIC_TOPICS_MAX, METRIC_SUBSCRIPTIONS_MAX)
    broker, whole, topic_rows, subscription_rows = await call.building.steps(steps)
    now_ms = int(time.time() * 1000)
    seen = Snapshot(broker, whole=whole, topic_rows=topic_rows, subscription_rows=subscription_rows, now_ms=now_ms)
    await _read_rows(call, seen.topic_rows.rows, seen)
    seen.links = await call.building.steps(control.links.figures(seen.topic_rows.rows))
    replicated = await call.building.names(await call.building.steps(control.replicated.topic_steps()))
    seen.replicated = await collect(call, replicated, METRIC_SUBSCRIPTIONS_MAX)
    seen.counters = control.replicated.metrics()["counters"]
    seen.incoming = control.links.incoming()
    seen.metadata = control.metadata.state()
    seen.process = await asyncio.to_thread(HOST.process)  # a list of thousands of descriptors takes milliseconds
    seen.usage = HOST.usage(seen.process)
    seen.brokers = call.services.brokers()
    parts = []
    for part in Figures(seen, call.info.cluster, call.info.version).page():
        parts.append(part)
        await call.others()
    return await text_answer(call, "".join(parts), CONTENT_TYPE)


class Figures:
    """One snapshot as text.

    Args:
        snapshot: the figures.
        cluster, version: of the broker.
    """

    def __init__(self, snapshot: Snapshot, cluster: str, version: str) -> None:
        self._seen = snapshot
        self._version = version
        self._writer = Writer(cluster)
        self._family = self._writer.simple

    def page(self) -> Iterable[str]:
        """Every family: a part of the page, after which others get their turn."""
        yield self._family(table.BUILD, [((self._version,), 1)])
        yield from self._broker()
        if self._seen.whole is not None:
            yield from self._whole(self._seen.whole)
        yield from self._machine()
        yield from self._once()
        yield from self._schemas()
        yield from self._topics()
        yield from self._writes()
        yield from self._subscriptions()
        yield from self._replication()
        yield from self._links()
        yield from self._replicated()
        for family, rows in metadata_metrics.families(self._seen.metadata):
            yield self._family(family, rows)

    # ---------------------------------------------------------------------------------------------------- the broker

    def _broker(self) -> Iterable[str]:
        for family in table.BROKER:
            yield self._family(family, [((), self._seen.broker.get(family.key, 0))])
        yield self._family(table.SERVING, serving_rows(self._seen.brokers))
        yield self._family(table.TOPICS_LEFT_OUT, [((), self._seen.topic_rows.left_out)])
        logins = [((end,), count) for end, count in self._seen.broker.get("security", {}).items()]
        yield self._family(table.LOGINS, logins)

    def _whole(self, whole: BrokerFigures) -> Iterable[str]:
        for families, figures in (
            (table.BROKER_FIGURES, whole),
            (table.BROKER_TOTALS, whole.totals),
            (table.CACHE, whole.cache),
            (table.CONNECTIONS, whole.connections),
        ):
            for family in families:
                yield self._family(family, [((), getattr(figures, family.key))])
        counts = sorted(whole.by_namespace.items())
        rows: list[Row] = [((namespace,), count) for namespace, count in counts[:METRIC_TOPICS_MAX]]
        if len(counts) > METRIC_TOPICS_MAX:
            rows.append(((OTHER,), sum(count for _, count in counts[METRIC_TOPICS_MAX:])))
        yield self._family(table.TOPICS_COUNT, rows)
        yield from self._publish_latency(whole)

    def _publish_latency(self, whole: BrokerFigures) -> Iterable[str]:
        latency, below = whole.latency, 0
        rows = [("", f'quantile="{share}"', took_ms) for share, took_ms in latency.quantiles().items()]
        rows += [("_count", "", latency.entries), ("_sum", "", latency.total_ms)]
        yield self._writer.parts(table.PUBLISH_SUMMARY, rows)
        rows = []
        for bound_ms, count in zip(LATENCY_BOUNDS_MS, latency.counts, strict=False):
            below += count
            rows.append(("_bucket", f'le="{bound_ms / 1000}"', below))
        rows.append(("_bucket", 'le="+Inf"', latency.entries))
        rows += [("_count", "", latency.entries), ("_sum", "", latency.total_ms / 1000)]
        yield self._writer.parts(table.PUBLISH_HISTOGRAM, rows)

    def _machine(self) -> Iterable[str]:
        for families, figures in ((table.PROCESS, self._seen.process), (table.USAGE, self._seen.usage)):
            for family in families:
                value = getattr(figures, family.key, None)
                yield self._family(family, [] if value is None else [((), value)])

    def _once(self) -> Iterable[str]:
        """Deduplication and idempotency keys."""
        numbers = self._seen.broker.get("deduplication", {})
        yield self._family(table.DEDUPLICATION_NAMES, [((), numbers.get("producerNames", 0))])
        kinds = ("duplicates", "unknown", "evictedLimit", "evictedInactive")
        yield self._family(table.DEDUPLICATION_EVENTS, [((kind,), numbers.get(kind, 0)) for kind in kinds])
        keys = self._seen.broker.get("idempotency", {})
        yield self._family(table.IDEMPOTENCY_KEYS, [((), keys.get("keys", 0))])
        sizes = [((kind,), keys.get(f"{key}Bytes", 0)) for kind, key in (("keys", "key"), ("index", "index"))]
        yield self._family(table.IDEMPOTENCY_BYTES, sizes)
        events = ("duplicates", "withdrawn", "twice", "unreadable", "evicted", "expired")
        yield self._family(table.IDEMPOTENCY_EVENTS, [((name,), keys.get(name, 0)) for name in events])

    def _schemas(self) -> Iterable[str]:
        seen = self._seen.broker.get("schemas", {})
        for family in table.SCHEMAS:
            yield self._family(family, [((), seen.get(family.key, 0))])
        refused = [
            ((key.removeprefix("refused_"),), value) for key, value in seen.items() if key.startswith("refused_")
        ]
        yield self._family(table.SCHEMAS_REFUSED, refused)

    # ------------------------------------------------------------------------------------------------------- topics

    def _topics(self) -> Iterable[str]:
        topics = self._seen.topics
        shown = self._seen.topic_rows
        for number, family in enumerate(table.TOPIC_COUNTERS):
            rows: list[Row] = [(_of(topic), counted[number]) for topic, counted in shown.rows.items()]
            if shown.rest is not None:
                rows.append(((OTHER, OTHER), shown.rest[number]))
            yield self._family(family, rows)
        stored: list[Row] = [(_of(topic), stats.get("storageSize", 0)) for topic, stats in topics.items()]
        if shown.left_out:
            rest = self._seen.broker.get("storageSize", 0) - sum(value for _, value in stored)
            stored.append(((OTHER, OTHER), max(0, rest)))
        for family in table.TOPIC_SIZES:
            yield self._family(family, stored)
        for family in table.TOPIC_STATISTICS:
            yield self._family(family, [(_of(topic), stats.get(family.key, 0)) for topic, stats in topics.items()])
        for family in table.TOPIC_COUNTS:
            yield self._family(
                family, [(_of(topic), len(stats.get(family.key, ()))) for topic, stats in topics.items()]
            )
        for family in table.TOPIC_SUMS:
            sums = [
                (_of(topic), sum(_number(one.get(family.key, 0)) for one in stats.get("subscriptions", {}).values()))
                for topic, stats in topics.items()
            ]
            yield self._family(family, sums)
        ages = [
            (_of(topic), max(0, self._seen.now_ms - since) / 1000 if since else -1)
            for topic, stats in topics.items()
            for since in (stats.get("earliestMsgPublishTimeInBacklogs", 0),)
        ]
        yield self._family(table.BACKLOG_AGE, ages)
        figures = self._seen.figures
        for family in table.TOPIC_FIGURES:
            yield self._family(family, [(_of(topic), getattr(one, family.key)) for topic, one in figures.items()])
        evicted = [
            ((*_of(topic), kind), times) for topic, one in figures.items() for kind, times in one.evictions.items()
        ]
        yield self._family(table.EVICTIONS, evicted)
        compacted = [(_of(topic), one.compaction) for topic, one in figures.items() if one.compaction is not None]
        for family in table.COMPACTION:
            yield self._family(family, [(labels, getattr(one, family.key)) for labels, one in compacted])

    def _writes(self) -> Iterable[str]:
        """Write rates, and buckets by latency and size."""
        figures = self._seen.figures.items()
        latencies = [(_of(topic), one.latency) for topic, one in figures if one.latency is not None]
        yield self._family(table.WRITE_RATE, [(labels, interval.per_s) for labels, interval in latencies])
        in_us = [(labels, interval._replace(total=interval.total * 1000)) for labels, interval in latencies]
        yield from self._buckets(table.LATENCIES, in_us)
        yield from self._buckets(
            table.SIZES, [(_of(topic), one.size) for topic, one in figures if one.size is not None]
        )

    def _buckets(
        self, families: Sequence[Family], intervals: Sequence[tuple[tuple[str, ...], Interval]]
    ) -> Iterable[str]:
        *buckets, count, total = families
        for number, family in enumerate(buckets):
            yield self._family(family, [(labels, one.counts[number]) for labels, one in intervals])
        yield self._family(count, [(labels, sum(one.counts)) for labels, one in intervals])
        yield self._family(total, [(labels, one.total) for labels, one in intervals])

    # ------------------------------------------------------------------------------------------------ subscriptions

    def _subscriptions(self) -> Iterable[str]:
        shown = self._seen.subscription_rows
        every = [
            ((topic, name), stats)
            for topic, of_topic in self._seen.topics.items()
            for name, stats in of_topic.get("subscriptions", {}).items()
        ]
        own = [((*_of(key[0]), key[1]), stats) for key, stats in every if key in shown.rows]
        rest = [stats for key, stats in every if key not in shown.rows] if shown.rest is not None else []
        for family in table.SUBSCRIPTIONS:
            rows: list[Row] = [(labels, _number(stats.get(family.key, 0))) for labels, stats in own]
            if rest:
                together = max if family.key.endswith("Timestamp") else sum
                rows.append(((OTHER,) * 3, together([_number(stats.get(family.key, 0)) for stats in rest])))
            yield self._family(family, rows)
        drops = [
            ((*_of(topic), name), per_s)
            for topic, one in self._seen.figures.items()
            for name, per_s in one.drops_per_s.items()
            if (topic, name) in shown.rows
        ]
        yield self._family(table.DROP_RATE, drops)
        for number, family in enumerate(table.SUBSCRIPTION_COUNTERS):
            rows = [((*_of(topic), name), counted[number]) for (topic, name), counted in shown.rows.items()]
            if shown.rest is not None:
                rows.append(((OTHER,) * 3, shown.rest[number]))
            yield self._family(family, rows)

    # ---------------------------------------------------------------------------------------------------- replication

    def _replication(self) -> Iterable[str]:
        found: list[tuple[tuple[str, ...], tuple[float, ...]]] = []
        for link in self._seen.links:
            for topic in link["topics"]:
                if topic["topic"] not in self._seen.topic_rows.rows:
                    continue  # it is blocked, and counted below
                going = link["state"] == "up" and not topic["paused"] and not topic["blocked"]
                values = (topic["lag_messages"], topic["lag_ms"] / 1000, going, not going)
                found.append(((*_of(topic["topic"]), link["target"]), values))
        for number, family in enumerate(table.REPLICATION):
            yield self._family(family, [(labels, values[number]) for labels, values in found])
        rates = [
            ((*_of(topic), target), one)
            for topic, stats in self._seen.topics.items()
            for target, one in stats.get("replication", {}).items()
        ]
        for family in table.REPLICATION_RATES:
            yield self._family(family, [(labels, one[family.key]) for labels, one in rates if family.key in one])

    def _links(self) -> Iterable[str]:
        links: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            ((link["target"],), {**link}) for link in self._seen.links
        ]
        for family in table.LINKS:
            yield self._family(family, [(labels, link[family.key]) for labels, link in links])
        yield self._family(table.LINK_LAG, [(labels, link["lag_ms"] / 1000) for labels, link in links])
        yield self._family(table.LINK_LIMIT, [(labels, link["throttle_bytes_per_s"] or 0) for labels, link in links])
        states = [((*labels, state), link["state"] == state) for labels, link in links for state in STATES]
        yield self._family(table.LINK_STATE, states)
        blocked: dict[tuple[str, str], int] = {}
        for link in self._seen.links:
            for topic in link["topics"]:
                if topic["blocked"]:
                    key_of = (link["target"], topic["blocked"])
                    blocked[key_of] = blocked.get(key_of, 0) + 1
        yield self._family(table.LINK_BLOCKED, [(labels, count) for labels, count in sorted(blocked.items())])
        yield self._schema_conflicts()
        incoming = [(source, state) for source, state in sorted(self._seen.incoming.items()) if isinstance(state, dict)]
        for family in table.INCOMING:
            yield self._family(family, [((source,), state.get(family.key, 0)) for source, state in incoming])

    def _schema_conflicts(self) -> str:
        """A row for each topic that a schema holds up: where, and both sides."""
        rows = [
            (
                (
                    link["target"],
                    topic["topic"],
                    topic.get("blocked_at", ""),
                    _side(conflict["source"]),
                    _side(conflict["target"]),
                    conflict["strategy"],
                ),
                topic["lag_messages"],
            )
            for link in self._seen.links
            for topic in link["topics"]
            if (conflict := topic.get("schema_conflict")) is not None
        ]
        return self._family(table.LINK_CONFLICTS, rows[:METRIC_TOPICS_MAX])

    def _replicated(self) -> Iterable[str]:
        seen = [((*_of(one["topic"]), one["subscription"]), one) for one in self._seen.replicated]
        for family in table.REPLICATED:
            rows = [(label, one[family.key]) for label, one in seen if isinstance(one.get(family.key), int)]
            yield self._family(family, rows)
        for family, unit in zip(table.REPLICATED_LAG, (1, 1000), strict=True):
            lags = [
                ((*label, target), lag[family.key] / unit)
                for label, one in seen
                for target, lag in one["towards"].items()
            ]
            yield self._family(family, lags)
        # Among what machines count are two that go up and down: a counter of these would look restarted all the time.
        for family in table.REPLICATED_LEVELS:
            yield self._family(family, [((), self._seen.counters.get(family.key, 0))])
        levels = {family.key for family in table.REPLICATED_LEVELS}
        events = [((key,), value) for key, value in sorted(self._seen.counters.items()) if key not in levels]
        yield self._family(table.REPLICATED_EVENTS, events)


def _number(value: Any) -> float:
    """The number, or the length of a list."""
    return len(value) if isinstance(value, list) else float(value)


def _side(side: dict[str, Any]) -> str:
    """One side of a schema conflict: `3 AVRO 1f00ba12`; "none" when nothing is in force there."""
    return "none" if side["version"] is None else f"{side['version']} {side['type']} {side['digest']}"


@lru_cache(METRIC_TOPICS_MAX)
def _of(topic: str) -> tuple[str, str]:
    """`tenant/namespace` of a full topic name, and the name."""
    return "/".join(topic.partition("://")[2].split("/")[:2]), topic
