"""Numbers of producers, read back from messages that were published without deduplication."""

import pytest

from magnetar.broker.publish.deduplication import Status, TopicDeduplication
from magnetar.core.names import PRODUCER_BYTES_MAX, NamespaceName
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Node, World

DEFAULT = NamespaceName("public", "default")
LONG = b"n" * (PRODUCER_BYTES_MAX + 1)


def send(node: Node, *names: bytes) -> None:
    """Publish messages with these producer names in their metadata, as a client may that is not judged by them."""
    client = node.client()
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)))
    node.world.work()
    for number, name in enumerate(names):
        seen = pb.MessageMetadata(producer_name="@" * len(name), sequence_id=5, publish_time=1)
        seen = pb.MessageMetadata.FromString(seen.SerializeToString().replace(b"@" * len(name), name))
        command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=number))
        client.send(command, metadata.build(seen, b"x"))
    node.world.work()
    assert [answer.send_receipt.sequence_id for answer in client.answers if answer.type == 7] == list(range(len(names)))


def numbers(node: Node) -> TopicDeduplication:
    found = node.topic.deduplication
    assert found is not None
    return found


@pytest.mark.parametrize("name", [b"\xff\xfe", b"\n", LONG])
def test_names_that_no_producer_can_have_are_passed_over(name: bytes) -> None:
    """When it is switched on, and at the next start: whatever a client wrote there, the broker lives."""
    world = World("a")
    a = world["a"]
    a.create()
    send(a, b"p", name, b"q")
    a.apply(a.broker.resources.change_policies(DEFAULT, deduplication_enabled=True))
    assert numbers(a).status is Status.ENABLED
    assert {known for known, _ in numbers(a).numbers} == {"p", "q"}
    a.restart()
    world.advance(1_000)
    assert {known for known, _ in numbers(a).numbers} == {"p", "q"}


@pytest.mark.parametrize("name", [b"\xff\xfe", LONG])
def test_a_link_that_brings_one_takes_nobodys_broker(name: bytes) -> None:
    world = World("ab")
    for node in (world["a"], world["b"]):
        node.create()
    world["b"].apply(world["b"].broker.resources.change_policies(DEFAULT, deduplication_enabled=True))
    send(world["a"], b"p", name)
    world.advance(1_000)
    b = world["b"]
    assert b.topic.log.entries_between(b.topic.log.position_before(b.topic.log.first), b.topic.log.last) == 2
    assert {known for known, _ in numbers(b).numbers} == {"p"}
    b.run(numbers(b).snapshot)
    world.advance(1_000)
    assert numbers(b).durable_mark_delete == b.topic.log.last
