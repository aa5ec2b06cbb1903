"""Checking that all text fields of a message are text.

The protobuf runtime returns a text field of a proto2 message as `bytes` if it is not UTF-8, at the moment of access: a
topic name of the wrong type would be noticed deep in the broker. So text is checked once, when a command arrives.
"""

from functools import cache
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_TEXT: Final = FieldDescriptor.TYPE_STRING
_MESSAGE: Final = FieldDescriptor.TYPE_MESSAGE


@cache
def _holds_text(descriptor: Descriptor | None) -> bool:
    """Whether a message of this kind can hold text, at any depth."""
    return _search(descriptor, set())


def _search(descriptor: Descriptor | None, seen: set[str]) -> bool:
    if descriptor is None or descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.type == _TEXT or (field.type == _MESSAGE and _search(field.message_type, seen))
        for field in descriptor.fields
    )


class _Plan(NamedTuple):
    """The names of the text fields of a kind of message, so that only these are checked.

    Attributes:
        texts, lists: text fields, and repeated ones.
        parts, many: messages that hold text, and repeated ones.
    """

    texts: tuple[str, ...]
    lists: tuple[str, ...]
    parts: tuple[str, ...]
    many: tuple[str, ...]


@cache
def _plan(kind: type[Message]) -> _Plan:
    fields = [field for field in kind.DESCRIPTOR.fields if field.type == _TEXT or _holds_text(field.message_type)]
    return _Plan(
        tuple(field.name for field in fields if field.type == _TEXT and not field.is_repeated),
        tuple(field.name for field in fields if field.type == _TEXT and field.is_repeated),
        tuple(field.name for field in fields if field.type == _MESSAGE and not field.is_repeated),
        tuple(field.name for field in fields if field.type == _MESSAGE and field.is_repeated),
    )


def text_is_valid(message: Message) -> bool:
    """Whether every text field of the message, at any depth, is UTF-8."""
    plan = _plan(type(message))  # type: ignore[arg-type]  # classes can be hashed, whatever the stub says of their instances
    for name in plan.texts:
        if type(getattr(message, name)) is not str:
            return False
    for name in plan.lists:
        for item in getattr(message, name):
            if type(item) is not str:
                return False
    for name in plan.parts:
        if message.HasField(name) and not text_is_valid(getattr(message, name)):
            return False
    for name in plan.many:
        for item in getattr(message, name):
            if not text_is_valid(item):
                return False
    return True


def missing_fields(message: Message, path: str = "") -> str:
    """The first required fields that a message lacks, for an error's text; `path` is put before each name.

    Protobuf's own `FindInitializationErrors` names all of them: 5 s for a command of millions of empty parts.
    """
    names: list[str] = []
    _missing(message, path, names)
    return "the required " + ", ".join(names)


_MISSING_TOLD: Final = 3


def _missing(message: Message, path: str, names: list[str]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.is_required and not message.HasField(field.name):
            names.append(path + field.name)
            if len(names) >= _MISSING_TOLD:
                return
    for field, value in message.ListFields():
        if field.type != _MESSAGE:
            continue
        for number, item in enumerate(value) if field.is_repeated else ((-1, value),):
            if not item.IsInitialized():
                _missing(item, f"{path}{field.name}{f'[{number}]' if number >= 0 else ''}.", names)
                if len(names) >= _MISSING_TOLD:
                    return
