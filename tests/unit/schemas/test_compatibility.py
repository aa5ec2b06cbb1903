"""Which schema may stand beside which: tables of each strategy and type."""

import base64
import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from magnetar.schemas.avro import NESTING_MAX, NODES_MAX
from magnetar.schemas.checker import PAIRS_MAX
from magnetar.schemas.compatibility import Strategy, check, check_consumer, identity, why_not_read
from magnetar.schemas.errors import SchemaIncompatible, SchemaInvalid
from magnetar.schemas.keyvalue import from_text, put_together, to_text
from magnetar.schemas.types import PRIMITIVES, STRUCTS, Definition, SchemaType, type_named, type_of


def record(*fields: Any, name: str = "R", **more: Any) -> Definition:
    """An Avro record."""
    return avro({"type": "record", "name": name, "fields": list(fields), **more})


def avro(schema: Any, kind: SchemaType = SchemaType.AVRO) -> Definition:
    return Definition(kind, json.dumps(schema).encode())


def field(name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


BASE = record(field("a"))
WITH_DEFAULT = record(field("a"), field("b", "string", default=""))
WITHOUT_DEFAULT = record(field("a"), field("b", "string"))
WIDER = record(field("a", "long"))
OTHER = record(field("a", "string"))

# old, new: does the new read the old, does the old read the new
PAIRS = [
    (BASE, WITH_DEFAULT, True, True),
    (BASE, WITHOUT_DEFAULT, False, True),
    (WITHOUT_DEFAULT, BASE, True, False),
    (BASE, WIDER, True, False),
    (WIDER, BASE, False, True),
    (BASE, OTHER, False, False),
    (BASE, record(field("a"), name="Renamed"), True, True),
    (BASE, record(field("c", aliases=["a"])), True, False),
    (record(field("n", ["null", "int"])), record(field("n", ["null", "int", "string"])), True, False),
    (record(field("n")), record(field("n", ["null", "int"])), True, False),
    (
        record(field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
        record(field("e", {"type": "enum", "name": "E", "symbols": ["A"]})),
        False,
        True,
    ),
    (
        record(field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
        record(field("e", {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"})),
        True,
        True,
    ),
    (
        record(field("f", {"type": "fixed", "name": "F", "size": 4})),
        record(field("f", {"type": "fixed", "name": "F", "size": 8})),
        False,
        False,
    ),
    (avro({"type": "array", "items": "int"}), avro({"type": "array", "items": "double"}), True, False),
    (avro({"type": "map", "values": "string"}), avro({"type": "map", "values": "bytes"}), True, True),
    (
        record(field("next", ["null", "R"])),
        record(field("next", ["null", "S"]), field("more", default=1), name="S"),
        True,
        True,
    ),
    (
        record(field("inner", {"type": "record", "name": "I", "fields": []})),
        record(field("inner", {"type": "record", "name": "J", "fields": []})),
        False,
        False,
    ),
    (record(field("a"), namespace="x.y"), record(field("a"), namespace="z"), True, True),
]


@pytest.mark.parametrize(("old", "new", "backward", "forward"), PAIRS)
@pytest.mark.parametrize("kind", sorted(STRUCTS))
def test_avro_rules(kind: SchemaType, old: Definition, new: Definition, backward: bool, forward: bool) -> None:
    old, new = Definition(kind, old.data), Definition(kind, new.data)
    assert (why_not_read(new, old) == "", why_not_read(old, new) == "") == (backward, forward)


ACCEPTED = {
    Strategy.ALWAYS_COMPATIBLE: lambda backward, forward: True,
    Strategy.ALWAYS_INCOMPATIBLE: lambda backward, forward: False,
    Strategy.BACKWARD: lambda backward, forward: backward,
    Strategy.BACKWARD_TRANSITIVE: lambda backward, forward: backward,
    Strategy.FORWARD: lambda backward, forward: forward,
    Strategy.FORWARD_TRANSITIVE: lambda backward, forward: forward,
    Strategy.FULL: lambda backward, forward: backward and forward,
    Strategy.FULL_TRANSITIVE: lambda backward, forward: backward and forward,
}


def accepted(new: Definition, existing: list[Definition], strategy: Strategy) -> bool:
    try:
        check(new, list(enumerate(existing)), strategy)
    except SchemaIncompatible as error:
        assert "\n" not in str(error)
        return False
    return True


@pytest.mark.parametrize("strategy", sorted(ACCEPTED))
@pytest.mark.parametrize(("old", "new", "backward", "forward"), PAIRS)
def test_strategies(strategy: Strategy, old: Definition, new: Definition, backward: bool, forward: bool) -> None:
    assert accepted(new, [old], strategy) is ACCEPTED[strategy](backward, forward)
    assert accepted(new, [], strategy), "the first schema is always taken"


@pytest.mark.parametrize("strategy", sorted(ACCEPTED))
def test_only_transitive_strategies_look_beyond_the_newest(strategy: Strategy) -> None:
    # The new one gets on with the newest in both directions, and with the first in neither.
    history = [OTHER, BASE]
    expected = strategy is not Strategy.ALWAYS_INCOMPATIBLE and not strategy.transitive
    assert accepted(WITH_DEFAULT, history, strategy) is expected


@pytest.mark.parametrize("strategy", sorted(ACCEPTED))
def test_a_change_of_type(strategy: Strategy) -> None:
    json_kind = Definition(SchemaType.JSON, BASE.data)
    for old, new in ((BASE, json_kind), (json_kind, BASE), (BASE, Definition(SchemaType.STRING))):
        assert accepted(new, [old], strategy) is (strategy is Strategy.ALWAYS_COMPATIBLE)


def test_primitives_of_one_type_get_on() -> None:
    for kind in (*PRIMITIVES, SchemaType.STRING):
        assert why_not_read(Definition(kind), Definition(kind)) == ""
    assert why_not_read(Definition(SchemaType.INT32), Definition(SchemaType.INT64)) == "the type is INT32, not INT64"


def key_value(key: Definition, value: Definition, encoding: str = "INLINE") -> Definition:
    properties = {
        "kv.encoding.type": encoding,
        "key.schema.type": key.type.name,
        "value.schema.type": value.type.name,
        "key.schema.properties": "{}",
    }
    return Definition(SchemaType.KEY_VALUE, put_together(key.data, value.data), properties)


def test_key_value_schemas_are_judged_part_by_part() -> None:
    text = Definition(SchemaType.STRING)
    old = key_value(text, BASE)
    assert why_not_read(key_value(text, WITH_DEFAULT), old) == ""
    assert why_not_read(key_value(text, OTHER), old).startswith("value: type mismatch")
    assert why_not_read(key_value(BASE, BASE), old) == "key: the type is AVRO, not STRING"
    assert why_not_read(key_value(text, BASE, "SEPARATED"), old) == "the key is SEPARATED, not INLINE"
    assert identity(old) != identity(key_value(text, BASE, "SEPARATED")) != identity(key_value(BASE, text))
    # The bytes do not say of which type the parts are.
    assert identity(key_value(text, text)) != identity(key_value(text, Definition(SchemaType.INT32)))


def test_key_value_schemas_in_rest() -> None:
    one = key_value(Definition(SchemaType.STRING), BASE)
    assert json.loads(to_text(one)) == {"key": "", "value": json.loads(BASE.data)}
    assert identity(Definition(one.type, from_text(to_text(one)), one.properties)) == identity(one)
    for wrong in ("", "[]", "null", '{"key": 1}', "[" * 100_000):
        with pytest.raises(SchemaInvalid):
            from_text(wrong)


def native(message: str, *, package: str = "p", root: str = "") -> Definition:
    file = FileDescriptorProto(name="f.proto", package=package)
    file.message_type.add(name=message).nested_type.add(name="Inner")
    files = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    told = {
        "fileDescriptorSet": files,
        "rootMessageTypeName": root or f"p.{message}",
        "rootFileDescriptorName": "f.proto",
    }
    return Definition(SchemaType.PROTOBUF_NATIVE, json.dumps(told).encode())


def test_native_protobuf_keeps_its_message() -> None:
    assert identity(native("M")) and identity(native("M", root="p.M.Inner"))
    assert why_not_read(native("M"), native("M", root="p.M.Inner")) == "the message is p.M, not p.M.Inner"
    for wrong in (
        native("M", root="p.N"),
        native("M", root="p.M.Outer"),
        Definition(SchemaType.PROTOBUF_NATIVE, b"{}"),
    ):
        with pytest.raises(SchemaInvalid):
            identity(wrong)


SAME = [
    (BASE, avro({"fields": [{"type": {"type": "int"}, "name": "a", "doc": "x"}], "name": "R", "type": "record"})),
    (
        record(field("a"), namespace="n"),
        avro({"type": "record", "name": "n.R", "fields": [field("a")], "doc": "documented"}),
    ),
    (
        record(field("x", {"type": "fixed", "name": "F", "size": 1}), field("y", "n.F"), namespace="n"),
        record(field("x", {"type": "fixed", "name": "n.F", "size": 1}), field("y", "F"), namespace="n"),
    ),
]
DIFFERENT = [
    (BASE, WIDER),
    (BASE, record(field("a", default=1))),
    (BASE, record(field("a", order="descending"))),
    (BASE, record(field("a", {"type": "int", "logicalType": "date"}))),
    (BASE, record(field("a"), name="S")),
    (BASE, Definition(SchemaType.JSON, BASE.data)),
    (record(field("a"), field("b")), record(field("b"), field("a"))),
]


def test_identity_is_meaning_not_text() -> None:
    for one, other in SAME:
        assert identity(one) == identity(other)
    for one, other in DIFFERENT:
        assert identity(one) != identity(other)
    assert identity(Definition(SchemaType.STRING, b"null")) == identity(Definition(SchemaType.STRING, name="x"))
    assert identity(Definition(SchemaType.EXTERNAL, b"1")) != identity(Definition(SchemaType.EXTERNAL, b"2"))


def nested(levels: int) -> Any:
    schema: Any = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


INVALID = [
    b"",
    b"{",
    b"null",
    b"7",
    b"\xff\xfe",
    b'"unknown"',
    b'{"type": "record", "name": "R"}',
    b'{"type": "record", "fields": []}',
    b'{"type": "record", "name": "R", "fields": {}}',
    b'{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
    b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "S"}]}',
    b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
    b'{"type": "enum", "name": "E", "symbols": "A"}',
    b'{"type": "enum", "name": "E", "symbols": ["A", "A"]}',
    b'{"type": "fixed", "name": "F", "size": "1"}',
    b'["int", "int"]',
    b'{"type": "array"}',
    b'{"name": "R"}',
    json.dumps(nested(NESTING_MAX + 1)).encode(),
    json.dumps(nested(400)).encode(),
    b"[" * 200_000,
    b'{"a":' * 50_000,
    b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": ' + b"[" * 100_000,
    record(*(field(f"f{n}") for n in range(NODES_MAX))).data,
]


@pytest.mark.parametrize("data", INVALID, ids=range(len(INVALID)))
def test_invalid_definitions_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        identity(Definition(SchemaType.AVRO, data))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_a_recursive_schema_is_fine() -> None:
    tree = record(field("left", ["null", "R"]), field("all", {"type": "array", "items": "R"}))
    assert why_not_read(tree, tree) == ""
    assert identity(avro(nested(NESTING_MAX)))


def test_a_comparison_that_would_take_minutes_is_refused() -> None:
    def union(prefix: str) -> Definition:
        branches = [{"type": "record", "name": f"{prefix}{n}", "fields": [field("x")]} for n in range(1000)]
        return record(field("u", branches))

    assert why_not_read(union("A"), union("B")) == (
        f"comparing them takes more than {PAIRS_MAX} steps: their unions are too large"
    )
    wide = record(*(field(f"f{n}") for n in range(NODES_MAX // 2 - 1)))
    assert why_not_read(wide, wide) == "", "as many fields as there may be are fine"


def test_types() -> None:
    for kind in (SchemaType.NONE, SchemaType.AUTO_CONSUME):
        with pytest.raises(SchemaInvalid):
            identity(Definition(kind))
    with pytest.raises(SchemaInvalid, match="INT32 has no definition"):
        identity(Definition(SchemaType.INT32, b"{}"))
    for wrong in (23, -1, 2**31 - 1):
        with pytest.raises(SchemaInvalid, match="not known"):
            type_of(wrong)
    assert type_named("BYTES") is SchemaType.NONE and type_named("KEY_VALUE") is SchemaType.KEY_VALUE
    with pytest.raises(SchemaInvalid, match="not known"):
        type_named("XML")
    for data in (b"", b"\0\0\0\1", b"\0\0\0\0\0\0\0\2x", b"\0\0\0\0\0\0\0\0x"):
        with pytest.raises(SchemaInvalid):
            identity(Definition(SchemaType.KEY_VALUE, data))


def test_consumers_are_judged_by_what_they_have_to_read() -> None:
    history = [(0, OTHER), (1, BASE)]
    for strategy in (Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL):
        check_consumer(WIDER, history, strategy)  # reads the newest
        with pytest.raises(SchemaIncompatible, match="version 1"):
            check_consumer(WITHOUT_DEFAULT, history, strategy)
    for strategy in (Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE):
        with pytest.raises(SchemaIncompatible, match="version 0"):
            check_consumer(BASE, history, strategy)
    check_consumer(Definition(SchemaType.STRING), history, Strategy.ALWAYS_COMPATIBLE)
    check_consumer(BASE, history, Strategy.ALWAYS_INCOMPATIBLE)
    with pytest.raises(SchemaIncompatible):
        check_consumer(WIDER, history, Strategy.ALWAYS_INCOMPATIBLE)
