"""The policy `replicateSubscriptionState` of a topic: it replicates without the clients, and wins over its namespace's."""

import pytest

from magnetar.core.names import NamespaceName, TopicName
from tests.support.geosteps import consumer
from tests.support.geoworld import TOPIC, Client, Node, World

NAMESPACE = NamespaceName.parse("public/default")
OTHER = "persistent://public/default/other"


def world_of(*topics: str) -> World:
    """Two linked clusters with topics in the first."""
    world = World()
    for topic in topics:
        world["a"].create(topic)
    world.settle()
    return world


def subscribed(node: Node, name: str, topic: str = TOPIC, *, asked: bool = False) -> tuple[Client, int]:
    """A consumer with everything that is there; its client asks for replication only if `asked`."""
    return consumer(node, name, topic=topic, replicated=asked)


def set_topic(node: Node, replicate: bool | None, topic: str = TOPIC) -> None:
    """What an administrator says of a topic."""
    resources = node.broker.resources
    node.apply(resources.change_topic_policies(TopicName.parse(topic), replicate_subscription_state=replicate))


def set_namespace(node: Node, replicate: bool | None) -> None:
    """What an administrator says of the namespace."""
    node.apply(node.broker.resources.change_policies(NAMESPACE, replicate_subscription_state=replicate))


def replicated(node: Node, topic: str = TOPIC) -> dict[str, bool]:
    """By subscription, as statistics tell."""
    found = node.control.statistics.topic(topic)["subscriptions"]
    return {name: one["isReplicated"] for name, one in sorted(found.items())}


def test_a_topics_policy_replicates_without_the_clients_and_without_its_namespace() -> None:
    world = world_of(TOPIC, OTHER)
    a, b = world["a"], world["b"]
    client, number = subscribed(a, "present")
    subscribed(a, "present", OTHER)
    positions = a.publish(b"0", b"1")
    a.publish(b"0", topic=OTHER)
    assert replicated(a) == {"present": False}
    set_topic(a, True)
    client.ack(number, positions[0])
    subscribed(a, "later")
    world.advance(500)
    assert replicated(a) == {"later": True, "present": True}
    assert replicated(b) == {"later": True, "present": True}
    assert b.topic.subscriptions["present"].backlog_entries() == 1, "the acknowledgement followed"
    assert replicated(a, OTHER) == {"present": False}, "another topic of the namespace does as its clients say"
    assert replicated(b, OTHER) == {}
    with pytest.raises(Exception, match="by policy"):
        a.control.replicated.set_replicated(TOPIC, "present", False, lambda _error: None)


def test_a_topics_policy_outlives_the_broker() -> None:
    world = world_of(TOPIC)
    set_topic(world["a"], True)
    world["a"].restart()
    world.settle()
    subscribed(world["a"], "s")
    world.advance(500)
    assert (replicated(world["a"]), replicated(world["b"])) == ({"s": True}, {"s": True})


def test_a_topics_false_overrides_its_namespaces_true() -> None:
    world = world_of(TOPIC, OTHER)
    a, b = world["a"], world["b"]
    a.publish(b"0")
    a.publish(b"0", topic=OTHER)
    subscribed(a, "present")
    set_topic(a, False)
    set_namespace(a, True)
    subscribed(a, "later")
    subscribed(a, "asked", asked=True)
    subscribed(a, "later", OTHER)
    world.advance(500)
    assert replicated(a) == {"asked": True, "later": False, "present": False}, "as clients ask"
    assert replicated(b) == {"asked": True}
    assert (replicated(a, OTHER), replicated(b, OTHER)) == ({"later": True}, {"later": True})
    assert a.control_call(lambda done: a.control.replicated.set_replicated(TOPIC, "asked", False, done)) is None
    assert not replicated(a)["asked"], "no policy says so of all, an administrator may"
    set_topic(a, None)
    world.advance(500)
    everything = {"asked": True, "later": True, "present": True}
    assert (replicated(a), replicated(b)) == (everything, everything), "the namespace's again"


def test_taken_back_it_leaves_what_it_replicated() -> None:
    world = world_of(TOPIC)
    a = world["a"]
    set_topic(a, True)
    subscribed(a, "s")
    set_topic(a, None)
    subscribed(a, "later")
    assert replicated(a) == {"later": False, "s": True}, "only an administrator takes it back"
    assert a.control_call(lambda done: a.control.replicated.set_replicated(TOPIC, "s", False, done)) is None
    assert replicated(a) == {"later": False, "s": False}


def test_what_is_not_durable_is_never_replicated() -> None:
    world = world_of(TOPIC)
    a = world["a"]
    reader = a.client()
    reader.subscribe("present", replicated=False, durable=False)
    world.settle()
    set_topic(a, True)
    reader.subscribe("later", replicated=False, durable=False)
    subscribed(a, "s")
    world.advance(500)
    assert replicated(a) == {"later": False, "present": False, "s": True}
    assert replicated(world["b"]) == {"s": True}


def test_partitions_follow_the_policy_of_the_partitioned_topic() -> None:
    world = world_of()
    a, b = world["a"], world["b"]
    assert a.control_call(lambda done: a.control.topics.create(OTHER, 2, {}, done)) is None
    parts = [f"{OTHER}-partition-{number}" for number in range(2)]
    clients = [subscribed(a, "present", part) for part in parts]
    set_topic(a, True, OTHER)
    for part, (client, number) in zip(parts, clients, strict=True):
        position, _ = a.publish(b"0", b"1", topic=part)
        client.ack(number, position)
        subscribed(a, "later", part)
    world.advance(500)
    for part in parts:
        assert replicated(a, part) == {"later": True, "present": True}
        assert replicated(b, part) == {"later": True, "present": True}
        assert b.broker.topics[part].subscriptions["present"].backlog_entries() == 1
    assert a.control_call(lambda done: a.control.topics.update_partitions(OTHER, 3, done)) is None
    grown = f"{OTHER}-partition-2"
    subscribed(a, "s", grown)
    assert replicated(a, grown)["s"], "a partition that came later"
    set_namespace(a, True)
    set_topic(a, False, OTHER)
    subscribed(a, "local", grown)
    assert not replicated(a, grown)["local"], "false of the partitioned topic overrides, too"
