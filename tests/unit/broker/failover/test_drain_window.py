"""How long a fence waits for acknowledgements: over whole brokers, and the rule by itself."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.failover.drain_window import GRACE_TOTAL_MS, worth_waiting
from magnetar.replication.failover import Phase
from tests.support.geosteps import consumer
from tests.support.geoworld import TOPIC, Client, Node, World

WINDOW_MS = 1_000


def fenced(messages: int) -> tuple[World, Node, Client, int, list[Any]]:
    """A subscription that a failover has just fenced, and whose consumer has so many messages in hand."""
    world = World("ab")
    node = world["a"]
    node.create()
    world.settle()
    client, number = consumer(node)
    positions = node.publish(*(b"%d" % n for n in range(messages)))
    world.advance(1_000)
    answers: list[Any] = []
    node.control.failovers.begin(TOPIC, "s", "b", "", WINDOW_MS, answers.append)
    world.settle()
    assert answers == [None]
    return world, node, client, number, positions


def state(node: Node) -> tuple[str, int]:
    told = node.broker.fences.fence(TOPIC, "s")
    return str(told.phase), told.left


def test_whoever_is_slow_but_gets_there_is_waited_for() -> None:
    """100 messages, 20 a window: the window is over four times before all are acknowledged, and nothing comes twice."""
    world, node, client, number, positions = fenced(100)
    for done, position in enumerate(positions, 1):
        client.ack(number, position)
        world.advance(50)
        if done == 60:
            assert state(node) == (Phase.FENCING, 0)
    assert state(node) == (Phase.FENCED, 0)


def test_whoever_would_take_too_long_is_not_waited_for() -> None:
    """20 a window of 1,000 are none that all will come of: one window, as for somebody who acknowledges nothing."""
    for acknowledges in (True, False):
        world, node, client, number, positions = fenced(1_000)
        for position in positions[:19]:
            if acknowledges:
                client.ack(number, position)
            world.advance(50)
        assert state(node)[0] == Phase.FENCING
        world.advance(100)
        assert state(node) == (Phase.FENCED, 1_000 - 19 * acknowledges)


def test_whoever_stops_in_the_middle_is_waited_for_one_window_more() -> None:
    world, node, client, number, positions = fenced(100)
    for position in positions[:45]:
        client.ack(number, position)
        world.advance(50)
    world.advance(WINDOW_MS - 300)
    assert state(node)[0] == Phase.FENCING
    world.advance(2 * WINDOW_MS)
    assert state(node) == (Phase.FENCED, 55)


def test_a_fence_that_is_ended_meanwhile_is_left_alone() -> None:
    world, node, client, number, positions = fenced(100)
    client.ack(number, positions[0])
    answers: list[Any] = []
    node.control.failovers.unfence(TOPIC, "s", answers.append)
    world.advance(3 * WINDOW_MS)
    assert answers == [None] and state(node) == (Phase.ACTIVE, 0)


@given(
    before=st.integers(0, 10_000),
    left=st.integers(0, 10_000),
    window_ms=st.integers(0, 60_000),
    waited_ms=st.integers(0, 60_000),
)
def test_another_window_is_worth_it_if_the_pace_says_so(before: int, left: int, window_ms: int, waited_ms: int) -> None:
    came = before - left
    at_this_pace_ms = left * window_ms / came if came > 0 else float("inf")
    expected = waited_ms + at_this_pace_ms <= GRACE_TOTAL_MS
    if at_this_pace_ms != pytest.approx(GRACE_TOTAL_MS - waited_ms):
        assert worth_waiting(before, left, window_ms, waited_ms) == expected


def test_a_failover_that_was_cut_short_takes_along_what_was_acknowledged_since() -> None:
    """Simulator, mixed 2435: the operator went home, the consumer went on, a second command moved the old final state."""
    world, node, client, number, positions = fenced(10)
    for position in positions[:3]:
        client.ack(number, position)
    world.advance(3 * WINDOW_MS)
    first = node.broker.fences.fence(TOPIC, "s")
    assert (first.phase, first.left) == (Phase.FENCED, 7)
    for position in positions[3:8]:
        client.ack(number, position)
    world.advance(WINDOW_MS)
    answers: list[Any] = []
    node.control.failovers.begin(TOPIC, "s", "b", "", WINDOW_MS, answers.append)
    world.settle()
    again = node.broker.fences.fence(TOPIC, "s")
    assert answers == [None]
    assert first.final is not None and again.final is not None and again.final > first.final
    assert (again.phase, again.token, again.left) == (Phase.FENCED, first.token, 2)
    there = world["b"].broker.fences
    assert there.merged(TOPIC, "s", "a", again.final)["merged"]
    assert world["b"].broker.topics[TOPIC].subscriptions["s"].cursor.backlog_messages() == 2
