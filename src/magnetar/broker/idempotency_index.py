"""The index of a ring of keys: an open-addressing table that grows without a pause.

    enter   a block of keys at once, with array operations: some 80 ns a key
    full    a second table begins; what is new goes there, and with every block four older ones of the ring are entered, newest
            first; until the last one is, look-ups ask both. Whatever left the ring meanwhile is not entered again.

A slot holds a key's number modulo 2^32 - 1, plus one; whether that number is in the ring, and its fingerprint the one that is
looked for, is for the ring to say: nothing is ever deleted here.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

SLOTS_MIN: Final = 64

FILL_MAX: Final = 0.6
"""Of a table: beyond it, runs of used slots get long."""

MOVED_PER_BLOCK: Final = 4
"""Blocks moved to a new table with every new one: some 2 ms, and a table is done before the next one is due."""

NUMBERS: Final = 2**32 - 1
SLOT_SHIFT: Final = 32
"""A table goes by the bits of a fingerprint from here on."""


class KeyIndex:
    """Low halves of fingerprints -> key numbers.

    Attributes:
        slots: of the table that new keys go to.
        old: of the one before, while it is asked, too.
    """

    def __init__(self) -> None:
        self._table: NDArray[np.uint32] = np.zeros(SLOTS_MIN, np.uint32)
        self.slots = self._table.data
        self.old: memoryview | None = None
        self._used = 0

    def candidates(self, low: int) -> Iterator[int]:
        """Slot values that may belong to a fingerprint."""
        for slots in (self.slots, self.old):
            if slots is None:
                continue
            mask = len(slots) - 1
            at = low >> SLOT_SHIFT & mask
            while value := slots[at]:
                yield value
                at = at + 1 & mask

    def has_room(self, keys: int) -> bool:
        """Whether so many more fit into the table."""
        return self._used + keys <= len(self.slots) * FILL_MAX

    def begin(self, keys: int) -> None:
        """Begin a new table, for so many keys and as many again; the present one becomes the old one."""
        size = SLOTS_MIN
        while size < 2.5 * keys:
            size *= 2
        self.old = self.slots
        self._table = np.zeros(size, np.uint32)
        self.slots, self._used = self._table.data, 0

    def moved(self) -> None:
        """Everything of the old table that is alive is in the new one."""
        self.old = None

    def enter(self, low: NDArray[np.uint64], first: int) -> None:
        """Enter keys; there is room for them.

        Args:
            low: the low halves of their fingerprints.
            first: number of the first.
        """
        table = self._table
        mask = len(table) - 1
        at = (low >> np.uint64(SLOT_SHIFT) & np.uint64(mask)).astype(np.intp)
        numbers = np.arange(first, first + len(low), dtype=np.uint64)
        values = (numbers % np.uint64(NUMBERS) + np.uint64(1)).astype(np.uint32)
        while len(values):
            free = table[at] == 0
            table[at[free]] = values[free]
            # Of several that want the same slot, one has it now.
            left = table[at] != values
            at, values = at[left] + 1 & mask, values[left]
        self._used += len(low)

    def memory(self) -> int:
        """Bytes of the tables."""
        return 4 * (len(self.slots) + (len(self.old) if self.old is not None else 0))
