"""Rewriting a mostly unneeded segment: choosing the records that are copied to the end of the log, slice by slice.

The copies are identical. If an entry is in two segments, recovery takes the later one. The old segment may be deleted
when all copies are durable.
"""

from typing import Final

from magnetar.storage.entries import Location
from magnetar.storage.records import whole
from magnetar.storage.segments.index import SegmentIndex

LIVE_FRACTION_MAX: Final = 0.3
"""A closed segment is rewritten when less than this fraction of it is needed: at most 0.3 is written to free 0.7."""

REWRITE_BYTES_MIN: Final = 1024 * 1024
"""Smaller segments give back too little room to be worth a rewrite."""

SLICE_BYTES: Final = 256 * 1024
"""Copied between two cycles: a fraction of a millisecond, which publishers do not notice."""


class Rewrite:
    """One segment on its way to the end of the log.

    Args:
        index: of the segment.
        living: ledgers that live in it.

    Attributes:
        new_locations: where each copied record is now, by its offset in the segment.
    """

    def __init__(self, index: SegmentIndex, living: set[int]) -> None:
        self.number = index.number
        records = [
            (opening.offset, opening.size, opening.opened.ledger)
            for opening in index.openings
            if opening.opened.ledger in living
        ]
        for piece in index.pieces:
            if piece.ledger in living:
                records += [
                    (offset, size, piece.ledger) for offset, size in zip(piece.offsets, piece.sizes, strict=True)
                ]
        self._records = sorted(records)
        self._at = 0
        self.bytes_left = sum(size for _, size, _ in self._records)
        self.new_locations: dict[int, Location] = {}
        self.copies: dict[int, dict[int, int]] = {}

    @property
    def done(self) -> bool:
        """Whether everything is copied."""
        return self._at >= len(self._records)

    def slice(self) -> list[tuple[int, int]]:
        """(offset, size) of the records to be copied next, adjacent ones and a few with gaps."""
        taken: list[tuple[int, int]] = []
        size = 0
        for offset, length, _ in self._records[self._at :]:
            size += length
            if taken and size > SLICE_BYTES:
                break
            taken.append((offset, length))
        return taken

    def copied(self, locations: list[Location]) -> None:
        """Note the locations to which the last slice was written."""
        records = self._records[self._at : self._at + len(locations)]
        for (offset, size, ledger), location in zip(records, locations, strict=True):
            self.new_locations[offset] = location
            held = self.copies.setdefault(location.segment, {})
            held[ledger] = held.get(ledger, 0) + size
            self.bytes_left -= size
        self._at += len(locations)


def is_whole(record: bytes) -> bool:
    """Whether a record that was read for copying is undamaged."""
    return whole(memoryview(record), 0, check=True) == len(record)
