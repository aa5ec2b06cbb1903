"""A topic is terminated: consumers whose clients can be told are told when they have acknowledged everything."""

from typing import Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.storage.entries import NewEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geoworld import TOPIC, Client, Node

JAVA: Final = "Pulsar-Java-v4.1.1"
ENTRY: Final = build(pb.MessageMetadata(producer_name="w", sequence_id=0, publish_time=1), b"x")


def client(node: Node, version: str = JAVA) -> Client:
    made = Client(node, next(node._connections))
    node.clients[made.number] = made
    node.run(node.broker.connected, made.number, "test:1")
    made.send(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version=version, protocol_version=20)))
    return made


def consumer(one: Client, name: str = "s", kind: int = 0, **more: object) -> int:
    made = one.subscribe(name, kind, replicated=False, **more)  # type: ignore[arg-type]
    one.node.world.work()
    one.flow(made)
    one.node.world.work()
    return made


def ends(one: Client) -> list[int]:
    """Consumers that were told, each time."""
    return [command.reachedEndOfTopic.consumer_id for command in one.answers if command.type == 27]


def terminate(node: Node) -> None:
    node.control.topics.terminate(TOPIC, lambda _position, error: None)
    node.world.work()


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_it_is_told_behind_the_last_acknowledgement_and_once(node: Node, kind: int) -> None:
    node.publish(b"1", b"2")
    one = client(node)
    reading = consumer(one, kind=kind)
    first, second = one.take(reading)
    one.ack(reading, first)
    terminate(node)
    assert ends(one) == []
    one.ack(reading, second)
    assert ends(one) == [reading]
    one.flow(reading)
    one.ack(reading, second)
    assert ends(one) == [reading]


def test_who_had_acknowledged_everything_is_told_when_it_ends(node: Node) -> None:
    one, standby = client(node), client(node)
    node.publish(b"1")
    reading, waiting = consumer(one, kind=2), consumer(standby, kind=2)
    for message in one.take(reading) + standby.take(waiting):
        one.ack(reading, message)
        standby.ack(waiting, message)
    assert ends(one) == ends(standby) == []
    terminate(node)
    assert (ends(one), ends(standby)) == ([reading], [waiting])


def test_who_comes_to_a_topic_that_ended_is_told_too(node: Node) -> None:
    node.publish(b"1")
    terminate(node)
    node.restart()
    one = client(node)
    late = consumer(one, earliest=False)
    assert ends(one) == [late]
    reader = consumer(one, "r", durable=False, start_message_id=pb.MessageIdData(ledgerId=0, entryId=0))
    [message] = one.take(reader)
    assert ends(one) == [late]
    one.ack(reader, message, cumulative=True)
    assert ends(one) == [late, reader]


def test_what_was_on_its_way_comes_first(node: Node) -> None:
    one = client(node)
    reading = consumer(one)
    node.hold_log = True
    node.run(lambda: node.topic.append([NewEntry(ENTRY, 0, 1, 1)], lambda _append, _error: None))
    terminate(node)
    second = consumer(one, "other")
    assert ends(one) == []
    node.hold_log = False
    node.world.work()
    assert ends(one) == []
    for each in (reading, second):
        one.ack(each, *one.take(each))
    assert ends(one) == [reading, second]


@pytest.mark.parametrize("version", ["Pulsar-CPP-v3.7.0", "Pulsar Go 0.9", "Pulsar-Go-version v0.19.0", "4.0.0"])
def test_clients_that_close_their_connection_when_they_meet_it_are_not_told(node: Node, version: str) -> None:
    one = client(node, version)
    consumer(one)
    terminate(node)
    assert ends(one) == []


# ----------------------------------------------------------------------------------------------------------- producers


def produce(one: Client, request: int, number: int = 1, mode: int = 0) -> None:
    """Open a producer, and do not wait."""
    command = pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=request, producer_access_mode=mode)
    one.send(pb.BaseCommand(type=5, producer=command))


def test_its_producers_are_closed_behind_their_receipts_and_told_why_when_they_come_back(node: Node) -> None:
    """Before they send anything: the refusal of a message costs clients over the C++ client their whole connection."""
    one, other = client(node), client(node)
    produce(one, 1, mode=1)
    produce(other, 1, mode=2)
    node.world.work()
    one.answers.clear()
    other.answers.clear()
    node.hold_log = True
    one.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=0)), ENTRY)
    terminate(node)
    assert one.answers == []
    node.hold_log = False
    node.world.work()
    assert [command.type for command in one.answers] == [7, 15]
    assert [ErrorCode(command.error.error) for command in other.answers] == [ErrorCode.SERVICE_NOT_READY]
    assert not node.topic.producers.everybody()
    for comer in (one, other):
        comer.answers.clear()
        produce(comer, 2)
        assert [ErrorCode(command.error.error) for command in comer.answers] == [ErrorCode.TOPIC_TERMINATED]


def test_a_topic_that_cannot_be_terminated_keeps_its_producers(node: Node) -> None:
    one = client(node)
    produce(one, 1)
    node.world.work()
    one.answers.clear()
    node.hold_stores = True
    terminate(node)
    assert node.store.answer("the disk is full")
    node.hold_stores = False
    one.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=0)), ENTRY)
    node.world.work()
    assert [command.type for command in one.answers] == [7]
