"""A refusal that is due to a policy says whose it is: the topic's, its namespace's or the broker's."""

from typing import Any

import pytest
from msgspec.structs import replace

from magnetar.broker.topics.limits import REFUSING, limits_of
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.settings import BrokerConfig
from magnetar.metadata.policies.defaults import defaults_of, filled
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.table import BY_NAME
from magnetar.metadata.policies.topic import NO_POLICIES
from magnetar.metadata.policies.types import AutoSubscriptionCreation, DelayedDelivery
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Node, World

NAMESPACE = NamespaceName("public", "default")
VALUES: dict[str, Any] = {
    "auto-subscription-creation": AutoSubscriptionCreation(allow=False),
    "delayed-delivery": DelayedDelivery(delay_ms_max=5),
    "encryption-required": True,
    "subscription-types": ["Shared"],
}


@pytest.mark.parametrize("name", [policy.name for policy in REFUSING])
def test_the_most_specific_level_is_named(name: str) -> None:
    policy, config = BY_NAME[name], BrokerConfig()
    value = VALUES.get(name, 1)
    defaults = replace(Policies(), **{policy.namespace: value})
    shared = filled(Policies(), defaults)
    assert (
        limits_of(NO_POLICIES, shared, config, Policies()).sources[name]
        == f"policy {name} of the broker (clusters.toml)"
    )
    assert limits_of(NO_POLICIES, defaults, config, defaults).sources[name] == f"policy {name} of its namespace"
    if policy.topic:
        own = replace(NO_POLICIES, **{policy.topic: value})
        assert limits_of(own, defaults, config, defaults).sources[name] == f"policy {name} of the topic"


@pytest.mark.parametrize("name", ["max-producers", "max-consumers", "max-subscriptions"])
def test_a_setting_of_the_broker_is_named_where_it_is_the_lower_one(name: str) -> None:
    setting = f"{name.removeprefix('max-')}_per_topic_max"
    config = BrokerConfig(**{setting: 5})
    shared = replace(Policies(), **{BY_NAME[name].namespace: 6})
    assert limits_of(NO_POLICIES, shared, config, shared).sources[name] == f"setting {setting} of the broker"
    lower = replace(Policies(), **{BY_NAME[name].namespace: 5})
    assert limits_of(NO_POLICIES, lower, config, lower).sources[name] == f"policy {name} of its namespace"


def refusal(node: Node, *, producer: bool = False, **more: Any) -> str:
    client = node.client()
    if producer:
        client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)))
        request = 1
    else:
        request = 1000 + client.subscribe(**{"name": "s", "kind": 1, "replicated": False, **more})
    node.world.settle()
    answer = client.answered(request)
    assert answer is not None
    return answer.error.message if answer.type == 14 else ""


@pytest.mark.parametrize("level", ["the broker (clusters.toml)", "its namespace", "the topic"])
def test_whom_clients_are_told(level: str) -> None:
    node = World("a")["a"]
    node.create()
    values = {
        "max-producers": 1,
        "max-consumers": 2,
        "max-consumers-per-subscription": 1,
        "max-subscriptions": 1,
        "subscription-types": ["Shared"],
    }
    resources: Any = node.broker.resources
    if level.startswith("the broker"):
        resources.defaults = defaults_of(values)
        node.apply(resources.change_policies(NAMESPACE, message_ttl_in_seconds=0))
    elif level == "its namespace":
        node.apply(resources.change_policies(NAMESPACE, **{BY_NAME[name].namespace: values[name] for name in values}))
    else:
        own = {BY_NAME[name].topic: values[name] for name in values}
        node.apply(resources.change_topic_policies(TopicName.parse(TOPIC), **own))
    assert not refusal(node, producer=True)
    assert f"policy max-producers of {level}" in refusal(node, producer=True)
    assert f"policy subscription-types of {level}" in refusal(node, kind=0)
    assert not refusal(node)
    assert f"policy max-consumers-per-subscription of {level}" in refusal(node)
    assert f"policy max-subscriptions of {level}" in refusal(node, name="other")
    assert not refusal(node, name="reader", durable=False)
    assert f"policy max-consumers of {level}" in refusal(node, name="reader2", durable=False)
