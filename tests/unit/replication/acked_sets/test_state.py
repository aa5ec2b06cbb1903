"""The laws of merging: the order, repetition and grouping of markers of one epoch do not matter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import (
    Change,
    Reported,
    SubscriptionState,
    later,
    marks_of,
    merge_bases,
    to_marks,
    unstated,
)
from magnetar.wire.acksets import CREATION, Epoch, FenceToken
from tests.unit.replication.acked_sets.strategies import CLUSTERS, ids, index_set, marks, message_sets

SEEK = Epoch(1, 50, "a", 1)
LATER = Epoch(1, 60, "b", 1)


def nothing_held(_messages):
    return MessageSet()


def all_held(messages):
    return messages.copy()


def based(chosen, floor):
    """A base never holds what its own floor says it does not state."""
    base = {m for m in chosen if m[0] in floor and m[1:] >= floor[m[0]]}
    return index_set(base), floor


bases = st.one_of(st.none(), st.builds(based, message_sets, marks))
tolds = st.builds(
    lambda acks, base, fence: Reported(CREATION, index_set(acks), *(base or (None, {})), fence),
    message_sets,
    bases,
    st.sampled_from((None, FenceToken(1, "a", "b", "final"), FenceToken(2, "b", "a", "back"))),
)


def value(state):
    base = None if state.base is None else ids(state.base)
    return state.epoch, ids(state.acks), base, state.floor, state.fence


def fold(tolds, state=None):
    state = state or SubscriptionState()
    for told in tolds:
        state.merge(told, nothing_held)
        state.validate()
    return state


@given(st.lists(tolds, max_size=5), st.randoms())
def test_order_and_repetition_do_not_matter(told, chance):
    once = value(fold(told))
    shuffled = told * 2
    chance.shuffle(shuffled)
    assert value(fold(shuffled)) == once


@given(st.lists(tolds, max_size=3), st.lists(tolds, max_size=3))
def test_grouping_does_not_matter(left, right):
    """What a cluster tells of what it merged is worth as much as the markers that it merged."""
    relayed = fold(right)
    whole = Reported(relayed.epoch, relayed.acks, relayed.base, relayed.floor, relayed.fence)
    assert value(fold([*left, whole])) == value(fold(left + right))


@given(message_sets, marks, message_sets, marks)
def test_bases_are_intersected_where_both_state_something(left, left_floor, right, right_floor):
    (one, _), (other, _) = based(left, left_floor), based(right, right_floor)
    mine, theirs = ids(one), ids(other)
    both, floor = merge_bases(one, left_floor, other, right_floor)

    def states(at, message):
        return message[0] in at and message[1:] >= at[message[0]]

    expected = {
        m
        for m in mine | theirs
        if (m in mine or not states(left_floor, m)) and (m in theirs or not states(right_floor, m))
    }
    assert ids(both) == expected
    for cluster in CLUSTERS:
        known = [at[cluster] for at in (left_floor, right_floor) if cluster in at]
        assert floor.get(cluster) == (min(known) if known else None)


@given(st.lists(tolds, max_size=4))
def test_within_an_epoch_acknowledgements_grow_and_bases_shrink(told):
    state = SubscriptionState()
    for one in told:
        acks, base, floor = ids(state.acks), state.base, dict(state.floor)
        state.merge(one, nothing_held)
        assert acks <= ids(state.acks)
        if base is not None:
            stated = {m for m in ids(state.base) if m[0] in floor and m[1:] >= floor[m[0]]}
            assert stated <= ids(base)


@given(tolds, tolds)
def test_changes_are_told(first, second):
    state = fold([first])
    before = value(state)
    consumed = ids(state.consumed())
    merged = state.merge(second, nothing_held)
    assert bool(merged.change) == (value(state) != before)
    assert (Change.BACK in merged.change) == bool(consumed - ids(state.consumed()))
    assert ids(merged.acks) == ids(state.acks) - before[1]


@given(tolds, message_sets)
def test_a_lower_epoch_is_ignored(told, acks):
    state = SubscriptionState(epoch=SEEK, base=index_set(acks), floor={"a": (0, 0)})
    merged = state.merge(told, nothing_held)
    assert merged.change in (Change.NONE, Change.FENCE)
    assert ids(state.consumed()) == acks


@given(tolds, message_sets, message_sets, marks)
def test_a_higher_epoch_is_adopted_and_what_it_cannot_know_stays(told, acks, base, floor):
    state = fold([told])
    before = ids(state.consumed())
    seek_base, _ = based(base, floor)
    merged = state.merge(Reported(SEEK, index_set(acks), seek_base, floor), nothing_held)
    kept = ids(unstated(index_set(before), floor))
    assert Change.ADOPTED in merged.change
    assert (Change.KEPT in merged.change) == bool(kept)
    assert ids(state.acks) == acks | kept
    assert ids(state.base) == ids(seek_base)
    assert state.opened is None


def test_a_delta_of_an_unknown_epoch_drops_what_was():
    state = SubscriptionState(acks=index_set({("a", 1, 0)}))
    merged = state.merge(Reported(SEEK, MessageSet(), None, {}), all_held)
    assert Change.BACK in merged.change
    assert not state.consumed()


@given(message_sets, message_sets, marks, message_sets)
def test_forgetting(acks, base, floor, held):
    state = SubscriptionState(acks=index_set(acks), base=index_set(base), floor=dict.fromkeys(CLUSTERS, (0, 0)))
    here = index_set(held)
    state.forget(floor, lambda messages: messages & here)
    low = {m for m in acks | base if m[0] in floor and m[1:] < floor[m[0]] and m not in held}
    assert ids(state.acks) == acks - low
    assert ids(state.base) == base - low
    assert all(state.floor[cluster] == floor.get(cluster, (0, 0)) for cluster in CLUSTERS)
    # What was forgotten does not come back, unless its message is here.
    state.merge(Reported(CREATION, index_set(acks | base), None, {}), lambda messages: messages & here)
    assert ids(state.acks) == (acks | base) - low


def test_nothing_is_forgotten_before_it_is_written():
    for state in (
        SubscriptionState(full="restart"),
        SubscriptionState(in_flight=1),
        SubscriptionState(acks=index_set({("a", 1, 0)}), dirty=index_set({("a", 1, 0)})),
    ):
        with pytest.raises(AssertionError, match="before they are written"):
            state.forget({"a": (9, 9)}, nothing_held)


def test_a_seek_keeps_what_is_not_here():
    """Restricted, late and trimmed messages stay consumed; what is here is consumed before the new place only."""
    state = SubscriptionState(acks=index_set({("a", 1, 0), ("a", 1, 1), ("b", 1, 0), ("b", 1, 5)}))
    here = index_set({("a", 1, 0), ("a", 1, 1), ("a", 1, 2), ("b", 1, 0)})
    state.seek(SEEK, index_set({("a", 1, 0)}), lambda messages: messages & here, {"a": (0, 0)})
    assert ids(state.consumed()) == {("a", 1, 0), ("b", 1, 5)}
    assert not state.acks
    assert state.opened is None


@given(marks, marks)
def test_marks(left, right):
    assert marks_of(to_marks(left)) == left
    both = later(left, right)
    assert all(both[cluster] == max(left.get(cluster, (0, 0)), right.get(cluster, (0, 0))) for cluster in both)
    assert both.keys() == left.keys() | right.keys()


def test_epochs_have_an_order():
    assert CREATION < SEEK < LATER < Epoch(1, 60, "b", 2) < Epoch(1, 60, "c", 0) < Epoch(1, 61, "a", 0)
