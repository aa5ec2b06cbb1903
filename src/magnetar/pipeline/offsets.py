"""The offset of the replication query: a counter, nothing else.

Progress is in the source clusters' cursors, so the offset only signals to Spark that there is more. It has the same size for
one topic and for 100,000, costs nothing when lost, and allows batches that are not a range of positions but a span of time.
Spark compares offsets as JSON *strings*: there is one encoder here, with sorted keys and no floats.
"""

import json
from typing import Any, Final

VERSION: Final = 1
"""Version of the offset's format; a checkpoint of another version is deleted, which costs nothing."""

Offset = dict[str, int]


def offset(counter: int) -> Offset:
    """The offset of a counter, with its keys in canonical order."""
    if counter < 0:
        raise ValueError(f"an offset counts from 0, not {counter}")
    return {"n": counter, "v": VERSION}


def counter(value: Any) -> int:
    """The counter of an offset that Spark hands back; 0 for anything that is not one of ours.

    An unreadable offset must not stop the pipeline: the counter restarts, the cursors are the truth.
    """
    if not isinstance(value, dict) or value.get("v") != VERSION:
        return 0
    number = value.get("n")
    return number if type(number) is int and number >= 0 else 0


def following(value: Any) -> Offset:
    """The offset after this one, which signals that there is more."""
    return offset(counter(value) + 1)


def encode(value: Offset) -> str:
    """The canonical text, as Spark's own runner writes it (`json.dumps` of the same dictionary)."""
    return json.dumps(offset(counter(value)))
