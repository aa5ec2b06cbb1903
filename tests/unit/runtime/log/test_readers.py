"""Where records are read that were copied, again and again."""

import random
import threading
from pathlib import Path

import pytest

from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE
from magnetar.runtime.log.readers import NOW_BYTES_MAX, NOW_ENTRIES_MAX, READ_GAP_BYTES, SegmentReaders
from magnetar.storage.entries import Location, StoredEntry
from magnetar.storage.files import LogFile
from magnetar.storage.records import pack_entry_head
from magnetar.storage.recovery import segment_name
from magnetar.storage.topiclog import Span
from magnetar_sim.host.memory_files import MemoryFiles

FOLDER = Path("/log")


class Still:
    """A log thread that never waits."""

    busy = False
    steps = 0

    def waits(self) -> bool:
        return False


class Segments:
    """Segments that are rewritten by hand; every one has a record that lives, and one that does not, of its own."""

    def __init__(self) -> None:
        self.files = MemoryFiles(random.Random(1))
        self.files.make_folder(FOLDER)
        self.readers = SegmentReaders(self.files, FOLDER, Still())
        self.number = 0
        self.spans: list[Span] = []
        self.living: dict[int, bytes] = {}

    def rewrite(self, gone: int = -1) -> None:
        """Begin a segment with copies of all that lives in the last one (`gone` does no more), and two more records."""
        old, copied = (
            self.living,
            [(at, record) for number, (at, record) in enumerate(self.living.items()) if number != gone],
        )
        self.number += 1
        file = self.files.create(FOLDER / segment_name(self.number))
        records = [record for _, record in copied] + [self._record(number) for number in (0, 1)]
        file.writev(records)
        offsets = [sum(map(len, records[:number])) for number in range(len(records))]
        self.living = dict(zip(offsets[:-1], records, strict=False))
        self.spans.append(Span(self.number, offsets[-2], len(records[-2]), self.number, 0))
        if old:
            places = {at: Location(self.number, offset) for (at, _), offset in zip(copied, offsets, strict=False)}
            self.readers.moved(self.number - 1, places)
            self.readers.forget(self.number - 1)
            self.files.unlink(FOLDER / segment_name(self.number - 1))

    def _record(self, entry: int) -> bytes:
        data = b"%04d" % self.number
        return pack_entry_head(StoredEntry(self.number, entry, 0, 1, 1, 1, "", 0, 0, NONE, data)) + data

    def read(self) -> list[bytes]:
        return [entry.data for span in self.spans for entry in self.readers.read([span])]

    @property
    def ways(self) -> int:
        """Records that somebody is led to."""
        return sum(len(offsets) for offsets, _ in self.readers._moved.values())


def test_one_way_for_each_record_however_often_it_is_copied() -> None:
    """A message that nobody acknowledges is copied for as long as others come and go around it."""
    segments = Segments()
    for _ in range(40):
        segments.rewrite()
    assert segments.read() == [b"%04d" % number for number in range(1, 41)]
    assert segments.ways == 39


def test_no_way_to_what_nobody_needs() -> None:
    segments = Segments()
    for number in range(10):
        segments.rewrite(gone=-1 if number < 5 else 0)
    assert segments.ways == 4
    with pytest.raises(StorageError, match="were deleted"):
        segments.readers.read(segments.spans[:1])
    assert [entry.ledger for span in segments.spans[5:] for entry in segments.readers.read([span])] == [6, 7, 8, 9, 10]


def test_who_has_looked_before_the_next_copy_finds_it() -> None:
    """A reader on its way: it has the place of the first copy, and looks on when that is gone."""
    segments = Segments()
    segments.rewrite()
    segments.rewrite()
    located, looked = segments.readers._locate, []

    def slow(span: Span) -> Span:
        found = located(span)
        if not looked:
            looked.append(found)
            segments.rewrite()
        return found

    segments.readers._locate = slow  # type: ignore[method-assign]
    assert [entry.data for entry in segments.readers.read(segments.spans[:1])] == [b"0001"]
    assert looked[0].segment == 2


@pytest.mark.parametrize("left", [0, 40])
def test_a_segment_that_is_cut_off_while_it_is_read_is_deleted_not_damaged(left: int) -> None:
    """Its name is gone first, then it gets shorter and shorter: whoever has it open finds less than there was."""
    segments = Segments()
    segments.rewrite()
    segments.read()
    path = FOLDER / segment_name(1)
    opened = segments.files.open(path)
    segments.files.unlink(path)
    opened.truncate(left)
    with pytest.raises(StorageError, match="segment 1 of the log is gone: its entries were deleted"):
        segments.readers.read(segments.spans)
    assert not segments.readers._open, "a deleted segment is held open"


def test_what_lives_of_a_segment_that_is_cut_off_while_it_is_read_is_read_elsewhere() -> None:
    segments = Segments()
    segments.rewrite()
    segments.rewrite()
    old = segments.files.open(FOLDER / segment_name(2))
    pread = segments.readers._pread

    def late(segment: int, offset: int, size: int) -> bytes:
        if segment != 2:
            return pread(segment, offset, size)
        segments.rewrite()
        old.truncate(offset + size - 1)
        return old.pread(offset, size)

    segments.readers._pread = late  # type: ignore[method-assign]
    assert [entry.data for entry in segments.readers.read(segments.spans[:2])] == [b"0001", b"0002"]


def test_a_segment_that_is_there_and_too_short_is_damaged() -> None:
    segments = Segments()
    segments.rewrite()
    segments.files.open(FOLDER / segment_name(1)).truncate(40)
    with pytest.raises(StorageError, match="corrupt: entry 1:0 in segment 1"):
        segments.readers.read(segments.spans)


def at_hand(segments: Segments, spans: list[Span]) -> list[bytes] | None:
    entries = segments.readers.read_now(spans)
    return None if entries is None else [entry.data for entry in entries]


def test_what_is_at_hand_is_read_at_once() -> None:
    """Once somebody has opened the segment: opening may wait for the disk, too."""
    segments = Segments()
    for _ in range(4):
        segments.rewrite()
    assert at_hand(segments, segments.spans) is None
    assert segments.read() == at_hand(segments, segments.spans) == [b"0001", b"0002", b"0003", b"0004"]


def test_what_may_wait_for_the_disk_is_not_read_at_once() -> None:
    segments = Segments()
    segments.rewrite()
    segments.read()
    segments.files.fail_next("wait", BlockingIOError())
    assert at_hand(segments, segments.spans) is None
    assert at_hand(segments, segments.spans) == [b"0001"]


@pytest.mark.parametrize("kind", ["read", "wait"])
def test_a_disk_that_fails_is_told_by_the_thread_that_waits_for_it(kind: str) -> None:
    segments = Segments()
    segments.rewrite()
    segments.read()
    segments.files.fail_next(kind, OSError("planted"))
    assert at_hand(segments, segments.spans) is None


def test_damage_is_told_by_the_thread_that_waits_for_the_disk() -> None:
    """Also of what lies behind good ones: all or nothing."""
    segments = Segments()
    segments.rewrite()
    segments.read()
    good = segments.spans[0]
    assert at_hand(segments, [good, good._replace(entry=7)]) is None
    assert at_hand(segments, [good, good._replace(size=0)]) is None
    segments.files.content(FOLDER / segment_name(1))[good.offset + good.size - 1] ^= 1
    assert at_hand(segments, [good]) is None


def test_much_is_not_read_at_once() -> None:
    """It would hold up everybody: neither many, nor large ones, nor those with much between them."""
    segments = Segments()
    segments.rewrite()
    segments.read()
    one = segments.spans[0]
    assert at_hand(segments, [one] * NOW_ENTRIES_MAX) == [b"0001"] * NOW_ENTRIES_MAX
    assert at_hand(segments, [one] * (NOW_ENTRIES_MAX + 1)) is None
    assert at_hand(segments, [one._replace(size=NOW_BYTES_MAX), one]) is None
    apart = [one._replace(offset=READ_GAP_BYTES * each) for each in range(1 + 2 * NOW_BYTES_MAX // READ_GAP_BYTES)]
    asked: list[int] = []
    segments.readers._open[1] = Asked(asked)  # type: ignore[assignment]
    assert at_hand(segments, apart) is None
    assert not asked, "so much was read at once"


class Asked:
    """A file that tells how much is read of it."""

    def __init__(self, asked: list[int]) -> None:
        self._asked = asked

    def pread_now(self, offset: int, size: int) -> bytes:
        self._asked.append(size)
        raise BlockingIOError


def test_a_read_from_memory_does_not_wait_for_one_that_opens_a_segment() -> None:
    """The event loop reads from memory. On BookKeeper, to open a segment may take seconds."""
    segments = Segments()
    segments.rewrite()
    opening, opened = threading.Event(), threading.Event()
    open_file = segments.files.open

    def slow(path: Path) -> LogFile:
        opening.set()
        assert opened.wait(20)
        return open_file(path)

    segments.files.open = slow  # type: ignore[method-assign, assignment]
    reader = threading.Thread(target=segments.read)
    reader.start()
    assert opening.wait(20)
    assert segments.readers.read_now(segments.spans) is None
    opened.set()
    reader.join()
    assert segments.readers.read_now(segments.spans) is not None


def test_a_segment_that_is_forgotten_while_it_is_opened_is_not_kept() -> None:
    """Its file is deleted when it is open nowhere."""
    segments = Segments()
    segments.rewrite()
    open_file = segments.files.open

    def forgotten(path: Path) -> LogFile:
        file = open_file(path)
        for span in segments.spans:
            segments.readers.forget(segments.readers._locate(span).segment)
        return file

    segments.files.open = forgotten  # type: ignore[method-assign, assignment]
    segments.read()
    assert not segments.readers._open
