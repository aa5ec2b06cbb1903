"""Whoever wants what another client has: is that one still there?"""

from typing import Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geoworld import TOPIC, Client, Node

PING: Final = 18
PASSING: Final = "non-persistent://public/default/t"


class Person:
    """One client, with a producer and a consumer of the id 1."""

    def __init__(self, node: Node, topic: str = TOPIC) -> None:
        self.node, self.topic = node, topic
        self.client: Client = node.client()

    def subscribe(self, request: int, kind: int = 0, **more: object) -> None:
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription="s",
            subType=kind,
            consumer_id=1,
            request_id=request,
            initialPosition=1,
            **more,
        )  # type: ignore[arg-type]
        self.client.send(pb.BaseCommand(type=4, subscribe=command))
        self.node.world.work()

    def produce(self, request: int) -> None:
        command = pb.CommandProducer(topic=self.topic, producer_id=1, request_id=request, producer_name="p")
        self.client.send(pb.BaseCommand(type=5, producer=command))

    def close(self, request: int) -> None:
        self.client.send(pb.BaseCommand(type=16, close_consumer={"consumer_id": 1, "request_id": request}))

    def lives(self) -> None:
        """It answers a ping."""
        assert self.pinged()
        self.client.send(pb.BaseCommand(type=19, pong=pb.CommandPong()))

    def pinged(self) -> int:
        return sum(command.type == PING for command in self.client.answers)

    def told(self, request: int) -> ErrorCode | str | None:
        for command in self.client.answers:
            if command.type == 14 and command.error.request_id == request:
                return ErrorCode(command.error.error)
            if command.type in (13, 17) and self.client.answered(request) is command:
                return "done"
        return None


def consumers(node: Node) -> list[int]:
    return [consumer.connection for consumer in node.topic.subscriptions["s"].consumers]


@pytest.mark.parametrize("more", [{}, {"durable": False, "start_message_id": pb.MessageIdData(ledgerId=0, entryId=0)}])
def test_an_exclusive_consumer_that_is_gone_without_a_word_leaves_its_place(
    node: Node, more: dict[str, object]
) -> None:
    """Its computer lost its power, or its network: nobody closed the connection."""
    gone, successor = Person(node), Person(node)
    gone.subscribe(1, **more)
    successor.subscribe(1, **more)
    assert (gone.pinged(), successor.told(1)) == (1, None)
    node.world.advance(3_000)
    assert successor.told(1) == "done" and consumers(node) == [successor.client.number]
    assert gone.client.number not in node.broker.sessions
    node.publish(b"x")
    successor.client.flow(1)
    assert len(successor.client.take(1)) == 1


def test_one_that_lives_keeps_its_place_and_the_other_is_told_at_once(node: Node) -> None:
    one, other = Person(node), Person(node)
    one.subscribe(1)
    other.subscribe(1)
    one.lives()
    assert other.told(1) is ErrorCode.CONSUMER_BUSY and consumers(node) == [one.client.number]
    node.world.advance(60_000)
    assert consumers(node) == [one.client.number], "what was asked once is not held against it later"
    other.subscribe(2)
    assert one.pinged() == 2
    node.world.advance(2_999)
    assert other.told(2) is None
    node.world.advance(1)
    assert other.told(2) == "done" and consumers(node) == [other.client.number]


def test_one_that_leaves_just_then_leaves_its_place(node: Node) -> None:
    one, other = Person(node), Person(node)
    one.subscribe(1)
    other.subscribe(1)
    one.close(2)
    assert other.told(1) == "done"
    third = Person(node)
    third.subscribe(1)
    node.run(node.broker.disconnected, other.client.number)
    node.world.work()
    assert third.told(1) == "done" and consumers(node) == [third.client.number]


def test_of_several_that_want_a_place_one_gets_it(node: Node) -> None:
    gone, *others = (Person(node) for _ in range(4))
    gone.subscribe(1)
    for other in others:
        other.subscribe(1)
    assert gone.pinged() == 1
    node.world.advance(3_000)
    assert [other.told(1) for other in others] == ["done", ErrorCode.CONSUMER_BUSY, ErrorCode.CONSUMER_BUSY]


def test_whoever_wants_it_no_more_does_not_get_it(node: Node) -> None:
    gone, one, other = Person(node), Person(node), Person(node)
    gone.subscribe(1)
    one.subscribe(1)
    other.subscribe(1)
    one.close(2)
    assert one.told(1) is ErrorCode.SERVICE_NOT_READY
    node.run(node.broker.disconnected, other.client.number)
    node.world.advance(3_000)
    assert consumers(node) == []


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (2, 0)])
def test_of_other_types_nobody_is_asked(node: Node, first: int, second: int) -> None:
    """As in Pulsar."""
    one, other = Person(node), Person(node)
    one.subscribe(1, first)
    other.subscribe(1, second)
    assert (one.pinged(), other.told(1)) == (0, ErrorCode.CONSUMER_BUSY)


def ranges(*pairs: tuple[int, int]) -> pb.KeySharedMeta:
    """Sticky hash ranges."""
    return pb.KeySharedMeta(keySharedMode=1, hashRanges=[pb.IntRange(start=first, end=last) for first, last in pairs])


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
def test_hash_ranges_of_one_that_is_gone_without_a_word_are_free(node: Node, topic: str) -> None:
    gone, lives, successor = (Person(node, topic) for _ in range(3))
    gone.subscribe(1, 3, keySharedMeta=ranges((0, 9), (20, 29)))
    lives.subscribe(1, 3, keySharedMeta=ranges((10, 19)))
    successor.subscribe(1, 3, keySharedMeta=ranges((25, 40)))
    assert (gone.pinged(), lives.pinged(), successor.told(1)) == (1, 0, None)
    node.world.advance(3_000)
    assert successor.told(1) == "done"
    other = Person(node, topic)
    other.subscribe(1, 3, keySharedMeta=ranges((0, 9), (19, 19)))
    lives.lives()
    assert other.told(1) is ErrorCode.CONSUMER_ASSIGN
    other.subscribe(2, 3, keySharedMeta=ranges((0, 9)))
    assert other.told(2) == "done"


@pytest.mark.parametrize("topic", [TOPIC, PASSING])
@pytest.mark.parametrize("wanted", [[], [(5, 3)], [(70_000, 70_001)]])
def test_for_ranges_that_cannot_be_nobody_is_asked(node: Node, topic: str, wanted: list[tuple[int, int]]) -> None:
    one, other = Person(node, topic), Person(node, topic)
    one.subscribe(1, 3, keySharedMeta=ranges((0, 9)))
    other.subscribe(1, 3, keySharedMeta=ranges(*wanted))
    assert (one.pinged(), other.told(1)) == (0, ErrorCode.CONSUMER_ASSIGN)


def test_the_name_of_a_producer_that_lives_is_refused_at_once(node: Node) -> None:
    one, other = Person(node), Person(node)
    one.produce(1)
    other.produce(1)
    assert other.told(1) is None
    one.lives()
    assert other.told(1) is ErrorCode.PRODUCER_BUSY
    other.produce(2)
    node.world.advance(3_000)
    assert other.told(2) == "done"


# -------------------------------------------------------------------------------------------------- nothing that is stored


def test_so_it_is_on_a_topic_that_stores_nothing(node: Node) -> None:
    one, other = Person(node, PASSING), Person(node, PASSING)
    one.subscribe(1)
    other.subscribe(1)
    assert other.told(1) is None
    one.lives()
    assert other.told(1) is ErrorCode.CONSUMER_BUSY
    other.subscribe(2)
    node.world.advance(3_000)
    assert other.told(2) == "done"
    subscription = node.broker.nonpersistent.topics[PASSING].subscriptions["s"]
    assert [consumer.connection for consumer in subscription.consumers] == [other.client.number]


def test_so_it_is_with_a_producers_name_there(node: Node) -> None:
    one, other, third = (Person(node, PASSING) for _ in range(3))
    one.produce(1)
    other.produce(1)
    assert other.told(1) is None
    one.lives()
    assert other.told(1) is ErrorCode.PRODUCER_BUSY
    other.produce(2)
    third.produce(1)
    other.client.send(pb.BaseCommand(type=15, close_producer={"producer_id": 1, "request_id": 3}))
    assert other.told(2) is ErrorCode.SERVICE_NOT_READY
    node.world.advance(3_000)
    assert third.told(1) == "done"
    live = node.broker.nonpersistent.topics[PASSING].producers.live
    assert [producer.connection for producer in live.values()] == [third.client.number]
