"""The stored part of an idempotency key, and blocks of keys; `table` looks them up.

A fingerprint is 72 bits of BLAKE2b with a secret key. Among 10 million keys a new one is taken for an old one once in 5
* 10^14 messages, and without the secret a client cannot make a key for which that happens. Fingerprints never leave
their cluster, so every cluster has its own secret (docs/decisions/0018).
"""

from array import array
from hashlib import blake2b
from typing import Final, NamedTuple

from magnetar.wire.idempotency_keys import FINGERPRINT_BYTES

BLOCK_SHIFT: Final = 12
"""Keys in a block of the ring, as a power of two: 96 KiB, given back as a whole; closing one takes some 3 ms."""

ORIGINS_MAX: Final = 255
"""The most origin clusters that are distinguished per topic: one byte per key. Messages of further clusters are never
withdrawn.
"""

WHOLE: Final = 0
"""The part number of a message that is not in a batch. Message n of a batch has n + 1."""

KEPT: Final = 0xFFFF
"""The part number of a message that is never withdrawn (the last chunk of several, or the end of a huge batch)."""

KEY_BYTES: Final = 24
_MASK_32: Final = 2**32 - 1
PART_SHIFT: Final = 32
"""The bit at which the part number begins in a packed value; below it is the publish time."""
_ORIGIN_SHIFT: Final = 48
HIGH_SHIFT: Final = 56
"""Eight bits of the fingerprint are on top of what is packed."""


def fingerprint(key: bytes, secret: bytes = b"") -> bytes:
    """The fingerprint of a key's bytes: 72 bits. `KeyProperty` makes many of them."""
    return blake2b(secret + key, digest_size=FINGERPRINT_BYTES).digest()


def pack(published_ms: int, origin: int, part: int) -> int:
    """Pack the facts about a message other than its position: publish time, number of its origin (0: this cluster),
    part number.
    """
    return published_ms & _MASK_32 | part << PART_SHIFT | origin << _ORIGIN_SHIFT


class About(NamedTuple):
    """The facts that `pack` packed; the publish time modulo 2^32."""

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
