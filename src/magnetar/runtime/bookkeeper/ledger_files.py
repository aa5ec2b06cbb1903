"""A file system whose files are ledgers of BookKeeper, for the log of a broker without a disk (decision 63).

The names of the files are in a record in ZooKeeper, the chain (`storage.bookkeeper.chain`). Taking the log means: change the
record, then recover every ledger that its former owner may still be writing. From then on the former owner can neither store an
entry nor add a file. (docs/design/cluster.md#taking-a-log)
"""

import contextlib
import errno
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.ledger_file import LedgerBytes, LedgerFile
from magnetar.runtime.bookkeeper.ledgers import ChainRecord, Ledgers, VersionConflict
from magnetar.storage.bookkeeper.chain import Chain

TRIES_MAX: Final = 5
"""Attempts at a change of the chain whose answer was lost."""


class LedgerFiles:
    """The file system. Made by `take`.

    Args:
        ledgers: BookKeeper.
        record: the chain, in ZooKeeper.
        root: the folder of the log: paths of files are below it.
        chain, version: as written when the log was taken.
    """

    def __init__(self, ledgers: Ledgers, record: ChainRecord, root: Path, chain: Chain, version: int) -> None:
        self._ledgers = ledgers
        self._record = record
        self._root = root
        self._chain = chain
        self._version = version
        self._lock = threading.RLock()
        self._contents: dict[int, LedgerBytes] = {}
        self._dropped: deque[LedgerBytes] = deque()
        self._lost = ""

    @classmethod
    def take(cls, ledgers: Ledgers, record: ChainRecord, root: Path, owner: str) -> "LedgerFiles":
        """Take the log from its former owner, who is refused from now on.

        Args:
            ledgers, record, root: see the class.
            owner: the name of this broker.

        Raises:
            StorageError: the record cannot be read.
            OSError: ZooKeeper or too many bookies do not answer; or another broker takes the log at the same time.
        """
        data, version = record.read()
        chain = (Chain.decode(data) if data else Chain()).taken(owner)
        try:
            version = record.write(chain.encode(), version)
        except VersionConflict:
            raise OSError(errno.ESTALE, "another broker takes the log at the same time") from None
        files = cls(ledgers, record, root, chain, version)
        files._recover()
        return files

    def _recover(self) -> None:
        """Open every file: from then on no entry of the former owner is stored. Then delete what was left over."""
        files = self._chain.files.values()
        for file, closed in zip(files, self._ledgers.open_all([file.ledger for file in files]), strict=True):
            self._contents[file.ledger] = LedgerBytes.closed(closed, file.cut)
        for ledger in self._chain.deleted:
            self._ledgers.delete(ledger)
        if self._chain.deleted:
            self._change(lambda chain: chain.purged(self._chain.deleted))

    def lost(self) -> str:
        """The reason why the log is no longer this broker's; no text: it is."""
        return self._lost

    # -------------------------------------------------------------------------------------------------------------- files

    def create(self, path: Path) -> LedgerFile:
        """A new, empty file.

        Raises:
            FileExistsError: there is one.
            OSError: it may be there or not; its name is not used again.
        """
        name = self._name(path)
        with self._lock:
            self._sweep()
            if name in self._chain.files:
                raise FileExistsError(errno.EEXIST, f"the log has a file {name}")
            ledger = self._ledgers.create(name)
            try:
                self._change(lambda chain: chain.with_file(name, ledger.id))
            except OSError:
                # The chain may name it, so it cannot be deleted before another change has overwritten that.
                self._chain = self._chain.with_deleted(ledger.id)
                raise
            content = self._contents[ledger.id] = LedgerBytes.written(ledger)
            return self._handle(content, writes=True)

    def open(self, path: Path) -> LedgerFile:
        """An existing file, for reading and cutting.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._lock:
            return self._handle(self._content(path), writes=False)

    def size(self, path: Path) -> int:
        """Bytes of a file."""
        with self._lock:
            return self._content(path).size

    def names(self, folder: Path) -> list[str]:
        """The names of the files in a folder."""
        with self._lock:
            paths = [self._root / name for name in self._chain.files]
        return [path.name for path in paths if path.parent == folder]

    def make_folder(self, folder: Path) -> None:
        """Nothing: a folder is a part of its files' names."""

    def replace(self, path: Path, over: Path) -> None:
        """Give a file another name, and delete the one that had it."""
        name, other = self._name(path), self._name(over)
        with self._lock:
            self._content(path)
            replaced = self._chain.files.get(other)
            self._change(lambda chain: chain.renamed(name, other))
            if replaced is not None and name != other:
                self._forget(replaced.ledger)

    def unlink(self, path: Path) -> None:
        """Delete a file; no error if there is none. Its open handles can still be read."""
        name = self._name(path)
        with self._lock:
            self._sweep()
            file = self._chain.files.get(name)
            if file is not None:
                self._change(lambda chain: chain.without(name))
                self._forget(file.ledger)

    def sync_folder(self, folder: Path) -> None:
        """Nothing: the chain is durable when a change of it is answered."""

    def free_bytes(self, folder: Path) -> int:
        """Room left at the bookies."""
        return self._ledgers.free_bytes()

    # --------------------------------------------------------------------------------------------------------------- parts

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _content(self, path: Path) -> LedgerBytes:
        file = self._chain.files.get(self._name(path))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, f"the log has no file {self._name(path)}")
        content = self._contents[file.ledger]
        if content.broken:
            # Recovery decides what of the last appends is stored. Handles of the old content still read what was confirmed.
            content = self._contents[file.ledger] = LedgerBytes.closed(self._ledgers.open(file.ledger), file.cut)
        return content

    def _handle(self, content: LedgerBytes, *, writes: bool) -> LedgerFile:
        return LedgerFile(
            content, self._truncate, self._released, self._append_failed, self._dropped.append, writes=writes
        )

    def _truncate(self, content: LedgerBytes, size: int) -> None:
        with self._lock:
            name = next(name for name, file in self._chain.files.items() if file.ledger == content.ledger)
            self._change(lambda chain: chain.cut(name, size))
            content.cut(size)

    def _released(self, content: LedgerBytes) -> None:
        with self._lock:
            if content.release():
                self._delete(content.ledger)

    def _sweep(self) -> None:
        """Release files whose handles are gone. Not when they go, because that may be on the thread of the event loop."""
        while self._dropped:
            self._released(self._dropped.popleft())

    def _forget(self, ledger: int) -> None:
        if self._contents.pop(ledger).delete():
            self._delete(ledger)

    def _delete(self, ledger: int) -> None:
        """Delete a ledger that is in the chain's list of deleted ones. What cannot be deleted now is deleted at the next take."""
        with contextlib.suppress(OSError):
            self._ledgers.delete(ledger)
            # Its line in the list goes with the next change.
            self._chain = self._chain.purged([ledger])

    def _append_failed(self) -> None:
        """Find out whether another broker has taken the log. A ledger may also be fenced by BookKeeper's own repair."""
        with self._lock, contextlib.suppress(OSError, StorageError):
            self._check_owner(Chain.decode(self._record.read()[0]))

    def _check_owner(self, stored: Chain) -> None:
        """Raises OSError if the stored chain has another owner, or this one in a later run."""
        if (stored.epoch, stored.owner) != (self._chain.epoch, self._chain.owner):
            self._lost = f"{stored.owner or 'another broker'} has taken the log (epoch {stored.epoch})"
            raise OSError(errno.ESTALE, self._lost)

    def _change(self, change: Callable[[Chain], Chain]) -> None:
        """Change the chain.

        Raises:
            OSError: it may be changed or not (the next change finds out), or another broker has taken the log (ESTALE).
        """
        try:
            wanted = change(self._chain)
        except StorageError as error:
            raise OSError(errno.ENOSPC, str(error)) from error
        for _ in range(TRIES_MAX):
            if self._lost:
                raise OSError(errno.ESTALE, self._lost)
            try:
                self._version = self._record.write(wanted.encode(), self._version)
            except VersionConflict:
                if self._reread(wanted):
                    return
            else:
                self._chain = wanted
                return
        raise OSError(errno.EAGAIN, "the record of the log's ledgers changes all the time")

    def _reread(self, wanted: Chain) -> bool:
        """The record has another version than expected; returns whether that is the wanted change, whose answer was lost."""
        data, version = self._record.read()
        stored = Chain.decode(data) if data else Chain()
        self._check_owner(stored)
        self._version = version
        if stored == wanted:
            self._chain = wanted
            return True
        return False
