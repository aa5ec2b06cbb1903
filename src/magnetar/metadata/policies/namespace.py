"""The stored documents of clusters, tenants, namespaces and partitioned topics, and bodies of requests (`BacklogQuotaBody`,
`MessageIdBody`): Pulsar's JSON, field by field.

Names are Pulsar's (they are the wire format of its admin tools), also where they are mixed: Policies has both
`snake_case` and `camelCase` keys. Unknown keys are ignored, as in Pulsar, so that its tools of any version work. Fields
that only Magnetar has are marked. All structs are frozen: a changed policy is a new one.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from magnetar.metadata.errors import BadRequest
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.types import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Int32,
    Int64,
    Persistence,
    PublishRate,
    SubscribeRate,
    SubscriptionTypeName,
)

URL_CHARACTERS_MAX: Final = 2048
"""A ceiling: the limit of browsers and proxies, far above any address."""

LIST_MAX: Final = 256
"""A ceiling on names in one list of clusters or roles."""

PROPERTIES_MAX: Final = 128
"""A ceiling on the properties of one topic, subscription or namespace; they are kept in memory."""

PROPERTY_CHARACTERS_MAX: Final = 1024
"""A ceiling on one property's name and value together."""

Url = Annotated[str, Meta(max_length=URL_CHARACTERS_MAX, pattern=r"^[^\x00-\x20\x7f<>\"]*$")]
Name = Annotated[str, Meta(max_length=URL_CHARACTERS_MAX)]
Names = Annotated[list[Name], Meta(max_length=LIST_MAX)]


class ClusterData(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The addresses of a cluster (Pulsar's ClusterData, without credentials: those of links are in clusters.toml).

    Attributes:
        service_url: its admin REST interface, `http://host:port`.
        broker_service_url: its Pulsar protocol, `pulsar://host:port`.
        peer_cluster_names: clusters that may not be mixed with it in one namespace.
        uuid: ours: uuid of its data folder, known for the own cluster.
    """

    service_url: Url = ""
    service_url_tls: Url = ""
    broker_service_url: Url = ""
    broker_service_url_tls: Url = ""
    proxy_service_url: Url = ""
    proxy_protocol: Literal["SNI"] | None = None
    peer_cluster_names: Names = []
    listener_name: Name = ""
    uuid: Name = ""


class TenantInfo(Struct, frozen=True, rename="camel"):
    """A tenant (Pulsar's TenantInfo).

    Attributes:
        admin_roles: may administer it, where authentication is on (`broker.security.authorization`).
        allowed_clusters: clusters that its namespaces may name.
    """

    admin_roles: Names = []
    allowed_clusters: Names = []


_RETENTION: Final = {"time_minutes": "retentionTimeInMinutes", "size_mb": "retentionSizeInMB"}


class RetentionPolicies(Struct, frozen=True, rename=_RETENTION):
    """Retention of messages that every subscription has acknowledged: within the time *and* within the size.

    0 and 0: nothing. -1: no limit of that kind (Pulsar's RetentionPolicies).
    """

    time_minutes: Int32 = 0
    size_mb: Int64 = 0

    @property
    def time_ms(self) -> int:
        """The time in ms, -1 for no limit."""
        return self.time_minutes * 60_000 if self.time_minutes >= 0 else -1

    @property
    def size_bytes(self) -> int:
        """The size in bytes, -1 for no limit."""
        return self.size_mb * 1024 * 1024 if self.size_mb >= 0 else -1


BacklogQuotaType = Literal["destination_storage", "message_age"]
BacklogQuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]


class BacklogQuota(Struct, frozen=True, rename={"limit_size": "limitSize", "limit_time": "limitTime"}):
    """The largest backlog of a topic's consumers (Pulsar's BacklogQuota).

    Attributes:
        limit_size: bytes, -1 for no limit; for `destination_storage`.
        limit_time: seconds, -1 for no limit; for `message_age`.
        policy: action above the limit.
    """

    limit_size: Int64 = -1
    limit_time: Int32 = -1
    policy: BacklogQuotaPolicy = "producer_request_hold"


ReplicationStart = Literal["earliest", "latest"]
SubscriptionMode = Literal["exact", "snapshot"]
SchemaStrategy = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
"""Names of `schemas.compatibility.Strategy`."""

SchemaReplication = Literal["block", "foreign"]
SubscriptionAuthMode = Literal["None", "Prefix"]


_POLICIES: Final = {
    "auto_topic_creation": "autoTopicCreationOverride",
    "auto_subscription_creation": "autoSubscriptionCreationOverride",
    "deduplication_enabled": "deduplicationEnabled",
    "deduplication_snapshot_interval_seconds": "deduplicationSnapshotIntervalSeconds",
    "anti_affinity_group": "antiAffinityGroup",
}


class Policies(Struct, frozen=True, omit_defaults=True, rename=_POLICIES):
    """The policies of a namespace (Pulsar's Policies: the fields that have an effect, and `persistence`, which is kept).

    Attributes:
        replication_clusters: the clusters that get its messages; this cluster is usually one of them.
        allowed_clusters: clusters in which topics may exist and to which they may replicate (PIP-321); empty: the same
            as `replication_clusters`.
        message_ttl_in_seconds: None or 0: messages do not expire.
        retention_policies: None: the broker's default.
        backlog_quota_map: by type; none by default.
        deduplication_enabled: None: the broker's default.
        deduplication_snapshot_interval_seconds: None: the broker's default; 0: by entries alone.
        replicate_subscription_state: true: every durable subscription is replicated, also without a client's request
            (PIP-422).
        subscription_mode: ours: how replicated subscriptions follow; None: the broker's default.
        replication_start: ours: whether a new link sends what is retained, or only what is new.
        idempotency: ours: idempotency keys; None: none.
        schema_compatibility_strategy: the rule of compatibility of schemas; UNDEFINED: the broker's default, FULL.
        is_allow_auto_update_schema: whether producers may register new schemas; None: they may.
        is_allow_auto_update_schema_with_replicator: whether links may; None: as producers (PIP-433).
        schema_validation_enforced: producers without a schema are refused on topics that have one.
        schema_replication: ours: handling of schemas that arrive over links. `block` (None): they are registered as if
            a producer sent them, and a topic stops at one that is not compatible; `foreign`: they are stored for
            reading only.
        encryption_required: published messages have to be encrypted; None: they need not be.
        auto_topic_creation: whether clients create topics by opening them; None: the broker's `auto_create_topics`.
        auto_subscription_creation: whether consumers create durable subscriptions; None: they do.
        subscription_types_enabled: types that subscriptions may be opened with; None or empty: all.
        subscription_auth_mode: `Prefix`: a role uses only subscriptions whose name begins with the role's; None: any.
        compaction_delete_retention_seconds: ours: time for which compaction keeps deletions; None: the broker's
            default.
        properties: texts that the broker does not use.
        anti_affinity_group: a text, as it was sent, that the broker does not use: a namespace is in one bundle.

    The fields that are not in this list have a row in `metadata.policies.table`, which says what each does. Most of them
    are limits: None is the broker's default, and 0 is no limit. `deleted` is there for Pulsar's tools and has no effect.
    Rates and the message size have names of ours: Pulsar keeps rates per cluster, and the message size for topics only.
    """

    replication_clusters: Names = []
    allowed_clusters: Names = []
    message_ttl_in_seconds: Int32 | None = None
    retention_policies: RetentionPolicies | None = None
    backlog_quota_map: dict[BacklogQuotaType, BacklogQuota] = {}
    deduplication_enabled: bool | None = None
    replicate_subscription_state: bool | None = None
    subscription_mode: SubscriptionMode | None = None
    deduplication_snapshot_interval_seconds: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    replication_start: ReplicationStart = "earliest"
    idempotency: IdempotencyPolicy | None = None
    schema_compatibility_strategy: SchemaStrategy = "UNDEFINED"
    is_allow_auto_update_schema: bool | None = None
    is_allow_auto_update_schema_with_replicator: bool | None = None
    schema_validation_enforced: bool = False
    schema_replication: SchemaReplication | None = None
    encryption_required: bool | None = None
    auto_topic_creation: AutoTopicCreation | None = None
    auto_subscription_creation: AutoSubscriptionCreation | None = None
    subscription_types_enabled: list[SubscriptionTypeName] | None = None
    subscription_auth_mode: SubscriptionAuthMode | None = None
    properties: dict[str, str] = {}
    max_topics_per_namespace: Int32 | None = None
    max_producers_per_topic: Int32 | None = None
    max_consumers_per_topic: Int32 | None = None
    max_consumers_per_subscription: Int32 | None = None
    max_subscriptions_per_topic: Int32 | None = None
    max_message_size: Int32 | None = None
    max_unacked_messages_per_consumer: Int32 | None = None
    max_unacked_messages_per_subscription: Int32 | None = None
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    replicator_dispatch_rate: DispatchRate | None = None
    subscribe_rate: SubscribeRate | None = None
    subscription_expiration_time_minutes: Int32 | None = None
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopics | None = None
    compaction_threshold: Int64 | None = None
    compaction_delete_retention_seconds: Int64 | None = None
    persistence: Persistence | None = None
    anti_affinity_group: str | None = None
    deleted: bool = False

    def public(self) -> dict[str, Any]:
        """The answer of `GET /admin/v2/namespaces/tenant/namespace`: lists are always present, so no client meets
        null.
        """
        shown: dict[str, Any] = msgspec.to_builtins(self)
        for key in ("replication_clusters", "allowed_clusters"):
            shown.setdefault(key, [])
        shown.setdefault("backlog_quota_map", {})
        shown.setdefault("deleted", False)
        shown.setdefault("replication_start", self.replication_start)
        return shown


class PartitionedTopic(Struct, frozen=True, omit_defaults=True):
    """Metadata of a partitioned topic (Pulsar's PartitionedTopicMetadata).

    Attributes:
        partitions: how many.
        properties: of the administrator.
    """

    partitions: int
    properties: dict[str, str] = {}


class BacklogQuotaBody(Struct, rename="camel"):
    """A backlog quota in a request's body.

    Attributes:
        limit_size, limit_time, policy: as in `BacklogQuota`.
        limit: the limit of size, as tools before Pulsar 2.9 write it; counts where there is no `limitSize`.
    """

    limit_size: Int64 | UnsetType = UNSET
    limit_time: Int32 = -1
    policy: BacklogQuotaPolicy = "producer_request_hold"
    limit: Int64 = -1

    def quota(self) -> BacklogQuota:
        """The backlog quota as a value."""
        size = self.limit_size if isinstance(self.limit_size, int) else self.limit
        return BacklogQuota(size, self.limit_time, self.policy)


class MessageIdBody(Struct, rename="camel"):
    """A message id in a request's body; both halves -1 is the earliest, both 2^63-1 the latest.

    Attributes:
        is_excluded, excluded: the message itself is not meant. Pulsar's Java tools write `excluded`, others `isExcluded`.
    """

    ledger_id: Int64
    entry_id: Int64
    partition_index: Int32 = -1
    is_excluded: bool = False
    excluded: bool = False
    batch_index: Int32 | UnsetType = UNSET
    properties: dict[str, str] | None = None

    @property
    def exclusive(self) -> bool:
        """Whether the message itself is not meant, in either spelling."""
        return self.is_excluded or self.excluded


MessageIdOrText = MessageIdBody | str
"""A message id as requests have it: an object, or a text (see `message_id_of`)."""

_TEXT: Final = re.compile(r"(-?\d{1,19}):(-?\d{1,19})(?::(-?\d{1,10})(?::(-?\d{1,10}))?)?")


def message_id_of(body: MessageIdOrText) -> MessageIdBody:
    """A request's message id as an object. A text is `latest` or `earliest`, as in Pulsar (ResetCursorData), or
    `ledger:entry` as Pulsar's clients print ids, with or without the partition and the batch index after it.

    Raises:
        BadRequest: another text.
    """
    if not isinstance(body, str):
        return body
    if body in {"latest", "earliest"}:
        half = (1 << 63) - 1 if body == "latest" else -1
        return MessageIdBody(half, half)
    found = _TEXT.fullmatch(body)
    numbers = [int(part) for part in found.groups() if part is not None] if found is not None else []
    if not numbers or max(map(abs, numbers)) >> 63:
        raise BadRequest(f"{body[:40]!a} is not a valid position: write latest, earliest or ledger:entry")
    partition, index = (*numbers[2:], -1, -1)[:2]
    return MessageIdBody(numbers[0], numbers[1], partition, batch_index=index)


def changed_properties(before: Mapping[str, str], puts: Mapping[str, str], delete: str | None) -> dict[str, str]:
    """Properties with some of them set, and one forgotten.

    Raises:
        BadRequest: too many, or one is too long.
    """
    return check_properties({key: value for key, value in before.items() if key != delete} | dict(puts))


def check_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return properties that are within the limits.

    Raises:
        BadRequest: too many, or one is too long.
    """
    if len(properties) > PROPERTIES_MAX:
        raise BadRequest(f"{len(properties)} properties are too many: at most {PROPERTIES_MAX}")
    for key, value in properties.items():
        if len(key) + len(value) > PROPERTY_CHARACTERS_MAX:
            raise BadRequest(f"property {key[:40]!a} exceeds {PROPERTY_CHARACTERS_MAX} characters with its value")
    return properties
