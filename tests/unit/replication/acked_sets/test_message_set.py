"""Sets of messages against Python's."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import OriginKey
from magnetar.replication.acked_sets.message_set import MessageSet
from tests.unit.replication.acked_sets.strategies import ids, index_set, marks, message_sets

A = OriginKey("a", 1)


@given(message_sets, message_sets)
def test_algebra(left, right):
    one, other = index_set(left), index_set(right)
    assert ids(one | other) == left | right
    assert ids(one & other) == left & right
    assert ids(one - other) == left - right
    assert (one <= other) == (left <= right)
    assert (one == other) == (left == right)
    assert len(one) == len(left)
    assert bool(one) == bool(left)
    assert (ids(one), ids(other)) == (left, right), "an operand changed"


@given(message_sets, message_sets)
def test_in_place(left, right):
    one, other = index_set(left), index_set(right)
    copy = one.copy()
    one |= other
    assert ids(one) == left | right
    one -= other
    assert ids(one) == left - right
    assert (ids(copy), ids(other)) == (left, right), "sets share a bitmap"


@given(message_sets, marks)
def test_below(chosen, at):
    low = {m for m in chosen if m[0] in at and m[1:] < at[m[0]]}
    assert ids(index_set(chosen).below(at)) == low


@given(message_sets)
def test_runs(chosen):
    found = index_set(chosen)
    runs = list(found.runs())
    assert {(*key, index) for key, first, end in runs for index in range(first, end)} == chosen
    assert found.count_runs() == len(runs)
    assert all((*key, end) not in chosen and (*key, first - 1) not in chosen for key, first, end in runs)


@given(message_sets, st.integers(0, 12), st.integers(0, 12))
def test_questions(chosen, first, end):
    found = index_set(chosen)
    assert found.count_in(A, first, end) == sum(("a", 1, index) in chosen for index in range(first, end))
    assert all(((OriginKey(*m[:2]), m[2]) in found) for m in chosen)
    found.remove_from(A, first)
    assert ids(found) == {m for m in chosen if m[:2] != ("a", 1) or m[2] < first}


def test_a_million_in_order_cost_a_few_bytes():
    found = MessageSet()
    found.add_range(A, 0, 1_000_000)
    assert found.bytes() < 400
    found.add_range(A, 2**61, 2**61 + 1)
    assert len(found) == 1_000_001
