"""The states of a broker in a file of `storage.files`: all keys are in memory, a group of transactions is one append.

When the file has grown to several times its snapshot, a new one is written and takes its name. After a failed append it is
unknown what of it is stored. So a new file without the failed transactions is written. Only when that has taken the name of the
old one they are appended once more: BookKeeper's own repair may have closed a ledger that was idle. If that fails, too, they are
reported as failed, after another new file has the name. Until then everything waits.

Not thread-safe, except `load`.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.core.errors import StorageError
from magnetar.metadata.store import VersionConflict
from magnetar.runtime.stores.writes import Write
from magnetar.storage import statefile
from magnetar.storage.files import Files, LogFile, read_whole, write_over
from magnetar.storage.statefile import Keys, Transaction

logger = logging.getLogger("magnetar.store")

GROWTH: Final = 4
"""The file is written again when it has this many times the size of its snapshot, so each byte is written again once at most."""

REWRITE_BYTES_MIN: Final = 8 << 20
"""Below this size it is not written again: a start reads it in a tenth of a second."""


ATTEMPTS: Final = 2
"""Times that transactions are appended before they are reported as failed."""


class Committed(NamedTuple):
    """The outcome of a group of writes.

    Attributes:
        made: the transactions that are stored.
        failures: one for each write; None: it is stored.
    """

    made: list[Transaction]
    failures: list[VersionConflict | StorageError | None]


class StateFile:
    """The file.

    Args:
        files: the file system.
        path: of the file; made if it is missing.
        lost: returns the reason why the files are no longer this broker's, or "": nothing is written from then on.
        wait: waits for a number of seconds between attempts to write a new file; returns whether no more attempt is wanted.
        heal_s: these numbers of seconds; the last one repeats.

    Raises:
        StorageError: the file cannot be read or written, or is damaged.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        lost: Callable[[], str],
        wait: Callable[[float], bool],
        heal_s: tuple[float, ...],
    ) -> None:
        self._files = files
        self._path = path
        self._lost = lost
        self._wait = wait
        self._heal_s = heal_s
        self._lock = threading.Lock()
        self._file: LogFile | None = None
        self._size = self._base = 0
        try:
            self._keys, self.version = self._read()
            self._rewrite()
        except OSError as error:
            raise StorageError(f"the states of the broker ({path.name}) cannot be used: {_text(error)}") from error

    def load(self) -> Keys:
        """Everything, as it is now. From any thread."""
        with self._lock:
            return dict(self._keys)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                logger.error("the states of the broker could not be closed: %s", _text(error))

    def _read(self) -> tuple[Keys, int]:
        try:
            return statefile.read(read_whole(self._files, self._path))
        except FileNotFoundError:
            return {}, 0
        except StorageError as error:
            raise StorageError(f"the states of the broker ({self._path.name}) are damaged: {error}") from error

    def _rewrite(self) -> None:
        """Write a new file that takes the name of the old one.

        Raises:
            OSError: the old one has the name, or the new one.
        """
        file, size = write_over(self._files, self._path, list(statefile.snapshot(self._keys, self.version)))
        if self._file is not None:
            self._file.close()
        self._file = file
        self._size = self._base = size

    def commit(self, group: list[Write]) -> Committed:
        """One append for the whole group, without the writes that are refused."""
        made: list[Transaction] = []
        data: list[bytes] = []
        refused: dict[int, VersionConflict | StorageError] = {}
        keys = _Changed(self._keys)
        version = self.version
        for number, write in enumerate(group):
            try:
                keys.check(write.expected)
                one = Transaction(
                    version + 1,
                    {key: bytes(value) for key, value in write.puts.items()},
                    [key for key in write.deletes if key in keys],
                )
                data.append(statefile.pack(one))
            except VersionConflict as conflict:
                refused[number] = conflict
            except (TypeError, ValueError, OverflowError) as wrong:
                refused[number] = StorageError(f"a write cannot be stored: {wrong}")
            else:
                version += 1
                keys.take(one)
                made.append(one)
        error = self._append(data) if made else ""
        if error:
            made = []
        if made:
            with self._lock:
                for one in made:
                    statefile.apply(self._keys, one)
                self.version = version
        failed = StorageError(error) if error else None
        return Committed(made, [refused.get(number, failed) for number in range(len(group))])

    def renew(self) -> None:
        """Write the file again if it has grown."""
        if self._size <= max(REWRITE_BYTES_MIN, GROWTH * self._base):
            return
        try:
            self._rewrite()
        except OSError as error:
            self._heal(_text(error))

    def _append(self, data: list[bytes]) -> str:
        """Store transactions; returns the error, if they are not stored."""
        if lost := self._lost():
            return lost
        reason = ""
        for _ in range(ATTEMPTS):
            assert self._file is not None
            try:
                self._size += self._file.write_through(data)
            except OSError as error:
                reason = _text(error)
                if ended := self._heal(reason):
                    return ended
            else:
                return ""
        return reason

    def _heal(self, reason: str) -> str:
        """Write new files until one has the name: then it is known what is stored. Returns why that was given up, or no text."""
        logger.error("the states of the broker cannot be written: %s; nothing is stored until they can be", reason)
        for pause_s in chain(self._heal_s, repeat(self._heal_s[-1])):
            if lost := self._lost():
                return lost
            try:
                self._rewrite()
            except OSError as error:
                if self._wait(pause_s):
                    return f"{reason}; then: {_text(error)}"
            else:
                logger.warning("the states of the broker are written again")
                break
        return ""


class _Changed:
    """The keys of a store with the transactions of a group that is not stored yet."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._versions: dict[str, int] = {}

    def __contains__(self, key: str) -> bool:
        return self._version(key) > 0

    def _version(self, key: str) -> int:
        return self._versions[key] if key in self._versions else self._keys.get(key, (b"", 0))[1]

    def check(self, expected: Mapping[str, int] | None) -> None:
        """Raises VersionConflict if a key has another version."""
        for key, version in (expected or {}).items():
            if self._version(key) != version:
                raise VersionConflict(f"{key} has version {self._version(key)}, not {version}")

    def take(self, one: Transaction) -> None:
        """A transaction more."""
        self._versions |= dict.fromkeys(one.deletes, 0) | dict.fromkeys(one.puts, one.version)


def _text(error: OSError) -> str:
    return error.strerror or str(error)
