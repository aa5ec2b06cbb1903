"""What is more than ZooKeeper takes in one transaction."""

import pytest

from magnetar.core.names import PARTITIONS_MAX, TopicName
from magnetar.effects import store_batches as batching
from magnetar.effects.outbox import Store
from magnetar.effects.store_batches import WHOLE_BYTES_MAX, Piece
from magnetar.metadata.keys import namespace_key, partitioned_key
from magnetar.metadata.topic_records import TOPIC_PREFIX
from tests.support.geoworld import TOPIC, World

ON_ZOOKEEPER = '[metadata]\nstore = "zookeeper://127.0.0.1:2181/m"\n'
NAME = TopicName.parse("persistent://public/default/" + "n" * 100)
LAST = str(NAME.with_partition(PARTITIONS_MAX - 1))


def weighed(store: Store) -> int:
    """What ZooKeeper would have to take."""
    return Piece((), store.puts, store.deletes).weight


def test_thousands_of_partitions_come_in_several_transactions_and_their_topic_at_last() -> None:
    world = World("ab")
    a = world["a"]
    a.hold_stores = True
    answers: list[object] = []
    a.run(lambda: a.control.topics.create(str(NAME), PARTITIONS_MAX, {}, answers.append))
    told: list[int] = []
    while a.stores:
        told.append(weighed(a.stores[0]))
        assert partitioned_key(NAME) not in a.meta
        assert not answers
        assert LAST not in a.broker.topics
        assert a.store.answer()
    assert answers == [None]
    assert max(told) <= WHOLE_BYTES_MAX
    assert LAST in a.broker.topics
    assert sum(key.startswith(TOPIC_PREFIX) for key in a.meta) == PARTITIONS_MAX
    a.restart()
    assert LAST in a.broker.topics
    assert a.broker.resources.partitions(NAME) == PARTITIONS_MAX


@pytest.mark.parametrize("fails", [0, 2])
def test_partitions_that_cannot_all_be_stored_leave_nothing(fails: int) -> None:
    world = World("ab")
    a = world["a"]
    before = dict(a.meta)
    a.hold_stores = True
    answers: list[object] = []
    a.run(lambda: a.control.topics.create(str(NAME), PARTITIONS_MAX, {}, answers.append))
    for number in range(fails + 1):
        store = a.stores.popleft()
        assert store.then is not None
        if number < fails:
            a.meta |= store.puts
        a.run(store.then, "the store failed" if number == fails else "")
    a.hold_stores = False
    world.advance(1_000)
    assert len(answers) == 1
    assert "the store failed" in str(answers[0])
    assert not [key for key in a.meta.keys() - before.keys() if str(NAME) in key]
    assert not a.broker.topics
    assert a.control_call(lambda done: a.control.topics.create(str(NAME), 3, {}, done)) is None
    assert len(a.broker.topics) == 3


def test_links_of_a_namespace_with_many_topics_come_before_its_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WHOLE_BYTES_MAX", 10_000)
    monkeypatch.setattr(batching, "STORE_BYTES_MAX", 5_000)
    world = World("abc")
    a, namespace = world["a"], NAME.namespace_name
    key = namespace_key(namespace)
    a.apply(a.broker.resources.change_policies(namespace, replication_clusters=["a"]))
    topics = [f"{TOPIC}-{number}" for number in range(40)]
    for topic in topics:
        a.create(topic)
        a.publish(b"x", topic=topic)
    before = a.meta[key]
    for fails in (2, None):
        a.hold_stores = True
        answers: list[object] = []
        change = a.broker.resources.change_policies(namespace, replication_clusters=["a", "b", "c"])
        a.run(lambda change=change, answers=answers: a.control.policies.apply(change, answers.append))  # type: ignore[misc]
        number = 0
        while a.stores:
            store = a.stores.popleft()
            assert weighed(store) <= 10_000
            assert store.then is not None
            if number != fails:
                a.meta |= store.puts
            a.run(store.then, "the store failed" if number == fails else "")
            number += 1
            assert (a.meta[key] == before) == (not answers or answers[0] is not None), "policies come last"
        a.hold_stores = False
        assert number > (2 if fails else 5)
        assert bool(answers[0]) == bool(fails)
        world.advance(2_000)
        wanted = sum(state.wanted for state in a.broker.links.sources["b"].topics.values())
        assert wanted == (0 if fails else 40)
    assert all(topic in world["c"].broker.topics for topic in topics)


def test_a_cursor_in_zookeeper_is_stored_as_far_as_it_fits() -> None:
    """Refused whole it would be refused for ever, and no acknowledgement of it be durable."""
    stored = {}
    for extra in ("", ON_ZOOKEEPER):
        world = World("a", extra=extra)
        a = world["a"]
        a.create()
        client = a.client()
        consumer = client.subscribe("s", 1, replicated=False)
        world.settle()
        published = a.publish(*[b"x"] * 600, batch=10_000)  # of each 24 and 1,250 bytes are stored
        size = (10_000 + 63) // 64
        for position in published:
            client.ack(consumer, position, ack_set=[-1] * (size - 1) + [1 << 14])
        world.advance(1_000)
        key = next(key for key in a.meta if key.startswith("cursors/"))
        stored[extra] = len(a.meta[key])
        assert len(a.topic.subscriptions["s"].cursor.partial) == 600
        a.restart()
        assert len(a.topic.subscriptions["s"].cursor.partial) == (470 if extra else 600)
    assert stored[""] > 700_000
    assert 500_000 < stored[ON_ZOOKEEPER] <= 601_000
