"""SUBSCRIBE: where a consumer begins, and what is left of one that is refused."""

from typing import Any

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import EARLIEST, Position
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World


@pytest.fixture
def node() -> Node:
    node = World("a")["a"]
    node.create()
    return node


def at(position: Position) -> pb.MessageIdData:
    """A message id as it travels."""
    return pb.MessageIdData(ledgerId=position.ledger % (1 << 64), entryId=position.entry % (1 << 64))


def subscribe(client: Client, number: int = 1, **more: Any) -> None:
    """Ask for a consumer, and do not wait."""
    command: dict[str, Any] = {"topic": TOPIC, "subscription": "s", "subType": 0, "durable": False, **more}
    asked = pb.CommandSubscribe(consumer_id=number, request_id=1000 + number, **command)
    client.send(pb.BaseCommand(type=4, subscribe=asked))


def outcome(client: Client, number: int = 1) -> str:
    """How the newest request for a consumer ended: "in", or the error."""
    found = ""
    for command in client.answers:
        if command.type == 13 and command.success.request_id == 1000 + number:
            found = "in"
        elif command.type == 14 and command.error.request_id == 1000 + number:
            found = ErrorCode(command.error.error).name
    return found


def receive(client: Client, number: int = 1) -> list[bytes]:
    client.flow(number)
    client.node.world.work()
    return [message.data for message in client.take(number)]


# ------------------------------------------------------------------------------------------------------ where it begins


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, []),
        ({"initialPosition": 0}, []),
        ({"initialPosition": 1}, [b"1", b"2"]),
        ({"initialPosition": 0, "start_message_id": at(EARLIEST)}, [b"1", b"2"]),
    ],
)
def test_a_consumer_that_is_not_durable_begins_where_it_says(
    node: Node, more: dict[str, Any], expected: list[bytes]
) -> None:
    """By a message, as readers do, or else by the initial position: Java's and Go's non-durable consumers name no message."""
    node.publish(b"1", b"2")
    client = node.client()
    subscribe(client, **more)
    assert receive(client) == expected
    node.publish(b"3")
    assert receive(client) == [b"3"]
