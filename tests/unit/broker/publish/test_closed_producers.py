"""A producer that its client closes: what it sent before is answered first, whatever the answer."""

import errno
from typing import Final

import pytest

from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.types import PublishRate
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geoworld import TOPIC, Client, Node

NAMESPACE: Final = NamespaceName("public", "default")


class Publisher:
    """A producer with the id 1 on a connection of its own."""

    def __init__(self, node: Node, *, name: str = "p", mode: int = 0) -> None:
        self.node, self.name = node, name
        self.client: Client = node.client()
        self.client.answers.clear()
        self.open(1, mode)
        node.world.work()

    def open(self, request: int, mode: int = 0, epoch: int = 0) -> None:
        command = pb.CommandProducer(
            topic=TOPIC,
            producer_id=1,
            request_id=request,
            producer_name=self.name,
            producer_access_mode=mode,
            epoch=epoch,
        )
        self.client.send(pb.BaseCommand(type=5, producer=command))

    def send(self, *sequence_ids: int, number: int = 1) -> None:
        for sequence in sequence_ids:
            seen = pb.MessageMetadata(producer_name=self.name, sequence_id=sequence, publish_time=1)
            command = pb.CommandSend(producer_id=number, sequence_id=sequence)
            self.client.send(pb.BaseCommand(type=6, send=command), build(seen, b"x"))

    def close(self, request: int) -> None:
        self.client.send(pb.BaseCommand(type=15, close_producer={"producer_id": 1, "request_id": request}))

    def told(self) -> list[str]:
        """Everything it was told since the last time, in order."""
        told = []
        for command in self.client.answers:
            match command.type:
                case 7:
                    told.append(f"stored {command.send_receipt.sequence_id}")
                case 8:
                    told.append(f"not stored {command.send_error.sequence_id}")
                case 13:
                    told.append(f"done {command.success.request_id}")
                case 14:
                    told.append(f"refused {command.error.request_id}: {command.error.message}")
                case 15:
                    told.append("closed")
                case 17:
                    ready = command.producer_success.producer_ready
                    told.append(f"{'open' if ready else 'waits'} {command.producer_success.request_id}")
                case _:
                    told.append(str(command))
        self.client.answers.clear()
        return told


def names(node: Node) -> list[str]:
    return [producer.name for producer in node.topic.producers.everybody()]


def test_receipts_come_before_the_answer_to_a_close(node: Node) -> None:
    """Clients take what has no receipt when they are told that the producer is closed for not stored."""
    one = Publisher(node)
    assert one.told() == ["open 1"]
    node.hold_log = True
    one.send(0, 1, 2)
    one.close(2)
    assert one.told() == []
    node.hold_log = False
    node.world.work()
    assert one.told() == ["stored 0", "stored 1", "stored 2", "done 2"]
    assert names(node) == []
    one.close(3)
    assert one.told() == ["done 3"]


def test_nobody_comes_in_front_of_what_is_on_its_way(node: Node) -> None:
    one = Publisher(node, mode=1)
    waiting = Publisher(node, name="q", mode=2)
    assert (one.told(), waiting.told()) == (["open 1"], ["waits 1"])
    node.hold_log = True
    one.send(0)
    one.close(2)
    one.send(1)
    one.open(3)
    one.close(4)
    assert one.told() == ["refused 3: producer 1 is already being closed"]
    assert names(node) == ["q", "p"] and waiting.told() == []
    node.hold_log = False
    node.world.work()
    assert one.told() == ["stored 0", "done 2", "done 4"]
    assert waiting.told() == ["open 1"]
    assert node.topic.entries_in == 1, "what comes behind the close is nobody's"
    node.world.work()


def test_duplicates_are_answered_before_the_close(node: Node) -> None:
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    one = Publisher(node)
    one.send(5)
    node.world.work()
    assert one.told() == ["open 1", "stored 5"]
    node.hold_log = True
    one.send(6, 5)
    one.close(2)
    node.hold_log = False
    node.world.work()
    assert one.told() == ["stored 6", "stored 5", "done 2"]


def test_what_waits_for_the_publish_rate_is_stored_before_the_close(node: Node) -> None:
    node.apply(node.broker.resources.change_policies(NAMESPACE, publish_rate=PublishRate(2, 0)))
    one = Publisher(node)
    one.send(*range(6))
    one.close(2)
    node.world.work()
    assert "done 2" not in one.told()
    node.world.advance(10_000)
    assert one.told()[-1] == "done 2"
    assert node.topic.entries_in == 6 and names(node) == []


def test_a_disk_that_fails_is_told_and_the_producer_is_closed(node: Node) -> None:
    one = Publisher(node)
    node.hold_log = True
    one.send(0)
    one.close(2)
    node.files.fail_next("write", OSError(errno.EIO, "Input/output error"))
    node.hold_log = False
    node.world.work()
    assert one.told() == ["open 1", "not stored 0", "done 2"]
    assert names(node) == []


def test_whoever_closes_it_meanwhile_brings_its_answer(node: Node) -> None:
    one = Publisher(node)
    node.hold_log = True
    one.send(0)
    one.close(2)
    fencing = Publisher(node, name="q", mode=3)
    assert one.told() == ["open 1", "done 2"] and names(node) == ["q"]
    node.hold_log = False
    node.world.work()
    assert one.told() == [] and fencing.told() == ["open 1"]


def test_a_connection_that_ends_meanwhile_leaves_nothing(node: Node) -> None:
    one = Publisher(node)
    node.hold_log = True
    one.send(0)
    one.close(2)
    node.run(node.broker.disconnected, one.client.number)
    assert names(node) == []
    node.hold_log = False
    node.world.work()
    assert node.topic.entries_in == 1


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
@pytest.mark.parametrize("producers", [1, 100])
def test_what_its_client_sent_before_it_knew_ends_no_connection(node: Node, topic: str, producers: int) -> None:
    """The broker closes all producers of a topic; their client had sent more by then."""
    publisher = Publisher(node)
    client = publisher.client
    numbers = range(2, 2 + producers)
    for number in numbers:
        opening = pb.CommandProducer(topic=topic, producer_id=number, request_id=number)
        client.send(pb.BaseCommand(type=5, producer=opening))
    node.world.work()
    if topic == TOPIC:
        node.run(node.broker.clients.close_all, node.topic)
    else:
        node.run(node.broker.nonpersistent.close_clients, node.broker.nonpersistent.topics[topic])
    client.answers.clear()
    for number in numbers:
        publisher.send(0, number=number)
    node.world.work()
    assert client.answers == []
    assert client.number in node.broker.sessions
