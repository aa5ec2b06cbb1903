"""The log of a broker on ledgers: the same threads, segments and recovery as on a disk, with another file system below."""

import pytest

from magnetar.core.ids import NONE
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.storage.topiclog import TopicLog
from tests.support.memory_ledgers import ROOT, Site
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
