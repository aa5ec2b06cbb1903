"""Texts of a message's metadata that are not UTF-8: the broker stores and sends what came.

Python's protobuf gives `bytes` for them, where its stubs promise `str`. A compiled function that relied on the stubs would raise
a TypeError, so `make compiled` runs these tests too (docs/decisions/0057-compiled-modules.md).
"""

import pytest

from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FRAME_BYTES_MAX, FrameDecoder, encode_with_payload
from magnetar.wire.metadata import field_bytes
from tests.support.geoworld import Client, Node, World

TOPIC = "persistent://public/default/hostile"
BAD = b"\xff\xfe"
KINDS = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}

PAIR = field_bytes(1, BAD) + field_bytes(2, BAD)
NUMBERS = {field.name: field.number for field in pb.MessageMetadata.DESCRIPTOR.fields}

FIELDS = {
    "producer_name": field_bytes(NUMBERS["producer_name"], BAD),
    "properties": field_bytes(NUMBERS["properties"], PAIR),
    "partition_key": field_bytes(NUMBERS["partition_key"], BAD),
    "replicate_to": field_bytes(NUMBERS["replicate_to"], BAD),
    "encryption_keys": field_bytes(NUMBERS["encryption_keys"], PAIR + field_bytes(3, PAIR)),
    "encryption_algo": field_bytes(NUMBERS["encryption_algo"], BAD),
    "uuid": field_bytes(NUMBERS["uuid"], BAD),
}
"""Field of the metadata -> its bytes, with texts that are not UTF-8. Clients may not set `replicated_from`."""


def test_no_text_is_left_out() -> None:
    texts = [
        field.name
        for field in pb.MessageMetadata.DESCRIPTOR.fields
        if field.type == field.TYPE_STRING or field.name in ("properties", "encryption_keys")
    ]
    assert sorted([*FIELDS, "replicated_from"]) == sorted(texts)


def entries(name: str) -> list[bytes]:
    """A message with the field, the same as a batch of one, and as two chunks."""
    found = []
    for number, shape in enumerate(({}, {"num_messages_in_batch": 1}, *({"chunk_id": chunk} for chunk in range(2)))):
        about = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, **shape)
        data = b"x" * 10
        if "chunk_id" in shape:
            about.uuid, about.num_chunks_from_msg, about.total_chunk_msg_size = "u", 2, 20
        if "num_messages_in_batch" in shape:
            single = pb.SingleMessageMetadata(payload_size=len(data)).SerializeToString() + field_bytes(2, BAD)
            data = len(single).to_bytes(4, "big") + single + data
        found.append(metadata.with_appended(metadata.build(about, data), FIELDS[name]))
    return found


def publish(node: Node, client: Client, payloads: list[bytes]) -> None:
    """SENDs, as bytes of the socket."""
    decoder = FrameDecoder()
    decoder.limit(FRAME_BYTES_MAX)
    parts: list[bytes | memoryview] = []
    for number, payload in enumerate(payloads):
        send = pb.CommandSend(producer_id=1, sequence_id=number, num_messages=1)
        parts += encode_with_payload(pb.BaseCommand(type=6, send=send), [payload])
    node.run(node.broker.frames, client.number, decoder.feed(b"".join(parts)))


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_stored_and_sent_as_it_came(name: str, kind: str) -> None:
    world = World("a")
    node = world["a"]
    node.create(TOPIC)
    producer, consumer = node.client(), node.client()
    number = consumer.subscribe("s", KINDS[kind], topic=TOPIC, replicated=False)
    producer.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)))
    world.settle()
    consumer.flow(number)
    producer.answers.clear()
    payloads = entries(name)
    publish(node, producer, payloads)
    world.settle()
    world.advance(10, links=False)
    assert [answer.type for answer in producer.answers] == [pb.SEND_RECEIPT] * len(payloads)
    got = consumer.take(number)
    assert sorted(message.data for message in got) == sorted(payload[metadata.split(payload) :] for payload in payloads)
    consumer.ack(number, *got)
    world.settle()
    assert node.broker.topics[TOPIC].subscriptions["s"].backlog_entries() == 0


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_consumer_gives_back_comes_again(name: str) -> None:
    world = World("a")
    node = world["a"]
    node.create(TOPIC)
    producer = node.client()
    producer.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)))
    readers = [node.client(), node.client()]
    numbers = [reader.subscribe("s", KINDS["key_shared"], topic=TOPIC, replicated=False) for reader in readers]
    world.settle()
    for reader, number in zip(readers, numbers, strict=True):
        reader.flow(number)
    publish(node, producer, entries(name))
    world.settle()
    got = [reader.take(number) for reader, number in zip(readers, numbers, strict=True)]
    leaving, staying = (0, 1) if got[0] else (1, 0)
    node.run(node.broker.disconnected, readers[leaving].number)
    world.settle()
    world.advance(10, links=False)
    again = readers[staying].take(numbers[staying])
    assert sorted(message.position for message in again) == sorted(message.position for message in got[leaving])
