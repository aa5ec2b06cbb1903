"""Sizes of compressed payloads that were not checked before: a broker and a Spark worker ask for them before they
allocate memory.
"""

import zlib
from typing import Final

SNAPPY_RATIO_MAX: Final = 22
"""The most bytes that one byte of a Snappy payload can decompress to: it copies 64 with 3."""


def inflate(payload: bytes | memoryview, size: int) -> bytes:
    """Decompress a zlib payload. If the result would be longer than `size` bytes, return `size + 1` bytes, so that the
    caller sees it.

    Raises:
        zlib.error: damaged, or its end is cut off.
    """
    engine = zlib.decompressobj()
    plain = engine.decompress(payload, size + 1)
    if len(plain) == size and not engine.eof:
        raise zlib.error("its end is cut off")
    return plain


def snappy_size(payload: bytes | memoryview) -> int:
    """The decompressed size that a Snappy payload states in its head; -1 if it does not begin with a number.

    Decompressing with a larger buffer would return the uninitialised rest of pyarrow's buffer.
    """
    size = 0
    for number, byte in enumerate(payload[:5]):
        size |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return size
    return -1
