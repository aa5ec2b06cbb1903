"""Laws of schemas: what is judged readable is read by another library, identity is meaning, the registry has no holes."""

import io
import json
import random
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from magnetar.schemas.avro import Avro
from magnetar.schemas.compatibility import Strategy, check, identity, why_not_read
from magnetar.schemas.errors import SchemaIncompatible
from magnetar.schemas.keyvalue import put_together
from magnetar.schemas.registry import SCHEMA_PREFIX, Registry
from magnetar.schemas.shapes import surely_reads
from magnetar.schemas.types import Definition, SchemaType

SEEDS = range(150)
SIMPLE = ["int", "long", "float", "double", "string", "boolean"]
VALUES: dict[str, Any] = {
    "int": 3,
    "long": 4,
    "float": 0.5,
    "double": 1.5,
    "string": "x",
    "boolean": True,
    "null": None,
}


def a_type(rng: random.Random, depth: int = 0) -> Any:
    """A random type."""
    roll = rng.random()
    if depth > 1 or roll < 0.6:
        return rng.choice(SIMPLE)
    if roll < 0.75:
        return ["null", a_type(rng, 9)]
    return {"type": "array", "items": a_type(rng, depth + 1)}


def a_record(rng: random.Random) -> dict[str, Any]:
    """A random record; few names, so that two of them often have something in common."""
    fields = []
    for name in rng.sample("abcd", rng.randint(0, 4)):
        kind = a_type(rng)
        field = {"name": name, "type": kind}
        if rng.random() < 0.5:
            field["default"] = value_of(kind)
        fields.append(field)
    return {"type": "record", "name": "R", "fields": fields}


def value_of(kind: Any) -> Any:
    """A value of a type; of a union one of its first branch, as defaults must be."""
    if isinstance(kind, list):
        return value_of(kind[0])
    if isinstance(kind, dict):
        return [value_of(kind["items"])] if kind["type"] == "array" else None
    return VALUES[kind]


def defined(schema: Any) -> Definition:
    return Definition(SchemaType.AVRO, json.dumps(schema).encode())


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_judged_readable_is_read(seed: int) -> None:
    rng = random.Random(seed)
    readable = 0
    for _ in range(20):
        writer, reader = a_record(rng), a_record(rng)
        if why_not_read(defined(reader), defined(writer)):
            continue
        readable += 1
        buffer = io.BytesIO()
        fastavro.schemaless_writer(
            buffer, writer, {field["name"]: value_of(field["type"]) for field in writer["fields"]}
        )
        buffer.seek(0)
        read = fastavro.schemaless_reader(buffer, writer, reader)
        assert isinstance(read, dict) and set(read) == {field["name"] for field in reader["fields"]}
    assert readable, "the worlds must not be empty"


def rewritten(rng: random.Random, node: Any) -> Any:
    """The same schema in other words: other order of keys, documentation, wrapped primitives."""
    if isinstance(node, list):
        return [rewritten(rng, branch) for branch in node]
    if not isinstance(node, dict):
        return {"type": node} if rng.random() < 0.3 else node
    items = [
        (key, rewritten(rng, value) if key in ("type", "items") and not (key == "type" and value in ("record", "array"))
         else [rewritten(rng, one) for one in value] if key == "fields" else value)
        for key, value in node.items()
    ]  # fmt: skip
    rng.shuffle(items)
    return dict(items) | ({"doc": str(rng.random())} if "name" in node else {})


@pytest.mark.parametrize("seed", SEEDS)
def test_laws(seed: int) -> None:
    rng = random.Random(seed)
    one, other = a_record(rng), a_record(rng)
    left, right = defined(one), defined(other)
    assert why_not_read(left, left) == ""
    assert identity(defined(rewritten(rng, one))) == identity(left)
    if identity(left) == identity(right):
        assert why_not_read(left, right) == why_not_read(right, left) == ""

    def accepted(strategy: Strategy) -> bool:
        try:
            check(left, [(0, right)], strategy)
        except SchemaIncompatible:
            return False
        return True

    assert accepted(Strategy.BACKWARD) is (why_not_read(left, right) == "")
    assert accepted(Strategy.FORWARD) is (why_not_read(right, left) == "")
    assert accepted(Strategy.FULL) is (accepted(Strategy.BACKWARD) and accepted(Strategy.FORWARD))


@pytest.mark.parametrize("seed", range(40))
def test_registry_against_a_dumb_twin(seed: int) -> None:
    """Registering, deleting and restarting; the twin is a list of what each number is (None: a deletion)."""
    rng = random.Random(seed)
    registry, store, twin = Registry(), dict[str, bytes](), list[Any]()
    for _ in range(60):
        roll = rng.random()
        if roll < 0.1:
            made: Any = registry.prepare_deletion("t", now_ms=1)
            assert (made is None) is (not twin or twin[-1] is None)
            expected = None
        elif roll < 0.2:
            registry = Registry.load(store)
            continue
        else:
            definition = defined(a_record(rng))
            made = registry.prepare("t", definition, Strategy.ALWAYS_COMPATIBLE, now_ms=1)
            expected = identity(definition)
            since = max((n for n, one in enumerate(twin) if one is None), default=-1)
            known = [n for n, one in enumerate(twin) if n > since and one == expected]
            assert made == known[0] if known else made.version == len(twin)
        if made is not None and not isinstance(made, int) and rng.random() < 0.8:  # else the store failed
            store.update(made.puts)
            registry.apply(made)
            twin.append(expected)
        registry.validate()
    assert sorted(store) == [f"{SCHEMA_PREFIX}t/{n:019d}" for n in range(len(twin))]
    for number, expected in enumerate(twin):
        found = registry.at("t", number)
        assert (found is None) is (expected is None)
        assert found is None or identity(found.definition()) == expected


def renamed(rng: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """Sometimes with aliases, a named type used twice, or itself inside: what has rules of its own."""
    fields = list(schema["fields"])
    roll = rng.random()
    if roll < 0.1 and fields:
        fields[0] = fields[0] | {"aliases": [rng.choice("abcd")]}
    elif roll < 0.3:
        inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": rng.choice(SIMPLE)}]}
        fields += [{"name": "i", "type": inner}, {"name": "j", "type": ["null", "I"], "default": None}]
    elif roll < 0.4:
        fields.append({"name": "next", "type": ["null", "R"], "default": None})
    elif roll < 0.5:
        symbols = rng.sample(["X", "Y", "Z"], rng.randint(1, 3))
        fields.append({"name": "e", "type": {"type": "enum", "name": "E", "symbols": symbols}, "default": symbols[0]})
    return schema | {"fields": fields}


def a_definition(rng: random.Random) -> Definition:
    roll = rng.random()
    if roll < 0.1:
        return Definition(rng.choice([SchemaType.STRING, SchemaType.INT32]))
    made = json.dumps(renamed(rng, a_record(rng))).encode()
    if roll < 0.8:
        return Definition(SchemaType.AVRO if roll < 0.7 else SchemaType.JSON, made)
    properties = {"key.schema.type": rng.choice(["STRING", "AVRO"]), "value.schema.type": "AVRO"}
    key = made if properties["key.schema.type"] == "AVRO" else b""
    return Definition(SchemaType.KEY_VALUE, put_together(key, made), properties)


def verdict(act: Callable[[], object]) -> str:
    try:
        act()
    except SchemaIncompatible as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(60))
def test_a_folded_history_judges_as_one_by_one(seed: int) -> None:
    """The dumb twin asks the library about every version; both say the same, of the same version, in the same words."""
    rng = random.Random(seed)
    registry = Registry()
    for _ in range(12):
        made = registry.prepare("t", a_definition(rng), Strategy.ALWAYS_COMPATIBLE, now_ms=1)
        if not isinstance(made, int):
            registry.apply(made)
    live = registry.live("t")
    for _ in range(12):
        new = a_definition(rng)
        if registry.find("t", new) is not None:
            continue
        for strategy in (Strategy.BACKWARD_TRANSITIVE, Strategy.FORWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE):
            folded = verdict(lambda: registry.check("t", new, strategy))  # noqa: B023 - called at once
            assert folded == verdict(lambda: check(new, live, strategy))  # noqa: B023


@pytest.mark.parametrize("seed", SEEDS)
def test_what_needs_no_library_is_what_the_library_says(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        one, other = (
            Avro(json.dumps(renamed(rng, a_record(rng))).encode()),
            Avro(json.dumps(renamed(rng, a_record(rng))).encode()),
        )
        if one.shape is not None and other.shape is not None and surely_reads(one.shape, other.shape):
            result = ReaderWriterCompatibilityChecker().get_compatibility(one.parsed(), other.parsed())
            assert result.compatibility is SchemaCompatibilityType.compatible
