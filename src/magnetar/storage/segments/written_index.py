"""The index of the open segment, made while it is written, so that the segment need not be read back when it is closed.

It is for files that are read from other machines (`LogFile.behind`): bookies give whole entries of up to a megabyte, whatever is
wanted of them. On a disk the system still has what was written, and a scan takes the same time when the log has nothing to do.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from magnetar.storage.entries import Append, EntryFlags, StoredEntry
from magnetar.storage.records import EntryHead, LedgerOpened, read_head
from magnetar.storage.segments.index import LedgerOpening, Piece, SegmentIndex

ENTRIES_MAX: Final = 500_000
"""Entries of a segment with an index of this kind: 15 MB. A segment of 256 MiB has fewer if they have 540 bytes or more."""

PIECES_MAX: Final = 10_000
"""Pieces and openings of ledgers in it: each takes about a kilobyte, so 10 MB."""

TOGETHER_MIN: Final = 4
"""Entries of one append from which on their columns are made together."""

_MARKER: Final = int(EntryFlags.MARKER)


class WrittenIndex:
    """An index that a scan of the segment would make, noted record by record.

    Args:
        number: of the segment.
        ledger_high: highest ledger id of the log when the segment was started.

    Attributes:
        overfull: the segment has more than is kept in memory; the index is of no use.
    """

    def __init__(self, number: int, ledger_high: int) -> None:
        self.overfull = False
        self._index = SegmentIndex(number, ledger_high=ledger_high)
        self._entries = 0

    def append(self, append: Append, offset: int) -> None:
        """Note the records of an append, of which the first is at an offset."""
        sizes = append.sizes
        if append.preamble:
            opened = read_head(memoryview(append.records[0]), 0)
            assert isinstance(opened, LedgerOpened)
            self._index.openings.append(LedgerOpening(opened, offset, sizes[0]))
            offset += sizes[0]
            sizes = sizes[1:]
        entries = append.entries
        first = entries[0]
        piece = self._index.piece(first.ledger, first.entry)
        # A list: a generator would cost more.
        if len(entries) >= TOGETHER_MIN and not any([e.origin or e.flags & _MARKER for e in entries]):  # noqa: C419
            _add_together(piece, offset, sizes, entries)
        else:
            for entry, size in zip(entries, sizes, strict=True):
                piece.add(offset, size, entry)
                offset += size
        self._count(len(entries))

    def copy(self, record: bytes, offset: int) -> None:
        """Note a record that was copied from another segment."""
        head = read_head(memoryview(record), 0)
        if isinstance(head, EntryHead):
            self._index.piece(head.ledger, head.entry).add(offset, len(record), head)
        elif isinstance(head, LedgerOpened):
            self._index.openings.append(LedgerOpening(head, offset, len(record)))
        self._count(1)

    def ended(self, end: int) -> SegmentIndex:
        """The index of the segment, which ends at an offset."""
        self._index.end = end
        return self._index

    def _count(self, entries: int) -> None:
        self._entries += entries
        index = self._index
        if self._entries > ENTRIES_MAX or len(index.pieces) + len(index.openings) > PIECES_MAX:
            self.overfull = True


def _add_together(piece: Piece, offset: int, sizes: Sequence[int], entries: Sequence[StoredEntry]) -> None:
    """Add entries of one append that were published here, none of them a marker."""
    first = entries[0]
    counts = [entry.count for entry in entries]
    # Origin indexes of one append follow each other. So the first entry is added as if it had all the messages, and the others
    # change nothing of the runs.
    piece.add_local(
        offset, sizes[0], first.flags, sum(counts), first.publish_time, first.broker_time, first.first_index
    )
    piece.counts[-1] = counts[0]
    piece.offsets.extend(accumulate(sizes[1:-1], initial=offset + sizes[0]))
    piece.sizes.extend(sizes[1:])
    piece.flags += bytes([entry.flags for entry in entries[1:]])
    piece.counts.extend(counts[1:])
    piece.publish_times.extend([entry.publish_time for entry in entries[1:]])
