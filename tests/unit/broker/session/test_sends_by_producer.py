"""SENDs of several producers that come together: one append for each producer, with its messages in order."""

import pytest

from magnetar.storage.entries import Append
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.metadata import build
from tests.support.geoworld import Client, Node, World

TOPICS = [f"persistent://public/default/t{number}" for number in range(3)]


def opened(node: Node, producers: list[str]) -> Client:
    """A connection with a producer on each of these topics; their ids are 0, 1, 2 and so on."""
    client = node.client()
    for number, topic in enumerate(producers):
        command = pb.CommandProducer(topic=topic, producer_id=number, request_id=number, producer_name=f"p{number}")
        client.send(pb.BaseCommand(type=5, producer=command))
        node.world.work()
    client.answers.clear()
    return client


def send(producer: int, sequence: int, payload: bytes | None = None) -> Frame:
    """A SEND."""
    about = pb.MessageMetadata(producer_name=f"p{producer}", sequence_id=sequence, publish_time=1)
    command = pb.CommandSend(producer_id=producer, sequence_id=sequence)
    return Frame(pb.BaseCommand(type=6, send=command), build(about, b"%d" % sequence) if payload is None else payload)


def stored(node: Node, topic: str) -> list[bytes]:
    """The last byte of each message of a topic."""
    log = node.broker.topics[topic].log
    return [entry.data[-1:] for entry in log.cached(log.first, 100, 1 << 20)]


def receipts(client: Client) -> dict[int, list[int]]:
    """Sequence ids of the receipts, by producer."""
    found: dict[int, list[int]] = {}
    for answer in client.answers:
        assert answer.HasField("send_receipt")
        found.setdefault(answer.send_receipt.producer_id, []).append(answer.send_receipt.sequence_id)
    return found


@pytest.fixture
def node() -> Node:
    return World("a")["a"]


def test_each_producer_gets_one_append_in_its_order(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    client = opened(node, TOPICS)
    appends: list[Append] = []
    submit = node.log.submit

    def submitted(append: Append) -> None:
        appends.append(append)
        submit(append)

    monkeypatch.setattr(node.log, "submit", submitted)
    node.run(node.broker.frames, client.number, [send(p, number) for number in range(4) for p in (2, 0, 1)])
    node.world.work()
    assert [(append.topic, len(append.entries)) for append in appends] == [(TOPICS[p], 4) for p in (2, 0, 1)]
    assert [stored(node, topic) for topic in TOPICS] == [[b"0", b"1", b"2", b"3"]] * 3
    assert receipts(client) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3]}


def test_another_command_stays_between_the_sends_around_it(node: Node) -> None:
    client = opened(node, TOPICS)
    closing = pb.BaseCommand(type=15, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=9))
    node.run(
        node.broker.frames, client.number,
        [send(1, 1), send(0, 1), Frame(closing, b""), send(1, 2), send(0, 2)],
    )  # fmt: skip
    node.world.work()
    assert [stored(node, topic) for topic in TOPICS] == [[b"1", b"2"], [b"1"], []]


@pytest.mark.parametrize("wrong", [send(7, 1), send(1, 5, b"no metadata")], ids=["not open", "not a message"])
def test_a_wrong_one_ends_the_connection_and_those_before_it_count(node: Node, wrong: Frame) -> None:
    client = opened(node, TOPICS)
    frames = [send(1, 1), send(0, 1), wrong, send(0, 2)]
    node.run(node.broker.frames, client.number, frames)
    node.world.work()
    node.world.advance(1)
    assert client.number not in node.clients
    assert stored(node, TOPICS[0])[:1] == [b"1"]
    assert stored(node, TOPICS[1]) == [b"1"]
