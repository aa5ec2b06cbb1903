"""Recovery: reading a broker's segments after a restart.

Rules (docs/design/storage.md#recovery):

- the part of a segment that a seal names is cut off: it does not count, whatever the disk contains;
- the *tail*, the last segment of its lane that was begun, may be torn by the crash: it ends at the first record after
  its last check that is not whole, and the rest is cut off durably before anything new is written. The remaining part
  is synced before it counts: the process may have been killed between write and sync, and then only the system's memory
  has it. There are two lanes (`storage.log`). The version in a segment's magic names its lane. A segment without a
  readable magic may be of either lane, so it is never taken as the proof that an earlier segment is complete;
- damage anywhere else is reported with its location, and the rest is served: an entry whose record is damaged keeps its
  position, so that reading it gives an error;
- a segment that is not larger than a start with a seal, and whose start is not whole, was never begun: its start is
  synced before anything is written after it. If the file is larger, or a sidecar exists for it, the start was lost:
  that is damage;
- a ledger whose opening is in no segment was deleted: a segment is deleted when nothing in it is needed, so the segment
  with the opening was deleted with the ledger, while other segments that hold some of its entries stay for their other
  content. This does not hold if anything is damaged: then the opening may be what was lost, and the entries are kept.

Closed segments are read from their sidecar; those without one are scanned, which is the whole cost of a crash.

Bytes that the disk cannot read (EIO) are damage as well, page by page, but not in the tail: unreadable bytes there
would be mistaken for a torn end and cut off.
"""

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.core.errors import StorageError
from magnetar.core.ids import OriginKey
from magnetar.storage.files import Files, LogFile, read_whole
from magnetar.storage.ledger import SEGMENT_MAX, Ledger
from magnetar.storage.ledgerfile import Known
from magnetar.storage.records import (
    LARGE_MAGIC,
    PREFIX_BYTES,
    SEAL_RECORD_BYTES,
    SEGMENT_MAGIC,
    START_RECORD_BYTES,
    Sealed,
    Started,
    read_head,
    whole,
)
from magnetar.storage.segments.index import INDEX_SUFFIX, Piece, SegmentIndex, decode_index
from magnetar.storage.segments.scanning import Scanner
from magnetar.storage.topiclog import RecoveredTopic

SEGMENT_SUFFIX: Final = ".seg"
PROBLEMS_MAX: Final = 1000
"""A ceiling on the damages that are reported one by one; more are reported as a number."""

_MAGICS: Final = (SEGMENT_MAGIC, LARGE_MAGIC)

_HEAD_BYTES: Final = 64 * 1024
"""The size that is read of a segment's head, its start and seals: 25 bytes per seal, and seals are few."""

_PAGE_BYTES: Final = 4096
"""The unit in which a disk fails to read."""

_UNBEGUN_BYTES_MAX: Final = len(SEGMENT_MAGIC) + START_RECORD_BYTES + SEAL_RECORD_BYTES
"""The largest size of a segment that was never begun: a segment is begun with one seal at most, that of the segment
that failed.
"""


_NUMBER: Final = re.compile(r"[0-9]{20}")
_NUMBERS_SKIPPED_MAX: Final = 1_000
"""The distance by which the number of a file whose head does not confirm it may be ahead, after attempts on a full
disk. The numbering continues after it.
"""


def segment_name(number: int) -> str:
    """File name of a segment."""
    return f"{number:020d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in the name of a segment's file; None: a broker gives no file such a name."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    if not _NUMBER.fullmatch(stem):
        return None
    number = int(stem)
    return number if 0 < number <= SEGMENT_MAX else None


def index_name(number: int) -> str:
    """File name of a segment's sidecar."""
    return f"{number:020d}{INDEX_SUFFIX}"


@dataclass
class Recovered:
    """The content of the log after recovery.

    Attributes:
        topics: by (topic, incarnation).
        last_ledger: the highest ledger id seen, -1 if none.
        last_segment: the highest segment number in use, 0 if none.
        segments: number of segment files found.
        known: the expected content of the log by ledger; the content found counts if it is more.
        taken: numbers above it that no segment may get, because a file of that name is in the way.
        segment_ledgers: bytes of each ledger in each segment, for freeing space.
        segment_sizes: bytes of each segment's file.
        unindexed: segments that were scanned and have no sidecar yet.
        problems: one line for each damage found.
        notes: one line for each remnant of a crash that is not damage.
        odd: one line for each file that has the suffix of a segment and is not one; these files are not touched.
    """

    topics: dict[tuple[str, int], RecoveredTopic] = field(default_factory=dict)
    last_ledger: int = -1
    last_segment: int = 0
    segments: int = 0
    known: dict[int, Known] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    segment_ledgers: dict[int, dict[int, int]] = field(default_factory=dict)
    segment_sizes: dict[int, int] = field(default_factory=dict)
    unindexed: list[SegmentIndex] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


class _Found(NamedTuple):
    """A segment that was begun.

    Attributes:
        number, size: of its file.
        started, seals: content of its head.
        hollow: nothing else in it is whole, so it may never have been synced.
        large: it is of the lane of large appends; None: unknown, because its magic is damaged.
    """

    number: int
    size: int
    started: Started | None
    seals: list[Sealed]
    hollow: bool
    large: bool | None


class _Recovery:
    """The recovery of one folder."""

    def __init__(self, files: Files, folder: Path, known: dict[int, Known]) -> None:
        self._files = files
        self._folder = folder
        self.result = Recovered(known=known)

    def run(self) -> Recovered:
        names = set(self._files.names(self._folder))
        found = self._segments(names)
        cuts: dict[int, int] = {}
        for segment in found:
            for seal in segment.seals:
                cuts[seal.segment] = min(seal.offset, cuts.get(seal.segment, seal.offset))
        # A segment that lost its magic may be of either lane: it must not prove that another segment has a later one in
        # its lane.
        last: dict[bool, int] = {}
        solid: dict[bool, int] = {}
        for segment in found:
            if segment.large is not None:
                last[segment.large] = segment.number
                if not segment.hollow:
                    solid[segment.large] = segment.number
        indexes = []
        for segment in found:
            if segment.large is None:
                end = tail = segment is found[-1]
            else:
                end = segment.number == last[segment.large]
                tail = end or segment.number >= solid.get(segment.large, 0)
            indexes.append(self._index(segment, cuts.get(segment.number), names, tail=tail, last=end))
        Assembly(self.result, indexes).run()
        self._remove_empty(indexes)
        del self.result.odd[PROBLEMS_MAX:]
        more = len(self.result.problems) - PROBLEMS_MAX
        if more > 0:
            self.result.problems[PROBLEMS_MAX:] = [f"and {more} more damaged positions in the log"]
        return self.result

    def _segments(self, names: set[str]) -> list[_Found]:
        """Segments that were begun, by number."""
        numbers: list[int] = []
        for name in sorted(names):
            if name.endswith(SEGMENT_SUFFIX):
                number = segment_number(name)
                if number is None:
                    self._strange(name, "is not a name of a segment")
                else:
                    numbers.append(number)
        self.result.segments = len(numbers)
        found: list[_Found] = []
        sure, unsure = 0, set()
        for number in numbers:
            segment = self._begun(number, names)
            started = segment.started if segment is not None else None
            if started is not None and started.segment == number:
                sure = max(sure, number)
            else:
                unsure.add(number)
            if started is not None and started.segment != number:
                was = f"{segment_name(number)!a} in {self._folder} says that it is segment {started.segment}"
                if started.segment in numbers:
                    self.result.odd.append(f"{was}, which is there as well: a copy; it is left alone")
                    continue
                self.result.taken.add(started.segment)
                self.result.odd.append(f"{was}, which is not there: it was renamed; its entries are served")
            if segment is not None:
                found.append(segment)
        near = {number for number in unsure if number <= sure + _NUMBERS_SKIPPED_MAX}
        self.result.last_segment = max(near, default=0) if near and max(near) > sure else sure
        self.result.taken |= unsure - near
        return found

    def _strange(self, name: str, why: str) -> None:
        self.result.odd.append(f"{name!a} in {self._folder} {why}; it is left alone")

    def _begun(self, number: int, names: set[str]) -> _Found | None:
        """Look at the head of a segment; one that was never begun is deleted."""
        path = self._folder / segment_name(number)
        try:
            file = self._files.open(path)
            try:
                size = self._files.size(path)
                head = _pread(file, 0, _HEAD_BYTES)
            finally:
                file.close()
        except OSError as error:
            raise _unreadable(path, error) from error
        magic = head[: len(SEGMENT_MAGIC)]
        if _other_version(magic):
            raise StorageError(
                f"{path} is not a log segment of this version (it starts with {magic!r}); "
                "was it written by another version of Magnetar?"
            )
        started = _start(head) if magic in _MAGICS else None
        if started is None and size <= _UNBEGUN_BYTES_MAX and index_name(number) not in names:
            self._files.unlink(path)
            self.result.notes.append(f"segment {number} was never begun: deleted")
            return None
        hollow = started is not None and _hollow(head, size)
        large = magic == LARGE_MAGIC if magic in _MAGICS else None
        return _Found(number, size, started, _seals(head), hollow, large)

    def _index(self, segment: _Found, cut: int | None, names: set[str], *, tail: bool, last: bool) -> SegmentIndex:
        number = segment.number
        end = segment.size if cut is None else min(segment.size, max(cut, len(SEGMENT_MAGIC)))
        path = self._folder / segment_name(number)
        lost = f"segment {number}, offset 0: its start is damaged"
        # The last one may have been torn after its sidecar was written; if the start is lost, a sidecar has more than a
        # scan.
        torn = last and cut is None and segment.started is not None
        if index_name(number) in names and end == segment.size and not torn:
            index = self._sidecar(number, end)
            if index is not None:
                if segment.started is None and lost not in index.problems:
                    index.problems.insert(0, lost)
                return index
        file = self._files.open(path)
        try:
            # Without its start the checks of a segment cannot be recognised: whole records in it count, and nothing is
            # cut.
            torn_end = tail and cut is None and segment.started is not None
            read: Callable[[int, int], bytes] = file.pread if torn_end else partial(_pread, file)
            scanner = Scanner(number, read, end, tail=torn_end)
            index = scanner.run()
            if scanner.torn_bytes:
                whole_file = Scanner(number, partial(_pread, file), end)
                if self._known_behind(whole_file.run(), index.end):
                    scanner, index = whole_file, whole_file.index
            if segment.started is None:
                index.problems.insert(0, lost)
            self._settle(file, segment.size, index.end, scanner.durable if tail and cut is None else index.end)
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            file.close()
        if scanner.torn_bytes:
            self.result.notes.append(
                f"segment {number}: cut {scanner.torn_bytes} bytes off its end, torn by a crash and never confirmed"
            )
        self.result.unindexed.append(index)
        return index

    def _known_behind(self, index: SegmentIndex, torn: int) -> bool:
        """Whether an entry that is known to have been durable lies after a torn point: then it is damage."""
        for piece in index.pieces:
            known = self.result.known.get(piece.ledger)
            if known is not None and piece.first < known.entries:
                behind = piece.offsets[min(known.entries, piece.end) - piece.first - 1]
                if behind > torn:
                    return True
        return False

    @staticmethod
    def _settle(file: LogFile, size: int, end: int, durable: int) -> None:
        """Make what is taken from a segment durable before it is reported, and cut off the rest."""
        if end < size:
            # Cut for good: the segment that holds the seal may be deleted some day, and the next tail is another one.
            file.truncate(end)
        if durable < end:
            # A process that was killed between write and sync leaves entries in the system's memory alone. They look like
            # the others and pass for durable from now on, so they have to be. Perhaps that sync had been tried, and failed.
            file.renew(durable, end)
            file.sync()

    def _sidecar(self, number: int, end: int) -> SegmentIndex | None:
        path = self._folder / index_name(number)
        try:
            index = decode_index(read_whole(self._files, path), number)
        except OSError:
            return None  # it says nothing that a scan does not
        return index if index is not None and index.end == end else None

    def _remove_empty(self, indexes: list[SegmentIndex]) -> None:
        """Delete segments that have no needed content: every start of a broker begins one."""
        for index in indexes:
            held = self.result.segment_ledgers.get(index.number)
            if held or index.problems:
                self.result.segment_sizes[index.number] = index.end
                continue
            self.result.segment_ledgers.pop(index.number, None)
            self.result.unindexed = [other for other in self.result.unindexed if other is not index]
            self._files.unlink(self._folder / segment_name(index.number))
            self._files.unlink(self._folder / index_name(index.number))


class Assembly:
    """Puts ledgers together from the pieces of all segments.

    Args:
        result: filled in.
        indexes: of all segments.
    """

    def __init__(self, result: Recovered, indexes: list[SegmentIndex]) -> None:
        self._result = result
        self._indexes = indexes
        self._owners: dict[int, RecoveredTopic] = {}
        self._ledgers: dict[int, tuple[Ledger, OriginKey]] = {}
        self._damaged = False
        self._deleted: set[int] = set()

    def run(self) -> None:
        """Do it."""
        result = self._result
        for index in self._indexes:
            result.problems += index.problems
            result.last_ledger = max(result.last_ledger, index.ledger_high)
            result.segment_ledgers[index.number] = index.bytes_by_ledger()
            for placed in index.openings:
                self._opened(*placed.opened)
        for ledger, known in result.known.items():
            # An opening that is lost with its segment: a ledger without one would be mistaken for a deleted one.
            self._opened(ledger, known.incarnation, known.created_ms, known.topic)
            topic = self._owners[ledger]
            topic.next_index = max(topic.next_index, known.next_index)
        self._damaged = bool(result.problems)
        pieces = [(piece.ledger, piece.first, index.number, piece) for index in self._indexes for piece in index.pieces]
        pieces.sort(key=lambda item: item[:3])
        for ledger, _, number, piece in pieces:
            self._piece(ledger, number, piece)
        for made, _ in self._ledgers.values():
            if made.missing and self._damaged:
                result.problems.append(f"ledger {made.ledger}: {made.missing} entries are lost to damage")
            elif made.missing:
                result.notes.append(
                    f"ledger {made.ledger}: {made.missing} entries were in segments that are gone: deleted "
                    "with the ledger, or by hand"
                )
            if not made.entries:
                self._forget(made.ledger)
            made.pack()
        self._know()
        if self._deleted:
            result.notes.append(f"{len(self._deleted)} deleted ledgers have entries in segments that are still there")

    def _know(self) -> None:
        """Write the ledger file for the next start: what this one found, and what it missed."""
        known = self._result.known
        for (topic, incarnation), owner in self._result.topics.items():
            for ledger in owner.ledgers.values():
                found = known.get(ledger.ledger)
                if found is None:
                    found = known[ledger.ledger] = Known(topic, incarnation, ledger.created_ms)
                found.entries = max(found.entries, ledger.entries)
            if owner.ledgers:
                newest = known[max(owner.ledgers)]
                newest.next_index = max(newest.next_index, owner.next_index)

    def _forget(self, ledger: int) -> None:
        """A ledger that was opened and nothing else; its id stays taken."""
        del self._owners[ledger].ledgers[ledger]
        for held in self._result.segment_ledgers.values():
            held.pop(ledger, None)

    def _opened(self, ledger: int, incarnation: int, created_ms: int, topic: str) -> None:
        if ledger in self._ledgers:
            return
        owner = self._result.topics.setdefault((topic, incarnation), RecoveredTopic())
        self._owners[ledger] = owner
        made = owner.ledgers[ledger] = Ledger(ledger, created_ms)
        self._ledgers[ledger] = made, OriginKey("", incarnation)
        self._result.last_ledger = max(self._result.last_ledger, ledger)

    def _piece(self, ledger: int, number: int, piece: Piece) -> None:
        self._result.last_ledger = max(self._result.last_ledger, ledger)
        known = self._ledgers.get(ledger)
        if known is None and not self._damaged:
            self._deleted.add(ledger)
            self._result.segment_ledgers[number].pop(ledger, None)
            return
        if known is None:
            self._result.problems.append(
                f"segment {number}, offset {piece.offsets[0]}: {len(piece)} entries of ledger {ledger}, "
                "whose opening is lost, so their topic is unknown"
            )
            return
        for segment, size in known[0].extend(piece, number, known[1]).items():
            held = self._result.segment_ledgers[segment]
            held[ledger] -= size
            if held[ledger] <= 0:
                del held[ledger]
        topic = self._owners[ledger]
        topic.next_index = max(topic.next_index, piece.next_index)
        for source, position in piece.watermarks.items():
            topic.watermarks[source] = max(position, topic.watermarks.get(source, position))


def _pread(file: LogFile, offset: int, size: int) -> bytes:
    """Read; bytes that the disk cannot read become zeros, which are never a valid record.

    Raises:
        OSError: anything but EIO.
    """
    try:
        return file.pread(offset, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pages: list[bytes] = []
    end = offset + size
    while offset < end:
        length = min(end, (offset // _PAGE_BYTES + 1) * _PAGE_BYTES) - offset
        try:
            page = file.pread(offset, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            page = bytes(length)
        if not page:
            break
        pages.append(page)
        offset += length
    return b"".join(pages)


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot recover the log: segment {path}: {error.strerror or error}")


def _start(head: bytes) -> Started | None:
    """The start at the head of a segment, if it is whole."""
    buffer = memoryview(head)
    at = len(SEGMENT_MAGIC)
    record = read_head(buffer, at) if whole(buffer, at, check=True) > 0 else None
    return record if isinstance(record, Started) else None


def _seals(head: bytes) -> list[Sealed]:
    """The seals after the start of a segment, whether or not the start is whole."""
    seals: list[Sealed] = []
    buffer = memoryview(head)
    at = len(SEGMENT_MAGIC) + START_RECORD_BYTES
    while (size := whole(buffer, at, check=True)) > 0:
        record = read_head(buffer, at)
        if not isinstance(record, Sealed):
            break
        seals.append(record)
        at += size
    return seals


def _hollow(head: bytes, size: int) -> bool:
    """Whether no whole record follows the start of a segment of `size` bytes."""
    at = len(SEGMENT_MAGIC) + START_RECORD_BYTES
    length = int.from_bytes(head[at : at + 4], "little")
    beyond = len(head) < at + PREFIX_BYTES + length <= size  # a large one, which is not looked at to its end here
    return not beyond and whole(memoryview(head), at, check=True) <= 0


def _other_version(magic: bytes) -> bool:
    """Whether the start of a segment was written whole by another version, rather than torn."""
    name = len(SEGMENT_MAGIC) - 4
    whole_magic = len(magic) == len(SEGMENT_MAGIC) and magic not in _MAGICS
    return whole_magic and magic[:name] == SEGMENT_MAGIC[:name] and any(magic[name:])


def recover(files: Files, folder: Path, known: Mapping[int, Known] | None = None) -> Recovered:
    """Read all segments of a log.

    Args:
        files: the file system.
        folder: folder of the segments.
        known: the expected content, by ledger.

    Raises:
        StorageError: a segment is of another version, cannot be read, or cannot be cut or synced.
    """
    try:
        files.make_folder(folder)
        return _Recovery(files, folder, dict(known or {})).run()
    except OSError as error:
        raise StorageError(f"cannot recover the log in {folder}: {error.strerror or error}") from error
