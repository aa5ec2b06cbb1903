"""A command may hold parts that its type does not name. The decoder does not check them, and they have no effect."""

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import CLIENT_COMMANDS, GEO_REQUESTS, LINK_AUTH_METHOD
from magnetar.wire.metadata import build
from magnetar.wire.varint import varint
from tests.support.geoworld import TOPIC, Client, Node, World

PARTS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.name != "type"}


def other_parts(kind: int) -> bytes:
    """Every part that type `kind` does not name: each with bytes that are not UTF-8 text, and without its required fields."""
    junk = b"\xfa\x7f\x01\xff"  # an unknown field, whose bytes are not UTF-8
    return b"".join(varint(number << 3 | 2) + varint(len(junk)) + junk for number in PARTS if number != kind)


class Sender(Client):
    """A client whose commands go through the decoder as bytes, with other parts or without."""

    def __init__(self, node: Node, number: int, *, others: bool) -> None:
        super().__init__(node, number)
        self._others = others
        self._server = type(self.decoder)(1 << 26)
        self.bytes_received = b""
        node.clients[number] = self

    def send(self, command: pb.BaseCommand, payload: bytes = b"") -> None:
        raw = command.SerializeToString() + (other_parts(command.type) if self._others else b"")
        head = (4 + len(raw) + len(payload)).to_bytes(4, "big") + len(raw).to_bytes(4, "big")
        (frame,) = self._server.feed(head + raw + payload)
        assert not self._others or not frame.command.IsInitialized()
        self.node.run(self.node.broker.frames, self.number, [frame])

    def got(self, buffers) -> None:
        data = b"".join(buffers)
        self.bytes_received += data
        super().got([data])


def minimal(kind: int) -> pb.BaseCommand:
    """A command of a type with what it requires."""
    command = pb.BaseCommand(type=kind)
    part = getattr(command, PARTS[kind])
    part.SetInParent()
    fill(part, part.DESCRIPTOR)
    return command


def fill(part, descriptor: Descriptor) -> None:
    for field in descriptor.fields:
        if field.name in {"topic", "topic_name"} and not field.is_repeated:
            setattr(part, field.name, TOPIC)
        elif not field.is_required:
            continue
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            fill(getattr(part, field.name), field.message_type)
        else:
            setattr(
                part, field.name, {str: "public/default", bytes: b"", bool: False}.get(type(field.default_value), 1)
            )


def story(*, others: bool, link: bool) -> tuple[list[bytes], list[str]]:
    """What the clients receive, and the broker's log. Each client uses a topic, then sends one command of one more type."""
    world = World("ab")
    node = world["a"]
    node.create()
    login = {"auth_method_name": LINK_AUTH_METHOD, "auth_data": node.link_token} if link else {}
    kinds = [0, *sorted(CLIENT_COMMANDS | (GEO_REQUESTS if link else frozenset()))]
    clients = []
    for kind in kinds:
        client = Sender(node, 1000 + kind, others=others)
        clients.append(client)
        client.connect(**login)
        producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name=f"p{kind}")
        client.send(pb.BaseCommand(type=pb.PRODUCER, producer=producer))
        world.work()
        consumer = client.subscribe(f"s{kind}", replicated=False)
        world.work()
        client.flow(consumer)
        for number in range(3):
            meta = pb.MessageMetadata(producer_name=f"p{kind}", sequence_id=number, publish_time=world.now_ms)
            send = pb.CommandSend(producer_id=1, sequence_id=number, num_messages=1)
            client.send(pb.BaseCommand(type=pb.SEND, send=send), build(meta, b"%d" % number))
            world.work()
        client.ack(consumer, client.received[consumer][0])
        if kind:
            client.send(minimal(kind))
        world.advance(100)
    return [client.bytes_received for client in clients], [note.text for note in node.notes]


@pytest.mark.parametrize("link", [False, True], ids=["a client", "a link"])
def test_parts_that_the_type_does_not_name_change_nothing(link: bool) -> None:
    received, notes = story(others=False, link=link)
    assert story(others=True, link=link) == (received, notes)
    sizes = [len(data) for data in received]
    assert sum(size != sizes[0] for size in sizes) > len(sizes) / 2, "most commands were not answered"
