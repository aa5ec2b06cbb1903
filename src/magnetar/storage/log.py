"""The broker's log as a sequence of segments: writing, syncing, and handling failures of both.

No thread and no clock: `runtime.log.thread` calls it from the thread that owns the files. Four offsets of the open
segment matter:

    checked <= synced <= offset      written and recorded as durable / durable / written
    reported                         reported as stored

With `fsync = "always"` nothing is reported as stored before it is synced. Otherwise `reported` may be ahead of
`synced`; after a failure the seal is then put at `reported`, not at `synced`: only the disk may lose entries that were
reported as stored, the broker does not discard them.

A log may have two *lanes*, each with an open segment of its own: one for large appends and one for all others, so that
a publish of 100 bytes does not wait until a megabyte is on the disk. They share the numbering of segments. All
unconfirmed appends of a topic are in one lane (`TopicLog.stage`): so a crash leaves a prefix of them, as in a log with
one lane.
"""

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, cast

from magnetar.storage.entries import Append, Location
from magnetar.storage.files import Files, LogFile
from magnetar.storage.ledger import SEGMENT_MAX
from magnetar.storage.ledgerfile import LedgerFile, Opening
from magnetar.storage.records import (
    LARGE_MAGIC,
    SEGMENT_MAGIC,
    LedgerOpened,
    pack_check,
    pack_seal,
    pack_start,
    read_head,
)
from magnetar.storage.recovery import Recovered, index_name, segment_name
from magnetar.storage.segments.index import SegmentIndex, encode_index
from magnetar.storage.segments.written_index import WrittenIndex

JOIN_BYTES: Final = 8 * 1024
"""Buffers smaller than this on average are joined before writing: a copy is cheaper than a long vector."""

HEAL_FRACTION: Final = 4
"""The log is taken up again when `disk_free_bytes_min` and a quarter more is free, so that it does not flap."""

RESERVE_PART: Final = 2
"""Copies may use one part in this many of the space that is left on a full disk; the rest is for seals, cursors and
metadata.
"""

ROOM_PART: Final = 4
"""The free space is checked again before a batch that is larger than this part of the space at the last check."""

PIECE_BYTES: Final = 256 * 1024
"""The lane of large appends writes and syncs this many bytes at a time while the other lane has work too: the disk can
do the other lane's syncs in between. Alone it writes everything at once, which is up to 1.7 times as fast.
"""


class SegmentNumbers:
    """Numbers for segments, each given once. Any thread may take one: that is one step of the interpreter."""

    def __init__(self) -> None:
        self._next = count(1)
        self._taken: set[int] = set()

    def raise_to(self, number: int, taken: Iterable[int] = ()) -> None:
        """Mark the numbers up to this one as taken, and some above. Called while no other thread takes any."""
        self._next = count(max(next(self._next), number + 1))
        self._taken.update(taken)

    def take(self) -> int:
        """The next one.

        Raises:
            OSError: there is none.
        """
        number = next(self._next)
        while number in self._taken:
            number = next(self._next)
        if number > SEGMENT_MAX:
            raise OSError(errno.EOVERFLOW, "no number is left for a segment")
        return number


class _Behind(NamedTuple):
    """A batch that was written and is not known to be durable.

    Attributes:
        end: offset after it.
        unreported: ledgers, and bytes of each.
        marks, opened: what the file of ledgers records when it is durable.
    """

    end: int
    unreported: list[tuple[int, int]]
    marks: dict[int, tuple[int, int]]
    opened: list[bytes]


class ClosedSegment(NamedTuple):
    """A segment that takes no more records and has no sidecar.

    Attributes:
        number: of the segment.
        end: its bytes.
        written: its index, made while it was written; None: it has to be scanned.
    """

    number: int
    end: int
    written: WrittenIndex | None


class SegmentLog:
    """The segments of one broker, or of one lane of it.

    Args:
        files: the file system.
        folder: folder of the segments.
        segment_bytes: a segment is closed at this size.
        disk_free_bytes_min: nothing is appended below this much free space, so that seals, cursors and metadata fit.
        discard: deletes a file soon, in the order of calls; by default at once.
        salt: gives 8 random bytes for each segment, see `storage.records`.
        numbers: the numbering of segments, shared by the lanes of a log.
        large: whether this is the lane of large appends.
        shares: whether the other lane has work too, so that it has to leave the disk free in between.
        ledgers: records what is stored and what was dropped.
        woken: see `LogFile.behind`.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        *,
        segment_bytes: int,
        disk_free_bytes_min: int,
        discard: Callable[[Path], None] | None = None,
        salt: Callable[[], bytes],
        numbers: SegmentNumbers | None = None,
        large: bool = False,
        shares: Callable[[], bool] = lambda: False,
        ledgers: LedgerFile | None = None,
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        self._woken = woken
        self._durable: Callable[[], int] | None = None
        self._behind: deque[_Behind] = deque()
        self._files = files
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._free_min = disk_free_bytes_min
        self._delete_soon = discard or files.unlink
        self._heal_min = disk_free_bytes_min + disk_free_bytes_min // HEAL_FRACTION
        self._room = 0
        self._salt_of = salt
        self._salt = b""
        self._file: LogFile | None = None
        self.segment = 0
        self._numbers = numbers or SegmentNumbers()
        self._large = large
        self._shares = shares
        self.offset = 0
        self.synced = 0
        self.checked = 0
        self.reported = 0
        self.failures = 0
        self.ledger_high = -1
        self._seals: dict[int, int] = {}
        self._keepers: set[int] = set()
        self._pinned: set[int] = set()
        self._unreported: list[tuple[int, int]] = []
        self._ledgers = ledgers
        self._written: dict[int, tuple[int, int]] = {}
        self._opened: list[bytes] = []
        self._marks: dict[int, tuple[int, int]] = {}
        self._openings: list[bytes] = []
        self._live: dict[int, dict[int, int]] = {}
        self.sizes: dict[int, int] = {}
        self._index: WrittenIndex | None = None
        self.closed: list[ClosedSegment] = []
        """Segments that were closed and have no sidecar yet."""

    # ----------------------------------------------------------------------------------------------------------- start

    def begin(self, recovered: Recovered) -> None:
        """Continue after the recovered entries, in a new segment.

        Raises:
            OSError: it cannot be made.
        """
        self._numbers.raise_to(recovered.last_segment, recovered.taken)
        self.ledger_high = recovered.last_ledger
        self._live = recovered.segment_ledgers
        self.sizes = dict(recovered.segment_sizes)
        while recovered.unindexed:
            # Durably: in a log lane that is not used for some starts of the broker the same segment is the last one again
            # and again. Later damage in it must not be mistaken for a torn tail of a crash.
            self.write_index(recovered.unindexed[-1], durable=True)
            recovered.unindexed.pop()  # with 100,000 topics it takes 90 MB, which the topics need next
        self._next_segment()

    def close(self) -> None:
        """Make everything durable, also the knowledge that it is.

        Raises:
            OSError: the last sync failed.
        """
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self.offset > self.synced:
                file.sync()
            if self.offset > self.checked:
                # So that damage at the end is not taken for a torn tail at the next start.
                file.writev([pack_check(self._salt, self.offset)])
                file.sync()
            self.synced = self.offset
            self._now_durable()
            self.mark()
        finally:
            file.close()

    # --------------------------------------------------------------------------------------------------------- writing

    def write(
        self, batch: Sequence[Append], *, through: bool = False, behind: bool = False
    ) -> list[tuple[Append, Location]]:
        """Write appends, in order; each lies in one segment.

        Args:
            batch: the appends.
            through: make them durable too; everything before is (`synced` is `offset`).
            behind: they will be durable without a sync: `durable` says when, and `settle` is due then.

        Raises:
            OSError: none of them may be counted on; `fail` is due.
        """
        if not batch:
            return []
        self._take_room(sum(append.bytes_total for append in batch))
        buffers = self._start_cycle()
        located: list[tuple[Append, Location]] = []
        offset = self.offset + sum(map(len, buffers))
        live = self._live.setdefault(self.segment, {})
        newest: dict[int, Append] = {}
        opened: list[bytes] = []
        index = self._index
        for append in batch:
            located.append((append, Location(self.segment, offset)))
            if index is not None:
                index.append(append, offset)
            offset += append.bytes_total
            records = append.records
            if append.bytes_total < JOIN_BYTES * len(records):
                buffers.append(b"".join(records))
            else:
                buffers.extend(records)
            ledger = append.entries[0].ledger
            live[ledger] = live.get(ledger, 0) + append.bytes_total
            self._unreported.append((ledger, append.bytes_total))
            newest[ledger] = append
            if append.preamble:
                opened.append(records[0])
        self._check_index()
        high = max(newest)
        if high > self.ledger_high:
            self.ledger_high = high
        self._writev(buffers, offset, through=through)
        marks, openings = (self._marks, self._openings) if through else (self._written, self._opened)
        if behind:
            marks, openings = {}, []
            self._behind.append(_Behind(offset, self._unreported, marks, openings))
            self._unreported = []
        for ledger, append in newest.items():
            marks[ledger] = append.entries[-1].entry + 1, append.next_index
        if opened:
            openings += opened
        return located

    @property
    def writes_behind(self) -> bool:
        """Whether `write` may return before its appends are durable, see there."""
        return self._durable is not None

    @property
    def ends_segment(self) -> bool:
        """Whether the next write begins another segment: everything has to be reported before."""
        return self.offset >= self._segment_bytes

    def durable(self) -> int:
        """The offset up to which the open segment is durable without a sync.

        Raises:
            OSError: nothing more of what was written without a wait will be durable; `fail` is due.
        """
        assert self._durable is not None
        return self._durable()

    def settle(self, end: int) -> None:
        """Everything up to an offset, at which a batch ends, is durable, and is about to be reported as stored."""
        while self._behind and self._behind[0].end <= end:
            batch = self._behind.popleft()
            self._marks.update(batch.marks)
            self._openings += batch.opened
        self.synced = max(self.synced, end)
        self.reported = end

    def forget_room(self) -> None:
        """Time has passed: others may have filled the disk, so that the next `write` looks."""
        self._room = 0

    def _take_room(self, size: int) -> None:
        """Check the free space, unless it was much larger than `size` at the last check.

        Raises:
            OSError: ENOSPC.
        """
        if size > self._room // ROOM_PART:
            self._room = self._files.free_bytes(self._folder) - self._free_min
            if self._room < 0:
                self._room = 0
                raise OSError(errno.ENOSPC, "less room is left than disk_free_bytes_min")
        self._room -= size

    def write_copies(self, records: Sequence[bytes]) -> list[Location]:
        """Write copies of records that lie in another segment, for which there is room (`room_for_copies`).

        Raises:
            OSError: as `write`.
        """
        self._room = max(0, self._room - sum(map(len, records)))
        buffers = self._start_cycle()
        offset = self.offset + sum(map(len, buffers))
        locations: list[Location] = []
        for record in records:
            locations.append(Location(self.segment, offset))
            if self._index is not None:
                self._index.copy(record, offset)
            offset += len(record)
        self._check_index()
        self._writev([*buffers, b"".join(records)], offset)
        return locations

    def _check_index(self) -> None:
        """Let go of an index that is of no use."""
        if self._index is not None and self._index.overfull:
            self._index = None

    def _start_cycle(self) -> list[bytes]:
        """Turn to the next segment if this one is full; the check that a cycle begins with, if there is news."""
        if self.offset >= self._segment_bytes:
            if self.offset > self.synced:
                self.sync()
            full = ClosedSegment(self.segment, self.offset, self._index)
            self._next_segment()
            self.closed.append(full)
        if self.synced <= self.checked:
            return []
        self.checked = self.synced
        return [pack_check(self._salt, self.synced)]

    def _writev(self, buffers: Sequence[bytes], end: int, *, through: bool = False) -> None:
        assert self._file is not None
        if through:
            for piece in _pieces(buffers) if self._shares() else [buffers]:
                self._file.write_through(piece)
            self.synced = end
        else:
            self._file.writev(buffers)
        self.offset = end
        self.sizes[self.segment] = end

    def sync(self) -> None:
        """Make everything written durable.

        Raises:
            OSError: nothing is known of what was written since the last sync; `fail` is due.
        """
        assert self._file is not None
        self._file.sync()
        self.synced = self.offset
        self._now_durable()

    def _now_durable(self) -> None:
        """Report what was written as durable."""
        self._marks.update(self._written)
        self._written.clear()
        self._openings += self._opened
        self._opened.clear()

    @property
    def unmarked(self) -> bool:
        """Whether something is durable that the file of ledgers does not know."""
        return bool(self._marks) and self._ledgers is not None

    def mark(self) -> None:
        """Record in the ledger file what is durable.

        Raises:
            OSError: the ledger file could not be written; the log is unchanged.
        """
        try:
            if self._ledgers is not None:
                marks = [(ledger, entries, following) for ledger, (entries, following) in self._marks.items()]
                self._ledgers.tell(map(_opening, self._openings), marks)
        finally:
            self._marks = {}
            self._openings = []

    def mark_reported(self) -> None:
        """Whatever is written is about to be relied on: reported as stored, or an original is deleted."""
        self.reported = self.offset
        self._unreported.clear()

    def _next_segment(self) -> None:
        """Begin the next segment, with the seals that are due, durably.

        Raises:
            OSError: it could not be made; its number is not used again.
        """
        number = self._numbers.take()
        file = self._files.create(self._folder / segment_name(number))
        try:
            salt = self._salt_of()
            seals = [pack_seal(bad, good) for bad, good in sorted(self._seals.items())]
            magic = LARGE_MAGIC if self._large else SEGMENT_MAGIC
            head = magic + pack_start(number, salt, self.ledger_high) + b"".join(seals)
            file.writev([head])
            file.sync()
            self._files.sync_folder(self._folder)
        except OSError:
            file.close()
            self._discard(number)
            raise
        if self._file is not None:
            self._file.close()
        self._file = file
        self._durable = file.behind(self._woken)
        self._index = WrittenIndex(number, self.ledger_high) if self.writes_behind else None
        self._salt = salt
        self.segment = number
        self.offset = self.synced = self.checked = self.reported = self.sizes[number] = len(head)
        self._live.setdefault(number, {})
        sealed, self._seals = self._seals, {}
        for bad, good in sealed.items():
            self._cut(bad, good, keeper=number)

    def _discard(self, number: int) -> None:
        """A segment that could not be begun. If it cannot even be deleted, recovery does: nothing is in it."""
        try:
            self._files.unlink(self._folder / segment_name(number))
        except OSError:
            return

    def _cut(self, bad: int, good: int, *, keeper: int) -> None:
        """Cut off what a durable seal names. Until that is done the segment with the seal may not be deleted."""
        try:
            file = self._files.open(self._folder / segment_name(bad))
            try:
                file.truncate(good)
            finally:
                file.close()
        except OSError:
            self._keepers.add(keeper)
        self.sizes[bad] = good
        self.closed.append(ClosedSegment(bad, good, None))

    # -------------------------------------------------------------------------------------------------------- failures

    def fail(self, *, sync_failed: bool) -> None:
        """A write or a sync failed: nothing more goes to this segment, and it is sealed after the last entry that was
        reported as stored.

        Args:
            sync_failed: then this file is not synced again. After a failed write, the entries before it that were
                reported as stored are synced.
        """
        self.failures += 1
        held = self._live.setdefault(self.segment, {})
        while self._behind:
            self._unreported += self._behind.popleft().unreported
        for ledger, size in self._unreported:
            held[ledger] -= size
            if held[ledger] <= 0:
                del held[ledger]
        self._unreported.clear()
        self._written.clear()
        self._opened.clear()
        good = self.reported
        if self._file is not None:
            if good > self.synced and not sync_failed:
                # If this fails: the operator chose with `fsync` that entries are reported as stored before they are
                # durable.
                with contextlib.suppress(OSError):
                    self._file.sync()
            self._seals.setdefault(self.segment, good)
            self._file.close()
            self._file = None

    def heal(self) -> bool:
        """Begin a new segment with the seals; whether that worked. Until it does, nothing may be written but copies."""
        try:
            if self._files.free_bytes(self._folder) < self._heal_min:
                return False
            self.begin_for_copies()
        except OSError:
            return False
        return True

    def begin_for_copies(self) -> None:
        """Begin a new segment with the seals, unless that was done since the last failure.

        Raises:
            OSError: it could not be made.
        """
        if self._file is None:
            self._next_segment()

    # ---------------------------------------------------------------------------------------------------------- giving back

    def release(self, ledgers: Iterable[int]) -> list[int]:
        """Note that these ledgers are no longer needed; returns the segments that have nothing else in them."""
        gone = set(ledgers)
        if self._ledgers is not None and gone:
            for ledger in gone & self._marks.keys():
                del self._marks[ledger]
            with contextlib.suppress(OSError):  # the next start finds out
                self._ledgers.tell(map(_opening, self._openings), (), gone)
            self._openings = []
        empty: list[int] = []
        for number, held in self._live.items():
            for ledger in gone & held.keys():
                del held[ledger]
            if not held and self.removable(number):
                empty.append(number)
        return empty

    def spent(self, live_fraction_max: float, bytes_min: int) -> bool:
        """Whether the segment that failed would be given back, or rewritten, if a new one held its seal."""
        if self._file is not None:
            return False
        live, size = sum(self.live_in(self.segment).values()), self.sizes.get(self.segment, 0)
        return not live or (size >= bytes_min and live < live_fraction_max * size)

    def removable(self, number: int) -> bool:
        """Whether a segment may go as far as seals and the open segment are concerned."""
        held_back = self._pinned | self._keepers | self._seals.keys()
        return number != self.segment and number not in held_back

    def pin(self, number: int) -> None:
        """Keep a segment although it has no entries that are needed yet."""
        self._pinned.add(number)

    def unpin(self, number: int) -> None:
        """The reverse of `pin`."""
        self._pinned.discard(number)

    def remove(self, number: int) -> None:
        """Delete a segment and its sidecar: soon, but at once where nothing is accepted, perhaps for want of room.

        Raises:
            OSError: it is still there; recovery will find nothing of use in it.
        """
        delete = self._delete_soon if self._file is not None else self._files.unlink
        self._live.pop(number, None)
        self.sizes.pop(number, None)
        self.closed = [one for one in self.closed if one.number != number]
        delete(self._folder / segment_name(number))
        delete(self._folder / index_name(number))

    def live_in(self, number: int) -> dict[int, int]:
        """The bytes of each ledger in a segment that are still needed."""
        return self._live.get(number, {})

    def moved(self, number: int, copies: dict[int, dict[int, int]]) -> None:
        """Note that everything needed in a segment was copied durably: `copies` are bytes by new segment and ledger."""
        self._live[number] = {}
        for segment, held in copies.items():
            live = self._live.setdefault(segment, {})
            for ledger, size in held.items():
                live[ledger] = live.get(ledger, 0) + size

    def mostly_dead(self, live_fraction_max: float, bytes_min: int) -> list[int]:
        """Closed segments whose living part is small, those with the least first."""
        found = [
            (live / self.sizes[number], number)
            for number, held in self._live.items()
            if held
            and self.removable(number)
            and self.sizes.get(number, 0) >= bytes_min
            and (live := sum(held.values())) < live_fraction_max * self.sizes[number]
        ]
        return [number for _, number in sorted(found)]

    @property
    def full(self) -> bool:
        """Whether there is less room than `heal` asks for.

        Raises:
            OSError: the disk does not answer.
        """
        return self._files.free_bytes(self._folder) < self._heal_min

    def room_for_copies(self, size: int) -> bool:
        """Whether this many bytes may be copied in order to delete the segment that they are a small part of.

        Copies must not be the reason that publishes are refused. When publishes are refused anyway, or will be soon, a
        part of the space that is kept free may be used for copies: they free more than twice as much as they take.

        Raises:
            OSError: the disk does not answer.
        """
        free = self._files.free_bytes(self._folder)
        return size <= free // RESERVE_PART if free < self._heal_min else free - size >= self._heal_min

    # ---------------------------------------------------------------------------------------------------------- sidecars

    def write_index(self, index: SegmentIndex, *, durable: bool = False) -> bool:
        """Write a sidecar; whether that worked. Usually it is not synced: one that is torn is noticed, and costs a scan."""
        path = self._folder / index_name(index.number)
        try:
            self._files.unlink(path)
            file = self._files.create(path)
            try:
                file.writev([encode_index(index)])
                if durable:
                    file.sync()
            finally:
                file.close()
        except OSError:
            return False
        return True


def _opening(record: bytes) -> Opening:
    opened = read_head(memoryview(record), 0)
    assert isinstance(opened, LedgerOpened)
    return opened.ledger, opened.incarnation, opened.created_ms, opened.topic


def _pieces(buffers: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The same bytes, `PIECE_BYTES` of them at a time."""
    piece: list[bytes] = []
    room = PIECE_BYTES
    for buffer in buffers:
        rest = memoryview(buffer)
        while len(rest) >= room:
            yield [*piece, cast("bytes", rest[:room])]
            rest, piece, room = rest[room:], [], PIECE_BYTES
        if rest:
            piece.append(cast("bytes", rest))
            room -= len(rest)
    if piece:
        yield piece
