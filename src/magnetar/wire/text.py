"""Is all text of a message really text?

The protobuf runtime hands out the text fields of a proto2 message as `bytes` where they are not UTF-8, at the moment of
access: a topic name of the wrong type would surface deep in the broker. So text is checked once, where it comes in.
"""

from functools import cache
from typing import Final

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


def text_is_valid(message: Message) -> bool:
    """Whether every text field of the message, at any depth, is UTF-8."""
    for field, value in message.ListFields():
        kind = field.type
        if kind == _TEXT:
            values = value if field.is_repeated else (value,)
            if not all(isinstance(item, str) for item in values):
                return False
        elif kind == _MESSAGE and _holds_text(field.message_type):
            items = value if field.is_repeated else (value,)
            if not all(text_is_valid(item) for item in items):
                return False
    return True


def missing_fields(message: Message) -> str:
    """The required fields that a message lacks, for an error's text."""
    names: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]  # the stubs do not know it
    return "the required " + ", ".join(names[:3])
