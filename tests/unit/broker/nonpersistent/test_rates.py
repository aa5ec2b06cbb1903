"""The publish rate and the most producers of topics that store nothing: as of stored ones."""

from typing import Any

import pytest

from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.policies.types import PublishRate
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geoworld import Client, Node, World

NAMESPACE = NamespaceName.parse("public/default")
PASSING = "non-persistent://public/default/t"


class Publisher:
    """A producer by its bytes; ids and names are the same number."""

    def __init__(self, node: Node, number: int, client: Client | None = None) -> None:
        self.node, self.number = node, number
        self.client = client or node.client()
        opening = pb.CommandProducer(topic=PASSING, producer_id=number, request_id=number, producer_name=str(number))
        self.client.send(pb.BaseCommand(type=5, producer=opening))
        node.world.work()

    def send(self, *sequences: int, size: int = 1) -> None:
        for sequence in sequences:
            seen = pb.MessageMetadata(producer_name=str(self.number), sequence_id=sequence, publish_time=1)
            command = pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=self.number, sequence_id=sequence))
            self.client.send(command, build(seen, b"x" * size))

    def receipts(self) -> list[int]:
        """Sequence ids, in the order of their receipts."""
        self.node.world.work()
        told = [one.send_receipt for one in self.client.answers if one.HasField("send_receipt")]
        return [one.sequence_id for one in told if one.producer_id == self.number]

    def close(self) -> None:
        command = pb.CommandCloseProducer(producer_id=self.number, request_id=100 + self.number)
        self.client.send(pb.BaseCommand(type=15, close_producer=command))


@pytest.fixture
def node() -> Node:
    node = World("a")["a"]
    node.apply(node.broker.resources.change_policies(NAMESPACE, publish_rate=PublishRate(1, -1)))
    return node


def topic_of(node: Node) -> NonPersistentTopic:
    return node.broker.nonpersistent.topics[PASSING]


def test_what_is_over_the_rate_waits_and_comes_in_order(node: Node) -> None:
    one, other = Publisher(node, 1), Publisher(node, 2)
    for sequence in range(3):
        one.send(sequence)
        other.send(sequence)
    assert len(one.receipts()) + len(other.receipts()) < 6
    assert topic_of(node).stats()["publishRateLimitedTimes"] > 0
    node.world.advance(20_000)
    assert one.receipts() == other.receipts() == [0, 1, 2]
    assert topic_of(node).messages_in == 6


@pytest.mark.parametrize("own", [True, False])
def test_a_rate_that_is_taken_back_lets_go_what_waits(node: Node, own: bool) -> None:
    resources = node.broker.resources
    one = Publisher(node, 1)
    one.send(0, 1, 2, 3)
    assert len(one.receipts()) < 4
    if own:
        node.apply(resources.change_topic_policies(TopicName.parse(PASSING), publish_rate=PublishRate(1_000_000, -1)))
    else:
        node.apply(resources.change_policies(NAMESPACE, publish_rate=None))
    node.world.advance(100)
    assert one.receipts() == [0, 1, 2, 3]
    one.send(4, 5, 6)
    assert one.receipts()[-1] == 6


def test_a_producer_that_is_closed_goes_behind_what_waits_of_it(node: Node) -> None:
    one = Publisher(node, 1)
    one.send(0, 1, 2)
    one.close()
    one.send(3)  # behind its own close: nobody is there for it
    assert one.client.answered(101) is None
    node.world.advance(20_000)
    assert one.receipts() == [0, 1, 2]
    answered = one.client.answered(101)
    assert answered is not None and answered.HasField("success")
    assert PASSING not in node.broker.nonpersistent.topics


@pytest.mark.parametrize("evicted", [True, False])
def test_what_waits_of_a_producer_that_goes_otherwise_is_forgotten(node: Node, evicted: bool) -> None:
    kept, one = Publisher(node, 2), Publisher(node, 1)
    one.send(0, 1, 2)
    topic = topic_of(node)
    assert topic.publish_throttle is not None and topic.publish_throttle.waiting_messages
    if evicted:
        node.run(node.broker.clients.close_producer, topic.producers.live["1"])
    else:
        node.run(node.broker.disconnected, one.client.number)
    assert not topic.publish_throttle.waiting_messages
    node.world.advance(20_000)
    assert len(one.receipts()) < 3
    kept.send(0)
    assert kept.receipts() == [0]


def test_a_closing_one_that_is_evicted_has_its_answer_and_no_other(node: Node) -> None:
    one = Publisher(node, 1)
    one.send(0, 1, 2)
    one.close()
    node.run(node.broker.clients.close_producer, topic_of(node).producers.live["1"])
    told: list[Any] = [one.client.answered(101), [one for one in one.client.answers if one.type == 15]]
    assert told[0] is not None and told[0].HasField("success") and not told[1]


def test_much_that_waits_stops_the_connection_until_half_is_gone(node: Node) -> None:
    one = Publisher(node, 1)
    session = node.broker.sessions[one.client.number].connection
    one.send(0, 1, 2, size=200_000)
    assert session.held
    node.world.advance(20_000)
    assert not session.held and one.receipts() == [0, 1, 2]


def test_the_most_producers_follow_the_policy(node: Node) -> None:
    Publisher(node, 1)
    node.apply(node.broker.resources.change_policies(NAMESPACE, max_producers_per_topic=1))
    refused = Publisher(node, 2)
    (told,) = [one.error for one in refused.client.answers if one.HasField("error")]
    assert "producers" in told.message


def test_a_malformed_message_that_waited_ends_its_connection_alone(node: Node) -> None:
    bad, good = Publisher(node, 1), Publisher(node, 2)
    bad.send(0, 1)
    bad.client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=2)), b"x")
    good.send(0, 1)
    node.world.advance(20_000)
    assert bad.client.number not in node.broker.sessions and good.receipts() == [0, 1]
