"""Reads entries from the segments, from any thread."""

import errno
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from magnetar.core.errors import StorageError
from magnetar.runtime.interpreter.gil_yield import GiveWay, Working, pause
from magnetar.storage.entries import Location, StoredEntry
from magnetar.storage.files import Files, LogFile
from magnetar.storage.ledger import OFFSET_MASK, SEGMENT_SHIFT
from magnetar.storage.records import read_entry
from magnetar.storage.recovery import segment_name
from magnetar.storage.topiclog import Span

READ_GAP_BYTES: Final = 64 * 1024
"""Records this near to each other are read in one call, with the bytes between them."""

READ_BLOCK_BYTES: Final = 8 * 1024 * 1024
"""A ceiling on one such read."""

OPEN_MAX: Final = 64
"""A ceiling on segments held open for reading; readers that catch up read few segments at a time."""

NOW_ENTRIES_MAX: Final = 64
"""Entries that the calling thread reads if memory has them: some 0.25 ms; larger reads are for a reader's thread."""

NOW_BYTES_MAX: Final = 256 * 1024
"""The same in bytes, with those between the records: some 0.1 ms of copying."""

BREATH_ENTRIES: Final = 16
"""Entries that are read, in some 0.15 ms, before the thread releases the interpreter to others: its many short system calls keep
them from getting it (`runtime.interpreter.gil_yield`)."""


class SegmentReaders:
    """Open segments, and where rewritten records went.

    Args:
        files: the file system.
        folder: of the segments.
        writer: is let by, too, when it waits.
        step_aside: lets other threads have the interpreter.
    """

    def __init__(self, files: Files, folder: Path, writer: Working, step_aside: Callable[[], None] = pause) -> None:
        self._files = files
        self._folder = folder
        self._writer = writer
        self._step_aside = step_aside
        self._lock = threading.Lock()
        self._ways = threading.Lock()
        self._open: OrderedDict[int, LogFile] = OrderedDict()
        self._forgotten = 0
        self._moved: dict[int, tuple[array[int], array[int]]] = {}
        self._targets: dict[int, set[int]] = {}

    def read(self, spans: Sequence[Span]) -> list[StoredEntry]:
        """Read entries, in order; those after a damaged one are left out.

        Raises:
            StorageError: the first one is damaged or gone; says which and where.
            OSError: the disk does not answer.
        """
        entries: list[StoredEntry] = []
        located = [self._locate(span) for span in spans]
        way = GiveWay(self._writer, pause=self._step_aside)
        problem = ""
        while len(entries) < len(located) and not problem:
            way.look()
            try:
                problem = self._read_on(located, entries, self._pread, BREATH_ENTRIES)
            except FileNotFoundError:
                at = len(entries)
                with self._lock:
                    self._open.pop(located[at].segment, None)
                again = [self._locate(span) for span in spans[at:]]
                if again == located[at:]:
                    problem = f"segment {located[at].segment} of the log is gone: its entries were deleted"
                located[at:] = again
        if problem and not entries:
            raise StorageError(problem)
        return entries

    def read_now(self, spans: Sequence[Span]) -> list[StoredEntry] | None:
        """The entries, in order, if they are few and the system has all of them in memory.

        None: ask `read`, which may wait for the disk, and says what is damaged or gone.
        """
        if len(spans) > NOW_ENTRIES_MAX:
            return None
        left = NOW_BYTES_MAX

        def pread(segment: int, offset: int, size: int) -> bytes | bytearray:
            nonlocal left
            left -= size
            if left < 0:
                raise BlockingIOError(errno.EAGAIN, "it is too much")
            return self._pread_now(segment, offset, size)

        entries: list[StoredEntry] = []
        located = [self._locate(span) for span in spans]
        try:
            while len(entries) < len(located):
                if self._read_on(located, entries, pread, breath=0):
                    return None
        except (OSError, StorageError):
            return None
        return entries

    def _read_on(
        self,
        located: list[Span],
        entries: list[StoredEntry],
        pread: Callable[[int, int, int], bytes | bytearray],
        breath: int,
    ) -> str:
        """Add the result of one read to the entries; returns the error of the next entry, if there is one.

        Args:
            located: where the records of all wanted entries are.
            entries: of the first of them.
            pread: reads, from a segment at an offset, a number of bytes.
            breath: entries after which the thread releases the interpreter; 0: it does not.

        Raises:
            FileNotFoundError: the next one's segment is deleted.
        """
        at = len(entries)
        end = self._together(located, at)
        first, last = located[at], located[end - 1]
        if not first.size:
            return _damage(first)
        block = memoryview(pread(first.segment, first.offset, last.offset + last.size - first.offset))
        for number, span in enumerate(located[at:end], at + 1):
            if breath and not number % breath:
                self._step_aside()
            entry = read_entry(block, span.offset - first.offset, span.size)
            if entry is None or (entry.ledger, entry.entry) != (span.ledger, span.entry):
                # A deleted segment loses its name first and then shrinks (`discarding`): that is not damage.
                self._files.size(self._folder / segment_name(span.segment))
                return _damage(span)
            entries.append(entry)
        return ""

    @staticmethod
    def _together(located: list[Span], at: int) -> int:
        """The end of the records from `at` on that one read brings."""
        first = located[at]
        upto = first.offset + first.size
        end = at + 1
        while end < len(located):
            span = located[end]
            if (
                not span.size
                or span.segment != first.segment
                or not 0 <= span.offset - upto <= READ_GAP_BYTES
                or span.offset + span.size - first.offset > READ_BLOCK_BYTES
            ):
                break
            upto = span.offset + span.size
            end += 1
        return end

    def _locate(self, span: Span) -> Span:
        """Where a record is now."""
        while (moved := self._moved.get(span.segment)) is not None:
            old, new = moved
            at = bisect_left(old, span.offset)
            if at == len(old) or old[at] != span.offset:
                return span
            span = span._replace(segment=new[at] >> SEGMENT_SHIFT, offset=new[at] & OFFSET_MASK)
        return span

    def _pread(self, segment: int, offset: int, size: int) -> bytes:
        file = self._kept(segment)
        if file is None:
            forgotten = self._forgotten
            # Without the lock: on BookKeeper this takes as long as bookies and ZooKeeper need.
            file = self._files.open(self._folder / segment_name(segment))
            with self._lock:
                # A segment that was forgotten meanwhile may be this one. Its file is deleted when it is open nowhere.
                if forgotten == self._forgotten:
                    file = self._open.setdefault(segment, file)
                if len(self._open) > OPEN_MAX:
                    # Not closed here: another thread may be reading. It closes itself when the last one is done.
                    self._open.popitem(last=False)
        return file.pread(offset, size)

    def _pread_now(self, segment: int, offset: int, size: int) -> bytes | bytearray:
        file = self._kept(segment)
        if file is None:
            raise BlockingIOError(errno.EAGAIN, f"segment {segment} is not open")
        return file.pread_now(offset, size)

    def _kept(self, segment: int) -> LogFile | None:
        """The file of a segment, if it is open."""
        with self._lock:
            file = self._open.get(segment)
            if file is not None:
                self._open.move_to_end(segment)
            return file

    def moved(self, segment: int, locations: Mapping[int, Location]) -> None:
        """Records of a segment are at other locations from now on.

        Args:
            segment: that is about to be deleted.
            locations: new location by old offset.
        """
        new = {
            offset: locations[offset].segment << SEGMENT_SHIFT | locations[offset].offset
            for offset in sorted(locations)
        }
        with self._ways:  # each lane of the log has a thread that rewrites
            self._lead(segment, new)  # all of it, for those who have looked where it was copied to before
            copies: set[int] = set()
            for old in [old for old, targets in self._targets.items() if segment in targets and old != segment]:
                copies |= self._follow(old, segment, new)
            if copies:
                self._lead(segment, {offset: location for offset, location in new.items() if offset not in copies})

    def _follow(self, old: int, segment: int, new: Mapping[int, int]) -> set[int]:
        """Lead from where records first were to where they are now, in one step; returns where their copies were in `segment`.

        There is one step per needed record, however often it is copied: a record that is kept long is copied again and again.
        """
        copies: set[int] = set()
        ways: dict[int, int] = {}
        for offset, location in zip(*self._moved[old], strict=True):
            if location >> SEGMENT_SHIFT != segment:
                ways[offset] = location
                continue
            copies.add(location & OFFSET_MASK)
            if location & OFFSET_MASK in new:  # else it is no longer needed
                ways[offset] = new[location & OFFSET_MASK]
        self._lead(old, ways)
        return copies

    def _lead(self, segment: int, ways: Mapping[int, int]) -> None:
        """Lead from records of a segment, by offset ascending, to their present locations."""
        if ways:
            self._targets[segment] = {location >> SEGMENT_SHIFT for location in ways.values()}
            self._moved[segment] = array("Q", ways.keys()), array("Q", ways.values())
        else:
            self._targets.pop(segment, None)
            self._moved.pop(segment, None)

    def forget(self, segment: int) -> None:
        """A segment is deleted, and with it the way to it, unless its records moved on."""
        with self._lock:
            self._forgotten += 1
            self._open.pop(segment, None)
        with self._ways:
            gone = [] if segment in self._moved else [segment]
            while gone:
                number = gone.pop()
                for old, targets in list(self._targets.items()):
                    targets.discard(number)
                    if not targets:
                        del self._targets[old], self._moved[old]
                        gone.append(old)

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            self._forgotten += 1
            self._open.clear()


def _damage(span: Span) -> str:
    where = f"entry {span.ledger}:{span.entry}"
    if not span.size:
        return f"corrupt: {where} is lost; the log was damaged where it lay"
    return (
        f"corrupt: {where} in segment {span.segment} at offset {span.offset} ({span.size} bytes): "
        "its checksum does not fit"
    )
