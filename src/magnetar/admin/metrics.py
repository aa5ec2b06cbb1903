"""`/metrics` for Prometheus: Pulsar's names where Pulsar has them, `magnetar_link_*` for links.

The figures are read from the broker when they are asked for; nothing is counted twice. What is not listed by name for
the sake of the limits below is not lost: it is in the series with the topic `(other)`, so that sums stay right.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from magnetar.admin import metadata_metrics
from magnetar.admin.call import Call
from magnetar.admin.replicated import collect
from magnetar.admin.routing import Routes
from magnetar.broker.control import LinkState

METRIC_TOPICS_MAX: Final = 1_000
"""A ceiling on topics with series of their own: fifteen series each, and Prometheus suffers beyond some 10,000 a target."""

METRIC_SUBSCRIPTIONS_MAX: Final = 2_000
"""A ceiling on subscriptions with series of their own."""

TOPICS_PER_TURN: Final = 20
"""Topics read before other tasks of the loop get their turn: a scrape must not hold up a publish."""

OTHER: Final = "(other)"

STATES: Final = ("up", "down", "paused", "blocked", "idle")

REPLICATED_LEVELS: Final = {
    "exact_subscriptions": ("magnetar_replicated_subscriptions", "Replicated subscriptions with an acknowledged set."),
    "exact_waiting": ("magnetar_replicated_subscriptions_waiting", "Of these, with something that is to be told."),
}
"""What the machines of exact mode have now; everything else that they tell was counted since the start."""

site = Routes("Observation", own=True)


@dataclass
class Snapshot:
    """What one scrape saw."""

    broker: dict[str, Any]
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: list[LinkState] = field(default_factory=list)
    replicated: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    incoming: dict[str, dict[str, Any]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


async def collect_topics(call: Call, most: int) -> dict[str, dict[str, Any]]:
    """Statistics of the first topics of all namespaces, letting other tasks run in between."""
    found: dict[str, dict[str, Any]] = {}
    for namespace in call.resources.all_namespaces():
        for name in call.control.topics(str(namespace)):
            if len(found) >= most:
                return found
            if len(found) % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            if call.control.partitions(name) is not None:  # it may have been deleted while others had their turn
                found[name] = call.control.topic_stats(name)
        await asyncio.sleep(0)
    return found


@site.add("GET", "/metrics", "Figures for Prometheus.", reply="text")
async def metrics(call: Call) -> web.Response:
    """Text exposition format."""
    topics = await collect_topics(call, METRIC_TOPICS_MAX)
    snapshot = Snapshot(
        call.control.broker_stats(),
        topics,
        call.control.links(),
        await collect(call, call.control.replicated_topics(), METRIC_SUBSCRIPTIONS_MAX),
        call.control.replication_metrics()["counters"],
        call.control.geo_status().get("incoming", {}),
        call.control.metadata(),
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(snapshot, call.info.cluster, call.info.version))
    return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class Figures(Collector):
    """One snapshot as metric families.

    Args:
        snapshot: the figures.
        cluster, version: of the broker.
    """

    def __init__(self, snapshot: Snapshot, cluster: str, version: str) -> None:
        self._seen = snapshot
        self._cluster = cluster
        self._version = version

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        yield InfoMetricFamily("magnetar_build", "Version.", {"version": self._version, "cluster": self._cluster})
        yield from self._broker()
        yield from self._schemas()
        yield from self._topics()
        yield from self._subscriptions()
        yield from self._links()
        yield from self._replicated()
        yield from metadata_metrics.families(self._seen.metadata)

    def _broker(self) -> Iterable[Metric]:
        broker = self._seen.broker
        for name, key, text in (
            ("pulsar_active_connections", "connections", "Open connections of clients."),
            ("pulsar_broker_topics_count", "topics", "Topics, each partition by itself."),
            ("pulsar_broker_subscriptions_count", "subscriptions", "Subscriptions."),
            ("pulsar_broker_producers_count", "producers", "Producers."),
            ("pulsar_broker_consumers_count", "consumers", "Consumers."),
            ("magnetar_broker_storage_bytes", "storageSize", "Bytes stored."),
            ("magnetar_broker_pending_publish_bytes", "pendingPublishBytes", "Bytes received and not yet durable."),
            ("magnetar_broker_ready", "ready", "1 while publishes are taken."),
        ):
            yield self._gauge(name, text, [], [([], broker.get(key, 0))])
        left_out = max(0, broker.get("topics", 0) - len(self._seen.topics))
        yield self._gauge("magnetar_metrics_topics_left_out", f"Topics in {OTHER}.", [], [([], left_out)])
        text = "Ranges and batches of acknowledgements that stored cursors had no room for (cursor_ranges_max)."
        ranges: list[tuple[list[str], float]] = [([], broker.get("cursorRangesLeftOut", 0))]
        yield self._counter("magnetar_cursor_ranges_left_out_total", text, [], ranges)
        numbers = broker.get("deduplication", {})
        names: list[tuple[list[str], float]] = [([], numbers.get("producerNames", 0))]
        yield self._gauge("magnetar_deduplication_producer_names", "Names whose numbers are kept.", [], names)
        kinds = ("duplicates", "unknown", "evictedLimit", "evictedInactive")
        told = [([kind], numbers.get(kind, 0)) for kind in kinds]
        yield self._counter(
            "magnetar_deduplication_events", "Since the start; see docs/deduplication.md.", ["event"], told
        )
        keys = broker.get("idempotency", {})
        yield self._gauge("magnetar_idempotency_keys", "Idempotency keys in memory.", [], [([], keys.get("keys", 0))])
        sizes_of = (("keys", keys.get("keyBytes", 0)), ("index", keys.get("indexBytes", 0)))
        sizes = [([kind], count) for kind, count in sizes_of]
        yield self._gauge("magnetar_idempotency_bytes", "Memory of idempotency keys.", ["kind"], sizes)
        events_of = ("duplicates", "withdrawn", "twice", "unreadable", "evicted", "expired")
        events = [([name], keys.get(name, 0)) for name in events_of]
        yield self._counter(
            "magnetar_idempotency_events", "Since the start; see docs/deduplication.md.", ["event"], events
        )

        logins = [([end], count) for end, count in broker.get("security", {}).items()]
        yield self._counter(
            "magnetar_logins", "Logins since the start by their end; see docs/security.md.", ["end"], logins
        )

    def _schemas(self) -> Iterable[Metric]:
        seen = self._seen.broker.get("schemas", {})
        for name, key, text in (
            ("magnetar_schema_topics", "topics", "Topics that have schemas, or had."),
            ("magnetar_schema_versions", "versions", "Schema versions of all topics."),
            ("magnetar_schema_bytes", "bytes", "Bytes of all definitions, which are in memory."),
        ):
            yield self._gauge(name, text, [], [([], seen.get(key, 0))])
        for name, key, text in (
            ("magnetar_schemas_registered", "registered", "Schemas registered since the start."),
            ("magnetar_schemas_deleted", "deleted", "Deletions of a topic's schemas since the start."),
        ):
            yield self._counter(name, text, [], [([], seen.get(key, 0))])
        refused = [([key.removeprefix("refused_")], value) for key, value in seen.items() if key.startswith("refused_")]
        yield self._counter(
            "magnetar_schemas_refused",
            "Producers, consumers, links and uploads refused since the start, by reason.",
            ["reason"],
            refused,
        )

    def _topics(self) -> Iterable[Metric]:
        topics = self._seen.topics
        for name, key, text in (
            ("pulsar_in_messages_total", "msgInCounter", "Messages published since the broker's start."),
            ("pulsar_in_bytes_total", "bytesInCounter", "Bytes published since the broker's start."),
            ("pulsar_out_messages_total", "msgOutCounter", "Messages delivered since the broker's start."),
            ("pulsar_out_bytes_total", "bytesOutCounter", "Bytes delivered since the broker's start."),
        ):
            yield self._counter(name, text, ["namespace", "topic"], self._with_rest(key))
        yield self._gauge(
            "pulsar_storage_size", "Bytes stored.", ["namespace", "topic"], self._with_rest("storageSize")
        )
        for name, key, text in (
            ("pulsar_rate_in", "msgRateIn", "Messages published per second."),
            ("pulsar_rate_out", "msgRateOut", "Messages delivered per second."),
            ("pulsar_throughput_in", "msgThroughputIn", "Bytes published per second."),
            ("pulsar_throughput_out", "msgThroughputOut", "Bytes delivered per second."),
            ("pulsar_storage_backlog_size", "backlogSize", "Bytes that the slowest subscription has before it."),
        ):
            rated = [([_namespace(topic), topic], stats.get(key, 0)) for topic, stats in topics.items()]
            yield self._gauge(name, text, ["namespace", "topic"], rated)
        for name, key, text in (
            ("pulsar_producers_count", "publishers", "Producers."),
            ("pulsar_subscriptions_count", "subscriptions", "Subscriptions."),
        ):
            rows = [([_namespace(topic), topic], len(stats.get(key, ()))) for topic, stats in topics.items()]
            yield self._gauge(name, text, ["namespace", "topic"], rows)
        for name, text, of_subscription in (
            ("pulsar_consumers_count", "Consumers.", lambda one: len(one.get("consumers", ()))),
            (
                "pulsar_msg_backlog",
                "Entries that subscriptions have before them.",
                lambda one: one.get("msgBacklog", 0),
            ),
        ):
            sums = [
                ([_namespace(topic), topic], sum(map(of_subscription, stats.get("subscriptions", {}).values())))
                for topic, stats in topics.items()
            ]
            yield self._gauge(name, text, ["namespace", "topic"], sums)

    def _with_rest(self, key: str) -> list[tuple[list[str], float]]:
        """One row a topic, and one for what is in the broker's total and in no topic's row."""
        topics = self._seen.topics
        rows: list[tuple[list[str], float]] = [
            ([_namespace(topic), topic], stats.get(key, 0)) for topic, stats in topics.items()
        ]
        if self._seen.broker.get("topics", 0) > len(topics):
            rest = self._seen.broker.get(key, 0) - sum(value for _, value in rows)
            rows.append(([OTHER, OTHER], max(0, rest)))
        return rows

    def _subscriptions(self) -> Iterable[Metric]:
        every = [
            (topic, name, stats)
            for topic, of_topic in self._seen.topics.items()
            for name, stats in of_topic.get("subscriptions", {}).items()
        ]
        shown, rest = every[:METRIC_SUBSCRIPTIONS_MAX], every[METRIC_SUBSCRIPTIONS_MAX:]
        for family, name, key, text in (
            (self._gauge, "pulsar_subscription_back_log", "msgBacklog", "Entries not acknowledged."),
            (self._gauge, "pulsar_subscription_unacked_messages", "unackedMessages", "Delivered, not acknowledged."),
            (self._gauge, "pulsar_subscription_delayed", "msgDelayed", "Messages whose time has not come."),
            (self._gauge, "pulsar_subscription_msg_rate_out", "msgRateOut", "Messages delivered per second."),
            (self._gauge, "pulsar_subscription_msg_throughput_out", "msgThroughputOut", "Bytes delivered per second."),
            (self._gauge, "pulsar_subscription_msg_rate_redeliver", "msgRateRedeliver", "Delivered again, per second."),
            (self._gauge, "pulsar_subscription_msg_ack_rate", "messageAckRate", "Messages acknowledged per second."),
            # A total, and a gauge all the same, as in Pulsar: the name of a counter would have another `_total` behind it.
            (self._gauge, "pulsar_subscription_total_msg_expired", "totalMsgExpired", "Entries that expired."),
            (self._gauge, "pulsar_subscription_msg_rate_expired", "msgRateExpired", "Expired, per second."),
            (
                self._gauge,
                "pulsar_subscription_last_expire_timestamp",
                "lastExpireTimestamp",
                "When it was last looked for what had expired, ms since 1970; 0: never since the start.",
            ),
            (
                self._gauge,
                "pulsar_subscription_blocked_on_unacked_messages",
                "blockedSubscriptionOnUnackedMsgs",
                "1 while consumers hold too many unacknowledged messages.",
            ),
            (self._counter, "pulsar_subscription_out_messages_total", "msgOutCounter", "Messages delivered."),
            (self._counter, "pulsar_subscription_out_bytes_total", "bytesOutCounter", "Bytes delivered."),
        ):
            rows: list[tuple[list[str], float]] = [
                ([_namespace(topic), topic, subscription], stats.get(key, 0)) for topic, subscription, stats in shown
            ]
            if rest:
                together = max if key.endswith("Timestamp") else sum
                rows.append(([OTHER, OTHER, OTHER], together(stats.get(key, 0) for _, _, stats in rest)))
            yield family(name, text, ["namespace", "topic", "subscription"], rows)

    def _links(self) -> Iterable[Metric]:
        links: list[tuple[list[str], dict[str, Any]]] = [([link["target"]], {**link}) for link in self._seen.links]
        for family, name, key, text in (
            (self._gauge, "magnetar_link_lag_messages", "lag_messages", "Messages not yet in the target cluster."),
            (self._gauge, "magnetar_link_lag_bytes", "lag_bytes", "Bytes not yet in the target cluster."),
            (self._gauge, "magnetar_link_paused", "paused", "1 while an operator holds the link."),
            (self._gauge, "magnetar_link_throttled", "throttled", "1 while the target asks for less."),
            (self._counter, "magnetar_link_sent_messages_total", "messages_sent", "Messages sent and confirmed."),
            (self._counter, "magnetar_link_sent_bytes_total", "bytes_sent", "Bytes sent and confirmed."),
            (
                self._counter,
                "magnetar_link_skipped_messages_total",
                "skipped_messages_total",
                "Given up by an operator.",
            ),
            (
                self._counter,
                "magnetar_link_gap_messages_total",
                "gap_messages_total",
                "Deleted before they could be sent.",
            ),
        ):
            yield family(name, text, ["remote_cluster"], [(labels, link[key]) for labels, link in links])
        lag = [(labels, link["lag_ms"] / 1000) for labels, link in links]
        yield self._gauge("magnetar_link_lag_seconds", "Age of the oldest message not sent.", ["remote_cluster"], lag)
        limits = [(labels, link["throttle_bytes_per_s"] or 0) for labels, link in links]
        yield self._gauge(
            "magnetar_link_throttle_bytes_per_second", "An operator's limit; 0: none.", ["remote_cluster"], limits
        )
        states = [([*labels, state], link["state"] == state) for labels, link in links for state in STATES]
        yield self._gauge("magnetar_link_state", "1 for the state it is in.", ["remote_cluster", "state"], states)
        blocked: dict[tuple[str, str], int] = {}
        for link in self._seen.links:
            for topic in link["topics"]:
                if topic["blocked"]:
                    key_of = (link["target"], topic["blocked"])
                    blocked[key_of] = blocked.get(key_of, 0) + 1
        rows = [(list(labels), count) for labels, count in sorted(blocked.items())]
        yield self._gauge("magnetar_link_blocked_topics", "Blocked topics.", ["remote_cluster", "reason"], rows)
        yield self._schema_conflicts()
        incoming = sorted(self._seen.incoming.items())
        for name, key, text in (
            ("magnetar_link_schemas_total", "schemas", "Schemas got or made here for an incoming link."),
            (
                "magnetar_link_schema_dropped_total",
                "schemas_dropped",
                "Entries stored without a version: nobody can explain it.",
            ),
        ):
            rows = [([source], state.get(key, 0)) for source, state in incoming if isinstance(state, dict)]
            yield self._counter(name, text, ["remote_cluster"], rows)
        backlog = [
            ([_namespace(topic["topic"]), topic["topic"], link["target"]], topic["lag_messages"])
            for link in self._seen.links
            for topic in link["topics"][:METRIC_TOPICS_MAX]
        ]
        yield self._gauge(
            "pulsar_replication_backlog", "Not yet sent.", ["namespace", "topic", "remote_cluster"], backlog
        )

    def _schema_conflicts(self) -> Metric:
        """A row for each topic that a schema holds up: where, and both sides."""
        labels = ["remote_cluster", "topic", "message_id", "schema", "remote_schema", "strategy"]
        rows = [
            (
                [
                    link["target"],
                    topic["topic"],
                    topic.get("blocked_at", ""),
                    _side(told["source"]),
                    _side(told["target"]),
                    told["strategy"],
                ],
                topic["lag_messages"],
            )
            for link in self._seen.links
            for topic in link["topics"]
            if (told := topic.get("schema_conflict")) is not None
        ]
        text = "Messages held up by a schema that the target does not take."
        return self._gauge("magnetar_link_schema_blocked_messages", text, labels, rows[:METRIC_TOPICS_MAX])

    def _replicated(self) -> Iterable[Metric]:
        labels = ["namespace", "topic", "subscription"]
        seen = [([_namespace(one["topic"]), one["topic"], one["subscription"]], one) for one in self._seen.replicated]
        for name, key, text in (
            ("magnetar_replicated_subscription_set_bytes", "setBytes", "Size of the acknowledged set in memory."),
            (
                "magnetar_replicated_subscription_runs",
                "runs",
                "Runs of the acknowledged set: acknowledged in order is one.",
            ),
            ("magnetar_replicated_subscription_pending", "pending", "Acknowledged elsewhere, not yet arrived here."),
            ("magnetar_replicated_subscription_unsent", "unsent", "Acknowledged here, in no marker yet."),
        ):
            yield self._gauge(
                name, text, labels, [(label, one[key]) for label, one in seen if isinstance(one.get(key), int)]
            )
        for name, key, text, unit in (
            ("lag_messages", "lagMessages", "Acknowledged here and not yet carried there.", 1),
            ("lag_seconds", "lagMs", "Age of the oldest acknowledgement not carried there.", 1000),
        ):
            rows = [
                ([*label, target], told[key] / unit) for label, one in seen for target, told in one["towards"].items()
            ]
            yield self._gauge(f"magnetar_replicated_subscription_{name}", text, [*labels, "remote_cluster"], rows)
        # Among what machines count are two that go up and down: a counter of these would look restarted all the time.
        for key, (name, text) in REPLICATED_LEVELS.items():
            yield self._gauge(name, text, [], [([], self._seen.counters.get(key, 0))])
        events = [([key], value) for key, value in sorted(self._seen.counters.items()) if key not in REPLICATED_LEVELS]
        yield self._counter(
            "magnetar_replicated_subscriptions_events", "Of all topics since the start.", ["event"], events
        )

    def _gauge(self, name: str, text: str, labels: list[str], rows: Sequence[tuple[list[str], float]]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["cluster", *labels])
        return self._fill(family, rows)

    def _counter(self, name: str, text: str, labels: list[str], rows: Sequence[tuple[list[str], float]]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["cluster", *labels])
        return self._fill(family, rows)

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, rows: Sequence[tuple[list[str], float]]) -> Metric:
        for labels, value in rows:
            family.add_metric([self._cluster, *labels], float(value))
        return family


def _side(told: dict[str, Any]) -> str:
    """One side of a schema conflict: `3 AVRO 1f00ba12`; "none" when nothing is in force there."""
    return "none" if told["version"] is None else f"{told['version']} {told['type']} {told['digest']}"


def _namespace(topic: str) -> str:
    """`tenant/namespace` of a full topic name."""
    return "/".join(topic.partition("://")[2].split("/")[:2])
