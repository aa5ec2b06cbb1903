import pytest

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.core.errors import BrokerError, ErrorCode
from tests.support.subscriptions import World

FAILOVER = SubType.FAILOVER


def changes(world: World) -> list[tuple[int, bool]]:
    """ACTIVE_CONSUMER_CHANGEs since the last call, as (connection, active)."""
    told = [(connection, command.active_consumer_change.is_active) for connection, command in world.commands]
    world.commands.clear()
    return told


def active(world: World) -> Consumer:
    consumer = world.subscription._dispatcher.active
    assert consumer is not None
    return consumer


def test_clients_that_do_not_know_it_are_not_told() -> None:
    world = World()
    world.consumer("old", FAILOVER, protocol_version=11)
    assert changes(world) == []


def test_the_first_by_name_is_active_and_gets_everything() -> None:
    world = World()
    b = world.consumer("b", FAILOVER, permits=100)
    c = world.consumer("c", FAILOVER, permits=100)
    assert changes(world) == [(b.connection, True), (c.connection, False)]
    positions = world.publish_many(3)
    assert world.got(b) == positions
    assert world.got(c) == []


def test_the_next_takes_over_at_once_when_the_active_one_goes() -> None:
    world = World()
    a = world.consumer("a", FAILOVER, permits=100)
    b = world.consumer("b", FAILOVER, permits=100)
    positions = world.publish_many(4)
    world.ack(a, positions[0])
    changes(world)
    world.leave(a)
    assert changes(world) == [(b.connection, True)]
    assert world.got(b) == positions[1:]


def test_a_better_candidate_waits_for_the_last_acknowledgements() -> None:
    world = World()
    b = world.consumer("b", FAILOVER, permits=100)
    positions = world.publish_many(4)
    changes(world)
    a = world.consumer("a", FAILOVER, permits=100)
    assert changes(world) == []
    positions += world.publish_many(1)
    assert world.got(b) == positions[:4]
    world.ack(b, positions[3], cumulative=True)
    world.advance(999)
    assert world.got(a) == []
    world.advance(1)
    assert changes(world) == [(b.connection, False), (a.connection, True)]
    assert world.got(a) == positions[4:]


def test_when_the_newcomer_goes_before_its_start_the_old_one_goes_on() -> None:
    world = World()
    b = world.consumer("b", FAILOVER, permits=100)
    a = world.consumer("a", FAILOVER, permits=100)
    world.leave(a)
    positions = world.publish_many(2)
    assert active(world) is b
    assert world.got(b) == positions
    changes(world)
    world.advance(5_000)
    assert changes(world) == []
    assert world.got(b) == positions


def test_the_wait_of_a_candidate_that_left_does_not_shorten_that_of_the_next() -> None:
    world = World()
    world.consumer("b", FAILOVER, permits=100)
    positions = world.publish_many(1)
    a = world.consumer("a", FAILOVER, permits=100)
    world.advance(500)
    world.leave(a)
    again = world.consumer("a", FAILOVER, permits=100)
    world.advance(999)
    assert world.got(again) == []
    world.advance(1)
    assert world.got(again) == positions


def test_priority_goes_before_name() -> None:
    world = World()
    world.consumer("a", FAILOVER, priority=1)
    z = world.consumer("z", FAILOVER, priority=0)
    assert active(world) is z


@pytest.mark.parametrize(("partition", "expected"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_partitions_spread_over_the_candidates(partition: int, expected: str) -> None:
    world = World(partition=partition)
    for name in "cab":
        world.consumer(name, FAILOVER)
    world.consumer("0", FAILOVER, priority=5)
    assert active(world).name == expected


def test_the_going_of_a_standby_may_move_a_partition() -> None:
    world = World(partition=1)
    a = world.consumer("a", FAILOVER)
    b = world.consumer("b", FAILOVER)
    world.advance(1_000)
    assert active(world) is b
    world.leave(b)
    assert active(world) is a


def test_a_standby_may_acknowledge_but_not_ask_for_redelivery() -> None:
    world = World()
    a = world.consumer("a", FAILOVER, permits=100)
    b = world.consumer("b", FAILOVER, permits=100)
    positions = world.publish_many(2)
    assert world.ack(b, positions[0])
    world.redeliver(b)
    assert world.got(a) == positions
    assert world.got(b) == []


def test_all_go_and_one_comes_back() -> None:
    world = World()
    a = world.consumer("a", FAILOVER, permits=100)
    positions = world.publish_many(2)
    world.leave(a)
    again = world.consumer("a", FAILOVER, permits=100)
    assert world.got(again) == positions


def test_another_type_cannot_join() -> None:
    world = World()
    world.consumer("a", FAILOVER)
    with pytest.raises(BrokerError) as refused:
        world.consumer("b", SubType.SHARED)
    assert refused.value.code is ErrorCode.CONSUMER_BUSY
    assert "Failover" in refused.value.message
