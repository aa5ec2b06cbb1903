"""Values to typed columns: messages of several schema versions, decoded by version and put back in their order.

All values of one version in a batch are decoded at once. Avro: they are put one after the other like the blocks of an
Avro file, and one reader reads them in C. Each is followed by a random mark, which is part of the reader's schema. So a
value that is longer or shorter than its schema requires cannot damage later values unnoticed. JSON: one parser of Arrow
reads all, in C++; values that it cannot decide are read one by one.

Fields that a version does not have are null; fields that are not requested are left out.
"""

import io
import itertools
import json
import os
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from magnetar.core.errors import ConfigError, MagnetarError
from magnetar.schemas.errors import SchemaInvalid
from magnetar.schemas.keyvalue import take_apart
from magnetar.schemas.types import Definition, SchemaType
from magnetar.spark.avro_columns import Bad, Unfit
from magnetar.spark.avro_columns import Decoder as AvroColumns
from magnetar.spark.columns import Columns
from magnetar.spark.columns import columns_of as columns_of_schema

Value = memoryview | bytes | None

MARK_BYTES: Final = 8

KEPT_LOGICAL: Final = frozenset({"decimal"})
"""Logical types that the reader has to know; all others are read as they are stored, and converted by column."""

_NUMBERS: Final = {
    SchemaType.INT8: ">i1",
    SchemaType.INT16: ">i2",
    SchemaType.INT32: ">i4",
    SchemaType.INT64: ">i8",
    SchemaType.FLOAT: ">f4",
    SchemaType.DOUBLE: ">f8",
    SchemaType.DATE: ">i8",
    SchemaType.TIME: ">i8",
    SchemaType.TIMESTAMP: ">i8",
    SchemaType.LOCAL_DATE: ">i8",
    SchemaType.LOCAL_TIME: ">i8",
}
_SIZE: Final = struct.Struct(">i")


class Misfit(MagnetarError):
    """A value does not match its schema.

    Attributes:
        index: its index among those decoded together; -1: unknown.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class Run(NamedTuple):
    """Neighbouring rows of one entry.

    Attributes:
        ledger, entry: where.
        version: of the schema, as it travels; b"": none.
        rows: how many.
    """

    ledger: int
    entry: int
    version: bytes
    rows: int


class Typed:
    """Decodes the values of one topic.

    Args:
        columns: that are wanted, of the schema's.
        fetch: the schema with a version's bytes (b"": the newest); None: there is none.
    """

    def __init__(self, columns: Columns, fetch: Callable[[bytes], Definition | None]) -> None:
        self.columns = columns
        self._fetch = fetch
        self._decoders: dict[bytes, Decoder] = {}

    def arrays(self, values: Sequence[Value], keys: Sequence[bytes | None], runs: Sequence[Run]) -> dict[str, pa.Array]:
        """The columns.

        Raises:
            Misfit: its index is that of the row.
        """
        versions = [run.version for run in runs]
        if len(set(versions)) == 1:
            return self._decode(versions[0], list(values), list(keys))
        rows: dict[bytes, list[int]] = {}
        at = 0
        for run in runs:
            rows.setdefault(run.version, []).extend(range(at, at + run.rows))
            at += run.rows
        parts, order = [], []
        for version, numbers in rows.items():
            chosen_keys = [keys[number] for number in numbers] if keys else []
            try:
                parts.append(self._decode(version, [values[number] for number in numbers], chosen_keys))
            except Misfit as misfit:
                raise Misfit(numbers[misfit.index] if misfit.index >= 0 else numbers[0], str(misfit)) from None
            order += numbers
        back = pa.array(np.argsort(np.array(order, np.int64), kind="stable"))
        return {name: pa.concat_arrays([part[name] for part in parts]).take(back) for name in self.columns}

    def _decode(self, version: bytes, values: list[Value], keys: list[bytes | None]) -> dict[str, pa.Array]:
        decoder = self._decoders.get(version)
        if decoder is None:
            definition = self._fetch(version)
            if definition is None:
                number = f"version {int.from_bytes(version[:8], 'big')}" if version else "no version"
                raise Misfit(0, f"has a schema of {number}, which the topic does not have")
            decoder = self._decoders[version] = Decoder(definition, self.columns)
        return decoder.arrays(values, keys)


class Decoder:
    """Decodes values written with one schema into columns."""

    def __init__(self, definition: Definition, columns: Columns) -> None:
        self._columns = columns
        self._kind = definition.type
        self._value: Part | None = None
        self._key: Part | None = None
        self._inline = False
        try:
            if definition.type is SchemaType.KEY_VALUE:
                both = take_apart(definition)
                self._inline = both.encoding == "INLINE"
                self._key = Part(both.key, columns["key"]) if "key" in columns else None
                self._value = Part(both.value, columns["value"]) if "value" in columns else None
                self._record = False
            else:
                found = _shape(definition)
                self._record = found is None
                kind = pa.struct(list(columns.items())) if self._record else columns.get("value", found)
                self._value = Part(definition, kind)
        except SchemaInvalid as error:
            raise Misfit(-1, f"has a schema that cannot be read: {error}") from None

    def arrays(self, values: list[Value], keys: list[bytes | None]) -> dict[str, pa.Array]:
        """The columns; fields that the schema does not have are null."""
        made: dict[str, pa.Array] = {}
        if self._inline:
            pairs = [_split(index, value) for index, value in enumerate(values)]
            keys, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]  # type: ignore[misc]
        if self._key is not None:
            made["key"] = self._key.array(list(keys))
        if self._value is not None:
            whole = self._value.array(values)
            if self._record:
                for number, name in enumerate(self._columns):
                    made[name] = _field(whole, number)
            else:
                made["value"] = whole
        return {
            name: made[name] if name in made else pa.nulls(len(values), kind) for name, kind in self._columns.items()
        }


def _shape(definition: Definition) -> pa.DataType | None:
    """The type of the only column of a schema that is not a record; None when it is one."""
    if definition.type in (SchemaType.AVRO, SchemaType.JSON):
        loaded = json.loads(definition.data)
        if isinstance(loaded, dict) and loaded.get("type") == "record":
            return None
    try:
        found = columns_of_schema(definition)
    except ConfigError as error:
        raise SchemaInvalid(str(error)) from None
    return pa.binary() if found is None else found["value"]


def _field(whole: pa.StructArray, number: int) -> pa.Array:
    """A field of all rows: null where the row is."""
    return whole.flatten()[number]


def _split(index: int, value: Value) -> tuple[Value, Value]:
    """Key and value of an inline pair."""
    if value is None:
        return None, None
    view = memoryview(value)
    try:
        size = _SIZE.unpack_from(view, 0)[0]
        at = 4 + max(0, size)
        key = None if size < 0 else view[4:at]
        size = _SIZE.unpack_from(view, at)[0]
    except struct.error:
        raise Misfit(index, "is not a key-value pair: it ends too early") from None
    rest = view[at + 4 :]
    if len(rest) != max(0, size):
        raise Misfit(index, "is not a key-value pair: its sizes do not fit")
    return key, None if size < 0 else rest


class Part:
    """Decodes one side: a value, or a key.

    Args:
        definition: the schema they were written with.
        kind: the type of the result.
    """

    def __init__(self, definition: Definition, kind: pa.DataType) -> None:
        self._kind = kind
        self._type = definition.type
        self._stored = _stored(kind)
        self._decode: Callable[[list[Any]], pa.Array]
        if definition.type is SchemaType.AVRO:
            loaded = json.loads(definition.data)
            self._mark = os.urandom(MARK_BYTES)
            self._head = _file_head(_marked(loaded))
            self._scales = _scaled(loaded)
            self._at_once = _at_once(loaded, kind)
            self._decode = self._avro
        elif definition.type is SchemaType.JSON:
            self._scales = _scaled(json.loads(definition.data))
            self._decode = self._json
        elif definition.type is SchemaType.STRING:
            self._decode = self._text
        elif definition.type in _NUMBERS:
            self._decode = self._number
        elif definition.type in (SchemaType.BOOLEAN, SchemaType.INSTANT, SchemaType.LOCAL_DATE_TIME):
            self._decode = self._other
        else:
            self._decode = lambda values: pa.array([bytes(value) for value in values], pa.binary())

    def array(self, values: list[Any]) -> pa.Array:
        """All values, null where there is none.

        Raises:
            Misfit.
        """
        present = [value for value in values if value is not None]
        try:
            made = self._decode(present)
            if made.type != self._kind:
                made = _cast(made, self._kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Misfit(self._culprit(present, values), f"does not fit {self._type.name}: {_line(error)}") from None
        except Misfit as misfit:
            if misfit.index < 0 or len(present) == len(values):
                raise
            present_at = [number for number, value in enumerate(values) if value is not None]
            raise Misfit(present_at[misfit.index], str(misfit)) from None
        if len(present) == len(values):
            return made
        positions = np.cumsum([value is not None for value in values]) - 1
        missing = np.array([value is None for value in values])
        return made.take(pa.array(positions, mask=missing))

    def _culprit(self, present: list[Any], values: list[Any]) -> int:
        """The index of the value that does not fit, found by trying one after the other."""
        present_at = [number for number, value in enumerate(values) if value is not None]
        for number, value in enumerate(present):
            try:
                _cast(self._decode([value]), self._kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError, Misfit):
                return present_at[number]
        return -1

    # -------------------------------------------------------------------------------------------------------- formats

    def _avro(self, values: list[Any]) -> pa.Array:
        if not values:
            return pa.array([], self._kind)
        if self._at_once is not None:
            try:
                return self._at_once.array(values)
            except Bad as bad:
                raise Misfit(bad.index, "is not as its Avro schema says") from None
            except (Unfit, pa.ArrowException):
                pass  # the other one knows which and why
        return self._avro_by_value(values)

    def _avro_by_value(self, values: list[Any]) -> pa.Array:
        """One value after the other, by the library."""
        body = b"".join(itertools.chain.from_iterable(zip(values, itertools.repeat(self._mark))))
        block = b"".join((self._head, _zigzag(len(values)), _zigzag(len(body)), body, bytes(16)))
        rows: list[Any] = []
        try:
            rows.extend(fastavro.reader(io.BytesIO(block)))
        except Exception as error:  # noqa: BLE001 - the library raises whatever it meets: EOFError, IndexError, ValueError, ...
            raise Misfit(self._bad(rows), f"is not as its Avro schema says: {_line(error)}") from None
        if b"".join(map(itemgetter("mark__"), rows)) != self._mark * len(values):
            raise Misfit(self._bad(rows), "is longer or shorter than its Avro schema says")
        return self._from_rows(list(map(itemgetter("v"), rows)))

    def _bad(self, rows: list[Any]) -> int:
        """The first row that is not followed by its mark, or the one after the last."""
        for number, row in enumerate(rows):
            if row["mark__"] != self._mark:
                return number
        return len(rows)

    def _from_rows(self, rows: list[Any]) -> pa.Array:
        """Python's objects as stored; times are scaled to what Arrow wants by column."""
        return _timed(pa.array(rows, self._stored), self._kind, self._scales)

    def _json(self, values: list[Any]) -> pa.Array:
        if not values:
            return pa.array([], self._kind)
        if not _has(
            self._kind, lambda kind: pa.types.is_map(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind)
        ):
            try:
                return _timed(self._json_at_once(values), self._kind, self._scales)
            except (pa.ArrowException, Misfit):
                pass  # reading one by one finds the value, and gives a better error
        rows = []
        for number, value in enumerate(values):
            try:
                row = json.loads(bytes(value))
            except (ValueError, RecursionError) as error:
                raise Misfit(number, f"is no JSON: {_line(error)}") from None
            if pa.types.is_struct(self._kind) and not isinstance(row, dict | None):
                raise Misfit(number, "is no JSON object")
            rows.append(row)
        if _has(self._kind, pa.types.is_decimal):
            raise Misfit(0, "has a decimal, which JSON has no common form for: read the value as binary")
        if _has(self._kind, pa.types.is_binary):
            rows = [_encoded(row, self._kind) for row in rows]
        return self._from_rows(rows)

    def _json_at_once(self, values: list[Any]) -> pa.Array:
        text = b"".join(itertools.chain.from_iterable((b'{"v":', value, b',"n":1}\n') for value in values))
        schema = pa.schema([("v", self._stored), ("n", pa.int8())])
        table = pa_json.read_json(
            io.BytesIO(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pa_json.ParseOptions(schema, newlines_in_values=True, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(values) or table["n"].null_count:
            raise Misfit(-1, "is no JSON")
        return pa.concat_arrays(table["v"].chunks)

    def _text(self, values: list[Any]) -> pa.Array:
        return pa.array([bytes(value) for value in values], pa.binary()).cast(pa.string())

    def _number(self, values: list[Any]) -> pa.Array:
        kind = np.dtype(_NUMBERS[self._type])
        for number, value in enumerate(values):
            if len(value) != kind.itemsize:
                raise Misfit(number, f"has {len(value)} bytes, and {self._type.name} has {kind.itemsize}")
        made = pa.array(np.frombuffer(b"".join(values), kind).astype(kind.newbyteorder("=")))
        if self._type in (SchemaType.DATE, SchemaType.TIME, SchemaType.TIMESTAMP):
            return made.cast(pa.timestamp("ms", tz="UTC"))
        if self._type is SchemaType.LOCAL_DATE:
            return made.cast(pa.int32()).cast(pa.date32())
        return made

    def _other(self, values: list[Any]) -> pa.Array:
        size = {SchemaType.BOOLEAN: 1, SchemaType.INSTANT: 12, SchemaType.LOCAL_DATE_TIME: 16}[self._type]
        for number, value in enumerate(values):
            if len(value) != size:
                raise Misfit(number, f"has {len(value)} bytes, and {self._type.name} has {size}")
        if self._type is SchemaType.BOOLEAN:
            return pa.array([value[0] != 0 for value in values], pa.bool_())
        if self._type is SchemaType.INSTANT:
            both = np.frombuffer(b"".join(values), np.dtype([("s", ">i8"), ("n", ">i4")]))
            return pa.array(both["s"].astype(np.int64) * 1_000_000 + both["n"] // 1000).cast(
                pa.timestamp("us", tz="UTC")
            )
        both = np.frombuffer(b"".join(values), np.dtype([("d", ">i8"), ("n", ">i8")]))
        return pa.array(both["d"].astype(np.int64) * 86_400_000_000 + both["n"] // 1000).cast(pa.timestamp("us"))


# ----------------------------------------------------------------------------------------------------------- Avro's files


def _at_once(schema: Any, kind: pa.DataType) -> AvroColumns | None:
    """A decoder for all values at once; None when it does not know such a schema."""
    try:
        return AvroColumns(schema, kind)
    except Unfit:
        return None


def _zigzag(number: int) -> bytes:
    """A whole number, not negative, as Avro writes it."""
    number <<= 1
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _file_head(schema: Any) -> bytes:
    """The beginning of an Avro file; its blocks end with sixteen zero bytes."""
    text = json.dumps(schema).encode()
    return b"".join((b"Obj\x01", _zigzag(1), _zigzag(11), b"avro.schema", _zigzag(len(text)), text, b"\0", bytes(16)))


def _marked(schema: Any) -> Any:
    """A record of a value and the mark after it."""
    mark = {"type": "fixed", "name": "mark__", "size": MARK_BYTES}
    fields = [{"name": "v", "type": _bare(schema)}, {"name": "mark__", "type": mark}]
    return {"type": "record", "name": "marked__", "fields": fields}


def _bare(node: Any) -> Any:
    """A schema without logical types, but those that the reader has to know."""
    if isinstance(node, list):
        return [_bare(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    made = {
        key: _bare(value) if key in ("type", "items", "values") else value
        for key, value in node.items()
        if key not in ("default", "doc") and (key != "logicalType" or value in KEPT_LOGICAL)
    }
    if isinstance(made.get("fields"), list):
        made["fields"] = [_bare(field) for field in made["fields"]]
    return made


def _scaled(node: Any, space: str = "") -> dict[tuple[str, ...], int]:
    """Paths of times in milliseconds: microseconds are wanted."""
    found: dict[tuple[str, ...], int] = {}

    def walk(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, list):
            for branch in node:
                walk(branch, path)
        elif isinstance(node, dict):
            kind = node.get("type")
            if str(node.get("logicalType", "")).endswith("timestamp-millis"):
                found[path] = 1000
            if isinstance(kind, list | dict):
                walk(kind, path)
            for field in node.get("fields", ()) if kind == "record" else ():
                walk(field["type"], (*path, field["name"]))
            for key in ("items", "values"):
                if key in node:
                    walk(node[key], (*path, "[]"))

    walk(node, ())
    return found


# ------------------------------------------------------------------------------------------------------- Arrow's types


def _stored(kind: pa.DataType) -> pa.DataType:
    """A type with times as the numbers that they are stored as."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _stored(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_stored(kind.key_type), _stored(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind


def _has(kind: pa.DataType, what: Callable[[pa.DataType], bool]) -> bool:
    if what(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has(field.type, what) for field in kind)
    if pa.types.is_map(kind):
        return _has(kind.item_type, what)
    return bool(pa.types.is_list(kind)) and _has(kind.value_type, what)


def _timed(
    made: pa.Array, kind: pa.DataType, scales: dict[tuple[str, ...], int], path: tuple[str, ...] = ()
) -> pa.Array:
    """Numbers that are times, as times; only columns with times are copied."""
    if made.type == kind:
        return made
    if pa.types.is_struct(kind):
        fields = [
            _timed(part, field.type, scales, (*path, field.name))
            for part, field in zip(made.flatten(), kind, strict=True)
        ]
        mask = made.is_null() if made.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        inner = _timed(made.values, kind.value_type, scales, (*path, "[]"))
        mask = made.is_null() if made.null_count else None
        return pa.ListArray.from_arrays(made.offsets, inner, mask=mask)
    if pa.types.is_map(kind):
        inner = _timed(made.items, kind.item_type, scales, (*path, "[]"))
        return pa.MapArray.from_arrays(_map_offsets(made), made.keys, inner)
    if pa.types.is_timestamp(kind) and path in scales:
        return made.cast(pa.timestamp("ms", tz=kind.tz)).cast(kind)
    return made.cast(kind)


def _map_offsets(made: pa.MapArray) -> pa.Array:
    """Offsets that say which maps are null."""
    if not made.null_count:
        return made.offsets
    offsets = made.offsets.to_numpy()
    return pa.array(offsets, mask=np.append(made.is_null().to_numpy(zero_copy_only=False), False))


def _cast(made: pa.Array, kind: pa.DataType) -> pa.Array:
    return made if made.type == kind else made.cast(kind)


def _encoded(row: Any, kind: pa.DataType) -> Any:
    """Text of JSON as the bytes that a binary column wants."""
    if pa.types.is_binary(kind) and isinstance(row, str):
        return row.encode()
    if pa.types.is_struct(kind) and isinstance(row, dict):
        return row | {field.name: _encoded(row[field.name], field.type) for field in kind if field.name in row}
    if pa.types.is_list(kind) and isinstance(row, list):
        return [_encoded(item, kind.value_type) for item in row]
    if pa.types.is_map(kind) and isinstance(row, dict):
        return {key: _encoded(item, kind.item_type) for key, item in row.items()}
    return row


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
