"""Payloads of stored messages before compression, for people who look at one: seldom, so that short code beats fast code.

zlib is Python's own and LZ4 is read here; ZSTD and Snappy need `pyarrow`, which comes with `magnetar[spark]`.
"""

import zlib
from typing import Any, Final

from magnetar.core.errors import MagnetarError
from magnetar.metadata.errors import PreconditionFailed
from magnetar.wire.compressed import SNAPPY_RATIO_MAX, inflate, snappy_size

PLAIN_BYTES_MAX: Final = 64 << 20
"""A ceiling on what a message may claim to hold: a forged size must not take the broker's memory. A batch may hold several
times the largest message that clients may send.
"""

NAMES: Final = {1: "LZ4", 2: "ZLIB", 3: "ZSTD", 4: "SNAPPY"}

RATIOS_MAX: Final = {3: 1 << 15, 4: SNAPPY_RATIO_MAX}
"""How many bytes one of a payload may stand for: pyarrow allocates what a message says that it holds before it looks. ZSTD says
a block of 128 KiB with 4.
"""

_SNAPPY: Final = 4
_CODECS: Final = {3: "zstd", 4: "snappy"}
_MATCH_MIN: Final = 4


class Undecompressible(MagnetarError):
    """Why a payload stays as it is stored."""


def decompress(kind: int, size: int, payload: bytes) -> bytes:
    """A payload as its producer gave it; call it outside of the loop, large ones take long.

    Args:
        kind: of compression, the number in the message's metadata.
        size: what its metadata say that it holds.
        payload: as stored.

    Raises:
        Undecompressible: damaged, too large, or of an unknown kind. PreconditionFailed: something has to be installed.
    """
    if size > PLAIN_BYTES_MAX:
        raise Undecompressible(f"it says that it holds {size} bytes; at most {PLAIN_BYTES_MAX} are decompressed")
    try:
        plain = _plain(kind, size, payload)
    except (zlib.error, IndexError) as error:
        raise Undecompressible(f"it is no {NAMES[kind]}: {error}") from None
    if len(plain) != size:
        raise Undecompressible(f"it does not hold the {size} bytes that it says")
    return plain


def _plain(kind: int, size: int, payload: bytes) -> bytes:
    match kind:
        case 1:
            return _from_lz4(payload, size)
        case 2:
            return inflate(payload, size)
        case 3 | 4:
            return _by_arrow(kind, size, payload)
        case _:
            raise Undecompressible(f"compression number {kind} is not known")


def _by_arrow(kind: int, size: int, payload: bytes) -> bytes:
    try:
        import pyarrow as pa
    except ImportError:
        raise PreconditionFailed(
            f"the message is compressed with {NAMES[kind]}, which needs pyarrow on the broker: install magnetar[spark]"
        ) from None
    if size > len(payload) * RATIOS_MAX[kind]:
        raise Undecompressible(f"{len(payload)} bytes of {NAMES[kind]} cannot hold the {size} that it says")
    if kind == _SNAPPY and snappy_size(payload) != size:
        raise Undecompressible(f"it does not hold the {size} bytes that it says")
    try:
        plain: Any = pa.Codec(_CODECS[kind]).decompress(payload, size, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise Undecompressible(f"it is no {NAMES[kind]}: {error}") from None
    return bytes(plain)


def _from_lz4(data: bytes, size: int) -> bytes:
    """An LZ4 block: literals, then a match `offset` back in what there is, again and again; it ends with literals."""
    plain = bytearray()
    at, end = 0, len(data)
    while at < end:
        token = data[at]
        at += 1
        length, at = _length(data, at, token >> 4)
        if at + length > end:
            raise IndexError("literals are cut off")
        plain += data[at : at + length]
        at += length
        if at == end or len(plain) > size:
            break
        offset = int.from_bytes(data[at : at + 2], "little")
        length, at = _length(data, at + 2, token & 15)
        length += _MATCH_MIN
        begin = len(plain) - offset
        if at > end or not 0 <= begin < len(plain):
            raise IndexError("a match lies outside")
        if len(plain) + length > size:
            raise IndexError("it holds more than it says")
        found = plain[begin : begin + length]
        # A match may run into what it writes: the stretch then repeats itself.
        plain += (found * (length // len(found) + 1))[:length]
    return bytes(plain)


def _length(data: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        more = 255
        while more == 255:
            more = data[at]
            at += 1
            length += more
    return length, at
