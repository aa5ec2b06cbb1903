"""Definitions that Java's Avro library cannot parse are not registered, because no Java client could read the topic.

Pulsar's brokers and Java's clients parse definitions with that library, without checking the defaults of fields
(`setValidateDefaults(false)`). A definition is refused here if version 1.11 or 1.12 refuses it in that mode;
`tests/golden/schemas/avro-java.jsonl` has their verdicts on some 300 definitions. There is one exception, as in
Pulsar's newer brokers: a `$` in a namespace is accepted, as older versions of the library wrote inner classes. Only new
definitions are checked: registered ones stay, and definitions that arrive over a link were registered elsewhere.
"""

import json
from typing import Any, Final, NoReturn

from magnetar.schemas.avro import NAMED, PRIMITIVES
from magnetar.schemas.errors import SchemaInvalid

FIXED_BYTES_MAX: Final = (1 << 31) - 9
"""The longest array that Java has."""

ORDERS: Final = frozenset({"ascending", "descending", "ignore"})

_SHOWN: Final = 80


def _refuse(reason: str) -> NoReturn:
    raise SchemaInvalid(f"the definition is not an Avro schema: {reason}")


def _shown(text: object) -> str:
    return ascii(text if not isinstance(text, str) or len(text) <= _SHOWN else text[:_SHOWN])


def check_readable(data: bytes) -> None:
    """Whether Java's library reads a definition that is an Avro schema otherwise (`schemas.avro`).

    Raises:
        SchemaInvalid: it does not; says what is wrong, and with what.
    """
    try:
        loaded = json.loads(data.decode(), parse_constant=_constant)
    except ValueError as error:
        raise SchemaInvalid(
            f"the definition is not JSON that Java reads: {' '.join(str(error).split())[:200]}"
        ) from None
    _Strict().type(loaded, "")


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")


def _letter(character: str) -> bool:
    # Java's parser looks at UTF-16 units: a letter above U+FFFF is two units, neither of which is a letter.
    return character == "_" or (character.isalpha() and character <= "\uffff")


def _check_name(name: Any, what: str, more: str = "") -> None:
    """One part of a name: a letter or _, then letters, digits and _."""
    if not isinstance(name, str) or not name:
        _refuse(f"the name of {what} is empty, or no text")
    if not (_letter(name[0]) or name[0] in more):
        _refuse(f"{what} is called {_shown(name)}: a name begins with a letter or _")
    for character in name[1:]:
        if not (_letter(character) or (character.isdecimal() and character <= "\uffff") or character in more):
            _refuse(f"{what} is called {_shown(name)}: a name has only letters, digits and _")


def _check_namespace(space: str) -> None:
    for part in space.split("."):
        if not part:
            _refuse(f"namespace {_shown(space)} has an empty part")
        _check_name(part, f"a part of namespace {_shown(space)}", "$")


class _Strict:
    """A single walk over a definition that `schemas.avro` has parsed: required parts are present, and nothing is nested
    too deep.
    """

    def type(self, node: Any, space: str) -> str:
        """Check one type.

        Returns:
            Its key in a union: its full name, or its kind.
        """
        if isinstance(node, str):
            return self._reference(node, space)
        if isinstance(node, list):
            self._union(node, space)
            return "union"
        kind = node["type"]
        if not isinstance(kind, str):
            _refuse('{"type": {...}} in an object of its own: write the inner type alone')
        if kind in NAMED:
            return self._named(kind, node, space)
        if kind in ("array", "map"):
            self.type(node["items" if kind == "array" else "values"], space)
            return kind
        return self._reference(kind, space)

    @staticmethod
    def _reference(name: str, space: str) -> str:
        return name if name in PRIMITIVES or "." in name or not space else f"{space}.{name}"

    def _union(self, branches: list[Any], space: str) -> None:
        seen: set[str] = set()
        for branch in branches:
            what = self.type(branch, space)
            if what == "union":
                _refuse("a union stands directly in another one")
            if what in seen:
                _refuse(f"a union has {_shown(what)} twice")
            seen.add(what)

    def _named(self, kind: str, node: dict[str, Any], space: str) -> str:
        name = node["name"]
        outer, dot, last = name.rpartition(".")
        inner = outer if dot else node.get("namespace", space) or ""
        what = f"the {kind}"
        _check_name(last, what)
        if inner:
            _check_namespace(inner)
        elif last in PRIMITIVES:
            _refuse(f"{what} is called {_shown(last)}, as a type of Avro's is")
        self._aliases(node, what)
        for alias in node.get("aliases", ()):
            _check_name(alias.rpartition(".")[2], f"an alias of {_shown(name)}")
        if kind == "enum":
            self._enum(node)
        elif kind == "fixed":
            if node["size"] > FIXED_BYTES_MAX:
                _refuse(f"{_shown(name)} has a size of {node['size']}, over {FIXED_BYTES_MAX}")
        else:
            for field in node["fields"]:
                self._field(field, inner)
        return f"{inner}.{last}" if inner else last

    @staticmethod
    def _aliases(node: dict[str, Any], what: str) -> None:
        if "aliases" in node and not isinstance(node["aliases"], list):
            _refuse(f"the aliases of {what} are not a list of names")

    @staticmethod
    def _enum(node: dict[str, Any]) -> None:
        symbols = node["symbols"]
        for symbol in symbols:
            _check_name(symbol, f"a symbol of enum {_shown(node['name'])}")
        default = node.get("default")
        if isinstance(default, str) and default not in symbols:
            _refuse(f"the default {_shown(default)} of enum {_shown(node['name'])} is none of its symbols")

    def _field(self, field: dict[str, Any], space: str) -> None:
        name = field["name"]
        _check_name(name, "a field")
        self._aliases(field, f"field {_shown(name)}")
        order = field.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in ORDERS:
            _refuse(f"the order of field {_shown(name)} is {_shown(order)}: it is one of {', '.join(sorted(ORDERS))}")
        kind, default = self.type(field["type"], space), field.get("default")
        if kind in ("float", "double") and isinstance(default, str) and not _number(default):
            _refuse(f"the default {_shown(default)} of field {_shown(name)} is not a number")


def _number(text: str) -> bool:
    """Whether Java reads a text as a number of floating point."""
    text = text.strip()
    if text.lstrip("+-") in ("NaN", "Infinity"):
        return True
    if "_" in text or text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return False
    try:
        float(text.rstrip("dDfF") or "x")
    except ValueError:
        return False
    return True
