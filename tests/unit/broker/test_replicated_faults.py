"""What goes wrong with replicated subscriptions in whole brokers: a log line, a count, nothing else."""

import pytest

from magnetar.core.names import NamespaceName
from tests.support.geoworld import TOPIC, World
from tests.unit.broker.test_replicated import consumer, two


def clusters(world: World, names: str, of: str = "ab") -> None:
    """Which clusters the namespace is replicated to from now on."""
    for name in of:
        node = world[name]
        node.apply(node.broker.resources.set_replication(NamespaceName.parse("public/default"), list(names)))


def test_a_cluster_is_removed_from_the_policy_in_the_middle_of_a_snapshot() -> None:
    """The snapshot waited for its answer; it does no longer, and nobody waits for the timeout."""
    world = two("abc", mode="snapshot")
    client, number = consumer(world["a"])
    world.advance(3_000)
    world["c"].kill()
    positions = world["a"].publish(*(b"%d" % n for n in range(6)))
    world.advance(3_000)
    client.ack(number, positions[5], cumulative=True)
    world.advance(3_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 6, "the snapshot is pending, or this tests nothing"
    clusters(world, "ab")
    world.advance(3_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0
    (state,) = world["a"].control.replicated_subscriptions(TOPIC)
    assert not state.get("stalled")


@pytest.mark.parametrize("mode", ["exact", "snapshot"])
def test_a_subscription_is_deleted_while_updates_of_it_arrive(mode: str) -> None:
    """It does not come back by itself, the others go on, and who subscribes again is told."""
    world = two("abc", mode=mode)
    client, number = consumer(world["a"])
    for n in range(40):
        (position,) = world["a"].publish(b"%d" % n)
        client.ack(number, position, cumulative=True)
        world.advance(200)
        if n == 20:
            there, consuming = consumer(world["b"])
            there.unsubscribe(consuming)
    world.advance(5_000)
    assert "s" not in world["b"].topic.subscriptions
    assert world["c"].topic.subscriptions["s"].backlog_entries() == 0
    consumer(world["b"], replicated=True)
    (position,) = world["a"].publish(b"more")
    world.advance(5_000)
    # Exact mode asks for the whole state; snapshot mode hears of it with the next acknowledgement.
    assert world["b"].topic.subscriptions["s"].backlog_entries() == (1 if mode == "exact" else 41)
    client.ack(number, position, cumulative=True)
    world.advance(5_000)
    assert world["b"].topic.subscriptions["s"].backlog_entries() == 0
