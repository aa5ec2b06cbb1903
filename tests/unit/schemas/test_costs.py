"""What schemas cost in memory: caches and histories are bounded by bytes, whatever clients make of their definitions."""

import json
import tracemalloc
from typing import Any

import pytest

from magnetar.schemas import compatibility, shapes
from magnetar.schemas import registry as registry_module
from magnetar.schemas.avro import NODES_MAX, Avro
from magnetar.schemas.compatibility import PARSED_BYTES_MAX, Strategy, identity
from magnetar.schemas.errors import SchemasFull
from magnetar.schemas.registry import Addition, Registry
from magnetar.schemas.shapes import SHAPE_BYTES_MAX, shape_of
from magnetar.schemas.types import Definition, SchemaType


def record(fields: list[Any], name: str = "R") -> dict[str, Any]:
    """A record."""
    return {"type": "record", "name": name, "fields": fields}


def ints(count: int, prefix: str = "f") -> list[dict[str, Any]]:
    """So many fields."""
    return [{"name": f"{prefix}{number}", "type": "int"} for number in range(count)]


LARGE = ints(NODES_MAX // 2 - 100)
SHAPES = {
    "twenty fields": record(ints(20)),
    "many fields": record(LARGE),
    "optional fields": record([{"name": f"f{n}", "type": ["null", "string"], "default": None} for n in range(1_200)]),
    "records": record([{"name": f"f{n}", "type": record(ints(1), f"X{n}")} for n in range(1_200)]),
    "one large record in many fields": record(
        [{"name": "x", "type": record(ints(1_200), "X")}, *({"name": f"f{n}", "type": "X"} for n in range(1_200))]
    ),
    "lists of one large record": record(
        [
            {"name": "x", "type": record(ints(1_000), "X")},
            *(
                {"name": f"f{n}", "type": {"type": "array", "items": ["X", {"type": "map", "values": ["int", "X"]}]}}
                for n in range(300)
            ),
        ]
    ),
    "symbols": {"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(15_000)]},
    "nothing": "int",
}


@pytest.mark.parametrize("what", list(SHAPES))
def test_a_schema_takes_no_more_than_it_is_said_to_cost(what: str) -> None:
    data = json.dumps(SHAPES[what]).encode()
    Avro(data).parsed()  # what the library makes once
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = Avro(data)
        made.parsed()
        made.shape  # noqa: B018 - made by being asked for
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= made.cost + SHAPE_BYTES_MAX // 4
    assert made.cost <= max(4 * taken, 8_192), "the model is not far from what is taken"


def test_what_is_kept_is_bounded_by_bytes() -> None:
    """Of the largest, which cost 3 MB each, 1,024 were kept."""
    compatibility._avro.clear()
    for number in range(15):
        identity(Definition(SchemaType.AVRO, json.dumps(record([*LARGE, *ints(1, f"x{number}_")])).encode()))
    assert PARSED_BYTES_MAX // 2 < compatibility._avro.bytes <= PARSED_BYTES_MAX
    assert len(compatibility._avro) < 15
    compatibility._avro.clear()


def test_one_record_in_many_fields_is_one_text() -> None:
    plain = Avro(json.dumps(SHAPES["one large record in many fields"]).encode())._plain
    shape = shape_of(plain)
    assert shape is not None and len({id(slot.type) for slot in shape.values()}) == 1


def test_closed_texts_beyond_their_limit_make_no_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [{"name": "x", "type": record(ints(1_000), "X")}]
    fields += [
        {
            "name": f"f{n}",
            "type": {"type": "map", "values": ["X", {"type": "enum", "name": f"E{n}", "symbols": ["A"]}]},
        }
        for n in range(100)
    ]
    assert shape_of(Avro(json.dumps(record(fields)).encode())._plain) is None
    monkeypatch.setattr(shapes, "SHAPE_BYTES_MAX", 1 << 30)
    assert shape_of(Avro(json.dumps(record(fields)).encode())._plain) is not None


def register(registry: Registry, topic: str, schema: Any, strategy: Strategy) -> None:
    """One more version."""
    addition = registry.prepare(topic, Definition(SchemaType.AVRO, json.dumps(schema).encode()), strategy, now_ms=1)
    assert isinstance(addition, Addition)
    registry.apply(addition)
    registry.validate()


def test_histories_of_all_topics_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "HISTORIES_BYTES_MAX", 100_000)
    registry = Registry()
    for topic in "abcabc":
        for number in range(3):
            fields = [{"name": f"{topic}{number}_{at}", "type": "int", "default": 0} for at in range(30)]
            name = f"R{len(registry.live(topic))}"
            register(registry, topic, record(fields, name), Strategy.FULL_TRANSITIVE)
        assert sum(registry._folded.values()) <= 100_000
    assert 0 < len(registry._folded) < 3


def test_a_topic_of_too_many_different_fields_takes_no_more_under_a_transitive_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_module, "HISTORY_BYTES_MAX", 50_000)
    registry = Registry()
    wide = [record([{"name": f"n{n}_{at}", "type": "int", "default": 0} for at in range(30)]) for n in range(4)]
    for one in wide[:3]:
        register(registry, "t", one, Strategy.FULL_TRANSITIVE)
    with pytest.raises(SchemasFull, match="too many different fields"):
        register(registry, "t", wide[3], Strategy.FULL_TRANSITIVE)
    register(registry, "t", record(ints(40, "y")), Strategy.ALWAYS_COMPATIBLE)
    assert not registry._folded


def test_definitions_of_all_topics_are_bounded_together() -> None:
    registry = Registry(bytes_max=10_000)
    for number in range(6):
        register(registry, f"t{number}", record(ints(50)), Strategy.FULL)
    with pytest.raises(SchemasFull, match="schemas_bytes_max"):
        register(registry, "full", record(ints(50)), Strategy.FULL)
    assert registry.figures()[2] <= 10_000
    registry.forget("t0")
    register(registry, "more", record(ints(50)), Strategy.FULL)
