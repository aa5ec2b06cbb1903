"""Partitions that come later: their messages wait for the subscriptions that the topic has."""

import pytest

from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import Unprocessable
from magnetar.metadata.topic_records import TOPIC_PREFIX
from tests.support.geosteps import consumer, got
from tests.support.geoworld import Node, World

BASE = "persistent://public/default/p"
FIRST, SECOND, THIRD = (f"{BASE}-partition-{number}" for number in range(3))


def make(node: Node, partitions: int = 1) -> None:
    assert node.control_call(lambda done: node.control.topics.create(BASE, partitions, {}, done)) is None


def grow(node: Node, partitions: int) -> None:
    assert node.control_call(lambda done: node.control.topics.update_partitions(BASE, partitions, done)) is None


def test_what_is_published_before_consumers_have_heard_of_a_partition_waits_for_them() -> None:
    node = World("a")["a"]
    make(node)
    consumer(node, topic=FIRST, earliest=False, replicated=False)
    grow(node, 3)
    node.publish(b"early", topic=THIRD)
    client, number = consumer(node, topic=THIRD, earliest=False, replicated=False)
    assert got(client, number) == [b"early"]


def test_durable_subscriptions_are_as_those_of_the_first_partition() -> None:
    world = World("a")
    node = world["a"]
    make(node, 2)
    made = node.control_call(
        lambda done: node.control.subscriptions.create(FIRST, "s", EARLIEST, True, {"k": "v"}, done)
    )
    assert made is None
    consumer(node, "reader", topic=FIRST, durable=False)
    consumer(node, "second", topic=SECOND, replicated=False)
    grow(node, 3)
    for there in (node, node.restart()):
        told = {topic: set(there.control.subscriptions.names(topic)) for topic in (SECOND, THIRD)}
        assert told == {SECOND: {"second"}, THIRD: {"s"}}
        new = there.broker.topics[THIRD].subscriptions["s"]
        assert new.replicated and new.cursor.labels == {"k": "v"}


def test_growth_that_a_link_brings_does_so_too() -> None:
    node = World("ab")["a"]

    def brought(partitions: int) -> None:
        told: list[str] = []
        node.run(node.broker.links.host.create, TopicName.parse(BASE), partitions, told.append)
        node.world.work()
        assert told == [""]

    brought(1)
    consumer(node, topic=FIRST, replicated=False)
    brought(2)
    assert node.control.subscriptions.names(SECOND) == ["s"]
    brought(2)
    assert node.control.subscriptions.names(SECOND) == ["s"]


def test_one_that_a_limit_refuses_is_a_warning() -> None:
    node = World("a")["a"]
    make(node)
    for name in ("one", "two"):
        consumer(node, name, topic=FIRST, replicated=False)
    public = NamespaceName.parse("public/default")
    node.apply(node.broker.resources.change_policies(public, max_subscriptions_per_topic=1))
    grow(node, 2)
    assert node.control.subscriptions.names(SECOND) == ["one"]
    (note,) = [note for note in node.notes if "begins without" in note.text]
    assert note.level == "warning" and "subscription two" in note.text


def test_as_many_as_there_are_bring_back_what_is_missing() -> None:
    world = World("a")
    node = world["a"]
    make(node, 3)
    consumer(node, topic=FIRST, replicated=False)
    grow(node, 3)
    assert node.control.subscriptions.names(SECOND) == []
    node.kill()
    del node.meta[TOPIC_PREFIX + THIRD]
    node.start()
    assert node.control.topics.partitions(THIRD) is None
    grow(node, 3)
    assert node.control.subscriptions.names(THIRD) == ["s"]
    with pytest.raises(Unprocessable):
        grow(node, 2)
