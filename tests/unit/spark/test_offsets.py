"""Offsets of the format `pulsar`: one text for one meaning, and old texts stay readable."""

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar.core.errors import ConfigError
from magnetar.spark.offsets import MessagePosition as At
from magnetar.spark.offsets import decode, text

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "spark" / "pulsar_offsets.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_texts_stay_readable(name: str) -> None:
    positions = {topic: At(*position) for topic, position in GOLDEN[name]["places"].items()}
    assert decode(json.loads(GOLDEN[name]["text"])) == positions


def test_the_text_is_canonical() -> None:
    positions = decode(json.loads(GOLDEN["v1"]["text"]))
    backwards = dict(reversed(positions.items()))
    assert text(positions) == text(backwards) == GOLDEN["v1"]["text"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ([1], "the checkpoint holds no offset of format pulsar: [1]"),
        ({"v": 2, "topics": {}}, "the checkpoint holds an offset of version 2; this release reads version 1"),
        ({"n": 3, "v": 1}, "the checkpoint holds no offset of format pulsar"),
        ({"t": 5}, "the checkpoint: 5 is not a valid position in t: write [ledger, entry, batch index], or the bytes of a"),
        ({"t": [1.5, 2, 3]}, "[1.5, 2, 3] is not a valid position in t"),
        ({"t": [5, -7, 0]}, "[5, -7, 0] is not a valid position in t"),
        ({"t": [16, 300]}, "[16, 300] is not a valid position in t"),
        ({"t": [16, 3]}, "[16, 3] is not a valid position in t"),
        ({"a/b": [1, 2, 3]}, "topic 'a/b' is not valid"),
    ],
)  # fmt: skip
def test_what_is_no_offset_is_told(value: Any, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode(value)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_whole_entry_is_behind_its_messages() -> None:
    assert At(1, 2, -1).reach > At(1, 2, 60_000).reach > At(1, 1).reach > At(-1, -1).reach
