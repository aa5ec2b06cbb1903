"""The body of a new namespace: Pulsar's Policies, all fields.

Fields that have a meaning here are accepted, also under Pulsar's names. A field that this broker cannot follow is
refused unless it has its default value: a successful answer must not make a client believe that messages are encrypted
or offloaded. Ignored are `bundles` and `latency_stats_sample_rate`, which promise nothing, and keys that Pulsar does
not have.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct, field

from magnetar.admin.unsupported.not_built import why_not
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.permissions import Action
from magnetar.metadata.policies.namespace import (
    BacklogQuotaBody,
    BacklogQuotaType,
    Policies,
    SchemaStrategy,
    SubscriptionAuthMode,
)
from magnetar.metadata.policies.types import DispatchRate, PublishRate, SubscribeRate

Rate = TypeVar("Rate", PublishRate, DispatchRate, SubscribeRate)

OldStrategy = Literal[
    "",
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
]
"""Pulsar's names of schema strategies before 2.5; read if there is no newer one."""

_STRATEGIES: Final[Mapping[str, SchemaStrategy]] = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}


OLD_STRATEGIES: Final[Mapping[str, OldStrategy]] = {new: old for old, new in _STRATEGIES.items()}  # type: ignore[misc]
"""The older name of each strategy; `UNDEFINED` has none."""


def strategy_of(old: str) -> SchemaStrategy:
    """The strategy that had this name; UNDEFINED for an empty one."""
    return _STRATEGIES.get(old, "UNDEFINED")


class AuthPolicies(Struct, frozen=True):
    """Permissions, as `GET` of a namespace shows them."""

    namespace_auth: dict[str, list[Action]] = {}
    destination_auth: dict[str, dict[str, list[Action]]] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


_NAMES: Final = {
    "topic_dispatch_rate": "topicDispatchRate",
    "cluster_dispatch_rate": "clusterDispatchRate",
    "subscription_dispatch_rates": "subscriptionDispatchRate",
    "publish_max_message_rate": "publishMaxMessageRate",
    "replicator_dispatch_rates": "replicatorDispatchRate",
    "cluster_subscribe_rate": "clusterSubscribeRate",
    "scalable_topic_auto_scale_policy": "scalableTopicAutoScalePolicy",
    "entry_filters": "entryFilters",
    "dispatcher_pause": "dispatcherPauseOnAckStatePersistentEnabled",
}


class NewNamespace(Policies, frozen=True, rename=_NAMES):
    """Body of a new namespace. Go's tools write unset enumerations as an empty text, and unset numbers as 0.

    Attributes:
        topic_dispatch_rate, cluster_dispatch_rate, subscription_dispatch_rates, publish_max_message_rate,
            replicator_dispatch_rates, cluster_subscribe_rate: by cluster, as Pulsar keeps rates; `clusterDispatchRate` is the
            older name.
        schema_auto_update_compatibility_strategy: older than `schema_compatibility_strategy`.

    The other fields below are refused unless they have their default value.
    """

    backlog_quota_map: dict[BacklogQuotaType, BacklogQuotaBody] = field(default_factory=dict)  # type: ignore[assignment]
    schema_compatibility_strategy: SchemaStrategy | Literal[""] = "UNDEFINED"  # type: ignore[assignment]
    subscription_auth_mode: SubscriptionAuthMode | Literal[""] | None = None  # type: ignore[assignment]
    auth_policies: AuthPolicies = AuthPolicies()
    topic_dispatch_rate: dict[str, DispatchRate] = field(default_factory=dict)
    cluster_dispatch_rate: dict[str, DispatchRate] = field(default_factory=dict)
    subscription_dispatch_rates: dict[str, DispatchRate] = field(default_factory=dict)
    publish_max_message_rate: dict[str, PublishRate] = field(default_factory=dict)
    replicator_dispatch_rates: dict[str, DispatchRate] = field(default_factory=dict)
    cluster_subscribe_rate: dict[str, SubscribeRate] = field(default_factory=dict)
    schema_auto_update_compatibility_strategy: OldStrategy = ""
    scalable_topic_auto_scale_policy: Any = None
    offload_threshold: Any = None
    offload_threshold_in_seconds: Any = None
    offload_deletion_lag_ms: Any = None
    offload_policies: Any = None
    allowed_topic_property_keys_for_metrics: Any = None
    resource_group_name: Any = None
    migrated: Any = None
    dispatcher_pause: Any = None
    entry_filters: Any = None


def _unset(value: Any) -> bool:
    """Whether a value is one that tools send for an unset field."""
    return value is None or value is False or value in ("", [], {}) or (type(value) in {int, float} and value <= 0)


def _no_filters(value: Any) -> bool:
    return _unset(value) or (isinstance(value, dict) and all(map(_unset, value.values())))


_OFFLOADING: Final = "offloadPolicies"

_REFUSED: Final[tuple[tuple[str, str, Callable[[Any], bool]], ...]] = (
    ("scalable_topic_auto_scale_policy", "scalableTopicAutoScalePolicy", _unset),
    ("offload_threshold", _OFFLOADING, _unset),
    ("offload_threshold_in_seconds", _OFFLOADING, _unset),
    ("offload_deletion_lag_ms", _OFFLOADING, _unset),
    ("offload_policies", _OFFLOADING, _unset),
    ("allowed_topic_property_keys_for_metrics", "allowedTopicPropertyKeysForMetrics", _unset),
    ("resource_group_name", "resourcegroup", _unset),
    ("migrated", "migration", _unset),
    ("dispatcher_pause", "dispatcherPauseOnAckStatePersistent", _unset),
    ("entry_filters", "entryFilters", _no_filters),
)
"""Field, the last part of Pulsar's path to it (which has the reason), and what is as good as its default."""


def policies_of(body: NewNamespace, cluster: str) -> Policies:
    """The policies of a namespace in this cluster, from a body.

    Raises:
        PreconditionFailed: something in it cannot be followed.
    """
    for name, part, is_default in _REFUSED:
        if not is_default(getattr(body, name)):
            raise PreconditionFailed(f"{_NAMES.get(name, name)} cannot be set: {why_not(part)}")
    taken: dict[str, Any] = {name: getattr(body, name) for name in Policies.__struct_fields__}
    taken["backlog_quota_map"] = {kind: quota.quota() for kind, quota in body.backlog_quota_map.items()}
    if body.persistence is not None and body.persistence.ensemble == 0:
        taken["persistence"] = None  # zero values of Go's tools
    taken["anti_affinity_group"] = body.anti_affinity_group or None
    taken["encryption_required"] = body.encryption_required or None
    taken["subscription_auth_mode"] = body.subscription_auth_mode or None
    if body.schema_compatibility_strategy in {"", "UNDEFINED"}:
        old = body.schema_auto_update_compatibility_strategy
        taken["schema_compatibility_strategy"] = strategy_of(old)
    dispatch = body.topic_dispatch_rate or body.cluster_dispatch_rate
    taken["publish_rate"] = _own("publishMaxMessageRate", body.publish_max_message_rate, body.publish_rate, cluster)
    taken["dispatch_rate"] = _own("topicDispatchRate", dispatch, body.dispatch_rate, cluster)
    taken["subscription_dispatch_rate"] = _own(
        "subscriptionDispatchRate", body.subscription_dispatch_rates, body.subscription_dispatch_rate, cluster
    )
    taken["replicator_dispatch_rate"] = _own(
        "replicatorDispatchRate", body.replicator_dispatch_rates, body.replicator_dispatch_rate, cluster
    )
    taken["subscribe_rate"] = _own("clusterSubscribeRate", body.cluster_subscribe_rate, body.subscribe_rate, cluster)
    return Policies(**taken)


def _own(key: str, by_cluster: Mapping[str, Rate], said: Rate | None, cluster: str) -> Rate | None:
    """A rate of this cluster, out of Pulsar's map and what is said under our name."""
    own = by_cluster.get(cluster)
    if own is None and not any(map(_limits, by_cluster.values())):
        return said
    if own is None or any(rate != own for rate in by_cluster.values()):
        raise PreconditionFailed(
            f"{key} has to name {cluster}, which this is, and no other rates: set those of each cluster in that cluster"
        )
    if said is not None and said != own:
        raise PreconditionFailed(f"{key} and Magnetar's own name of it say different rates")
    return own


def _limits(rate: Rate) -> bool:
    """Whether a rate limits anything."""
    if isinstance(rate, SubscribeRate):
        return rate.per_consumer > 0
    return rate.messages > 0 or rate.bytes > 0


def rates_by_cluster(policies: Policies, cluster: str) -> dict[str, Any]:
    """The rates of a namespace as Pulsar's Policies have them."""
    named = {
        "publishMaxMessageRate": policies.publish_rate,
        "topicDispatchRate": policies.dispatch_rate,
        "subscriptionDispatchRate": policies.subscription_dispatch_rate,
        "replicatorDispatchRate": policies.replicator_dispatch_rate,
        "clusterSubscribeRate": policies.subscribe_rate,
    }
    return {key: {cluster: rate} for key, rate in named.items() if rate is not None}
