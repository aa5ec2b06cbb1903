"""Builds and reads the rows of long batches that are not single entries, a few at a time, without the number columns of entries.

`Assembler` and `Slices` of `pipeline.rows` are made for thousands of rows: for one row they take 150 us, five times as long.
"""

from array import array
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final

import pyarrow as pa

from magnetar.pipeline.columns import COLUMNS
from magnetar.pipeline.rows import ARROW, arrow_schema, binary

ROWS_MAX: Final = 64
"""Rows in one Arrow batch."""

_KIND: Final = ARROW["tinyint"]
_LINK: Final = ARROW["int"]
_ZEROS: Final = pa.py_buffer(bytes(8 * ROWS_MAX))
_EMPTY: Final = pa.py_buffer(b"")


class PlainRows:
    """Gathers rows that use only the `NARROW` columns.

    Args:
        narrow: whether the batches have no other columns.
    """

    def __init__(self, *, narrow: bool) -> None:
        self._schema = arrow_schema(narrow=narrow)
        self._others = tuple(kind for _, kind in COLUMNS[2:-2]) if not narrow else ()
        self._clear()

    def _clear(self) -> None:
        self._kinds = bytearray()
        self._links = array("i")
        self._lists: list[bytes] = []
        self._data: list[bytes | memoryview] = []

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, kind: int, link: int, data: bytes | memoryview, lists: bytes = b"") -> None:
        """Add a row; there are less than `ROWS_MAX`."""
        self._kinds.append(kind)
        self._links.append(link)
        self._lists.append(lists)
        self._data.append(data)

    def flush(self) -> pa.RecordBatch:
        """The batch of the gathered rows."""
        rows = len(self._kinds)
        arrays = [
            pa.Array.from_buffers(_KIND, rows, [None, pa.py_buffer(bytes(self._kinds))]),
            pa.Array.from_buffers(_LINK, rows, [None, pa.py_buffer(self._links.tobytes())]),
            *(_zeros(kind, rows) for kind in self._others),
            _binary(self._lists),
            _binary(self._data),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@cache
def _zeros(kind: str, rows: int) -> pa.Array:
    """A number column of this many rows, all zero: to make them takes as long as all the rest of a batch."""
    return pa.Array.from_buffers(ARROW[kind], rows, [None, _ZEROS])


def _binary(values: "list[bytes] | list[bytes | memoryview]") -> pa.Array:
    offsets = array("i", [0])
    end = 0
    for value in values:
        end += len(value)
        offsets.append(end)
    filled = [value for value in values if value]
    data = pa.py_buffer(filled[0]) if len(filled) == 1 else pa.py_buffer(b"".join(filled)) if filled else _EMPTY
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets.tobytes()), data])


def plain_rows(batch: pa.RecordBatch, kinds: frozenset[int]) -> list[tuple[int, int, memoryview, memoryview]] | None:
    """The rows of a batch as (kind, link, lists, data), if all are of these kinds; else None.

    Args:
        batch: with the columns of `pipeline.columns`.
        kinds: of rows that need no more than that.
    """
    names = batch.schema.names
    kind = batch.column(names.index("kind"))
    found = memoryview(kind.buffers()[1])[kind.offset : kind.offset + len(kind)].tobytes()
    if not kinds.issuperset(found):
        return None
    link = batch.column(names.index("link"))
    links = memoryview(link.buffers()[1]).cast("i")[link.offset : link.offset + len(link)]
    lists = _slices(batch.column(names.index("lists")))
    data = _slices(batch.column(names.index("data")))
    return list(zip(found, links, lists, data, strict=True))


def _slices(column: pa.Array) -> Iterator[memoryview]:
    edges, content = binary(column)
    return (content[begin:end] for begin, end in pairwise(edges.tolist()))
