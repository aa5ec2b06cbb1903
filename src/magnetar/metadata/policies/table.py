"""The table of all policies: one row each, from which REST paths, the command line, validation and the reference are
made.

    a topic's effective value  =  its own policy  >  its namespace's  >  the broker's default (clusters.toml)

A row has the field of a value (in `Policies`, in `TopicPolicies`, or in both), its path in Pulsar's admin interface,
the check of its values, and which part of the broker enforces it. Adding a policy means: a field, a row, and the code that acts
on it (docs/architecture.md#a-new-policy has all files). Routes that set a part of a field, one kind of a backlog quota, are
written by hand (`by_hand`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.core.settings import BrokerConfig
from magnetar.metadata.policies import checks
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.namespace import (
    BacklogQuota,
    Names,
    Policies,
    ReplicationStart,
    RetentionPolicies,
    SchemaReplication,
    SchemaStrategy,
    SubscriptionAuthMode,
    SubscriptionMode,
    check_properties,
)
from magnetar.metadata.policies.topic import Seconds, TopicPolicies
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

UNDEFINED: Final = "UNDEFINED"
"""A word of Pulsar's for "not set"."""

NO_DELAY_POLICY: Final = DelayedDelivery()
NO_RETENTION: Final = RetentionPolicies()
COMPACTION_DELETE_RETENTION_S: Final = 86_400
"""A day, as Kafka's delete.retention.ms: a client may be away for this long without missing that rows were deleted."""
NO_KEYS: Final = IdempotencyPolicy(enabled=False)
NEW_SUBSCRIPTIONS: Final = AutoSubscriptionCreation(allow=True)
NO_PUBLISH_RATE: Final = PublishRate()
NO_DISPATCH_RATE: Final = DispatchRate()
NO_SUBSCRIBE_RATE: Final = SubscribeRate()
NOT_INACTIVE: Final = InactiveTopics(delete=False)
STORED_ONCE: Final = Persistence()

IDEMPOTENCY_REPLY: Final = '{"property": "idempotency-key", "windowSeconds": 3600, "keysMax": 1000000, "enabled": true}'


@dataclass(frozen=True, slots=True)
class RouteWords:
    """The texts of the REST reference for a policy's routes on one level, if the row's name and summary are not enough.

    Attributes:
        get, set, remove: summaries of GET, of POST or PUT, and of DELETE; "": made from the row.
        reply: content of an answer; "": made from the row.
        errors: statuses of a refusal to set it; (): 404 and 412.
        query: parameters of the request to set it.
    """

    get: str = ""
    set: str = ""
    remove: str = ""
    reply: str = ""
    errors: tuple[int, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """One policy.

    Attributes:
        name: on the command line.
        summary: one line: what it does, with the unit of the value.
        kind: type of the value in requests.
        enforced: which part of the broker enforces it, in words for the reference.
        namespace, namespace_path: field of `Policies`, and the last part of the namespace's path; "" when a namespace
            cannot have it.
        topic, topic_path: the same of `TopicPolicies` and a topic's path.
        default: the value if none is set.
        shown: `default` in words.
        check: refuses impossible values.
        check_new: refuses more values of a request; stored ones may have them.
        own: its namespace path is ours (below /geo/v1): Pulsar has it for topics only, or not at all.
        own_topic: so is its topic path.
        by_hand: levels whose routes are written out elsewhere, because they set a part of a field.
        namespace_method, topic_method: of HTTP, to set it.
        namespace_unset, topic_unset: GET's answer if nothing is set; None: 204. Java's tools fail on an empty answer.
        namespace_nullable, topic_nullable: null, or no body, removes it; for topics only in a group of its own.
        namespace_words, topic_words: texts of the reference, for routes in a group of their own (`add_policies`); None:
            they are with those of all policies.
        always_applied: GET on a namespace answers with the effective value, whether it is set or not.
        removable: DELETE removes it from a namespace.
        query: Pulsar's clients send the topic's value as this query parameter instead of a body.
        kind_query: fixed query of the path, such as the kind of a backlog quota.
        follows: the policy whose value is used if this one is not set.
        no_default: what to do instead if `[policies]` of clusters.toml names it; "": it may have a default there.
        limits_only: a change of it affects only limits, expiry, quotas and access (`broker.catalog.policy_limits`,
            `broker.catalog.maintenance`, `broker.security.access`). Links and the other parts of a broker then do not check
            topics, which saves four fifths of the time of a change in a namespace of ten thousand topics.
        named_in_refusals: a refusal because of it names the source of its value (`TopicLimits.sources`).
    """

    name: str
    summary: str
    kind: Any
    enforced: str
    namespace: str = ""
    namespace_path: str = ""
    topic: str = ""
    topic_path: str = ""
    default: Callable[[BrokerConfig], Any] = lambda _config: None
    shown: str = "none"
    check: Callable[[Any], None] = checks.anything
    check_new: Callable[[Any], None] = checks.anything
    own: bool = False
    own_topic: bool = False
    by_hand: tuple[str, ...] = ()
    namespace_method: str = "POST"
    topic_method: str = "POST"
    namespace_unset: Any = None
    topic_unset: Any = None
    namespace_nullable: bool = False
    topic_nullable: bool = False
    namespace_words: RouteWords | None = None
    topic_words: RouteWords | None = None
    always_applied: bool = False
    removable: bool = True
    query: str = ""
    kind_query: str = ""
    follows: str = ""
    no_default: str = ""
    limits_only: bool = False
    named_in_refusals: bool = False

    def of_namespace(self, policies: Policies) -> Any:
        """The namespace's value; None when it has none."""
        return _set(getattr(policies, self.namespace)) if self.namespace else None

    def of_topic(self, policies: TopicPolicies) -> Any:
        """The topic's own value; None when it has none."""
        return getattr(policies, self.topic) if self.topic else None

    def applied(self, topic: TopicPolicies | None, namespace: Policies, config: BrokerConfig) -> Any:
        """The effective value: the most specific one that is set, else the broker's default; None: no limit."""
        own = self.of_topic(topic) if topic is not None else None
        if own is not None:
            return own
        shared = self.of_namespace(namespace)
        return self.default(config) if shared is None else shared

    def source(self, topic: TopicPolicies, namespace: Policies) -> str:
        """The policy, and where the value comes from that `applied` finds, for a refusal that is due to it.

        Args:
            topic: the topic's own policies.
            namespace: those that the namespace has itself, without the broker's defaults.
        """
        if self._has(self.of_topic(topic)):
            return f"policy {self.name} of the topic"
        whose = "its namespace" if self._has(self.of_namespace(namespace)) else "the broker (clusters.toml)"
        return f"policy {self.name} of {whose}"

    def _has(self, value: Any) -> bool:
        return value is not None and (not self.kind_query or self.kind_query in value)


def _set(value: Any) -> Any:
    """Fields of `Policies` that mean "not set" by an empty list or a word."""
    return None if value in ([], {}, UNDEFINED) else value


def _count(name: str, namespace: str, topic: str, summary: str, enforced: str, shown: str, **more: Any) -> Policy:
    return Policy(
        name, summary, Int32, enforced, shown=shown, check=checks.count(name), **_fields(namespace, topic), **more
    )


def _fields(namespace: str, topic: str) -> dict[str, Any]:
    """`field:path` of both levels."""
    fields: dict[str, Any] = {}
    for level, text in (("namespace", namespace), ("topic", topic)):
        if text:
            fields[level], _, fields[f"{level}_path"] = text.partition(":")
    return fields


TABLE: Final[tuple[Policy, ...]] = (
    Policy(
        "replication-clusters",
        "Clusters to which messages are replicated.",
        Names,
        "links",
        namespace="replication_clusters",
        namespace_path="replication",
        topic="replication_clusters",
        topic_path="replication",
        shown="this cluster",
        check=checks.clusters,
        removable=False,
        namespace_unset=[],
        namespace_words=RouteWords(
            get="The clusters of its messages.",
            set="Set the clusters of its messages. A cluster that is left out receives no more messages; its "
            "data stays.",
            reply='["us-east", ...]',
            errors=(400, 403, 404, 409, 412),
        ),
        no_default='write [namespaces."TENANT/NAMESPACE"] clusters',
    ),
    Policy(
        "allowed-clusters",
        "Clusters where topics may exist (PIP-321).",
        Names,
        "links, creation of topics",
        namespace="allowed_clusters",
        namespace_path="allowedClusters",
        shown="the replication clusters",
        follows="replication-clusters",
        removable=False,
        namespace_unset=[],
        namespace_words=RouteWords(
            get="The clusters where its topics may exist.",
            set="Set the clusters where its topics may exist (PIP-321).",
            reply='["a", ...]',
            errors=(400, 403, 404, 412),
        ),
        no_default="set it for a namespace",
    ),
    Policy(
        "replication-start",
        "Whether a new link sends all retained messages or only new ones.",
        ReplicationStart,
        "links",
        namespace="replication_start",
        namespace_path="replicationStart",
        shown="earliest",
        own=True,
        removable=False,
        always_applied=True,
        namespace_words=RouteWords(
            get="Whether a new link begins with retained messages.",
            set="Set whether a new link begins with retained messages (earliest) or new ones (latest).",
        ),
        no_default='write [namespaces."TENANT/NAMESPACE"] replication_start',
    ),
    Policy(
        "retention",
        "How long acknowledged messages stay: within a time and a size (-1: no limit).",
        RetentionPolicies,
        "retention",
        **_fields("retention_policies:retention", "retention_policies:retention"),
        default=lambda _config: NO_RETENTION,
        shown="0 min, 0 MB",
        check=checks.retention,
        limits_only=True,
    ),
    Policy(
        "ttl",
        "After how many seconds unacknowledged messages expire (0: never). Links never drop messages by it.",
        Int32,
        "expiry",
        **_fields("message_ttl_in_seconds:messageTTL", "message_ttl_in_seconds:messageTTL"),
        default=lambda _config: 0,
        shown="0",
        check=checks.count("ttl"),
        query="messageTTL",
        limits_only=True,
    ),
    Policy(
        "backlog-quota",
        "Limit of a subscription's lag in bytes, and the action above it.",
        BacklogQuota,
        "backlog quotas",
        **_fields("backlog_quota_map:backlogQuota", "backlog_quota_map:backlogQuota"),
        by_hand=("namespace", "topic"),
        kind_query="destination_storage",
        limits_only=True,
    ),
    Policy(
        "backlog-quota-age",
        "Limit of the age of the oldest unacknowledged message, and the action above it.",
        BacklogQuota,
        "backlog quotas",
        **_fields("backlog_quota_map:backlogQuota", "backlog_quota_map:backlogQuota"),
        by_hand=("namespace", "topic"),
        kind_query="message_age",
        limits_only=True,
    ),
    Policy(
        "deduplication",
        "Whether messages that a producer sends again are stored once.",
        bool,
        "publishing",
        **_fields("deduplication_enabled:deduplication", "deduplication_enabled:deduplicationEnabled"),
        shown="`[deduplication] enabled`",
        namespace_words=RouteWords(
            get="Whether published messages are deduplicated.",
            set="Switch deduplication on or off; producers reconnect once.",
            remove="Remove the setting; the broker's default applies.",
        ),
        topic_words=RouteWords(
            get="Whether messages published to this topic are deduplicated.",
            set="Switch deduplication of this topic (all its partitions) on or off.",
            remove="Remove the setting; the namespace's applies.",
        ),
        no_default="write [deduplication] enabled",
    ),
    Policy(
        "deduplication-interval",
        "Seconds between two snapshots of deduplication numbers (0: only by the number of entries).",
        Seconds,
        "publishing",
        **_fields(
            "deduplication_snapshot_interval_seconds:deduplicationSnapshotInterval",
            "deduplication_snapshot_interval_seconds:deduplicationSnapshotInterval",
        ),
        shown="`[deduplication] snapshot_s`",
        removable=False,
        namespace_nullable=True,
        namespace_words=RouteWords(
            get="Seconds between two snapshots of deduplication numbers.",
            set="Set the interval in seconds (0: only by the number of entries; null: the broker's default).",
            reply="120",
        ),
        topic_words=RouteWords(
            get="Seconds between two snapshots of this topic's deduplication numbers.",
            set="Set this topic's interval in seconds (0: only by the number of entries).",
            remove="Remove the setting; the namespace's applies.",
            reply="120",
        ),
        no_default="write [deduplication] snapshot_s",
    ),
    Policy(
        "idempotency",
        "Which property is an idempotency key, and how long keys are remembered.",
        IdempotencyPolicy,
        "publishing",
        **_fields("idempotency:idempotency", "idempotency:idempotency"),
        own=True,
        own_topic=True,
        default=lambda _config: NO_KEYS,
        namespace_words=RouteWords(
            get="The message property with the idempotency key, and the window.",
            set="Store one message per idempotency key within a window; producers reconnect once.",
            remove="Switch idempotency keys off.",
            reply=IDEMPOTENCY_REPLY,
        ),
        topic_words=RouteWords(
            get="The property of this topic's messages with the idempotency key, and the window.",
            set="Store one message per idempotency key in this topic (separately in each partition); `enabled: "
            "false`: switch it off.",
            remove="Remove the setting; the namespace's applies.",
            reply=IDEMPOTENCY_REPLY,
        ),
        no_default="set it for a namespace or a topic",
    ),
    Policy(
        "schema-strategy",
        "Which schemas of a topic are compatible with each other.",
        SchemaStrategy,
        "the schema registry",
        **_fields(
            "schema_compatibility_strategy:schemaCompatibilityStrategy",
            "schema_compatibility_strategy:schemaCompatibilityStrategy",
        ),
        default=lambda _config: "FULL",
        shown="FULL",
        namespace_method="PUT",
        topic_method="PUT",
        removable=False,
        namespace_unset=UNDEFINED,
        namespace_words=RouteWords(
            get="Which schemas of a topic are compatible with each other.",
            set="Set which schemas of a topic are compatible with each other; UNDEFINED: the broker's default, FULL.",
            reply='"FULL"',
            errors=(400, 404, 412),
        ),
    ),
    Policy(
        "schema-auto-update",
        "Whether producers may register new schemas.",
        bool,
        "the schema registry",
        namespace="is_allow_auto_update_schema",
        namespace_path="isAllowAutoUpdateSchema",
        default=lambda _config: True,
        shown="true",
        removable=False,
        namespace_unset=True,
        namespace_words=RouteWords(
            get="Whether producers may register new schemas.",
            set="Set whether producers may register new schemas; administrators always may.",
            errors=(400, 404, 412),
            query={
                "allowAutoUpdateSchemaWithReplicator": (
                    "true or false: whether links may, too; without it their setting stays (PIP-433)."
                )
            },
        ),
    ),
    Policy(
        "schema-auto-update-over-links",
        "Whether links may register new schemas even if producers may not (PIP-433).",
        bool,
        "links",
        namespace="is_allow_auto_update_schema_with_replicator",
        namespace_path="isAllowAutoUpdateSchemaWithReplicator",
        shown="as `schema-auto-update`",
        follows="schema-auto-update",
        own=True,
    ),
    Policy(
        "schema-validation",
        "Whether producers without a schema are refused on topics that have one.",
        bool,
        "the schema registry",
        **_fields(
            "schema_validation_enforced:schemaValidationEnforced", "schema_validation_enforced:schemaValidationEnforced"
        ),
        default=lambda _config: False,
        shown="false",
        removable=False,
        namespace_unset=False,
        topic_unset=False,
        namespace_words=RouteWords(
            get="Whether producers need a schema on topics that have one.",
            set="Set whether producers without a schema are refused on topics that have one, from their next "
            "connection on.",
            reply="false",
            errors=(400, 404, 412),
        ),
        no_default="set it for a namespace or a topic",
    ),
    Policy(
        "schema-replication",
        "Incompatible schemas from links: `block` stops the topic on the link, `foreign` stores them for reading only.",
        SchemaReplication,
        "links",
        **_fields("schema_replication:schemaReplication", "schema_replication:schemaReplication"),
        default=lambda _config: "block",
        shown="block",
        own=True,
        own_topic=True,
    ),
    Policy(
        "replicate-subscriptions",
        "Whether every durable subscription is replicated, whatever its client says (PIP-422).",
        bool,
        "replicated subscriptions",
        **_fields(
            "replicate_subscription_state:replicateSubscriptionState",
            "replicate_subscription_state:replicateSubscriptionState",
        ),
        default=lambda _config: False,
        shown="as clients ask",
        namespace_nullable=True,
        topic_nullable=True,
        namespace_words=RouteWords(
            get="Whether every durable subscription is replicated (PIP-422).",
            set="Replicate every durable subscription, whatever its client asks; false or null: as clients ask.",
            remove="Remove the setting: as clients ask.",
        ),
        topic_words=RouteWords(
            get="Whether every durable subscription of this topic is replicated.",
            set="Replicate every durable subscription of this topic; false overrides its namespace, null: as its "
            "namespace.",
            remove="Remove the setting: as its namespace.",
        ),
        no_default="set it for a namespace or a topic",
    ),
    Policy(
        "subscription-mode",
        "The mode of replicated subscriptions.",
        SubscriptionMode,
        "replicated subscriptions",
        namespace="subscription_mode",
        namespace_path="subscriptionMode",
        shown="`[subscriptions] mode`",
        own=True,
        removable=False,
        namespace_nullable=True,
        always_applied=True,
        namespace_words=RouteWords(
            get="The mode of replicated subscriptions in force: exact or snapshot.",
            set="Set the mode of replicated subscriptions: exact, snapshot, or null for the broker's default.",
        ),
        no_default="write [subscriptions] mode",
    ),
    Policy(
        "encryption-required",
        "Whether clients must encrypt messages; only the keys of producers and consumers decrypt them.",
        bool,
        "opening producers: MetadataError; publishing: MetadataError",
        namespace="encryption_required",
        namespace_path="encryptionRequired",
        default=lambda _config: False,
        shown="false",
        namespace_unset=False,
        named_in_refusals=True,
    ),
    Policy(
        "subscription-auth-mode",
        "`Prefix`: with authentication, a role uses only subscriptions whose name begins with the role's name.",
        SubscriptionAuthMode,
        "authorization: AuthorizationError; connected clients are closed",
        namespace="subscription_auth_mode",
        namespace_path="subscriptionAuthMode",
        default=lambda _config: "None",
        shown="None",
        namespace_unset="None",
        limits_only=True,
    ),
    Policy(
        "auto-topic-creation",
        "Whether topics are created when clients open them, and with how many partitions; links always create topics.",
        AutoTopicCreation,
        "opening topics: TopicNotFound",
        namespace="auto_topic_creation",
        namespace_path="autoTopicCreation",
        default=lambda config: AutoTopicCreation(config.auto_create_topics, "non-partitioned"),
        shown="`auto_create_topics`",
        check=checks.auto_topic_creation,
        check_new=checks.new_auto_topic_creation,
        no_default="write [broker] auto_create_topics",
    ),
    Policy(
        "auto-subscription-creation",
        "Whether durable subscriptions are created when consumers ask for them; readers always work.",
        AutoSubscriptionCreation,
        "subscribing: SubscriptionNotFound",
        **_fields(
            "auto_subscription_creation:autoSubscriptionCreation",
            "auto_subscription_creation_override:autoSubscriptionCreation",
        ),
        default=lambda _config: NEW_SUBSCRIPTIONS,
        shown="allow=on",
        named_in_refusals=True,
    ),
    Policy(
        "subscription-types",
        "Allowed types of subscriptions; default: all.",
        list[SubscriptionTypeName],
        "subscribing: NotAllowed",
        **_fields(
            "subscription_types_enabled:subscriptionTypesEnabled", "subscription_types_enabled:subscriptionTypesEnabled"
        ),
        default=lambda _config: [],
        shown="all",
        namespace_unset=[],
        named_in_refusals=True,
    ),
    _count(
        "max-topics",
        "max_topics_per_namespace:maxTopicsPerNamespace",
        "",
        "Topics of a namespace, counting each partition (0: no limit); links may exceed it.",
        "creation of topics",
        "none; `topics_max` in all",
        default=lambda _config: 0,
        namespace_unset=0,
        limits_only=True,
    ),
    _count(
        "max-producers",
        "max_producers_per_topic:maxProducersPerTopic",
        "max_producers_per_topic:maxProducers",
        "Producers of a topic (0: no limit).",
        "attaching a producer: ProducerBusy",
        "`producers_per_topic_max`, which stays the ceiling",
        default=lambda config: config.producers_per_topic_max,
        limits_only=True,
        named_in_refusals=True,
    ),
    _count(
        "max-consumers",
        "max_consumers_per_topic:maxConsumersPerTopic",
        "max_consumers_per_topic:maxConsumers",
        "Consumers of all subscriptions of a topic (0: no limit).",
        "attaching a consumer: ConsumerBusy",
        "`consumers_per_topic_max`, which stays the ceiling",
        default=lambda config: config.consumers_per_topic_max,
        limits_only=True,
        named_in_refusals=True,
    ),
    _count(
        "max-consumers-per-subscription",
        "max_consumers_per_subscription:maxConsumersPerSubscription",
        "max_consumers_per_subscription:maxConsumersPerSubscription",
        "Consumers of one subscription (0: no limit).",
        "attaching a consumer: ConsumerBusy",
        "none",
        default=lambda _config: 0,
        limits_only=True,
        named_in_refusals=True,
    ),
    _count(
        "max-subscriptions",
        "max_subscriptions_per_topic:maxSubscriptionsPerTopic",
        "max_subscriptions_per_topic:maxSubscriptionsPerTopic",
        "Durable subscriptions of a topic (0: no limit); replicated ones from other clusters may exceed it.",
        "creating a subscription: NotAllowed",
        "`subscriptions_per_topic_max`, which stays the ceiling",
        default=lambda config: config.subscriptions_per_topic_max,
        limits_only=True,
        named_in_refusals=True,
    ),
    _count(
        "max-message-size",
        "max_message_size:maxMessageSize",
        "max_message_size:maxMessageSize",
        "Bytes of a message or batch with its metadata (0: no limit); it does not apply to chunks.",
        "publishing: NotAllowed",
        "`message_bytes_max`, which stays the ceiling",
        default=lambda config: config.message_bytes_max,
        own=True,
        limits_only=True,
        named_in_refusals=True,
    ),
    _count(
        "max-unacked-per-consumer",
        "max_unacked_messages_per_consumer:maxUnackedMessagesPerConsumer",
        "max_unacked_messages_on_consumer:maxUnackedMessagesOnConsumer",
        "Messages that a Shared or Key_Shared consumer may hold without acknowledging (0: no limit).",
        "dispatch waits",
        "`unacked_messages_per_consumer_max`",
        default=lambda config: config.unacked_messages_per_consumer_max,
        limits_only=True,
    ),
    _count(
        "max-unacked-per-subscription",
        "max_unacked_messages_per_subscription:maxUnackedMessagesPerSubscription",
        "max_unacked_messages_on_subscription:maxUnackedMessagesOnSubscription",
        "The same for all consumers of a subscription together (0: no limit).",
        "dispatch waits",
        "`unacked_messages_per_subscription_max`",
        default=lambda config: config.unacked_messages_per_subscription_max,
        limits_only=True,
    ),
    Policy(
        "publish-rate",
        "Messages and bytes per second that may be published to a topic (0 or below: no limit).",
        PublishRate,
        "publishing waits: receipts come later, then the socket is not read",
        **_fields("publish_rate:publishRate", "publish_rate:publishRate"),
        check=checks.publish_rate,
        default=lambda _config: NO_PUBLISH_RATE,
        limits_only=True,
    ),
    Policy(
        "dispatch-rate",
        "Messages and bytes per period for all consumers of a topic (0 or below: no limit).",
        DispatchRate,
        "dispatch waits",
        **_fields("dispatch_rate:dispatchRate", "dispatch_rate:dispatchRate"),
        check=checks.dispatch_rate,
        default=lambda _config: NO_DISPATCH_RATE,
        limits_only=True,
    ),
    Policy(
        "subscription-dispatch-rate",
        "The same per subscription; a subscription may have a rate of its own.",
        DispatchRate,
        "dispatch waits",
        **_fields(
            "subscription_dispatch_rate:subscriptionDispatchRate", "subscription_dispatch_rate:subscriptionDispatchRate"
        ),
        check=checks.dispatch_rate,
        default=lambda _config: NO_DISPATCH_RATE,
        limits_only=True,
    ),
    Policy(
        "replicator-dispatch-rate",
        "Messages and bytes of a topic per link and period (0 or below: no limit).",
        DispatchRate,
        "links: the topic waits, others continue",
        **_fields("replicator_dispatch_rate:replicatorDispatchRate", "replicator_dispatch_rate:replicatorDispatchRate"),
        default=lambda _config: NO_DISPATCH_RATE,
        check=checks.dispatch_rate,
    ),
    Policy(
        "subscribe-rate",
        "How often one consumer may subscribe to a topic per period (0 or below: no limit).",
        SubscribeRate,
        "subscribing: TooManyRequests, which clients answer with a pause",
        **_fields("subscribe_rate:subscribeRate", "subscribe_rate:subscribeRate"),
        default=lambda _config: NO_SUBSCRIBE_RATE,
        check=checks.subscribe_rate,
    ),
    _count(
        "subscription-expiration-time",
        "subscription_expiration_time_minutes:subscriptionExpirationTime",
        "",
        "A durable subscription without consumers is deleted after this number of minutes (0: never), unless it "
        "is replicated.",
        "upkeep",
        "0",
        default=lambda _config: 0,
    ),
    Policy(
        "delayed-delivery",
        "Whether messages wait for their `deliver_at`, and the longest wait (ms; 0: no limit).",
        DelayedDelivery,
        "dispatch; publishing: NotAllowed",
        **_fields("delayed_delivery_policies:delayedDelivery", "delayed_delivery_policies:delayedDelivery"),
        default=lambda _config: NO_DELAY_POLICY,
        shown="on, any",
        check=checks.delayed_delivery,
        limits_only=True,
        named_in_refusals=True,
    ),
    Policy(
        "inactive-topics",
        "Whether unused topics are deleted, and after how many seconds. Topics on a link never are.",
        InactiveTopics,
        "upkeep",
        **_fields("inactive_topic_policies:inactiveTopicPolicies", "inactive_topic_policies:inactiveTopicPolicies"),
        default=lambda _config: NOT_INACTIVE,
        shown="never",
        check=checks.inactive_topics,
        limits_only=True,
    ),
    Policy(
        "compaction-threshold",
        "A topic is compacted when it has grown by this number of bytes since the last compaction (0: only on "
        "request).",
        Int64,
        "upkeep",
        **_fields("compaction_threshold:compactionThreshold", "compaction_threshold:compactionThreshold"),
        default=lambda _config: 0,
        shown="0",
        check=checks.count("compaction-threshold"),
        namespace_method="PUT",
        limits_only=True,
    ),
    Policy(
        "compaction-delete-retention",
        "Seconds after a compaction during which returning readers of compacted topics get deletions (-1: for ever).",
        Int64,
        "compaction",
        **_fields(
            "compaction_delete_retention_seconds:compactionDeleteRetention",
            "compaction_delete_retention_seconds:compactionDeleteRetention",
        ),
        default=lambda _config: COMPACTION_DELETE_RETENTION_S,
        shown="86,400",
        check=checks.seconds_or_for_ever("compaction-delete-retention"),
        own=True,
        own_topic=True,
        limits_only=True,
    ),
    Policy(
        "persistence",
        "Stored for Pulsar's tools, without effect: a message is stored once, in the broker's own log.",
        Persistence,
        "nothing",
        **_fields("persistence:persistence", "persistence:persistence"),
        default=lambda _config: STORED_ONCE,
        shown="1, 1, 1",
        check=checks.persistence,
        no_default="it has no effect",
    ),
)
"""All policies, in the order in which people are shown them."""

BY_NAME: Final = {policy.name: policy for policy in TABLE}


def check_policies(policies: Policies) -> None:
    """Refuse policies of a namespace of which one alone is impossible. Raises PreconditionFailed, BadRequest (properties)."""
    check_properties(policies.properties)
    for policy in TABLE:
        value = policy.of_namespace(policies)
        if value is not None:
            policy.check(value)
    checks.quotas(policies.backlog_quota_map)
    checks.retention_beside_quotas(policies.retention_policies, policies.backlog_quota_map)


def check_topic_policies(policies: TopicPolicies, namespace: Policies) -> None:
    """Refuse policies of a topic that are impossible, alone or with what its namespace adds. Raises PreconditionFailed."""
    for policy in TABLE:
        value = policy.of_topic(policies)
        if value is not None:
            policy.check(value)
    checks.quotas(policies.backlog_quota_map or {})
    checks.of_subscriptions(policies.subscription_policies or {})
    if policies.retention_policies is not None or policies.backlog_quota_map:
        retention = policies.retention_policies or namespace.retention_policies
        checks.retention_beside_quotas(retention, namespace.backlog_quota_map | (policies.backlog_quota_map or {}))
