"""Records taken apart into fields, so that a new schema is compared with a thousand old ones only by the fields that
differ.

A *slot* is one field of the outermost record: the text of its type, closed (with the definitions of all named types
that it reaches), and whether it has a default. By Avro's rules a record can read another one if each of its fields
either is in the other record with a readable type, or has a default. So two fields whose closed texts are equal need no
check at all, and a pair of texts that differ is checked once for all schemas that have them.

The outermost record's own name inside a type means "this record": while two records are compared it counts as readable,
as in the library's handling of recursion. A schema with rules beyond these (aliases of fields, errors) has no shape and
is compared as a whole.
"""

import json
from typing import Any, Final, NamedTuple

import avro.schema
from avro.compatibility import SchemaCompatibilityType
from avro.errors import AvroException

from magnetar.core.caching import CostCache
from magnetar.schemas.checker import Checker

ROOT: Final = "root__"
"""The name of the outermost record in the plain form (`schemas.avro`). The name may change from one schema to the next,
as in Pulsar: clients send the names of their classes and read with any class. Names inside the record must match.
"""

PAIRS_BYTES_MAX: Final = 16 * 1024 * 1024
"""A ceiling on the remembered results for pairs of types that differ. A long history has some dozens of some hundred
bytes each; a hostile client could send large records on both sides.
"""

SHAPE_BYTES_MAX: Final = 1024 * 1024
"""A ceiling on all closed texts of one shape: each has the definitions of all types that it reaches, so a schema of 77
kB could have 54 MB of them. A schema with more has no shape and is compared as a whole.
"""

NAMED: Final = frozenset({"record", "enum", "fixed"})


class Slot(NamedTuple):
    """A field of the outermost record.

    Attributes:
        type: its closed text.
        default: whether it has one.
    """

    type: str
    default: bool


Shape = dict[str, Slot]
"""The fields of a record by name."""


def marked(text: str) -> Slot:
    """A slot that is read by its equal alone."""
    return Slot(json.dumps([f"#{text}", {}]), default=False)


class Shapeless(Exception):
    """A schema that is not a plain record."""


def shape_of(plain: Any) -> Shape | None:
    """The shape of a schema in its plain form; None when it has none."""
    if not isinstance(plain, dict) or plain.get("type") != "record" or plain.get("name") != ROOT:
        return None
    try:
        walk = _Closing()
        bare = [(field, *walk.bare(field["type"])) for field in plain["fields"]]
        if any("aliases" in field for field, _, _ in bare):
            return None
        return {field["name"]: Slot(walk.closed(kind, names), "default" in field) for field, kind, names in bare}
    except Shapeless:
        return None


class _Closing:
    """Takes the definitions of named types out of a schema, and adds them to each type that reaches them."""

    def __init__(self) -> None:
        self._closed: dict[tuple[str, frozenset[str]], str] = {}
        self._bytes = 0
        self._texts: dict[str, str] = {}
        self._reached: dict[str, frozenset[str]] = {}

    def bare(self, node: Any) -> tuple[Any, frozenset[str]]:
        """A type with names instead of definitions, and these names."""
        if isinstance(node, str):
            return node, frozenset((node,)) if "." in node or node in self._texts else frozenset()
        if isinstance(node, list):
            parts = [self.bare(branch) for branch in node]
            return [part for part, _ in parts], frozenset().union(*(names for _, names in parts))
        kind = node["type"]
        if kind == "array":
            inner, names = self.bare(node["items"])
            return {"type": kind, "items": inner}, names
        if kind == "map":
            inner, names = self.bare(node["values"])
            return {"type": kind, "values": inner}, names
        if kind not in NAMED:
            raise Shapeless
        name = node["name"]
        self._texts[name] = ""  # known from here on, also inside itself
        reached: frozenset[str] = frozenset()
        made = dict(node)
        if kind == "record":
            fields = []
            for field in node["fields"]:
                inner, names = self.bare(field["type"])
                fields.append(field | {"type": inner})
                reached |= names
            made["fields"] = fields
        self._texts[name] = json.dumps(made, sort_keys=True, separators=(",", ":"))
        self._reached[name] = reached
        return name, frozenset((name,))

    def closed(self, kind: Any, names: frozenset[str]) -> str:
        """The closed text of a type; the same object for fields of one type.

        Raises:
            Shapeless: all of them together are too large.
        """
        key = json.dumps(kind, sort_keys=True), names
        found = self._closed.get(key)
        if found is None:
            found = self._closed[key] = self._close(kind, names)
            self._bytes += len(found)
            if self._bytes > SHAPE_BYTES_MAX:
                raise Shapeless
        return found

    def _close(self, kind: Any, names: frozenset[str]) -> str:
        waiting, found = list(names), dict[str, str]()
        while waiting:
            name = waiting.pop()
            if name in found or name not in self._texts:
                continue
            found[name] = self._texts[name]
            waiting.extend(self._reached.get(name, ()))
        return json.dumps([kind, found], sort_keys=True, separators=(",", ":"))


def reads(reader: str, writer: str) -> bool:
    """Whether a field of one closed type can read data of another, according to the library; False also if it cannot
    decide.
    """
    return reader == writer or _pairs((reader, writer)) == _READS


_READS: Final = 1
_READS_NOT: Final = 2


def _judge(pair: tuple[str, str]) -> int:
    """Whether the first reads the second."""
    reader, writer = pair
    one, other = _opened(reader), _opened(writer)
    if one is None or other is None:
        return _READS_NOT
    try:
        result = Checker().get_compatibility(one, other)
    except (AvroException, RecursionError):
        return _READS_NOT
    return _READS if result.compatibility is SchemaCompatibilityType.compatible else _READS_NOT


_pairs: Final = CostCache[tuple[str, str], int](
    PAIRS_BYTES_MAX, _judge, lambda pair, _verdict: len(pair[0]) + len(pair[1])
)
"""Two closed texts -> whether the first reads the second."""


def _opened(closed: str) -> "avro.schema.Schema | None":
    """A closed type as the library has it; None when it speaks of the outermost record."""
    kind, definitions = json.loads(closed)
    seen: set[str] = set()

    def inline(node: Any) -> Any:
        if isinstance(node, str):
            if node == ROOT:
                raise Shapeless
            if node not in definitions or node in seen:
                return node
            seen.add(node)
            return inline(json.loads(definitions[node]))
        if isinstance(node, list):
            return [inline(branch) for branch in node]
        if node["type"] == "record":
            return node | {"fields": [field | {"type": inline(field["type"])} for field in node["fields"]]}
        return {key: inline(value) if key in ("items", "values") else value for key, value in node.items()}

    try:
        return avro.schema.make_avsc_object(inline(kind), None, False, False)
    except (Shapeless, AvroException, ValueError, TypeError, KeyError, RecursionError):
        return None


def surely_reads(reader: Shape, writer: Shape) -> bool:
    """Whether one record can certainly read another; False: no, or only the library can decide."""
    for name, slot in reader.items():
        other = writer.get(name)
        if other is None:
            if not slot.default:
                return False
        elif other.type != slot.type and not reads(slot.type, other.type):
            return False
    return True
