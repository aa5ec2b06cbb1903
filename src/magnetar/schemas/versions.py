"""Schema versions on the wire: eight bytes, big-endian (docs/design/pulsar.md#schema-registry)."""

from typing import Final

from magnetar.schemas.errors import SchemaInvalid

VERSION_BYTES: Final = 8
OLD_VERSION_BYTES: Final = 64
"""The size of a version before Pulsar 2.4; the number is in the first eight bytes."""


def encode_version(version: int) -> bytes:
    """A version as it travels."""
    return version.to_bytes(VERSION_BYTES, "big")


def decode_version(data: bytes) -> int:
    """The reverse of `encode_version`.

    Raises:
        SchemaInvalid: not as many bytes as a version has, or a number below 0.
    """
    if len(data) not in (VERSION_BYTES, OLD_VERSION_BYTES):
        raise SchemaInvalid(f"a schema version has {VERSION_BYTES} bytes, not {len(data)}")
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise SchemaInvalid(f"{version} is not a schema version")
    return version
