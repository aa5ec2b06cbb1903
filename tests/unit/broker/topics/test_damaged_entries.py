"""A flipped bit in what is stored: who reads in order stops in front of it, says so, and goes on when an operator gives it up."""

from typing import Any

import pytest

from magnetar.broker.statistics import subscription_stats
from magnetar.core.errors import BrokerError, MagnetarError
from magnetar.core.ids import Position
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node, World


@pytest.fixture
def node() -> Node:
    node = World("a", cache_bytes=1)["a"]  # nothing is read from memory
    node.create()
    return node


def flip(node: Node, needle: bytes) -> None:
    """One bit of what is stored."""
    found = 0
    for path, file in node.files._files.items():
        data = getattr(file, "data", None)
        if data is not None and path.suffix == ".seg" and (at := bytes(data).find(needle)) >= 0:
            data[at] ^= 1
            found += 1
    assert found == 1


def readings(client: Client, consumer: int) -> list[bytes]:
    """What came since the last time."""
    client.node.world.advance(3_000)
    return [message.data for message in client.take(consumer)]


def published(node: Node) -> list[Position]:
    """Five messages, of which the third is damaged."""
    positions = [node.publish(b"message-%d" % number)[0] for number in range(5)]  # each synced by itself
    flip(node, b"message-2")
    return positions


def subscribed(client: Client, name: str, kind: int, **more: Any) -> int:
    """A consumer that takes anything."""
    consumer = client.subscribe(name, kind, replicated=False, **more)
    client.node.world.work()
    client.flow(consumer)
    return consumer


def reader(client: Client) -> int:
    """A reader, from the beginning."""
    start = pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)
    return subscribed(client, "reader", 0, durable=False, start_message_id=start)


def give_up(node: Node, position: Position) -> MagnetarError | None:
    outcomes: list[MagnetarError | None] = []
    node.control.messages.give_up(TOPIC, position, outcomes.append)
    node.world.work()
    node.world.advance(3_000)
    return outcomes[0]


REST = [b"message-0", b"message-1"]
BEHIND = [b"message-3", b"message-4"]


@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=["Exclusive", "Shared", "Failover", "Key_Shared"])
@pytest.mark.parametrize("acknowledging", [True, False])
def test_it_stops_is_told_of_and_goes_on_when_it_is_given_up(node: Node, kind: int, acknowledging: bool) -> None:
    positions = published(node)
    client = node.client()
    consumer = subscribed(client, "s", kind)
    node.world.advance(3_000)
    first = client.take(consumer)
    assert [message.data for message in first] == REST
    if acknowledging:
        client.ack(consumer, *first)
    (stopped,) = node.control.messages.stopped(TOPIC)
    assert (stopped["subscription"], stopped["position"]) == ("s", str(positions[2]))
    stats = subscription_stats.stats(node.topic.subscriptions["s"])
    assert stats["stoppedAt"] == str(positions[2]) and stats["stoppedReason"]
    way_out = node.broker.context.command("topics", "give-up", TOPIC, str(positions[2]))
    assert any(f"to give it up: {way_out}" in note.text for note in node.notes if note.level == "error")

    assert give_up(node, positions[2]) is None
    assert [message.data for message in client.take(consumer)] == BEHIND
    assert not node.control.messages.stopped(TOPIC) and "stoppedAt" not in subscription_stats.stats(
        node.topic.subscriptions["s"]
    )
    assert node.broker.damage.given_up == 1
    assert any("gave up 1 messages" in note.text for note in node.notes if note.level == "warning")
    assert node.topic.subscriptions["s"].cursor.backlog_messages() == (2 if acknowledging else 4)
    assert give_up(node, positions[2]) is None and node.broker.damage.given_up == 1, "once"


def test_readers_that_are_there_and_those_that_come_later(node: Node) -> None:
    positions = published(node)
    client = node.client()
    consumer = reader(client)
    assert readings(client, consumer) == REST
    assert give_up(node, positions[2]) is None
    assert [message.data for message in client.take(consumer)] == BEHIND
    node.restart()
    client = node.client()
    later, durable = reader(client), subscribed(client, "later", 2)
    assert readings(client, later) == REST + BEHIND
    assert [message.data for message in client.take(durable)] == REST + BEHIND


def test_what_can_be_read_is_not_given_up(node: Node) -> None:
    positions = published(node)
    error = give_up(node, positions[1])
    assert isinstance(error, PreconditionFailed) and "can be read: nothing is given up" in str(error)
    with pytest.raises(NotFound):
        node.control.messages.give_up(TOPIC, Position(positions[0].ledger, 99), print)
    client = node.client()
    consumer = subscribed(client, "s", 0)
    assert readings(client, consumer) == REST


def test_what_the_store_did_not_take_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = published(node)
    outcomes: list[MagnetarError | None] = []
    node.hold_stores = True
    node.control.messages.give_up(TOPIC, positions[2], outcomes.append)
    node.world.work()
    assert not outcomes
    assert node.store.answer("no room")
    assert isinstance(outcomes[0], BrokerError) and "no room" in str(outcomes[0])


def test_several_in_a_row_and_at_the_end(node: Node) -> None:
    positions = node.publish(*(b"message-%d" % number for number in range(6)))
    for number in (1, 2, 5):
        flip(node, b"message-%d" % number)
    client = node.client()
    consumer = subscribed(client, "s", 0)
    assert readings(client, consumer) == [b"message-0"]
    for number in (5, 2, 1):
        assert give_up(node, positions[number]) is None
    assert readings(client, consumer) == BEHIND
    assert not node.control.messages.stopped(TOPIC)
    more = node.publish(b"message-6")
    assert readings(client, consumer) == [b"message-6"] and more


def test_a_link_that_it_blocks_has_a_skip_of_its_own() -> None:
    world = World("ab", cache_bytes=1)
    a, b = world["a"], world["b"]
    a.create()
    world.advance(5_000)
    a.up = False  # nothing is sent meanwhile
    a.up = True
    a.hold_log = False
    positions = published(a)
    world.advance(10_000)
    link = a.broker.links.sources["b"]
    blocked = [one for one in link.status(1).blocked if one.topic == TOPIC]
    assert [one.kind for one in blocked] == ["corrupt"], "the messages in front of it are there, it is not"
    assert give_up(a, positions[2]) is None
    world.advance(90_000)
    assert [one.kind for one in link.status(1).blocked] == ["corrupt"]
    outcomes: list[MagnetarError | None] = []
    a.control.links.skip("b", TOPIC, None, outcomes.append)
    world.advance(90_000)
    assert outcomes == [None] and not link.status(1).blocked
    client = b.client()
    consumer = subscribed(client, "s", 0)
    assert readings(client, consumer) == REST + BEHIND
