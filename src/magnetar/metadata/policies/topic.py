"""Policies of single topics, which override those of their namespace: part of `Resources`, under `topicpolicies/<name>`.

The policies of a partitioned topic belong to its name without a number and apply to all its partitions, also later
ones.
"""

from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from magnetar.core.errors import StorageError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.change import Change
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.namespace import (
    BacklogQuota,
    BacklogQuotaType,
    Names,
    RetentionPolicies,
    SchemaReplication,
    SchemaStrategy,
)
from magnetar.metadata.policies.types import (
    AutoSubscriptionCreation,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Int32,
    Int64,
    Persistence,
    PublishRate,
    SubscribeRate,
    SubscriptionPolicies,
    SubscriptionTypeName,
)

TOPIC_POLICIES_PREFIX: Final = "topicpolicies/"

Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TopicPolicies(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The policies of one topic (names of Pulsar's TopicPolicies); None: the namespace's policy applies.

    Attributes:
        deduplication_enabled: publisher deduplication.
        deduplication_snapshot_interval_seconds: between two snapshots of its numbers; 0: by entries alone.
        replicate_subscription_state: true: every durable subscription is replicated.
        idempotency: ours: idempotency keys.
        subscription_policies: policies by subscription (`check_subscription_policies`).

    The other fields are those of the namespace (`metadata.policies.table` has a row for each), for this topic alone.
    """

    deduplication_enabled: bool | None = None
    deduplication_snapshot_interval_seconds: Seconds | None = None
    replicate_subscription_state: bool | None = None
    idempotency: IdempotencyPolicy | None = None
    replication_clusters: Names | None = None
    message_ttl_in_seconds: Int32 | None = None
    retention_policies: RetentionPolicies | None = None
    backlog_quota_map: dict[BacklogQuotaType, BacklogQuota] | None = None
    schema_compatibility_strategy: SchemaStrategy | None = None
    schema_validation_enforced: bool | None = None
    schema_replication: SchemaReplication | None = None
    auto_subscription_creation_override: AutoSubscriptionCreation | None = None
    subscription_types_enabled: list[SubscriptionTypeName] | None = None
    max_producers_per_topic: Int32 | None = None
    max_consumers_per_topic: Int32 | None = None
    max_consumers_per_subscription: Int32 | None = None
    max_subscriptions_per_topic: Int32 | None = None
    max_message_size: Int32 | None = None
    max_unacked_messages_on_consumer: Int32 | None = None
    max_unacked_messages_on_subscription: Int32 | None = None
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    replicator_dispatch_rate: DispatchRate | None = None
    subscribe_rate: SubscribeRate | None = None
    subscription_policies: dict[str, SubscriptionPolicies] | None = None
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopics | None = None
    compaction_threshold: Int64 | None = None
    compaction_delete_retention_seconds: Int64 | None = None
    persistence: Persistence | None = None


NO_POLICIES: Final = TopicPolicies()


def topic_policies_key(topic: TopicName) -> str:
    """The key of a topic's policies."""
    return f"{TOPIC_POLICIES_PREFIX}{topic.base}"


@lru_cache(maxsize=1 << 17)
def _base_text(topic: TopicName) -> str:
    """The name without a partition's number: asked for every topic of a namespace when its policies change."""
    return str(topic.base)


class TopicPolicyTable:
    """The topic policies of one cluster."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicPolicies] = {}

    def put(self, key: str, value: bytes) -> bool:
        """Take one stored value; whether it is one of these.

        Raises:
            StorageError: it is damaged.
        """
        if not key.startswith(TOPIC_POLICIES_PREFIX):
            return False
        try:
            self._topics[key.removeprefix(TOPIC_POLICIES_PREFIX)] = msgspec.json.decode(value, type=TopicPolicies)
        except msgspec.DecodeError as error:
            raise StorageError(f"the stored value of {key} is damaged: {error}") from error
        return True

    def delete(self, key: str) -> None:
        """Remove a deleted value; other keys are ignored."""
        if key.startswith(TOPIC_POLICIES_PREFIX):
            self._topics.pop(key.removeprefix(TOPIC_POLICIES_PREFIX), None)

    def of(self, topic: TopicName) -> TopicPolicies:
        """The policies of a topic, or of the partitioned topic that it belongs to."""
        return self._topics.get(_base_text(topic), NO_POLICIES) if self._topics else NO_POLICIES

    def change(self, topic: TopicName, policies: TopicPolicies) -> Change:
        """Set those of a topic; without any the entry goes."""
        key = topic_policies_key(topic)
        if policies == NO_POLICIES:
            return Change(deletes=(key,), topics=(str(topic.base),))
        return Change(puts={key: msgspec.json.encode(policies)}, topics=(str(topic.base),))

    def keys_of(self, namespace: NamespaceName) -> list[str]:
        """The keys of the policies of a namespace's topics, also of topics that are gone; sorted."""
        prefixes = (f"persistent://{namespace}/", f"non-persistent://{namespace}/")
        return sorted(TOPIC_POLICIES_PREFIX + name for name in self._topics if name.startswith(prefixes))
