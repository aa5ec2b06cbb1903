"""Entries as rows: one row per entry, with as few and as cheap columns as the sink and filters need.

A range opens with a control row (`kind` 1) whose bytes give the sink its destination and the position sent before it. It closes
with one (`kind` 2) that has the position up to which entries were examined. No filter may drop them (`columns.keep`). Rows of a
range are in the order of the log; ranges may be interleaved. The columns that Spark sees are in `columns`.

Nothing here loops over entries, except where a filter names a column that must be decoded from the metadata.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from magnetar.core.ids import NONE, Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import COLUMNS, DECODED, ENTRY, NARROW
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import readable
from magnetar.wire.varint import signed

Int = np.ndarray[Any, Any]

ARROW: Final[dict[str, Any]] = {
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "string": pa.string(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
"""Spark's types of our columns, as Arrow's."""

NUMBERS: Final[tuple[Any, ...]] = tuple(ARROW[kind] for _, kind in COLUMNS if kind != "binary")
DTYPES: Final[tuple[Any, ...]] = tuple(kind.to_pandas_dtype() for kind in NUMBERS)

FLUSH_BYTES: Final = 256 << 10
"""A read this large becomes a batch of its own, whose data column *is* the received buffer; smaller ones are gathered."""

FLUSH_ROWS: Final = 4096


def arrow_schema(decoded: Sequence[str] = (), *, narrow: bool = False) -> pa.Schema:
    """The schema of the batches; `narrow`: of `NARROW` columns."""
    fixed = [pa.field(name, ARROW[kind], nullable=False) for name, kind in (NARROW if narrow else COLUMNS)]
    return pa.schema([*fixed, *(pa.field(name, ARROW[DECODED[name]]) for name in decoded)])


class Part(Protocol):
    """The origin of the entries of rows: a range, or a fetched topic."""

    @property
    def link(self) -> int:
        """Number of the link."""
        ...

    @property
    def number(self) -> int:
        """The rows' `range` column."""
        ...

    @property
    def topic(self) -> str:
        """Its full name."""
        ...


class Assembler:
    """Builds record batches of rows from the answers of GEO_READ.

    Args:
        decoded: names of `DECODED` columns to fill.
    """

    def __init__(self, decoded: Sequence[str] = ()) -> None:
        self._decoded = tuple(decoded)
        self._schema = arrow_schema(decoded)
        self._columns: list[list[Int]] = [[] for _ in NUMBERS]
        self._lists: list[bytes] = []
        self._sizes: list[Int] = []
        self._data: list[memoryview | bytes] = []
        self._extra: dict[str, list[Any]] = {name: [] for name in decoded}
        self._bytes = self._rows = 0

    def control(self, kind: int, part: m.Range, body: bytes) -> None:
        """Add a control row."""
        self.row(kind, part.link, part.number, body)

    def row(
        self, kind: int, link: int, number: int, body: bytes | memoryview, lists: bytes = b"", at: Position = NONE
    ) -> None:
        """Add a row that is not an entry."""
        head = (kind, link, number, *at, -1, 0, 0, 0)
        for index, value in enumerate(head):
            one: Int = np.full(1, value, DTYPES[index])
            self._columns[index].append(one)
        self._lists.append(lists)
        self._sizes.append(np.array([len(body)], np.int64))
        self._data.append(body)
        for values in self._extra.values():
            values.append(None)
        self._bytes += len(body)
        self._rows += 1

    def entries(self, part: Part, read: pb.CommandGeoReadResponse, payload: memoryview) -> list[pa.RecordBatch]:
        """Add the entries of one answer, whose lists fit its payload; returns the batches that are complete now."""
        entries = len(read.sizes)
        if entries == 0:
            return []
        done = self.flush() if self._rows and len(payload) >= FLUSH_BYTES else []
        sizes = np.array(read.sizes, np.int64)
        columns = [read.ledgers, read.entries, read.first_indexes, read.counts, read.flags, read.publish_times]
        values: list[Int] = [np.array(column, dtype) for column, dtype in zip(columns, DTYPES[3:], strict=True)]
        self._lists.extend([b""] * entries)
        if self._decoded:
            self._decode(part, sizes, payload)
        fixed: list[Int] = [
            np.full(entries, ENTRY, np.int8),
            np.full(entries, part.link, np.int32),
            np.full(entries, part.number, np.int32),
        ]
        for index, added in enumerate(fixed + values):
            self._columns[index].append(added)
        self._sizes.append(sizes)
        self._data.append(payload)
        self._bytes += len(payload)
        self._rows += entries
        if self._bytes >= FLUSH_BYTES or self._rows >= FLUSH_ROWS:
            done += self.flush()
        return done

    def _decode(self, part: Part, sizes: Int, payload: memoryview) -> None:
        at = 0
        for size in sizes.tolist():
            values = decode(payload[at : at + size]) if set(self._decoded) - {"topic"} else {}
            values["topic"] = part.topic
            for name in self._decoded:
                self._extra[name].append(values[name])
            at += size

    @property
    def rows(self) -> int:
        """How many rows were gathered."""
        return self._rows

    def flush(self) -> list[pa.RecordBatch]:
        """The batch of the gathered rows, in a list; an empty list without rows."""
        if not self._rows:
            return []
        rows = self._rows
        arrays: list[pa.Array] = [
            pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(_joined(column))])
            for column, kind in zip(self._columns, NUMBERS, strict=True)
        ]
        arrays.append(pa.array(self._lists, pa.binary()))
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(_joined(self._sizes), out=offsets[1:])
        data = self._data[0] if len(self._data) == 1 else b"".join(self._data)
        arrays.append(pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]))
        arrays += [pa.array(self._extra[name], ARROW[DECODED[name]]) for name in self._decoded]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._columns = [[] for _ in NUMBERS]
        self._lists, self._sizes, self._data, self._bytes, self._rows = [], [], [], 0, 0
        self._extra = {name: [] for name in self._decoded}
        return [batch]


def cut(offsets: Int, begin: int, end: int, bytes_max: int, rows_max: int) -> list[tuple[int, int]]:
    """Cut the rows from `begin` to `end` into pieces of at most `bytes_max` and `rows_max` (a larger row is one of its own).

    Args:
        offsets: where each row's bytes begin, and at last where the bytes of the last row end.
    """
    cuts = []
    while begin < end:
        limit = int(offsets[begin]) + bytes_max
        at = int(np.searchsorted(offsets[begin : end + 1], limit, side="right")) - 1 + begin
        at = min(end, begin + rows_max, max(at, begin + 1))
        cuts.append((begin, at))
        begin = at
    return cuts


def _joined(pieces: list[Int]) -> Int:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def decode(data: memoryview) -> dict[str, Any]:
    """The columns of one entry that are in its metadata: what is set for the entry, or for all messages of a batch.

    The key of a message *inside* a batch is not here (the payload is never opened): it is null unless the batch has one.
    Layout: magic 0x0e01, CRC32C (4 bytes), size of the metadata (4 bytes), metadata, payload (PIP-33 keeps it so).
    """
    size = int.from_bytes(data[6:10], "big")
    metadata = pb.MessageMetadata.FromString(bytes(data[10 : 10 + size]))
    return {
        "key": readable(metadata.partition_key) if metadata.HasField("partition_key") else None,
        "producer_name": readable(metadata.producer_name),
        "sequence_id": signed(metadata.sequence_id),
        "event_time": signed(metadata.event_time) if metadata.HasField("event_time") else None,
        "properties": [(readable(pair.key), readable(pair.value)) for pair in metadata.properties],
    }


class Slices:
    """Read access to the rows of one batch, as arrays and as views into its data."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.rows = batch.num_rows
        names = {name: index for index, name in enumerate(batch.schema.names)}
        for name in ("kind", "range", "ledger", "entry", "first_index", "message_count", "publish_time"):
            setattr(self, name, batch.column(names[name]).to_numpy(zero_copy_only=False))
        if "link" in names:
            self.link = batch.column(names["link"]).to_numpy(zero_copy_only=False)
        self.offsets, self._data = binary(batch.column(names["data"]))
        self._list_offsets, self._list_bytes = binary(batch.column(names["lists"]))

    kind: Int
    link: Int
    range: Int
    ledger: Int
    entry: Int
    first_index: Int
    message_count: Int
    publish_time: Int

    def list_bytes(self, row: int) -> memoryview:
        """The `lists` of one row."""
        return self._list_bytes[int(self._list_offsets[row]) : int(self._list_offsets[row + 1])]

    def data(self, begin: int, end: int) -> memoryview:
        """The bytes of rows `begin` up to, not including, `end`."""
        return self._data[int(self.offsets[begin]) : int(self.offsets[end])]

    def runs(self) -> list[tuple[int, int]]:
        """(begin, end) of the longest runs of entries of one range, and of single other rows, in order."""
        if not self.rows:
            return []
        kind = self.kind
        same = (self.range[1:] == self.range[:-1]) & (kind[1:] == kind[:-1]) & (kind[1:] == ENTRY)
        cuts = np.flatnonzero(~same) + 1
        edges = [0, *cuts.tolist(), self.rows]
        return list(pairwise(edges))

    def lists(self, begin: int, end: int) -> Int:
        """Ledgers, entries, first indexes, counts, publish times, sizes of entries: an array with a column for each entry."""
        columns = (self.ledger, self.entry, self.first_index, self.message_count, self.publish_time)
        return np.stack([*(column[begin:end] for column in columns), np.diff(self.offsets[begin : end + 1])])

    def pieces(self, begin: int, end: int, bytes_max: int, entries_max: int) -> list[tuple[int, int]]:
        """Cut a run into pieces of at most `bytes_max` (a larger single row is a piece of its own)."""
        return cut(self.offsets, begin, end, bytes_max, entries_max)


def binary(column: pa.Array) -> tuple[Int, memoryview]:
    """Offsets and bytes of a binary column."""
    _, offsets, values = column.buffers()
    wide = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    starts: Int = np.frombuffer(offsets, wide)[column.offset : column.offset + len(column) + 1]
    return starts, memoryview(values) if values is not None else memoryview(b"")
