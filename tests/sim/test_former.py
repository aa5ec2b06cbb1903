"""A subscription whose deletion was not stored when the broker died: what it had acknowledged counts, and nothing else does."""

from unittest.mock import Mock

import pytest

from magnetar.metadata.topic_records import cursor_key
from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.cluster import Cluster
from magnetar_sim.connections.clients import SHARED, Consumer, Publisher
from magnetar_sim.disk import SimStore
from magnetar_sim.memory.records import PLAIN
from magnetar_sim.options import WorldOptions
from magnetar_sim.world import World

ALONE = WorldOptions(alone=True, focus=(), batches="short")


def _deleted_and_created() -> tuple[World, Cluster, SimStore]:
    """A consumer acknowledged all and unsubscribed, another one came; the store has not been asked to commit since."""
    world = World(0, options=ALONE, checkers=CHECKERS)
    cluster, topic = world.clusters["a"], world.context.topics[0]

    def consumer() -> Consumer:
        return Consumer(world.around, "a", topic, "s", SHARED, replicated=False, earliest=True)

    first = consumer()
    publisher = Publisher(world.around, "a", topic)
    for _ in range(3):
        publisher.publish(world.truth.publish("a", topic, PLAIN, None, 1))
    world.context.clock.run_for(5_000)
    first.ack(list(first.received), answer=True)
    world.context.clock.run_for(5_000)
    store = cluster.store
    assert isinstance(store, SimStore)
    store._commit = Mock()  # type: ignore[method-assign]
    first.unsubscribe()
    world.context.clock.run_for(1_000)
    consumer()
    world.context.clock.run_for(1_000)
    return world, cluster, store


@pytest.mark.parametrize("found", ["former", "none", "new"])
def test_a_deletion_that_the_store_did_not_answer(found: str) -> None:
    """Seed 19282 of takeovers, at commit 4a523eef: a commit hung, and the checker missed what the former one had acknowledged."""
    world, cluster, store = _deleted_and_created()
    topic = world.context.topics[0]
    key = cursor_key(topic, "s")
    deletion = next(number for number, (_, deletes, _) in enumerate(store._waiting) if key in deletes)
    stored = {"former": deletion, "none": deletion + 1, "new": len(store._waiting)}[found]
    store._rng = Mock(randint=lambda *_: stored)
    cluster.kill()
    cluster.start()
    assert cluster.broker is not None
    subscriptions = cluster.broker.topics[topic].subscriptions
    counted = {uid for name in subscriptions for uid in world.acks.now(cluster, topic, subscriptions[name].cursor)}
    allowed = {uid for one in subscriptions.values() for uid in world.acks.allowed(cluster, topic, one)}
    assert ("s" in subscriptions) == (found != "none")
    assert allowed == counted == ({0, 1, 2} if found == "former" else set())
    assert world.context.happened["subscription is back that was deleted"] == (found == "former")


def test_a_subscription_whose_deletion_was_answered_may_not_come_back() -> None:
    """As if the answer had come before the deletion was durable: what it had acknowledged is noticed."""
    world, cluster, store = _deleted_and_created()
    topic = world.context.topics[0]
    key = cursor_key(topic, "s")
    former = store._data[key]
    SimStore._commit(store)
    world.context.clock.run_for(5_000)
    cluster.kill()
    store._data[key] = former
    cluster.start()
    assert cluster.broker is not None
    machine = cluster.broker.topics[topic].subscriptions["s"]
    assert world.acks.now(cluster, topic, machine.cursor) == {0, 1, 2}
    assert not world.acks.allowed(cluster, topic, machine)
