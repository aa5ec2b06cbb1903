"""Which part of a task its writer reads itself.

A filter has to see every entry, so the entries of a link with a filter are rows. Those of the other links need not go through the
reading process, Java and Arrow: the reader passes on their part of the task as one row (`columns.TASK`). The writer then reads
from the sources and sends to the destinations (docs/decisions/0074-the-writer-reads.md).
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from msgspec.structs import replace

from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import FILLER, TASK
from magnetar.pipeline.rows import Assembler

ReadTask = Callable[[m.Task], Iterator[pa.RecordBatch]]
"""Reads the entries of a task as rows."""


def divided(task: m.Task, filtered: frozenset[int]) -> tuple[m.Task | None, m.Task | None]:
    """The part of a task that its writer reads, and the part whose entries are rows; None: nothing.

    Args:
        task: which.
        filtered: numbers of the links that have a filter.
    """
    direct = _part(task, [route for route in task.routes if route.link not in filtered])
    return direct, _part(task, [route for route in task.routes if route.link in filtered])


def _part(task: m.Task, routes: Sequence[m.Route]) -> m.Task | None:
    if not routes:
        return None
    links = {route.link for route in routes}
    return replace(task, routes=tuple(routes), ranges=tuple(part for part in task.ranges if part.link in links))


def task_rows(
    task: m.Task, decoded: Sequence[str], filtered: frozenset[int], read: ReadTask
) -> Iterator[pa.RecordBatch]:
    """The rows of a task: the part that its writer reads, and then the entries of the other part.

    Args:
        task: which.
        decoded: further columns, see `rows.DECODED`.
        filtered: numbers of the links that have a filter.
        read: reads the other part.
    """
    direct, rows = divided(task, filtered)
    if direct is not None:
        assembler = Assembler(decoded)
        assembler.row(TASK, 0, 0, m.encode(direct))
        assembler.row(FILLER, 0, 0, b"")  # else the row would wait for the next one (`pipeline.long.fetch_read`)
        yield from assembler.flush()
    if rows is not None:
        yield from read(rows)
