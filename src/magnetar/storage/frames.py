"""Frames with checksums, one after the other in a file: length u32 | crc32c u32 | body, little-endian."""

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

HEAD_BYTES: Final = 8


def pack_frame(body: bytes) -> bytes:
    """The bytes of a frame."""
    return len(body).to_bytes(4, "little") + crc32c(body).to_bytes(4, "little") + body


def read_frames(data: memoryview, at: int) -> Iterator[tuple[memoryview, int]]:
    """Read whole frames from an offset on, up to the first one that is not whole.

    Returns:
        The body of each frame, and the offset after it.
    """
    while at + HEAD_BYTES <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        body = data[at + HEAD_BYTES : at + HEAD_BYTES + length]
        if len(body) < length or crc32c(body) != int.from_bytes(data[at + 4 : at + HEAD_BYTES], "little"):
            return
        at += HEAD_BYTES + length
        yield body, at
