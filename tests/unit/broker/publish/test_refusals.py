"""A message is refused: by which id its producer is told, and when.

Clients look for the refused message at the oldest that they have pending. Java's passes over an error of another one and connects
anew at the receipt that comes behind it; of a batch it knows the highest sequence id alone.
"""

from typing import Any, Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.names import NamespaceName
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.metadata import build
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE: Final = NamespaceName("public", "default")
PASSING: Final = "non-persistent://public/default/t"
JAVA: Final = "Pulsar-Java-v4.1.1"
CPP: Final = "Pulsar-CPP-v4.0.0"
GO: Final = "Pulsar-Go-version v0.19.0"
LARGE: Final = b"x" * 2000
DAMAGED: Final = b"damaged"

Told = list[tuple[str, int]]


class Sender:
    """A producer with the id 1."""

    def __init__(self, node: Node, version: str, topic: str = TOPIC) -> None:
        self.node = node
        self.client = client = Client(node, next(node._connections))
        node.clients[client.number] = client
        node.run(node.broker.connected, client.number, "test:1")
        client.send(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version=version, protocol_version=20)))
        opening = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")
        client.send(pb.BaseCommand(type=5, producer=opening))
        node.world.work()
        client.answers.clear()

    def send(self, *messages: tuple[int, bytes], highest: int = 0) -> None:
        """Several in one read: sequence ids and contents. `highest`: it is a batch with these ids."""
        frames = []
        for sequence, data in messages:
            command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=sequence))
            seen = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
            if highest:
                command.send.highest_sequence_id = seen.highest_sequence_id = highest
                seen.num_messages_in_batch = highest - sequence + 1
            payload = build(seen, data)
            frames.append(Frame(command, payload[:-1] + b"?" if data is DAMAGED else payload))
        self.node.run(self.node.broker.frames, self.client.number, frames)

    def told(self) -> Told:
        """What it was told since the last time, in order: of which message, and "ok" or the error."""
        self.node.world.work()
        found: Told = []
        for command in self.client.answers:
            if command.type == 7:
                found.append(("ok", max(command.send_receipt.sequence_id, command.send_receipt.highest_sequence_id)))
            elif command.type == 8:
                found.append((ErrorCode(command.send_error.error).name, command.send_error.sequence_id))
            elif command.type == 15:
                found.append(("closed", command.close_producer.producer_id))
        self.client.answers.clear()
        return found


def limited(**more: Any) -> Node:
    """A cluster whose messages may have 1000 bytes."""
    node = World("a")["a"]
    node.create()
    node.apply(node.broker.resources.change_policies(NAMESPACE, max_message_size=1000, **more))
    return node


@pytest.mark.parametrize(("version", "code"), [(JAVA, "NOT_ALLOWED"), (CPP, "CHECKSUM"), (GO, "NOT_ALLOWED")])
@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_it_is_told_between_the_receipts_of_what_came_before_and_behind(topic: str, version: str, code: str) -> None:
    sender = Sender(limited(), version, topic)
    sender.send((0, b"a"), (1, b"b"), (2, LARGE), (3, b"d"))
    assert sender.told() == [("ok", 0), ("ok", 1), (code, 2), ("ok", 3)]


def test_it_waits_for_what_is_on_its_way_since_an_earlier_read() -> None:
    node = limited()
    sender = Sender(node, JAVA)
    node.hold_log = True
    sender.send((0, b"a"))
    sender.send((1, LARGE))
    assert sender.told() == []
    node.hold_log = False
    assert sender.told() == [("ok", 0), ("NOT_ALLOWED", 1)]


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_one_with_a_wrong_checksum_too(topic: str) -> None:
    sender = Sender(limited(), JAVA, topic)
    sender.send((0, b"a"), (1, DAMAGED), (2, b"c"))
    assert sender.told() == [("ok", 0), ("CHECKSUM", 1), ("ok", 2)]


@pytest.mark.parametrize(("topic", "data", "code"), [(TOPIC, LARGE, "NOT_ALLOWED"), (PASSING, DAMAGED, "CHECKSUM")])
def test_a_batch_is_told_by_its_highest_id(topic: str, data: bytes, code: str) -> None:
    sender = Sender(limited(), JAVA, topic)
    sender.send((5, data), highest=14)
    assert sender.told() == [(code, 14)]
    sender.send((15, b"x"), highest=24)
    assert sender.told() == [("ok", 24)]


@pytest.mark.parametrize(("version", "code"), [(JAVA, "NOT_ALLOWED"), (CPP, "CHECKSUM")])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_a_batch_of_too_many_messages_fails_alone(topic: str, version: str, code: str, *, numbers: bool) -> None:
    """The C++ client would connect anew and send it again, for ever."""
    node = limited()
    if numbers:
        node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
        node.world.advance(100)
    sender = Sender(node, version, topic)
    sender.send((0, b"a"))
    sender.send((1, b"b"), highest=70_000)
    sender.send((70_001, b"c"))
    assert sender.told() == [("ok", 0), (code, 70_000), ("ok", 70_001)]


def test_a_terminated_topic_is_told_behind_what_it_took() -> None:
    node = limited()
    sender = Sender(node, JAVA)
    node.hold_log = True
    sender.send((0, b"a"))
    node.topic.record.terminated = True
    sender.send((1, b"b"), highest=3)
    node.hold_log = False
    assert sender.told() == [("ok", 0), ("TOPIC_TERMINATED", 3)]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (JAVA, [("ok", 0), ("NOT_ALLOWED", 1), ("ok", 2)]),
        (CPP, [("ok", 0), ("CHECKSUM", 1), ("ok", 2)]),
        (GO, [("NOT_ALLOWED", 1), ("closed", 1)]),
    ],
)
def test_with_deduplication_who_fails_one_message_alone_goes_on(version: str, expected: Told) -> None:
    """Whoever might send it again has to begin anew with it: what came behind would be stored first."""
    node = limited()
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    node.world.advance(100)
    sender = Sender(node, version)
    sender.send((0, b"a"), (1, LARGE), (2, b"c"))
    assert sender.told() == expected


def encrypted(payload: bytes) -> bytes:
    """An entry that says which key it is encrypted with."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.encryption_keys.add(key="ours", value=b"secret")
    return build(metadata, payload)


@pytest.mark.parametrize(("version", "code"), [(JAVA, "METADATA"), (CPP, "CHECKSUM")])
@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_what_is_not_encrypted_where_it_must_be(topic: str, version: str, code: str) -> None:
    node = World("a")["a"]
    node.create()
    sender = Sender(node, version, topic)
    node.apply(node.broker.resources.change_policies(NAMESPACE, encryption_required=True))
    sender.send((0, b"a"))
    command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=1))
    node.run(node.broker.frames, sender.client.number, [Frame(command, encrypted(b"b"))])
    node.world.work()
    assert sender.told() == [(code, 0), ("ok", 1)]


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_producers_that_do_not_encrypt_where_they_must(topic: str) -> None:
    node = World("a")["a"]
    node.create()
    node.apply(node.broker.resources.change_policies(NAMESPACE, encryption_required=True))
    client = node.client()
    for number, encrypts in enumerate([False, True], 1):
        opening = pb.CommandProducer(topic=topic, producer_id=number, request_id=number, encrypted=encrypts)
        client.send(pb.BaseCommand(type=5, producer=opening))
    refused, opened = client.answered(1), client.answered(2)
    assert refused is not None and refused.error.error == ErrorCode.METADATA
    assert "encryption-required" in refused.error.message
    assert opened is not None and opened.type == 17
