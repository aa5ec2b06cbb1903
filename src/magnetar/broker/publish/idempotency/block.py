"""What is kept of an idempotency key, and blocks of them; `table` finds them again.

A fingerprint is 72 bits of BLAKE2b behind a secret: among 10 million keys a new one is taken for an old one once in 5 * 10^14
messages, and nobody who does not know the secret can make one that is. Fingerprints never leave their cluster, so that every
cluster has a secret of its own (docs/decisions/0018).
"""

from array import array
from hashlib import blake2b
from typing import Final, NamedTuple

from magnetar.wire.idempotency_keys import FINGERPRINT_BYTES

BLOCK_SHIFT: Final = 12
"""Keys in a block of the ring, as a power of two: 96 KiB, given back as a whole; closing one takes some 3 ms."""

ORIGINS_MAX: Final = 255
"""Clusters told apart per topic: one byte a key. Messages of any beyond are never withdrawn."""

WHOLE: Final = 0
"""As a message's place: it is in no batch. Message n of a batch has place n + 1."""

KEPT: Final = 0xFFFF
"""As a message's place: it is never withdrawn (the last chunk of several, or the end of a huge batch)."""

KEY_BYTES: Final = 24
_MASK_32: Final = 2**32 - 1
PART_SHIFT: Final = 32
"""What is packed has the place from this bit on, and below it the publish time."""
_ORIGIN_SHIFT: Final = 48
HIGH_SHIFT: Final = 56
"""Eight bits of the fingerprint are on top of what is packed."""


def fingerprint(key: bytes, secret: bytes = b"") -> bytes:
    """Of a key's bytes: 72 bits. `KeyProperty` makes many of them."""
    return blake2b(secret + key, digest_size=FINGERPRINT_BYTES).digest()


def pack(published_ms: int, origin: int, part: int) -> int:
    """What is kept of a message besides its position: publish time, number of its origin (0: this cluster), place."""
    return published_ms & _MASK_32 | part << PART_SHIFT | origin << _ORIGIN_SHIFT


class About(NamedTuple):
    """What `pack` packed; the publish time modulo 2^32."""

    published_ms: int
    origin: int
    part: int


def unpack(about: int) -> About:
    """See `pack`."""
    return About(about & _MASK_32, about >> _ORIGIN_SHIFT & 0xFF, about >> PART_SHIFT & 0xFFFF)


class Block:
    """Some keys of the ring, as arrays.

    Attributes:
        low: of the fingerprints, 64 bits.
        about: as packed, and 8 bits more of the fingerprint on top.
        times: broker time, ms modulo 2^32.
        entries: where they are stored.
    """

    __slots__ = ("about", "entries", "low", "times")

    def __init__(self) -> None:
        self.low: array[int] = array("Q")
        self.about: array[int] = array("Q")
        self.times: array[int] = array("I")
        self.entries: array[int] = array("I")

    def columns(self) -> tuple["array[int]", ...]:
        """All of them, in the order in which they are stored."""
        return self.low, self.about, self.times, self.entries
