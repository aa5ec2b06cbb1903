"""What clients say of themselves is kept within limits: of one producer or consumer, a connection, a topic, the broker."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.client_bytes import FREE_BYTES, OPENING_BYTES_MAX
from magnetar.core.errors import ErrorCode
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, encode
from magnetar.wire.metadata import build
from tests.support.geoworld import TOPIC, Client, Node, World

PASSING = "non-persistent://public/default/n"
Opens = Callable[[Client, int, str, int], None]


def pairs(size: int) -> list[pb.KeyValue]:
    """Metadata of so many bytes."""
    return [pb.KeyValue(key="k", value="v" * (size - 1))] if size else []


def produce(client: Client, number: int, topic: str, size: int) -> None:
    """PRODUCER with so much metadata; request 100 + number."""
    command = pb.CommandProducer(topic=topic, producer_id=number, request_id=100 + number, metadata=pairs(size))
    client.send(pb.BaseCommand(type=5, producer=command))
    client.node.world.work()


def consume(client: Client, number: int, topic: str, size: int) -> None:
    """SUBSCRIBE, the same."""
    command = pb.CommandSubscribe(
        topic=topic, subscription="s", subType=1, consumer_id=number, request_id=100 + number, metadata=pairs(size)
    )
    client.send(pb.BaseCommand(type=4, subscribe=command))
    client.node.world.work()


def close(client: Client, number: int, opens: Opens) -> None:
    """It goes."""
    if opens is produce:
        gone = pb.CommandCloseProducer(producer_id=number, request_id=900 + number)
        client.send(pb.BaseCommand(type=15, close_producer=gone))
    else:
        left = pb.CommandCloseConsumer(consumer_id=number, request_id=900 + number)
        client.send(pb.BaseCommand(type=16, close_consumer=left))
    client.node.world.work()


def refused(client: Client, request: int) -> str:
    """Why, or ""."""
    answer = client.answered(request)
    assert answer is not None, "no answer"
    if answer.type != 14:
        assert answer.type in {13, 17}
        return ""
    assert answer.error.error == ErrorCode.NOT_ALLOWED
    return str(answer.error.message)


@pytest.fixture
def node() -> Node:
    limits = {
        "client_metadata_bytes_max": 2_000,
        "client_metadata_bytes_per_connection_max": 3_000,
        "client_metadata_bytes_per_topic_max": 5_000,
        "client_metadata_bytes_total_max": 6_500,
    }
    node = World("a", limits=limits)["a"]
    node.create(TOPIC)
    return node


@pytest.fixture(params=[produce, consume])
def opens(request: Any) -> Opens:
    made: Opens = request.param
    return made


@pytest.fixture(params=[TOPIC, PASSING])
def topic(request: Any) -> str:
    return str(request.param)


def test_of_one(node: Node, opens: Opens, topic: str) -> None:
    client = node.client()
    opens(client, 1, topic, 1_900)
    opens(client, 2, topic, 2_100)
    assert (refused(client, 101), "over 2000 (client_metadata_bytes_max)" in refused(client, 102)) == ("", True)


def test_of_a_connection_and_it_comes_back_when_one_goes(node: Node, opens: Opens, topic: str) -> None:
    client = node.client()
    for number in (1, 2, 3):
        opens(client, number, topic, 1_900)
    assert not refused(client, 101) and not refused(client, 102)
    assert "one connection" in refused(client, 103) and "client_metadata_bytes_per_connection_max" in refused(
        client, 103
    )
    opens(client, 4, topic, 0)
    assert not refused(client, 104), "who has no more than the free bytes is let in"
    close(client, 1, opens)
    opens(client, 5, topic, 1_900)
    assert not refused(client, 105)


def test_of_a_topic_and_of_the_broker(node: Node, opens: Opens, topic: str) -> None:
    clients = [node.client() for _ in range(4)]
    for client in clients[:3]:
        opens(client, 1, topic, 1_900)
    opens(clients[3], 1, topic, 1_900)
    assert "one topic" in refused(clients[3], 101)
    opens(clients[3], 2, topic + "-2", 1_900)
    opens(clients[3], 3, topic + "-2", 1_900)
    assert not refused(clients[3], 102) and "this broker" in refused(clients[3], 103)
    assert node.broker.client_bytes.total == 4 * (1_900 - FREE_BYTES)
    for client in clients:
        node.run(node.broker.disconnected, client.number)
    assert (node.broker.client_bytes.total, node.broker.client_bytes.topics) == (0, {})


def test_a_producer_that_comes_again_counts_once(node: Node) -> None:
    client = node.client()
    for epoch in range(5):
        command = pb.CommandProducer(
            topic=TOPIC, producer_id=1, request_id=200 + epoch, producer_name="p", epoch=epoch, metadata=pairs(1_000)
        )
        client.send(pb.BaseCommand(type=5, producer=command))
        node.world.work()
    assert not refused(client, 204)
    assert node.broker.client_bytes.total == 1_001 - FREE_BYTES


def test_ranges_of_sticky_consumers_count(node: Node) -> None:
    client = node.client()
    meta = pb.KeySharedMeta(keySharedMode=1, hashRanges=[pb.IntRange(start=2 * at, end=2 * at) for at in range(100)])
    consumer = client.subscribe("k", 3, replicated=False, keySharedMeta=meta)
    node.world.work()
    assert "client_metadata_bytes_max" in refused(client, 1000 + consumer)


def test_what_is_being_opened_stops_the_socket(node: Node) -> None:
    node.hold_stores = True
    client = node.client()
    schema = pb.Schema(name="s", type=1, schema_data=b"x" * 500_000)
    held: list[bool] = []
    for number in range(10):
        command = pb.CommandProducer(
            topic=f"{TOPIC}-new-{number}", producer_id=number, request_id=number, schema=schema
        )
        client.send(pb.BaseCommand(type=5, producer=command))
        held.append(node.broker.sessions[client.number].connection.held)
    assert held.index(True) == OPENING_BYTES_MAX // 500_000
    node.hold_stores = False
    node.world.work()
    assert not node.broker.sessions[client.number].connection.held


# --------------------------------------------------------------------------- limits of fields, as the session answers them


def frames(node: Node, client: Client, *data: bytes) -> None:
    """Bytes as a broker's connection decodes them."""
    decoder = FrameDecoder(1 << 23)
    decoder.limit(node.broker.command_bytes_max)
    node.run(node.broker.frames, client.number, decoder.feed(b"".join(data)))
    node.world.work()


def test_each_command_has_the_answer_that_its_client_waits_for(node: Node) -> None:
    client = node.client()
    produce(client, 7, TOPIC, 0)
    long, many = "x" * 70_000, [pb.KeyValue(key="k", value="v")] * 1_001
    schema = pb.Schema(name=long, type=1, schema_data=b"")
    sent = [
        (
            pb.BaseCommand(type=5, producer=pb.CommandProducer(topic="t", producer_id=1, request_id=1, metadata=many)),
            14,
        ),
        (
            pb.BaseCommand(
                type=4,
                subscribe=pb.CommandSubscribe(
                    topic="t", subscription="s", subType=0, consumer_id=1, request_id=2, consumer_name=long
                ),
            ),
            14,
        ),
        (pb.BaseCommand(type=21, partitionMetadata=pb.CommandPartitionedTopicMetadata(topic=long, request_id=3)), 22),
        (pb.BaseCommand(type=23, lookupTopic=pb.CommandLookupTopic(topic=long, request_id=4)), 24),
        (
            pb.BaseCommand(type=32, getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(request_id=5, namespace=long)),
            14,
        ),
        (pb.BaseCommand(type=34, getSchema=pb.CommandGetSchema(request_id=6, topic=long)), 35),
        (
            pb.BaseCommand(
                type=39, getOrCreateSchema=pb.CommandGetOrCreateSchema(request_id=7, topic="t", schema=schema)
            ),
            40,
        ),
        (
            pb.BaseCommand(
                type=64,
                watchTopicList=pb.CommandWatchTopicList(request_id=8, watcher_id=1, namespace=long, topics_pattern="x"),
            ),
            14,
        ),
    ]
    frames(node, client, *(encode(command) for command, _ in sent))
    for request, (_, kind) in enumerate(sent, 1):
        answer = client.answered(request)
        assert answer is not None and answer.type == kind, f"request {request}: {answer}"
        assert "over 65536" in str(answer) or "more than 1000" in str(answer) or "over 512" in str(answer)
    # The producer that was open before goes on.
    payload = build(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x")
    client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=7, sequence_id=0)), payload)
    node.world.work()
    assert client.answers[-1].type == 7


def test_a_message_of_too_many_properties_fails_alone(node: Node) -> None:
    client = node.client()
    produce(client, 1, TOPIC, 0)
    for sequence, count in enumerate((1, 5_001, 1)):
        seen = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
        seen.properties.extend([pb.KeyValue(key="k", value="v")] * count)
        client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=sequence)), build(seen, b"x"))
        node.world.work()
    assert [answer.type for answer in client.answers if answer.type in {7, 8}] == [7, 8, 7]
    (error,) = [answer.send_error for answer in client.answers if answer.type == 8]
    assert error.error == ErrorCode.NOT_ALLOWED and "metadata is refused: it has more than 5000 fields" in error.message


def test_a_connect_that_breaks_a_limit_is_refused(node: Node) -> None:
    client = Client(node, 77)
    node.clients[77] = client
    node.run(node.broker.connected, 77, "test:1")
    frames(node, client, encode(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="x" * 600))))
    assert "CommandConnect.client_version has 600 bytes, over 512" in client.answers[0].error.message
