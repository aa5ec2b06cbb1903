"""Which changes of policies concern limits alone, so that nobody else looks at every topic of a namespace."""

from typing import Any

import pytest

from magnetar.broker.catalog.changes import LIMITS, concerns_limits_alone
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.namespace import BacklogQuota, ClusterData, Policies, RetentionPolicies, TenantInfo
from magnetar.metadata.policies.types import PublishRate
from magnetar.metadata.resources import Resources

ORDERS = NamespaceName("shop", "orders")


def world() -> Resources:
    made = Resources("here")
    for cluster in ("here", "there"):
        made.apply(made.create_cluster(cluster, ClusterData()))
    made.apply(made.create_tenant("shop", TenantInfo([], ["here", "there"])))
    made.apply(made.create_namespace(ORDERS, Policies()))
    return made


@pytest.mark.parametrize(
    ("fields", "alone"),
    [
        ({"publish_rate": PublishRate(5, 5)}, True),
        ({"max_producers_per_topic": 3, "message_ttl_in_seconds": 60}, True),
        ({"retention_policies": RetentionPolicies(5, 5)}, True),
        ({"backlog_quota_map": {"message_age": BacklogQuota(limit_time=5)}}, True),
        ({"replication_clusters": ["here", "there"]}, False),
        ({"allowed_clusters": ["here"]}, False),
        ({"deduplication_enabled": True}, False),
        ({"max_producers_per_topic": 3, "deduplication_enabled": True}, False),
        ({"replicate_subscription_state": True}, False),
        ({"subscription_mode": "snapshot"}, False),
        ({"schema_replication": "foreign"}, False),
        ({"replication_start": "latest"}, False),
    ],
)
def test_by_field(fields: dict[str, Any], alone: bool) -> None:
    it = world()
    assert concerns_limits_alone(it, it.change_policies(ORDERS, **fields)) is alone


def test_what_appears_goes_or_is_a_topics_concerns_everybody() -> None:
    it = world()
    topic = TopicName.parse("persistent://shop/orders/new")
    for change in (
        it.create_namespace(NamespaceName("shop", "bills"), Policies(max_producers_per_topic=1)),
        it.delete_namespace(ORDERS, []),
        it.change_topic_policies(topic, max_producers_per_topic=1),
        it.update_tenant("shop", TenantInfo(["boss"], ["here"])),
    ):
        assert not concerns_limits_alone(it, change)


def test_limits_are_fields_of_policies() -> None:
    assert set(Policies.__struct_fields__) >= LIMITS > {"publish_rate", "dispatch_rate", "inactive_topic_policies"}
    assert not any("cluster" in field or "schema" in field or "dedup" in field for field in LIMITS)
