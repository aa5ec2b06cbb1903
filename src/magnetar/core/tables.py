"""Checking one table of clusters.toml against its struct: every mistake is one line with the key and what would be
right.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from magnetar.core.errors import ConfigError

_S = TypeVar("_S", bound=Struct)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, or None when nothing is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The text to append to a message such as "unknown key X": a name that is near to X, else the first ten known names."""
    names = list(known)
    if near := nearest(name, names):
        return f": did you mean {near!r}?"
    there = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    return f": there is {there}" if names else ": there are none"


def convert(value: Any, kind: Any, where: str) -> Any:
    """One value of the file as its type.

    Raises:
        ConfigError: names the key, what would be right, and what was found.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        shown = _shown(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        wanted = f"expected one of {_choices(kind)}" if _choices(kind) else _in_toml_words(str(error))
        raise ConfigError(f"{where}: {wanted} (found {shown})") from None


def _shown(value: Any) -> str:
    """A value of the file, safe to print in one line."""
    try:
        return ascii(value)
    except ValueError:
        return "a number with thousands of digits"  # which Python reads in base 16 and does not write in base 10


def _choices(kind: Any) -> str:
    """The words of a Literal type, quoted; "" for any other type."""
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, msgspec.inspect.LiteralType):
        return ""
    return ", ".join(f'"{value}"' for value in info.values)


def _in_toml_words(text: str) -> str:
    """Msgspec's message without its path, and with TOML's names of the types."""
    text = text.split(" - at ", maxsplit=1)[0].replace("`", "").replace("Expected", "expected")
    words = {"object": "table", "str": "string", "int": "integer", "bool": "boolean"}
    return re.sub(r"\b(" + "|".join(words) + r")\b", lambda match: words[match[1]], text)


def read_table(cls: type[_S], value: Any, where: str) -> _S:
    """Check one table of the file against a struct, key by key.

    Raises:
        ConfigError: no table, an unknown or a missing key, or as `convert`.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    check_keys(value, fields, where)
    inside = f"{where}." if where else ""
    given: dict[str, Any] = {}
    for key, field in fields.items():
        if key in value:
            given[field.name] = convert(value[key], field.type, inside + key)
        elif field.required:
            raise ConfigError(f"{inside}{key}: missing; {_example(key)}")
    return cls(**given)


def check_keys(value: Any, known: Iterable[str], where: str) -> None:
    """Refuse what is no table, and unknown keys.

    Raises:
        ConfigError: it is no table, or it has a key that is not among the known ones.
    """
    names = list(known)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a table of {', '.join(names)} (found {_shown(value)[:60]})")
    for key in value:
        if key not in names:
            raise ConfigError(f"{where}{'.' if where else ''}{quoted(key)}: unknown key{suggestion(key, names)}")


def keys(cls: type[Struct]) -> list[str]:
    """The keys of a table."""
    return [field.encode_name for field in msgspec.structs.fields(cls)]


def quoted(key: str) -> str:
    """A key as TOML would write it, safe to print in one line."""
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else ascii(key)


def _example(key: str) -> str:
    examples = {"pulsar": '"127.0.0.1:6650"', "http": '"127.0.0.1:8080"'}
    return f"write {key} = {examples[key]}" if key in examples else f'write {key} = "CLUSTER"'
