"""The idempotency keys of one topic: which were seen within a window, in a few bytes each (design, part 2).

    ring    key number -> fingerprint (16 bytes), broker time (4), entry id (4): 24 bytes a key, oldest first, in blocks
    index   fingerprint -> key number: small open-addressing tables ("shards") below a directory (extendible hashing), so
            that growing never moves more than one shard at a time

Keys come in the order of the log and leave in it: at the front by age or because there are too many, at the back when an
append failed. Leaving touches the ring alone. A slot of the index whose number is not in the ring any more is dead; the
next rebuild of its shard drops it. A number may be given anew after a failed append: a stale slot then leads to another
key, whose fingerprint does not fit.

A fingerprint has 128 bits of BLAKE2b: two keys that share one would cost a message, and are not to be found.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from magnetar.core.ids import NONE, Position

BLOCK_SHIFT: Final = 12
"""Keys in a block of the ring, as a power of two: 96 KiB, given back as a whole."""

SHARD_SLOTS_MIN: Final = 16
SHARD_SLOTS_MAX: Final = 4096
"""A shard beyond it is split: moving its keys takes some 2 ms."""

DEPTH_MAX: Final = 20
"""Bits of the fingerprint that the directory goes by at most: 3 * 10^9 keys; beyond it shards grow instead."""

_BLOCK_KEYS: Final = 1 << BLOCK_SHIFT
_BLOCK_MASK: Final = _BLOCK_KEYS - 1
_NUMBERS: Final = 2**32 - 1
_TIME_MASK: Final = 2**32 - 1
_HALF: Final = 2**31
_HALVES: Final = Struct("<QQ").unpack
KEY_BYTES: Final = 24


class Fingerprint(NamedTuple):
    """Of a key: two halves of 64 bits."""

    high: int
    low: int


def fingerprint(key: bytes) -> Fingerprint:
    """Of a key's bytes."""
    return Fingerprint._make(_HALVES(blake2b(key, digest_size=16).digest()))


class _Block:
    """Some keys of the ring."""

    __slots__ = ("entries", "high", "low", "times")

    def __init__(self) -> None:
        self.high: array[int] = array("Q")
        self.low: array[int] = array("Q")
        self.times: array[int] = array("I")
        self.entries: array[int] = array("I")

    def cut(self, count: int) -> None:
        """Keep the first `count`."""
        for column in (self.high, self.low, self.times, self.entries):
            del column[count:]


class _Shard:
    """A part of the index: all fingerprints that end in the same `depth` bits (of the high half)."""

    __slots__ = ("depth", "slots", "used")

    def __init__(self, depth: int, slots: int = SHARD_SLOTS_MIN) -> None:
        self.depth = depth
        self.slots: array[int] = array("I", bytes(4 * slots))
        self.used = 0


class KeyTable:
    """Keys, oldest first.

    Args:
        window_ms: a key is known for so long.
        keys_max: beyond it the oldest goes.

    Attributes:
        head: number of the oldest key.
        tail: number that the next key gets.
        evicted: keys that went because there were too many.
        expired: keys that went because of their age.
    """

    def __init__(self, *, window_ms: int, keys_max: int) -> None:
        self.window_ms = window_ms
        self.keys_max = keys_max
        self.head = 0
        self.tail = 0
        self.evicted = 0
        self.expired = 0
        self._blocks: dict[int, _Block] = {}
        self._directory: list[_Shard] = [_Shard(0)]
        self._ledgers: list[tuple[int, int]] = []
        """(first key number, ledger): ledgers change rarely, and only forward."""

    def __len__(self) -> int:
        return self.tail - self.head

    # -------------------------------------------------------------------------------------------------------- looking

    def _age(self, number: int, now_ms: int) -> int:
        """Age of a key, ms; negative when its time lies ahead (the clock was put back)."""
        age = (now_ms - self._blocks[number >> BLOCK_SHIFT].times[number & _BLOCK_MASK]) & _TIME_MASK
        return age if age < _HALF else age - _TIME_MASK - 1

    def find(self, key: Fingerprint, now_ms: int) -> int:
        """The number of a key that is known at a time, or -1."""
        high, low = key
        directory = self._directory
        slots = directory[high & len(directory) - 1].slots
        mask = len(slots) - 1
        at = low & mask
        head, size = self.head, self.tail - self.head
        while value := slots[at]:
            distance = (value - 1 - head) % _NUMBERS
            if distance < size:
                number = head + distance
                block = self._blocks[number >> BLOCK_SHIFT]
                offset = number & _BLOCK_MASK
                same = block.low[offset] == low and block.high[offset] == high
                if same and abs(self._age(number, now_ms)) < self.window_ms:
                    return number
            at = at + 1 & mask
        return -1

    def position(self, number: int) -> Position:
        """Where the message of a key is stored; NONE when that is not known."""
        at = bisect_right(self._ledgers, number, key=itemgetter(0)) - 1
        if not self.head <= number < self.tail or at < 0:
            return NONE
        return Position(self._ledgers[at][1], self._blocks[number >> BLOCK_SHIFT].entries[number & _BLOCK_MASK])

    def key(self, number: int, now_ms: int) -> tuple[Fingerprint, int]:
        """A key of the ring, and its time in full."""
        block, offset = self._blocks[number >> BLOCK_SHIFT], number & _BLOCK_MASK
        return Fingerprint(block.high[offset], block.low[offset]), now_ms - self._age(number, now_ms)

    # -------------------------------------------------------------------------------------------------------- changing

    def begin(self, number: int) -> None:
        """Let the numbers of an empty table go on from here."""
        assert self.head == self.tail, "there are keys already"
        self.head = self.tail = number
        self._blocks.clear()
        self._ledgers.clear()
        self._directory = [_Shard(0)]
        if number & _BLOCK_MASK:
            block = self._blocks[number >> BLOCK_SHIFT] = _Block()
            for column in (block.high, block.low, block.times, block.entries):
                column.frombytes(bytes(column.itemsize * (number & _BLOCK_MASK)))

    def resize(self, *, window_ms: int, keys_max: int) -> None:
        """Other limits from now on."""
        self.window_ms, self.keys_max = window_ms, keys_max
        if len(self) > keys_max:
            self.evicted += len(self) - keys_max
            self._drop(len(self) - keys_max)

    def push(self, key: Fingerprint, time_ms: int) -> int:
        """Remember a key; its number."""
        if self.tail - self.head >= self.keys_max:
            self._drop(1)
            self.evicted += 1
        number = self.tail
        block = self._blocks.get(number >> BLOCK_SHIFT)
        if block is None:
            block = self._blocks[number >> BLOCK_SHIFT] = _Block()
        block.high.append(key.high)
        block.low.append(key.low)
        block.times.append(time_ms & _TIME_MASK)
        block.entries.append(0)
        self.tail = number + 1
        self._enter(key, number)
        return number

    def place(self, number: int, position: Position) -> None:
        """Say where the message of a key is stored; in the order of numbers and positions."""
        self._blocks[number >> BLOCK_SHIFT].entries[number & _BLOCK_MASK] = position.entry
        if not self._ledgers or self._ledgers[-1][1] != position.ledger:
            self._ledgers.append((number, position.ledger))

    def truncate(self, tail: int) -> None:
        """Forget the keys from a number on: their append failed."""
        tail = max(tail, self.head)
        while self.tail > tail:
            index = self.tail - 1 >> BLOCK_SHIFT
            start = max(tail, index << BLOCK_SHIFT)
            if start == index << BLOCK_SHIFT:
                self._blocks.pop(index, None)
            else:
                self._blocks[index].cut(start & _BLOCK_MASK)
            self.tail = start
        while self._ledgers and self._ledgers[-1][0] >= self.tail:
            self._ledgers.pop()

    def expire(self, now_ms: int, most: int) -> None:
        """Forget what is older than the window, at most so many keys at a time."""
        count = 0
        while self.head + count < self.tail and count < most and self._age(self.head + count, now_ms) >= self.window_ms:
            count += 1
        if count:
            self._drop(count)
            self.expired += count

    def _drop(self, count: int) -> None:
        before = self.head >> BLOCK_SHIFT
        self.head += count
        for index in range(before, self.head >> BLOCK_SHIFT):
            self._blocks.pop(index, None)
        if self.head == self.tail:
            # Numbers go on: what the index still holds is dead. A block that is partly used goes on, too.
            self._directory = [_Shard(0)]
        while len(self._ledgers) > 1 and self._ledgers[1][0] <= self.head:
            del self._ledgers[0]

    # ------------------------------------------------------------------------------------------------------- the index

    def _enter(self, key: Fingerprint, number: int) -> None:
        shard = self._directory[key.high & len(self._directory) - 1]
        if (shard.used + 1) * 4 > len(shard.slots) * 3:
            self._rebuild(shard, key.high)
            shard = self._directory[key.high & len(self._directory) - 1]
        _put(shard, key.low, number)

    def _live(self, shard: _Shard) -> list[int]:
        """The numbers that a shard holds and the ring has, without the newest, which is just being entered."""
        head, newest = self.head, self.tail - 1
        if newest < _NUMBERS:
            return sorted({value - 1 for value in shard.slots if head < value <= newest})
        size = newest - head
        distances = {(value - 1 - head) % _NUMBERS for value in shard.slots if value}
        return sorted(head + distance for distance in distances if distance < size)

    def _fill(self, shard: _Shard, numbers: Iterable[int]) -> None:
        """Enter keys into an empty table, oldest first."""
        slots, blocks = shard.slots, self._blocks
        mask = len(slots) - 1
        for number in numbers:
            at = blocks[number >> BLOCK_SHIFT].low[number & _BLOCK_MASK] & mask
            while slots[at]:
                at = at + 1 & mask
            slots[at] = number % _NUMBERS + 1
            shard.used += 1

    def _rebuild(self, shard: _Shard, high: int) -> None:
        """Drop what is dead; make room if that is not enough: a larger table, or two."""
        live = self._live(shard)
        slots = len(shard.slots)
        if len(live) * 2 > slots and slots >= SHARD_SLOTS_MAX and shard.depth < DEPTH_MAX:
            self._split(shard, high, live)
            return
        while len(live) * 2 > slots:
            slots *= 2
        while slots > SHARD_SLOTS_MIN and len(live) * 8 < slots:
            slots //= 2
        shard.slots, shard.used = array("I", bytes(4 * slots)), 0
        self._fill(shard, live)

    def _split(self, shard: _Shard, high: int, live: list[int]) -> None:
        if 1 << shard.depth == len(self._directory):
            self._directory += self._directory
        bit = 1 << shard.depth
        parts: tuple[list[int], list[int]] = ([], [])
        for number in live:
            parts[bool(self._blocks[number >> BLOCK_SHIFT].high[number & _BLOCK_MASK] & bit)].append(number)
        halves = (_Shard(shard.depth + 1, len(shard.slots)), _Shard(shard.depth + 1, len(shard.slots)))
        for half, numbers in zip(halves, parts, strict=True):
            self._fill(half, numbers)
        for at in range(high & bit - 1, len(self._directory), bit):
            self._directory[at] = halves[bool(at & bit)]
        # The half that the new key goes to may still be full, if fingerprints were made to fall together.
        half = halves[bool(high & bit)]
        if (half.used + 1) * 4 > len(half.slots) * 3:
            self._rebuild(half, high)

    # ------------------------------------------------------------------------------------------------------- reporting

    def memory(self) -> tuple[int, int]:
        """Bytes of the keys and of their index."""
        shards = {id(shard): shard for shard in self._directory}.values()
        keys = sum(KEY_BYTES * len(block.low) for block in self._blocks.values())
        return keys, sum(4 * len(shard.slots) for shard in shards) + 8 * len(self._directory)

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert 0 <= self.head <= self.tail
        assert len(self) <= self.keys_max, "more keys than allowed"
        held = sum(len(block.low) for block in self._blocks.values())
        assert len(self) <= held < len(self) + _BLOCK_KEYS, f"{held} keys held for {len(self)}"
        assert all(a < b for a, b in zip(self._ledgers, self._ledgers[1:], strict=False))


def _put(shard: _Shard, low: int, number: int) -> None:
    slots = shard.slots
    mask = len(slots) - 1
    at = low & mask
    while slots[at]:
        at = at + 1 & mask
    slots[at] = number % _NUMBERS + 1
    shard.used += 1
