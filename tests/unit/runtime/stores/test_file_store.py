"""The store in a file passes the suite of all stores, on disk files and on ledgers; and what happens when appends fail."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import StorageError
from magnetar.metadata.store import Store, VersionConflict
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.stores import state_file
from magnetar.runtime.stores.file_store import FileStore
from magnetar.storage import statefile
from magnetar.storage.statefile import Keys, Transaction
from magnetar_sim.host.memory_files import MemoryFiles
from tests.support.memory_ledgers import Bookies, MemoryLedgers, MemoryRecord
from tests.support.store_conformance import StoreConformance

PATH = Path("/log/state")
QUICK = (0.001,)


class TestFileStore(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = FileStore(MemoryFiles(random.Random(1)), PATH)
        yield store
        store.close()


class TestFileStoreOnLedgers(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        ledgers = MemoryLedgers(Bookies(random.Random(1)))
        store = FileStore(LedgerFiles.take(ledgers, MemoryRecord(), PATH.parent, "a"), PATH)
        yield store
        store.close()


def plain(store: Store) -> dict[str, bytes]:
    return {key: value for key, (value, _) in store.load().items()}


def test_a_restart_finds_everything_and_versions_grow_on() -> None:
    files = MemoryFiles(random.Random(1))
    store = FileStore(files, PATH)
    store.apply({"a": b"1", "b": b"2"})
    store.apply({}, ("b",))
    found, version = store.load(), store.version
    store.close()
    again = FileStore(files.crash(), PATH)
    assert (again.load(), again.version) == (found, version)
    again.apply({"b": b"3"}, (), {"b": 0})
    assert again.load()["b"][1] > version
    again.close()


def test_the_file_is_written_again_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "REWRITE_BYTES_MIN", 1_000)
    files = MemoryFiles(random.Random(1))
    store = FileStore(files, PATH)
    for number in range(2_000):
        store.apply({f"k{number % 5}": b"%d" % number})
    assert files.size(PATH) < 3_000
    assert files.names(PATH.parent) == ["state"]
    assert plain(store) == {f"k{number % 5}": b"%d" % number for number in range(1_995, 2_000)}
    store.close()


def plant(files: MemoryFiles, fault: str, fails: list[bool]) -> None:
    """Decide which of the next operations of a kind fail."""

    def rule(kind: str, _path: Path) -> OSError | None:
        return OSError(5, "planted") if kind == fault and fails and fails.pop(0) else None

    files.inject(rule)


@pytest.mark.parametrize("fault", ["write", "sync"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_what_is_lost_with_its_file_is_appended_to_the_next_one(fault: str, attempts: int) -> None:
    """BookKeeper's own repair closes a ledger that was idle when one of its bookies died: no client has to hear of it."""
    for seed in range(10):
        files = MemoryFiles(random.Random(seed))
        store = FileStore(files, PATH, heal_s=QUICK)
        store.apply({"a": b"sure"})
        plant(files, fault, [True] * attempts)
        store.apply({"a": b"late", "b": b"late"})
        assert plain(store) == plain(FileStore(files.crash(), PATH)) == {"a": b"late", "b": b"late"}
        store.apply({"a": b"again"}, (), {"b": store.load()["b"][1]})
        assert plain(FileStore(files.crash(), PATH)) == {"a": b"again", "b": b"late"}
        store.close()


@pytest.mark.parametrize("fault", ["write", "sync"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_what_is_reported_as_failed_is_not_there_after_a_crash(fault: str, attempts: int) -> None:
    """The append may be stored; the store writes a new file before it says that it failed."""
    for seed in range(10):
        files = MemoryFiles(random.Random(seed))
        store = FileStore(files, PATH, heal_s=QUICK)
        store.apply({"a": b"sure"})
        # The append; then new files; then, after one that is written, the append once more.
        new_file = {"write": 1, "sync": 2}[fault]
        plant(files, fault, [True] * attempts + [False] * new_file + [True] * attempts)
        with pytest.raises(StorageError, match="planted"):
            store.apply({"a": b"lost", "b": b"lost"})
        assert plain(store) == plain(FileStore(files.crash(), PATH)) == {"a": b"sure"}
        store.apply({"a": b"again"}, (), {"b": 0})
        assert plain(FileStore(files.crash(), PATH)) == {"a": b"again"}
        store.close()


def test_a_store_that_is_closed_while_nothing_can_be_written_answers() -> None:
    files = MemoryFiles(random.Random(1))
    store = FileStore(files, PATH, heal_s=(20.0,))
    files.capacity = files.used()
    answers: list[str] = []
    answered = threading.Event()
    store.submit({"a": b"x" * 100}, (), lambda error: (answers.append(error), answered.set()))  # type: ignore[func-returns-value]
    store.close()
    assert answered.wait(20)
    assert "No space left" in answers[0]


def test_a_store_whose_files_were_taken_over_writes_nothing() -> None:
    bookies, record = Bookies(random.Random(1)), MemoryRecord()
    former_files = LedgerFiles.take(MemoryLedgers(bookies), record, PATH.parent, "a")
    former = FileStore(former_files, PATH, lost=former_files.lost, heal_s=QUICK)
    former.apply({"a": b"1"})
    latter = FileStore(LedgerFiles.take(MemoryLedgers(bookies), record, PATH.parent, "b"), PATH)
    with pytest.raises(StorageError, match="b has taken the log"):
        former.apply({"a": b"late"})
    with pytest.raises(StorageError, match="b has taken the log"):
        former.apply({"a": b"later"})
    assert plain(latter) == {"a": b"1"}
    latter.apply({"a": b"2"})
    former.close()
    latter.close()


def test_a_bad_write_fails_alone() -> None:
    store = FileStore(MemoryFiles(random.Random(1)), PATH)
    answers: list[str] = []
    store.submit({"a": b"1"}, (), answers.append)
    store.submit({"b": "no bytes"}, (), answers.append)  # type: ignore[dict-item]
    store.submit({"c": b"3"}, (), answers.append)
    store.apply({"end": b""})
    assert answers[0] == answers[2] == "" != answers[1]
    assert set(store.load()) == {"a", "c", "end"}
    store.close()


def test_compare_and_set_sees_the_writes_of_its_own_group() -> None:
    store = FileStore(MemoryFiles(random.Random(1)), PATH)
    held = threading.Event()
    store.submit({"hold": b""}, (), lambda _: held.wait(20) and None)
    store.submit({"a": b"1"}, (), lambda _: None)
    store.submit({}, ("hold",), lambda _: None)
    threading.Timer(0.0, held.set).start()
    with pytest.raises(VersionConflict, match="a has version 2, not 0"):
        store.apply({"a": b"2"}, (), {"a": 0})
    store.apply({"a": b"2"}, (), {"a": 2, "hold": 0})
    store.close()


def whole() -> bytes:
    keys: Keys = {f"k{number}": (b"v" * number, number + 1) for number in range(3)}
    made = [Transaction(3 + number, {"k1": b"%d" % number}, ["k2"]) for number in range(1, 4)]
    return b"".join([*statefile.snapshot(keys, 3), *map(statefile.pack, made)])


def test_a_torn_end_is_what_was_not_answered() -> None:
    data = whole()
    versions = set()
    for end in range(len(data)):
        try:
            keys, version = statefile.read(data[:end])
        except StorageError as error:
            assert version_of_error(error)
            continue
        assert keys["k1"] == (b"v" if version == 3 else b"%d" % (version - 3), 2 if version == 3 else version)
        versions.add(version)
    assert versions == {3, 4, 5}
    assert statefile.read(data)[1] == 6


def version_of_error(error: StorageError) -> bool:
    return "not whole" in str(error) or "does not begin" in str(error)


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_loses_the_last_transaction_at_most(at: int, bit: int) -> None:
    data = bytearray(whole())
    at %= len(data)
    data[at] ^= 1 << bit
    last = len(whole()) - len(statefile.pack(Transaction(6, {"k1": b"3"}, ["k2"])))
    try:
        _, version = statefile.read(bytes(data))
    except StorageError:
        return
    # A length that is wrong hides everything behind it: that cannot be told from a torn end.
    assert version == 5 or any(begin <= at < begin + 4 for begin in heads())
    assert version < 5 or at >= last


def heads() -> list[int]:
    """Offsets of the frames of `whole`."""
    data, at, found = whole(), len(statefile.MAGIC), []
    while at < len(data):
        found.append(at)
        at += 8 + int.from_bytes(data[at : at + 4], "little")
    return found


def test_states_of_a_later_version_are_refused() -> None:
    files = MemoryFiles(random.Random(1))
    file = files.create(PATH)
    file.writev([b"MAGNETARK\x00\x00\x02"])
    file.close()
    with pytest.raises(StorageError, match="state.*another version"):
        FileStore(files, PATH)
