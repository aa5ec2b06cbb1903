"""The log's two lanes: who waits for whom, what a crash may leave of each, when a failure is over."""

import errno
import itertools
import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.core.errors import StorageError
from magnetar.core.ids import Position
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.log.files import OsFile, OsFiles
from magnetar.runtime.log.lanes import Health, Lanes
from magnetar.storage.entries import Append
from magnetar.storage.log import PIECE_BYTES
from magnetar.storage.records import LARGE_MAGIC, SEGMENT_MAGIC
from magnetar.storage.recovery import segment_name
from magnetar.storage.topiclog import LARGE_BYTES, EntryCache, LedgerIds, TopicLog
from magnetar_sim.host.memory_files import MemoryFiles
from tests.unit.storage.harness import FOLDER, Log, entry

LARGE = bytes(LARGE_BYTES)
USUAL_SEGMENT, LARGE_SEGMENT = FOLDER / segment_name(1), FOLDER / segment_name(2)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log(lanes=True)
    yield made
    made.stop()


def two_topics(log: Log) -> tuple[TopicLog, TopicLog]:
    return log.topic("persistent://public/default/small", 1), log.topic("persistent://public/default/large", 2)


def texts(log: Log, topic: TopicLog) -> list[int]:
    return [len(each.data) for each in log.read(topic)]


def test_large_appends_have_segments_of_their_own(log: Log) -> None:
    small, large = two_topics(log)
    log.append(small, "a")
    log.append(large, LARGE)
    assert log.files.content(USUAL_SEGMENT)[:12] == SEGMENT_MAGIC
    assert log.files.content(LARGE_SEGMENT)[:12] == LARGE_MAGIC
    assert len(log.files.content(USUAL_SEGMENT)) < 1_000
    assert len(log.files.content(LARGE_SEGMENT)) > LARGE_BYTES
    assert (texts(log, small), texts(log, large)) == ([1], [LARGE_BYTES])
    again = log.restart()
    assert again.recovered.problems == []
    small, large = two_topics(again)
    assert (texts(again, small), texts(again, large)) == ([1], [LARGE_BYTES])
    again.append(large, "a")
    assert texts(again, large) == [LARGE_BYTES, 1], "and a topic may be in both"
    third = again.restart()
    assert texts(third, third.topic("persistent://public/default/large", 2)) == [LARGE_BYTES, 1]
    third.stop()


def test_a_small_publish_does_not_wait_for_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write = OsFile.write_through

    def slow(self: OsFile, buffers: list[bytes]) -> int:
        if sum(map(len, buffers)) > 100_000:
            begun.set()
            assert go_on.wait(20)
        return write(self, buffers)

    monkeypatch.setattr(OsFile, "write_through", slow)
    log = Log(OsFiles(), tmp_path, lanes=True)
    small, large = two_topics(log)
    on_its_way = large.stage([entry(LARGE)], 1)
    log.thread.submit(on_its_way)
    assert begun.wait(20)
    log.append(small, "a")
    log.append(small, "b")
    assert isinstance(log.thread, Lanes)
    assert log.thread._large.busy
    go_on.set()
    log.settle([on_its_way])
    assert (texts(log, small), texts(log, large)) == ([1, 1], [LARGE_BYTES])
    log.stop()


def test_a_topic_stays_in_its_lane_while_anything_is_on_its_way(log: Log) -> None:
    topic, _ = two_topics(log)
    first = topic.stage([entry("a")], 1)
    second = topic.stage([entry(LARGE)], 1)
    assert (first.large, second.large) == (False, False)
    for each in (first, second):
        log.thread.submit(each)
    log.settle([first, second])
    third = topic.stage([entry(LARGE)], 1)
    fourth = topic.stage([entry("b")], 1)
    assert (third.large, fourth.large) == (True, True)
    for each in (third, fourth):
        log.thread.submit(each)
    log.settle([third, fourth])
    assert texts(log, topic) == [1, LARGE_BYTES, LARGE_BYTES, 1]
    assert not topic.stage([entry("c")], 1).large


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_where_receipts_precede_the_sync_there_is_one_lane(fsync: str) -> None:
    log = Log(lanes=True, fsync=fsync)
    _, large = two_topics(log)
    log.append(large, LARGE)
    assert len(log.files.content(USUAL_SEGMENT)) > LARGE_BYTES
    log.stop()


@pytest.mark.parametrize("others", [True, False])
def test_large_appends_are_written_in_pieces_where_others_publish(log: Log, others: bool) -> None:
    small, large = two_topics(log)
    if others:
        log.append(small, "a")
    sizes: list[int] = []

    def watch(kind: str, path: Path) -> OSError | None:
        if kind == "sync" and path == LARGE_SEGMENT:
            sizes.append(len(log.files.content(path)))
        return None

    log.files.inject(watch)
    log.append(large, bytes(3 * PIECE_BYTES))
    if not others:
        assert len(sizes) == 1
        return
    assert len(sizes) == 4
    assert max(after - before for before, after in itertools.pairwise(sizes)) <= PIECE_BYTES


def held(log: Log, append: Append) -> threading.Event:
    """Submit an append whose lane stands still at it; to be set for it to go on."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(kind: str, _path: Path) -> OSError | None:
        if kind == "sync" and not begun.is_set():
            begun.set()
            assert go_on.wait(20)
        return None

    log.files.inject(slow)
    log.thread.submit(append)
    assert begun.wait(20)
    return go_on


@pytest.mark.parametrize("waits", [True, False])
def test_the_event_loop_lets_the_usual_lane_by(log: Log, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    small, _ = two_topics(log)
    assert isinstance(log.thread, Lanes)
    monkeypatch.setattr(log.thread._usual, "waits", lambda: waits)
    let_by = log.thread.let_by
    assert not let_by.busy
    append = small.stage([entry("a")], 1)
    go_on = held(log, append)
    assert let_by.busy
    assert let_by.waits() == waits
    go_on.set()
    log.settle([append])


def test_the_event_loop_does_not_let_the_large_lane_by(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did, and on two processors had none itself until a megabyte was in the kernel."""
    _, large = two_topics(log)
    assert isinstance(log.thread, Lanes)
    monkeypatch.setattr(log.thread._large, "waits", lambda: True)
    let_by = log.thread.let_by
    append = large.stage([entry(LARGE)], 1)
    steps = let_by.steps
    go_on = held(log, append)
    assert log.thread._large.busy
    assert not let_by.busy, "the loop would pause for it"
    assert let_by.steps == steps
    go_on.set()
    log.settle([append])


@pytest.mark.skipif(
    sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER, reason="threads of the usual class of Linux"
)
def test_the_large_lane_takes_no_processor_from_others(log: Log) -> None:
    classes: dict[str, int] = {}

    def watch(kind: str, path: Path) -> OSError | None:
        if kind == "sync":
            classes[threading.current_thread().name] = os.sched_getscheduler(0)
        return None

    log.files.inject(watch)
    small, large = two_topics(log)
    log.append(small, "a")
    log.append(large, LARGE)
    assert classes == {"log": os.SCHED_OTHER, "log-large": os.SCHED_BATCH}


def test_a_lane_without_room_makes_the_other_one_look_for_some() -> None:
    """The segments of earlier lives are all the usual lane's, which may have nothing to do and has looked when nothing fitted."""
    limits = {"segment_bytes": 1 << 20, "disk_free_bytes_min": 1 << 20}
    log = Log(lanes=True, **limits)
    _, large = two_topics(log)
    for _ in range(12):
        log.append(large, bytes(300_000))
        large.roll(1)
    log = log.restart(**limits)
    _, large = two_topics(log)
    log.files.capacity = log.files.used() + 1_450_000
    log.thread.drop([each.ledger for at, each in enumerate(large.ledger_infos()) if at % 4 != 1])

    def cycle() -> None:
        """A barrier is one, with a step of what else there is to do."""
        passed = threading.Event()
        log.thread.sync(lambda _error: passed.set())
        assert passed.wait(20)

    for _ in range(20):
        cycle()
    before = log.files.used()
    log.files.capacity = before + 900_000
    log.thread.submit(large.stage([entry(bytes(300_000))], 1))
    log.wait_for("failed")
    log.wait_for("healed")
    for _ in range(200):  # one segment less is enough to heal; the others follow
        if log.files.used() < before - 1_000_000:
            break
        cycle()
    assert log.files.used() < before - 1_000_000
    log.stop()


def test_a_barrier_waits_for_both_lanes(log: Log) -> None:
    small, large = two_topics(log)
    appends = [small.stage([entry("a")], 1), large.stage([entry(LARGE)], 1)]
    for append in appends:
        log.thread.submit(append)
    told: list[tuple[str, int]] = []
    done = threading.Event()

    def then(error: str) -> None:
        told.append((error, sum(len(what) for kind, what in log.reports if kind == "appended")))
        done.set()

    log.thread.sync(then)
    assert done.wait(20)
    assert told == [("", 2)]


@pytest.mark.parametrize("kept", [0, 9, 100])
def test_the_ends_of_both_lanes_may_be_torn(kept: int) -> None:
    log = Log(lanes=True)
    small, large = two_topics(log)
    log.append(small, "a")
    log.append(large, LARGE)
    places = [(segment, len(log.files.content(segment))) for segment in (USUAL_SEGMENT, LARGE_SEGMENT)]
    log.append(small, "lost" * 100)
    log.append(large, LARGE)
    log.stop()
    for segment, end in places:
        del log.files.content(segment)[end + kept :]
    again = Log(log.files, lanes=True)
    assert again.recovered.problems == []
    assert len(again.recovered.notes) == (2 if kept else 0)
    small, large = two_topics(again)
    assert (texts(again, small), texts(again, large)) == ([1], [LARGE_BYTES])
    third = again.restart()
    assert third.recovered.notes == []
    third.stop()


@pytest.mark.parametrize("zeros", [12, 600])
def test_a_segment_that_lost_its_start_does_not_make_the_other_lanes_end_pass_for_whole(zeros: int) -> None:
    log = Log(lanes=True)
    small, large = two_topics(log)
    log.append(small, "a")
    end = len(log.files.content(USUAL_SEGMENT))
    log.append(large, LARGE)
    log.append(small, "lost" * 100, "behind it")
    after = log.files.crash()
    log.stop()
    after.content(USUAL_SEGMENT)[end + 60] ^= 1
    after.content(LARGE_SEGMENT)[:zeros] = bytes(zeros)
    again = Log(after, lanes=True)
    assert again.recovered.problems
    assert all("segment 2" in problem or "lost" in problem for problem in again.recovered.problems)
    assert texts(again, again.topic("persistent://public/default/small", 1)) == [1]
    again.stop()


@pytest.mark.parametrize("segment", [USUAL_SEGMENT, LARGE_SEGMENT], ids=["usual", "large"])
def test_what_is_not_whole_in_an_earlier_life_is_damage(segment: Path) -> None:
    """Also where the lane was not used since: every start begins a segment in both."""
    log = Log(lanes=True)
    small, large = two_topics(log)
    log.append(small, "a")
    log.append(large, LARGE)
    again = log.restart()
    for index in [name for name in again.files.names(FOLDER) if name.endswith(".idx")]:
        again.files.unlink(FOLDER / index)
    again.stop()
    again.files.content(segment)[-60] ^= 1
    third = Log(again.files, lanes=True)
    assert len(third.recovered.problems) == 1
    assert f"segment {1 if segment == USUAL_SEGMENT else 2}, " in third.recovered.problems[0]
    third.stop()


def test_a_failure_of_one_lane_is_not_one_of_the_other(log: Log) -> None:
    small, large = two_topics(log)

    def broken(kind: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, "Input/output error") if kind == "write" and path == LARGE_SEGMENT else None

    log.files.inject(broken)
    failed = large.stage([entry(LARGE)], 1)
    log.thread.submit(failed)
    log.wait_for("failed")
    log.wait_for("healed")
    log.settle([failed])
    log.append(small, "a")
    log.append(large, LARGE)
    assert (texts(log, small), texts(log, large)) == ([1], [LARGE_BYTES])
    assert large.last.entry == 0, "in a ledger of its own"
    assert large.first == Position(large.last.ledger, 0)


def test_a_failure_is_over_when_both_lanes_are_sound() -> None:
    """What failed in the one may come back by a crash until it is sealed, and its topic would be in the other."""
    told: list[str] = []
    health = Health(lambda _batch, error: told.append(error), lambda: told.append("healed"))
    health.failed("usual", [], "usual failed")
    health.failed("large", [], "large failed")
    health.healed("usual")
    assert told == ["usual failed", "large failed"]
    health.healed("large")
    assert told[2:] == ["healed"]
    health.healed("large")
    assert told[3:] == ["healed"], "it may have failed with nothing in its hands"


def test_a_start_that_failed_in_the_second_lane_can_be_tried_again() -> None:
    """On a full disk `app.start_log` gives room from the reserve and tries again."""
    files = MemoryFiles(random.Random(1))
    first = Log(files, lanes=True)
    small, large = two_topics(first)
    first.append(small, "a")
    first.append(large, LARGE)
    first.stop()
    creates: list[Path] = []

    def second(kind: str, path: Path) -> OSError | None:
        if kind != "create" or path.suffix != ".seg":
            return None
        creates.append(path)
        return OSError(errno.ENOSPC, "No space left on device") if len(creates) == 2 else None

    files.inject(second)
    lanes = Lanes(
        files,
        FOLDER,
        BrokerConfig(disk_free_bytes_min=0),
        on_appended=lambda batch: done.set(),
        on_failed=lambda batch, error: None,
        on_healed=lambda: None,
    )
    done = threading.Event()
    before = threading.active_count()
    with pytest.raises(StorageError, match="No space left"):
        lanes.start()
    assert threading.active_count() == before
    recovered = lanes.start()
    assert recovered.problems == []
    assert {len(found.ledgers) for found in recovered.topics.values()} == {1}
    topic = TopicLog(
        "persistent://public/default/small", 1, LedgerIds(recovered.last_ledger), EntryCache(1), fresh=False
    )
    lanes.submit(topic.stage([entry("b")], 1))
    assert done.wait(20)
    lanes.stop()
    again = Log(files, lanes=True)
    assert len(again.recovered.topics[topic.name, 1].ledgers) == 2
    again.stop()
