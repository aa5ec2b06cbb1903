"""The idempotency keys that one topic has seen within a window, in a few bytes each.

The rules: docs/design/deduplication.md#idempotency-keys.

    ring    key number -> fingerprint (9 bytes), broker time (4), entry id (4), and of its message the publish time (4), the
            index in its batch (2) and the origin (1): 24 bytes per key, oldest first, in blocks
    open    the newest block: plain lists, and a dictionary fingerprint -> key number; turned into arrays when it is full
    index   fingerprint -> key number, of all other blocks (`idempotency_index`)

Keys are added in the order of the log and removed at the ends: at the front by age or because there are too many, at
the back after a failed append. Removing changes only the ring: a slot of the index whose number is no longer in the
ring is dead. A number may be used again after a failed append: a stale slot then leads to another key, whose
fingerprint does not match.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from magnetar.broker.publish.idempotency.block import (
    BLOCK_SHIFT,
    HIGH_SHIFT,
    KEY_BYTES,
    About,
    Block,
    unpack,
)
from magnetar.broker.publish.idempotency.index import MOVED_PER_BLOCK, NUMBERS, KeyIndex
from magnetar.core.ids import NONE, Position
from magnetar.wire.idempotency_keys import FINGERPRINT_BYTES

from_bytes = int.from_bytes
_MASK_32: Final = 2**32 - 1
_HALF: Final = 2**31
_ABOUT: Final = (1 << HIGH_SHIFT) - 1

BULK: Final = 8
"""From this many keys on, array operations are faster than single lookups."""

_PARTS: Final = np.dtype([("low", "<u8"), ("high", "u1")])


class KeyTable:
    """Keys, oldest first.

    Args:
        window_ms: time for which a key is remembered.
        keys_max: above this number the oldest is forgotten.

    Attributes:
        head: number of the oldest key.
        tail: number of the next key.
        evicted: keys forgotten because there were too many.
        expired: keys forgotten because of their age.
        newest_ms: time of the newest key.
    """

    def __init__(self, *, window_ms: int, keys_max: int) -> None:
        self.window_ms = window_ms
        self.keys_max = keys_max
        self.head = 0
        self.tail = 0
        self.evicted = 0
        self.expired = 0
        self.newest_ms = 0
        self._block_keys = 1 << BLOCK_SHIFT
        self._blocks: dict[int, Block] = {}
        # The newest block:
        self._keys: list[bytes] = []
        self._about: list[int] = []
        self._times: list[int] = []
        self._entries: list[int] = []
        self._start = 0
        """Number of the first key of the open block."""
        self._fresh: dict[bytes, int] = {}
        self._index = KeyIndex()
        self._moving = -1
        self._ledgers: list[tuple[int, int]] = []
        """(first key number, ledger): ledgers change rarely, and only forward."""

    def __len__(self) -> int:
        return self.tail - self.head

    # -------------------------------------------------------------------------------------------------------- looking

    def _age(self, number: int, now_ms: int) -> int:
        """Age of a key, ms; negative when its time lies ahead (the clock was put back)."""
        at = number - self._start
        time = self._times[at] if at >= 0 else self._column(number).times[number & self._block_keys - 1]
        age = (now_ms - time) & _MASK_32
        return age if age < _HALF else age - _MASK_32 - 1

    def _column(self, number: int) -> Block:
        return self._blocks[number >> BLOCK_SHIFT]

    def find(self, key: bytes, now_ms: int) -> int:
        """The number of a key that is known at a time, or -1."""
        number = self._fresh.get(key, -1)
        if number >= self.head and abs(self._age(number, now_ms)) < self.window_ms:
            return number
        low = from_bytes(key[:8], "little")
        if not self._index.may_have(low):  # as for most new keys
            return -1
        head, size, blocks, last = self.head, self._start - self.head, self._blocks, self._block_keys - 1
        for value in self._index.candidates(low):
            distance = (value - 1 - head) % NUMBERS
            if distance >= size:
                continue
            number = head + distance
            if blocks[number >> BLOCK_SHIFT].low[number & last] != low or not self._is(number, key):
                continue
            if abs(self._age(number, now_ms)) < self.window_ms:
                return number
        return -1

    def find_all(self, keys: Sequence[bytes], now_ms: int) -> list[int]:
        """The same for many."""
        if len(keys) < BULK:
            return [self.find(key, now_ms) for key in keys]
        found = [-1] * len(keys)
        maybe = self._index.hits(np.frombuffer(b"".join(keys), _PARTS)["low"])
        if not self._fresh.keys().isdisjoint(keys):
            fresh = self._fresh
            maybe = sorted({*maybe, *(at for at, key in enumerate(keys) if key in fresh)})
        for at in maybe:
            found[at] = self.find(keys[at], now_ms)
        return found

    def all_new(self, keys: Sequence[bytes], now_ms: int) -> bool:
        """Whether none of these is known."""
        if not self._fresh.keys().isdisjoint(keys):
            return False
        maybe = self._index.hits(np.frombuffer(b"".join(keys), _PARTS)["low"])
        return all(self.find(keys[at], now_ms) < 0 for at in maybe)

    def _is(self, number: int, key: bytes) -> bool:
        """Whether a key of a closed block has a fingerprint."""
        block, offset = self._blocks[number >> BLOCK_SHIFT], number & self._block_keys - 1
        return block.about[offset] >> HIGH_SHIFT == key[8] and block.low[offset] == from_bytes(key[:8], "little")

    def copies(self, key: bytes, now_ms: int) -> list[int]:
        """The numbers of all that share a key and are known at a time, oldest first."""
        found = {self._start + at for at, other in enumerate(self._keys) if other == key}
        head = self.head
        for value in self._index.candidates(from_bytes(key[:8], "little")):
            number = head + (value - 1 - head) % NUMBERS
            if number < self._start and self._is(number, key):
                found.add(number)
        return sorted(one for one in found if one >= self.head and abs(self._age(one, now_ms)) < self.window_ms)

    def position(self, number: int) -> Position:
        """The position of the message of a key; NONE if it is not known."""
        at = bisect_right(self._ledgers, number, key=itemgetter(0)) - 1
        if not self.head <= number < self.tail or at < 0:
            return NONE
        if number >= self._start:
            entry = self._entries[number - self._start]
        else:
            entry = self._column(number).entries[number & self._block_keys - 1]
        return Position(self._ledgers[at][1], entry)

    def about(self, number: int) -> About:
        """The other facts about a key of the ring."""
        at = number - self._start
        return unpack(self._about[at] if at >= 0 else self._column(number).about[number & self._block_keys - 1])

    def ledgers(self, first: int, end: int) -> list[tuple[int, int]]:
        """(first key number, ledger) of the keys first <= number < end."""
        at = max(bisect_right(self._ledgers, first, key=itemgetter(0)) - 1, 0)
        return [(max(number, first), ledger) for number, ledger in self._ledgers[at:] if number < end]

    def columns(self, number: int) -> Block:
        """The columns of the block of a key, of an open block a copy."""
        return self._column(number) if number < self._start else self._as_columns()

    # -------------------------------------------------------------------------------------------------------- changing

    def begin(self, number: int) -> None:
        """Let the numbers of an empty table continue from here."""
        assert self.head == self.tail, "there are keys already"
        self.head = self.tail = number
        self._blocks.clear()
        self._ledgers.clear()
        self._index = KeyIndex()
        self._fresh.clear()
        self._start = number & -self._block_keys
        held = number - self._start
        self._keys = [bytes(FINGERPRINT_BYTES)] * held
        self._about, self._times, self._entries = ([0] * held for _ in range(3))

    def resize(self, *, window_ms: int, keys_max: int) -> None:
        """Other limits from now on."""
        self.window_ms, self.keys_max = window_ms, keys_max
        if len(self) > keys_max:
            self.evicted += len(self) - keys_max
            self._drop(len(self) - keys_max)

    def push(self, key: bytes, time_ms: int, about: int = 0) -> int:
        """Remember a key; its number."""
        number = self.tail
        if number - self.head >= self.keys_max:
            self._drop(1)
            self.evicted += 1
        if len(self._keys) >= self._block_keys:
            self._close()
        self._keys.append(key)
        self._about.append(about)
        self._times.append(time_ms)
        self._entries.append(0)
        self._fresh[key] = number
        self.newest_ms = time_ms
        self.tail = number + 1
        return number

    def extend(
        self, keys: Sequence[bytes], time_ms: int, about: Sequence[int], ledger: int, entries: Sequence[int]
    ) -> None:
        """Remember many keys at once, of messages whose positions are known."""
        done, count = 0, len(keys)
        if not self._ledgers or self._ledgers[-1][1] != ledger:
            self._ledgers.append((self.tail, ledger))
        while done < count:
            if len(self._keys) >= self._block_keys:
                self._close()
            end = min(count, done + self._block_keys - len(self._keys))
            part = keys[done:end]
            self._keys += part
            self._about += about[done:end]
            self._times += [time_ms] * (end - done)
            self._entries += entries[done:end]
            self._fresh.update(zip(part, range(self.tail, self.tail + end - done), strict=True))
            self.tail += end - done
            done = end
        self.newest_ms = time_ms
        excess = self.tail - self.head - self.keys_max
        if excess > 0:
            self._drop(excess)
            self.evicted += excess

    def set_position(self, number: int, position: Position) -> None:
        """Say where the message of a key is stored; in the order of numbers and positions."""
        ledger, entry = position
        if number >= self._start:
            self._entries[number - self._start] = entry
        else:
            self._column(number).entries[number & self._block_keys - 1] = entry
        if not self._ledgers or self._ledgers[-1][1] != ledger:
            self._ledgers.append((number, ledger))

    def truncate(self, tail: int) -> None:
        """Forget the keys from a number on: their append failed."""
        tail = max(tail, self.head)
        if tail >= self.tail:
            return
        while self._start > tail:
            self._reopen()
        at = tail - self._start
        del self._keys[at:], self._about[at:], self._times[at:], self._entries[at:]
        self._fresh = dict(zip(self._keys, range(self._start, tail), strict=True))
        self.tail = tail
        while self._ledgers and self._ledgers[-1][0] >= tail:
            self._ledgers.pop()

    def expire(self, now_ms: int, most: int) -> None:
        """Forget keys older than the window, at most `most` at a time."""
        if self.head == self.tail:
            return
        if now_ms - self.newest_ms >= max(self.window_ms, _HALF):  # ages wrap around after this time
            count = len(self)
        else:
            count = 0
            end = min(self.tail, self.head + most)
            while self.head + count < end and self._age(self.head + count, now_ms) >= self.window_ms:
                count += 1
        if count:
            self._drop(count)
            self.expired += count

    def forget_below(self, number: int) -> None:
        """Forget the keys below a number, which were forgotten before."""
        if number > self.head:
            self._drop(min(number, self.tail) - self.head)

    def _drop(self, count: int) -> None:
        before = self.head >> BLOCK_SHIFT
        self.head += count
        if self.head >> BLOCK_SHIFT != before:
            for index in range(before, self.head >> BLOCK_SHIFT):
                self._blocks.pop(index, None)
            while len(self._ledgers) > 1 and self._ledgers[1][0] <= self.head:
                del self._ledgers[0]
        if self.head == self.tail:
            # Numbers continue: the slots of the index are dead. A partly used block continues too.
            self._index = KeyIndex()
            self._fresh.clear()

    # ------------------------------------------------------------------------------------------------- blocks, the index

    def _as_columns(self) -> Block:
        block = Block()
        parts = np.frombuffer(b"".join(self._keys), _PARTS)
        about = np.array(self._about, np.uint64) | parts["high"].astype(np.uint64) << np.uint64(HIGH_SHIFT)
        times = np.array(self._times, np.int64).astype(np.uint32)
        for column, values in zip(block.columns(), (parts["low"], about, times), strict=False):
            column.frombytes(values.tobytes())
        block.entries = array("I", self._entries)
        return block

    def _close(self) -> None:
        """The open block is full: arrays, and into the index. Another one begins."""
        block = self._as_columns()
        start = self._start
        self._start = start + self._block_keys
        self._keys, self._about, self._times, self._entries, self._fresh = [], [], [], [], {}
        if self._start > self.head:
            self._blocks[start >> BLOCK_SHIFT] = block
            self._enter(block.low, start)

    def _reopen(self) -> None:
        """Open the last closed block again: everything after it is gone."""
        self._start -= self._block_keys
        self._keys, self._about, self._times, self._entries = [], [], [], []
        self._open(self._blocks.pop(self._start >> BLOCK_SHIFT))
        self.tail = self._start + len(self._keys)

    def _open(self, block: Block) -> None:
        both = zip(block.low, block.about, strict=True)
        self._keys += [low.to_bytes(8, "little") + (about >> HIGH_SHIFT).to_bytes(1, "little") for low, about in both]
        self._about += [about & _ABOUT for about in block.about]
        self._times += block.times
        self._entries += block.entries

    def take_block(self, first: int, block: Block, ledgers: Iterable[tuple[int, int]]) -> None:
        """Take keys that were stored, all at once.

        Args:
            first: number of the first one; the next one, of an empty table any.
            block: of one block, from that one on.
            ledgers: (first key number, ledger), as from `ledgers`.

        Raises:
            ValueError: it is not the next one.
        """
        if self.head == self.tail:
            self.begin(first)
        if len(self._keys) >= self._block_keys:
            self._close()
        if first == self.tail == self._start and not self._keys and len(block.low) == self._block_keys:
            self._blocks[first >> BLOCK_SHIFT] = block
            self._start = self.tail = first + self._block_keys
            self._enter(block.low, first)
            self._take_ledgers(ledgers)
            return
        if first != self.tail or len(block.low) > self._block_keys - len(self._keys):
            raise ValueError(f"key {first} follows {self.tail - 1}")
        self._open(block)
        self.tail = first + len(block.low)
        at = first - self._start
        self._fresh |= zip(self._keys[at:], range(first, self.tail), strict=True)
        self._take_ledgers(ledgers)

    def _take_ledgers(self, ledgers: Iterable[tuple[int, int]]) -> None:
        for pair in ledgers:
            if not self._ledgers or self._ledgers[-1][1] != pair[1]:
                self._ledgers.append(pair)

    def _enter(self, low: "array[int]", start: int) -> None:
        """Enter the keys of a block into the index; move some older ones if it is being rebuilt."""
        index = self._index
        if not index.has_room(len(low)):
            self._move_to(self.head >> BLOCK_SHIFT)  # a table of this size was filled with dead slots: rare
            index.begin(self._start - self.head + self._block_keys)
            self._moving = (start >> BLOCK_SHIFT) - 1
        index.enter(np.frombuffer(low, np.uint64), start)
        if index.moving:
            self._move_to(max(self._moving - MOVED_PER_BLOCK + 1, self.head >> BLOCK_SHIFT))

    def _move_to(self, last: int) -> None:
        """Move blocks to the new table, down to one."""
        index = self._index
        if not index.moving:
            return
        for number in range(self._moving, last - 1, -1):
            block = self._blocks.get(number)
            if block is not None:
                index.enter(np.frombuffer(block.low, np.uint64), number << BLOCK_SHIFT)
        self._moving = last - 1
        if self._moving < self.head >> BLOCK_SHIFT:
            index.moved()

    # ------------------------------------------------------------------------------------------------------- reporting

    def memory(self) -> tuple[int, int]:
        """Bytes of the keys and of their index; the open block as if it were closed."""
        keys = KEY_BYTES * (sum(len(block.low) for block in self._blocks.values()) + len(self._keys))
        return keys, self._index.memory()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert 0 <= self.head <= self.tail
        assert len(self) <= self.keys_max, "more keys than allowed"
        held = sum(len(block.low) for block in self._blocks.values()) + len(self._keys)
        assert len(self) <= held < len(self) + 2 * self._block_keys, f"{held} keys held for {len(self)}"
        assert self.tail == self._start + len(self._keys), "the open block does not end at the tail"
        assert len(self._entries) == len(self._keys) <= self._block_keys
        assert all(a < b for a, b in zip(self._ledgers, self._ledgers[1:], strict=False))
