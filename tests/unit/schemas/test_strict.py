"""What Java's Avro library refuses is not registered; what was registered before stays, and so does what a link brings.

The golden file has the verdicts of the library's versions 1.11.4 and 1.12.1, with `setValidateDefaults(false)` as Pulsar's
brokers and clients parse; a script outside of the tree asked them.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from magnetar.schemas.compatibility import Strategy, check_new, identity
from magnetar.schemas.errors import SchemaInvalid
from magnetar.schemas.keyvalue import put_together
from magnetar.schemas.registry import Addition, Registry
from magnetar.schemas.types import STRUCTS, Definition, SchemaType

GOLDEN: Final = [
    json.loads(line) for line in Path("tests/golden/schemas/avro-java.jsonl").read_text().splitlines() if line
]
OTHERWISE: Final = {
    "namespace 1": False,  # a number: nothing that a generator writes
    "namespace 1 full name": False,
    "comment": False,  # JSON has none
    "namespace 'a$b'": True,  # as Pulsar's brokers take inner classes of older libraries
}
"""Where this broker's verdict is another one, and why."""

BAD: Final = json.dumps({"type": "record", "name": "1bad", "fields": []}).encode()
GOOD: Final = json.dumps({"type": "record", "name": "good", "fields": []}).encode()


def verdict(data: bytes, kind: SchemaType = SchemaType.AVRO) -> str:
    """Why a definition is not registered, or ""."""
    definition = Definition(kind, data)
    try:
        identity(definition)
        check_new(definition)
    except SchemaInvalid as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize("case", GOLDEN, ids=[case["what"] for case in GOLDEN])
def test_the_verdict_is_that_of_java(case: dict[str, Any]) -> None:
    expected = OTHERWISE.get(case["what"], case["1.11.4"] and case["1.12.1"])
    for kind in STRUCTS:
        assert (not verdict(case["definition"].encode(), kind)) == expected, case["definition"]


def test_the_table_has_both_verdicts() -> None:
    taken = [case["1.11.4"] and case["1.12.1"] for case in GOLDEN]
    assert sum(taken) > 100 and len(taken) - sum(taken) > 100


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "record", "name": "a-b", "fields": []}, "the record is called 'a-b': a name has only letters"),
        (
            {"type": "record", "name": "R", "namespace": "a b", "fields": []},
            "a part of namespace 'a b' is called 'a b'",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "a b", "type": "int"}]}, "a field is called 'a b'"),
        ({"type": "enum", "name": "E", "symbols": ["1A"]}, "a symbol of enum 'E' is called '1A': a name begins with"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"},
            "the default 'B' of enum 'E' is none of its symbols",
        ),
        (["X", "X"], "type 'X' is not defined"),
        ({"type": {"type": "int"}}, "write the inner type alone"),
    ],
)
def test_the_reason_names_what_is_wrong(schema: Any, reason: str) -> None:
    assert reason in verdict(json.dumps(schema).encode())


def test_both_parts_of_a_key_value_schema_count() -> None:
    properties = {"key.schema.type": "AVRO", "value.schema.type": "JSON"}
    for data, valid in (
        (put_together(GOOD, GOOD), True),
        (put_together(BAD, GOOD), False),
        (put_together(GOOD, BAD), False),
    ):
        definition = Definition(SchemaType.KEY_VALUE, data, properties)
        if valid:
            check_new(definition)
        else:
            with pytest.raises(SchemaInvalid, match="1bad"):
                check_new(definition)


def test_what_was_registered_before_stays_and_what_links_bring_is_taken() -> None:
    store: dict[str, bytes] = {}
    registry = Registry()
    old = Definition(SchemaType.AVRO, BAD)

    def prepare(definition: Definition, *, elsewhere: bool = False, foreign: bool = False) -> Addition | int:
        return registry.prepare(
            "t", definition, Strategy.FULL_TRANSITIVE, now_ms=1, elsewhere=elsewhere, foreign=foreign
        )

    with pytest.raises(SchemaInvalid, match="1bad"):
        prepare(old)
    brought = prepare(old, elsewhere=True)
    assert isinstance(brought, Addition)
    registry.apply(brought)
    store |= brought.puts
    registry = Registry.load(store)
    assert prepare(old) == 0, "its clients come back with it"
    assert registry.find("t", old) == 0
    registry.check_consumer("t", old, Strategy.FULL_TRANSITIVE)
    assert isinstance(prepare(Definition(SchemaType.AVRO, GOOD)), Addition)
