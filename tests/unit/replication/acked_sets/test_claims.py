"""What exact mode takes of snapshot mode's claims, against a dumb twin; and small claims that name more than there is."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE, OriginKey
from magnetar.replication.acked_sets import claims
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.wire.acksets import INDEX_MAX
from tests.unit.replication.acked_sets.rig import Rig

KEYS = st.builds(OriginKey, st.sampled_from("ab"), st.integers(1, 2))
INDEXES = st.sets(st.integers(0, 30), min_size=1)
SETS = st.dictionaries(KEYS, INDEXES, max_size=3)
FAR = OriginKey("c", 5)


def indexes(found):
    return {(key, index) for key, first, end in found.runs() for index in range(first, end)}


def of(sets):
    found = MessageSet()
    for key, numbers in sets.items():
        for number in numbers:
            found.add_range(key, number, number + 1)
    return found


@given(SETS, SETS, st.integers(0, 40), st.integers(1, 5))
def test_the_newest_of_what_is_new(claimed, known, most, step):
    runs = {key: [] for key in claimed}
    for key, first, end in of(claimed).runs():
        runs[key].append((first, end))
    with patch.object(claims, "STEP", step):
        taken, cut = claims.learn(runs, of(known), most)
    found, everything = indexes(taken), indexes(of(claimed))
    new = everything - indexes(of(known))
    assert found <= everything
    assert len(found & new) <= most
    assert bool(cut) == bool(new - found)
    assert cut or len(new) <= most
    for key, index in new:
        mark = cut.get(key.cluster, (0, 0))
        assert ((key, index) in found) == ((key.incarnation, index) >= mark), "a cut leaves no hole above it"


def test_a_claim_of_a_few_bytes_takes_a_moment():
    rig = Rig()
    rig.subscribe()
    rig.machine.learnt("s", NONE, "b", {FAR: [(0, 1 << 34)]}, None, made=False)
    rig.machine.learnt("s", NONE, "b", {}, {FAR: [(0, 1 << 34)]}, made=False)
    state = rig.machine.topic.states["s"]
    assert len(state.acks) == 1 << 32
    assert state.acks.origins[FAR].max() == (1 << 34) - 1, "the newest"
    assert rig.machine.topic.notices.counters["over_limit"] == 1
    assert "the oldest are ignored" in rig.notes[-1][1]
    rig.machine.learnt("s", NONE, "b", {FAR: [(0, INDEX_MAX)]}, {FAR: [(0, INDEX_MAX)]}, made=False)
    assert len(state.acks) == 1 << 33


def test_a_long_past_is_learnt_by_and_by():
    rig = Rig()
    rig.subscribe()
    past = {FAR: [(0, 3 << 31), (1 << 40, (1 << 40) + 5)]}
    for _ in range(2):
        rig.machine.learnt("s", NONE, "b", past, None, made=False)
    assert len(rig.machine.topic.states["s"].acks) == (3 << 31) + 5
    assert rig.machine.topic.notices.counters["over_limit"] == 1


def test_updates_make_no_set_larger_than_is_known_to_be_fine():
    rig = Rig()
    rig.subscribe()
    with patch("magnetar.replication.acked_sets.machine.KNOWN_MAX", 10):
        rig.machine.learnt("s", NONE, "b", {FAR: [(0, 7)]}, None, made=False)
        rig.machine.learnt("s", NONE, "b", {FAR: [(0, 12)]}, None, made=False)
    assert len(rig.machine.topic.states["s"].acks) == 7


def test_of_what_is_left_out_of_a_base_nothing_is_said():
    """A hole in a base would say that it is not consumed, and everybody would believe it.

    See docs/design/acknowledged-sets.md#base-and-acks.
    """
    rig = Rig()
    rig.subscribe()
    state = rig.machine.topic.states["s"]
    old, new, elsewhere = (1, 2), (1 << 33, (1 << 33) + 1), (5 << 30, (5 << 30) + 1)
    state.base = of({FAR: {old[0], new[0], elsewhere[0]}})
    state.floor = {"c": (0, 0)}
    rig.machine.learnt("s", NONE, "b", {}, {FAR: [(0, 4 << 30), (6 << 30, (1 << 33) + 1)]}, made=False)
    assert state.base == of({FAR: {old[0], new[0]}}), "the third is above, and no part of the other base"
