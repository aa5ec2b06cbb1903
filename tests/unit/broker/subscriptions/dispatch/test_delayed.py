"""The queue of delayed entries: against a dumb twin, its memory, its timers; and what a subscription does with many of them."""

import random
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.subscriptions.consumer import SubType
from magnetar.broker.subscriptions.dispatch import delayed as delayed_module
from magnetar.broker.subscriptions.dispatch import multiple
from magnetar.broker.subscriptions.dispatch.delayed import AHEAD_MS, RUN_ENTRIES, Delayed
from magnetar.core.ids import NONE, Position
from magnetar.effects.outbox import Outbox, Timer
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.support.subscriptions import World, entry


def stored(number: int, at_ms: int) -> StoredEntry:
    """An entry of ledger 7 with a time."""
    meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, deliver_at_time=at_ms)
    data = metadata.build(meta, b"")
    return StoredEntry(7, number, int(EntryFlags.DELAYED), 1, 0, 0, "", 0, 0, NONE, data)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.integers(0, 60)),
            st.tuples(st.just("advance"), st.integers(0, 30)),
            st.tuples(st.just("take"), st.integers(1, 40)),
        ),
        max_size=200,
    ),
    run_entries=st.sampled_from([2, 5, 16, 4_096]),
)
def test_it_gives_what_a_sorted_list_gives(steps: list[tuple[str, int]], run_entries: int) -> None:
    outbox = Outbox(now_ms=0)
    queue = Delayed(outbox, lambda: None, run_entries)
    twin: list[tuple[int, int]] = []
    for number, (what, amount) in enumerate(steps):
        if what == "hold":
            at_ms = outbox.now_ms + amount
            assert queue.hold_back(stored(number, at_ms), lambda each: each.entry % 65_536) == (amount > 0)
            if amount:
                twin.append((at_ms, number))
        elif what == "advance":
            outbox.now_ms += amount
        else:
            twin.sort()
            expected = [each for each in twin if each[0] <= outbox.now_ms][:amount]
            taken = queue.take(outbox.now_ms, amount)
            assert [(position.entry, tag) for position, tag in taken] == [(each, each) for _, each in expected]
            twin = twin[len(expected) :]
        assert len(queue) == len(twin)
        assert queue.is_due(outbox.now_ms) == any(at_ms <= outbox.now_ms for at_ms, _ in twin)
        for effect in outbox.effects:
            assert isinstance(effect, Timer)
        if what != "advance":
            queue.validate()


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_many_entries_cost_few_bytes_each_and_few_timers(order: str) -> None:
    outbox = Outbox(now_ms=0)
    queue = Delayed(outbox, lambda: None)
    total = 3 * RUN_ENTRIES
    times = list(range(1, total + 1))
    if order == "descending":
        times.reverse()
    elif order == "random":
        random.Random(5).shuffle(times)
    times = [AHEAD_MS + each * 1_000 for each in times]  # within hours
    template = stored(0, 1)
    waiting: Iterator[int] = iter(times)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_module, "parse_metadata", lambda _data: pb.MessageMetadata(deliver_at_time=next(waiting)))
        tracemalloc.start()
        for number in range(total):
            if number == RUN_ENTRIES:  # what Python keeps for itself is there once
                before, _ = tracemalloc.get_traced_memory()
            queue.hold_back(template._replace(entry=number))
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    per_entry = (used - before) / (total - RUN_ENTRIES)
    assert per_entry < 30, f"{per_entry:.0f} bytes each"
    assert len(outbox.effects) == 1, "one timer for the whole: times out of its reach set none"
    queue.validate()
    outbox.now_ms = 1 << 50
    came = [position.entry for position, _ in queue.take(outbox.now_ms, total)]
    assert [times[each] for each in came] == sorted(times)
    assert len(queue) == 0


def test_rests_of_runs_do_not_pile_up() -> None:
    queue = Delayed(Outbox(now_ms=0), lambda: None, run_entries=64)
    for number in range(6_400):  # of 64 entries one stays for ever
        queue.hold_back(stored(number, 1 << 40 if number % 64 == 0 else 1_000 + number % 64))
    assert len(queue.take(100_000, 10_000)) == 6_300
    assert len(queue) == 100
    assert len(queue._runs) <= 100 // 4
    queue.validate()


def test_runs_of_scattered_times_do_not_all_end_in_one_event() -> None:
    queue = Delayed(Outbox(now_ms=0), lambda: None, run_entries=256)
    total = 100 * 256
    for number in range(total):
        queue.hold_back(stored(number, 1 + number * 618_033_989 % total))
    most = 0
    while len(queue):
        before = len(queue._runs)
        queue.take(total, 250)
        most = max(most, before - len(queue._runs))
    assert most <= 25, f"{most} of 100 runs were given up at once"


@pytest.mark.parametrize("sub_type", [SubType.SHARED, SubType.KEY_SHARED])
def test_what_is_not_delayed_overtakes_and_the_delayed_come_by_time(
    sub_type: SubType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiple, "DUE_WAITING_MAX", 7)
    monkeypatch.setattr(multiple, "PASSED_OVER_MAX", 10)
    world = World()
    a = world.consumer("a", sub_type, permits=10_000)
    positions = world.publish(*(entry(deliver_at=5_000 - number, key=f"k{number}") for number in range(300)), entry())
    assert world.got(a) == [Position(100, 300)], "300 delayed ones do not hold it up"
    world.advance(4_800)
    assert sorted(world.got(a)) == positions[200:300] + positions[300:]
    firsts = [each.entry for each in world.got(a)[1:8]]
    assert sorted(firsts) == list(range(293, 300)), "those that were due first"
    world.advance(200)
    assert sorted(world.got(a)) == positions
    assert world.stats()["msgDelayed"] == 0


@pytest.mark.parametrize("sub_type", [SubType.SHARED, SubType.KEY_SHARED])
def test_due_entries_wait_packed_until_somebody_takes_them(sub_type: SubType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple, "DUE_WAITING_MAX", 10)
    world = World()
    world.set_limits(look_ahead_entries_max=20)
    a = world.consumer("a", sub_type, permits=0)
    b = world.consumer("b", sub_type, permits=1)
    positions = world.publish(*(entry(deliver_at=100, key=f"k{number}") for number in range(200)), entry(key="now"))
    world.flow(a, 1)
    world.advance(100)
    assert len(world.got(a)) + len(world.got(b)) <= 2
    stats = world.stats()
    assert stats["msgInReplay"] <= 20
    assert stats["msgDelayed"] >= 170
    world.flow(a, 1_000)
    world.flow(b, 1_000)
    assert sorted(world.got(a) + world.got(b)) == positions


@pytest.mark.parametrize("cache_bytes", [0, 1 << 24])
@pytest.mark.parametrize("sub_type", [SubType.SHARED, SubType.KEY_SHARED])
def test_one_event_takes_sends_and_reads_only_so_many_of_those_that_are_due(
    sub_type: SubType, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(cache_bytes)
    a = world.consumer("a", sub_type, permits=10_000)
    positions = world.publish(*(entry(deliver_at=100, key=f"k{number}") for number in range(2_000)))
    states = [(0, 0)]
    validate = world.subscription.validate

    def between_events() -> None:
        validate()
        states.append((2_000 - world.stats()["msgDelayed"], a.messages_out))

    monkeypatch.setattr(world.subscription, "validate", between_events)
    world.advance(100)
    assert sorted(world.got(a)) == positions
    most = max(taken - before_taken + sent - before for (before_taken, before), (taken, sent) in pairwise(states))
    assert most < world.subscription.context.limits.dispatch_entries_max + 20, f"{most} were dealt with in one event"


def test_skipping_forgets_what_is_delayed() -> None:
    world = World()
    a = world.consumer("a", SubType.SHARED, permits=10)
    world.publish(*(entry(deliver_at=100) for _ in range(20)))
    assert world.stats()["msgDelayed"] == 20
    world.subscription.skip_all()
    assert world.stats()["msgDelayed"] == 0
    world.advance(100)
    assert world.got(a) == []


def test_more_than_are_remembered_is_said_once() -> None:
    world = World()
    world.set_limits(delayed_entries_max=5)
    a = world.consumer("a", SubType.SHARED, permits=1_000)
    world.publish(*(entry(deliver_at=1_000 + number) for number in range(50)), entry())
    assert world.got(a) == []
    world.advance(2_000)
    assert len(world.got(a)) == 51
    (note,) = world.notes
    assert "delayed_messages_max" in note.text


def test_consumers_that_come_and_go_leave_one_timer_each_at_most_for_ten_seconds() -> None:
    world = World()
    world.publish(entry(deliver_at=1 << 40))
    for number in range(50):
        world.leave(world.consumer(f"c{number}", SubType.SHARED, permits=1))
    assert len(world.timers.waiting) == 50
    assert all(timer[0] <= world.outbox.now_ms + AHEAD_MS for timer in world.timers.waiting)
    world.advance(AHEAD_MS)
    assert world.timers.waiting == []
