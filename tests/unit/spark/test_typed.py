"""Schemas to columns, and values of several versions to Arrow: every type, and values that are not what they say."""

import io
import json
import random
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from magnetar.core.errors import ConfigError
from magnetar.schemas.keyvalue import put_together
from magnetar.schemas.types import Definition, SchemaType
from magnetar.spark.avro_columns import Bad, Unfit
from magnetar.spark.avro_columns import Decoder as AvroColumns
from magnetar.spark.columns import Columns, columns_of, ddl, sql_of
from magnetar.spark.typed import Misfit, Part, Run, Typed, _bare

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
RICH = {
    "type": "record",
    "name": "R",
    "namespace": "n.s",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": ["null", "Kind"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "times", "type": {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}}},
        {"name": "by", "type": {"type": "map", "values": ["null", "double"]}},
        {
            "name": "inner",
            "type": ["null", {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["int", "long"]}]}],
        },
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}},
    ],
}
RICH_VALUE = {
    "id": 7,
    "name": None,
    "kind": "A",
    "other": "B",
    "at": WHEN,
    "exact": WHEN,
    "local": WHEN.replace(tzinfo=None),
    "day": date(2026, 1, 2),
    "price": Decimal("12.34"),
    "times": [WHEN, WHEN],
    "by": {"a": 0.5, "b": None},
    "inner": {"x": 5},
    "raw": b"\x00\xff",
}


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def defined(schema: Any, kind: SchemaType = SchemaType.AVRO) -> Definition:
    return Definition(kind, json.dumps(schema).encode())


def written(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return buffer.getvalue()


def one_of(found: Definition | dict[bytes, Definition], columns: Columns | None = None) -> Typed:
    versions = found if isinstance(found, dict) else {b"": found}
    if columns is None:
        columns = columns_of(versions[max(versions)])
    assert columns is not None
    return Typed(columns, versions.get)


def decoded(typed: Typed, values: list[bytes | None], version: bytes = b"", keys: list[bytes] | None = None) -> Any:
    arrays = typed.arrays(values, keys or [], [Run(1, 0, version, len(values))])
    assert [arrays[name].type for name in typed.columns] == list(typed.columns.values())
    for array in arrays.values():
        array.validate(full=True)
    return pa.table(arrays).to_pylist()


def test_every_type_of_avro() -> None:
    definition = defined(RICH)
    columns = columns_of(definition)
    assert columns is not None
    assert ddl(columns) == (
        "`id` bigint, `name` string, `kind` string, `other` string, `at` timestamp, `exact` timestamp, `local` timestamp_ntz, "
        "`day` date, `price` decimal(9,2), `times` array<timestamp>, `by` map<string,double>, `inner` struct<`x`:bigint>, "
        "`raw` binary"
    )
    assert sql_of(columns["inner"], quoted=False) == "struct<x:bigint>"
    body = written(RICH, RICH_VALUE)
    nothing = dict.fromkeys(columns)
    expected = RICH_VALUE | {"by": [("a", 0.5), ("b", None)]}
    assert decoded(one_of(definition), [body, None, body]) == [expected, nothing, expected]
    assert decoded(one_of(definition), [None]) == [nothing]
    assert decoded(one_of(definition), []) == []


def test_json_with_times_and_text() -> None:
    schema = record(
        ("id", "long"),
        ("name", ["null", "string"]),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("tags", {"type": "array", "items": "string"}),
    )
    definition = defined(schema, SchemaType.JSON)
    value = {"id": 1, "name": "ü\n{", "at": int(WHEN.timestamp() * 1000), "tags": ["a"], "unknown": {"x": 1}}
    spread, close = json.dumps(value, indent=2).encode(), json.dumps(value, ensure_ascii=False).encode()
    expected = {"id": 1, "name": "ü\n{", "at": WHEN, "tags": ["a"]}
    nothing = dict.fromkeys(expected)
    rows = decoded(one_of(definition), [spread, None, close, b"{}", b"null"])
    assert rows == [expected, nothing, expected, nothing, nothing]
    # What the parser for many at once does not know goes one by one.
    with_map = defined(record(("by", {"type": "map", "values": "int"}), ("raw", "bytes")), SchemaType.JSON)
    rows = decoded(one_of(with_map), [b'{"by": {"a": 1}, "raw": "x"}'])
    assert rows == [{"by": [("a", 1)], "raw": b"x"}]


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (SchemaType.STRING, "ü".encode(), "ü"),
        (SchemaType.BOOLEAN, b"\1", True),
        (SchemaType.INT8, b"\xff", -1),
        (SchemaType.INT16, b"\1\0", 256),
        (SchemaType.INT32, b"\xff\xff\xff\xfe", -2),
        (SchemaType.INT64, (1 << 40).to_bytes(8, "big"), 1 << 40),
        (SchemaType.FLOAT, struct.pack(">f", 0.5), 0.5),
        (SchemaType.DOUBLE, struct.pack(">d", 0.1), 0.1),
        (SchemaType.TIMESTAMP, int(WHEN.timestamp() * 1000).to_bytes(8, "big"), WHEN),
        (SchemaType.DATE, int(WHEN.timestamp() * 1000).to_bytes(8, "big"), WHEN),
        (SchemaType.INSTANT, struct.pack(">qi", int(WHEN.timestamp()), 678_000_000), WHEN),
        (SchemaType.LOCAL_DATE, struct.pack(">q", 20_455), date(2026, 1, 2)),
        (SchemaType.LOCAL_TIME, struct.pack(">q", 5), 5),
        (SchemaType.LOCAL_DATE_TIME, struct.pack(">qq", 20_455, 1_000), datetime(2026, 1, 2, 0, 0, 0, 1)),
    ],
)
def test_plain_types(kind: SchemaType, body: bytes, value: Any) -> None:
    typed = one_of(Definition(kind))
    assert decoded(typed, [body, None, body]) == [{"value": value}, {"value": None}, {"value": value}]
    if kind is not SchemaType.STRING:
        with pytest.raises(Misfit, match="has 3 bytes") as misfit:
            decoded(typed, [body, None, b"\0\0\0"])
        assert misfit.value.index == 2


def pair(encoding: str, key: Definition, value: Definition) -> Definition:
    properties = {
        "key.schema.type": key.type.name,
        "value.schema.type": value.type.name,
        "kv.encoding.type": encoding,
    }
    return Definition(SchemaType.KEY_VALUE, put_together(key.data, value.data), properties)


def test_pairs() -> None:
    of = record(("a", "int"))
    body = written(of, {"a": 3})
    separated = pair("SEPARATED", Definition(SchemaType.STRING), defined(of))
    expected = {"key": "k", "value": {"a": 3}}
    assert decoded(one_of(separated), [body, None], keys=[b"k", b"k"]) == [expected, {"key": "k", "value": None}]
    inline = one_of(pair("INLINE", Definition(SchemaType.STRING), defined(of)))
    assert decoded(inline, [put_together(b"k", body), None]) == [expected, {"key": None, "value": None}]
    for bad in (b"\0\0\0\1k", b"\0\0\0\1k\0\0\0\5x", b"\0"):
        with pytest.raises(Misfit, match="not a key-value pair") as misfit:
            decoded(inline, [put_together(b"k", body), bad])
        assert misfit.value.index == 1


OLD = record(("a", "int"), ("gone", "string"))
NEW = record(("b", ["null", "string"]), ("a", "long"))
V0, V1 = bytes(8), bytes(7) + b"\1"


def test_versions_interleave() -> None:
    typed = one_of({V0: defined(OLD), V1: defined(NEW)})
    old, new = written(OLD, {"a": 1, "gone": "x"}), written(NEW, {"b": "y", "a": 2})
    values: list[bytes | None] = [old, new, new, None, old, new]
    runs = [Run(1, 0, V0, 1), Run(1, 1, V1, 2), Run(1, 2, V0, 2), Run(1, 3, V1, 1)]
    rows = pa.table(typed.arrays(values, [], runs)).to_pylist()
    first, second = {"b": None, "a": 1}, {"b": "y", "a": 2}
    assert rows == [first, second, second, {"b": None, "a": None}, first, second]


def test_some_columns_in_another_order() -> None:
    typed = one_of({V1: defined(NEW)}, {"a": pa.int64()})
    assert decoded(typed, [written(NEW, {"b": "y", "a": 2})], V1) == [{"a": 2}]


GOOD = written(NEW, {"b": "y", "a": 2})


@pytest.mark.parametrize(
    "bad", [b"", GOOD + b"\0", GOOD[:-1], b"\x02\xff\xff\xff\xff", b"\x08", b"\x02\x04\xff\xff\x04", GOOD * 2]
)
def test_what_is_no_avro_spoils_nobody_else(bad: bytes) -> None:
    with pytest.raises(Misfit) as misfit:
        decoded(one_of(defined(NEW)), [GOOD, None, bad, GOOD])
    assert misfit.value.index == 2
    assert "\n" not in str(misfit.value)


@pytest.mark.parametrize("bad", [b"", b"{", b'{"a": "x"}', b"\xff", b"{}{}", b'{"a": 1},"n":1}\n{"v":{"a": 1}', b"[]"])
def test_what_is_no_json_spoils_nobody_else(bad: bytes) -> None:
    with pytest.raises(Misfit) as misfit:
        decoded(one_of(defined(record(("a", "int")), SchemaType.JSON)), [b'{"a": 1}', None, bad, b"{}"])
    assert misfit.value.index == 2


def test_two_halves_do_not_make_two_values() -> None:
    with pytest.raises(Misfit):
        decoded(one_of(defined(record(("a", "int")), SchemaType.JSON)), [b'{"a"', b": 1}", b"{}{}"])


def test_a_version_that_is_not_there_and_a_type_that_changed() -> None:
    typed = one_of({V0: defined(record(("a", "string")))}, {"a": pa.int64()})
    with pytest.raises(Misfit, match="version 1, which the topic does not have"):
        decoded(typed, [b"x"], V1)
    with pytest.raises(Misfit, match="does not fit AVRO"):
        decoded(typed, [written(record(("a", "string")), {"a": "x"})], V0)


SIMPLE = ["int", "long", "float", "double", "string", "boolean", "bytes"]
NUMBERS = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


def a_schema(rng: random.Random, names: Iterator[int], depth: int = 0) -> Any:
    """A random type that has columns."""
    roll = rng.random()
    if depth > 2 or roll < 0.4:
        return rng.choice(SIMPLE)
    if roll < 0.5:
        return {"type": "enum", "name": f"E{next(names)}", "symbols": ["A", "B", "C"]}
    if roll < 0.55:
        return {"type": "fixed", "name": f"F{next(names)}", "size": rng.randint(0, 3)}
    if roll < 0.6:
        return {"type": "long", "logicalType": rng.choice(["timestamp-millis", "timestamp-micros"])}
    if roll < 0.7:
        inner = a_schema(rng, names, depth + 1)
        branches = ["null", inner]
        rng.shuffle(branches)
        return inner if isinstance(inner, list) else branches
    if roll < 0.8:
        return {"type": "array", "items": a_schema(rng, names, depth + 1)}
    if roll < 0.87:
        return {"type": "map", "values": a_schema(rng, names, depth + 1)}
    if roll < 0.9:
        return rng.choice([["int", "long"], ["null", "float", "double"]])
    return a_random_record(rng, names, depth + 1)


def a_random_record(rng: random.Random, names: Iterator[int], depth: int = 0) -> Any:
    fields = [
        {"name": f"f{number}", "type": a_schema(rng, names, depth)}
        for number in range(rng.randint(1 if depth else 2, 4))
    ]
    return {"type": "record", "name": f"R{next(names)}", "fields": fields}


def a_value(rng: random.Random, node: Any) -> Any:
    """A random value of a type, as it is stored."""
    if isinstance(node, list):
        return a_value(rng, rng.choice(node))
    kind = node if isinstance(node, str) else node["type"]
    if kind in NUMBERS:
        low, high = NUMBERS[kind]
        if isinstance(node, dict):
            low, high = -(10**11), 10**11
        return rng.choice([0, -1, 1, 63, -65, low, high, rng.randint(low, high)])
    if kind in ("float", "double"):
        return rng.choice([0.0, -1.5, 2.0**20])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(["", "x", "ü", "word" * rng.randint(1, 60)])
    if kind == "bytes":
        return rng.randbytes(rng.randint(0, 5))
    if kind == "fixed":
        return rng.randbytes(node["size"])
    if kind == "enum":
        return rng.choice(node["symbols"])
    if kind == "array":
        return [a_value(rng, node["items"]) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
    if kind == "map":
        return {f"k{number}": a_value(rng, node["values"]) for number in range(rng.choice([0, 0, 1, 3]))}
    return {field["name"]: a_value(rng, field["type"]) for field in node["fields"]} if kind == "record" else None


@pytest.mark.parametrize("seed", range(150))
def test_a_column_at_a_time_is_what_the_library_reads(seed: int) -> None:
    """The dumb twin reads one value after the other, by another library; also of values that were damaged."""
    rng = random.Random(seed)
    schema = a_random_record(rng, count())
    bare = _bare(schema)
    parsed = fastavro.parse_schema(json.loads(json.dumps(bare)))
    columns = columns_of(defined(schema))
    assert columns is not None
    kept = {name: kind for name, kind in columns.items() if rng.random() < 0.7} or columns
    kind = pa.struct(list(kept.items()))
    quick, slow = AvroColumns(schema, kind), Part(defined(schema), kind)
    values: list[bytes] = []
    for _ in range(rng.randint(1, 30)):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, a_value(rng, bare))
        values.append(buffer.getvalue())
    expected = slow._avro_by_value(values)
    made = quick.array(values)
    made.validate(full=True)
    assert made.equals(expected)
    for _ in range(20):
        spoilt, at = list(values), rng.randrange(len(values))
        one = bytearray(spoilt[at])
        roll = rng.random()
        if roll < 0.5 and one:
            one[rng.randrange(len(one))] = rng.choice([0, 1, 2, 127, 128, 255])
        elif roll < 0.75:
            del one[rng.randint(0, len(one)) :]
        else:
            one += rng.randbytes(rng.randint(1, 3))
        spoilt[at] = bytes(one)
        try:
            found = quick.array(spoilt)
        except (Bad, Unfit, pa.ArrowException) as error:
            if isinstance(error, Bad):
                assert error.index == at
            # (A byte that is no boolean, or a number too large for a field that is not wanted, the library takes.)
            if isinstance(error, Bad) and roll >= 0.5 and kept == columns:
                with pytest.raises((Misfit, pa.ArrowException, ValueError, OverflowError)):
                    slow._avro_by_value([spoilt[at]])
        else:
            if kept == columns:  # what is passed over is not looked at closely
                assert repr(found.to_pylist()) == repr(slow._avro_by_value(spoilt).to_pylist())


def test_long_lists_and_texts() -> None:
    schema = record(("many", {"type": "array", "items": "int"}), ("text", "string"))
    value = {"many": list(range(5000)), "text": "x" * 100_000}
    assert decoded(one_of(defined(schema)), [written(schema, value)] * 2) == [value] * 2
    # A list that claims to be longer than there are bytes, of items that have none.
    hollow = record(("none", {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}))
    with pytest.raises(Misfit):
        decoded(one_of(defined(hollow)), [b"\xfe\xff\xff\xff\x0f"])


def nested(kind: Callable[[Any], Any]) -> Any:
    return kind(record(("a", "int")))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(("next", ["null", "R"])), "'next' of the topic's schema is of type R, which contains itself"),
        (record(("u", ["int", "string"])), "'u' of the topic's schema is one of 2 types"),
        (record(("n", "null")), "'n' of the topic's schema is of type 'null'"),
        (
            record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 60})),
            "'d' of the topic's schema is a decimal of more than 38 digits",
        ),
    ],
)
def test_what_spark_has_no_type_for(schema: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        columns_of(defined(schema))
    assert reason in str(refused.value) and "allowDifferentTopicSchemas=true" in str(refused.value)


@pytest.mark.parametrize("kind", [SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE, SchemaType.EXTERNAL])
def test_types_that_stay_binary(kind: SchemaType) -> None:
    assert columns_of(Definition(kind, b"{}")) is None
