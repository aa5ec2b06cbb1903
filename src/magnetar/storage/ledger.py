"""One ledger of one topic as an index in memory.

The index is derived from the log. It has the location and kind of each entry (`storage.ledger_columns`); the content of messages
is only in the log.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from magnetar.core.ids import OriginKey
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.ledger_columns import MESSAGES_AT, Columns, packed, packed_markers
from magnetar.storage.segments.index import Piece

SEGMENT_SHIFT = 40
"""A location is one number: segment number above, offset (up to 1 TiB) below."""

SEGMENT_MAX = (1 << 64 - SEGMENT_SHIFT) - 1
"""The highest number of a segment: at ten starts a day, two numbers each, it is reached in two thousand years."""

OFFSET_MASK = (1 << SEGMENT_SHIFT) - 1

NEVER: Final = -(1 << 63)
"""Lower than every publish time."""

_MARKER = int(EntryFlags.MARKER)


class Ledger:
    """The confirmed entries 0..n-1 of one ledger.

    A ledger is *packed* until its entries are read or it gets more. One with few entries, as idle topics have, takes a third of
    the memory then.

    Attributes:
        ledger: its id.
        created_ms: when it was opened.
        closed: whether no more entries are added.
        entries: the number of entries.
        bytes: size of all records.
        newest_ms: broker time of the last entry.
        newest_publish: highest publish time, ms.
        missing: number of entries lost to damage; their record size is 0.
        run_origin, run_next: of the last run, its origin and the index that extends it.
    """

    __slots__ = (
        "_columns",
        "_origins",
        "_packed",
        "bytes",
        "closed",
        "created_ms",
        "entries",
        "ledger",
        "missing",
        "newest_ms",
        "newest_publish",
        "run_next",
        "run_origin",
    )

    def __init__(self, ledger: int, created_ms: int) -> None:
        self.ledger = ledger
        self.created_ms = created_ms
        self.closed = False
        self.entries = 0
        self.bytes = 0
        self.newest_ms = created_ms
        self.newest_publish = NEVER
        self.missing = 0
        self.run_origin: OriginKey | None = None
        self.run_next = -1
        self._columns: Columns | None = None
        self._packed = b""
        self._origins: tuple[OriginKey | None, ...] = ()

    # --------------------------------------------------------------------------------------------------------- columns

    @property
    def columns(self) -> Columns:
        """Its entries; they are unpacked."""
        columns = self._columns
        if columns is None:
            columns = self._columns = Columns.unpacked(self._packed, self.entries, self._origins)
            self._packed = b""
            self._origins = ()
        return columns

    def pack(self) -> None:
        """Take less memory until its entries are read."""
        columns = self._columns
        if columns is not None:
            self._packed = columns.pack()
            self._origins = tuple(columns.run_origins)
            self._columns = None

    @property
    def locations(self) -> "array[int]":
        """Location of each record, see `SEGMENT_SHIFT`."""
        columns = self._columns
        return (self.columns if columns is None else columns).locations

    @property
    def sizes(self) -> "array[int]":
        """Size of each record, bytes."""
        columns = self._columns
        return (self.columns if columns is None else columns).sizes

    @property
    def flags(self) -> bytearray:
        """Flags of each entry."""
        columns = self._columns
        return (self.columns if columns is None else columns).flags

    @property
    def messages(self) -> "array[int]":
        """Messages in the ledger up to and with each entry."""
        columns = self._columns
        return (self.columns if columns is None else columns).messages

    @property
    def publish_times(self) -> "array[int]":
        """Publish time of each entry, ms."""
        columns = self._columns
        return (self.columns if columns is None else columns).publish_times

    @property
    def markers(self) -> Sequence[int]:
        """Entry ids of markers, ascending."""
        if self._columns is None and not packed_markers(self._packed, self.entries, len(self._origins)):
            return ()
        return self.columns.markers

    # ---------------------------------------------------------------------------------------------------------- adding

    def add(
        self, location: int, size: int, flags: int, count: int, publish_time: int, broker_time: int, *, marker: bool
    ) -> None:
        """One more entry."""
        columns = self._columns
        if columns is None:
            columns = self.columns
        if marker:
            columns.markers.append(self.entries)
        messages = columns.messages
        columns.locations.append(location)
        columns.sizes.append(size)
        columns.flags.append(flags)
        messages.append((messages[-1] if messages else 0) + count)
        columns.publish_times.append(publish_time)
        self.entries += 1
        self.bytes += size
        if broker_time > self.newest_ms:
            self.newest_ms = broker_time
        if publish_time > self.newest_publish:
            self.newest_publish = publish_time

    def add_all(self, location: int, sizes: Sequence[int], entries: Sequence[StoredEntry]) -> None:
        """Several entries whose records follow each other, none of them a marker; the same as `add` for each, but faster.

        Args:
            location: of the first record.
            sizes: of the records.
            entries: these; not empty.
        """
        columns = self.columns
        columns.locations.extend(list(accumulate(sizes[:-1], initial=location)))
        columns.sizes.extend(sizes)
        columns.flags += bytes([entry.flags for entry in entries])
        before = columns.messages[-1] if columns.messages else 0
        columns.messages.extend(list(accumulate([entry.count for entry in entries], initial=before))[1:])
        times = [entry.publish_time for entry in entries]
        columns.publish_times.extend(times)
        self.entries += len(entries)
        self.bytes += sum(sizes)
        self.newest_ms = max(self.newest_ms, entries[-1].broker_time)
        self.newest_publish = max(self.newest_publish, *times)

    def begin_run(self, entry: int, origin: OriginKey | None, first_index: int) -> None:
        """Count origin indexes from `first_index` beginning with the entry `entry`; `origin` None: no indexes."""
        self.columns.begin_run(entry, origin, first_index)
        self.run_origin = origin

    def extend(self, piece: Piece, segment: int, here: OriginKey) -> dict[int, int]:
        """Add a piece of this ledger from `segment`; entries before it that are not here are missing.

        If an entry is here already (its segment was being rewritten), the copy of the later segment counts.

        Args:
            piece: to be given in the order of their first entries.
            segment: number.
            here: the origin of the entries that were published here.

        Returns:
            Bytes that no longer count, by segment.
        """
        superseded: dict[int, int] = {}
        base = segment << SEGMENT_SHIFT
        if not self.entries and not piece.first:
            self._begin(piece, base, here)
            return superseded
        columns = self.columns
        known = min(self.entries, piece.end)
        for entry in range(piece.first, known):
            old = columns.locations[entry] >> SEGMENT_SHIFT
            new = base | piece.offsets[entry - piece.first]
            loser = min(old, segment)
            superseded[loser] = superseded.get(loser, 0) + columns.sizes[entry]
            columns.locations[entry] = max(columns.locations[entry], new)
        if known >= piece.end and known > piece.first:
            return superseded
        for _ in range(self.entries, piece.first):
            self._miss()
        start = self.entries - piece.first
        columns.locations.extend([base | offset for offset in piece.offsets[start:]])
        columns.sizes.extend(piece.sizes[start:])
        before = columns.messages[-1] if columns.messages else 0
        columns.messages.extend(list(accumulate(piece.counts[start:], initial=before))[1:])
        columns.flags += piece.flags[start:]
        columns.publish_times.extend(piece.publish_times[start:])
        columns.markers.extend(
            [piece.first + at for at in range(start, len(piece)) if piece.flags[at] & _MARKER]
            if any(map(_MARKER.__and__, piece.flags))
            else []
        )
        self.entries = piece.end
        self.bytes += sum(piece.sizes[start:])
        self.newest_ms = max(self.newest_ms, piece.newest_ms)
        newest = max(piece.publish_times, default=self.newest_publish)
        self.newest_publish = max(self.newest_publish, newest)
        begin = piece.first + start
        for number, run in enumerate(piece.runs):
            if number + 1 < len(piece.runs) and piece.runs[number + 1].entry <= begin:
                continue
            entry = max(run.entry, begin)
            origin = OriginKey(run.origin, run.incarnation) if run.origin else here
            skipped = sum(piece.counts[run.entry - piece.first : entry - piece.first])
            self.begin_run(
                entry,
                origin if run.first_index >= 0 else None,
                run.first_index + (skipped if run.first_index >= 0 else 0),
            )
        self.run_next = -1
        return superseded

    def _begin(self, piece: Piece, base: int, here: OriginKey) -> None:
        """Add the first piece, packed: a broker starts with a hundred thousand ledgers that few will read."""
        flags, runs = piece.flags, piece.runs
        while len(runs) > 1 and not runs[1].entry:
            runs = runs[1:]
        self._origins = tuple(
            [
                None if run.first_index < 0 else OriginKey(run.origin, run.incarnation) if run.origin else here
                for run in runs
            ]
        )
        marked = any(map(_MARKER.__and__, flags))
        self._packed = packed(
            array("Q", [base | offset for offset in piece.offsets]),
            array("Q", accumulate(piece.counts)),
            piece.publish_times,
            array("q", [run.first_index for run in runs]),
            piece.sizes,
            array("I", [run.entry for run in runs]),
            array("I", [at for at in range(len(flags)) if flags[at] & _MARKER] if marked else ()),
            flags,
        )
        self._columns = None
        self.entries = piece.end
        self.bytes = sum(piece.sizes)
        self.newest_ms = max(self.newest_ms, piece.newest_ms)
        self.newest_publish = max(piece.publish_times, default=NEVER)
        self.run_origin = self._origins[-1] if runs else None

    def _miss(self) -> None:
        """Add one entry that was lost to damage. It keeps its entry id, so that a reader of it gets an error."""
        if not self.columns.run_origins or self.run_origin is not None:
            self.begin_run(self.entries, None, -1)
        self.add(0, 0, 0, 1, self.publish_times[-1] if self.entries else 0, 0, marker=False)
        self.missing += 1

    def index_at(self, entry: int) -> tuple[OriginKey, int] | None:
        """Origin and index of the first message of an entry; None for markers and damaged ones."""
        columns = self.columns
        run = bisect_right(columns.run_entries, entry) - 1
        if run < 0 or columns.flags[entry] & _MARKER:
            return None
        origin = columns.run_origins[run]
        if origin is None:
            return None
        return origin, columns.run_firsts[run] + self.messages_in(columns.run_entries[run], entry)

    def entry_of(self, origin: OriginKey, index: int) -> int | None:
        """The entry that holds the message with this index of an origin, or None."""
        columns = self.columns
        runs = columns.origins.get(origin)
        if runs is None:
            return None
        run_entries, firsts, messages = columns.run_entries, columns.run_firsts, columns.messages
        at = len(runs) if columns.disordered else bisect_right(runs, index, key=firsts.__getitem__)
        for run in reversed(runs[max(0, at - 1) : at] if not columns.disordered else runs):
            first = firsts[run]
            if first > index:
                continue
            start = run_entries[run]
            end = run_entries[run + 1] if run + 1 < len(run_entries) else self.entries
            before = messages[start - 1] if start else 0
            entry = bisect_right(messages, before + index - first, start, end)
            if entry < end:
                return entry
        return None

    def count(self, entry: int) -> int:
        """Messages in one entry."""
        columns = self._columns
        messages = (self.columns if columns is None else columns).messages
        return messages[entry] - (messages[entry - 1] if entry else 0)

    def messages_in(self, first: int, end: int) -> int:
        """Messages in entries first..end-1."""
        if end <= first:
            return 0
        columns = self._columns
        if columns is None:
            at = MESSAGES_AT * self.entries
            last = int.from_bytes(self._packed[at + 8 * end - 8 : at + 8 * end], sys.byteorder)
            return last - (
                int.from_bytes(self._packed[at + 8 * first - 8 : at + 8 * first], sys.byteorder) if first else 0
            )
        return columns.messages[end - 1] - (columns.messages[first - 1] if first else 0)

    def markers_in(self, first: int, end: int) -> int:
        """Markers among entries first..end-1."""
        markers = self.markers
        return max(0, bisect_left(markers, end) - bisect_left(markers, first))

    def bytes_in(self, first: int, end: int) -> int:
        """Bytes of the records of entries first..end-1."""
        if first <= 0 and end >= self.entries:
            return self.bytes
        return sum(self.sizes[first:end])

    def last_message(self) -> int:
        """The last entry that is not a marker, or -1."""
        at = self.entries - 1
        markers = self.markers
        marker = len(markers) - 1
        while marker >= 0 and markers[marker] == at:
            at -= 1
            marker -= 1
        return at


def find(ids: Sequence[int], ledger: int) -> int:
    """The index of a ledger in ascending ids, or of the first one above it."""
    return bisect_left(ids, ledger)


def find_after(ids: Sequence[int], ledger: int) -> int:
    """The index of the first ledger above."""
    return bisect_right(ids, ledger)
