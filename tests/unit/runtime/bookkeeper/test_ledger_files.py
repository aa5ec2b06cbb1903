"""The files of a log on BookKeeper: what all file systems promise, and what happens when another broker takes the log."""

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.runtime.bookkeeper import ledger_file
from magnetar.runtime.bookkeeper.ledger_file import LedgerBytes
from magnetar.storage.bookkeeper.entry_offsets import EntryOffsets
from magnetar.storage.files import Files
from tests.support.files_conformance import FilesConformance
from tests.support.memory_ledgers import ROOT, MemoryLedgers, MemoryWriter, Site

SEGMENT = ROOT / "1.seg"


class TestLedgerFiles(FilesConformance):
    @pytest.fixture
    def files(self) -> Files:
        return Site().take("a")

    @pytest.fixture
    def folder(self) -> Path:
        return ROOT


@pytest.fixture
def site() -> Site:
    return Site()


def test_another_broker_reads_what_was_confirmed_and_the_former_one_stores_nothing_more(site: Site) -> None:
    former = site.take("a")
    file = former.create(SEGMENT)
    file.write_through([b"confirmed"])
    latter = site.take("b")
    with pytest.raises(OSError, match="fenced"):
        file.write_through([b"late"])
    assert former.lost() == "b has taken the log (epoch 2)"
    assert latter.open(SEGMENT).pread(0, 100) == b"confirmed"
    assert latter.lost() == ""


def test_the_former_owner_changes_no_file(site: Site) -> None:
    former = site.take("a")
    former.create(SEGMENT).close()
    site.take("b")
    before = site.record.data
    for change in (
        lambda: former.create(ROOT / "2.seg"),
        lambda: former.unlink(SEGMENT),
        lambda: former.replace(SEGMENT, ROOT / "3.seg"),
        lambda: former.open(SEGMENT).truncate(0),
    ):
        with pytest.raises(OSError, match="taken the log") as caught:
            change()
        assert caught.value.errno == errno.ESTALE
    assert site.record.data == before
    assert site.chain.owner == "b"


def test_a_broker_that_starts_again_takes_the_log_from_itself(site: Site) -> None:
    first = site.take("a")
    first.create(SEGMENT).write_through([b"one"])
    second = site.take("a")
    assert second.open(SEGMENT).pread(0, 10) == b"one"
    with pytest.raises(OSError, match="epoch 2"):
        first.create(ROOT / "2.seg")


def test_two_brokers_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them sees the record as it was before the other one's change."""
    earlier = site.record.read()
    site.take("a")
    monkeypatch.setattr(site.record, "read", lambda: earlier)
    with pytest.raises(OSError, match="at the same time"):
        site.take("b")


def test_a_ledger_that_was_fenced_while_the_log_is_still_ours(site: Site) -> None:
    """AutoRecovery fences open ledgers, too. The file is read after its recovery, and the log goes on in another one."""
    files = site.take("a")
    file = files.create(SEGMENT)
    file.write_through([b"one"])
    site.bookies.ledgers[0].fenced = True
    with pytest.raises(OSError, match="fenced"):
        file.write_through([b"two"])
    file.close()
    assert files.lost() == ""
    assert files.open(SEGMENT).pread(0, 10) == b"one"
    files.create(ROOT / "2.seg").write_through([b"goes on"])


def test_a_ledger_that_cannot_be_ended_is_recovered_by_its_next_reader(site: Site) -> None:
    """The log closes a segment also after another one has failed: an error of that would end the log's thread."""
    files = site.take("a")
    file = files.create(SEGMENT)
    file.write_through([b"one"])
    site.bookies.ledgers[0].fenced = True
    file.close()
    assert files.lost() == ""
    assert not site.bookies.ledgers[0].closed
    assert files.open(SEGMENT).pread(0, 10) == b"one"
    assert site.bookies.ledgers[0].closed


def test_a_deleted_file_whose_readers_are_forgotten_costs_no_ledger(site: Site) -> None:
    """The readers of the log forget a deleted segment without closing it: another thread may be reading."""
    files = site.take("a")
    files.create(SEGMENT).close()
    reader = files.open(SEGMENT)
    files.unlink(SEGMENT)
    assert site.bookies.deleted == set()
    del reader
    files.create(ROOT / "2.seg")
    assert site.bookies.deleted == {0}


@pytest.mark.parametrize("seed", range(20))
def test_after_a_failed_append_recovery_says_what_is_stored(seed: int) -> None:
    site = Site(seed)
    files = site.take("a")
    file = files.create(SEGMENT)
    reader = files.open(SEGMENT)
    file.write_through([b"sure"])
    file.writev([b"may"])
    site.clients[0].written[0].fail_next = True
    with pytest.raises(OSError, match="no bookies"):
        file.write_through([b"be"])
    assert reader.pread(0, 10) == b"sure"
    with pytest.raises(OSError, match="no more entries"):
        file.writev([b"again"])
    again = files.open(SEGMENT)
    assert again.pread(0, 10) in {b"sure", b"suremay", b"suremaybe"}
    assert files.size(SEGMENT) == len(again.pread(0, 10))
    again.truncate(4)
    assert again.pread(0, 10) == site.take("b").open(SEGMENT).pread(0, 10) == b"sure"


def test_an_append_that_fails_while_a_reader_waits(site: Site) -> None:
    """What the reader waited for is confirmed, and the file ends before it has noted that."""

    class Interrupted(MemoryWriter):
        def wait(self) -> None:
            super().wait()
            content.fail()

    content = LedgerBytes.written(Interrupted(site.bookies, MemoryLedgers(site.bookies).create("one").id))
    content.append([b"0123456789"])
    assert content.read(0, 10) == b""
    assert content.size == 0


def test_a_ledger_ends_after_what_waits_for_room(site: Site) -> None:
    """Bookies have not been sent everything when the file is closed: a ledger that ended then would lack the rest."""

    class Crowded(MemoryWriter):
        def close(self) -> None:
            self.stored.closed = True
            self.waiting.clear()

    content = LedgerBytes.written(Crowded(site.bookies, MemoryLedgers(site.bookies).create("one").id))
    content.append([b"0123456789"])
    content.close_writer()
    assert content.read(0, 10) == b"0123456789"


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_change_whose_answer_is_lost(site: Site, lost: str) -> None:
    """The name is not used again; the next change makes the record right; no ledger is left over."""
    files = site.take("a")
    site.record.lose = lost
    with pytest.raises(OSError, match="no answer"):
        files.create(SEGMENT)
    assert files.names(ROOT) == []
    files.create(ROOT / "2.seg").write_through([b"two"])
    assert set(site.chain.files) == {"2.seg"}
    assert site.chain.deleted == (0,)
    assert site.take("b").names(ROOT) == ["2.seg"]
    assert site.bookies.deleted == {0}
    assert site.chain.deleted == ()


def test_a_broker_that_dies_after_a_lost_answer_leaves_a_file_that_opens(site: Site) -> None:
    files = site.take("a")
    site.record.lose = "answer"
    with pytest.raises(OSError, match="no answer"):
        files.create(SEGMENT)
    assert site.take("b").open(SEGMENT).pread(0, 10) == b""


def test_deleted_files_cost_no_ledger(site: Site) -> None:
    files = site.take("a")
    files.create(SEGMENT).close()
    site.clients[0].fail.add("delete")
    files.unlink(SEGMENT)
    assert site.bookies.deleted == set()
    site.take("b")
    assert site.bookies.deleted == {0}


def test_a_log_has_a_largest_number_of_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.storage.bookkeeper.chain.FILES_MAX", 1)
    files = site.take("a")
    files.create(SEGMENT)
    with pytest.raises(OSError, match="has 1 files") as caught:
        files.create(ROOT / "2.seg")
    assert caught.value.errno == errno.ENOSPC


@given(
    writes=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=60),
    reads=st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 300)), max_size=30),
    entry=st.integers(1, 50),
    own=st.booleans(),
    cut=st.one_of(st.none(), st.integers(0, 2500)),
    seed=st.integers(0, 3),
)
def test_any_bytes_at_any_offset(
    writes: list[bytes], reads: list[tuple[int, int]], entry: int, own: bool, cut: int | None, seed: int
) -> None:
    """Files that were just written, and those that were recovered, where no entry's offset is known; entries of any size."""
    site = Site(seed)
    files = site.take("a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_file, "ENTRY_BYTES_MAX", entry)
        file = files.create(SEGMENT)
        for data in writes:
            file.writev([data])
        file.sync()
        file.close()
    if not own:
        files = site.take("b")
    whole = b"".join(writes)
    again = files.open(SEGMENT)
    if cut is not None:
        again.truncate(cut)
        whole = whole[:cut]
    assert files.size(SEGMENT) == len(whole)
    for offset, size in reads:
        assert again.pread(offset, size) == whole[offset : offset + size]


def test_few_reads_find_an_entry(site: Site) -> None:
    files = site.take("a")
    file = files.create(SEGMENT)
    chance = random.Random(5)
    for _ in range(5_000):
        file.writev([bytes(chance.choice((1, 10, 5_000)))])
    file.sync()
    size = files.size(SEGMENT)
    again = site.take("b").open(SEGMENT)
    for _ in range(20):
        before = site.bookies.reads
        again.pread(chance.randrange(size), 1)
        assert site.bookies.reads - before < 70


def test_offsets_are_forgotten_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.storage.bookkeeper.entry_offsets.KNOWN_MAX", 100)
    offsets = EntryOffsets()
    for entry in range(1_000):
        offsets.note(entry, 10 * entry)
    assert offsets.before(9_999) == (999, 9_990)
    for offset in (0, 5, 4_444, 9_989):
        entry, start = offsets.before(offset)
        assert start == 10 * entry <= offset
