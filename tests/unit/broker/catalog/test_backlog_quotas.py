"""Backlog quotas: when producers are stopped, that they may come again once the slowest has caught up, and whose quota it is."""

from typing import Any

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.defaults import defaults_of
from magnetar.metadata.policies.namespace import BacklogQuota
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE = NamespaceName("public", "default")
SIZE, AGE = "destination_storage", "message_age"


@pytest.fixture
def node() -> Node:
    """A subscription that is some 5 kB behind."""
    world = World("a")
    world["a"].create()
    client = world["a"].client()
    client.subscribe("slow", replicated=False)
    world.settle()
    world["a"].publish(*[b"x" * 1000] * 5)
    return world["a"]


def opened(client: Client, number: int = 1) -> tuple[ErrorCode, str] | None:
    """How opening a producer ends; None: it is open."""
    client.send(
        pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=100 + number))
    )
    client.node.world.settle()
    answer = client.answered(100 + number)
    assert answer is not None
    return (ErrorCode(answer.error.error), answer.error.message) if answer.type == 14 else None


def limit(node: Node, quotas: dict[str, BacklogQuota], *, topic: bool = False) -> None:
    resources: Any = node.broker.resources
    if topic:
        node.apply(resources.change_topic_policies(TopicName.parse(TOPIC), backlog_quota_map=quotas))
    else:
        node.apply(resources.change_policies(NAMESPACE, backlog_quota_map=quotas))


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
@pytest.mark.parametrize("kind", [SIZE, AGE])
@pytest.mark.parametrize("way", ["acknowledged", "skipped", "sought", "unsubscribed"])
def test_a_stop_ends_when_the_slowest_has_caught_up(node: Node, policy: Any, kind: str, way: str) -> None:
    node.world.advance(5_000)
    limit(node, {kind: BacklogQuota(limit_size=1000, limit_time=3, policy=policy)})
    client = node.client()
    assert opened(client, 1) is not None
    consumer = client.subscribe("other", replicated=False)  # it is behind, too
    node.world.settle()
    node.run(node.topic.subscriptions["other"].skip_all)
    assert opened(client, 2) is not None, "not the slowest"
    slow = node.topic.subscriptions["slow"]
    match way:
        case "acknowledged":
            owner = next(iter(node.clients.values()))
            owner.flow(1)
            node.world.settle()
            owner.ack(1, *owner.take(1))
        case "skipped":
            node.run(slow.skip_all)
        case "sought":
            node.run(slow.seek_to, node.topic.log.last)
            node.run(slow.skip_all)
        case _:
            node.run(node.broker.catalog.delete_subscription, slow, lambda _error: None)
    node.world.settle()
    assert opened(client, 3) is None, "no time has passed"
    assert consumer


def test_a_stop_holds_while_the_slowest_is_still_over(node: Node) -> None:
    limit(node, {SIZE: BacklogQuota(limit_size=1500, policy="producer_exception")})
    client = node.client()
    node.run(node.topic.subscriptions["slow"].skip, 3)
    assert opened(client, 1) is not None
    node.run(node.topic.subscriptions["slow"].skip, 1)
    assert opened(client, 2) is None


@pytest.mark.parametrize(("kind", "name"), [(SIZE, "backlog-quota"), (AGE, "backlog-quota-age")])
def test_a_refusal_says_whose_quota_it_is(node: Node, kind: str, name: str) -> None:
    node.world.advance(5_000)
    strict, lax = BacklogQuota(limit_size=1000, limit_time=3), BacklogQuota(limit_size=1 << 30, limit_time=1 << 20)
    client = node.client()
    node.broker.resources.defaults = defaults_of({name: {"limit_size": 1000, "limit_time": 3}})
    limit(node, {})
    refusals = [opened(client, 1)]
    limit(node, {kind: strict})
    refusals.append(opened(client, 2))
    limit(node, {kind: lax})
    assert opened(client, 3) is None
    limit(node, {kind: strict}, topic=True)
    refusals.append(opened(client, 4))
    texts = [refusal[1] if refusal is not None else "" for refusal in refusals]
    for text, whose in zip(texts, ("the broker", "its namespace", "the topic"), strict=True):
        assert f"policy {name} of {whose}" in text
        assert TOPIC in text
    # A quota of the topic's own of the other kind is not what stops it.
    other = AGE if kind == SIZE else SIZE
    limit(node, {other: lax}, topic=True)
    limit(node, {kind: strict})
    refusal = opened(client, 5)
    assert refusal is not None
    assert f"policy {name} of its namespace" in refusal[1]
