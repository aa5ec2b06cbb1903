"""Properties that a client gives in SUBSCRIBE: kept with the subscription that it makes, and with no other."""

import pytest

from magnetar.broker.statistics import subscription_stats
from magnetar.metadata.policies.namespace import PROPERTIES_MAX, PROPERTY_CHARACTERS_MAX
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node


def subscribe(client: Client, name: str, properties: dict[str, str], **more: object) -> pb.BaseCommand:
    """SUBSCRIBE and its answer."""
    pairs = [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
    consumer = client.subscribe(name, 1, replicated=False, subscription_properties=pairs, **more)
    client.node.world.work()
    answer = client.answered(1000 + consumer)
    assert answer is not None
    return answer


def shown(node: Node, name: str) -> dict[str, str]:
    """In the statistics."""
    found: dict[str, str] = subscription_stats.stats(node.topic.subscriptions[name])["subscriptionProperties"]
    return found


def test_they_are_there_after_a_restart_too(node: Node) -> None:
    given = {"owner": "billing", "größe": "ß", "": ""}
    assert subscribe(node.client(), "s", given).type == 13
    assert shown(node, "s") == given
    node.restart()
    assert shown(node, "s") == given


def test_they_stay_when_the_cursor_moves(node: Node) -> None:
    client = node.client()
    assert subscribe(client, "s", {"a": "1"}).type == 13
    client.flow(1)
    node.publish(b"x", b"y")
    client.ack(1, client.take(1)[0])
    node.world.advance(5_000)
    client.seek(1, node.topic.log.first)
    node.world.advance(5_000)
    node.restart()
    assert shown(node, "s") == {"a": "1"}


def test_a_subscription_that_exists_keeps_its_own(node: Node) -> None:
    client = node.client()
    assert subscribe(client, "s", {"a": "1"}).type == 13
    assert subscribe(client, "s", {"a": "2", "b": "3"}).type == 13
    assert subscribe(client, "bare", {}).type == 13
    assert subscribe(client, "bare", {"a": "2"}).type == 13
    assert (shown(node, "s"), shown(node, "bare")) == ({"a": "1"}, {})
    node.restart()
    assert (shown(node, "s"), shown(node, "bare")) == ({"a": "1"}, {})


def test_of_two_that_come_at_once_the_first_decides(node: Node) -> None:
    node.hold_stores = True
    client, other = node.client(), node.client()
    first = client.subscribe("s", 1, replicated=False, subscription_properties=[pb.KeyValue(key="a", value="1")])
    second = other.subscribe("s", 1, replicated=False, subscription_properties=[pb.KeyValue(key="a", value="2")])
    node.hold_stores = False
    node.world.work()
    assert [client.answered(1000 + first).type, other.answered(1000 + second).type] == [13, 13]
    assert shown(node, "s") == {"a": "1"}


@pytest.mark.parametrize(
    ("properties", "taken"),
    [
        ({str(number): "" for number in range(PROPERTIES_MAX)}, True),
        ({str(number): "" for number in range(PROPERTIES_MAX + 1)}, False),
        ({"k": "v" * (PROPERTY_CHARACTERS_MAX - 1)}, True),
        ({"k": "v" * PROPERTY_CHARACTERS_MAX}, False),
    ],
    ids=["most", "too many", "longest", "too long"],
)
def test_the_limits_are_those_of_administration(node: Node, properties: dict[str, str], taken: bool) -> None:
    client = node.client()
    answer = subscribe(client, "s", properties)
    if taken:
        assert answer.type == 13
        assert shown(node, "s") == properties
        return
    assert (answer.type, answer.error.error, "\n" in answer.error.message) == (14, 22, False)
    assert "s" not in node.topic.subscriptions
    assert subscribe(client, "s", {"a": "1"}).type == 13


def test_those_that_rest_gives_are_kept_too(node: Node) -> None:
    node.control_call(
        lambda done: node.control.subscriptions.create(TOPIC, "made", None, False, {"owner": "billing"}, done)
    )
    node.world.advance(1_000)
    assert shown(node, "made") == {"owner": "billing"}
    node.restart()
    assert shown(node, "made") == {"owner": "billing"}
