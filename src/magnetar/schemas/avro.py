"""Avro schemas: parsed within limits, compared by meaning, resolved by the rules of the `avro` library.

Three forms of one schema:

- the text, as the client sent it; kept unchanged, because clients compare and parse it themselves;
- the plain form: JSON with full names, without the parts that do not affect the data (documentation, private logical
  types of other libraries). The library parses this form, so such parts cannot make two libraries disagree;
- the identity: the plain form with defaults, orders and properties, without aliases and documentation, as text. Two
  schemas are the same if these texts are equal. Avro's Java library, and so Pulsar, compares the same.
"""

import json
from typing import Any, Final

import avro.schema
from avro.compatibility import SchemaCompatibilityType
from avro.errors import AvroException

from magnetar.schemas.checker import Checker
from magnetar.schemas.errors import SchemaInvalid
from magnetar.schemas.shapes import ROOT, Shape, shape_of, surely_reads

NESTING_MAX: Final = 64
"""A ceiling on types within types: parsers and checkers go down recursively, and hand-written schemas have a dozen levels."""

NODES_MAX: Final = 5000
"""A ceiling on types and fields of one schema: the time to check it is proportional to them, on the broker's thread."""

OWN_BYTES: Final = 4096
NODE_BYTES: Final = 600
TEXT_BYTES: Final = 8
"""The memory of a schema: a fixed part, a part for each type or field (the plain form, the library's object, the slot),
and a part for each byte of the definition (symbols, names, the identity). Schemas of 1 to 5,000 types and fields took
0.6 to 1.0 of this estimate.
"""

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
DROPPED: Final = frozenset(
    {"doc", "aliases", "name", "namespace", "type", "fields", "symbols", "items", "values", "size"}
)

Schema = avro.schema.Schema


def load(data: bytes) -> Any:
    """Decode JSON that a client sent.

    Raises:
        SchemaInvalid: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise SchemaInvalid("the definition is not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise SchemaInvalid(f"the definition is not JSON that can be read: {_line(error)}") from None


class Avro:
    """One parsed Avro schema.

    Attributes:
        identity: equal for schemas that mean the same.
        cost: bytes that it takes with all that is made of it later.
    """

    __slots__ = ("_parsed", "_plain", "_shape", "cost", "identity")

    def __init__(self, data: bytes) -> None:
        """Parse a definition.

        Raises:
            SchemaInvalid: it is no Avro schema, or exceeds a limit.
        """
        loaded = load(data)
        walk = _Walk(meaning=False)
        meaning, self._plain = _Walk(meaning=True).of(loaded, "", 0), walk.of(loaded, "", 0)
        self.cost = OWN_BYTES + walk.nodes * NODE_BYTES + len(data) * TEXT_BYTES
        try:
            self.identity = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
        except (ValueError, RecursionError) as error:
            raise SchemaInvalid(f"the definition is not an Avro schema: {_line(error)}") from None
        self._parsed: Schema | None = None
        self._shape: Shape | bool | None = False

    def parsed(self) -> Schema:
        """The schema as the library has it; made when it is wanted, for what is stored was checked once.

        Raises:
            SchemaInvalid: it is no Avro schema.
        """
        if self._parsed is None:
            try:
                self._parsed = avro.schema.make_avsc_object(self._plain, None, False, False)
            except (AvroException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise SchemaInvalid(f"the definition is not an Avro schema: {_line(error)}") from None
        return self._parsed

    @property
    def shape(self) -> Shape | None:
        """Its fields, when it is a plain record."""
        if isinstance(self._shape, bool):
            self._shape = shape_of(self._plain)
        return self._shape

    def why_not_read(self, writer: "Avro") -> str:
        """Why data written with another schema cannot be read with this one; "" when it can."""
        if self.shape is not None and writer.shape is not None and surely_reads(self.shape, writer.shape):
            return ""
        try:
            result = Checker().get_compatibility(self.parsed(), writer.parsed())
        except (AvroException, SchemaInvalid, RecursionError) as error:
            return _line(error)
        if result.compatibility is SchemaCompatibilityType.compatible:
            return ""
        kinds = ", ".join(dict.fromkeys(str(kind.value).replace("_", " ") for kind in result.incompatibilities))
        where = ", ".join(sorted(result.locations))[:200]
        what = ", ".join(sorted(result.messages))[:200]
        return f"{kinds} at {where}: {what}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


class _Walk:
    """Goes through a schema in JSON once and rewrites it; see the three forms above."""

    def __init__(self, *, meaning: bool) -> None:
        self._meaning = meaning
        self.nodes = 0
        self._named: set[str] = set()
        self._root = ""

    def of(self, node: Any, space: str, depth: int) -> Any:
        """The form of one type; `space` is the namespace that unqualified names belong to."""
        self.nodes += 1
        if self.nodes > NODES_MAX:
            raise SchemaInvalid(f"the definition has more than {NODES_MAX} types and fields")
        if depth > NESTING_MAX:
            raise SchemaInvalid(f"the definition has types nested deeper than {NESTING_MAX} levels")
        if isinstance(node, str):
            return self._reference(node, space)
        if isinstance(node, list):
            return [self.of(branch, space, depth + 1) for branch in node]
        if not isinstance(node, dict):
            raise SchemaInvalid(f"the definition is not an Avro schema: {str(node)[:40]!a} is not a type")
        kind = node.get("type")
        if isinstance(kind, dict | list):
            return self.of(kind, space, depth + 1)  # {"type": {...}}: one more wrapping, as some generators write it
        if not isinstance(kind, str):
            raise SchemaInvalid("the definition is not an Avro schema: an object of it has no type")
        if kind in NAMED:
            return self._named_type(kind, node, space, depth)
        made: dict[str, Any]
        if kind == "array":
            made = {"type": kind, "items": self.of(_needed(node, "items", kind), space, depth + 1)}
        elif kind == "map":
            made = {"type": kind, "values": self.of(_needed(node, "values", kind), space, depth + 1)}
        else:
            reference = self._reference(kind, space)
            properties = self._properties(node) if self._meaning else {}
            return {"type": reference, **properties} if properties else reference
        return made | self._properties(node)

    def _reference(self, name: str, space: str) -> str:
        if name in PRIMITIVES:
            return name
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._named and name in self._named:
            full = name
        if full not in self._named:
            raise SchemaInvalid(f"the definition is not an Avro schema: type {name[:80]!a} is not defined in it")
        return ROOT if full == self._root else full

    def _named_type(self, kind: str, node: dict[str, Any], space: str, depth: int) -> dict[str, Any]:
        name = _needed(node, "name", kind)
        given = node.get("namespace", space)
        if not isinstance(name, str) or not name or not isinstance(given, str | None):
            raise SchemaInvalid(f"the definition is not an Avro schema: the name of a {kind} is not text")
        full = name if "." in name or not given else f"{given}.{name}"
        inner = full.rpartition(".")[0]
        if full in self._named:
            raise SchemaInvalid(f"the definition is not an Avro schema: type {full[:80]!a} is defined twice")
        self._named.add(full)
        if depth == 0 and kind == "record" and not self._meaning:
            self._root = full
        made: dict[str, Any] = {"type": kind, "name": ROOT if full == self._root else full}
        if kind == "enum":
            made["symbols"] = _names(_needed(node, "symbols", kind))
        elif kind == "fixed":
            made["size"] = _whole(_needed(node, "size", kind))
        else:
            fields = _needed(node, "fields", kind)
            if not isinstance(fields, list):
                raise SchemaInvalid(f"the definition is not an Avro schema: the fields of {full[:80]!a} are not a list")
            made["fields"] = [self._field(field, inner, depth) for field in fields]
        if not self._meaning:
            made |= _aliases(node, inner)
            if kind == "enum" and node.get("default") is not None:
                made["default"] = node["default"]
        return made | self._properties(node)

    def _field(self, field: Any, space: str, depth: int) -> dict[str, Any]:
        self.nodes += 1
        if not isinstance(field, dict) or not isinstance(field.get("name"), str) or not field["name"]:
            raise SchemaInvalid("the definition is not an Avro schema: a field has no name")
        made = {"name": field["name"], "type": self.of(_needed(field, "type", "field"), space, depth + 1)}
        if "default" in field:
            made["default"] = field["default"]
        if not self._meaning:
            return made | _aliases(field, "")
        if field.get("order", "ascending") != "ascending":
            made["order"] = field["order"]
        return made | {
            key: value for key, value in field.items() if key not in DROPPED and key not in {"default", "order"}
        }

    def _properties(self, node: dict[str, Any]) -> dict[str, Any]:
        if not self._meaning:
            return {}
        return {key: value for key, value in node.items() if key not in DROPPED}


def _needed(node: dict[str, Any], key: str, kind: str) -> Any:
    if key not in node:
        raise SchemaInvalid(f"the definition is not an Avro schema: a {kind} has no {key}")
    return node[key]


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SchemaInvalid("the definition is not an Avro schema: the symbols of an enum are not a list of names")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SchemaInvalid("the definition is not an Avro schema: the size of a fixed is not a whole number")
    return value


def _aliases(node: dict[str, Any], space: str) -> dict[str, Any]:
    aliases = node.get("aliases")
    if not aliases:
        return {}
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise SchemaInvalid("the definition is not an Avro schema: aliases are not a list of names")
    return {"aliases": [f"{space}.{alias}" if space and "." not in alias else alias for alias in aliases]}
