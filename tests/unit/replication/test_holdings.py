"""Runs of origin indexes: what a topic holds, what is missing."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.replication.holdings import count, covers, holdings, merged, without
from tests.unit.replication.link.rig import TOPIC, Rig, message

RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda run: (run[0], run[0] + run[1])))


def flat(runs: list[tuple[int, int]]) -> set[int]:
    return {index for first, end in runs for index in range(first, end)}


@given(RUNS, RUNS, st.integers(0, 45), st.integers(1, 5))
def test_runs_are_sets(left: list[tuple[int, int]], right: list[tuple[int, int]], first: int, length: int) -> None:
    a, b = merged(left), merged(right)
    assert flat(a) == flat(left) and count(a) == len(flat(left))
    assert all(x[1] < y[0] for x, y in pairwise(a))
    assert flat(without(a, b)) == flat(a) - flat(b) and merged(without(a, b)) == without(a, b)
    assert covers(a, first, first + length) == (set(range(first, first + length)) <= flat(a))


def test_a_topic_tells_what_it_holds_of_each_origin() -> None:
    topic = Rig().topic(ledger_entries=2)
    topic.publish(message("x"), message("y", count=3), message("z"))
    topic.publish(message("r", origin="b")._replace(first_index=7))
    topic.publish(message("r", origin="b")._replace(first_index=8, count=2))
    topic.publish(message("old", origin="a")._replace(incarnation=2, first_index=4), message("x"))
    (own_old, own) = holdings(topic.log, "a", "a")
    assert (own_old.incarnation, own_old.runs, own_old.entries) == (2, [(4, 5)], 1)
    assert (own.incarnation, own.runs, own.entries) == (topic.log.incarnation, [(0, 6)], 4)
    (other,) = holdings(topic.log, "b", "a")
    assert (other.incarnation, other.runs, other.entries) == (5, [(7, 10)], 2) and other.bytes > 0
    assert holdings(topic.log, "c", "a") == []
    assert topic.log.name == TOPIC
