"""A held subscription sends nothing, takes acknowledgements, and knows exactly what is under way; long polls."""

import random
from collections.abc import Callable

import pytest

from magnetar.broker.failover.waiting import WAIT_MS_MAX, WAITS_MAX, Waits
from magnetar.broker.subscriptions.consumer import SubType
from magnetar.core.ids import Position
from magnetar.effects.outbox import Outbox
from magnetar_sim.host.host import Host
from tests.support.subscriptions import World, entry

ALL = list(SubType)


@pytest.mark.parametrize("sub_type", ALL)
def test_held_is_held_whatever_happens(sub_type: SubType) -> None:
    world = World()
    consumer = world.consumer("a", sub_type, permits=5)
    world.publish_many(10)
    first = [each.position for each in world.take(consumer)]
    assert len(first) == 5 and world.subscription.in_flight() == 5
    world.subscription.hold(True)
    world.flow(consumer, 100)
    world.publish_many(3)
    world.redeliver(consumer)
    other = world.consumer("b", sub_type, permits=100) if sub_type is not SubType.EXCLUSIVE else None
    world.subscription.pause(consumer.connection)
    world.subscription.resume(consumer.connection)
    world.ack(consumer, *first[:2])
    world.advance(5_000)
    world.pump()
    assert world.take(consumer) == [] and (other is None or world.take(other) == [])
    assert world.subscription.mark_delete == first[1]
    world.subscription.hold(False)
    world.pump()
    sent = world.take(consumer) + (world.take(other) if other is not None else [])
    assert len({each.position for each in sent} | set(first[:2])) == 13


@pytest.mark.parametrize("sub_type", ALL)
def test_a_consumer_that_comes_while_held_gets_all_afterwards(sub_type: SubType) -> None:
    world = World()
    world.subscribe()
    world.subscription.hold(True)
    world.publish_many(4)
    consumer = world.consumer("a", sub_type, permits=100)
    assert world.take(consumer) == [] and world.subscription.in_flight() == 0
    world.leave(consumer)
    consumer = world.consumer("b", sub_type, permits=100)
    assert world.take(consumer) == []
    world.subscription.hold(False)
    world.pump()
    assert len(world.take(consumer)) == 4


@pytest.mark.parametrize("sub_type", ALL)
@pytest.mark.parametrize("seed", range(40))
def test_what_is_under_way_against_a_dumb_twin(sub_type: SubType, seed: int) -> None:
    """Messages sent, minus messages acknowledged: batches, markers, some acknowledged before they were sent."""
    chance = random.Random(seed)
    world = World()
    consumer = world.consumer("a", sub_type, permits=0)
    left: dict[Position, set[int]] = {}
    sizes: dict[Position, int] = {}
    for _ in range(60):
        step = chance.random()
        if step < 0.3:
            count = chance.choice((1, 1, 1, 3, 5))
            made = entry(b"m", count=count, marker=count == 1 and chance.random() < 0.2)
            (position,) = world.publish(made)
            sizes[position] = made.count
        elif step < 0.5:
            world.flow(consumer, chance.choice((1, 2, 10)))
        elif left:
            position = chance.choice(sorted(left))
            if sizes[position] > 1 and chance.random() < 0.5:
                gone = chance.choice(sorted(left[position]))
                rest = left[position] - {gone}
                if rest:
                    world.ack(consumer, position, ack_set=[sum(1 << number for number in rest)])
                    left[position] = rest
                else:
                    world.ack(consumer, position)
                    del left[position]
            elif sub_type in {SubType.EXCLUSIVE, SubType.FAILOVER} and chance.random() < 0.2:
                world.ack(consumer, position, cumulative=True)
                left = {one: rest for one, rest in left.items() if one > position}
            else:
                world.ack(consumer, position)
                del left[position]
        for received in world.take(consumer):
            left[received.position] = set(range(sizes[received.position]))
        assert world.subscription.in_flight() == sum(map(len, left.values()))


def test_a_cumulative_acknowledgement_of_another_clusters_message_changes_nothing() -> None:
    """A client that was moved here may still send one: by number it lies between two ledgers of this log."""
    world = World()
    consumer = world.consumer("a", SubType.EXCLUSIVE, permits=100)
    positions = world.publish_many(3)
    world.log.roll(0, above=positions[-1].ledger + 100)
    world.publish_many(2)
    foreign = Position(positions[-1].ledger + 50, 7)
    assert not world.ack(consumer, foreign, cumulative=True)
    assert not world.ack(consumer, foreign)
    assert world.subscription.in_flight() == 5 and consumer.cumulative


# ---------------------------------------------------------------------------------------------------------- long polls


class Polls:
    """Long polls and a clock."""

    def __init__(self) -> None:
        self.outbox = Outbox(now_ms=1_000)
        self.host = Host(self.outbox, {})
        self.waits = Waits(self.outbox)
        self.answered: list[str] = []

    def wait(self, name: str, wait_ms: int, ready: Callable[[], bool]) -> None:
        self.waits.wait("t", wait_ms, ready, lambda: self.answered.append(name))
        self.waits.validate()

    def due(self, at_ms: int) -> None:
        self.host.pump()
        self.host.due(at_ms)
        self.waits.validate()


def test_answered_at_once_by_an_event_or_when_the_time_is_over() -> None:
    polls, state = Polls(), {"ready": False}
    polls.wait("now", 100, lambda: True)
    polls.wait("never asked to wait", 0, lambda: False)
    assert polls.answered == ["now", "never asked to wait"]
    polls.wait("event", 5_000, lambda: state["ready"])
    polls.wait("late", 50, lambda: False)
    polls.waits.wake("t")
    polls.waits.wake("another topic")
    assert len(polls.answered) == 2 and polls.waits
    state["ready"] = True
    polls.waits.wake("t")
    assert polls.answered[2:] == ["event"]
    polls.due(1_050)
    assert polls.answered[3:] == ["late"] and not polls.waits
    polls.due(10_000_000)
    assert len(polls.answered) == 4


def test_long_polls_have_limits() -> None:
    polls = Polls()
    polls.wait("long", 10 * WAIT_MS_MAX, lambda: False)
    polls.due(1_000 + WAIT_MS_MAX)
    assert polls.answered == ["long"]
    for _ in range(WAITS_MAX):
        polls.waits.wait("t", 1_000, lambda: False, lambda: None)
    polls.wait("one too many", 1_000, lambda: False)
    assert polls.answered[1:] == ["one too many"]
