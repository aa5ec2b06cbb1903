"""One ledger of one topic as an index in memory: about 33 bytes per entry, without an object for each.

The index is derived from the log. It has the location and kind of each entry; the content of messages is only in the
log.

The *origin index map* (docs/design/links.md#origin-index-map) is kept as runs: consecutive entries of one origin whose
indexes follow each other extend a run; inside a run an index is the run's first plus the messages in between.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from magnetar.core.ids import OriginKey
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.segmentindex import Piece

SEGMENT_SHIFT = 40
"""A location is one number: segment number above, offset (up to 1 TiB) below."""

SEGMENT_MAX = (1 << 64 - SEGMENT_SHIFT) - 1
"""The highest number of a segment: at ten starts a day, two numbers each, it is reached in two thousand years."""

OFFSET_MASK = (1 << SEGMENT_SHIFT) - 1

_MARKER = int(EntryFlags.MARKER)


class Ledger:
    """The confirmed entries 0..n-1 of one ledger.

    Attributes:
        ledger: its id.
        created_ms: when it was opened.
        closed: whether no more entries are added.
        locations: location of each record, see `SEGMENT_SHIFT`.
        sizes: size of each record, bytes.
        flags: flags of each entry.
        messages: messages in the ledger up to and with each entry.
        publish_times: publish time of each entry, ms.
        markers: entry ids of markers, ascending.
        bytes: size of all records.
        newest_ms: broker time of the last entry.
        newest_publish: highest publish time, ms.
        missing: number of entries lost to damage; their record size is 0.
    """

    __slots__ = (
        "bytes",
        "closed",
        "created_ms",
        "disordered",
        "flags",
        "ledger",
        "locations",
        "markers",
        "messages",
        "missing",
        "newest_ms",
        "newest_publish",
        "origins",
        "publish_times",
        "run_entries",
        "run_firsts",
        "run_next",
        "run_origins",
        "sizes",
    )

    def __init__(self, ledger: int, created_ms: int) -> None:
        self.ledger = ledger
        self.created_ms = created_ms
        self.closed = False
        self.locations: array[int] = array("Q")
        self.sizes: array[int] = array("I")
        self.flags = bytearray()
        self.messages: array[int] = array("Q")
        self.publish_times: array[int] = array("q")
        self.markers: array[int] = array("I")
        self.bytes = 0
        self.newest_ms = created_ms
        self.newest_publish = -(1 << 63)
        self.missing = 0
        self.run_entries: array[int] = array("I")
        self.run_firsts: array[int] = array("q")
        self.run_origins: list[OriginKey | None] = []
        self.origins: dict[OriginKey, array[int]] = {}
        self.disordered = False
        self.run_next = -1

    @property
    def entries(self) -> int:
        """The number of entries."""
        return len(self.flags)

    def add(
        self, location: int, size: int, flags: int, count: int, publish_time: int, broker_time: int, *, marker: bool
    ) -> None:
        """One more entry."""
        if marker:
            self.markers.append(len(self.flags))
        self.locations.append(location)
        self.sizes.append(size)
        self.flags.append(flags)
        self.messages.append((self.messages[-1] if self.messages else 0) + count)
        self.publish_times.append(publish_time)
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
        self.locations.extend(list(accumulate(sizes[:-1], initial=location)))
        self.sizes.extend(sizes)
        self.flags += bytes([entry.flags for entry in entries])
        before = self.messages[-1] if self.messages else 0
        self.messages.extend(list(accumulate([entry.count for entry in entries], initial=before))[1:])
        times = [entry.publish_time for entry in entries]
        self.publish_times.extend(times)
        self.bytes += sum(sizes)
        self.newest_ms = max(self.newest_ms, entries[-1].broker_time)
        self.newest_publish = max(self.newest_publish, *times)

    def begin_run(self, entry: int, origin: OriginKey | None, first_index: int) -> None:
        """Count origin indexes from `first_index` beginning with the entry `entry`; `origin` None: no indexes."""
        self.run_entries.append(entry)
        self.run_origins.append(origin)
        self.run_firsts.append(first_index)
        if origin is not None:
            runs = self.origins.get(origin)
            if runs is None:
                runs = self.origins[origin] = array("I")
            elif self.run_firsts[runs[-1]] > first_index:
                # A link keeps its origin's order; restoring a wiped cluster from several peers need not.
                self.disordered = True
            runs.append(len(self.run_origins) - 1)

    def extend(self, piece: Piece, segment: int, incarnation: int) -> dict[int, int]:
        """Add a piece of this ledger from `segment`; entries before it that are not here are missing.

        If an entry is here already (its segment was being rewritten), the copy of the later segment counts.

        Args:
            piece: to be given in the order of their first entries.
            segment: number.
            incarnation: of the topic, for the entries published here.

        Returns:
            Bytes that no longer count, by segment.
        """
        superseded: dict[int, int] = {}
        base = segment << SEGMENT_SHIFT
        here = min(self.entries, piece.end)
        for entry in range(piece.first, here):
            old = self.locations[entry] >> SEGMENT_SHIFT
            new = base | piece.offsets[entry - piece.first]
            loser = min(old, segment)
            superseded[loser] = superseded.get(loser, 0) + self.sizes[entry]
            self.locations[entry] = max(self.locations[entry], new)
        if here >= piece.end and here > piece.first:
            return superseded
        for _ in range(self.entries, piece.first):
            self._miss()
        start = self.entries - piece.first
        self.locations.extend([base | offset for offset in piece.offsets[start:]])
        self.sizes.extend(piece.sizes[start:])
        before = self.messages[-1] if self.messages else 0
        self.messages.extend(list(accumulate(piece.counts[start:], initial=before))[1:])
        self.flags += piece.flags[start:]
        self.publish_times.extend(piece.publish_times[start:])
        self.markers.extend(
            [piece.first + at for at in range(start, len(piece)) if piece.flags[at] & _MARKER]
            if any(map(_MARKER.__and__, piece.flags))
            else []
        )
        self.bytes += sum(piece.sizes[start:])
        self.newest_ms = max(self.newest_ms, piece.newest_ms)
        newest = max(piece.publish_times, default=self.newest_publish)
        self.newest_publish = max(self.newest_publish, newest)
        begin = piece.first + start
        for number, run in enumerate(piece.runs):
            if number + 1 < len(piece.runs) and piece.runs[number + 1].entry <= begin:
                continue
            entry = max(run.entry, begin)
            origin = OriginKey(run.origin, run.incarnation if run.origin else incarnation)
            skipped = sum(piece.counts[run.entry - piece.first : entry - piece.first])
            self.begin_run(
                entry,
                origin if run.first_index >= 0 else None,
                run.first_index + (skipped if run.first_index >= 0 else 0),
            )
        self.run_next = -1
        return superseded

    def _miss(self) -> None:
        """Add one entry that was lost to damage. It keeps its entry id, so that a reader of it gets an error."""
        if not self.run_origins or self.run_origins[-1] is not None:
            self.begin_run(self.entries, None, -1)
        self.add(0, 0, 0, 1, self.publish_times[-1] if self.publish_times else 0, 0, marker=False)
        self.missing += 1

    def index_at(self, entry: int) -> tuple[OriginKey, int] | None:
        """Origin and index of the first message of an entry; None for markers and damaged ones."""
        run = bisect_right(self.run_entries, entry) - 1
        if run < 0 or self.flags[entry] & _MARKER:
            return None
        origin = self.run_origins[run]
        if origin is None:
            return None
        return origin, self.run_firsts[run] + self.messages_in(self.run_entries[run], entry)

    def entry_of(self, origin: OriginKey, index: int) -> int | None:
        """The entry that holds the message with this index of an origin, or None."""
        runs = self.origins.get(origin)
        if runs is None:
            return None
        run_entries, firsts = self.run_entries, self.run_firsts
        at = len(runs) if self.disordered else bisect_right(runs, index, key=firsts.__getitem__)
        for run in reversed(runs[max(0, at - 1) : at] if not self.disordered else runs):
            first = firsts[run]
            if first > index:
                continue
            start = run_entries[run]
            end = run_entries[run + 1] if run + 1 < len(run_entries) else self.entries
            before = self.messages[start - 1] if start else 0
            entry = bisect_right(self.messages, before + index - first, start, end)
            if entry < end:
                return entry
        return None

    def count(self, entry: int) -> int:
        """Messages in one entry."""
        return self.messages[entry] - (self.messages[entry - 1] if entry else 0)

    def messages_in(self, first: int, end: int) -> int:
        """Messages in entries first..end-1."""
        if end <= first:
            return 0
        return self.messages[end - 1] - (self.messages[first - 1] if first else 0)

    def markers_in(self, first: int, end: int) -> int:
        """Markers among entries first..end-1."""
        return max(0, bisect_left(self.markers, end) - bisect_left(self.markers, first))

    def bytes_in(self, first: int, end: int) -> int:
        """Bytes of the records of entries first..end-1."""
        if first <= 0 and end >= self.entries:
            return self.bytes
        return sum(self.sizes[first:end])

    def last_message(self) -> int:
        """The last entry that is not a marker, or -1."""
        at = self.entries - 1
        marker = len(self.markers) - 1
        while marker >= 0 and self.markers[marker] == at:
            at -= 1
            marker -= 1
        return at


def find(ids: Sequence[int], ledger: int) -> int:
    """The index of a ledger in ascending ids, or of the first one above it."""
    return bisect_left(ids, ledger)


def find_after(ids: Sequence[int], ledger: int) -> int:
    """The index of the first ledger above."""
    return bisect_right(ids, ledger)
