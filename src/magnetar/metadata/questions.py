"""What the broker asks `Resources` all day: the policy that holds for a namespace or a topic."""

from collections.abc import Mapping
from typing import Final

from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.keys import SYSTEM
from magnetar.metadata.policies.defaults import filled
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.namespace import (
    BacklogQuota,
    BacklogQuotaType,
    Policies,
    ReplicationStart,
    RetentionPolicies,
    SchemaReplication,
    SchemaStrategy,
    SubscriptionMode,
)
from magnetar.metadata.policies.table import BY_NAME, COMPACTION_DELETE_RETENTION_S
from magnetar.metadata.tables import Tables

NO_RETENTION: Final = RetentionPolicies()
NO_NAMESPACE: Final = Policies()


class Questions(Tables):
    """Answers that cost a dictionary look-up.

    Args:
        cluster: as of `Tables`.

    Attributes:
        defaults: the broker's (`[policies]`), for what a namespace does not say; set before anybody asks.
    """

    def __init__(self, cluster: str = "") -> None:
        super().__init__(cluster)
        self.defaults = NO_NAMESPACE
        self._filled: dict[NamespaceName, tuple[Policies, Policies]] = {}

    def replication_clusters(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Clusters that the namespace's messages go to, this one left out; empty when there is no such namespace."""
        policies = self._namespaces.get(namespace)
        names = policies.replication_clusters if policies else ()
        return tuple(name for name in names if name != self.cluster)

    def serves(self, namespace: NamespaceName) -> bool:
        """Whether topics of this namespace may exist here: nobody creates others, neither a client nor a link (PIP-321)."""
        policies = self._namespaces.get(namespace)
        return policies is not None and self.cluster in (policies.allowed_clusters or policies.replication_clusters)

    def topic_replication_clusters(self, topic: TopicName) -> tuple[str, ...]:
        """Clusters that a topic's messages go to, this one left out: its own list before its namespace's."""
        own = self._topic_policies.of(topic).replication_clusters
        if own is None:
            return self.replication_clusters(topic.namespace_name)
        return tuple(name for name in own if name != self.cluster)

    def creates_topics(self, namespace: NamespaceName, otherwise: bool) -> bool:
        """Whether topics come into being when clients open them: what the namespace says, or the broker's setting."""
        own = self._namespaces.get(namespace, NO_NAMESPACE).auto_topic_creation
        return otherwise if own is None else own.allow

    def new_partitions(self, namespace: NamespaceName) -> int:
        """How many partitions a topic has that comes into being when a client asks for it; 0: it is not partitioned."""
        own = self._namespaces.get(namespace, NO_NAMESPACE).auto_topic_creation
        return (own.partitions or 0) if own is not None and own.allow and own.kind == "partitioned" else 0

    def own_policies(self, namespace: NamespaceName) -> Policies:
        """The policies that a namespace has itself; none if it does not exist."""
        return self._namespaces.get(namespace, NO_NAMESPACE)

    def shared_policies(self, namespace: NamespaceName) -> Policies:
        """What holds in a namespace: its policies, and the broker's defaults where it has none.

        The same object for as long as its policies are the same. A namespace that does not exist (any more) has no policies.
        """
        own = self._namespaces.get(namespace, NO_NAMESPACE)
        if self.defaults is NO_NAMESPACE or namespace == SYSTEM:
            return own
        known = self._filled.get(namespace)
        if known is None or known[0] is not own:
            if len(self._filled) > len(self._namespaces):
                self._filled.clear()  # of namespaces that were deleted
            known = self._filled[namespace] = (own, filled(own, self.defaults))
        return known[1]

    def retention(self, topic: TopicName) -> RetentionPolicies:
        """How long acknowledged messages stay; Pulsar's default, not at all, unless somebody says otherwise."""
        own = self._topic_policies.of(topic).retention_policies
        return own or self.shared_policies(topic.namespace_name).retention_policies or NO_RETENTION

    def message_ttl_s(self, topic: TopicName) -> int:
        """After how many seconds messages expire; 0: never."""
        own = self._topic_policies.of(topic).message_ttl_in_seconds
        return (self.shared_policies(topic.namespace_name).message_ttl_in_seconds or 0) if own is None else own

    def compaction_threshold(self, topic: TopicName) -> int:
        """After how many more bytes a topic is compacted; 0: never by itself."""
        own = self._topic_policies.of(topic).compaction_threshold
        return (self.shared_policies(topic.namespace_name).compaction_threshold or 0) if own is None else own

    def compaction_delete_retention_s(self, topic: TopicName) -> int:
        """For how many seconds deletions stay in the compacted topic; -1: for ever."""
        own = self._topic_policies.of(topic).compaction_delete_retention_seconds
        if own is None:
            own = self.shared_policies(topic.namespace_name).compaction_delete_retention_seconds
        return COMPACTION_DELETE_RETENTION_S if own is None else own

    def policy_source(self, policy: str, topic: TopicName) -> str:
        """The name of a policy, and whether the topic, its namespace or the broker sets what holds for a topic: for refusals."""
        own = self._topic_policies.of(topic)
        return BY_NAME[policy].source(own, self.own_policies(topic.namespace_name))

    def backlog_quotas(self, topic: TopicName) -> Mapping[BacklogQuotaType, BacklogQuota]:
        """How far subscriptions may lag, by kind: the topic's own before its namespace's; empty: as far as they like."""
        own = self._topic_policies.of(topic).backlog_quota_map
        shared = self.shared_policies(topic.namespace_name).backlog_quota_map
        return shared | own if own else shared

    def subscription_mode(self, namespace: NamespaceName) -> SubscriptionMode | None:
        """How replicated subscriptions follow; None: the broker's default."""
        policies = self._namespaces.get(namespace)
        return policies.subscription_mode if policies else None

    def replicate_subscription_state(self, topic: TopicName) -> bool | None:
        """Whether every durable subscription of a topic is replicated; None: nobody said so."""
        own = self._topic_policies.of(topic).replicate_subscription_state
        if own is not None:
            return own
        policies = self._namespaces.get(topic.namespace_name)
        return policies.replicate_subscription_state if policies else None

    def replication_start(self, namespace: NamespaceName) -> ReplicationStart:
        """Where a new link begins."""
        policies = self._namespaces.get(namespace)
        return policies.replication_start if policies else "earliest"

    def deduplication(self, topic: TopicName) -> tuple[bool | None, int | None]:
        """Whether to deduplicate what is published to a topic, and the seconds between snapshots; None: the broker's default."""
        of_topic, of_namespace = self._topic_policies.of(topic), self._namespaces.get(topic.namespace_name, Policies())
        enabled, every = of_topic.deduplication_enabled, of_topic.deduplication_snapshot_interval_seconds
        return (
            of_namespace.deduplication_enabled if enabled is None else enabled,
            of_namespace.deduplication_snapshot_interval_seconds if every is None else every,
        )

    def schema_rules(self, topic: TopicName) -> tuple[SchemaStrategy, bool, bool]:
        """The strategy of a topic's schemas (UNDEFINED: nobody said), whether producers may bring new ones, and must have one."""
        own, policies = self._topic_policies.of(topic), self.shared_policies(topic.namespace_name)
        allowed, enforced = policies.is_allow_auto_update_schema, own.schema_validation_enforced
        return (
            own.schema_compatibility_strategy or policies.schema_compatibility_strategy,
            True if allowed is None else allowed,
            policies.schema_validation_enforced if enforced is None else enforced,
        )

    def schema_update_over_links(self, topic: TopicName) -> bool:
        """Whether links may bring new schemas of a topic: as its namespace says, else as producers may (PIP-433)."""
        policies = self.shared_policies(topic.namespace_name)
        over_links, by_producers = (
            policies.is_allow_auto_update_schema_with_replicator,
            policies.is_allow_auto_update_schema,
        )
        return over_links if over_links is not None else by_producers is not False

    def schema_replication(self, topic: TopicName) -> SchemaReplication:
        """What becomes of schemas that links bring."""
        own = self._topic_policies.of(topic).schema_replication
        return own or self.shared_policies(topic.namespace_name).schema_replication or "block"

    def idempotency(self, topic: TopicName) -> IdempotencyPolicy | None:
        """The idempotency keys of a topic, its own before its namespace's; None: it has none."""
        policy = self._topic_policies.of(topic).idempotency
        if policy is None:
            policies = self._namespaces.get(topic.namespace_name)
            policy = policies.idempotency if policies else None
        return policy if policy is not None and policy.enabled else None
