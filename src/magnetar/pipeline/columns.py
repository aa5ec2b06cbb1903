"""The columns of the rows of `rows`, as Spark sees them: names, types, and conditions over them.

They are in a module of their own because the processes that plan and commit need no more. There are six of these per query, each
with its own imports: without numpy, pyarrow and the protocol they start in half the time.
"""

import re
from collections.abc import Sequence
from typing import Final

ENTRY: Final = 0
OPEN: Final = 1
CLOSE: Final = 2
TASK: Final = 3
ROUTE: Final = 4
FETCHED: Final = 5
LOOKED: Final = 6
ANSWER: Final = 7
FILLER: Final = 8
READY: Final = 9
"""Kinds of rows: an entry; the two control rows of a range, before and after its entries; a task that the writer reads itself
(`pipeline.tasks.direct`).

In long batches: a link's route; a topic, before its entries; the position up to which entries were examined; an answer with the
entries of many topics; a filler, because Spark releases a row only when there is another one; and, after the routes, the port
where the reader waits for the word that the writer is ready.
"""

COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("kind", "tinyint"),
    ("link", "int"),
    ("range", "int"),
    ("ledger", "bigint"),
    ("entry", "bigint"),
    ("first_index", "bigint"),
    ("message_count", "int"),
    ("flags", "int"),
    ("publish_time", "bigint"),
    ("lists", "binary"),
    ("data", "binary"),
)
"""The columns of a row: name, Spark type. None is ever null. `lists` is empty except in rows of long batches."""

NARROW: Final = tuple(column for column in COLUMNS if column[0] in ("kind", "link", "lists", "data"))
"""The columns of a row that a writer reads itself in a long batch, where no row is an entry: each column costs processor time for
each Arrow batch, and such a batch often has one message."""

DECODED: Final = {
    "topic": "string",
    "key": "string",
    "producer_name": "string",
    "sequence_id": "bigint",
    "event_time": "bigint",
    "properties": "map<string,string>",
}
"""Columns that rows have only if a link's filter names them: all but the topic are decoded from each entry's metadata."""


def decoded_columns(filters: Sequence[str]) -> tuple[str, ...]:
    """The columns of `DECODED` that are named in any of these SQL filters (a word in a string literal counts: harmless)."""
    words = {word.lower() for text in filters for word in re.findall(r"\w+", text)}
    return tuple(name for name in DECODED if name in words)


def spark_schema(decoded: Sequence[str] = ()) -> str:
    """The schema as Spark's DDL."""
    fixed = [f"{name} {kind} not null" for name, kind in COLUMNS]
    return ", ".join([*fixed, *(f"{name} {DECODED[name]}" for name in decoded)])


def keep(filters: dict[int, str]) -> str:
    """The SQL condition under which rows pass: control rows and markers always, entries if their link's filter is true.

    A filter that is null for an entry drops it, as SQL's WHERE does. Markers are not messages: a filter that knows nothing of
    them must not stop the state of subscriptions.
    """
    cases = " ".join(f"when link = {link} then ({text})" for link, text in sorted(filters.items()) if text)
    if not cases:
        return ""
    return f"kind <> {ENTRY} or first_index < 0 or coalesce(case {cases} else true end, false)"
