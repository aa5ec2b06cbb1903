"""The metadata store in a file of `storage.files`: for brokers whose files are ledgers of BookKeeper (decision 63).

A thread takes the writes that wait, and gives them to the file (`runtime.stores.state_file`) a group at a time.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from magnetar.metadata.store import Watcher, Watchers
from magnetar.runtime.stores.state_file import StateFile
from magnetar.runtime.stores.writes import Writes, answer
from magnetar.storage.files import Files
from magnetar.storage.statefile import Keys, Transaction

HEAL_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts to write a new file after a failure; the last one repeats."""


class FileStore:
    """A metadata store in one file.

    Args:
        files: the file system.
        path: of the file; made if it is missing.
        lost: says why the files are no longer this broker's, or "": nothing is written from then on.
        on_commit: called with each transaction that is durable, on the store's thread, before its writer is answered.
        heal_s: see `HEAL_S`.

    Raises:
        StorageError: the file cannot be read or written, or is damaged.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        *,
        lost: Callable[[], str] = lambda: "",
        on_commit: Callable[[int], None] = lambda _version: None,
        heal_s: tuple[float, ...] = HEAL_S,
    ) -> None:
        self._on_commit = on_commit
        self._closing = threading.Event()
        self._watchers = Watchers()
        self._writes = Writes()
        self._states = StateFile(files, path, lost, self._closing.wait, heal_s)
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """Version of the last transaction."""
        return self._states.version

    def load(self) -> Keys:
        """Everything, as it is now."""
        return self._states.load()

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
        """Finish the submitted writes, then let go. While the file cannot be written they are reported as failed."""
        self._closing.set()
        self._writes.end()
        self._thread.join()
        self._states.close()

    def _run(self) -> None:
        while group := self._writes.take():
            made, failures = self._states.commit(group)
            if made:
                self._on_commit(made[-1].version)
                self._watchers.notify(_changes(made))
            for write, failure in zip(group, failures, strict=True):
                answer(write.done, failure)
            self._states.renew()


def _changes(made: list[Transaction]) -> list[tuple[str, bytes | None, int]]:
    found: list[tuple[str, bytes | None, int]] = []
    for one in made:
        found += [(key, None, one.version) for key in one.deletes if key not in one.puts]
        found += [(key, value, one.version) for key, value in one.puts.items()]
    return found
