"""The log of a broker on ledgers: the same threads, segments and recovery as on a disk, with another file system below."""

import errno
from math import inf

import pytest

from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.log.thread import BEHIND_MAX
from magnetar.storage.entries import Append
from magnetar.storage.topiclog import TopicLog
from tests.support.brokers import eventually
from tests.support.memory_ledgers import ROOT, MemoryWriter, Site
from tests.unit.storage.harness import TOPIC, Log, entry


@pytest.fixture
def site() -> Site:
    return Site()


def texts(log: Log, topic: TopicLog) -> list[bytes]:
    return [] if topic.first == NONE else [entry.data for entry in log.read(topic)]


def open_log(files: LedgerFiles, **config: object) -> Log:
    return Log(files, ROOT, **config)  # type: ignore[arg-type]


def test_a_restart_finds_everything(site: Site) -> None:
    log = open_log(site.take("a"))
    topic = log.topic()
    log.append(topic, "one", "two")
    log.append(topic, b"3" * 3_000_000)
    log.thread.stop()
    again = open_log(site.take("a"))
    assert again.recovered.problems == []
    found = again.topic()
    assert texts(again, found) == [b"one", b"two", b"3" * 3_000_000]
    again.append(found, "four")
    assert texts(again, found)[-1] == b"four"
    again.thread.stop()


def test_another_broker_takes_over_while_the_former_one_serves(site: Site) -> None:
    """Nothing confirmed is missing, in order; the former owner confirms nothing more and cannot heal."""
    former = open_log(site.take("a"))
    topic = former.topic()
    for number in range(20):
        former.append(topic, f"{number}")
    files = site.take("b")
    latter = open_log(files)
    append = topic.stage([entry("late")], 1000)
    former.thread.submit(append)
    former.settle([append])
    assert former.files.lost() == "b has taken the log (epoch 2)"
    found = latter.topic()
    latter.append(found, "new")
    assert texts(latter, found) == [*(b"%d" % number for number in range(20)), b"new"]
    former.thread.stop()
    latter.thread.stop()
    last = open_log(site.take("c"))
    assert texts(last, last.topic()) == [*(b"%d" % number for number in range(20)), b"new"]
    assert last.recovered.problems == []
    last.thread.stop()


@pytest.mark.parametrize("seed", range(12))
def test_a_ledger_that_fails_is_sealed_and_the_log_continues_in_another(seed: int) -> None:
    """What of the failed append is stored is chance; the topic has the confirmed entries and none of the failed one."""
    site = Site(seed)
    log = open_log(site.take("a"))
    topic = log.topic()
    log.append(topic, "sure")
    (ledger,) = [one for one in site.clients[0].written.values() if one.stored.payloads]
    ledger.fail_next = True
    append = topic.stage([entry("unknown" * 100_000)] * 3, 1000)
    log.thread.submit(append)
    log.wait_for("healed")
    log.settle([append])
    log.append(topic, "after")
    assert texts(log, topic) == [b"sure", b"after"]
    log.thread.stop()
    again = open_log(site.take("b"))
    assert texts(again, again.topic()) == [b"sure", b"after"]
    assert again.recovered.problems == []
    again.thread.stop()


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_during_an_append_leaves_a_prefix_of_its_records(seed: int) -> None:
    """An append larger than an entry is cut where its last whole record ends, as on a disk."""
    site = Site(seed)
    log = open_log(site.take("a"))
    topic = log.topic()
    log.append(topic, "sure")
    (ledger,) = [one for one in site.clients[0].written.values() if one.stored.payloads]
    ledger.fail_next = True
    site.clients[0].fail.update({"open", "create"})
    log.append(topic, *("abc"[number] * 900_000 for number in range(3)))
    again = open_log(site.take("b"))
    found = texts(again, again.topic())
    assert found == [b"sure", b"a" * 900_000, b"b" * 900_000, b"c" * 900_000][: len(found)]
    again.append(again.topics[TOPIC], "more")
    assert texts(again, again.topics[TOPIC]) == [*found, b"more"]
    again.thread.stop()
    log.thread.stop()


def test_segments_that_nothing_needs_are_deleted_with_their_ledgers(site: Site) -> None:
    log = open_log(site.take("a"), segment_bytes=1 << 20)
    topic = log.topic()
    for number in range(6):
        log.append(topic, b"%d" % number * 600_000)
    before = len(log.files.names(ROOT))
    first = topic.first.ledger
    log.thread.drop([first])
    log.append(log.topic("persistent://public/default/other", 2000), "x")
    log.thread.stop()
    again = open_log(site.take("a"))
    assert len(again.files.names(ROOT)) < before
    assert site.bookies.deleted
    assert set(site.bookies.deleted) & {file.ledger for file in site.chain.files.values()} == set()
    again.thread.stop()


def sidecars(site: Site) -> int:
    return sum(name.endswith(".idx") for name in site.chain.files)


def test_a_full_segment_gets_its_sidecar_without_being_read(site: Site) -> None:
    """It was read back a record at a time, and for each record bookies gave an entry of up to a megabyte."""
    log = open_log(site.take("a"), segment_bytes=1 << 20)
    topic = log.topic()
    for number in range(8):
        log.append(topic, *[b"%d" % number * 150_000] * 4)
    eventually(lambda: sidecars(site) == 3, what="sidecars of the full segments")
    assert site.bookies.reads == 0
    log.thread.stop()
    again = open_log(site.take("b"))
    assert [text[:1] for text in texts(again, again.topic())] == [b"%d" % (number // 4) for number in range(32)]
    again.thread.stop()


def test_a_segment_that_failed_is_scanned(site: Site) -> None:
    """What was noted of it while it was written has entries that do not exist."""
    log = open_log(site.take("a"), segment_bytes=1 << 20)
    topic = log.topic()
    log.append(topic, "sure")
    (ledger,) = [one for one in site.clients[0].written.values() if one.stored.payloads]
    ledger.fail_next = True
    log.append(topic, "unknown" * 100)
    eventually(lambda: sidecars(site) == 1, what="a sidecar of the segment that failed")
    assert site.bookies.reads
    log.append(topic, "after")
    log.thread.stop()
    again = open_log(site.take("b"))
    assert texts(again, again.topic()) == [b"sure", b"after"]
    again.thread.stop()


# ----------------------------------------------------------------------------------------------- several cycles under way


class Held:
    """A log whose bookies answer when a test wants it, and a topic with one message in it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.log = open_log(site.take("a"), segment_bytes=1 << 20)
        self.topic = self.log.topic()
        self.log.append(self.topic, "first")
        self.ledger: MemoryWriter
        (self.ledger,) = [one for one in site.clients[0].written.values() if one.stored.payloads]
        self.ledger.held = True

    def cycle(self, text: str | bytes) -> Append:
        """An append in a cycle of its own, which is under way when this returns."""
        submitted = len(self.ledger.sizes)
        append = self.topic.stage([entry(text)], 1000)
        self.log.thread.submit(append)
        eventually(lambda: len(self.ledger.sizes) == submitted + 1, what="a cycle is under way")
        return append

    def one_of_three(self) -> list[Append]:
        """Three cycles, of which the first is reported and the others are under way."""
        appends = [self.cycle(f"{number}") for number in range(3)]
        self.ledger.land(1)
        self.log.settle(appends[:1])
        return appends

    def read_again(self) -> list[bytes]:
        """What the next broker finds; this one is dead."""
        again = open_log(self.site.take("b"))
        assert again.recovered.problems == []
        found = texts(again, again.topic())
        again.thread.stop()
        return found


def test_a_cycle_does_not_wait_for_the_one_before(site: Site) -> None:
    held = Held(site)
    appends = [held.cycle(f"{number}") for number in range(BEHIND_MAX)]
    late = [held.topic.stage([entry(f"late {number}")], 1000) for number in range(2)]
    for append in late:
        held.log.thread.submit(append)
    held.ledger.land(2)
    held.log.settle(appends[:2])
    eventually(lambda: len(held.ledger.sizes) == BEHIND_MAX - 1, what="what waited went out as one cycle")
    held.ledger.land(BEHIND_MAX - 1)
    held.log.settle([*appends[2:], *late])
    numbers = [b"%d" % number for number in range(BEHIND_MAX)]
    assert texts(held.log, held.topic) == [b"first", *numbers, b"late 0", b"late 1"]
    held.log.thread.stop()


def test_what_is_under_way_is_not_reported_and_not_read(site: Site) -> None:
    """The answer of the bookies is what confirms; a reader gets what is confirmed while more is under way."""
    held = Held(site)
    one, two = held.cycle("one"), held.cycle("two")
    held.ledger.land(1)
    held.log.settle([one])
    assert texts(held.log, held.topic) == [b"first", b"one"]
    assert held.log.kinds() == []
    held.ledger.land(1)
    held.log.settle([two])
    held.log.thread.stop()


@pytest.mark.parametrize("seed", range(12))
def test_a_failure_fails_all_cycles_that_are_not_reported(seed: int) -> None:
    """The reported ones stay, the seal is after them, and what is appended later follows them."""
    held = Held(Site(seed))
    appends = held.one_of_three()
    held.ledger.fail_next = True
    held.ledger.land(2)
    held.log.wait_for("healed")
    kinds = held.log.kinds()
    assert kinds.index("failed") < kinds.index("healed")
    (refused,) = [what[0] for kind, what in held.log.reports if kind == "failed"]
    assert refused == appends[1:]
    held.log.settle(appends[1:])
    held.log.append(held.topic, "after")
    assert texts(held.log, held.topic) == [b"first", b"0", b"after"]
    held.log.thread.stop()
    assert held.read_again() == [b"first", b"0", b"after"]


def test_a_failure_right_after_a_confirmation_is_noticed_too(site: Site) -> None:
    """Both come before the thread of the log looks. It reports the first cycle, and nothing else wakes it for the second."""
    held = Held(site)
    one, two = held.cycle("one"), held.cycle("two")
    held.ledger.store(1)
    held.ledger.fail_next = True
    held.ledger.land(1)
    held.log.wait_for("healed")
    (refused,) = [what[0] for kind, what in held.log.reports if kind == "failed"]
    assert refused == [two]
    held.log.settle([one, two])
    held.log.thread.stop()


@pytest.mark.parametrize("seed", range(12))
def test_a_broker_that_dies_with_cycles_under_way_leaves_a_prefix_of_them(seed: int) -> None:
    held = Held(Site(seed))
    held.one_of_three()
    held.ledger.stored.payloads += held.ledger.waiting[: seed % 3]
    found = held.read_again()
    assert found == [b"first", b"0", b"1", b"2"][: 2 + seed % 3]
    held.ledger.held = False
    held.log.thread.stop()


def test_the_end_of_a_segment_waits_for_what_is_under_way(site: Site) -> None:
    """The next segment begins when the last cycle of the one before is reported."""
    held = Held(site)
    large = held.cycle(b"x" * (1 << 20))
    following = held.topic.stage([entry("following")], 1000)
    held.ledger.held = False
    held.log.thread.submit(following)
    held.log.settle([large, following])
    assert held.ledger.stored.closed
    assert [len(text) for text in texts(held.log, held.topic)] == [5, 1 << 20, 9]
    held.log.thread.stop()


class Steps:
    """Background work without an end, of which the steps are counted."""

    pending = True

    def __init__(self) -> None:
        self.count = 0

    def step(self) -> None:
        self.count += 1

    def release(self, _ledgers: object) -> None: ...


def test_background_work_does_not_hold_up_cycles_that_are_under_way(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for all of them, and no cycle can follow meanwhile. So a log with nothing to write is not at rest before that."""
    held = Held(site)
    one, two = held.cycle("one"), held.cycle("two")
    steps = Steps()
    monkeypatch.setattr(held.log.thread, "_next_background_s", inf)  # its share under load is used up
    monkeypatch.setattr(held.log.thread, "_background", steps)
    held.ledger.land(1)
    held.log.settle([one])
    three = held.cycle("three")
    assert steps.count == 0
    assert len(held.ledger.sizes) == 2, "the second and the third are under way"
    held.ledger.land(2)
    held.log.settle([two, three])
    eventually(lambda: steps.count > 0, what="background work, when the log is at rest")
    held.log.thread.stop()


def test_a_barrier_and_the_end_wait_for_what_is_under_way(site: Site) -> None:
    held = Held(site)
    append = held.cycle("one")
    said: list[str] = []
    held.log.thread.sync(said.append)
    eventually(lambda: said, what="the barrier is reached")
    assert said == [""]
    held.log.settle([append])
    last = held.cycle("two")
    held.log.thread.stop()
    held.log.settle([last])
    assert held.read_again() == [b"first", b"one", b"two"]


# ------------------------------------------------------------------------------------------------- entries that are not there


@pytest.mark.parametrize("answered", [False, True])
def test_what_bookies_do_not_give_now_is_no_damage(site: Site, answered: bool) -> None:
    """The recovery ends then, and another one finds everything. What all have lost is reported, and the rest is served."""
    log = open_log(site.take("a"), segment_bytes=1 << 20)
    topic = log.topic()
    for number in range(4):
        log.append(topic, b"%d" % number * 600_000)
    files = site.take("b")  # the former broker is dead
    number = errno.EIO if answered else errno.ETIMEDOUT
    first, *_ = (name for name in site.chain.files if name.endswith(".seg"))
    # Without its sidecar, a segment is read from its beginning to its end.
    site.bookies.unreadable = {
        file.ledger: number for name, file in site.chain.files.items() if name == first or name.endswith(".idx")
    }
    if answered:
        again = open_log(files)
        assert again.recovered.problems
        again.thread.stop()
        log.thread.stop()
        return
    with pytest.raises(StorageError, match=r"^cannot recover the log: segment .*: no answer$"):
        open_log(files)
    site.bookies.unreadable.clear()
    again = open_log(site.take("c"))
    assert again.recovered.problems == []
    assert [text[:1] for text in texts(again, again.topic())] == [b"0", b"1", b"2", b"3"]
    again.thread.stop()
    log.thread.stop()
