"""The checksums of stored entries, and the key that bookies compare.

Source: docs/design/bookkeeper.md#digests.
"""

import hashlib
import hmac
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from crc32c import crc32c

from magnetar.bookkeeper.ledgers.metadata import DigestType

MASTER_KEY_BYTES = 20

_U32 = Struct(">I")
_U64 = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Digest:
    """A checksum of two successive pieces.

    Attributes:
        size: of the result, in bytes.
        compute: result of a header and a payload.
    """

    size: int
    compute: Callable[[bytes, bytes], bytes]


def _crc32c(header: bytes, payload: bytes) -> bytes:
    return _U32.pack(crc32c(payload, crc32c(header)))


def _crc32(header: bytes, payload: bytes) -> bytes:
    # Java writes it as a long.
    return _U64.pack(zlib.crc32(payload, zlib.crc32(header)))


def _dummy(header: bytes, payload: bytes) -> bytes:
    return b""


def _hmac(password: bytes) -> Callable[[bytes, bytes], bytes]:
    keyed = hmac.new(hashlib.sha1(b"mac" + password, usedforsecurity=False).digest(), digestmod="sha1")

    def compute(header: bytes, payload: bytes) -> bytes:
        state = keyed.copy()
        state.update(header)
        state.update(payload)
        return state.digest()

    return compute


def digest_of(kind: DigestType, password: bytes) -> Digest:
    """The checksum of a ledger's entries; only HMAC depends on the password."""
    match kind:
        case DigestType.CRC32C:
            return Digest(4, _crc32c)
        case DigestType.CRC32:
            return Digest(8, _crc32)
        case DigestType.HMAC:
            return Digest(20, _hmac(password))
        case DigestType.DUMMY:
            return Digest(0, _dummy)


def master_key(password: bytes) -> bytes:
    """`MASTER_KEY_BYTES` bytes, for requests that write or fence. The first one of a ledger fixes the key on a bookie."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()
