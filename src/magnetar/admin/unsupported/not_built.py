"""Features of Pulsar's admin interface that this one does not have: the reasons in its 501 answers."""

import re
from typing import Final

NO_BUNDLES: Final = "namespaces have no bundles: a cluster has one broker"

_REASONS: Final[tuple[tuple[str, str], ...]] = (
    (r"/admin/v[23]/(functions|sources?|sinks?|packages|worker|worker-stats)(/|$)", "Pulsar Functions and IO are not supported"),
    (r"/admin/v3/transactions(/|$)", "transactions are not supported"),
    (r"/admin/v2/(resource-quotas|resourcegroups|loadbalance)(/|$)",
     "a cluster has one broker: there is nothing to balance"),
    (r"/admin/v2/brokers/(configuration|internal-configuration)(/|$)",
     "a broker is configured by clusters.toml, which is read at its start"),
    (r"/admin/v2/brokers/backlog-quota-check$", "quotas are checked every `retention_interval_ms`"),
    (r"/admin/v2/broker-stats(/|$)", "metrics are at `/metrics`, for Prometheus"),
    (r"/admin/v2/bookies(/|$)", "messages are in the broker's own log: there are no bookies"),
    (r"/admin/v2/proxy-stats(/|$)", "there is no proxy to ask"),
    (r"/(antiAffinity|bundles?|destination/[^/]+|[^/]+/split|0x[0-9a-f]+_0x[0-9a-f]+)(/|$)",
     NO_BUNDLES),
    (r"/admin/v2/clusters/[^/]+/(namespaceIsolationPolicies|failureDomains)(/|$)",
     "a cluster has one broker: nothing to isolate"),
    (r"/(migrate|migration)$",
     "clusters are not migrated: replicate messages to the new one by links, and move subscriptions with `magnetar failover`"),
    (r"/persistence/bookieAffinity$", "messages are in the broker's own log: there are no bookies to choose"),
    (r"/(remove|scan)?[oO]ffload[^/]*(/|$)", "there is no tiered storage to offload to"),
    (r"/resource[gG]roup(/[^/]+)?$", "a cluster has one broker: no groups share it; limit rates of namespaces and topics"),
    (r"/entryFilters$", "brokers run no code of their users; links have a filter"),
    (r"/shadowTopics$", "a topic has no shadows; links copy topics between clusters"),
    (r"/dispatcherPauseOnAckStatePersistent$", "dispatch waits by `max-unacked-per-subscription`"),
    (r"/(non-)?persistent/[^/]+/[^/]+/[^/]+/backlog$", "no topic is offline where its broker runs: its `stats` have the backlog"),
    (r"^/(admin|lookup)/(?!v\d)", "names of version 1, which contain a cluster, are not supported; use /admin/v2"),
    (r"/non-persistent/.*/replicatedSubscriptionStatus$", "a non-persistent topic has no state to replicate"),
    (r"/getMessageIdByIndex$", "brokers give messages no index; `messageid/{timestamp}` finds one by its time"),
    (r"^/ws(/|$)", ("WebSockets have paths such as /ws/v2/producer/persistent/TENANT/NAMESPACE/TOPIC, and `websocket = false` "
     "switches them off: docs/websocket.md")),
    (r"^/topics(/|$)", "messages are published by the Pulsar protocol or a WebSocket (docs/websocket.md), not by REST"),
    (r"/admin/v2/(scalable|segments)(/|$)", "topics have partitions, no segments"),
    (r"/scalableTopicAutoScalePolicy$", "a topic has the partitions that an administrator gave it"),
    (r"/allowedTopicPropertyKeysForMetrics$", "metrics have no labels of topics' properties"),
)  # fmt: skip

_PATTERNS: Final = [(re.compile(pattern), reason) for pattern, reason in _REASONS]

_ONE_BY_ONE: Final = "permissions are given topic by topic: `permissions/{role}` of each"

_METHODS: Final = {
    (
        "POST",
        "/admin/v2/brokers/shutdown",
    ): "a broker ends by SIGTERM, when `magnetar drain` says that nothing would be lost",
    ("POST", "/admin/v2/namespaces/grantPermissionsOnTopics"): _ONE_BY_ONE,
    ("POST", "/admin/v2/namespaces/revokePermissionsOnTopics"): _ONE_BY_ONE,
}
"""Operations on paths that have others here."""

_BUNDLE: Final = re.compile(r"/admin/v2/(non-)?persistent/[^/]+/[^/]+/0x[0-9a-f]+_0x[0-9a-f]+/?")
"""Topics of a bundle, which Pulsar lists where a topic of that name would be."""

WHOLE_RANGE: Final = "0x00000000_0xffffffff"
"""The range of hashes of the single bundle of a namespace."""

_SETS: Final = frozenset({"POST", "PUT"})
"""Methods that set something. An unsupported feature can still be read and removed (`never_set`): it was never set."""


def has_others(method: str, path: str) -> bool:
    """Whether an operation is one of Pulsar's on a path where other operations are built."""
    return (
        (method, path) in _METHODS
        or (method == "GET" and _BUNDLE.fullmatch(path) is not None)
        or (method in _SETS and any(pattern.search(path) for pattern, _ in _PATTERNS))
    )


def why_not(part: str) -> str:
    """Why a namespace has not what Pulsar has at this last part of its path."""
    path = f"/admin/v2/namespaces/tenant/namespace/{part}"
    return next(why for pattern, why in _PATTERNS if pattern.search(path))


def reason(method: str, path: str) -> str:
    """Why an operation below /admin, /lookup, /ws or /topics is not there, in one line."""
    found = _METHODS.get((method, path)) or next((why for pattern, why in _PATTERNS if pattern.search(path)), None)
    if found is not None:
        return f"{method} {path} is not implemented by Magnetar: {found}"
    return f"{method} {path} is not implemented by Magnetar; /openapi.json lists what is"
