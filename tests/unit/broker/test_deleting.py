"""What keeps an administrator from deleting a topic without force: who is connected, and copies in other clusters."""

import pytest

from magnetar.broker.records import TOPIC_PREFIX, cursor_key
from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName
from magnetar.metadata.errors import PreconditionFailed, Unprocessable
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Node, World
from tests.unit.broker.test_replicated import consumer

OWN = NamespaceName.parse("public/default")


def alone() -> Node:
    """A cluster without links, with a topic, a message and a subscription that nobody uses."""
    node = World("a")["a"]
    node.create()
    subscribe(node, TOPIC)
    node.publish(b"x")
    return node


def subscribe(node: Node, topic: str) -> None:
    answer = node.control_call(lambda done: node.control.create_subscription(topic, "s", EARLIEST, False, {}, done))
    assert answer is None


def delete(node: Node, topic: str = TOPIC, *, force: bool = False) -> None:
    assert node.control_call(lambda done: node.control.delete_topic(topic, force, done)) is None


def test_subscriptions_that_nobody_uses_go_with_their_topic() -> None:
    node = alone()
    delete(node)
    assert not node.broker.topics
    assert not {TOPIC_PREFIX + TOPIC, cursor_key(TOPIC, "s")} & node.meta.keys()
    assert TOPIC not in node.restart().broker.topics


def test_a_consumer_or_a_producer_keeps_it() -> None:
    node = alone()
    client, number = consumer(node, replicated=False)
    with pytest.raises(PreconditionFailed, match="0 producers and 1 consumers"):
        delete(node)
    client.send(pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=number, request_id=7)))
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=8)))
    with pytest.raises(PreconditionFailed, match="1 producers and 0 consumers"):
        delete(node)
    assert node.topic.subscriptions.keys() == {"s"}
    client.send(pb.BaseCommand(type=15, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=9)))
    delete(node)
    assert not node.broker.topics


def test_who_waits_for_exclusive_access_keeps_it() -> None:
    node = alone()
    client = node.client()
    for number, mode in (
        (1, pb.CommandProducer(producer_access_mode=1)),
        (2, pb.CommandProducer(producer_access_mode=2)),
    ):
        mode.MergeFrom(pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=number))
        client.send(pb.BaseCommand(type=5, producer=mode))
    with pytest.raises(PreconditionFailed, match="2 producers"):
        delete(node)


def test_a_reader_keeps_it() -> None:
    node = alone()
    consumer(node, "reader-1", durable=False, replicated=False)
    with pytest.raises(PreconditionFailed, match="1 consumers"):
        delete(node)


def test_one_used_partition_keeps_them_all() -> None:
    node = alone()
    base = TOPIC + "-parts"
    assert node.control_call(lambda done: node.control.create_topic(base, 3, {}, done)) is None
    names = [f"{base}-partition-{number}" for number in range(3)]
    subscribe(node, names[0])
    client, number = consumer(node, topic=names[2], replicated=False)
    with pytest.raises(PreconditionFailed, match=f"{names[2]} has"):
        delete(node, base)
    assert set(names) <= node.broker.topics.keys()
    client.unsubscribe(number)
    delete(node, base)
    assert node.broker.topics.keys() == {TOPIC}


def test_a_replicated_one_goes_by_force_alone() -> None:
    node = World("abc", routes=[("a", "b"), ("b", "a"), ("c", "a")])["a"]
    node.create()
    with pytest.raises(Unprocessable, match="is replicated to b, which"):
        delete(node)
    delete(node, force=True)
    assert not node.broker.topics


def test_one_that_is_no_longer_replicated_goes() -> None:
    world = World("ab")
    node = world["a"]
    node.create()
    node.apply(node.broker.resources.set_replication(OWN, ["a"]))
    world.advance(1_000)
    delete(node)
    assert not node.broker.topics
