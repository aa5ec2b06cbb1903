"""Records form a join semilattice, and a deletion is the end of everything before it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.sync.records import (
    EMPTY,
    Cell,
    Malformed,
    Record,
    canonical,
    covers,
    fingerprint,
    from_wire,
    merged,
    pruned,
    ready_us,
    split,
    to_wire,
)
from magnetar.metadata.sync.stamps import Stamp, beats, later

stamps = st.builds(Stamp, st.integers(0, 9), st.sampled_from("abc"))
cells = st.builds(Cell, stamps, st.none() | st.integers(0, 3).map(canonical))
records = st.builds(
    Record, st.none() | stamps, st.none() | stamps, st.dictionaries(st.sampled_from("xyz"), cells, max_size=3)
).map(pruned)


@given(records, records, records)
def test_merging_is_a_join(one: Record, two: Record, three: Record) -> None:
    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert merged(one, one) is one
    both = merged(one, two)
    assert covers(both, one)
    assert covers(both, two)


@given(records, records, st.integers(0, 9))
def test_what_waits_for_the_clock_is_nothing_lost(one: Record, told: Record, limit: int) -> None:
    ready, early = split(told, limit)
    assert all(stamp.time_us <= limit for stamp in ready.stamps())
    ended = early.deleted is not None and beats(early.deleted, early.created)
    assert all(stamp.time_us > limit for stamp in early._replace(created=None if ended else early.created).stamps())
    assert merged(merged(one, ready), early) == merged(one, told)
    if early != EMPTY:
        assert limit < ready_us(early)
        assert split(early, ready_us(early) - 1) == (EMPTY, early)
        assert split(early, ready_us(early))[0] != EMPTY


def test_a_life_waits_with_its_end() -> None:
    told = Record(Stamp(3, "a"), Stamp(7, "a"), {})
    assert split(told, 5) == (EMPTY, told)
    assert split(told, 7) == (told, EMPTY)


@given(records)
def test_the_wire_keeps_everything(record: Record) -> None:
    told = msgspec.json.decode(msgspec.json.encode(to_wire(record)))
    assert from_wire(told) == record
    assert fingerprint("p", from_wire(told)) == fingerprint("p", record)


@given(records, st.integers(0, 9), st.sampled_from("abc"))
def test_nothing_outlives_a_later_deletion(record: Record, time: int, cluster: str) -> None:
    deletion = Record(None, Stamp(time, cluster), {})
    both = merged(record, deletion)
    assert both.deleted is not None
    assert all(beats(cell.stamp, both.deleted) for cell in both.fields.values())
    assert both.exists == beats(both.created, both.deleted)


@pytest.mark.parametrize(
    "told",
    [
        1, {"c": 5}, {"c": [1]}, {"c": ["1", "a"]}, {"c": [-1, "a"]}, {"c": [1, ""]}, {"c": [2**60, "a"]}, {"c": [True, "a"]},
        {"d": [1, "a", 2]}, {"f": []}, {"f": {"x": [1, "a"]}}, {"f": {"": [1, "a", 2]}}, {"f": {"x": [1, None, 2]}},
        {"f": {"x" * 600: [1, "a", 2]}}, {"f": {str(n): [1, "a", 2] for n in range(1001)}},
    ],
)  # fmt: skip
def test_what_is_no_record(told: Any) -> None:
    with pytest.raises(Malformed):
        from_wire(told)


def test_ties_go_to_the_name_that_sorts_first() -> None:
    assert beats(Stamp(5, "a"), Stamp(5, "b"))
    assert not beats(Stamp(5, "a"), Stamp(5, "a"))
    assert later(Stamp(5, "b"), Stamp(6, "c")) == Stamp(6, "c")
    assert later(None, None) is None
    assert merged(EMPTY, EMPTY) is EMPTY
