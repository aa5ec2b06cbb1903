"""Space on the disk that is reserved for the writes that a full disk needs.

The log leaves space free (`disk_free_bytes_min`), but other programs fill disks to the last byte. Then cursors could not be
stored, and retention could delete nothing: a disk full of acknowledged messages would stay full. The reserve is a file without
content. On a full disk it is cut, a part at a time, and it is made as large again when there is space.
"""

import errno
import logging
import os
import time
from pathlib import Path
from typing import Final

from magnetar.runtime.log.files import open_file

logger = logging.getLogger("magnetar.broker")

RESERVE_BYTES: Final = 8 << 20
"""Twice what SQLite writes before it tidies its log up: cursors of thousands of subscriptions, and records of as many topics."""

PART_BYTES: Final = 512 << 10
"""Bytes released at a time: the program that filled the disk takes space that is not used at once."""

FREE_BYTES_MIN: Final = 4 * RESERVE_BYTES
"""With less free space the reserve is not made larger: it must not fill the disk itself."""

LOOK_S: Final = 10.0
"""Time between two attempts to make it as large as it was."""

_WRONG: Final = frozenset({errno.ELOOP, errno.EINVAL, errno.EMLINK, errno.EISDIR, errno.EACCES, errno.EPERM})
"""Errors which show that the file with the reserve's name is not a reserve. They are logged; a full disk is not."""


class Reserve:
    """The reserve of one data folder; used by one thread at a time.

    Args:
        path: of the file; made if there is room. Where it cannot be made there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._look_s = 0.0
        self._size = -1
        self._logged = False
        self.keep()

    @property
    def needed(self) -> bool:
        """Whether hardly anything is left on the disk."""
        try:
            return self._free() < PART_BYTES
        except OSError:
            return False

    def give(self) -> bool:
        """Give a part of it away; whether there was any."""
        try:
            file = self._open(os.O_WRONLY)
        except OSError:
            return False
        try:
            size = os.fstat(file).st_size
            if not size:
                return False
            self._size = max(0, size - PART_BYTES)
            os.ftruncate(file, self._size)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def keep(self) -> None:
        """Make it as large as it should be, if it is not, there is space, and the last check was not a moment ago."""
        now_s = time.monotonic()
        if self._size == RESERVE_BYTES or now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        try:
            self._make()
        except OSError as error:
            if error.errno in _WRONG and not self._logged:
                self._logged = True
                logger.warning("there is no reserve for a full disk: %s %s", self._path, error.strerror)

    def _make(self) -> None:
        if self._free() < FREE_BYTES_MIN:
            return
        file = self._open(os.O_WRONLY | os.O_CREAT)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, RESERVE_BYTES)
            else:
                os.pwrite(file, bytes(RESERVE_BYTES), 0)
            self._size = RESERVE_BYTES
        finally:
            os.close(file)

    def _open(self, flags: int) -> int:
        """Open the file, which will be cut; refuse it if it has a second name (hard link)."""
        file = open_file(self._path, flags)
        if os.fstat(file).st_nlink > 1:
            os.close(file)
            raise OSError(errno.EMLINK, "is also the file of another name, which would be cut", str(self._path))
        return file

    def _free(self) -> int:
        room = os.statvfs(self._path.parent)
        return room.f_bavail * room.f_frsize
