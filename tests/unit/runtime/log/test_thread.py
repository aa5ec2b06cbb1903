"""The log thread: who is answered what, and in which order, when all goes well and when it does not."""

import copy
import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.core.errors import StorageError
from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry
from magnetar.storage.files import Files, LogFile
from magnetar.storage.log import SegmentLog
from magnetar.storage.recovery import index_name, segment_name
from magnetar.storage.topiclog import Retention, TopicLog
from magnetar_sim.host.memory_files import MemoryFile, MemoryFiles
from tests.unit.storage.harness import FOLDER, INCARNATION, Log, entry, stored

EIO = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.stop()


def texts(log: Log, topic: TopicLog) -> list[bytes]:
    return [each.data for each in log.read(topic)]


# ------------------------------------------------------------------------------------------------------------ appending


def test_what_is_appended_can_be_read(log: Log) -> None:
    topic = log.topic()
    log.append(topic, "a", "b", b"c" * 100_000)
    log.append(topic, "d")
    assert texts(log, topic) == [b"a", b"b", b"c" * 100_000, b"d"]
    assert [each.first_index for each in log.read(topic)] == [0, 1, 2, 3]


def test_one_sync_serves_everything_that_waits() -> None:
    files = MemoryFiles(random.Random(1))
    log = Log(files)
    entered, go = threading.Event(), threading.Event()

    def hold(kind: str, path: Path) -> None:
        if kind == "sync" and path.suffix == ".seg" and not go.is_set():
            entered.set()
            go.wait(20)

    files.inject(hold)
    topics = [log.topic(f"persistent://public/default/t{n}", 1000 + n) for n in range(50)]
    appends = [topic.stage([entry("x")], 1) for topic in topics]
    log.thread.submit(appends[0])
    assert entered.wait(20)
    before = log.thread.cycles
    for append in appends[1:]:
        log.thread.submit(append)
    go.set()
    log.settle(appends)
    assert log.thread.cycles - before == 2
    log.stop()


def test_restart_keeps_positions_and_goes_on_in_a_new_ledger(log: Log) -> None:
    topic = log.topic()
    log.append(topic, "a", "b")
    again = log.restart()
    topic = again.topic()
    assert (topic.first, topic.last, topic.next_index) == (Position(INCARNATION, 0), Position(INCARNATION, 1), 2)
    append = again.append(topic, "c")
    assert append.entries[0].ledger > INCARNATION
    assert append.entries[0].first_index == 2
    assert texts(again, topic) == [b"a", b"b", b"c"]
    again.stop()


def test_segments_roll_and_all_of_them_are_read() -> None:
    log = Log(segment_bytes=4096)
    topic = log.topic()
    for number in range(40):
        log.append(topic, b"%d" % number * 300)
    names = [name for name in log.files.names(FOLDER) if name.endswith(".seg")]
    assert len(names) > 4
    assert [
        int(text[:3] if number > 99 else text[: len(str(number))]) for number, text in enumerate(texts(log, topic))
    ] == list(range(40))
    again = log.restart(segment_bytes=4096)
    assert len(texts(again, again.topic())) == 40
    again.stop()


# -------------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failure_fails_what_is_in_flight_and_heals(log: Log, operation: str) -> None:
    topic = log.topic()
    log.append(topic, "a")
    log.files.fail_next(operation, EIO)
    failed = topic.stage([entry("lost")], 2)
    log.thread.submit(failed)
    log.wait_for("healed")
    assert log.kinds() == ["failed", "healed"]
    assert "Input/output error" in log.reports[0][1][1]
    topic.fail()
    log.reports.clear()
    after = log.append(topic, "b")
    assert after.entries[0].ledger > failed.entries[0].ledger
    assert after.entries[0].first_index == 1, "an index that never was is given again"
    assert texts(log, topic) == [b"a", b"b"]
    assert stored(log.files.crash()) == [Position(INCARNATION, 0), after.entries[0].position]


def test_an_append_staged_before_the_failure_was_told_is_void(log: Log) -> None:
    """Its positions and indexes build on what failed, however late it comes."""
    topic = log.topic()
    other = log.topic("persistent://public/default/other", 2000)
    first = topic.stage([entry("first")], 1)
    second = topic.stage([entry("second")], 1)
    bystander = other.stage([entry("fine")], 1)
    log.files.fail_next("sync", EIO)
    log.thread.submit(first)
    log.wait_for("healed")
    log.reports.clear()
    log.thread.submit(second)
    log.thread.submit(bystander)
    log.wait_for("appended")
    log.wait_for("healed")
    assert log.kinds()[:2] == ["failed", "healed"], "who is told of a failure must be told when it is over"
    assert log.reports[0][1][0] == [second]
    # Told in order, the topic gives up both at the first report; what it stages then lives through the second.
    topic.fail()
    third = topic.stage([entry("third")], 2)
    topic.fail()
    log.reports.clear()
    log.thread.submit(third)
    log.settle([third])
    assert texts(log, topic) == [b"third"]
    assert third.entries[0].first_index == 0
    assert stored(log.files.crash()) == [third.entries[0].position]


def test_every_append_is_answered_once_while_the_disk_is_gone(log: Log) -> None:
    topic = log.topic()
    gone = threading.Event()
    gone.set()
    log.files.inject(lambda kind, path: EIO if gone.is_set() else None)
    appends = []
    for number in range(20):
        append = topic.stage([entry(str(number))], 1)
        appends.append(append)
        log.thread.submit(append)
    log.wait(lambda reports: sum(len(what[0]) for kind, what in reports if kind == "failed") == 20)
    gone.clear()
    log.wait_for("healed")
    assert [id(each) for kind, what in log.reports if kind == "failed" for each in what[0]] == list(map(id, appends))
    for _ in appends:
        topic.fail()
    log.reports.clear()
    log.append(topic, "alive")
    assert texts(log, topic) == [b"alive"]


def test_a_full_disk_heals_when_retention_gives_room_back() -> None:
    files = MemoryFiles(random.Random(1), capacity=60_000)
    log = Log(files, segment_bytes=8192, disk_free_bytes_min=4096)
    topic = log.topic(ledger_entries_max=8)
    kept = []
    while True:
        append = topic.stage([entry(b"x" * 1000)], 1)
        log.thread.submit(append)
        log.wait(lambda reports: reports[-1][0] in {"appended", "failed"} if reports else False)
        if log.kinds()[-1] == "failed":
            break
        log.settle([append])
        kept.append(append)
    assert "no space left" in log.reports[-1][1][1]
    assert len(texts(log, topic)) == len(kept), "reads go on"
    assert files.used() <= 60_000 - 4096 + 8192
    topic.fail()
    trim = topic.trim(topic.last, 10, Retention(0, 0))
    assert trim is not None
    topic.forget(trim)
    log.thread.drop(trim.ledgers)
    log.wait_for("healed")
    log.reports.clear()
    log.append(topic, "room again")
    log.stop()


def test_an_interval_log_answers_at_once_and_a_failed_sync_takes_back_nothing() -> None:
    files = MemoryFiles(random.Random(1))
    log = Log(files, fsync="interval", fsync_interval_ms=3_600_000)
    easy, strict = log.topic(), log.topic("persistent://public/default/strict", 2000)
    log.append(easy, "first", durable=False)
    log.append(easy, "early", durable=False)
    files.fail_next("sync", EIO)
    append = strict.stage([entry("strict")], 1, durable=True)
    log.thread.submit(append)
    log.wait_for("healed")
    assert log.kinds() == ["failed", "healed"]
    strict.fail()
    log.reports.clear()
    log.append(easy, "late", durable=False)
    assert texts(log, easy) == [b"first", b"early", b"late"]
    again = log.restart()
    assert texts(again, again.topic()) == [b"first", b"early", b"late"], "what was answered is not cut off by us"
    assert ("persistent://public/default/strict", 2000) not in again.recovered.topics
    again.stop()


def test_an_interval_log_makes_durable_appends_durable() -> None:
    log = Log(fsync="never")
    topic = log.topic()
    log.append(topic, "strict", durable=True)
    log.append(topic, "easy", durable=False)
    # A write in one cycle with a durable one of the same topic keeps the topic's order.
    appends = [topic.stage([entry("x")], 1, durable=durable) for durable in (False, True, False)]
    for append in appends:
        log.thread.submit(append)
    log.settle(appends)
    found = stored(log.files.crash())
    assert found[0] == Position(INCARNATION, 0)
    log.stop()


def test_a_thread_that_dies_refuses_instead_of_keeping_silent(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    topic = log.topic()
    append = topic.stage([entry("x")], 1)
    append.records = [object()]  # type: ignore[list-item]
    log.thread.submit(append)
    later = topic.stage([entry("y")], 1)
    log.thread.submit(later)
    log.wait_for("failed")
    assert "the log has stopped" in log.reports[-1][1][1]
    log.stop()


# ------------------------------------------------------------------------------------------------------ giving room back


def segments(files: Files) -> list[str]:
    return sorted(name for name in files.names(FOLDER) if name.endswith(".seg"))


def test_dead_segments_are_deleted() -> None:
    log = Log(segment_bytes=4096)
    topic = log.topic(ledger_entries_max=4)
    for number in range(40):
        log.append(topic, b"%03d" % number * 200)
    before = len(segments(log.files))
    trim = topic.trim(topic.last, 10, Retention(0, 0))
    assert trim is not None
    topic.forget(trim)
    log.thread.drop(trim.ledgers)
    log.append(topic, "after")
    assert len(segments(log.files)) < before / 2
    again = log.restart(segment_bytes=4096)
    assert again.recovered.last_ledger >= topic.last.ledger
    assert min(again.recovered.topics[topic.name, INCARNATION].ledgers) >= trim.first_ledger - 1
    again.stop()


def test_ledger_ids_are_never_used_again_although_everything_was_deleted() -> None:
    log = Log()
    topic = log.topic()
    log.append(topic, "a")
    again = log.restart()
    again.thread.drop([INCARNATION])
    again = again.restart().restart().restart()
    assert again.recovered.topics == {}
    assert again.recovered.last_ledger == INCARNATION
    assert len(segments(again.files)) == 1, "each start begins a segment; empty ones do not pile up"
    again.stop()


def dropped_in_part() -> Log:
    """A ledger that was dropped: its opening's segment is gone, the next one holds an entry of it beside what lives."""
    log = Log(segment_bytes=4096)
    gone = log.topic("persistent://public/default/gone", 2000)
    kept = log.topic("persistent://public/default/kept", 3000)
    while log.thread._log.segment == 1:
        log.append(gone, b"x" * 600)
    log.append(kept, b"y" * 2_000)
    log.thread.drop(gone.ledger_ids())
    log.append(kept, b"y" * 2_000)
    log.append(kept, b"z")
    assert segment_name(1) not in segments(log.files)
    return log


def test_a_dropped_ledger_does_not_come_alive_again_with_a_restart() -> None:
    log = dropped_in_part()
    again = log.restart(segment_bytes=4096)
    assert again.recovered.problems == []
    assert set(again.thread._log.live_in(2)) == {3000}
    assert "1 deleted ledgers have entries in segments that are still there" in again.recovered.notes
    kept = again.topic("persistent://public/default/kept", 3000)
    again.thread.drop(kept.ledger_ids())
    again.append(again.topic("persistent://public/default/other", 5000), "one")
    assert segment_name(2) not in segments(again.files), "nothing of the dropped ledger holds it back"
    again.stop()


def test_where_anything_is_damaged_entries_without_an_opening_are_kept() -> None:
    """The opening may be what the damage took."""
    log = dropped_in_part()
    log.thread.stop()
    data = log.files.content(FOLDER / segment_name(2))
    data[data.index(b"y" * 100) + 50] ^= 1
    log.files.unlink(FOLDER / index_name(2))
    again = Log(log.files, segment_bytes=4096)
    assert any("whose opening is lost" in problem for problem in again.recovered.problems)
    assert 2000 in again.thread._log.live_in(2)
    again.stop()


def rewritten_log(files: Files | None = None) -> tuple[Log, TopicLog, TopicLog]:
    """A segment of which one topic in ten survives."""
    log = Log(files, segment_bytes=2 << 20)
    small = log.topic("persistent://public/default/small", 2000)
    large = log.topic("persistent://public/default/large", 3000)
    for number in range(40):
        log.append(small, b"%03d" % number * 500)
        log.append(large, b"%03d" % number * 20_000)
    return log, small, large


def deletions(log: Log, error: OSError | None = None) -> threading.Event:
    """Set when a sidecar is deleted, which follows its segment; or when a segment is about to be, if that fails."""
    deleted = threading.Event()

    def watch(kind: str, path: Path) -> OSError | None:
        if kind == "unlink" and path.suffix == (".seg" if error else ".idx") and "00001" in path.name:
            deleted.set()
            return error
        return None

    log.files.inject(watch)
    return deleted


def test_a_mostly_dead_segment_is_rewritten_and_its_readers_do_not_notice() -> None:
    log, small, large = rewritten_log()
    before = log.read(small)
    spans = small.locations(small.first, 1000, 1 << 30)
    deleted = deletions(log)
    log.thread.drop(large.ledger_ids())
    assert deleted.wait(20)
    assert segments(log.files)[0] != segment_name(1)
    assert log.read(small) == before
    assert log.thread.read(spans) == before
    again = log.restart(segment_bytes=2 << 20)
    topic = again.topic("persistent://public/default/small", 2000)
    assert again.read(topic) == before
    assert topic.next_index == 40
    topic.validate()
    again.stop()


def test_a_crash_in_the_middle_of_a_rewrite_loses_and_doubles_nothing() -> None:
    log, small, large = rewritten_log()
    before = log.read(small)
    copied = deletions(log, OSError(errno.EACCES, "Permission denied"))
    log.thread.drop(large.ledger_ids())
    assert copied.wait(20)
    after = Log(log.files.crash(), segment_bytes=2 << 20)
    topic = after.topic("persistent://public/default/small", 2000)
    assert after.read(topic) == before
    topic.validate()
    after.stop()
    log.stop()


def full_log() -> tuple[Log, TopicLog, TopicLog]:
    """A log that has failed since the disk is full; one topic has a twentieth of every segment."""
    log = Log(MemoryFiles(random.Random(1), capacity=12 << 20), segment_bytes=2 << 20, disk_free_bytes_min=512 << 10)
    small = log.topic("persistent://public/default/small", 2000)
    large = log.topic("persistent://public/default/large", 3000)
    number = 0
    while True:
        number += 1
        topic, size = (small, 5_000) if number % 2 else (large, 95_000)
        append = topic.stage([entry(b"%05d" % number + bytes(size))], 1)
        log.thread.submit(append)
        log.wait(lambda reports: bool(reports) and reports[-1][0] in {"appended", "failed"})
        if log.kinds()[-1] == "failed":
            break
        log.settle([append])
    topic.fail()
    log.reports.clear()
    return log, small, large


def kept_after(log: Log, small: TopicLog, before: list[StoredEntry]) -> bool:
    """Whether a topic has what it had, and nothing but one more entry; now and after a power cut."""
    log.append(small, "room again")
    again = Log(log.files.crash(), segment_bytes=2 << 20)
    found = again.read(again.topic("persistent://public/default/small", 2000))
    again.stop()
    return not again.recovered.problems and log.read(small)[:-1] == before and found[:-1] == before


def test_a_full_disk_heals_when_every_segment_is_mostly_dead() -> None:
    """No segment is empty: what retention has given back comes from a rewrite, into the room that is kept free."""
    log, small, large = full_log()
    before = log.read(small)
    log.thread.drop(large.ledger_ids())
    log.wait_for("healed")
    assert kept_after(log, small, before)
    log.stop()


@pytest.mark.parametrize("kept", [False, True])
def test_a_full_disk_heals_when_all_that_is_dead_lies_in_the_segment_that_failed(kept: bool) -> None:
    """It stays as long as nothing holds its seal; a new segment does, in the room that is kept free."""
    log = Log(MemoryFiles(random.Random(1), capacity=4 << 20), segment_bytes=64 << 20, disk_free_bytes_min=512 << 10)
    small = log.topic("persistent://public/default/small", 2000)
    large = log.topic("persistent://public/default/large", 3000)
    if kept:
        log.append(small, "kept")
    failed = False
    while not failed:
        append = large.stage([entry(bytes(100_000))], 1)
        log.thread.submit(append)
        log.wait(lambda reports: bool(reports) and reports[-1][0] in {"appended", "failed"})
        failed = log.kinds()[-1] == "failed"
        if not failed:
            log.settle([append])
    large.fail()
    assert len(segments(log.files)) == 1
    log.thread.drop(large.ledger_ids())
    log.wait_for("healed")
    log.reports.clear()
    log.append(small, "room again")
    assert [each.data for each in log.read(small)] == ([b"kept"] if kept else []) + [b"room again"]
    again = Log(log.files.crash(), segment_bytes=64 << 20)
    assert not again.recovered.problems
    found = again.read(again.topic("persistent://public/default/small", 2000))
    assert [each.data for each in found] == ([b"kept"] if kept else []) + [b"room again"]
    again.stop()
    log.stop()


@pytest.mark.parametrize(("operation", "nth"), [("write", 1), ("write", 2), ("sync", 1), ("sync", 2), ("create", 1)])
def test_a_full_disk_heals_when_the_rewrite_fails_too(operation: str, nth: int) -> None:
    log, small, large = full_log()
    before = log.read(small)
    seen: list[Path] = []

    def break_nth(kind: str, path: Path) -> OSError | None:
        if kind == operation and path.suffix == ".seg":
            seen.append(path)
            return EIO if len(seen) == nth else None
        return None

    log.files.inject(break_nth)
    log.thread.drop(large.ledger_ids())
    log.wait_for("healed")
    assert len(seen) > nth
    assert kept_after(log, small, before)
    log.stop()


def test_attempts_to_make_room_leave_no_segments_behind(caplog: pytest.LogCaptureFixture) -> None:
    """And they have one line in the log, however many there are."""
    log, small, large = full_log()
    before = log.read(small)
    heads: set[Path] = set()
    broken: list[Path] = []

    def break_copies(kind: str, path: Path) -> OSError | None:
        """What follows the head of a new segment fails, in five of them."""
        if kind == "write" and path.suffix == ".seg":
            if path in heads and len(broken) < 5:
                broken.append(path)
                return EIO
            heads.add(path)
        return None

    log.files.inject(break_copies)
    log.thread.drop(large.ledger_ids())
    log.wait_for("healed")
    assert len(broken) == 5
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("space in the log cannot be freed: ") for line in lines) == 1
    assert not {path.name for path in broken[:4]} & set(segments(log.files))
    assert kept_after(log, small, before)
    log.stop()


def test_copies_leave_room_for_publishes_or_half_of_what_is_left() -> None:
    files = MemoryFiles(random.Random(1), capacity=10_000)
    log = SegmentLog(files, FOLDER, segment_bytes=4096, disk_free_bytes_min=800, salt=lambda: b"saltsalt")
    filler = files.create(FOLDER / "others.txt")
    for free, most in ((10_000, 9000), (1100, 100), (1000, 0), (999, 499), (300, 150), (0, 0)):
        filler.writev([bytes(files.free_bytes(FOLDER) - free)])
        assert log.room_for_copies(most)
        assert not log.room_for_copies(most + 1)
        assert log.full == (free < 1000)


class UnreadableFiles(MemoryFiles):
    """Files with one byte that cannot be read."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.bad: tuple[Path, int] | None = None
        self.tried = threading.Event()
        self.indexed = threading.Event()

    def open(self, path: Path) -> LogFile:
        file = super().open(path)
        assert isinstance(file, MemoryFile)
        if self.bad is None or path != self.bad[0]:
            return file
        view = copy.copy(file)
        bad = self.bad[1]

        def pread(offset: int, size: int) -> bytes:
            if offset <= bad < offset + size:
                self.tried.set()
                raise EIO
            return file.pread(offset, size)

        view.pread = pread  # type: ignore[method-assign]
        return view

    def create(self, path: Path) -> LogFile:
        if path.suffix == ".idx":
            self.indexed.set()
        return super().create(path)


def test_a_segment_that_cannot_be_read_is_not_rewritten_and_the_log_goes_on() -> None:
    files = UnreadableFiles()
    log, small, large = rewritten_log(files)
    other = log.topic("persistent://public/default/other", 4000)
    assert files.indexed.wait(20)
    log.append(other, "the sidecar is whole")
    (span,) = small.locations(Position(2000, 15), 1, 1)
    assert span.segment == 1
    files.bad = FOLDER / segment_name(1), span.offset + span.size // 2
    log.thread.drop(large.ledger_ids())
    assert files.tried.wait(20)
    log.append(other, "still written")
    assert log.thread._log.failures == 0
    assert other.last == Position(4000, 1)
    assert segment_name(1) in segments(files)
    files.tried.clear()
    log.thread.drop([9999])
    log.append(other, "no second attempt")
    log.append(other, "which the cycle before would have made")
    assert not files.tried.is_set()
    log.stop()


def test_reading_what_was_deleted_says_so(log: Log) -> None:
    topic = log.topic()
    log.append(topic, "a")
    spans = topic.locations(topic.first, 1, 1)
    again = log.restart()
    again.thread.drop([INCARNATION])
    again.append(again.topic("persistent://public/default/o", 9), "x")
    with pytest.raises(StorageError, match="deleted"):
        again.thread.read(spans)
    again.stop()


def rewritten() -> tuple[Log, TopicLog]:
    """A log of which the first segment was rewritten and is gone, with the topic that lived in it."""
    log, small, large = rewritten_log()
    deleted = deletions(log)
    log.thread.drop(large.ledger_ids())
    assert deleted.wait(20)
    return log, small


def test_copies_are_durable_before_the_original_goes() -> None:
    log, small = rewritten()
    before = log.read(small)
    log.files.sync_folder(FOLDER)
    after = Log(log.files.crash(), segment_bytes=2 << 20)
    assert after.read(after.topic("persistent://public/default/small", 2000)) == before
    after.stop()
    log.stop()


def test_a_failure_after_a_rewrite_does_not_seal_off_the_copies() -> None:
    log, small = rewritten()
    before = log.read(small)
    log.files.fail_next("sync", EIO)
    failing = small.stage([entry("x")], 1)
    log.thread.submit(failing)
    log.wait_for("healed")
    assert log.read(small) == before
    again = log.restart(segment_bytes=2 << 20)
    assert again.read(again.topic("persistent://public/default/small", 2000)) == before
    again.stop()


def test_the_seal_holds_when_the_bad_segment_could_not_be_cut() -> None:
    """What failed may be on the disk, whole, for ever: no start may believe it."""
    for seed in range(20):
        log = Log(MemoryFiles(random.Random(seed)))
        topic = log.topic()
        log.append(topic, "kept")
        log.files.inject(lambda kind, path: EIO if kind == "truncate" else None)
        log.files.fail_next("sync", EIO)
        log.thread.submit(topic.stage([entry("lost")], 1))
        log.wait_for("healed")
        topic.fail()
        log.reports.clear()
        after = log.append(topic, "after")
        crashed = log.files.crash()
        assert stored(crashed) == [Position(INCARNATION, 0), after.entries[0].position]
        again = Log(crashed)
        assert [each.data for each in again.read(again.topic())] == [b"kept", b"after"]
        again.stop()
        log.stop()


def test_a_segment_with_a_seal_that_is_still_needed_stays(log: Log) -> None:
    topic = log.topic()
    log.append(topic, "kept")
    log.files.inject(lambda kind, path: EIO if kind == "truncate" else None)
    for healed in (1, 2):
        log.files.fail_next("sync", EIO)
        log.thread.submit(topic.stage([entry("lost")], 1))
        log.wait_for("healed")
        topic.fail()
        log.reports.clear()
        if healed == 1:
            sealing = log.append(topic, "in the segment with the seal")
    log.append(topic, "elsewhere")
    log.thread.drop([sealing.entries[0].ledger])
    log.append(topic, "the drop is done")
    assert segment_name(2) in segments(log.files)
    assert stored(log.files.crash())[0] == Position(INCARNATION, 0)
    assert len([position for position in stored(log.files.crash()) if position.ledger == INCARNATION]) == 1


def test_a_barrier_syncs_what_was_answered_before_it() -> None:
    log = Log(fsync="never")
    topic = log.topic()
    log.append(topic, "a", durable=False)
    later = topic.stage([entry("b")], 1000, durable=False)
    log.thread.submit(later)
    log.thread.sync(lambda error: log._report("synced", error))
    log.wait_for("synced")
    assert log.thread._log.synced == log.thread._log.offset
    assert log.reports[-1] == ("synced", "")
    assert log.kinds() == ["appended", "synced"], "behind the reports of what it waited for"
    log.reports.clear()
    log.thread.sync(lambda error: log._report("synced", error))
    log.wait_for("synced")
    log.thread.stop()


def test_a_barrier_says_that_the_sync_failed() -> None:
    log = Log(fsync="never")
    log.append(log.topic(), "a", durable=False)
    log.files.fail_next("sync", OSError(errno.EIO, "Input/output error"))
    log.thread.sync(lambda error: log._report("synced", error))
    log.wait_for("healed")
    assert ("synced", "the log cannot be synced: Input/output error") in log.reports
    log.thread.stop()
