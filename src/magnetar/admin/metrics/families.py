"""All metrics of `/metrics`: name, type, labels and meaning, and the key of the statistics that has the value.

`admin.metrics.page.Figures` and the reference page are made from this table, so they cannot contradict each other. Every
series also has the label `cluster`, the broker's own.
"""

from typing import Final, NamedTuple

from magnetar.broker.statistics.latency import LATENCY_BOUNDS_MS

TOPIC: Final = ("namespace", "topic")
SUBSCRIPTION: Final = (*TOPIC, "subscription")
REMOTE: Final = (*TOPIC, "remote_cluster")
LINK: Final = ("remote_cluster",)


class Family(NamedTuple):
    """One metric.

    Attributes:
        name: as in its samples; for a summary or histogram without the suffix (`_count`, ...).
        kind: gauge, counter, summary, histogram or info.
        text: its description.
        labels: its labels in addition to `cluster`.
        key: key of the statistics; "": it is computed.
    """

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()
    key: str = ""


class Section(NamedTuple):
    """Metrics that belong together."""

    title: str
    text: str
    families: tuple[Family, ...]


def _of(labels: tuple[str, ...], *rows: tuple[str, str, str] | tuple[str, str, str, str]) -> tuple[Family, ...]:
    return tuple(Family(row[0], row[1], row[2], labels, row[3] if len(row) > 3 else "") for row in rows)


LATENCY_NAMES: Final = tuple(f"le_{bound:g}".replace(".", "_") for bound in LATENCY_BOUNDS_MS)
SIZE_NAMES: Final = ("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb")

WRITE_LATENCY: Final = "pulsar_storage_write_latency"
ENTRY_SIZE: Final = "pulsar_entry_size"

BROKER: Final = _of(
    (),
    ("pulsar_active_connections", "gauge", "Open connections of clients.", "connections"),
    ("magnetar_broker_pending_publish_bytes", "gauge", "Bytes received and not yet durable.", "pendingPublishBytes"),
    ("magnetar_broker_ready", "gauge", "1 while publishes are accepted.", "ready"),
    (
        "pulsar_ml_cache_used_size",
        "gauge",
        "Bytes of recent entries in memory, with their overhead (`cache_bytes_max`).",
        "cacheSize",
    ),
    ("pulsar_ml_cache_entries", "gauge", "Recent entries in memory.", "cacheEntries"),
    ("pulsar_broker_storage_size", "gauge", "Bytes stored.", "storageSize"),
    ("pulsar_broker_storage_logical_size", "gauge", "The same, because nothing is stored twice.", "storageSize"),
    (
        "magnetar_cursor_ranges_left_out_total",
        "counter",
        "Ranges and batches of acknowledgements above the limit of stored cursors (cursor_ranges_max).",
        "cursorRangesLeftOut",
    ),
    (
        "magnetar_log_unknown_topics",
        "gauge",
        "Topics in the log that the metadata store does not know; they are kept (magnetar recover).",
        "unknownTopics",
    ),
    (
        "magnetar_log_lost_entries",
        "gauge",
        "Entries that were stored and are not in the log, found at the start (magnetar recover).",
        "lostEntries",
    ),
    (
        "magnetar_damaged_messages_given_up_total",
        "counter",
        "Messages that could not be read and that an operator gave up, since the start.",
        "damagedGivenUp",
    ),
)

CACHE: Final = _of(
    (),
    ("pulsar_ml_cache_hits_rate", "gauge", "Entries per second that readers found in memory.", "hits_per_s"),
    ("pulsar_ml_cache_hits_throughput", "gauge", "Their bytes per second.", "hit_bytes_per_s"),
    (
        "pulsar_ml_cache_misses_rate",
        "gauge",
        "Entries per second that readers had to read from the disk.",
        "misses_per_s",
    ),
    ("pulsar_ml_cache_misses_throughput", "gauge", "Their bytes per second.", "miss_bytes_per_s"),
    (
        "pulsar_ml_cache_evictions",
        "gauge",
        "How often the oldest entries were removed for new ones, over the last interval.",
        "evictions",
    ),
)

PROCESS: Final = _of(
    (),
    ("process_cpu_seconds_total", "counter", "Seconds of processor that the broker's process used.", "cpu_s"),
    ("process_resident_memory_bytes", "gauge", "Its resident memory.", "resident_bytes"),
    ("process_virtual_memory_bytes", "gauge", "Its virtual memory.", "virtual_bytes"),
    ("process_start_time_seconds", "gauge", "When it started, seconds since 1970.", "start_s"),
    ("process_open_fds", "gauge", "Its open file descriptors.", "open_fds"),
    ("process_max_fds", "gauge", "Limit of its open file descriptors.", "max_fds"),
)
"""Values that the system does not report have no row."""

USAGE: Final = _of(
    (),
    ("pulsar_lb_cpu_usage", "gauge", "Percent of the processors that the broker's process may use.", "cpu"),
    ("pulsar_lb_memory_usage", "gauge", "Resident memory in percent of its limit.", "memory"),
    (
        "pulsar_lb_bandwidth_in_usage",
        "gauge",
        "Traffic received by the machine's network cards, in percent of their speed; 0 if none reports its speed.",
        "bandwidth_in",
    ),
    ("pulsar_lb_bandwidth_out_usage", "gauge", "Traffic sent by them, in percent of their speed.", "bandwidth_out"),
)
"""Usage since the scrape before, or over the last five seconds."""

BROKER_FIGURES: Final = _of(
    (),
    ("pulsar_broker_topics_count", "gauge", "Topics, each partition separately.", "topics"),
    ("pulsar_broker_subscriptions_count", "gauge", "Subscriptions.", "subscriptions"),
    ("pulsar_broker_producers_count", "gauge", "Producers.", "producers"),
    ("pulsar_broker_consumers_count", "gauge", "Consumers.", "consumers"),
    ("magnetar_topic_watchers", "gauge", "Watchers of topic lists, one per pattern consumer.", "watchers"),
    ("magnetar_topic_patterns", "gauge", "Different patterns among these (`topic_patterns_max`).", "patterns"),
    ("magnetar_topic_watch_updates_total", "counter", "Updates of topic lists since the start.", "watch_updates"),
)

BROKER_TOTALS: Final = _of(
    (),
    ("pulsar_broker_rate_in", "gauge", "Messages published per second.", "messages_in_per_s"),
    ("pulsar_broker_rate_out", "gauge", "Messages delivered per second.", "messages_out_per_s"),
    ("pulsar_broker_throughput_in", "gauge", "Bytes published per second.", "bytes_in_per_s"),
    ("pulsar_broker_throughput_out", "gauge", "Bytes delivered per second.", "bytes_out_per_s"),
    ("pulsar_broker_storage_write_rate", "gauge", "Entries written per second.", "entries_written_per_s"),
    ("pulsar_broker_storage_read_rate", "gauge", "Entries read from the disk per second.", "entries_read_per_s"),
    ("pulsar_broker_storage_read_cache_misses_rate", "gauge", "The same.", "entries_read_per_s"),
    ("pulsar_broker_msg_backlog", "gauge", "Entries in the backlogs of subscriptions.", "backlog"),
)

CONNECTIONS: Final = _of(
    (),
    ("pulsar_connection_created_total_count", "gauge", "Connections opened since the start.", "made"),
    ("pulsar_connection_create_success_count", "gauge", "Connections whose CONNECT was accepted.", "let_in"),
    ("pulsar_connection_create_fail_count", "gauge", "Connections whose CONNECT was refused or late.", "failed"),
    ("pulsar_connection_closed_total_count", "gauge", "Connections closed since the start.", "ended"),
)

SERVING: Final = Family(
    "magnetar_cluster_broker_serving",
    "gauge",
    '1 for the broker of the cluster that serves, 0 for those that wait to take over; only with `storage = "bookkeeper"`.',
    ("broker",),
)
TOPICS_LEFT_OUT: Final = Family("magnetar_metrics_topics_left_out", "gauge", "Topics in (other).")
PUBLISH_SUMMARY: Final = Family(
    "pulsar_broker_publish_latency",
    "summary",
    "Milliseconds from the receipt of a client's message until it is durable, by entry; quantiles are of the newest 4096 writes.",
)
PUBLISH_HISTOGRAM: Final = Family(
    "magnetar_publish_latency_seconds", "histogram", "The same in seconds, in buckets that never fall."
)
TOPICS_COUNT: Final = Family("pulsar_topics_count", "gauge", "Topics of a namespace.", ("namespace",))

TOPIC_COUNTERS: Final = _of(
    TOPIC,
    ("pulsar_in_messages_total", "counter", "Messages published since the broker's start."),
    ("pulsar_in_bytes_total", "counter", "Bytes published since the broker's start."),
    (
        "pulsar_out_messages_total",
        "counter",
        "Messages delivered since the broker's start, all subscriptions together.",
    ),
    ("pulsar_out_bytes_total", "counter", "Bytes delivered since the broker's start, all subscriptions together."),
)
"""Counters of a topic, in the order of `broker.statistics.cardinality.Traffic`."""

TOPIC_SIZES: Final = _of(
    TOPIC,
    ("pulsar_storage_size", "gauge", "Bytes stored."),
    ("pulsar_storage_logical_size", "gauge", "The same, because nothing is stored twice."),
)

TOPIC_STATISTICS: Final = _of(
    TOPIC,
    ("pulsar_rate_in", "gauge", "Messages published per second.", "msgRateIn"),
    ("pulsar_rate_out", "gauge", "Messages delivered per second.", "msgRateOut"),
    ("pulsar_throughput_in", "gauge", "Bytes published per second.", "msgThroughputIn"),
    ("pulsar_throughput_out", "gauge", "Bytes delivered per second.", "msgThroughputOut"),
    (
        "pulsar_average_msg_size",
        "gauge",
        "Mean bytes per message over the interval of the rates.",
        "averageMsgSize",
    ),
    ("pulsar_storage_offloaded_size", "gauge", "Bytes in tiered storage: always 0.", "offloadedStorageSize"),
    ("pulsar_storage_backlog_size", "gauge", "Bytes in the backlog of the slowest subscription.", "backlogSize"),
    (
        "pulsar_delayed_message_index_size_bytes",
        "gauge",
        "Approximate memory of messages whose delivery time has not come.",
        "delayedMessageIndexSizeInBytes",
    ),
)

TOPIC_COUNTS: Final = _of(
    TOPIC,
    ("pulsar_producers_count", "gauge", "Producers.", "publishers"),
    ("pulsar_subscriptions_count", "gauge", "Subscriptions.", "subscriptions"),
)

TOPIC_SUMS: Final = _of(
    TOPIC,
    ("pulsar_consumers_count", "gauge", "Consumers.", "consumers"),
    ("pulsar_msg_backlog", "gauge", "Entries in the backlogs of subscriptions.", "msgBacklog"),
    ("pulsar_consumer_msg_ack_rate", "gauge", "Messages acknowledged per second.", "messageAckRate"),
    ("pulsar_consumer_msg_rate_redeliver", "gauge", "Messages delivered again, per second.", "msgRateRedeliver"),
)
"""Statistics of a topic's subscriptions, added up."""

BACKLOG_AGE: Final = Family(
    "pulsar_storage_backlog_age_seconds", "gauge", "Age of the oldest message not acknowledged; -1: none.", TOPIC
)

TOPIC_FIGURES: Final = _of(
    TOPIC,
    (
        "pulsar_storage_read_rate",
        "gauge",
        "Entries read from the disk per second; those that were in memory do not count.",
        "read_per_s",
    ),
    ("pulsar_storage_read_cache_misses_rate", "gauge", "The same.", "read_per_s"),
    (
        "pulsar_storage_backlog_quota_limit",
        "gauge",
        "Limit of a subscription's lag in bytes; -1: no limit.",
        "quota_bytes",
    ),
    (
        "pulsar_storage_backlog_quota_limit_time",
        "gauge",
        "Limit of a subscription's lag in seconds; -1: no limit.",
        "quota_s",
    ),
    ("pulsar_publish_rate_limit_times", "gauge", "How often publishes waited for a publish rate.", "rate_limited"),
)

EVICTIONS: Final = Family(
    "pulsar_storage_backlog_quota_exceeded_evictions_total",
    "counter",
    "How often a backlog quota removed messages; no row before the first time, and none in (other).",
    (*TOPIC, "quota_type"),
)

WRITE_RATE: Final = Family("pulsar_storage_write_rate", "gauge", "Entries written per second.", TOPIC)

LATENCIES: Final = (
    *(
        Family(
            f"{WRITE_LATENCY}_{name}",
            "gauge",
            f"Entries with a latency up to {bound:g} ms, above the bucket before.",
            TOPIC,
        )
        for name, bound in zip(LATENCY_NAMES, LATENCY_BOUNDS_MS, strict=True)
    ),
    Family(f"{WRITE_LATENCY}_overflow", "gauge", "Entries with a longer latency.", TOPIC),
    Family(f"{WRITE_LATENCY}_count", "gauge", "All these entries.", TOPIC),
    Family(f"{WRITE_LATENCY}_sum", "gauge", "Sum of their latencies in microseconds.", TOPIC),
)
"""Latencies, in the order of `broker.statistics.latency.Interval`, like the next."""

SIZES: Final = (
    *(
        Family(f"{ENTRY_SIZE}_{name}", "gauge", f"Entries of at most {_text} bytes, above the bucket before.", TOPIC)
        for name, _text in zip(
            SIZE_NAMES, ("128", "512", "1024", "2048", "4096", "16384", "102400", "1048576"), strict=True
        )
    ),
    Family(f"{ENTRY_SIZE}_le_overflow", "gauge", "Larger entries.", TOPIC),
    Family(f"{ENTRY_SIZE}_count", "gauge", "All these entries.", TOPIC),
    Family(f"{ENTRY_SIZE}_sum", "gauge", "Sum of their bytes.", TOPIC),
)

COMPACTION: Final = _of(
    TOPIC,
    ("pulsar_compaction_removed_event_count", "gauge", "Messages found superfluous.", "removed"),
    ("pulsar_compaction_succeed_count", "gauge", "Compactions that succeeded.", "successes"),
    ("pulsar_compaction_failed_count", "gauge", "Compactions that failed.", "failures"),
    ("pulsar_compaction_duration_time_in_mills", "gauge", "Duration of the last one in milliseconds.", "took_ms"),
    ("pulsar_compaction_read_throughput", "gauge", "Bytes per second that the last one read.", "read_per_s"),
    ("pulsar_compaction_compacted_entries_count", "gauge", "Entries that remain for compacted reads.", "entries"),
)

SUBSCRIPTIONS: Final = _of(
    SUBSCRIPTION,
    ("pulsar_subscription_back_log", "gauge", "Entries not acknowledged.", "msgBacklog"),
    (
        "pulsar_subscription_back_log_no_delayed",
        "gauge",
        "Entries not acknowledged, without those whose delivery time has not come.",
        "msgBacklogNoDelayed",
    ),
    ("pulsar_subscription_unacked_messages", "gauge", "Messages delivered and not acknowledged.", "unackedMessages"),
    ("pulsar_subscription_delayed", "gauge", "Messages whose delivery time has not come.", "msgDelayed"),
    ("pulsar_subscription_in_replay", "gauge", "Entries that wait for redelivery.", "msgInReplay"),
    ("pulsar_subscription_consumers_count", "gauge", "Consumers.", "consumers"),
    ("pulsar_subscription_msg_rate_out", "gauge", "Messages delivered per second.", "msgRateOut"),
    ("pulsar_subscription_msg_throughput_out", "gauge", "Bytes delivered per second.", "msgThroughputOut"),
    ("pulsar_subscription_msg_rate_redeliver", "gauge", "Messages delivered again per second.", "msgRateRedeliver"),
    ("pulsar_subscription_msg_ack_rate", "gauge", "Messages acknowledged per second.", "messageAckRate"),
    # It is a total and still a gauge, as in Pulsar: the name of a counter would end in another `_total`.
    ("pulsar_subscription_total_msg_expired", "gauge", "Entries that expired.", "totalMsgExpired"),
    ("pulsar_subscription_msg_rate_expired", "gauge", "Entries that expired per second.", "msgRateExpired"),
    (
        "pulsar_subscription_last_expire_timestamp",
        "gauge",
        "Last search for expired entries, ms since 1970, like the next four; 0: none since the start.",
        "lastExpireTimestamp",
    ),
    (
        "pulsar_subscription_last_acked_timestamp",
        "gauge",
        "When a message was last acknowledged.",
        "lastAckedTimestamp",
    ),
    (
        "pulsar_subscription_last_consumed_timestamp",
        "gauge",
        "When a message was last delivered.",
        "lastConsumedTimestamp",
    ),
    (
        "pulsar_subscription_last_consumed_flow_timestamp",
        "gauge",
        "When a consumer last asked for messages.",
        "lastConsumedFlowTimestamp",
    ),
    (
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
        "gauge",
        "When the mark-delete position last moved.",
        "lastMarkDeleteAdvancedTimestamp",
    ),
    (
        "pulsar_subscription_blocked_on_unacked_messages",
        "gauge",
        "1 while consumers hold too many unacknowledged messages.",
        "blockedSubscriptionOnUnackedMsgs",
    ),
)

DROP_RATE: Final = Family(
    "pulsar_subscription_msg_drop_rate",
    "gauge",
    "Messages per second that no consumer could take; non-persistent topics only.",
    SUBSCRIPTION,
)

SUBSCRIPTION_COUNTERS: Final = _of(
    SUBSCRIPTION,
    ("pulsar_subscription_out_messages_total", "counter", "Messages delivered."),
    ("pulsar_subscription_out_bytes_total", "counter", "Bytes delivered."),
)

REPLICATION: Final = _of(
    REMOTE,
    ("pulsar_replication_backlog", "gauge", "Messages not yet in the destination cluster.", "lag_messages"),
    ("pulsar_replication_delay_in_seconds", "gauge", "Age of the oldest of them; 0: none."),
    ("pulsar_replication_connected_count", "gauge", "1 while the link is up and the topic is not blocked."),
    ("pulsar_replication_disconnected_count", "gauge", "1 while it is not."),
)

REPLICATION_RATES: Final = _of(
    REMOTE,
    ("pulsar_replication_rate_in", "gauge", "Messages received from the other cluster per second.", "msgRateIn"),
    ("pulsar_replication_rate_out", "gauge", "Messages per second sent there and confirmed.", "msgRateOut"),
    ("pulsar_replication_throughput_in", "gauge", "Bytes received from there per second.", "msgThroughputIn"),
    ("pulsar_replication_throughput_out", "gauge", "Bytes per second sent there and confirmed.", "msgThroughputOut"),
)

LINKS: Final = _of(
    LINK,
    ("magnetar_link_lag_messages", "gauge", "Messages not yet in the destination cluster.", "lag_messages"),
    ("magnetar_link_lag_bytes", "gauge", "Bytes not yet in the destination cluster.", "lag_bytes"),
    ("magnetar_link_paused", "gauge", "1 while an operator has paused the link.", "paused"),
    ("magnetar_link_throttled", "gauge", "1 while the destination asks the link to slow down.", "throttled"),
    ("magnetar_link_sent_messages_total", "counter", "Messages sent and confirmed.", "messages_sent"),
    ("magnetar_link_sent_bytes_total", "counter", "Bytes sent and confirmed.", "bytes_sent"),
    ("magnetar_link_skipped_messages_total", "counter", "Messages given up by an operator.", "skipped_messages_total"),
    (
        "magnetar_link_gap_messages_total",
        "counter",
        "Messages deleted before they could be sent.",
        "gap_messages_total",
    ),
)

LINK_LAG: Final = Family(
    "magnetar_link_lag_seconds",
    "gauge",
    "Age of the oldest message of any topic that is not in the destination cluster.",
    LINK,
)
LINK_LIMIT: Final = Family("magnetar_link_throttle_bytes_per_second", "gauge", "An operator's limit; 0: none.", LINK)
LINK_STATE: Final = Family("magnetar_link_state", "gauge", "1 for the present state.", (*LINK, "state"))
LINK_BLOCKED: Final = Family("magnetar_link_blocked_topics", "gauge", "Blocked topics.", (*LINK, "reason"))
LINK_CONFLICTS: Final = Family(
    "magnetar_link_schema_blocked_messages",
    "gauge",
    "Messages blocked by a schema that the destination refuses.",
    (*LINK, "topic", "message_id", "schema", "remote_schema", "strategy"),
)

INCOMING: Final = _of(
    LINK,
    ("magnetar_link_schemas_total", "counter", "Schemas found or registered here for an incoming link.", "schemas"),
    (
        "magnetar_link_schema_dropped_total",
        "counter",
        "Entries stored without a version, because its schema is unknown.",
        "schemas_dropped",
    ),
)

REPLICATED: Final = _of(
    SUBSCRIPTION,
    ("magnetar_replicated_subscription_set_bytes", "gauge", "Size of the acknowledged set in memory.", "setBytes"),
    (
        "magnetar_replicated_subscription_runs",
        "gauge",
        "Runs of the acknowledged set; messages acknowledged in order are one run.",
        "runs",
    ),
    (
        "magnetar_replicated_subscription_pending",
        "gauge",
        "Messages acknowledged elsewhere, not yet arrived.",
        "pending",
    ),
    (
        "magnetar_replicated_subscription_unsent",
        "gauge",
        "Messages acknowledged here that are in no marker yet.",
        "unsent",
    ),
)

REPLICATED_LAG: Final = _of(
    (*SUBSCRIPTION, "remote_cluster"),
    (
        "magnetar_replicated_subscription_lag_messages",
        "gauge",
        "Acknowledgements made here that have not reached the other cluster.",
        "lagMessages",
    ),
    (
        "magnetar_replicated_subscription_lag_seconds",
        "gauge",
        "Age of the oldest of these acknowledgements.",
        "lagMs",
    ),
)

REPLICATED_LEVELS: Final = _of(
    (),
    (
        "magnetar_replicated_subscriptions",
        "gauge",
        "Replicated subscriptions with an acknowledged set.",
        "exact_subscriptions",
    ),
    (
        "magnetar_replicated_subscriptions_waiting",
        "gauge",
        "Replicated subscriptions with acknowledgements that are not written yet.",
        "exact_waiting",
    ),
)
"""Present values of the machines of exact mode; their other statistics are counted since the start."""

REPLICATED_EVENTS: Final = Family(
    "magnetar_replicated_subscriptions_events_total", "counter", "Events of all topics since the start.", ("event",)
)

DEDUPLICATION_NAMES: Final = Family(
    "magnetar_deduplication_producer_names", "gauge", "Producer names whose numbers are kept."
)
DEDUPLICATION_EVENTS: Final = Family(
    "magnetar_deduplication_events_total", "counter", "Events since the start; see docs/deduplication.md.", ("event",)
)
IDEMPOTENCY_KEYS: Final = Family("magnetar_idempotency_keys", "gauge", "Idempotency keys in memory.")
IDEMPOTENCY_BYTES: Final = Family("magnetar_idempotency_bytes", "gauge", "Memory of idempotency keys.", ("kind",))
IDEMPOTENCY_EVENTS: Final = Family(
    "magnetar_idempotency_events_total", "counter", "Events since the start; see docs/deduplication.md.", ("event",)
)
LOGINS: Final = Family(
    "magnetar_logins_total", "counter", "Logins since the start by result; see docs/security.md.", ("end",)
)
BUILD: Final = Family("magnetar_build_info", "info", "Version.", ("version",))

SCHEMAS: Final = _of(
    (),
    ("magnetar_schema_topics", "gauge", "Topics that have or had schemas.", "topics"),
    ("magnetar_schema_versions", "gauge", "Schema versions of all topics.", "versions"),
    ("magnetar_schema_bytes", "gauge", "Bytes of all definitions, which are in memory.", "bytes"),
    ("magnetar_schemas_registered_total", "counter", "Schemas registered since the start.", "registered"),
    ("magnetar_schemas_deleted_total", "counter", "Deletions of a topic's schemas since the start.", "deleted"),
)
SCHEMAS_REFUSED: Final = Family(
    "magnetar_schemas_refused_total",
    "counter",
    "Producers, consumers, links and uploads refused since the start, by reason.",
    ("reason",),
)

METADATA: Final = _of(
    (),
    (
        "magnetar_metadata_documents",
        "gauge",
        "Documents: tenants, namespaces, policies and others. No rows without synchronisation.",
        "documents",
    ),
    ("magnetar_metadata_deletions", "gauge", "Deletions that not all clusters have confirmed.", "deletions"),
    ("magnetar_metadata_waiting", "gauge", "Documents that are ahead of this cluster's clock.", "waiting"),
    ("magnetar_metadata_kept", "gauge", "Documents deleted in another cluster that topics here need.", "kept"),
)
METADATA_AGREES: Final = Family(
    "magnetar_metadata_agrees", "gauge", "1 while a cluster's last digest equals this cluster's.", LINK
)
METADATA_EVENTS: Final = Family(
    "magnetar_metadata_events_total", "counter", "Events since the start; see docs/metadata.md.", ("event",)
)

SECTIONS: Final = (
    Section(
        "The broker",
        "Rates, and `pulsar_broker_msg_backlog`, are those of the last round of upkeep (`retention_interval_ms`).",
        (
            BUILD,
            *BROKER,
            SERVING,
            *BROKER_FIGURES,
            TOPICS_COUNT,
            *BROKER_TOTALS,
            *CACHE,
            *CONNECTIONS,
            PUBLISH_SUMMARY,
            PUBLISH_HISTOGRAM,
            LOGINS,
            TOPICS_LEFT_OUT,
        ),
    ),
    Section(
        "The process and its machine",
        "The first six are those of prometheus_client. Percentages are of the time since the scrape before, or the last five\n"
        "seconds if that is longer. Values that the system does not provide have no row.",
        (*PROCESS, *USAGE),
    ),
    Section(
        "Topics",
        "Each partition is a topic. Rates are of the last interval of `retention_interval_ms`.",
        (
            *TOPIC_COUNTERS,
            *TOPIC_SIZES,
            *TOPIC_STATISTICS,
            *TOPIC_COUNTS,
            *TOPIC_SUMS,
            BACKLOG_AGE,
            *TOPIC_FIGURES,
            EVICTIONS,
        ),
    ),
    Section(
        "Writes to topics",
        "Values of the last interval of `retention_interval_ms`. As in Pulsar they are gauges, and an entry counts in one\n"
        "bucket only. Latency is from the receipt of a message to its durability. Markers and entries from links count. Topics\n"
        "without a write since the start have no rows.",
        (WRITE_RATE, *LATENCIES, *SIZES),
    ),
    Section("Compaction", "Since the broker's start; topics without a compaction have no rows.", COMPACTION),
    Section(
        "Subscriptions", "Links are not counted as subscriptions.", (*SUBSCRIPTIONS, DROP_RATE, *SUBSCRIPTION_COUNTERS)
    ),
    Section("Replication of topics", "Rows per topic and outgoing link.", (*REPLICATION, *REPLICATION_RATES)),
    Section(
        "Links",
        "See [links](../links.md).",
        (*LINKS, LINK_LAG, LINK_LIMIT, LINK_STATE, LINK_BLOCKED, LINK_CONFLICTS, *INCOMING),
    ),
    Section(
        "Replicated subscriptions",
        "See [replicated subscriptions](../replicated-subscriptions.md).",
        (*REPLICATED, *REPLICATED_LAG, *REPLICATED_LEVELS, REPLICATED_EVENTS),
    ),
    Section(
        "Publishing once",
        "See [deduplication](../deduplication.md).",
        (DEDUPLICATION_NAMES, DEDUPLICATION_EVENTS, IDEMPOTENCY_KEYS, IDEMPOTENCY_BYTES, IDEMPOTENCY_EVENTS),
    ),
    Section("Schemas", "See [schemas](../schemas.md).", (*SCHEMAS, SCHEMAS_REFUSED)),
    Section(
        "Synchronised metadata",
        "See [metadata](../metadata.md).",
        (*METADATA, METADATA_AGREES, METADATA_EVENTS),
    ),
)
