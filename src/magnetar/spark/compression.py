"""Compression of entries, by the names and numbers of Pulsar's protocol.

The uncompressed size in a message is its producer's statement. pyarrow trusts it: it allocates that much at once, and
for LZ4 and Snappy payloads with less content it returns the uninitialised rest of the buffer. So nothing larger is
allocated than a payload can decompress to, and a result of another size than stated is refused.
"""

import zlib
from typing import Any, Final

import pyarrow as pa

from magnetar.core.errors import MagnetarError
from magnetar.wire.batches import SNAPPY_RATIO_MAX, inflate, snappy_size

UNCOMPRESSED_BYTES_MAX: Final = 1 << 30
"""A ceiling on what a message may hold, chunked ones as a whole: the memory of an executor's Python process."""

AT_ONCE_BYTES_MAX: Final = 8 << 20
"""The most that is allocated because of a message's stated size: more than the largest message that brokers accept by
default. For formats without a useful bound on the ratio, larger payloads are decompressed piece by piece.
"""

PIECE_BYTES: Final = 1 << 20

_LZ4: Final = 1
_ZLIB: Final = 2
_ZSTD: Final = 3
_SNAPPY: Final = 4
_CODECS: Final = {_LZ4: "lz4_raw", _ZSTD: "zstd", _SNAPPY: "snappy"}
_RATIOS: Final = {_LZ4: 255, _SNAPPY: SNAPPY_RATIO_MAX}
"""The most bytes that one byte of a payload can decompress to: a length byte of LZ4 adds 255."""


class Undecodable(MagnetarError):
    """A message that this side cannot read."""


def compress(kind: int, plain: bytes) -> bytes:
    """The payload of an entry; kind 0 leaves it as it is."""
    if kind == 0:
        return plain
    if kind == _ZLIB:
        return zlib.compress(plain)
    return bytes(pa.Codec(_CODECS[kind]).compress(plain, asbytes=True))


def uncompress(kind: int, size: int, body: memoryview | bytes) -> memoryview:
    """The bytes of a payload before compression.

    Args:
        kind: of compression.
        size: how many bytes the message says that it holds.
        body: its payload.

    Raises:
        Undecodable: an unknown kind, damaged bytes, or not of this size.
    """
    if kind == 0:
        return memoryview(body)
    if size > UNCOMPRESSED_BYTES_MAX:
        raise Undecodable(f"says that it holds {size} bytes; at most {UNCOMPRESSED_BYTES_MAX} are read")
    if size > len(body) * _RATIOS.get(kind, size):
        raise Undecodable(f"says that it holds {size} bytes, and {len(body)} compressed ones cannot expand to that")
    try:
        match kind:
            case 1:
                plain = _lz4(size, body)
            case 2:
                plain = inflate(body, size)
            case 3 if size > AT_ONCE_BYTES_MAX:
                plain = _pieces(size, body)
            case 3 | 4:
                if kind == _SNAPPY and (held := snappy_size(body)) != size:
                    raise Undecodable(f"holds {held} bytes uncompressed, and says {size}")
                plain = pa.Codec(_CODECS[kind]).decompress(pa.py_buffer(body), size)
            case _:
                raise Undecodable(f"is compressed in a way of number {kind}, which is not known")
    except (zlib.error, pa.ArrowException, OSError) as error:
        raise Undecodable(f"cannot be uncompressed: {error}") from None
    view = memoryview(plain)
    if len(view) != size:
        raise Undecodable(f"holds {len(view)} bytes uncompressed, and says {size}")
    return view


def _lz4(size: int, body: memoryview | bytes) -> Any:
    """A block that fits into one byte less holds less: that is the only way to find out, and costs little."""
    codec, data = pa.Codec(_CODECS[_LZ4]), pa.py_buffer(body)
    plain = codec.decompress(data, size)
    if size:
        try:
            codec.decompress(data, size - 1)
        except OSError:
            return plain
        raise Undecodable(f"holds fewer bytes uncompressed than the {size} that it says")
    return plain


def _pieces(size: int, body: memoryview | bytes) -> bytes:
    """The content, up to one byte more than the stated size."""
    plain = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), _CODECS[_ZSTD]) as stream:
        while len(plain) <= size:
            piece = stream.read(min(PIECE_BYTES, size + 1 - len(plain)))
            if not piece:
                break
            plain += piece
    return bytes(plain)
