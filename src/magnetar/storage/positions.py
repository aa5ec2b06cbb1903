"""A set of positions, small and ordered: one compressed bitmap of entry ids per ledger.

Both the acknowledged entries of a cursor and the entries that a dispatcher has to send again are such sets. Entry ids
of a ledger are dense, so a run of any length costs a few bytes.
"""

from collections.abc import Iterator
from typing import Final

from pyroaring import BitMap

from magnetar.core.ids import Position

ENTRY_MAX: Final = (1 << 32) - 1
"""The highest entry id of a set."""


def runs_of(entries: BitMap) -> Iterator[tuple[int, int]]:
    """The maximal runs of consecutive numbers, as (first, last), ascending."""
    return zip(entries - entries.shift(1), entries - entries.shift(-1), strict=True)


def count_runs(entries: BitMap) -> int:
    """The number of maximal runs of consecutive numbers."""
    return len(entries) - entries.intersection_cardinality(entries.shift(1))


class PositionSet:
    """A mutable, ordered set of positions with entry ids in 0..2^32-1."""

    __slots__ = ("ledgers", "size")

    def __init__(self) -> None:
        self.ledgers: dict[int, BitMap] = {}
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0

    def __contains__(self, position: tuple[int, int]) -> bool:
        entries = self.ledgers.get(position[0])
        # Ids come from clients, which may send any number: a bitmap raises for one that it cannot hold.
        return entries is not None and 0 <= position[1] <= ENTRY_MAX and position[1] in entries

    def __iter__(self) -> Iterator[Position]:
        for ledger in sorted(self.ledgers):
            for entry in self.ledgers[ledger]:
                yield Position(ledger, entry)

    def add(self, ledger: int, entry: int) -> bool:
        """Add one; whether it was new."""
        entries = self.ledgers.get(ledger)
        if entries is None:
            entries = self.ledgers[ledger] = BitMap()
        elif entry in entries:
            return False
        entries.add(entry)
        self.size += 1
        return True

    def discard(self, ledger: int, entry: int) -> bool:
        """Remove one; whether it was there."""
        if (ledger, entry) not in self:
            return False
        entries = self.ledgers[ledger]
        entries.remove(entry)
        self.size -= 1
        if not entries:
            del self.ledgers[ledger]
        return True

    def first(self) -> Position | None:
        """The lowest position, or None when empty."""
        if not self.ledgers:
            return None
        ledger = min(self.ledgers)
        return Position(ledger, self.ledgers[ledger].min())

    def take_run_after(self, ledger: int, entry: int) -> int:
        """Remove the run that begins directly after (ledger, entry), and return its last entry id, or `entry` if there
        is none.
        """
        entries = self.ledgers.get(ledger)
        if entries is None or entry + 1 not in entries:
            return entry
        last = entry + 1
        while last + 1 in entries:
            last += 1
        entries.remove_range(entry + 1, last + 1)
        self.size -= last - entry
        if not entries:
            del self.ledgers[ledger]
        return last

    def take_up_to(self, position: Position) -> dict[int, BitMap]:
        """Remove everything at or below `position`, and return the removed entries by ledger."""
        taken: dict[int, BitMap] = {}
        for ledger in [ledger for ledger in self.ledgers if ledger <= position.ledger]:
            entries = self.ledgers[ledger]
            if ledger < position.ledger or entries.max() <= position.entry:
                taken[ledger] = entries
                del self.ledgers[ledger]
            elif position.entry >= entries.min():
                low = entries & BitMap(range(position.entry + 1))
                taken[ledger] = low
                entries -= low
                self.ledgers[ledger] = entries
        self.size -= sum(map(len, taken.values()))
        return taken

    def runs(self) -> Iterator[tuple[Position, Position]]:
        """The maximal runs within ledgers, as (first, last), ascending."""
        for ledger in sorted(self.ledgers):
            for first, last in runs_of(self.ledgers[ledger]):
                yield Position(ledger, first), Position(ledger, last)

    def count_runs(self) -> int:
        """The number of maximal runs within ledgers."""
        return sum(map(count_runs, self.ledgers.values()))

    def clear(self) -> None:
        """Remove all."""
        self.ledgers.clear()
        self.size = 0

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert all(self.ledgers.values()), "an empty bitmap was left behind"
        assert self.size == sum(map(len, self.ledgers.values())), "the size is not the number of members"
