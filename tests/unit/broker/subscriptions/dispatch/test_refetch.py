"""Entries that are needed again and lie anywhere in the log: how few reads bring them, what a damaged one holds up."""

import random

import pytest

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.core.ids import Position
from magnetar.storage.entries import Location
from magnetar.storage.topiclog import Trim
from tests.support.subscriptions import World, add_entries, entry, new_log

BOTH = [SubType.SHARED, SubType.KEY_SHARED]
TOTAL = 3_000


def scattered(world: World, total: int = TOTAL, keys: int = 50) -> list[Position]:
    """Delayed entries whose times have nothing to do with where they lie; by their times."""
    times = list(range(1_000, 1_000 + total))
    random.Random(3).shuffle(times)
    made = world.publish(*(entry(deliver_at=at_ms, key=f"k{at_ms % keys}") for at_ms in times))
    return [position for _, position in sorted(zip(times, made, strict=True))]


def late(world: World, consumer: Consumer) -> None:
    """All are due for long when the consumer asks for them."""
    world.outbox.now_ms += 100_000
    world.reads_asked = 0
    world.flow(consumer, 10_000)


@pytest.mark.parametrize("sub_type", BOTH)
def test_due_entries_that_lie_apart_are_read_many_at_a_time(sub_type: SubType) -> None:
    world = World(cache_bytes=0, ledger_entries_max=400)
    a = world.consumer("a", sub_type, permits=1)
    positions = scattered(world)
    late(world, a)
    assert sorted(world.got(a)) == sorted(positions)
    assert world.reads_asked <= 3 * TOTAL / world.subscription.context.limits.again_entries_max


@pytest.mark.parametrize("reads", [1, 2, 3])
@pytest.mark.parametrize("sub_type", BOTH)
def test_a_few_reads_are_under_way_and_none_asks_for_what_another_brings(sub_type: SubType, reads: int) -> None:
    world = World(cache_bytes=0, auto_read=False)
    world.set_limits(again_entries_max=10, again_reads_max=reads)
    a = world.consumer("a", sub_type, permits=10_000)
    positions = scattered(world, 200)
    while world.reads:
        world.answer_read()
        world.pump()
    world.advance(10_000)
    assert len(world.reads) == reads
    while world.reads:
        assert len(world.reads) <= reads
        wanted = [position for read in world.reads for position in read.only]
        assert len(set(wanted)) == len(wanted)
        assert all(len(read.only) <= 10 and list(read.only) == sorted(read.only) for read in world.reads)
        world.reads.reverse()  # they may be answered in any order
        world.answer_read()
        world.pump()
    assert sorted(world.got(a)) == sorted(positions)


@pytest.mark.parametrize("sub_type", BOTH)
def test_large_entries_come_by_reads_of_bounded_bytes(sub_type: SubType) -> None:
    world = World(cache_bytes=0)
    world.set_limits(read_bytes_max=10_000, look_ahead_bytes_max=30_000)
    a = world.consumer("a", sub_type, permits=10_000)
    positions = world.publish(*(entry(bytes(4_000), deliver_at=100, key=f"k{n % 7}") for n in range(60)))
    world.advance(1_000)
    assert sorted(world.got(a)) == positions
    assert all(sum(world.log.size_at(each) for each in read.only) <= 10_000 for read in world.reads)


@pytest.mark.parametrize("sub_type", BOTH)
def test_a_damaged_entry_holds_up_none_of_those_it_would_be_read_with(sub_type: SubType) -> None:
    world = World(cache_bytes=0)
    a = world.consumer("a", sub_type, permits=10_000)
    positions = scattered(world, 300, keys=300)
    bad = {positions[7], positions[100], min(positions)}
    world.damaged = set(bad)
    world.advance(1_300)
    world.advance(4_000)
    assert sorted(world.got(a)) == sorted(set(positions) - bad)
    new = world.publish(entry(key="new"))
    world.advance(1)
    assert world.got(a)[-1:] == new, "nor what is new"
    asked = world.reads_asked
    world.advance(10_000)
    assert world.reads_asked - asked <= 11, "it is tried once a second"
    assert all("is damaged" in note.text for note in world.notes)
    world.damaged = set()
    world.advance(1_000)
    assert sorted(world.got(a)) == sorted(positions + new), "all come as soon as one can be read"


def test_a_damaged_entry_that_is_acknowledged_is_tried_no_more() -> None:
    world = World(cache_bytes=0)
    a = world.consumer("a", SubType.SHARED, permits=1)
    positions = scattered(world, 10)
    world.damaged = {positions[3]}
    late(world, a)
    world.advance(1_000)
    assert len(world.got(a)) == 9
    world.ack(a, positions[3])
    world.advance(2_000)
    asked = world.reads_asked
    world.advance(10_000)
    assert world.reads_asked == asked


def test_entries_that_retention_deleted_meanwhile_are_left_out() -> None:
    world = World(cache_bytes=0, auto_read=False, ledger_entries_max=5)
    a = world.consumer("a", SubType.SHARED, permits=10_000)
    positions = [each for _ in range(20) for each in world.publish(entry(deliver_at=100))]
    while world.reads:
        world.answer_read()
        world.pump()
    world.advance(200)
    assert len(world.reads) == 1
    world.log.forget(Trim([positions[0].ledger], positions[5].ledger, world.log.next_index, {}))
    world.answer_read()
    world.pump()
    assert world.got(a) == positions[5:]


def test_key_shared_a_slow_consumer_does_not_starve_others_of_reads() -> None:
    world = World(cache_bytes=0)
    world.set_limits(again_entries_max=5)
    consumers = [world.consumer(f"c{number}", SubType.KEY_SHARED) for number in range(4)]
    positions = world.publish(*(entry(deliver_at=100, key=f"k{number}") for number in range(200)))
    world.advance(200)
    for _ in range(200):
        for consumer in consumers[1:]:
            world.flow(consumer, 1)
    got = [position for consumer in consumers for position in world.got(consumer)]
    assert world.got(consumers[0]) == []
    assert len(got) > 120
    world.flow(consumers[0], 1_000)
    got = [position for consumer in consumers for position in world.got(consumer)]
    assert sorted(got) == positions


def test_places_of_scattered_entries() -> None:
    log = new_log(cache_bytes=0, ledger_entries_max=4)
    for number in range(10):
        append = log.stage([entry(b"%d" % number)], 0)
        log.confirm(append, Location(1, 1_000 * number))
    wanted = [Position(100, 1), Position(100, 3), Position(101, 0), Position(101, 9), Position(99, 0)]
    assert [(span.ledger, span.entry) for span in log.locations_of(wanted, 1 << 20)] == wanted[:3]
    assert [span.offset // 1_000 for span in log.locations_of(wanted, 1 << 20)] == [1, 3, 4]
    assert len(log.locations_of(wanted, 1)) == 1, "one comes whatever its size"
    assert log.locations_of([Position(7, 7)], 1) == []
    add_entries(log, [entry()])
