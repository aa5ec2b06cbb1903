"""Schema types on the wire and in REST (docs/design/pulsar.md#messages)."""

from enum import IntEnum
from typing import Final

import msgspec

from magnetar.schemas.errors import SchemaInvalid


class SchemaType(IntEnum):
    """`Schema.type` of the protocol; the names are those of Pulsar's REST interface.

    BYTES has no number of its own: it travels as NONE, or as no schema at all.
    """

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


STRUCTS: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Types whose definition is an Avro schema in JSON, and whose evolution follows Avro's rules."""

PRIMITIVES: Final = frozenset(
    {
        SchemaType.BOOLEAN,
        SchemaType.INT8,
        SchemaType.INT16,
        SchemaType.INT32,
        SchemaType.INT64,
        SchemaType.FLOAT,
        SchemaType.DOUBLE,
        SchemaType.DATE,
        SchemaType.TIME,
        SchemaType.TIMESTAMP,
        SchemaType.INSTANT,
        SchemaType.LOCAL_DATE,
        SchemaType.LOCAL_TIME,
        SchemaType.LOCAL_DATE_TIME,
    }
)
"""Types that are described by their name alone."""

SCHEMALESS: Final = frozenset({SchemaType.NONE, SchemaType.AUTO_CONSUME})
"""Types that say "bytes" and "whatever the topic has": nothing to register, nothing to check."""

ALIKE: Final = PRIMITIVES | {SchemaType.STRING, SchemaType.EXTERNAL}
"""Types of which any two schemas are compatible."""

NAMES: Final = {kind.name: kind for kind in SchemaType} | {"BYTES": SchemaType.NONE}

PROPERTIES_MAX: Final = 128
"""A ceiling on the properties of one schema; they are kept in memory with it."""

PROPERTIES_CHARACTERS_MAX: Final = 16 * 1024
"""A ceiling on all properties of one schema together: Java's clients put whole class descriptions there."""

NAME_CHARACTERS_MAX: Final = 1024
"""A ceiling: clients call it after its type or its topic."""


class Definition(msgspec.Struct, frozen=True):
    """One schema as a client sends it; only its sizes are checked.

    Attributes:
        type: the kind of the schema.
        data: the schema itself.
        properties: from the client; not part of a schema's identity (docs/design/pulsar.md#schema-registry).
        name: from the client; not part of its identity either.
    """

    type: SchemaType
    data: bytes = b""
    properties: dict[str, str] = {}
    name: str = ""


def type_of(number: int) -> SchemaType:
    """The type that travels as `number`.

    Raises:
        SchemaInvalid: no such type.
    """
    try:
        return SchemaType(number)
    except ValueError:
        raise SchemaInvalid(f"schema type {number} is not known to this broker (0 to {max(SchemaType)} are)") from None


def type_named(name: str) -> SchemaType:
    """The type that REST calls `name`.

    Raises:
        SchemaInvalid: no such type.
    """
    try:
        return NAMES[name]
    except KeyError:
        raise SchemaInvalid(f"schema type {name[:40]!a} is not known; there are {', '.join(sorted(NAMES))}") from None


def check_sizes(definition: Definition, bytes_max: int) -> None:
    """Refuse a definition that is too large, before it is parsed.

    Raises:
        SchemaInvalid.
    """
    if len(definition.data) > bytes_max:
        raise SchemaInvalid(f"the definition has {len(definition.data)} bytes; at most {bytes_max} are allowed")
    if len(definition.name) > NAME_CHARACTERS_MAX:
        raise SchemaInvalid(f"the schema's name exceeds {NAME_CHARACTERS_MAX} characters")
    if len(definition.properties) > PROPERTIES_MAX:
        raise SchemaInvalid(f"{len(definition.properties)} properties are too many: at most {PROPERTIES_MAX}")
    if sum(len(key) + len(value) for key, value in definition.properties.items()) > PROPERTIES_CHARACTERS_MAX:
        raise SchemaInvalid(f"the schema's properties exceed {PROPERTIES_CHARACTERS_MAX} characters")
