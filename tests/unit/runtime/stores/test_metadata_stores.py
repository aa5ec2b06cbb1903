"""Both metadata stores pass the same suite; what a file can do wrong ends in one line."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.core.errors import StorageError
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Store
from magnetar.runtime.log.reserve import Reserve
from magnetar.runtime.stores import sqlite
from magnetar.runtime.stores.sqlite import SqliteStore
from tests.support.store_conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = MemoryStore()
        yield store
        store.close()


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SqliteStore(tmp_path / "meta.sqlite")
        yield store
        store.close()


def refused(path: Path, match: str) -> None:
    with pytest.raises(StorageError, match=match) as caught:
        SqliteStore(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_everything_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    store = SqliteStore(path)
    store.apply({"a": b"1", "b": b"2"})
    store.apply({}, ("b",))
    found = store.load()
    store.close()
    again = SqliteStore(path)
    assert again.load() == found
    again.apply({"b": b"3"})
    assert again.load()["b"][1] > found["a"][1]
    again.close()


def test_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    path.write_bytes(b"this is something else entirely, and long enough to have a header" * 50)
    refused(path, "not a database")


def test_another_version(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    refused(path, "format 99")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere" / "meta.sqlite", "unable to open")


def test_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "meta.sqlite"
    SqliteStore(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(sqlite, "BUSY_S", 0.01)
    refused(path, "locked")
    other.close()


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    store = SqliteStore(path)
    store.apply({f"key {number}": bytes(1000) for number in range(200)})
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:-4096] = random.Random(1).randbytes(len(data) - 8192)
    path.write_bytes(data)

    def use() -> None:
        damaged = SqliteStore(path)
        try:
            damaged.load()
        finally:
            damaged.close()

    with pytest.raises(StorageError) as caught:
        use()
    assert "\n" not in str(caught.value)


def test_a_write_that_fails_is_told_and_the_next_one_works(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    store = SqliteStore(path)
    with pytest.raises(StorageError):
        store.apply({"a": object()})  # type: ignore[dict-item]
    store.apply({"b": b"1"})
    assert set(store.load()) == {"b"}
    store.close()


def full(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = code
    return error


class Room(Reserve):
    """A reserve of some parts, on a disk that is full."""

    def __init__(self, parts: int) -> None:
        self.parts = parts

    @property
    def needed(self) -> bool:
        return True

    def give(self) -> bool:
        self.parts -= 1
        return self.parts >= 0

    def keep(self) -> None:
        return


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR | 19 << 8])
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_on_a_full_disk_there_is_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int, code: int
) -> None:
    """Without it no cursor could be stored, and retention delete nothing: the disk would stay full."""
    reserve, write = Room(parts), SqliteStore._write
    store = SqliteStore(tmp_path / "meta.sqlite", reserve)

    def refused(connection: sqlite3.Connection, one: Any) -> Any:
        if reserve.parts > 0:
            raise full(code)
        return write(connection, one)

    def always(_connection: sqlite3.Connection, _one: Any) -> Any:
        raise full(code)

    monkeypatch.setattr(SqliteStore, "_write", staticmethod(refused))
    store.apply({"a": b"1"})
    assert reserve.parts == 0
    reserve.parts = 0
    monkeypatch.setattr(SqliteStore, "_write", staticmethod(always))
    with pytest.raises(StorageError, match="full"):
        store.apply({"b": b"1"})
    assert set(store.load()) == {"a"}
    store.close()


def test_a_store_is_opened_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, opened = Room(1), SqliteStore._open

    def refused(store: SqliteStore) -> sqlite3.Connection:
        if reserve.parts > 0:
            raise full(sqlite3.SQLITE_FULL)
        return opened(store)

    monkeypatch.setattr(SqliteStore, "_open", refused)
    SqliteStore(tmp_path / "meta.sqlite", reserve).close()
    assert reserve.parts == 0


def test_an_opening_syncs_what_a_killed_process_has_written(tmp_path: Path) -> None:
    """By a commit of its own: the WAL that it is written to, and synced, holds what was there before."""
    store = SqliteStore(tmp_path / "meta.sqlite")
    store.apply({"a": b"1"})
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in tmp_path.glob("meta.sqlite*"):
        (killed / path.name).write_bytes(path.read_bytes())
    store.close()
    wal = killed / "meta.sqlite-wal"
    before = wal.stat().st_size
    again = SqliteStore(killed / "meta.sqlite")
    assert wal.stat().st_size > before
    assert "a" in again.load()
    again.close()


CHILD = """
import sys
from pathlib import Path
from magnetar.runtime.stores.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
start = int(sys.argv[2])
def told(number):
    def done(error):
        assert not error, error
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
    return done
for number in range(start, start + 100000):
    store.submit({f"left/{number}": b"x", f"right/{number}": b"x", "last": b"%d" % number}, (), told(number))
    if number % 50 == 0:
        store.apply({"sync": b"%d" % number})
"""


def test_what_was_reported_survives_being_killed(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    randomly = random.Random(7)
    reported = -1
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(reported + 1)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        wanted = reported + randomly.randint(20, 200)
        try:
            for line in child.stdout:
                reported = int(line)
                if reported >= wanted:
                    break
        finally:
            os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split(b"\n")
        child.wait()
        reported = max([reported, *(int(line) for line in rest[:-1] if line)])
        store = SqliteStore(path)
        found = store.load()
        store.close()
        for number in range(reported + 1):
            assert f"left/{number}" in found
        assert {key[5:] for key in found if key.startswith("left/")} == {
            key[6:] for key in found if key.startswith("right/")
        }, "a transaction is there whole or not at all"
        assert int(found["last"][0]) >= reported
        reported = int(found["last"][0])


@pytest.mark.parametrize("name", ["meta.sqlite", "meta.sqlite-wal", "meta.sqlite-shm"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_of_the_store_is_not_opened(tmp_path: Path, name: str, kind: str) -> None:
    other, path = tmp_path / "somebody's", tmp_path / name
    other.write_bytes(b"")
    if kind == "link":
        path.symlink_to(other)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(StorageError, match=f"{name} is (a symbolic link|not a regular file)"):
        SqliteStore(tmp_path / "meta.sqlite")
    assert other.read_bytes() == b""


def test_a_store_whose_folder_is_lost_writes_nothing(tmp_path: Path) -> None:
    lost: list[str] = []
    store = SqliteStore(tmp_path / "meta.sqlite", lost=lambda: "".join(lost))
    store.apply({"a": b"1"})
    lost.append("another folder is there")
    with pytest.raises(StorageError, match="^another folder is there$"):
        store.apply({"a": b"2"})
    assert store.load()["a"][0] == b"1"
    store.close()
