"""What keeps an administrator from deleting a topic without force: who is connected, and copies in other clusters."""

import pytest

from magnetar.core.ids import EARLIEST
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import PreconditionFailed, Unprocessable
from magnetar.metadata.permissions import Action, grant
from magnetar.metadata.policies.namespace import RetentionPolicies
from magnetar.metadata.policies.topic import TopicPolicies
from magnetar.metadata.topic_records import TOPIC_PREFIX, cursor_key
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import SYNC_ON, consumer
from tests.support.geoworld import TOPIC, Node, World

OWN = NamespaceName.parse("public/default")


def alone() -> Node:
    """A cluster without links, with a topic, a message and a subscription that nobody uses."""
    node = World("a")["a"]
    node.create()
    subscribe(node, TOPIC)
    node.publish(b"x")
    return node


def subscribe(node: Node, topic: str) -> None:
    answer = node.control_call(lambda done: node.control.subscriptions.create(topic, "s", EARLIEST, False, {}, done))
    assert answer is None


def delete(node: Node, topic: str = TOPIC, *, force: bool = False) -> None:
    assert node.control_call(lambda done: node.control.topics.delete(topic, force, done)) is None


def test_subscriptions_that_nobody_uses_go_with_their_topic() -> None:
    node = alone()
    delete(node)
    assert not node.broker.topics
    assert not {TOPIC_PREFIX + TOPIC, cursor_key(TOPIC, "s")} & node.meta.keys()
    assert TOPIC not in node.restart().broker.topics


def test_a_consumer_or_a_producer_keeps_it() -> None:
    node = alone()
    client, number = consumer(node, replicated=False)
    with pytest.raises(PreconditionFailed, match="0 producers and 1 consumers"):
        delete(node)
    client.send(pb.BaseCommand(type=16, close_consumer=pb.CommandCloseConsumer(consumer_id=number, request_id=7)))
    client.send(pb.BaseCommand(type=5, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=8)))
    with pytest.raises(PreconditionFailed, match="1 producers and 0 consumers"):
        delete(node)
    assert node.topic.subscriptions.keys() == {"s"}
    client.send(pb.BaseCommand(type=15, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=9)))
    delete(node)
    assert not node.broker.topics


def test_who_waits_for_exclusive_access_keeps_it() -> None:
    node = alone()
    client = node.client()
    for number, mode in (
        (1, pb.CommandProducer(producer_access_mode=1)),
        (2, pb.CommandProducer(producer_access_mode=2)),
    ):
        mode.MergeFrom(pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=number))
        client.send(pb.BaseCommand(type=5, producer=mode))
    with pytest.raises(PreconditionFailed, match="2 producers"):
        delete(node)


def test_a_reader_keeps_it() -> None:
    node = alone()
    consumer(node, "reader-1", durable=False, replicated=False)
    with pytest.raises(PreconditionFailed, match="1 consumers"):
        delete(node)


def test_one_used_partition_keeps_them_all() -> None:
    node = alone()
    base = TOPIC + "-parts"
    assert node.control_call(lambda done: node.control.topics.create(base, 3, {}, done)) is None
    names = [f"{base}-partition-{number}" for number in range(3)]
    subscribe(node, names[0])
    client, number = consumer(node, topic=names[2], replicated=False)
    with pytest.raises(PreconditionFailed, match=f"{names[2]} has"):
        delete(node, base)
    assert set(names) <= node.broker.topics.keys()
    client.unsubscribe(number)
    delete(node, base)
    assert node.broker.topics.keys() == {TOPIC}


def test_a_replicated_one_goes_by_force_alone() -> None:
    node = World("abc", routes=[("a", "b"), ("b", "a"), ("c", "a")])["a"]
    node.create()
    with pytest.raises(Unprocessable, match="is replicated to b, where it would stay"):
        delete(node)
    delete(node, force=True)
    assert not node.broker.topics


def test_one_that_is_no_longer_replicated_goes() -> None:
    world = World("ab")
    node = world["a"]
    node.create()
    node.apply(node.broker.resources.set_replication(OWN, ["a"]))
    world.advance(1_000)
    delete(node)
    assert not node.broker.topics


def furnish(node: Node, topic: str = TOPIC) -> None:
    """Give a topic a policy and a permission of its own."""
    name, resources = TopicName.parse(topic), node.broker.resources
    node.apply(resources.change_topic_policies(name, retention_policies=RetentionPolicies(60, 60)))
    node.apply(grant(resources, name, "bob", [Action.PRODUCE]))


def furnished(node: Node, topic: str = TOPIC) -> tuple[bool, bool]:
    """Whether it has its policy, its permission; those that are stored are the same."""
    name, resources = TopicName.parse(topic), node.broker.resources
    found = resources.topic_policies(name).retention_policies is not None, bool(resources.permissions.of(name))
    stored = [any(key.startswith(prefix) for key in node.meta) for prefix in ("topicpolicies/", "permissions/topics/")]
    assert stored == [*found]
    return found


def test_its_policies_and_permissions_go_with_it() -> None:
    """Somebody's new topic of the name had them."""
    node = alone()
    furnish(node)
    delete(node)
    assert furnished(node) == (False, False)
    node.create()
    assert node.broker.resources.topic_policies(node.topic.name) == TopicPolicies()
    node.restart()
    assert furnished(node) == (False, False)


def test_those_of_a_partitioned_topic_go_with_the_last_partition() -> None:
    node = alone()
    base = TOPIC + "-parts"
    furnish(node)  # of another topic, whose name begins the same
    assert node.control_call(lambda done: node.control.topics.create(base, 2, {}, done)) is None
    furnish(node, base)
    partition = node.broker.topics[base + "-partition-1"]
    node.run(lambda: node.broker.catalog.delete(partition, force=True, done=lambda _error: None))
    node.world.work()
    assert partition.text not in node.broker.topics
    assert furnished(node, base) == (True, True)
    delete(node, base)
    assert furnished(node) == (True, True)
    assert not node.broker.resources.permissions.of(TopicName.parse(base))
    assert node.broker.resources.topic_policies(TopicName.parse(base)).retention_policies is None


def test_those_of_a_topic_without_storage_go_when_it_is_deleted_by_name() -> None:
    node = World("a")["a"]
    topic = "non-persistent://public/default/passing"
    client, _ = consumer(node, topic=topic, replicated=False, durable=False)
    furnish(node, topic)
    node.run(node.broker.disconnected, client.number)
    assert topic not in node.broker.nonpersistent.topics
    assert furnished(node, topic) == (True, True)
    consumer(node, topic=topic, replicated=False, durable=False)
    delete(node, topic, force=True)
    assert furnished(node, topic) == (False, False)


@pytest.mark.parametrize(
    ("exclude", "clusters", "left"),
    [
        ([], "ab", (True, True)),
        (["topicpolicies/*"], "ab", (False, True)),
        ([], "a", (False, False)),
    ],
)
def test_what_other_clusters_have_too_stays(exclude: list[str], clusters: str, left: tuple[bool, bool]) -> None:
    """Deleting a topic concerns this cluster alone: theirs would lose its policies."""
    world = World("ab", extra=f"{SYNC_ON}metadata_sync_exclude = {exclude}\n")
    a, b = world["a"], world["b"]
    world.advance(3_000)
    a.apply(a.broker.resources.set_replication(OWN, list(clusters)))
    world.advance(1_000)
    a.create()
    furnish(a)
    world.advance(1_000)
    delete(a, force=True)
    world.advance(1_000)
    assert furnished(a) == left
    shared = TopicName.parse(TOPIC)
    assert bool(b.broker.resources.permissions.of(shared)) is (clusters == "ab")


def answer(node: Node, error: str = "") -> None:
    """Let the store answer the oldest of what it was asked."""
    assert node.store.answer(error)


@pytest.mark.parametrize("anew", [False, True])
def test_while_somebody_sets_a_policy(anew: bool) -> None:
    """What was set of the topic that is gone goes, too; what somebody made anew meanwhile keeps what it has."""
    node = alone()
    furnish(node)
    node.hold_stores = True
    answers: list[object] = []
    change = node.broker.resources.change_topic_policies(TopicName.parse(TOPIC), message_ttl_in_seconds=60)
    node.control.topics.delete(TOPIC, False, answers.append)
    node.control.policies.apply(change, answers.append)
    answer(node)
    assert TOPIC not in node.broker.topics and not answers
    if anew:
        node.run(lambda: node.broker.catalog.create(TopicName.parse(TOPIC), then=lambda _t, _e: None))
        node.stores.rotate()
        answer(node)
        assert TOPIC in node.broker.topics
    node.hold_stores = False
    node.world.advance(100)
    assert answers == [None, None]
    assert furnished(node) == (anew, anew)


def test_a_store_that_fails_leaves_them_and_says_so() -> None:
    node = alone()
    furnish(node)
    node.hold_stores = True
    answers: list[object] = []
    node.control.topics.delete(TOPIC, False, answers.append)
    answer(node)
    (deletion,) = (store for store in node.stores if any(key.startswith("topicpolicies/") for key in store.deletes))
    node.stores.remove(deletion)
    node.stores.appendleft(deletion)
    answer(node, "no space left")
    assert answers == [None]
    assert TOPIC not in node.broker.topics
    assert any("its policies and permissions are left: " in note.text for note in node.notes)
    node.hold_stores = False
    assert furnished(node) == (True, True)
