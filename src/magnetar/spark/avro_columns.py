"""Avro to Arrow, a column at a time: all values written with one schema are decoded together.

Avro has no index: the start of a field is known only after the field before it was read. So a decoder walks through the
*schema* once. At each step it reads this part of all values with a few operations of NumPy: `at` has the offset of the
next byte of each value. A part that only some values have (a branch of a union, the third item of a list) is read for
those values only. Fields that are not wanted are skipped.

A value that does not match its schema must be detected, and must not damage others. Offsets only grow, and anything
impossible (a negative length, a branch that does not exist, a number of more than ten bytes) sets the offset to `LOST`.
So a value was valid exactly if its final offset is its end. Until then reading may continue after the value's end, in
bytes that exist.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from magnetar.spark.columns import LOGICAL

Offsets = np.ndarray[Any, np.dtype[np.int64]]
Decoded = tuple[pa.Array | None, Offsets]
Step = Callable[["Block", Offsets], Decoded]
"""Reads a part of some values; the array is None when it is not wanted."""

LOST: Final = 1 << 61
"""A position that no value has."""

VARINT_BYTES_MAX: Final = 10

ITEMS_MAX: Final = 256
"""The longest list or map in one value that is decoded here: each index in it is a step. Longer ones are left to the
other decoder.
"""

LONG_TEXT_BYTES: Final = 64
"""From this mean length on, texts are copied one by one, not byte by byte."""


class Unfit(Exception):
    """This decoder is not the right one for such a schema, or such values."""


class Bad(Exception):
    """Some values are not as their schema says."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class Block:
    """Values, one directly after the other."""

    def __init__(self, body: bytes) -> None:
        # Reading may continue for some bytes after the last value.
        self.bytes = np.frombuffer(body + bytes(16), np.uint8)
        self.body = body
        self.limit = len(body)

    def gather(self, at: Offsets) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        """The byte at each offset; after the end there are zeros."""
        return self.bytes[np.minimum(at, self.limit)]

    def number(self, at: Offsets) -> tuple[Offsets, Offsets]:
        """A whole number (int, long, length, branch) at each offset, and the offsets after it."""
        first = self.gather(at)
        at = at + 1
        raw = (first & 0x7F).astype(np.uint64)
        open_ = np.flatnonzero(first >= 0x80)
        shift = 7
        while len(open_):
            if shift >= 7 * VARINT_BYTES_MAX:
                at[open_] = LOST
                break
            more = self.gather(at[open_])
            if shift == 63:  # one bit is left of 64
                at[open_[more > 1]] = LOST
            raw[open_] |= (more & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[open_] += 1
            open_ = open_[more >= 0x80]
            shift += 7
        return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), at

    def fixed(self, at: Offsets, size: int) -> tuple["np.ndarray[Any, np.dtype[np.uint8]]", Offsets]:
        """`size` bytes at each offset."""
        begin = np.minimum(at, self.limit)
        steps = np.minimum(begin[:, None] + np.arange(size), len(self.bytes) - 1)
        return self.bytes[steps], at + size

    def slices(self, begin: Offsets, sizes: Offsets) -> pa.Array:
        """Pieces of different sizes, as binary."""
        total = int(sizes.sum())
        if total > 1 << 30:
            raise Unfit
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        if total > LONG_TEXT_BYTES * len(sizes):
            pairs = zip(begin.tolist(), (begin + sizes).tolist(), strict=True)
            data = b"".join([self.body[start:end] for start, end in pairs])
        else:
            data = self.bytes[np.arange(total) + np.repeat(begin - offsets[:-1], sizes)].tobytes()
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


class Decoder:
    """Decodes values of one schema to one type.

    Args:
        schema: as JSON.
        kind: the wanted type.

    Raises:
        Unfit: the schema is recursive.
    """

    def __init__(self, schema: Any, kind: pa.DataType) -> None:
        self._named: dict[str, tuple[dict[str, Any], str]] = {}
        self._inside: list[str] = []
        self._step = self._of(schema, kind, "")

    def array(self, values: list[Any]) -> pa.Array:
        """All values.

        Raises:
            Bad: with the first one that is not as the schema says.
            Unfit: something that the other decoder has to judge.
        """
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        ends = np.cumsum(sizes)
        block = Block(b"".join(values))
        made, at = self._step(block, ends - sizes)
        wrong = np.flatnonzero(at != ends)
        if len(wrong):
            raise Bad(int(wrong[0]))
        assert made is not None
        return made

    # -------------------------------------------------------------------------------------------------------- the schema

    def _of(self, node: Any, want: pa.DataType | None, space: str) -> Step:
        """The step that reads a part of the schema; `want` None: the step skips it."""
        if isinstance(node, list):
            return self._union(node, want, space)
        if isinstance(node, str):
            return self._reference(node, want, space)
        kind = node["type"]
        if isinstance(kind, list | dict):
            return self._of(kind, want, space)
        if kind == "array":
            return _list(self._of(node["items"], None if want is None else _item(want), space), None, want)
        if kind == "map":
            item = None if want is None else want.item_type if pa.types.is_map(want) else None
            if want is not None and item is None:
                raise Unfit
            return _list(self._of(node["values"], item, space), _text(want), want)
        if kind in ("record", "enum", "fixed"):
            space = node.get("namespace") or space
            name = node["name"] if "." in node["name"] or not space else f"{space}.{node['name']}"
            self._named[name] = node, name.rpartition(".")[0]
            return self._definition(name, want)
        if node.get("logicalType") == "decimal":
            return _decimal(_bytes(want), node, want)
        logical = LOGICAL.get((str(kind), str(node.get("logicalType"))))
        plain = self._reference(kind, None if want is None else pa.int64() if logical is not None else want, space)
        return plain if logical is None or want is None else _time(plain, str(node["logicalType"]), logical, want)

    def _reference(self, name: str, want: pa.DataType | None, space: str) -> Step:
        if name in _PLAIN:
            return _PLAIN[name](want)
        for full in (f"{space}.{name}" if space and "." not in name else name, name):
            if full in self._named:
                return self._definition(full, want)
        raise Unfit

    def _definition(self, name: str, want: pa.DataType | None) -> Step:
        if name in self._inside:
            raise Unfit
        node, space = self._named[name]
        if node["type"] == "enum":
            return _enum(node["symbols"], want)
        if node["type"] == "fixed":
            step = _fixed(node["size"], want)
            return _decimal(step, node, want) if node.get("logicalType") == "decimal" else step
        if want is not None and not pa.types.is_struct(want):
            raise Unfit
        self._inside.append(name)
        wanted = {} if want is None else {field.name: field.type for field in want}
        steps = [(field["name"], self._of(field["type"], wanted.get(field["name"]), space)) for field in node["fields"]]
        self._inside.pop()
        return _record(steps, want)

    def _union(self, branches: list[Any], want: pa.DataType | None, space: str) -> Step:
        steps = [None if branch == "null" else self._of(branch, want, space) for branch in branches]
        return _branches(steps, want)


def _item(want: pa.DataType) -> pa.DataType:
    if not pa.types.is_list(want):
        raise Unfit
    return want.value_type


def _made(made: pa.Array, want: pa.DataType) -> pa.Array:
    """The array in the wanted type, which may be wider."""
    return made if made.type == want else made.cast(want)


# ----------------------------------------------------------------------------------------------------------- its parts


def _null(want: pa.DataType | None) -> Step:
    def read(block: Block, at: Offsets) -> Decoded:
        return (None if want is None else pa.nulls(len(at), want)), at

    return read


def _whole(bits: int) -> Callable[[pa.DataType | None], Step]:
    def of(want: pa.DataType | None) -> Step:
        def read(block: Block, at: Offsets) -> Decoded:
            numbers, at = block.number(at)
            if bits == 32:
                wide = np.flatnonzero((numbers > 0x7FFFFFFF) | (numbers < -0x80000000))
                if len(wide):
                    at[wide] = LOST
                    numbers[wide] = 0
            if want is None:
                return None, at
            return _made(pa.array(numbers.astype(np.int32) if bits == 32 else numbers), want), at

        return read

    return of


def _real(size: int) -> Callable[[pa.DataType | None], Step]:
    def of(want: pa.DataType | None) -> Step:
        def read(block: Block, at: Offsets) -> Decoded:
            if want is None:
                return None, at + size
            raw, at = block.fixed(at, size)
            return _made(pa.array(np.ascontiguousarray(raw).view(f"<f{size}").ravel()), want), at

        return read

    return of


def _boolean(want: pa.DataType | None) -> Step:
    def read(block: Block, at: Offsets) -> Decoded:
        raw = block.gather(at)
        at = at + 1
        at[raw > 1] = LOST
        return (None if want is None else _made(pa.array(raw != 0), want)), at

    return read


def _bytes(want: pa.DataType | None) -> Step:
    """Bytes, as binary; the caller makes of them what is wanted."""

    def read(block: Block, at: Offsets) -> Decoded:
        sizes, at = block.number(at)
        wrong = (sizes < 0) | (sizes > block.limit - at)
        if wrong.any():
            at[wrong] = LOST
            sizes[wrong] = 0
        made = None if want is None else block.slices(np.minimum(at, block.limit), sizes)
        return made, at + sizes

    return read


def _text(want: pa.DataType | None) -> Step:
    """Texts; those that are not UTF-8 are found by the other decoder."""
    plain = _bytes(want)

    def read(block: Block, at: Offsets) -> Decoded:
        made, at = plain(block, at)
        try:
            return (None if made is None else made.cast(pa.string())), at
        except pa.ArrowInvalid:
            raise Unfit from None

    return read


def _of_text(want: pa.DataType | None) -> Step:
    return _converted(_text(want), want)


def _of_bytes(want: pa.DataType | None) -> Step:
    return _converted(_bytes(want), want)


def _converted(step: Step, want: pa.DataType | None) -> Step:
    def read(block: Block, at: Offsets) -> Decoded:
        made, at = step(block, at)
        return (None if made is None or want is None else _made(made, want)), at

    return read


def _fixed(size: int, want: pa.DataType | None) -> Step:
    def read(block: Block, at: Offsets) -> Decoded:
        if want is None:
            return None, at + size
        fits = at + size <= block.limit
        sizes = np.where(fits, size, 0)
        made = block.slices(np.minimum(at, block.limit), sizes)
        return made, np.where(fits, at + size, LOST)

    return read


def _enum(symbols: list[str], want: pa.DataType | None) -> Step:
    words = pa.array(symbols, pa.string())

    def read(block: Block, at: Offsets) -> Decoded:
        chosen, at = block.number(at)
        wrong = (chosen < 0) | (chosen >= len(symbols))
        if wrong.any():
            at[wrong] = LOST
            chosen[wrong] = 0
        if want is None:
            return None, at
        return _made(words.take(pa.array(chosen)) if symbols else pa.nulls(len(at), pa.string()), want), at

    return read


def _time(step: Step, logical: str, kind: pa.DataType, want: pa.DataType) -> Step:
    def read(block: Block, at: Offsets) -> Decoded:
        made, at = step(block, at)
        assert made is not None
        if logical == "date":
            return _made(made.cast(pa.int32()).cast(kind), want), at
        unit = "ms" if logical.endswith("millis") else "us"
        return _made(made.cast(pa.timestamp(unit, tz=kind.tz)), want), at

    return read


def _decimal(step: Step, node: Mapping[str, Any], want: pa.DataType | None) -> Step:
    scale = int(node.get("scale", 0))

    def read(block: Block, at: Offsets) -> Decoded:
        made, at = step(block, at)
        if made is None or want is None:
            return None, at
        numbers = [Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale) for raw in made.to_pylist()]
        return pa.array(numbers, want), at

    return read


def _record(steps: list[tuple[str, Step]], want: pa.DataType | None) -> Step:
    def read(block: Block, at: Offsets) -> Decoded:
        found: dict[str, pa.Array] = {}
        for name, step in steps:
            made, at = step(block, at)
            if made is not None:
                found[name] = made
        if want is None:
            return None, at
        if not want.num_fields:
            return pa.array([{}] * len(at), want), at
        parts = [found[field.name] if field.name in found else pa.nulls(len(at), field.type) for field in want]
        return pa.StructArray.from_arrays(parts, fields=list(want)), at

    return read


def _branches(steps: list[Step | None], want: pa.DataType | None) -> Step:
    """The step of a union; a step None is null."""

    def read(block: Block, at: Offsets) -> Decoded:
        chosen, at = block.number(at)
        wrong = (chosen < 0) | (chosen >= len(steps))
        at[wrong] = LOST
        parts: list[pa.Array] = []
        rows: list[Offsets] = []
        for number, step in enumerate(steps):
            mine = np.flatnonzero(chosen == number)
            if step is None or not len(mine):
                continue
            if len(mine) == len(at):
                return step(block, at)
            made, at[mine] = step(block, at[mine])
            if made is not None:
                parts.append(made)
                rows.append(mine)
        if want is None:
            return None, at
        if not parts:
            return pa.nulls(len(at), want), at
        sources = np.zeros(len(at), np.int64)
        missing = np.ones(len(at), np.bool_)
        every = np.concatenate(rows)
        sources[every] = np.arange(len(every))
        missing[every] = False
        return pa.concat_arrays(parts).take(pa.array(sources, mask=missing)), at

    return read


def _list(item: Step, key: Step | None, want: pa.DataType | None) -> Step:
    """A list, or (with a key) a map: blocks of items, the last of which is empty."""

    def read(block: Block, at: Offsets) -> Decoded:
        at = at.copy()
        keys: list[pa.Array] = []
        items: list[pa.Array] = []
        rows: list[Offsets] = []
        active = np.arange(len(at))
        steps = 0
        while len(active):
            counts, at[active] = block.number(at[active])
            sized = counts < 0
            if sized.any():
                _, at[active[sized]] = block.number(at[active[sized]])
                counts[sized] = -counts[sized]
            many = (counts < 0) | (
                counts > max(block.limit, ITEMS_MAX)
            )  # an item without bytes may be counted for ever
            if many.any():
                at[active[many]] = LOST
                counts[many] = 0
            going = (counts != 0) & (at[active] <= block.limit)
            active, counts = active[going], counts[going]
            if not len(active):
                break
            most = int(counts.max())
            steps += most
            if steps > ITEMS_MAX:
                raise Unfit
            for number in range(most):
                mine = active[counts > number]
                if key is not None:
                    made, at[mine] = key(block, at[mine])
                    if made is not None:
                        keys.append(made)
                made, at[mine] = item(block, at[mine])
                if made is not None:
                    items.append(made)
                    rows.append(mine)
        if want is None:
            return None, at
        offsets = np.zeros(len(at) + 1, np.int32)
        inner = pa.array([], want.item_type if pa.types.is_map(want) else want.value_type)
        names = pa.array([], pa.string())
        if rows:
            every = np.concatenate(rows)
            order = pa.array(np.argsort(every, kind="stable"))
            np.cumsum(np.bincount(every, minlength=len(at)), out=offsets[1:])
            inner = pa.concat_arrays(items).take(order)
            names = pa.concat_arrays(keys).take(order) if keys else names
        if pa.types.is_map(want):
            return pa.MapArray.from_arrays(pa.array(offsets), names, inner), at
        return pa.ListArray.from_arrays(pa.array(offsets), inner), at

    return read


_PLAIN: Final[Mapping[str, Callable[[pa.DataType | None], Step]]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole(32),
    "long": _whole(64),
    "float": _real(4),
    "double": _real(8),
    "bytes": _of_bytes,
    "string": _of_text,
}
