"""Transactions are refused in the answers that clients wait for, by raw frames; nothing of them is stored or acknowledged."""

import itertools
from typing import Any

import pytest

from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder
from magnetar.wire.metadata import build
from magnetar.wire.varint import varint
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE = NamespaceName.parse("public/default")
VOLATILE = "non-persistent://public/default/t"
LEAST, MOST = 7, 3
IDS = {"txnid_least_bits": LEAST, "txnid_most_bits": MOST}


def field(number: int, value: int | bytes) -> bytes:
    """One field as it travels."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def request(kind: int, number: int) -> bytes:
    """A whole command with all the fields that Pulsar gives it, also those that our own messages do not have."""
    txn = field(2, LEAST) + field(3, MOST)
    subscription = field(1, TOPIC.encode()) + field(2, b"s")
    rest = {
        50: field(2, 60) + field(3, MOST),  # time to live, coordinator
        52: txn + field(4, TOPIC.encode()) + field(4, TOPIC.encode()),
        54: txn + field(4, subscription),
        56: txn + field(4, 0),
        58: txn + field(4, TOPIC.encode()) + field(5, 1) + field(6, 2),
        60: txn + field(4, subscription) + field(5, 1) + field(6, 2),
        62: field(2, MOST),
    }[kind]
    return field(1, kind) + field(kind, field(1, number) + rest)


def feed(client: Client, command: bytes) -> list[pb.BaseCommand]:
    """A command's frame through the decoder into the broker; what was answered."""
    size = len(command)
    frames = FrameDecoder().feed((size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + command)
    client.answers.clear()
    client.node.run(client.node.broker.frames, client.number, frames)
    client.node.world.work()
    return client.answers


def ids_of(kind: int) -> tuple[int, int] | None:
    """Upper and lower half of the transaction's id in the answer to a request; None where the answer has none."""
    return None if kind == 62 else (MOST, 0) if kind == 50 else (MOST, LEAST)


def usable(client: Client) -> bool:
    """Whether the connection goes on."""
    client.answers.clear()
    client.send(pb.BaseCommand(type=18, ping=pb.CommandPing()))
    return [command.type for command in client.answers] == [19] and client.number in client.node.broker.sessions


@pytest.mark.parametrize("kind", [50, 52, 54, 56, 58, 60, 62])
def test_each_request_gets_its_own_answer_and_the_connection_goes_on(kind: int) -> None:
    client = World("a")["a"].client()
    (answer,) = feed(client, request(kind, 41))
    assert answer.type == kind + 1
    ((_, typed), (filled, body)) = answer.ListFields()
    assert (typed, filled.number) == (kind + 1, kind + 1)
    assert (body.request_id, body.error, bool(body.message)) == (41, 22, True)  # type: ignore[attr-defined]
    # A response's fields by their numbers, as a client that has Pulsar's own messages reads them.
    numbers = {one.number: value for one, value in body.ListFields()}  # type: ignore[attr-defined]
    halves = None if kind == 62 else (numbers.get(3, 0), numbers.get(2, 0))
    assert halves == ids_of(kind)
    assert {1, 2, 3} == numbers.keys() if kind == 62 else {1, 4, 5} <= numbers.keys()
    assert usable(client)


def test_an_answer_of_the_broker_is_still_nothing_that_a_client_may_say() -> None:
    node = World("a")["a"]
    for kind in (51, 63):
        client = node.client()
        feed(client, field(1, kind) + field(kind, field(1, 1)))
        assert client.number not in node.broker.sessions


# ---------------------------------------------------------------------------------------------------------------- SEND


def opened(node: Node, topic: str = TOPIC, version: str = "t") -> Client:
    """A client with producer 1."""
    client = node.client()
    node.broker.sessions[client.number].connection.client_version = version
    command = pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")
    client.send(pb.BaseCommand(type=5, producer=command))
    node.world.work()
    assert client.answered(1) is not None
    client.answers.clear()
    return client


def send(client: Client, sequence: int, key: str = "", **ids: int) -> None:
    seen = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    if key:
        seen.properties.add(key="k", value=key)
    command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=sequence, **ids))
    client.send(command, build(seen, b"x"))


def told(client: Client) -> list[tuple[int, int]]:
    """Of each SEND: its number, and the error (0: a receipt)."""
    client.node.world.work()
    out = []
    for command in client.answers:
        if command.type == 7:
            out.append((command.send_receipt.sequence_id, 0))
        elif command.type == 8:
            out.append((command.send_error.sequence_id, command.send_error.error))
    return sorted(out)


@pytest.mark.parametrize("ids", [IDS, {"txnid_least_bits": 0, "txnid_most_bits": 0}, {"txnid_least_bits": 4}])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_message_in_a_transaction_is_not_stored(keyed: bool, ids: dict[str, int]) -> None:
    node = World("a")["a"]
    node.create()
    if keyed:
        policy = IdempotencyPolicy(property="k", window_seconds=600)
        node.apply(node.broker.resources.change_policies(NAMESPACE, idempotency=policy))
    client = opened(node)
    send(client, 0, "a")
    send(client, 1, "b", **ids)
    send(client, 2, "c")
    assert told(client) == [(0, 0), (1, 22), (2, 0)]
    assert node.topic.entries_in == 2
    send(client, 3, "b")  # its key was not taken
    assert told(client)[-1] == (3, 0)
    assert node.topic.entries_in == 3
    assert usable(client)


def test_a_client_over_the_cpp_client_fails_that_message_alone() -> None:
    """By the one error that does not make it connect anew and send it again for ever (decision 0013)."""
    node = World("a")["a"]
    client = opened(node, version="Pulsar-CPP-v4.0.0")
    send(client, 0, **IDS)
    send(client, 1)
    assert told(client) == [(0, 9), (1, 0)]


def test_with_deduplication_what_came_behind_is_asked_for_again() -> None:
    node = World("a")["a"]
    node.create()
    node.apply(node.broker.resources.change_policies(NAMESPACE, deduplication_enabled=True))
    client = opened(node)
    send(client, 0, **IDS)
    assert told(client) == [(0, 22)]
    assert client.answers[-1].type == 15
    assert node.topic.entries_in == 0
    assert usable(client)


def test_a_message_in_a_transaction_to_a_topic_that_stores_nothing() -> None:
    node = World("a")["a"]
    client = opened(node, VOLATILE)
    consumer = client.subscribe("s", topic=VOLATILE)
    client.flow(consumer)
    client.answers.clear()
    send(client, 0, **IDS)
    send(client, 1)
    assert told(client) == [(0, 22), (1, 0)]
    assert len(client.take(consumer)) == 1


# ----------------------------------------------------------------------------------------------------------------- ACK


@pytest.mark.parametrize(
    ("kind", "cumulative", "asks"), list(itertools.product([0, 1], [False, True], [True, False])), ids=str
)
def test_an_acknowledgement_in_a_transaction_is_not_applied(kind: int, cumulative: bool, asks: bool) -> None:
    node = World("a")["a"]
    node.create()
    client = node.client()
    consumer = client.subscribe("s", kind, replicated=False)
    node.world.work()
    client.flow(consumer)
    node.publish(b"one", b"two")
    first, second = client.take(consumer)
    client.answers.clear()

    def ack(**ids: Any) -> pb.BaseCommand | None:
        command = pb.CommandAck(consumer_id=consumer, ack_type=int(cumulative and kind == 0), **ids)
        command.message_id.add(ledgerId=second.position.ledger, entryId=second.position.entry)
        client.send(pb.BaseCommand(type=10, ack=command))
        node.world.advance(1_000)
        return client.answers[-1] if client.answers else None

    answer = ack(**IDS, **({"request_id": 9} if asks else {}))
    subscription = node.topic.subscriptions["s"]
    assert subscription.backlog_entries() == 2
    if asks:
        assert answer is not None
        assert (answer.type, answer.ackResponse.request_id, answer.ackResponse.error) == (38, 9, 22)
        assert (answer.ackResponse.consumer_id, bool(answer.ackResponse.message)) == (consumer, True)
    else:
        assert answer is None
    after = ack(request_id=10)
    assert after is not None
    assert (after.ackResponse.request_id, after.ackResponse.HasField("error")) == (10, False)
    assert subscription.backlog_entries() == (0 if cumulative and kind == 0 else 1)
    assert first.position < second.position


def test_an_acknowledgement_in_a_transaction_on_a_topic_that_stores_nothing() -> None:
    client = World("a")["a"].client()
    consumer = client.subscribe("s", topic=VOLATILE)
    client.answers.clear()
    command = pb.CommandAck(consumer_id=consumer, ack_type=0, request_id=4, **IDS)
    client.send(pb.BaseCommand(type=10, ack=command))
    assert [(one.type, one.ackResponse.error) for one in client.answers] == [(38, 22)]
