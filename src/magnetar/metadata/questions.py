"""What the broker asks `Resources` all day: the policy that holds for a namespace or a topic."""

from collections.abc import Mapping
from typing import Final

from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.idempotency import IdempotencyPolicy
from magnetar.metadata.policies import (
    BacklogQuota,
    BacklogQuotaType,
    Policies,
    ReplicationStart,
    RetentionPolicies,
    SchemaStrategy,
    SubscriptionMode,
)
from magnetar.metadata.tables import Tables

NO_RETENTION: Final = RetentionPolicies()


class Questions(Tables):
    """Answers that cost a dictionary look-up."""

    def replication_clusters(self, namespace: NamespaceName) -> tuple[str, ...]:
        """Clusters that the namespace's messages go to, this one left out; empty when there is no such namespace."""
        policies = self._namespaces.get(namespace)
        names = policies.replication_clusters if policies else ()
        return tuple(name for name in names if name != self.cluster)

    def serves(self, namespace: NamespaceName) -> bool:
        """Whether topics of this namespace may exist here: a link's destination refuses others (`blocked: policy`)."""
        policies = self._namespaces.get(namespace)
        return policies is not None and self.cluster in (policies.allowed_clusters or policies.replication_clusters)

    def retention(self, namespace: NamespaceName) -> RetentionPolicies:
        """How long acknowledged messages stay; Pulsar's default, not at all, unless the namespace says otherwise."""
        policies = self._namespaces.get(namespace)
        return (policies.retention_policies if policies else None) or NO_RETENTION

    def message_ttl_s(self, namespace: NamespaceName) -> int:
        """After how many seconds messages expire; 0: never."""
        policies = self._namespaces.get(namespace)
        return (policies.message_ttl_in_seconds if policies else None) or 0

    def backlog_quotas(self, namespace: NamespaceName) -> Mapping[BacklogQuotaType, BacklogQuota]:
        """How far subscriptions may lag; empty: as far as they like."""
        policies = self._namespaces.get(namespace)
        return policies.backlog_quota_map if policies else {}

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
        policies = self._namespaces.get(topic.namespace_name, Policies())
        allowed = policies.is_allow_auto_update_schema
        return (
            policies.schema_compatibility_strategy,
            True if allowed is None else allowed,
            policies.schema_validation_enforced,
        )

    def idempotency(self, topic: TopicName) -> IdempotencyPolicy | None:
        """The idempotency keys of a topic, its own before its namespace's; None: it has none."""
        policy = self._topic_policies.of(topic).idempotency
        if policy is None:
            policies = self._namespaces.get(topic.namespace_name)
            policy = policies.idempotency if policies else None
        return policy if policy is not None and policy.enabled else None
