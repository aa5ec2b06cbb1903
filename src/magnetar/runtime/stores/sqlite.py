"""The metadata store in one SQLite file: WAL, every commit synced, one thread that groups the waiting writes into one commit."""

import logging
import sqlite3
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from crc32c import crc32c

from magnetar.core.errors import StorageError
from magnetar.metadata.store import VersionConflict, Watcher, Watchers
from magnetar.runtime.log.files import IS_LINK, IS_NO_FILE
from magnetar.runtime.log.reserve import Reserve
from magnetar.runtime.stores.writes import Write, Writes, answer

logger = logging.getLogger("magnetar.store")

SCHEMA_VERSION = 2
"""2: every record has a checksum. Version 1 is read and made 2; brokers before this one refuse it in one line."""
BUSY_S = 5


def checksum_of(key: str, value: bytes, version: int) -> int:
    """CRC32C of a record: SQLite notices a flipped bit in its own structures alone."""
    return crc32c(value, crc32c(b"%d %d " % (version, len(value)), crc32c(key.encode())))


def is_whole(key: object, value: object, version: object, checksum: object) -> bool:
    """Whether a record is intact, by its checksum."""
    whole = isinstance(key, str) and isinstance(value, bytes) and isinstance(version, int)
    return whole and checksum == checksum_of(cast("str", key), cast("bytes", value), cast("int", version))


class SqliteStore:
    """A metadata store in a file.

    Args:
        path: of the file; made if it is missing.
        reserve: room for it on a full disk.
        lost: says why the folder is no longer this broker's, or "": nothing is written from then on.
        on_commit: called with each transaction that is durable, on the store's thread, before its writer is answered.
        way_out: advice that is added to the error of a damaged store.

    Attributes:
        version: of the last transaction.

    Raises:
        StorageError: it is no such file, of another version, damaged, or in use.
    """

    def __init__(
        self,
        path: Path,
        reserve: Reserve | None = None,
        *,
        lost: Callable[[], str] = lambda: "",
        on_commit: Callable[[int], None] = lambda _version: None,
        way_out: str = "",
    ) -> None:
        self._path = path
        self._on_commit = on_commit
        self._way_out = way_out
        self.version = 0
        self._reserve = reserve
        self._lost = lost
        self._writes = Writes()
        self._watchers = Watchers()
        self._loaded: dict[str, tuple[bytes, int]] = {}
        started = threading.Event()
        failure: list[StorageError] = []
        self._thread = threading.Thread(target=self._run, args=(started, failure), name="store", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            raise failure[0]

    # -------------------------------------------------------------------------------------------------------- callers

    def load(self) -> dict[str, tuple[bytes, int]]:
        """Everything, as it was when the store was opened or is now.

        Raises:
            StorageError: it cannot be read, or something in it is not what was written.
        """
        found: dict[str, tuple[bytes, int]] = {}
        damaged: list[str] = []
        try:
            connection = self._connect()
            connection.text_factory = lambda data: data.decode(errors="replace")
            try:
                problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                for key, value, version, checksum in connection.execute(
                    "SELECT key, value, version, checksum FROM entries"
                ):
                    if is_whole(key, value, version, checksum):
                        found[key] = value, version
                    else:
                        damaged.append(repr(key)[:200])
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self._explain(error) from error
        except ValueError as error:  # text of a damaged schema that is none
            raise self._damaged("its schema is not text") from error
        if damaged:
            raise self._damaged(f"{len(damaged)} of {len(damaged) + len(found)} records, such as {min(damaged)}")
        if problem != "ok":
            raise self._damaged(" ".join(str(problem).split()))
        return found

    def apply(
        self, puts: Mapping[str, bytes], deletes: tuple[str, ...] = (), expected: Mapping[str, int] | None = None
    ) -> None:
        """Write and delete, all or nothing, durably."""
        self._writes.apply(puts, deletes, expected)

    def submit(self, puts: Mapping[str, bytes], deletes: tuple[str, ...], done: Callable[[str], None]) -> None:
        """Write and delete later, in the order of submission."""
        self._writes.submit(puts, deletes, done)

    def watch(self, prefix: str, watcher: Watcher) -> Callable[[], None]:
        """Report changes, on the store's thread."""
        return self._watchers.add(prefix, watcher)

    def close(self) -> None:
        """Finish the submitted writes, then close the file."""
        self._writes.end()
        self._thread.join()

    # ------------------------------------------------------------------------------------------------------ the thread

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _open(self) -> sqlite3.Connection:
        connection = self._connect()
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, 1, SCHEMA_VERSION):
            connection.close()
            raise StorageError(
                f"{self._path} has format {version}, this version of Magnetar reads {SCHEMA_VERSION}; use the one that wrote it"
            )
        if version == 1:
            self._add_checksums(connection)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, "
            "checksum INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"
        )
        # One counter for all keys: a key that is deleted and made again never gets a version that it had before.
        connection.execute("CREATE TABLE IF NOT EXISTS counter (version INTEGER NOT NULL)")
        connection.execute("INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT * FROM counter)")
        # A commit, also where this is the version already, and so a sync of the WAL: transactions of a process that was killed
        # in between are in it whole, but perhaps only in the system's memory, and `load` reports them as durable.
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        counters = connection.execute("SELECT version FROM counter").fetchall()
        if len(counters) != 1 or not isinstance(counters[0][0], int):
            connection.close()
            raise self._damaged("its counter of transactions is not a number")
        self.version = counters[0][0]
        return connection

    @staticmethod
    def _add_checksums(connection: sqlite3.Connection) -> None:
        connection.create_function("checksum_of", 3, checksum_of, deterministic=True)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("ALTER TABLE entries ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
            connection.execute("UPDATE entries SET checksum=checksum_of(key, value, version)")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            connection.execute("ROLLBACK")
            raise

    def _opened(self) -> sqlite3.Connection:
        self._check_files()
        while True:
            try:
                return self._open()
            except sqlite3.Error as error:
                if not self._made_room(error):
                    raise

    def _check_files(self) -> None:
        """Refuse a path that SQLite would follow to another user's file.

        Raises:
            StorageError: a link, or no regular file.
        """
        for suffix in ("", "-wal", "-shm", "-journal"):
            path = self._path.with_name(self._path.name + suffix)
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue  # not there, or nothing that SQLite could open either
            if not stat.S_ISREG(mode):
                wrong = IS_LINK if stat.S_ISLNK(mode) else IS_NO_FILE
                raise StorageError(f"the metadata store {self._path} cannot be used: {path} {wrong}")

    def _made_room(self, error: Exception) -> bool:
        """Whether the disk was full and some space is free again: another attempt may succeed."""
        if self._reserve is None or not isinstance(error, sqlite3.Error):
            return False
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # SQLite has another error for the file that its readers share, when that cannot be made larger.
        full = kind == sqlite3.SQLITE_FULL or (kind == sqlite3.SQLITE_IOERR and self._reserve.needed)
        return full and self._reserve.give()

    def _explain(self, error: sqlite3.Error) -> StorageError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._damaged(str(error))
        return StorageError(f"the metadata store {self._path} cannot be used: {error}")

    def _damaged(self, what: str) -> StorageError:
        return StorageError(f"the metadata store {self._path} is damaged: {what}{self._way_out}")

    def _run(self, started: threading.Event, failure: list[StorageError]) -> None:
        try:
            connection = self._opened()
        except StorageError as error:
            failure.append(error)
            return
        except sqlite3.Error as error:
            failure.append(self._explain(error))
            return
        except Exception as error:  # noqa: BLE001 - what a damaged file makes of the counter: the opener must not wait for ever
            failure.append(self._damaged(f"{type(error).__name__} when it is opened"))
            return
        finally:
            if failure:
                started.set()
        started.set()
        while group := self._writes.take():
            self._commit(connection, group)
        connection.close()

    def _commit(self, connection: sqlite3.Connection, group: list[Write]) -> None:
        """One transaction for the whole group; if it fails, one for each write, so that a bad write fails alone."""
        changes: list[tuple[str, bytes | None, int]] = []
        problem: VersionConflict | StorageError | None = None
        try:
            if lost := self._lost():
                raise ValueError(lost)
            connection.execute("BEGIN IMMEDIATE")
            for write in group:
                self._check(connection, write)
                changes += self._write(connection, write)
            version = connection.execute("SELECT version FROM counter").fetchone()[0]
            connection.execute("COMMIT")
            self.version = version
        except (sqlite3.Error, VersionConflict, ValueError, TypeError, OverflowError) as failure:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if self._made_room(failure):
                self._commit(connection, group)
                return
            problem = failure if isinstance(failure, VersionConflict) else self._explain_any(failure)
        if problem and len(group) > 1:
            for write in group:
                self._commit(connection, [write])
            return
        if not problem:
            self._on_commit(self.version)
            self._watchers.notify(changes)
            if self._reserve is not None:
                self._reserve.keep()
        for write in group:
            answer(write.done, problem)

    def _explain_any(self, error: Exception) -> StorageError:
        return self._explain(error) if isinstance(error, sqlite3.Error) else StorageError(str(error))

    @staticmethod
    def _check(connection: sqlite3.Connection, write: Write) -> None:
        for key, version in (write.expected or {}).items():
            row = connection.execute("SELECT version FROM entries WHERE key=?", (key,)).fetchone()
            present = row[0] if row else 0
            if present != version:
                raise VersionConflict(f"{key} has version {present}, not {version}")

    @staticmethod
    def _write(connection: sqlite3.Connection, write: Write) -> list[tuple[str, bytes | None, int]]:
        version = connection.execute("UPDATE counter SET version=version+1 RETURNING version").fetchone()[0]
        changes: list[tuple[str, bytes | None, int]] = [
            (key, None, version)
            for key in write.deletes
            if connection.execute("DELETE FROM entries WHERE key=?", (key,)).rowcount
        ]
        connection.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT(key) DO UPDATE SET "
            "value=excluded.value, version=excluded.version, checksum=excluded.checksum",
            [(key, value, version, checksum_of(key, value, version)) for key, value in write.puts.items()],
        )
        changes += [(key, value, version) for key, value in write.puts.items()]
        return changes
