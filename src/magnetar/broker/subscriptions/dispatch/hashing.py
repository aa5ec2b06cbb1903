"""Hash slots of Key_Shared (and of readers with key ranges): the slot of a key, and the consumer that owns a slot.

A key's slot is Murmur3 (x86, 32 bit, seed 0) of its bytes without the sign bit, modulo 65,536, as in Pulsar; consumers
with sticky ranges rely on it. AUTO_SPLIT puts points for each consumer on the circle of slots, so that a consumer that
joins or leaves moves only its own share of the keys.
"""

from bisect import bisect_left
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.dispatch.chunks import chunk_of
from magnetar.core.errors import ProtocolError
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.metadata import sticky_key

SLOTS: Final = 1 << 16
POINTS_PER_CONSUMER: Final = 100
"""The same as Pulsar's subscriptionKeySharedConsistentHashingReplicaPoints: with 100 points shares differ by about a
tenth.
"""

_KEYS_CACHED: Final = 1 << 14
"""Slots of recent keys; hashing in Python costs microseconds, and keys recur."""

CACHED_KEY_BYTES_MAX: Final = 256
"""Longer keys are hashed each time: the cached ones take at most 6 MB."""

HASHED_KEY_BYTES_MAX: Final = 4096
"""A producer chooses the length of its keys, and hashing 4 kB takes half a millisecond. For a longer key its digest is
hashed: it has one slot as well, but not the one that clients compute. Only clients that choose hash ranges themselves
need that one.
"""

_MASK: Final = 0xFFFFFFFF
_KEYED: Final = int(EntryFlags.KEYED)
_CHUNK: Final = int(EntryFlags.CHUNK)


def murmur3_32(data: bytes) -> int:
    """MurmurHash3, x86, 32 bit, seed 0; unsigned."""
    value = 0
    whole = len(data) & ~3
    for offset in range(0, whole, 4):
        value ^= _mixed(int.from_bytes(data[offset : offset + 4], "little"))
        value = (value << 13 | value >> 19) & _MASK
        value = (value * 5 + 0xE6546B64) & _MASK
    if whole != len(data):
        value ^= _mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


def _mixed(block: int) -> int:
    block = block * 0xCC9E2D51 & _MASK
    return (block << 15 | block >> 17) * 0x1B873593 & _MASK


def _slot(key: bytes) -> int:
    if len(key) > HASHED_KEY_BYTES_MAX:
        key = blake2b(key).digest()
    return (murmur3_32(key) & 0x7FFFFFFF) % SLOTS


@lru_cache(maxsize=_KEYS_CACHED)
def slot_of(key: bytes) -> int:
    """The slot of a key, 0..65,535. A key of a message: `slot_of_any`."""
    return _slot(key)


def slot_of_any(key: bytes) -> int:
    """The slot of a key as long as its producer wants."""
    return slot_of(key) if len(key) <= CACHED_KEY_BYTES_MAX else _slot(key)


def slot_of_entry(entry: StoredEntry) -> int:
    """The slot of an entry's key; when it has none, of the message that it is a chunk of, or else of its position."""
    key = None
    if entry.flags & _KEYED:
        try:
            key = sticky_key(entry.data)
        except ProtocolError:
            key = None
    elif entry.flags & _CHUNK and (chunk := chunk_of(entry)) is not None:
        key = f"{chunk.producer}:{chunk.uuid}".encode()
    if key is None:
        key = f"{entry.ledger}:{entry.entry}".encode()
    return slot_of(key) if len(key) <= CACHED_KEY_BYTES_MAX else _slot(key)


class Ring:
    """AUTO_SPLIT: the slots between a consumer's point and the point before it are that consumer's.

    The same consumers, by name, always make the same ring, in whatever order they came. Of consumers with the same name
    the one that came later has points of its own.
    """

    def __init__(self) -> None:
        self._points: list[int] = []
        self._owners: list[Consumer] = []
        self._keys: list[tuple[int, str, int]] = []
        """The points, ascending: the slot, and the consumer's name and number among those with that name."""
        self._named: dict[str, list[Consumer]] = {}
        self._ranges: dict[Consumer, list[tuple[int, int]]] | None = None

    def rebuild(self, consumers: list[Consumer]) -> None:
        """Apply the list of consumers, in the order of their arrival. Points of consumers that stay are not touched,
        because all consumers wait.
        """
        named: dict[str, list[Consumer]] = {}
        for consumer in consumers:
            named.setdefault(consumer.name, []).append(consumer)
        before, self._named = self._named, named
        for name in {**before, **named}:
            old, new = before.get(name, []), named.get(name, [])
            if old == new:
                continue
            for twin in range(len(old)):
                self._take_out(name, twin)
            for twin, consumer in enumerate(new):
                self._put_in(name, twin, consumer)
            self._ranges = None

    def _put_in(self, name: str, twin: int, consumer: Consumer) -> None:
        for key in _points_of(name, twin):
            at = bisect_left(self._keys, key)
            self._keys.insert(at, key)
            self._points.insert(at, key[0])
            self._owners.insert(at, consumer)

    def _take_out(self, name: str, twin: int) -> None:
        for key in _points_of(name, twin):
            at = bisect_left(self._keys, key)
            del self._keys[at], self._points[at], self._owners[at]

    def ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        """The ranges of each consumer, ascending, both ends inclusive, and no two of a consumer next to each other."""
        if self._ranges is None:
            self._ranges = {}
            last = -1
            for point, owner in zip([*self._points, SLOTS - 1], [*self._owners, *self._owners[:1]], strict=False):
                if point > last:
                    mine = self._ranges.setdefault(owner, [])
                    begin = mine.pop()[0] if mine and mine[-1][1] == last else last + 1
                    mine.append((begin, point))
                    last = point
        return self._ranges

    def owner(self, slot: int) -> Consumer | None:
        """The owner of a slot; None if there are no consumers."""
        if not self._points:
            return None
        at = bisect_left(self._points, slot)
        return self._owners[at if at < len(self._owners) else 0]


def _points_of(name: str, twin: int) -> list[tuple[int, str, int]]:
    """A consumer's points. They are not remembered among the slots of keys: two hundred consumers' would drive these out."""
    texts = (f"{name}\0{twin}\0{number}" for number in range(POINTS_PER_CONSUMER))
    return [(_slot(text.encode()), name, twin) for text in texts]


class StickyRanges:
    """STICKY: consumers name their ranges; a slot that no consumer named has no owner, and its entries wait."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Consumer]] = []
        self._found: dict[Consumer, list[tuple[int, int]]] | None = None

    def overlap(self, ranges: tuple[tuple[int, int], ...]) -> str:
        """The mistake in the ranges of a new consumer, or ""."""
        if not ranges:
            return "no hash ranges are given"
        for first, last in ranges:
            if not 0 <= first <= last < SLOTS:
                return f"hash range {first}..{last} is not within 0..{SLOTS - 1}"
        # Compared in order with the next one only: there may be as many as slots, and comparing all pairs would take a
        # minute.
        own = sorted(ranges)
        for (first, last), (other_first, other_last) in pairwise(own):
            if other_first <= last:
                return f"hash range {other_first}..{other_last} overlaps {first}..{last}"
        for first, last in own:
            taken = self._in(first, last)
            if taken is not None:
                return f"hash range {first}..{last} overlaps {taken[0]}..{taken[1]}"
        return ""

    def holder(self, ranges: tuple[tuple[int, int], ...]) -> Consumer | None:
        """The consumer that has a slot of these ranges of a new consumer, if there is one and the ranges are otherwise
        valid.
        """
        if StickyRanges().overlap(ranges):
            return None
        found = (self._in(first, last) for first, last in ranges)
        return next((taken[2] for taken in found if taken is not None), None)

    def _in(self, first: int, last: int) -> tuple[int, int, Consumer] | None:
        """The range of a consumer that has the highest slot of these, if any has one."""
        at = bisect_left(self._ranges, last + 1, key=_first) - 1
        return self._ranges[at] if at >= 0 and self._ranges[at][1] >= first else None

    def add(self, consumer: Consumer, ranges: tuple[tuple[int, int], ...]) -> None:
        """A consumer's ranges, found free."""
        self._found = None
        self._ranges = sorted([*self._ranges, *((first, last, consumer) for first, last in ranges)], key=_first)

    def remove(self, consumer: Consumer) -> None:
        """Its ranges are free again."""
        self._found = None
        self._ranges = [each for each in self._ranges if each[2] is not consumer]

    def ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        """The ranges of each consumer, ascending, both ends inclusive."""
        if self._found is None:
            self._found = {}
            for first, last, consumer in self._ranges:
                self._found.setdefault(consumer, []).append((first, last))
        return self._found

    def owner(self, slot: int) -> Consumer | None:
        """The owner of a slot; None if no consumer named it."""
        taken = self._in(slot, slot)
        return taken[2] if taken is not None else None


def _first(taken: tuple[int, int, Consumer]) -> int:
    return taken[0]


def shown_ranges(ranges: list[tuple[int, int]]) -> dict[str, Any]:
    """A consumer's slots as statistics write them: as Pulsar 4 does by default, and as it did before."""
    return {
        "keyHashRangeArrays": [list(each) for each in ranges],
        "keyHashRanges": [f"[{first}, {last}]" for first, last in ranges],
    }
