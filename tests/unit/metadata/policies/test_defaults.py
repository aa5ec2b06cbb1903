"""`[policies]` of clusters.toml: what may stand there, and what it fills in."""

import re
from typing import Any

import pytest

from magnetar.core.errors import ConfigError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.keys import SYSTEM
from magnetar.metadata.policies.defaults import POSSIBLE, defaults_of, filled
from magnetar.metadata.policies.namespace import BacklogQuota, ClusterData, Policies, RetentionPolicies, TenantInfo
from magnetar.metadata.policies.table import BY_NAME
from magnetar.metadata.resources import Resources

ORDERS = NamespaceName("shop", "orders")
TOPIC = TopicName.parse("persistent://shop/orders/new")


def world(**table: Any) -> Resources:
    made = Resources("here", defaults_of({name.replace("_", "-"): value for name, value in table.items()}))
    made.apply(made.create_cluster("here", ClusterData()))
    for tenant, namespace in (("shop", ORDERS), ("pulsar", SYSTEM)):
        made.apply(made.create_tenant(tenant, TenantInfo([], ["here"])))
        made.apply(made.create_namespace(namespace, Policies()))
    return made


def test_the_most_specific_wins() -> None:
    it = world(ttl=60, retention={"time_minutes": 5, "size_mb": -1}, backlog_quota={"limitSize": 1000})
    assert it.message_ttl_s(TOPIC) == 60 and it.retention(TOPIC) == RetentionPolicies(5, -1)
    it.apply(it.change_policies(ORDERS, message_ttl_in_seconds=0))
    assert it.message_ttl_s(TOPIC) == 0, "0 is said, and means never"
    it.apply(it.change_topic_policies(TOPIC, message_ttl_in_seconds=7))
    assert it.message_ttl_s(TOPIC) == 7 and it.retention(TOPIC).time_minutes == 5
    it.apply(it.change_topic_policies(TOPIC, message_ttl_in_seconds=None))
    it.apply(it.change_policies(ORDERS, message_ttl_in_seconds=None))
    assert it.message_ttl_s(TOPIC) == 60


def test_quotas_are_filled_in_kind_by_kind() -> None:
    it = world(backlog_quota={"limit_size": 1000}, backlog_quota_age={"limit_time": 60})
    own = BacklogQuota(limit_size=5000)
    it.apply(it.change_policies(ORDERS, backlog_quota_map={"destination_storage": own}))
    assert it.backlog_quotas(TOPIC) == {"destination_storage": own, "message_age": BacklogQuota(limit_time=60)}


def test_what_is_stored_and_shown_has_no_defaults_in_it() -> None:
    it = world(ttl=60)
    assert it.policies(ORDERS).message_ttl_in_seconds is None
    assert it.change_policies(ORDERS, max_producers_per_topic=3).puts["namespaces/shop/orders"].find(b"ttl") == -1


def test_the_same_policies_are_the_same_object() -> None:
    it = world(ttl=60)
    assert it.shared_policies(ORDERS) is it.shared_policies(ORDERS)
    before = it.shared_policies(ORDERS)
    it.apply(it.change_policies(ORDERS, max_producers_per_topic=3))
    assert it.shared_policies(ORDERS) is not before


def test_the_brokers_own_namespace_is_left_alone() -> None:
    assert world(ttl=60).message_ttl_s(TopicName.parse("persistent://pulsar/system/metadata-sync")) == 0


def test_every_policy_has_a_default_here_or_a_reason_why_not() -> None:
    assert all(policy.no_default for policy in BY_NAME.values() if policy not in POSSIBLE)
    assert all(policy.namespace for policy in POSSIBLE), "a default stands where a namespace's value would"
    assert filled(Policies(), Policies()) == Policies()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"tll": 60}, "policies.tll: there is no such policy; there are retention, ttl"),
        ({"ttl": -1}, "policies.ttl: "),
        ({"ttl": "soon"}, "policies.ttl: Expected `int`"),
        ({"ttl": 2**40}, "policies.ttl: "),
        ({"deduplication": True}, r"policies.deduplication: it has no default here; write \[deduplication\] enabled"),
        ({"retention": {"minutes": 5}}, "policies.retention.minutes: there are time_minutes, size_mb"),
        ({"retention": {"time_minutes": 5, "size_mb": 0}}, "policies.retention: "),
        ({"publish-rate": {"messages": -7}}, "policies.publish-rate: publishThrottlingRateInMsg is -1 or 0"),
        (
            {"retention": {"time_minutes": 1, "size_mb": 1}, "backlog-quota": {"limit_size": 10**9}},
            "policies: ",
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_key(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"^{why}") as caught:
        defaults_of(table)
    assert not re.search(r"\n", str(caught.value))
