"""Compatibility of schemas: Pulsar's strategies over the rules of each type.

See docs/design/pulsar.md#schema-strategies.

    strategy                 a new schema is compared with    so that
    ALWAYS_COMPATIBLE        nothing                          anything goes
    ALWAYS_INCOMPATIBLE      -                                nothing but what is there, and the first
    BACKWARD                 the newest                       the new one reads data of the old
    FORWARD                  the newest                       the old one reads data of the new
    FULL                     the newest                       both
    ..._TRANSITIVE           all of them                      the same

A change of type is refused under all but the first. A consumer's schema is checked against the data that it has to
read: `check_consumer`.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from magnetar.core.caching import CostCache
from magnetar.schemas.avro import Avro
from magnetar.schemas.errors import SchemaIncompatible, SchemaInvalid
from magnetar.schemas.keyvalue import KeyValue, is_plain, take_apart
from magnetar.schemas.native import root_message
from magnetar.schemas.shapes import Shape, marked
from magnetar.schemas.strict import check_readable
from magnetar.schemas.types import ALIKE, PRIMITIVES, SCHEMALESS, STRUCTS, Definition, SchemaType

PARSED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Parsed schemas kept, by what they cost (`Avro.cost`): a thousand of twenty fields, so that a transitive check of the longest
usual history parses nothing twice; or a dozen of the largest, which cost 3 MB each."""


class Strategy(StrEnum):
    """Pulsar's SchemaCompatibilityStrategy; UNDEFINED: the strategy of the next wider setting."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether all earlier schemas count, not the newest alone."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Whether the new schema must read data of the old."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether the old schema must read data of the new."""
        return self.value.startswith(("FORWARD", "FULL"))


DEFAULT_STRATEGY: Final = Strategy.FULL
"""Pulsar's `schemaCompatibilityStrategy`."""


class Identity(NamedTuple):
    """The identity of a schema: its type and content, without name and properties.

    See docs/design/pulsar.md#schema-registry.
    """

    type: SchemaType
    digest: bytes


_avro: Final = CostCache[bytes, Avro](PARSED_BYTES_MAX, Avro, lambda data, avro: len(data) + avro.cost)
"""A definition -> what it says."""


def shape_of(definition: Definition) -> Shape | None:
    """The parts of a definition, if they alone decide which schemas are compatible with it.

    For a key-value schema: the fields of both parts, or a mark for a part without fields; for Protobuf-native: its
    message.
    """
    if definition.type in STRUCTS:
        return _avro(definition.data).shape
    if definition.type is SchemaType.PROTOBUF_NATIVE:
        return {"": marked(root_message(definition.data))}
    if definition.type is not SchemaType.KEY_VALUE:
        return None
    both = take_apart(definition)
    made = {"": marked(f"{both.encoding} {both.key.type} {both.value.type}")}
    for what, part in (("key", both.key), ("value", both.value)):
        inner = {} if part.type in ALIKE or is_plain(part) else shape_of(part)
        if inner is None:
            return None
        made |= {f"{what} {name}": slot for name, slot in inner.items()}
    return made


def identity(definition: Definition, *, stored: bool = False) -> Identity:
    """The identity of a definition. The definition is checked as well.

    Avro, JSON and Protobuf are the same when their Avro schemas are; all others when their bytes are. For a key-value
    schema the types of both parts count too, because they are not in its bytes.

    Args:
        definition: a schema.
        stored: it was checked when it was registered; the slowest checks are left out.

    Raises:
        SchemaInvalid: it is not a definition of its type.
    """
    if definition.type in STRUCTS:
        if not stored:
            _avro(definition.data).parsed()
        return Identity(definition.type, sha256(_avro(definition.data).identity.encode()).digest())
    if definition.type is SchemaType.KEY_VALUE:
        both = take_apart(definition)
        parts = [
            b"" if is_plain(part) else b"".join(_flat(identity(part, stored=stored))) for part in (both.key, both.value)
        ]
        return Identity(definition.type, sha256(b"|".join((both.encoding.encode(), *parts))).digest())
    if definition.type is SchemaType.PROTOBUF_NATIVE:
        root_message(definition.data)
    elif definition.type in PRIMITIVES:
        if definition.data not in (b"", b"null"):
            raise SchemaInvalid(f"a schema of type {definition.type.name} has no definition in addition to its type")
        return Identity(definition.type, sha256(b"").digest())
    elif definition.type in SCHEMALESS:
        raise SchemaInvalid(f"type {definition.type.name} says that there is no schema; it cannot be registered")
    # Python's client describes a string by "null", Java's by nothing: the same.
    nothing = definition.type is SchemaType.STRING and definition.data == b"null"
    return Identity(definition.type, sha256(b"" if nothing else definition.data).digest())


def check_new(definition: Definition) -> None:
    """Check that Java's clients can read a new definition (`schemas.strict`).

    Raises:
        SchemaInvalid: they cannot.
    """
    if definition.type in STRUCTS:
        check_readable(definition.data)
    elif definition.type is SchemaType.KEY_VALUE:
        both = take_apart(definition)
        for part in (both.key, both.value):
            check_new(part)


def _flat(one: Identity) -> tuple[bytes, bytes]:
    return bytes((one.type,)), one.digest


def why_not_read(reader: Definition, writer: Definition) -> str:
    """Why data written with one schema cannot be read with another; "" when they can."""
    if reader.type is not writer.type:
        return f"the type is {reader.type.name}, not {writer.type.name}"
    if reader.type in STRUCTS:
        return _avro(reader.data).why_not_read(_avro(writer.data))
    if reader.type is SchemaType.PROTOBUF_NATIVE:
        mine, other = root_message(reader.data), root_message(writer.data)
        return "" if mine == other else f"the message is {mine}, not {other}"
    if reader.type is SchemaType.KEY_VALUE:
        return _why_not_both(take_apart(reader), take_apart(writer))
    return ""


def _why_not_both(reader: KeyValue, writer: KeyValue) -> str:
    if reader.encoding != writer.encoding:
        return f"the key is {reader.encoding}, not {writer.encoding}"
    for what, mine, other in (("key", reader.key, writer.key), ("value", reader.value, writer.value)):
        reason = why_not_read(mine, other)
        if reason:
            return f"{what}: {reason}"
    return ""


def check(
    new: Definition,
    existing: Sequence[tuple[int, Definition]],
    strategy: Strategy,
    suspects: Iterable[tuple[int, Definition]] | None = None,
) -> None:
    """Check that a schema may be added.

    Args:
        new: checked by `identity`, and different from all existing ones.
        existing: (version, schema) since the last deletion, ascending.
        strategy: any but UNDEFINED.
        suspects: the schemas that a transitive strategy has to check, if they are known (`schemas.history`); None: all.

    Raises:
        SchemaIncompatible: with the version that is incompatible.
    """
    if strategy is Strategy.ALWAYS_COMPATIBLE or not existing:
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise SchemaIncompatible("the strategy is ALWAYS_INCOMPATIBLE: no schema is added to those that there are")
    every = reversed(existing) if suspects is None else suspects
    for version, old in every if strategy.transitive else existing[-1:]:
        if strategy.backward and (reason := why_not_read(new, old)):
            raise SchemaIncompatible(f"{strategy}: the new schema cannot read data of version {version}: {reason}")
        if strategy.forward and (reason := why_not_read(old, new)):
            raise SchemaIncompatible(f"{strategy}: version {version} cannot read data of the new schema: {reason}")


def check_consumer(own: Definition, existing: Sequence[tuple[int, Definition]], strategy: Strategy) -> None:
    """Whether a consumer may subscribe with a schema of its own.

    What it has to read is the newest schema; under BACKWARD_TRANSITIVE and FULL_TRANSITIVE it is checked as a new schema
    against all of them (docs/design/pulsar.md#schema-check).

    Raises:
        SchemaIncompatible: with the version that it cannot read.
    """
    if strategy is Strategy.ALWAYS_COMPATIBLE or not existing:
        return
    mine = identity(own)
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        if all(identity(old) != mine for _, old in existing):
            raise SchemaIncompatible("the strategy is ALWAYS_INCOMPATIBLE: only the topic's own schemas are accepted")
        return
    if strategy in (Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE):
        others = [pair for pair in existing if identity(pair[1]) != mine]
        check(own, others, strategy)
        return
    version, newest = existing[-1]
    reason = why_not_read(own, newest)
    if reason:
        raise SchemaIncompatible(f"the consumer's schema cannot read data of version {version}: {reason}")
