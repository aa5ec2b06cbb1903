"""Policies that say how often and how fast: which topics they hold for, and what single subscriptions and links have of them."""

from typing import Any, Final

import pytest

from magnetar.broker.statistics import subscription_stats
from magnetar.broker.subscriptions.subscribe_rate import CONSUMERS_MAX, Subscribing
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.rates import Rate
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.policies.types import DispatchRate, PublishRate, SubscribeRate, SubscriptionPolicies
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE: Final = NamespaceName("public", "default")
NAME: Final = TopicName.parse(TOPIC)
SECOND: Final = 1_000


def policies(node: Node, **fields: Any) -> None:
    node.apply(node.broker.resources.change_policies(NAMESPACE, **fields))


def own(node: Node, **fields: Any) -> None:
    node.apply(node.broker.resources.change_topic_policies(NAME, **fields))


# -------------------------------------------------------------------------------------------- when a topic comes later


def rates(node: Node) -> dict[str, Any]:
    """Every rate that a topic keeps a machine for; None where there is none."""
    topic = node.topic
    throttle, subscription = topic.publish_throttle, topic.subscriptions.get("s")
    return {
        "publish": throttle.rate.key if throttle is not None and throttle.rate is not None else None,
        "dispatch": topic.dispatch_rate.key if topic.dispatch_rate is not None else None,
        "subscribe": topic.subscribing.rate if topic.subscribing is not None else None,
        "link": [source.rate_of(TOPIC) and source.rate_of(TOPIC).key for source in node.broker.links.sources.values()],
        "subscription": subscription.own_rate.key if subscription is not None and subscription.own_rate else None,
    }


def test_rates_hold_for_topics_that_are_made_after_the_policy_and_after_a_restart() -> None:
    """They held for topics that were there when the policy was set, and for no others."""
    world = World("ab")
    node = world["a"]
    policies(
        node,
        publish_rate=PublishRate(5, -1),
        dispatch_rate=DispatchRate(6, -1),
        subscription_dispatch_rate=DispatchRate(7, -1),
        replicator_dispatch_rate=DispatchRate(8, -1),
        subscribe_rate=SubscribeRate(9, 10),
    )
    node.create()
    world.settle()
    node.client().subscribe("s", replicated=False)
    world.settle()
    expected = {
        "publish": (5, 0, SECOND, False),
        "dispatch": (6, 0, SECOND, False),
        "subscribe": SubscribeRate(9, 10),
        "link": [(8, 0, SECOND, False)],
        "subscription": (7, 0, SECOND, False),
    }
    assert rates(node) == expected
    node.restart()
    world.settle()
    assert rates(node) == expected
    policies(
        node,
        publish_rate=None,
        dispatch_rate=None,
        subscription_dispatch_rate=None,
        replicator_dispatch_rate=None,
        subscribe_rate=None,
    )
    assert rates(node) == {"publish": None, "dispatch": None, "subscribe": None, "link": [None], "subscription": None}


# ------------------------------------------------------------------------------------------------------ relative rates


def test_a_relative_rate_grows_by_what_was_published_in_the_last_period() -> None:
    counted = [0, 0]
    rate = Rate(10, 0, SECOND, 0, lambda: (counted[0], counted[1]))
    assert rate.messages(0) == 10
    rate.take(10, 0)
    counted[:] = [50, 5_000]
    assert rate.messages(SECOND) == 10  # of the first period, in which nothing had been published before
    rate.take(10, 0)
    assert rate.messages(2 * SECOND) == 60
    rate.take(60, 0)
    assert rate.messages(3 * SECOND) == 10  # nothing was published since


def test_a_consumer_keeps_up_with_its_publishers_where_the_rate_is_relative() -> None:
    world = World("a")
    node = world["a"]
    node.create()
    policies(node, dispatch_rate=DispatchRate(5, -1, 1, relative=True))
    client = node.client()
    consumer = client.subscribe("s", 1, replicated=False)
    world.settle()
    client.flow(consumer, 1_000)
    for _ in range(5):
        node.publish(*[b"m"] * 20)
        world.advance(SECOND)
    got = len(client.take(consumer))
    assert got > 60, "the publish rate is not added: 5 a second are at most 30"
    assert got <= 100


def test_a_rate_is_no_other_because_it_is_relative() -> None:
    """An absolute rate of the same numbers is another machine."""
    world = World("a")
    node = world["a"]
    node.create()
    policies(node, dispatch_rate=DispatchRate(5, -1))
    absolute = node.topic.dispatch_rate
    policies(node, dispatch_rate=DispatchRate(5, -1, 1, relative=True))
    assert node.topic.dispatch_rate is not absolute
    relative = node.topic.dispatch_rate
    policies(node, dispatch_rate=DispatchRate(5, -1, 1, relative=True), publish_rate=PublishRate(9, -1))
    assert node.topic.dispatch_rate is relative


# ------------------------------------------------------------------------------- of one subscription, of a whole broker


def received(client: Client, consumer: int) -> int:
    return len(client.take(consumer))


def test_a_subscription_has_a_rate_of_its_own_instead_of_the_topics() -> None:
    world = World("a")
    node = world["a"]
    node.create()
    policies(node, subscription_dispatch_rate=DispatchRate(3, -1, 3600))
    own(node, subscription_policies={"fast": SubscriptionPolicies(DispatchRate(8, -1, 3600))})
    client = node.client()
    consumers = {name: client.subscribe(name, 1, replicated=False) for name in ("fast", "slow")}
    world.settle()
    for consumer in consumers.values():
        client.flow(consumer, 1_000)
    node.publish(*[b"m"] * 20)
    world.work()
    assert {name: received(client, consumer) for name, consumer in consumers.items()} == {"fast": 8, "slow": 3}
    own(node, subscription_policies=None)
    assert node.topic.subscriptions["fast"].own_rate is not None
    assert node.topic.subscriptions["fast"].own_rate.key == (3, 0, 3_600_000, False)


def test_all_consumers_of_a_broker_share_its_rate() -> None:
    world = World("a", limits={"dispatch_messages_per_s": 10})
    node = world["a"]
    other = "persistent://public/default/other"
    for topic in (TOPIC, other):
        node.create(topic)
    client = node.client()
    consumers = [client.subscribe("s", 1, topic=topic, replicated=False) for topic in (TOPIC, other)]
    world.settle()
    for consumer in consumers:
        client.flow(consumer, 1_000)
    for topic in (TOPIC, other):
        node.publish(*[b"m"] * 30, topic=topic)
    world.work()
    assert sum(received(client, each) for each in consumers) == 10
    world.advance(2 * SECOND)
    later = [received(client, each) for each in consumers]
    assert 15 <= sum(later) <= 30
    assert min(later) > 0, "one topic takes it all"
    stats = subscription_stats.stats(node.topic.subscriptions["s"])
    assert stats["dispatchThrottledMsgEventsByBrokerLimit"] > 0


# ------------------------------------------------------------------------------------------- how often one may subscribe


def outcome(client: Client, number: int) -> str:
    for command in client.answers:
        if command.type == 13 and command.success.request_id == number:
            return "in"
        if command.type == 14 and command.error.request_id == number:
            return ErrorCode(command.error.error).name
    return ""


def test_a_consumer_that_comes_too_often_is_to_come_later() -> None:
    world = World("a")
    node = world["a"]
    node.create()
    policies(node, subscribe_rate=SubscribeRate(2, 10))
    client = node.client()

    def subscribe(request: int, name: str) -> str:
        command = pb.CommandSubscribe(
            topic=TOPIC,
            subscription="s",
            subType=1,
            consumer_id=1,
            request_id=request,
            durable=True,
            consumer_name=name,
        )
        client.send(pb.BaseCommand(type=4, subscribe=command))
        world.settle()
        found = outcome(client, request)
        if found == "in":
            client.send(
                pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=1, request_id=request + 500))
            )
        return found

    assert [subscribe(number, "x") for number in range(1, 5)] == ["in", "in", "TOO_MANY_REQUESTS", "TOO_MANY_REQUESTS"]
    assert subscribe(5, "y") == "in", "another consumer has a bucket of its own"
    world.advance(5 * SECOND)
    assert [subscribe(6, "x"), subscribe(7, "x")] == ["in", "TOO_MANY_REQUESTS"]


def test_remembered_consumers_have_a_ceiling() -> None:
    machine = Subscribing(SubscribeRate(1, 3600))
    for number in range(CONSUMERS_MAX + 10):
        machine.check(TOPIC, ("host", str(number), 1), 0)
    assert len(machine) == CONSUMERS_MAX
    with pytest.raises(BrokerError, match="subscribe-rate"):
        machine.check(TOPIC, ("host", str(CONSUMERS_MAX), 1), 0)


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "fields",
    [
        {"subscribe_rate": SubscribeRate(-2, 10)},
        {"subscribe_rate": SubscribeRate(1, 0)},
        {"replicator_dispatch_rate": DispatchRate(-2, -1)},
        {"replicator_dispatch_rate": DispatchRate(1, -1, 0)},
        {"subscription_policies": {"s": SubscriptionPolicies(DispatchRate(-2, -1))}},
        {"subscription_policies": {"a/\x00": SubscriptionPolicies(DispatchRate(1, -1))}},
        {"subscription_policies": {f"s{number}": SubscriptionPolicies(DispatchRate(1, -1)) for number in range(1_001)}},
    ],
)
def test_values_that_are_not_possible(fields: dict[str, Any]) -> None:
    node = World("a")["a"]
    node.create()
    with pytest.raises(PreconditionFailed):
        node.broker.resources.change_topic_policies(NAME, **fields)


def test_subscriptions_of_a_topic_take_turns_at_its_rate() -> None:
    """The one that had waited first had everything, for ever."""
    world = World("a")
    node = world["a"]
    node.create()
    policies(node, dispatch_rate=DispatchRate(10, -1))
    client = node.client()
    consumers = [client.subscribe(name, 1, replicated=False) for name in "xyz"]
    world.settle()
    for consumer in consumers:
        client.flow(consumer, 1_000)
    node.publish(*[b"m"] * 60)
    world.advance(6 * SECOND)
    got = [received(client, each) for each in consumers]
    assert sum(got) >= 60
    assert min(got[1:]) >= 15, got
