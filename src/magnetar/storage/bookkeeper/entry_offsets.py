"""Finds the entry of a BookKeeper ledger that holds a byte of the file that the ledger stands for.

Entries have different sizes. Each one says how many bytes all entries up to it have, so some of them have to be read to find the
others. What was learned is kept.
"""

from array import array
from bisect import bisect_right
from typing import Final

KNOWN_MAX: Final = 65_536
"""Entries of one file whose beginnings are kept, 16 bytes each; of more, every second one is forgotten."""


class EntryOffsets:
    """The offsets at which entries of one file begin, as far as they are known. Offsets rise with entries; none is empty.

    Args:
        entries: of the ledger; -1: it is being written, so `note` has to know each entry before it is looked for.
        size: bytes of all its entries.
    """

    __slots__ = ("_entries", "_known", "_starts")

    def __init__(self, entries: int = 0, size: int = 0) -> None:
        # The end is known, too: as the beginning of an entry after the last one.
        self._known = array("q", [0] if not entries else [0, entries])
        self._starts = array("q", [0] if not entries else [0, size])
        self._entries = entries

    def note(self, entry: int, start: int) -> None:
        """An entry begins at an offset."""
        at = bisect_right(self._known, entry)
        if self._known[at - 1] == entry:
            return
        self._known.insert(at, entry)
        self._starts.insert(at, start)
        if len(self._known) > KNOWN_MAX:
            # The first and the last one stay: they bound every search.
            last = self._known[-1], self._starts[-1]
            self._known, self._starts = self._known[:-1:2], self._starts[:-1:2]
            self._known.append(last[0])
            self._starts.append(last[1])

    def before(self, offset: int) -> tuple[int, int]:
        """The last entry that is known to begin at or before an offset, and where it begins."""
        at = bisect_right(self._starts, offset) - 1
        return self._known[at], self._starts[at]

    def guess(self, offset: int) -> int:
        """The entry that holds an offset, or one to read next in order to find it.

        Returns:
            The entry of `before(offset)` if no unknown entry can hold the offset; else an entry between the known ones: by
            the sizes of their neighbours, but not so close to one of them that a search would take long.
        """
        at = bisect_right(self._starts, offset) - 1
        entry, start = self._known[at], self._starts[at]
        if at + 1 == len(self._known) or self._known[at + 1] == entry + 1:
            return entry
        following, end = self._known[at + 1], self._starts[at + 1]
        between = following - entry
        near = entry + (offset - start) * between // (end - start)
        # At least an eighth of the entries between are left out by each read.
        least = max(between // 8, 1)
        return min(max(near, entry + least), following - least)
