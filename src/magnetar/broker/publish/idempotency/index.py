"""The index of a ring of keys: open-addressing tables with a filter in front, which grow without a pause.

    filter  16 bits for each slot, one of them set by each key: nearly every new key is found to be new by one look
    enter   a block of keys at once, with array operations: some 100 ns per key
    full    a second table begins; new keys are entered there, and with every block four older ones of the ring, newest
            first. Until the last one is entered, lookups use both tables. Keys that left the ring are not entered again.

A slot holds a key's number modulo 2^32 - 1, plus one; the ring decides whether that number is still in it, and whether
its fingerprint matches: nothing is ever deleted here.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

SLOTS_MIN: Final = 64

FILL_MAX: Final = 0.6
"""The highest load of a table: above it, runs of used slots get long."""

SMALL_KEYS: Final = 1 << 18
"""Below this number of keys memory does not matter (60 bytes per key, 15 MB): a table is made four times as large, so
that keys are moved less often.
"""

MOVED_PER_BLOCK: Final = 4
"""Blocks moved to a new table with every new one: some 2 ms, and a table is done before the next one is due."""

NUMBERS: Final = 2**32 - 1
_SLOT_SHIFT: Final = 32
"""Slots go by the bits of a fingerprint from here on, the filter by those below."""

Words = NDArray[np.uint64]


class _Table:
    """One table and its filter."""

    __slots__ = ("bits", "filter", "slots", "used")

    def __init__(self, size: int) -> None:
        self.slots: NDArray[np.uint32] = np.zeros(size, np.uint32)
        self.filter: NDArray[np.uint8] = np.zeros(2 * size, np.uint8)
        self.bits = self.filter.data
        self.used = 0

    def may_have(self, low: int) -> bool:
        """Whether a key may be here."""
        bits = self.bits
        return bits[(low >> 3) & len(bits) - 1] >> (low & 7) & 1 > 0

    def may_have_all(self, low: Words) -> NDArray[np.bool_]:
        """The same for many."""
        bits = self.filter[low >> np.uint64(3) & np.uint64(len(self.filter) - 1)]
        found: NDArray[np.bool_] = (bits >> (low & np.uint64(7)).astype(np.uint8) & np.uint8(1)).astype(np.bool_)
        return found

    def enter(self, low: Words, first: int) -> None:
        """See `KeyIndex.enter`."""
        table, mask = self.slots, len(self.slots) - 1
        at = (low >> np.uint64(_SLOT_SHIFT) & np.uint64(mask)).astype(np.intp)
        numbers = np.arange(first, first + len(low), dtype=np.uint64)
        values = (numbers % np.uint64(NUMBERS) + np.uint64(1)).astype(np.uint32)
        while len(values):
            free = table[at] == 0
            table[at[free]] = values[free]
            # If several keys want the same slot, one has it now.
            left = table[at] != values
            at, values = at[left] + 1 & mask, values[left]
        filter_bytes = (low >> np.uint64(3) & np.uint64(len(self.filter) - 1)).astype(np.intp)
        np.bitwise_or.at(self.filter, filter_bytes, np.uint8(1) << (low & np.uint64(7)).astype(np.uint8))
        self.used += len(low)


class KeyIndex:
    """Low halves of fingerprints -> key numbers.

    Attributes:
        moving: an older table is asked, too.
    """

    def __init__(self) -> None:
        self._table = _Table(SLOTS_MIN)
        self._old: _Table | None = None

    @property
    def moving(self) -> bool:
        """Whether an older table is asked, too."""
        return self._old is not None

    def candidates(self, low: int) -> Iterator[int]:
        """Slot values that may belong to a fingerprint."""
        for table in (self._table, self._old):
            if table is None or not table.may_have(low):
                continue
            slots = table.slots.data
            mask = len(slots) - 1
            at = low >> _SLOT_SHIFT & mask
            while value := slots[at]:
                yield value
                at = at + 1 & mask

    def may_have(self, low: int) -> bool:
        """Whether a fingerprint may be here."""
        return self._table.may_have(low) or (self._old is not None and self._old.may_have(low))

    def hits(self, low: Words) -> list[int]:
        """The indexes of those of many fingerprints that may be here."""
        found = self._table.may_have_all(low)
        if self._old is not None:
            found |= self._old.may_have_all(low)
        hits: list[int] = found.nonzero()[0].tolist()
        return hits

    def has_room(self, keys: int) -> bool:
        """Whether this many more keys fit into the table."""
        return self._table.used + keys <= len(self._table.slots) * FILL_MAX

    def begin(self, keys: int) -> None:
        """Begin a new table with room for twice this many keys; the present one becomes the old one."""
        size = SLOTS_MIN
        while size < 2.5 * keys or (keys < SMALL_KEYS and size < 5 * keys):
            size *= 2
        self._old, self._table = self._table, _Table(size)

    def moved(self) -> None:
        """Everything of the old table that is alive is in the new one."""
        self._old = None

    def enter(self, low: Words, first: int) -> None:
        """Enter keys; there is room for them.

        Args:
            low: the low halves of their fingerprints.
            first: number of the first.
        """
        self._table.enter(low, first)

    def memory(self) -> int:
        """Bytes of the tables."""
        return sum(6 * len(table.slots) for table in (self._table, self._old) if table is not None)
