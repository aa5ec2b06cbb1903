"""What Grafana dashboards made for Pulsar ask Prometheus for, and which of it a broker's `/metrics` has."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ADDED: Final = frozenset(
    {"instance", "job", "pod", "kubernetes_pod_name", "kubernetes_namespace", "cloud_streamnative_io_cluster",
     "cloud_streamnative_io_component", "broker"}
)  # fmt: skip
"""Labels that Prometheus, or what configures it, puts on what it scrapes; no broker has them in its page."""

_KEYWORDS: Final = frozenset({"and", "or", "unless", "offset", "bool", "inf", "nan"})
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_NAME: Final = re.compile(r"(?<![\w.:])[a-zA-Z_:][a-zA-Z0-9_:]*")

REASONS: Final = (
    (r"^(bookie|bookkeeper)_|^auditor_|^replication_worker_", "of BookKeeper, which is not there"),
    (r"^pulsar_function_", "of Pulsar Functions, which are not supported"),
    (r"^pulsar_(sink|source)_", "of Pulsar's connectors, which are not supported"),
    (r"^(pulsar_proxy|jetty)_", "of Pulsar's proxy; there is none"),
    (r"^pulsar_(detector|heartbeat)_", "of StreamNative's detector, a program of its own"),
    (r"^pulsar_txn_", "transactions are not served"),
    (r"^kop_", "of Kafka's protocol in Pulsar, which is not served"),
    (r"^(jvm|caffeine)_", "of Java's virtual machine; there is none"),
    (r"^(node|container|kube|machine|kubelet)_|^up$|^target_info$", "of the machine, Kubernetes or Prometheus itself"),
    (r"^pulsar_storage_(compact_|lakehouse_|wal_|backend_|read_entr)", "of StreamNative's own engine"),
    (r"^pulsar_storage_read_latency_", "Apache Pulsar has not got it, either"),
    (r"^pulsar_(ledgeroffloader_|managed_ledger_offload)", "nothing is offloaded"),
    (r"^pulsar_lb_directMemory_usage$", "there is no memory outside a heap; `pulsar_lb_memory_usage` is all"),
    (r"^pulsar_(lb_|sunit_|loadbalance)", "one broker serves all topics of its cluster: there is nothing to balance or split"),
    (r"^pulsar_entry_size_overflow$", "Apache Pulsar has not got it, either: it is `pulsar_entry_size_le_overflow`"),
    (r"^pulsar_instance_publish_latency$", "Apache Pulsar has not got it, either: it is `pulsar_broker_publish_latency`"),
    (r"^pulsar_version_info$", "it would claim to be a Pulsar; `magnetar_build_info` has the version"),
)  # fmt: skip
"""Why metrics are not there: pattern of the name, why; "of ..." is another program's. One that is not named here is missing."""

WANTED: Final = {
    (): (
        "process_cpu_seconds_total",
        "pulsar_in_bytes_total",
        "pulsar_in_messages_total",
        "pulsar_lb_bandwidth_in_usage",
        "pulsar_lb_bandwidth_out_usage",
        "pulsar_lb_cpu_usage",
        "pulsar_lb_memory_usage",
        "pulsar_ml_cache_evictions",
        "pulsar_ml_cache_hits_rate",
        "pulsar_ml_cache_hits_throughput",
        "pulsar_ml_cache_misses_rate",
        "pulsar_ml_cache_misses_throughput",
        "pulsar_ml_cache_used_size",
        "pulsar_out_bytes_total",
        "pulsar_out_messages_total",
    ),
    ("namespace",): (
        "pulsar_storage_write_latency_count",
        "pulsar_topics_count",
    ),
    ("namespace", "remote_cluster", "topic"): (
        "pulsar_replication_backlog",
        "pulsar_replication_rate_in",
    ),
    ("namespace", "subscription", "topic"): (
        "pulsar_subscription_back_log",
        "pulsar_subscription_delayed",
        "pulsar_subscription_msg_rate_out",
        "pulsar_subscription_msg_throughput_out",
    ),
    ("namespace", "topic"): (
        "pulsar_consumers_count",
        "pulsar_entry_size_le_100_kb",
        "pulsar_entry_size_le_128",
        "pulsar_entry_size_le_16_kb",
        "pulsar_entry_size_le_1_kb",
        "pulsar_entry_size_le_1_mb",
        "pulsar_entry_size_le_2_kb",
        "pulsar_entry_size_le_4_kb",
        "pulsar_entry_size_le_512",
        "pulsar_msg_backlog",
        "pulsar_producers_count",
        "pulsar_rate_in",
        "pulsar_rate_out",
        "pulsar_replication_rate_out",
        "pulsar_storage_backlog_quota_limit",
        "pulsar_storage_backlog_size",
        "pulsar_storage_offloaded_size",
        "pulsar_storage_read_rate",
        "pulsar_storage_size",
        "pulsar_storage_write_latency_le_0_5",
        "pulsar_storage_write_latency_le_1",
        "pulsar_storage_write_latency_le_10",
        "pulsar_storage_write_latency_le_100",
        "pulsar_storage_write_latency_le_1000",
        "pulsar_storage_write_latency_le_20",
        "pulsar_storage_write_latency_le_200",
        "pulsar_storage_write_latency_le_5",
        "pulsar_storage_write_latency_le_50",
        "pulsar_storage_write_latency_overflow",
        "pulsar_storage_write_rate",
        "pulsar_subscriptions_count",
        "pulsar_throughput_in",
        "pulsar_throughput_out",
    ),
    ("quantile",): ("pulsar_broker_publish_latency",),
    ("topic",): (
        "pulsar_consumer_msg_rate_redeliver",
        "pulsar_replication_throughput_in",
        "pulsar_replication_throughput_out",
        "pulsar_subscription_msg_rate_redeliver",
        "pulsar_subscription_unacked_messages",
    ),
}
"""What dashboards of StreamNative and lhotari ask a broker for, by the labels that their queries name, besides `cluster`."""

NO_DATA: Final = {
    "pulsar_lb_bandwidth_in_usage": "a share of network cards",
    "pulsar_lb_bandwidth_out_usage": "likewise",
    "pulsar_storage_offloaded_size": "nothing is offloaded",
    "pulsar_storage_write_latency_le_1000": "no write took so long",
    "pulsar_storage_write_latency_le_200": "likewise",
    "pulsar_storage_write_latency_le_100": "likewise",
    "pulsar_storage_write_latency_le_50": "likewise",
    "pulsar_storage_write_latency_le_0_5": "no write was so fast",
    "pulsar_storage_write_latency_overflow": "no write took so long",
}
"""What may be 0 all the time while there is traffic, and why."""

ZOOKEEPER: Final = "of ZooKeeper, which is not there"


class Use(NamedTuple):
    """Of one metric.

    Attributes:
        labels: that queries name.
        dashboards: where.
    """

    labels: frozenset[str]
    dashboards: frozenset[str]


def uses(checkout: Path) -> dict[str, Use]:
    """Metrics of all dashboards of a checkout, by name.

    Raises:
        SystemExit: it has none.
    """
    labels: dict[str, set[str]] = defaultdict(set)
    dashboards: dict[str, set[str]] = defaultdict(set)
    for file in sorted(checkout.rglob("*.json")):
        if file.stem.startswith("oxia-"):  # of another product
            continue
        found = json.loads(file.read_text())
        if not isinstance(found, dict) or not ("panels" in found or "rows" in found):
            continue
        for expression in _expressions(found):
            for name, named in _metrics(expression).items():
                labels[name] |= named
                dashboards[name].add(file.stem)
    if not labels:
        raise SystemExit(f"{checkout} has no dashboards")
    return {name: Use(frozenset(labels[name]), frozenset(dashboards[name])) for name in sorted(labels)}


def _panels(holder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for panel in holder.get("panels", []):
        yield panel
        yield from _panels(panel)


def _expressions(dashboard: Mapping[str, Any]) -> Iterator[str]:
    for holder in (dashboard, *dashboard.get("rows", [])):
        for panel in _panels(holder):
            yield from (str(target["expr"]) for target in panel.get("targets", []) if target.get("expr"))
    for variable in dashboard.get("templating", {}).get("list", []):
        query = variable.get("query")
        text = query.get("query", "") if isinstance(query, dict) else str(query or "")
        inner = re.fullmatch(r"\s*(?:label_values\((.*),\s*\w+\s*|query_result\((.*))\)\s*", text)
        if inner:
            yield inner[1] or inner[2]


def _metrics(expression: str) -> dict[str, set[str]]:
    """Names of metrics in an expression, with the labels that it names."""
    expression = re.sub(r"\$\{?\w+(?::\w+)?\}?", "X", expression)
    plain = _GROUPING.sub(" ", expression)
    found: dict[str, set[str]] = defaultdict(set)
    for selector in _SELECTOR.finditer(plain):
        found[selector[1]] |= {matcher[1] for matcher in _MATCHER.finditer(selector[2])}
    plain = re.sub(r"\{[^}]*\}|\"[^\"]*\"|\[[^\]]*\]", "", plain)
    for name in _NAME.finditer(plain):
        calls = plain[name.end() :].lstrip().startswith("(")
        if not calls and name[0].lower() not in _KEYWORDS and name[0] not in ("X", "s", "m", "h", "d"):
            found[name[0]] |= set()
    grouped = {label.strip() for group in _GROUPING.finditer(expression) for label in group[1].split(",")}
    for named in found.values():
        named.update(grouped - {""})
    return found


def series(page: str) -> dict[str, set[str]]:
    """Names of samples of a broker's page, with the labels that they have."""
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} \S+$", page, re.MULTILINE):
        found[name] = set(re.findall(r'(\w+)="', labels))
    return found


def reason(name: str, use: Use) -> str:
    """Why a metric is not there; "open" if nobody knows."""
    if all("zookeeper" in dashboard for dashboard in use.dashboards):
        return ZOOKEEPER
    return next((why for pattern, why in REASONS if re.search(pattern, name)), "open")


def missing(name: str, use: Use, told: Mapping[str, set[str]]) -> str:
    """What a page lacks of what queries want of a metric; "" if nothing."""
    if name not in told:
        return reason(name, use)
    lacking = use.labels - told[name] - ADDED
    return f"open: it has no label {', '.join(sorted(lacking))}" if lacking else ""
