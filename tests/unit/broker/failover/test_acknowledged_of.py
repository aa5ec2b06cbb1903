"""How many of the messages that somebody names are here and acknowledged, whatever ranges are named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.failover.final_state import Run, acknowledged_of
from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets.message_set import MessageSet
from tests.support.geoworld import World

ALL = 2**63 - 1
MESSAGES = 30
ACKED = {0, 1, 2, 5, 6, 9, 20, 29}


@pytest.fixture(scope="module")
def world() -> World:
    """A topic of one message per entry; `ACKED` of them are acknowledged, some out of order."""
    made = World("ab")
    made["a"].create()
    made.settle()
    client = made["a"].client()
    number = client.subscribe("s", 1)
    made.settle()
    client.flow(number)
    stored = made["a"].publish(*(b"%d" % n for n in range(MESSAGES)))
    made.advance(500)
    client.ack(number, *(stored[n] for n in sorted(ACKED)))
    made.settle()
    return made


def counted(world: World, runs: list[Run]) -> int:
    topic = world["a"].topic
    return acknowledged_of(topic, topic.subscriptions["s"], "a", runs)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No set may be made of what was asked for: a bitmap of 2**63 numbers takes all the memory there is."""
    add = MessageSet.add_range

    def checked(found: MessageSet, origin: OriginKey, first: int, end: int) -> None:
        assert end - first <= MESSAGES, f"a set of {end - first} messages"
        add(found, origin, first, end)

    monkeypatch.setattr(MessageSet, "add_range", checked)


@pytest.mark.usefixtures("narrow")
def test_the_widest_range_costs_nothing(world: World) -> None:
    life = world["a"].topic.log.incarnation
    assert counted(world, [("a", life, 0, ALL)]) == len(ACKED)
    assert counted(world, [("a", life, 3, ALL), ("a", life, 0, ALL), ("a", life, 0, 1)]) == len(ACKED)
    assert counted(world, [("b", 1, 0, ALL), ("a", life + 1, 0, ALL)]) == 0


bounds = st.integers(0, MESSAGES + 5) | st.sampled_from([ALL - 1, ALL])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 1), bounds, bounds).filter(lambda run: run[2] <= run[3]),
        max_size=8,
    )
)
def test_as_by_counting_one_by_one(world: World, asked: list[Run]) -> None:
    life = world["a"].topic.log.incarnation
    runs = [(origin, life + more, first, last) for origin, more, first, last in asked]
    expected = {
        n for n in ACKED for origin, lived, first, last in runs if (origin, lived) == ("a", life) and first <= n <= last
    }
    assert counted(world, runs) == len(expected)
