"""Key-value schemas: two schemas in one definition, in the format of Pulsar's clients.

The data are `size(4) . key's data . size(4) . value's data`, big-endian; size -1 says that there are none. The types and
properties of both travel as properties of the whole. REST shows the data as JSON, `{"key": ..., "value": ...}`, each an
object where it is JSON, else a text.
"""

import json
from typing import Any, Final, NamedTuple

from magnetar.schemas.errors import SchemaInvalid
from magnetar.schemas.types import SCHEMALESS, Definition, SchemaType, type_named

ENCODINGS: Final = ("INLINE", "SEPARATED")
"""`kv.encoding.type`: both in the payload, or the key as the message's key."""

_NONE: Final = 0xFFFFFFFF


class KeyValue(NamedTuple):
    """Both schemas, and where the key travels."""

    key: Definition
    value: Definition
    encoding: str


def take_apart(definition: Definition) -> KeyValue:
    """The two schemas of a key-value schema.

    Raises:
        SchemaInvalid: sizes that do not fit, types that are not known, a key-value schema inside.
    """
    key_data, at = _part(definition.data, 0, "key")
    value_data, at = _part(definition.data, at, "value")
    if at != len(definition.data):
        raise SchemaInvalid(f"the key-value definition has {len(definition.data) - at} bytes behind its value")
    encoding = definition.properties.get("kv.encoding.type", "INLINE")
    if encoding not in ENCODINGS:
        raise SchemaInvalid(f"kv.encoding.type is {' or '.join(ENCODINGS)}, not {encoding[:40]!a}")
    return KeyValue(
        _described(definition.properties, "key", key_data),
        _described(definition.properties, "value", value_data),
        encoding,
    )


def _part(data: bytes, at: int, what: str) -> tuple[bytes, int]:
    if len(data) < at + 4:
        raise SchemaInvalid(f"the key-value definition ends before the size of its {what}")
    size = int.from_bytes(data[at : at + 4], "big")
    at += 4
    if size == _NONE:
        return b"", at
    if size > len(data) - at:
        raise SchemaInvalid(f"the key-value definition gives its {what} {size} bytes and has {len(data) - at}")
    return data[at : at + size], at + size


def _described(properties: dict[str, str], what: str, data: bytes) -> Definition:
    kind = type_named(properties.get(f"{what}.schema.type", "BYTES"))
    if kind is SchemaType.KEY_VALUE:
        raise SchemaInvalid(f"the {what} of a key-value schema is a key-value schema itself")
    try:
        own = json.loads(properties.get(f"{what}.schema.properties") or "{}")
    except (ValueError, RecursionError):
        own = None
    if not isinstance(own, dict):
        raise SchemaInvalid(f"property {what}.schema.properties is no JSON object")
    named = {str(key): str(value) for key, value in own.items()}
    return Definition(kind, data, named, properties.get(f"{what}.schema.name", ""))


def put_together(key: bytes, value: bytes) -> bytes:
    """The data of a key-value schema."""
    return b"".join((len(key).to_bytes(4, "big"), key, len(value).to_bytes(4, "big"), value))


def to_text(definition: Definition) -> str:
    """The data as REST shows them.

    Raises:
        SchemaInvalid: as `take_apart`.
    """
    both = take_apart(definition)
    return json.dumps({"key": _shown(both.key), "value": _shown(both.value)}, separators=(",", ":"))


def _shown(part: Definition) -> Any:
    try:
        shown = json.loads(part.data)
    except (ValueError, RecursionError):
        shown = None
    return shown if isinstance(shown, dict | list) else part.data.decode("utf-8", "replace")


def from_text(text: str) -> bytes:
    """The reverse of `to_text`.

    Raises:
        SchemaInvalid: no JSON object with a key and a value.
    """
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, dict) or not {"key", "value"} <= loaded.keys():
        raise SchemaInvalid('a key-value schema is written {"key": ..., "value": ...}')
    return put_together(*(_bytes(loaded[part]) for part in ("key", "value")))


def _bytes(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else json.dumps(part, separators=(",", ":")).encode()


def is_plain(definition: Definition) -> bool:
    """Whether a part of a key-value schema is mere bytes."""
    return definition.type in SCHEMALESS
