"""Protobuf-native schemas: a set of file descriptors and the name of one message in it, in JSON (Pulsar's form)."""

import base64
import binascii
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from magnetar.schemas.avro import load
from magnetar.schemas.errors import SchemaInvalid

KEYS = ("fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName")


def root_message(data: bytes) -> str:
    """The full name of the message that the definition describes, which must be in it.

    Raises:
        SchemaInvalid.
    """
    loaded: Any = load(data)
    if not isinstance(loaded, dict) or not all(isinstance(loaded.get(key), str) for key in KEYS):
        raise SchemaInvalid(f"a Protobuf-native definition is a JSON object with the texts {', '.join(KEYS)}")
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(loaded[KEYS[0]], validate=True))
    except (DecodeError, binascii.Error, ValueError):
        raise SchemaInvalid("fileDescriptorSet is not a set of file descriptors in base64") from None
    root, name = str(loaded[KEYS[1]]), str(loaded[KEYS[2]])
    for file in files.file:
        if file.name == name:
            if not _holds(list(file.message_type), root.removeprefix(f"{file.package}." if file.package else "")):
                raise SchemaInvalid(f"file descriptor {name[:80]!a} has no message {root[:80]!a}")
            return root
    raise SchemaInvalid(f"fileDescriptorSet has no file {name[:80]!a}")


def _holds(messages: list[DescriptorProto], path: str) -> bool:
    """Whether there is a message of that name, which may be nested in others."""
    first, _, rest = path.partition(".")
    for message in messages:
        if message.name == first:
            return not rest or _holds(list(message.nested_type), rest)
    return False
