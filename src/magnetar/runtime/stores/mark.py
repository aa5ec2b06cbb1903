"""The number of the last transaction of a data folder's metadata store, kept in a file next to the store.

A store that went back in time (an older copy, a write-ahead log that was lost or cut) cannot know that. The mark is written
after every commit and without a sync: it may be older than the store, as after a power cut, and is never newer.

    two slots of 64 bytes, written in turn: magic (12), id of the store (36), transaction u64, crc32c of what precedes u32
"""

import logging
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from magnetar.core.errors import StorageError
from magnetar.runtime.log.files import open_file, sync_folder

logger = logging.getLogger("magnetar.store")

MAGIC: Final = b"MAGNETARS\x00\x00\x01"
SLOT_BYTES: Final = 64
ID_BYTES: Final = 36
"""Length of a uuid as text."""

_SLOT: Final = struct.Struct("<12s36sQ")
_SUM: Final = struct.Struct("<I")


class Marked(NamedTuple):
    """The content of the mark.

    Attributes:
        store: id of the store.
        version: of its newest transaction that is known to have been stored.
    """

    store: str
    version: int


class StoreMark:
    """The mark of one data folder; used by one thread at a time.

    Args:
        path: of the file; made if it is missing.

    Attributes:
        found: what it said when it was opened; None: it was not there.
        damaged: it was there and said nothing.

    Raises:
        StorageError: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = b""
        self._turn = 0
        self.found: Marked | None = None
        self.damaged = False
        try:
            self._file = open_file(path, os.O_RDWR | os.O_CREAT)
            data = os.pread(self._file, 2 * SLOT_BYTES, 0)
        except OSError as error:
            raise StorageError(f"cannot use {path}: {error.strerror}") from error
        slots = [_read(data[at * SLOT_BYTES : (at + 1) * SLOT_BYTES]) for at in range(2)]
        whole = [slot for slot in slots if slot is not None]
        if whole:
            self.found = max(whole, key=lambda slot: slot.version)
            self._turn = 1 - slots.index(self.found)
        self.damaged = bool(data) and not whole

    def begin(self, store: str, version: int) -> None:
        """Bind the folder to this store, which is at this transaction; durable when it returns.

        Raises:
            StorageError: it cannot be written.
        """
        self._store = store.encode()
        try:
            self._write(version)
            self._write(version)
            os.fsync(self._file)
            sync_folder(self._path.parent)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error

    def keep(self, version: int) -> None:
        """This transaction is stored durably."""
        if not self._store:
            return
        try:
            self._write(version)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error.strerror)
            self._store = b""

    def _write(self, version: int) -> None:
        head = _SLOT.pack(MAGIC, self._store, version)
        data = head + _SUM.pack(crc32c(head))
        os.pwrite(self._file, data.ljust(SLOT_BYTES, b"\0"), self._turn * SLOT_BYTES)
        self._turn = 1 - self._turn

    def close(self) -> None:
        """Make it durable and close the file."""
        try:
            os.fsync(self._file)
        except OSError as error:
            logger.warning("cannot sync %s: %s", self._path, error.strerror)
        os.close(self._file)


def _read(slot: bytes) -> Marked | None:
    if len(slot) < _SLOT.size + _SUM.size:
        return None
    magic, store, version = _SLOT.unpack_from(slot)
    if magic != MAGIC or _SUM.unpack_from(slot, _SLOT.size)[0] != crc32c(slot[: _SLOT.size]):
        return None
    return Marked(store.decode("ascii", "replace"), version)
