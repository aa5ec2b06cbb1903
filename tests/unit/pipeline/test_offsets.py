"""The offset's format is history: the golden file is added to, never changed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline import offsets

GOLDEN = Path(__file__).parents[2] / "golden" / "spark" / "offsets-v1.jsonl"


def test_the_golden_offsets_are_read_and_written_byte_for_byte() -> None:
    for line, count in zip(GOLDEN.read_text().splitlines(), (0, 41, 2**53 + 1), strict=True):
        assert offsets.counter(json.loads(line)) == count
        assert offsets.encode(offsets.offset(count)) == line


@given(st.integers(0, 2**70))
def test_round_trip_in_canonical_order(count: int) -> None:
    text = json.dumps(offsets.offset(count))  # as Spark's runner writes it
    assert text == offsets.encode(offsets.offset(count))
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert offsets.counter(json.loads(text)) == count
    assert offsets.counter(offsets.following(json.loads(text))) == count + 1


@pytest.mark.parametrize(
    "foreign", [None, 3, [], {}, {"n": 3}, {"n": 3, "v": 2}, {"n": -1, "v": 1}, {"n": 1.5, "v": 1}, {"n": True, "v": 1}]
)
def test_an_unreadable_offset_starts_anew(foreign: object) -> None:
    assert offsets.counter(foreign) == 0


def test_a_negative_counter_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="counts from 0"):
        offsets.offset(-1)
