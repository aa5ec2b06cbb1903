"""Payloads of stored messages before compression, for people who look at one.

The size in a payload's metadata is its producer's statement: nothing larger is allocated than the payload can
decompress to, and a result of another size is refused. The work is done in compiled code that lets other threads run:
zlib is Python's own, LZ4 is `lz4`; ZSTD and Snappy need `pyarrow`, which comes with `magnetar[spark]`.
"""

import zlib
from typing import Any, Final

from magnetar.core.errors import MagnetarError
from magnetar.metadata.errors import PreconditionFailed
from magnetar.wire.batches import SNAPPY_RATIO_MAX, inflate, snappy_size

PLAIN_BYTES_MAX: Final = 64 << 20
"""A ceiling on what a message may claim to hold: a forged size must not take the broker's memory. A batch may hold several
times the largest message that clients may send.
"""

NAMES: Final = {1: "LZ4", 2: "ZLIB", 3: "ZSTD", 4: "SNAPPY"}

RATIOS_MAX: Final = {1: 255, 2: 1_032, 3: 1 << 15, 4: SNAPPY_RATIO_MAX}
"""The most bytes that one byte of a payload can decompress to. A length byte of LZ4 adds 255, zlib expresses 258 bytes
with two bits, ZSTD a block of 128 KiB with 4 bytes.
"""

_SNAPPY: Final = 4
_CODECS: Final = {3: "zstd", 4: "snappy"}


class Undecompressible(MagnetarError):
    """Why a payload stays as it is stored."""


def claimed(kind: int, size: int, payload: int) -> int:
    """The number of bytes that decompressing a payload needs in addition to its own.

    Args:
        kind: of compression, the number in the message's metadata.
        size: decompressed size according to its metadata.
        payload: its bytes.

    Raises:
        Undecompressible: too large, more than it can decompress to, or of an unknown kind.
    """
    if kind not in NAMES:
        raise Undecompressible(f"compression number {kind} is not known")
    if size > PLAIN_BYTES_MAX:
        raise Undecompressible(f"it says that it holds {size} bytes; at most {PLAIN_BYTES_MAX} are decompressed")
    if size > payload * RATIOS_MAX[kind]:
        raise Undecompressible(f"{payload} bytes of {NAMES[kind]} cannot hold the {size} that it says")
    return 2 * size if NAMES[kind] == "ZLIB" else size  # zlib puts it together of blocks


def decompress(kind: int, size: int, payload: bytes | memoryview) -> bytes:
    """Decompress a payload. Call it outside the event loop, because large ones take long.

    Args:
        kind: of compression, the number in the message's metadata.
        size: decompressed size according to its metadata.
        payload: as stored.

    Raises:
        Undecompressible: damaged, too large, or of an unknown kind. PreconditionFailed: something has to be installed.
    """
    claimed(kind, size, len(payload))
    plain = _plain(kind, size, payload)
    if len(plain) != size:
        raise Undecompressible(f"it does not hold the {size} bytes that it says")
    return plain


def _plain(kind: int, size: int, payload: bytes | memoryview) -> bytes:
    # Each of them is loaded by the first message that needs it.
    match NAMES[kind]:
        case "LZ4":
            import lz4.block

            try:
                return bytes(lz4.block.decompress(payload, uncompressed_size=size))
            except (lz4.block.LZ4BlockError, ValueError) as error:
                raise _none(kind, error) from None
        case "ZLIB":
            try:
                return inflate(payload, size)
            except zlib.error as error:
                raise _none(kind, error) from None
        case _:
            return _by_arrow(kind, size, payload)


def _by_arrow(kind: int, size: int, payload: bytes | memoryview) -> bytes:
    try:
        import pyarrow as pa
    except ImportError:
        raise PreconditionFailed(
            f"the message is compressed with {NAMES[kind]}, which needs pyarrow on the broker: install magnetar[spark]"
        ) from None
    if kind == _SNAPPY and snappy_size(payload) != size:
        raise Undecompressible(f"it does not hold the {size} bytes that it says")
    try:
        plain: Any = pa.Codec(_CODECS[kind]).decompress(pa.py_buffer(payload), size, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise _none(kind, error) from None
    return plain if isinstance(plain, bytes) else bytes(plain)


def _none(kind: int, error: Exception) -> Undecompressible:
    return Undecompressible(f"it is no {NAMES[kind]}: {error}")
