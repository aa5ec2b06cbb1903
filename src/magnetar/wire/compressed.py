"""Compressed payloads that were not checked by anybody: what a broker and a Spark worker ask of them before they allocate."""

import zlib
from typing import Final

SNAPPY_RATIO_MAX: Final = 22
"""Bytes that one byte of a Snappy payload can stand for at most: it copies 64 with 3."""


def inflate(payload: bytes | memoryview, size: int) -> bytes:
    """What a zlib payload holds; when that is more than `size` bytes, one byte more than that, which is enough to tell.

    Raises:
        zlib.error: damaged, or its end is cut off.
    """
    engine = zlib.decompressobj()
    plain = engine.decompress(payload, size + 1)
    if len(plain) == size and not engine.eof:
        raise zlib.error("its end is cut off")
    return plain


def snappy_size(payload: bytes | memoryview) -> int:
    """How many bytes a Snappy payload itself says that it holds; -1 when it begins with no number.

    Who decompresses it with room for more gets the rest of pyarrow's buffer, whatever was there.
    """
    size = 0
    for number, byte in enumerate(payload[:5]):
        size |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return size
    return -1
