"""The file that says what should be in the log."""

import random
from pathlib import Path

import pytest

from magnetar.storage import ledgerfile
from magnetar.storage.ledgerfile import Known, LedgerFile
from magnetar_sim.host.memory_files import MemoryFiles

PATH = Path("/ledgers")


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles(random.Random(1))


def begun(files: MemoryFiles) -> LedgerFile:
    file = LedgerFile(files, PATH)
    file.begin(file.read())
    return file


def test_what_is_told_is_read_back(files: MemoryFiles) -> None:
    file = begun(files)
    file.tell([(7, 5, 100, "a"), (8, 8, 101, "b")], [(7, 3, 30)])
    file.tell([], [(7, 4, 40), (8, 1, 0)], [])
    file.tell([], [(7, 2, 20)], [8])
    assert LedgerFile(files, PATH).read() == {7: Known("a", 5, 100, 4, 40)}
    file.close()
    assert begun(files).read() == {7: Known("a", 5, 100, 4, 40)}


def test_a_mark_of_the_other_lane_may_come_before_the_opening(files: MemoryFiles) -> None:
    file = begun(files)
    file.tell([], [(7, 3, 30)])
    file.tell([(7, 5, 100, "a")], [])
    assert LedgerFile(files, PATH).read() == {7: Known("a", 5, 100, 3, 30)}


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_or_damaged_end_leaves_what_is_before_it(files: MemoryFiles, seed: int) -> None:
    """What it says is never more than what it was told."""
    rng = random.Random(seed)
    file = begun(files)
    file.tell([(7, 5, 100, "a")], [])
    for entries in range(1, 40):
        file.tell([], [(7, entries, entries)])
    data = files.content(PATH)
    at = rng.randrange(12, len(data))
    if seed % 2:
        del data[at:]
    else:
        data[at] ^= 1 << rng.randrange(8)
    again = LedgerFile(files, PATH)
    assert all(known.entries <= 39 for known in again.read().values())
    assert not again.damaged


@pytest.mark.parametrize("content", [b"", b"MAGNETAR", b"MAGNETARL\x00\x00\x02", bytes(100)])
def test_what_is_no_such_file_says_so(files: MemoryFiles, content: bytes) -> None:
    files.create(PATH).writev([content])
    file = LedgerFile(files, PATH)
    assert file.read() == {}
    assert (file.damaged, file.missing) == (True, False)
    assert LedgerFile(files, Path("/other")).read() == {}


def test_it_does_not_grow_for_ever(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgerfile, "REWRITE_BYTES_MIN", 1_000)
    file = begun(files)
    file.tell([(7, 5, 100, "a")], [])
    for entries in range(1, 500):
        file.tell([], [(7, entries, entries)])
        assert files.size(PATH) < 1_100
    assert LedgerFile(files, PATH).read() == {7: Known("a", 5, 100, 499, 499)}
    assert files.names(Path("/")) == ["ledgers"]


def test_one_that_cannot_be_written_anew_is_still_there(files: MemoryFiles) -> None:
    file = begun(files)
    file.tell([(7, 5, 100, "a")], [(7, 3, 30)])
    file.close()
    for operation in ("create", "write", "sync"):
        files.fail_next(operation, OSError(28, "No space left on device"))
        again = LedgerFile(files, PATH)
        with pytest.raises(OSError, match="No space"):
            again.begin(again.read())
        assert LedgerFile(files, PATH).read() == {7: Known("a", 5, 100, 3, 30)}
