"""A topic without partitions gets some, because its name has them in another cluster: nothing of it is lost."""

import shlex
from typing import Final

import pytest

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed
from magnetar.metadata.policies.namespace import IdempotencyPolicy
from magnetar.metadata.topic_records import TOPIC_PREFIX, cursor_key
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build
from tests.support.geosteps import SYNC_ON, Person, create_topic, held
from tests.support.geoworld import TOPIC, Node, World

OWN: Final = NamespaceName.parse("public/default")
FIRST: Final = f"{TOPIC}-partition-0"
SECOND: Final = f"{TOPIC}-partition-1"


def adopt(node: Node, partitions: int = 2) -> None:
    assert node.control_call(lambda done: node.control.topics.adopt_partitions(TOPIC, partitions, done)) is None


def split(synchronised: str = "") -> World:
    """Both clusters have made the topic while they could not hear of each other, a with partitions, b without."""
    world = World("ab", extra=synchronised)
    world.advance(3_000)
    world.cut = {("a", "b"), ("b", "a")}
    a, b = world["a"], world["b"]
    create_topic(a, 2)
    create_topic(b)
    for number in range(3):
        a.publish(b"a%d" % number, topic=SECOND)
        b.publish(b"b%d" % number)
    world.advance(1_000)
    return world


def reason(node: Node, to: str, topic: str) -> str:
    stop = node.broker.links.sources[to].topics[topic].blocked
    return "" if stop is None else f"{stop.kind}: {stop.reason}"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("synchronised", ["", SYNC_ON])
def test_two_forms_of_one_name_come_together(restarted: bool, synchronised: str) -> None:
    world = split(synchronised)
    a, b = world["a"], world["b"]
    world.cut.clear()
    world.advance(1_000)
    for node, to, topic in ((a, "b", FIRST), (b, "a", TOPIC)):
        told = reason(node, to, topic)
        assert told.startswith("partitions: ") and "in the first partition: " in told
        command = told.partition("in the first partition: ")[2]
        assert shlex.split(command) == [
            "magnetar",
            "topics",
            "adopt-partitions",
            TOPIC,
            "2",
            "--admin-url",
            b.broker.admin_url,
        ]
    adopt(b)
    if restarted:
        world.advance(1_000)
        b.restart()
    world.advance(6_000)  # synchronisation looks that often at what it could not make
    for node in (a, b):
        assert sorted([*held(node, FIRST), *held(node, SECOND)]) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
        assert sorted(text for text in node.broker.topics if text.startswith(TOPIC)) == [FIRST, SECOND]
        assert not node.broker.metasync.stuck
    for node in (a, b):
        node.publish(b"more", topic=FIRST)
    world.advance(1_000)
    assert not reason(a, "b", FIRST) and not reason(b, "a", FIRST)
    for node in (a, b):
        assert held(node, FIRST).count(b"more") == 2
        node.restart()
        world.advance(1_000)
        assert held(node, FIRST).count(b"more") == 2 and len(held(node, FIRST)) == 5


def test_subscriptions_go_on_where_they_were() -> None:
    node = World("a")["a"]
    create_topic(node)
    client = node.client()
    number = client.subscribe("s", 1, replicated=False)
    node.world.settle()
    client.flow(number)
    node.publish(*(b"%d" % number for number in range(6)))
    node.publish(b"batch", batch=4)
    got = client.take(number)
    client.ack(number, got[0], got[1], got[4])
    client.ack(number, got[6], ack_set=(0b1010,))
    node.world.advance(2_000)
    adopt(node)
    assert client.closed_consumers == [number]
    for _ in range(2):
        again = node.client()
        consumer = again.subscribe("s", 1, topic=FIRST, replicated=False)
        again.flow(consumer)
        node.world.advance(100)
        left = again.take(consumer)
        assert [message.data for message in left] == [b"2", b"3", b"5", b"batch"]
        assert left[-1].ack_set == (0b1010,)
        assert node.broker.topics[SECOND].subscriptions.keys() == {"s"}
        assert not {TOPIC_PREFIX + TOPIC, cursor_key(TOPIC, "s")} & node.meta.keys()
        node.restart()


def test_who_waits_meanwhile_is_told_to_try_again() -> None:
    node = World("a")["a"]
    create_topic(node)
    node.publish(b"x")
    producer = Person(node)
    producer.produce(1)
    node.world.settle()
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.adopt_partitions(TOPIC, 2, answers.append)
    node.world.settle()
    for request, name in enumerate((TOPIC, FIRST, SECOND), 2):
        person = Person(node)
        person.produce(request, name)
        answer = person.told(request)
        assert isinstance(answer, tuple) and answer[0] in (ErrorCode.SERVICE_NOT_READY, ErrorCode.TOPIC_NOT_FOUND)
    node.hold_stores = False
    node.world.advance(100)
    assert answers == [None]
    producer.produce(9)
    assert producer.refused(9, ErrorCode.SERVICE_NOT_READY, "is partitioned since just now")
    producer.produce(10, SECOND)
    node.world.settle()
    assert isinstance(producer.told(10), str)


def test_a_store_that_fails_leaves_the_topic_as_it_was() -> None:
    node = World("a")["a"]
    create_topic(node)
    answer = node.control_call(lambda done: node.control.subscriptions.create(TOPIC, "s", EARLIEST, False, {}, done))
    assert answer is None
    node.publish(b"x")
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.adopt_partitions(TOPIC, 2, answers.append)
    node.world.settle()
    while node.store.answer("full"):
        pass
    node.hold_stores = False
    node.world.advance(1_000)
    assert len(answers) == 1 and "full" in str(answers[0])
    assert sorted(node.broker.topics) == [TOPIC] and held(node) == [b"x"]
    adopt(node)
    assert held(node, FIRST) == [b"x"] and node.broker.topics[FIRST].subscriptions.keys() == {"s"}


def test_a_crash_at_any_moment_leaves_one_of_both() -> None:
    for stored in (False, True):
        node = World("a")["a"]
        create_topic(node)
        node.publish(b"x")
        node.hold_stores = not stored
        node.control.topics.adopt_partitions(TOPIC, 2, lambda _error: None)
        node.world.work()
        node.restart()
        node.hold_stores = False
        node.world.advance(100)
        assert sorted(node.broker.topics) == ([FIRST, SECOND] if stored else [TOPIC])
        assert held(node, FIRST if stored else TOPIC) == [b"x"]


def test_its_ledgers_are_neither_lost_nor_unknown_after_a_start_and_go_with_the_partition() -> None:
    node = World("a")["a"]
    create_topic(node)
    node.publish(b"x")
    adopt(node)
    node.publish(b"y", topic=FIRST)
    for _ in range(2):
        node.restart()
        assert not node.broker.proofs.unknown and not node.broker.proofs.dead
        assert held(node, FIRST) == [b"x", b"y"]
    assert node.control_call(lambda done: node.control.topics.delete(TOPIC, True, done)) is None
    node.restart()
    assert not node.broker.topics and not node.broker.proofs.unknown


def test_deduplication_goes_on() -> None:
    node = World("a")["a"]
    create_topic(node)
    node.apply(node.broker.resources.change_policies(OWN, deduplication_enabled=True))
    person = Person(node)
    person.produce(1, producer_name="p", user_provided_producer_name=True)
    node.world.settle()
    entry = build(pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1), b"x")
    person.client.send(pb.BaseCommand(type=6, send=pb.CommandSend(producer_id=1, sequence_id=7)), entry)
    node.world.settle()
    assert node.topic.deduplication is not None
    numbers = node.topic.deduplication.numbers.snapshot()
    adopt(node)
    for _ in range(2):
        found = node.broker.topics[FIRST].deduplication
        assert found is not None and found.numbers.snapshot() == numbers and numbers[0]
        node.restart()
        node.world.advance(100)


def test_what_cannot_be_is_refused() -> None:
    node = World("a")["a"]
    call = node.control.topics.adopt_partitions
    nothing: list[object] = []
    with pytest.raises(NotFound):
        call(TOPIC, 2, nothing.append)
    create_topic(node)
    node.apply(
        node.broker.resources.change_topic_policies(TopicName.parse(TOPIC), idempotency=IdempotencyPolicy("k", 60, 10))
    )
    with pytest.raises(
        PreconditionFailed, match="off first: magnetar topics set-idempotency .* --off --admin-url http"
    ):
        call(TOPIC, 2, nothing.append)
    other = f"{TOPIC}-parts"
    create_topic(node, 2, other)
    with pytest.raises(Conflict, match="is partitioned already: it has 2 partitions"):
        call(other, 2, nothing.append)
    plain = f"{TOPIC}-plain"
    create_topic(node, None, plain)
    node.create(f"{plain}-partition-0")  # of an earlier version
    with pytest.raises(Conflict, match="exists"):
        call(plain, 2, nothing.append)
    many = World("a", limits={"topics_max": 3})["a"]
    create_topic(many)
    with pytest.raises(PreconditionFailed, match="topics_max"):
        many.control.topics.adopt_partitions(TOPIC, 3, nothing.append)
    assert nothing == []
