"""SUBSCRIBE: where a consumer begins, and what is left of one that is refused."""

from typing import Any, Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import NamespaceName
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE: Final = NamespaceName("public", "default")
PASSING: Final = "non-persistent://public/default/t"
STRING: Final = pb.Schema(name="s", schema_data=b"", type=1)


@pytest.fixture
def node() -> Node:
    node = World("a")["a"]
    node.create()
    return node


def at(position: Position) -> pb.MessageIdData:
    """A message id as it travels."""
    return pb.MessageIdData(ledgerId=position.ledger % (1 << 64), entryId=position.entry % (1 << 64))


def subscribe(client: Client, number: int = 1, **more: Any) -> None:
    """Ask for a consumer, and do not wait."""
    command: dict[str, Any] = {"topic": TOPIC, "subscription": "s", "subType": 0, "durable": False, **more}
    asked = pb.CommandSubscribe(consumer_id=number, request_id=1000 + number, **command)
    client.send(pb.BaseCommand(type=4, subscribe=asked))


def outcome(client: Client, number: int = 1) -> str:
    """How the newest request for a consumer ended: "in", or the error."""
    found = ""
    for command in client.answers:
        if command.type == 13 and command.success.request_id == 1000 + number:
            found = "in"
        elif command.type == 14 and command.error.request_id == 1000 + number:
            found = ErrorCode(command.error.error).name
    return found


def receive(client: Client, number: int = 1) -> list[bytes]:
    client.flow(number)
    client.node.world.work()
    return [message.data for message in client.take(number)]


# ------------------------------------------------------------------------------------------------------ where it begins


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, []),
        ({"initialPosition": 0}, []),
        ({"initialPosition": 1}, [b"1", b"2"]),
        ({"initialPosition": 0, "start_message_id": at(EARLIEST)}, [b"1", b"2"]),
    ],
)
def test_a_consumer_that_is_not_durable_begins_where_it_says(
    node: Node, more: dict[str, Any], expected: list[bytes]
) -> None:
    """By a message, as readers do, or else by the initial position: Java's and Go's non-durable consumers name no message."""
    node.publish(b"1", b"2")
    client = node.client()
    subscribe(client, **more)
    assert receive(client) == expected
    node.publish(b"3")
    assert receive(client) == [b"3"]


# ------------------------------------------------------------------------------------------------------ who is refused


@pytest.mark.parametrize("policy", ["max_consumers_per_subscription", "max_consumers_per_topic"])
@pytest.mark.parametrize("more", [{}, {"schema": STRING}, {"durable": False}])
def test_limits_hold_for_those_who_come_at_once(node: Node, policy: str, more: dict[str, Any]) -> None:
    """The first one waits for its subscription, or its schema, to be stored; others come meanwhile."""
    node.apply(node.broker.resources.change_policies(NAMESPACE, **{policy: 2}))
    client = node.client()
    node.hold_stores = True
    for number in range(1, 6):
        subscribe(client, number, subType=1, **{"durable": True, **more})
    node.hold_stores = False
    node.world.work()
    assert sorted(outcome(client, number) for number in range(1, 6)) == ["CONSUMER_BUSY"] * 3 + ["in"] * 2
    assert len(node.topic.subscriptions["s"].consumers) == 2


def test_an_exclusive_consumer_is_not_one_too_many(node: Node) -> None:
    """Its subscription has one at most: whether the one that is there lives is asked before a newcomer is refused."""
    node.apply(node.broker.resources.change_policies(NAMESPACE, max_consumers_per_subscription=1))
    gone, newcomer = node.client(), node.client()
    subscribe(gone)
    subscribe(newcomer)
    assert outcome(newcomer) == ""
    node.world.advance(5_000)  # nobody answers the ping
    assert outcome(newcomer) == "in"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", [1, 3])
def test_who_may_not_read_compacted_leaves_no_subscription(node: Node, kind: int, durable: bool) -> None:
    client = node.client()
    subscribe(client, subType=kind, read_compacted=True, durable=durable)
    node.world.work()
    assert outcome(client) == "NOT_ALLOWED"
    assert not node.topic.subscriptions


def test_a_refused_consumer_leaves_no_subscription_that_ends_with_it(node: Node) -> None:
    ranges = pb.KeySharedMeta(keySharedMode=1, hashRanges=[pb.IntRange(start=9, end=3)])
    client = node.client()
    subscribe(client, subType=3, keySharedMeta=ranges)
    assert outcome(client) == "CONSUMER_ASSIGN"
    assert not node.topic.subscriptions
    subscribe(client, durable=True)
    node.world.work()
    assert outcome(client) == "in"


# ----------------------------------------------------------------------------------------------- topics that store nothing


def test_a_topic_that_nobody_has_is_not_made_by_who_does_not_want_that(node: Node) -> None:
    """Java's pattern consumers come back to the topics that they found: they must not bring back what was deleted."""
    client = node.client()
    subscribe(client, topic=PASSING, force_topic_creation=False)
    assert outcome(client) == "TOPIC_NOT_FOUND"
    assert not node.broker.nonpersistent.topics
    subscribe(client, topic=PASSING)
    subscribe(client, 2, topic=PASSING, subscription="other", force_topic_creation=False)
    assert (outcome(client), outcome(client, 2)) == ("in", "in")


def test_partitions_that_store_nothing_are_there_for_everybody(node: Node) -> None:
    node.control_call(lambda done: node.control.create_topic(PASSING, 2, {}, done))
    client = node.client()
    subscribe(client, topic=f"{PASSING}-partition-1", force_topic_creation=False)
    assert outcome(client) == "in"
