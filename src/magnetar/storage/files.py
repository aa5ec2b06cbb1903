"""The interface between the log and the file system: all file operations of the log go through it, so that tests can
inject failures. `read_whole` and `write_over` serve several users of it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol


class LogFile(Protocol):
    """One open segment."""

    def writev(self, buffers: Sequence[bytes]) -> int:
        """Append all buffers, in order; the number of bytes.

        Raises:
            OSError: not all of it was written; how much is unknown.
        """

    def write_through(self, buffers: Sequence[bytes]) -> int:
        """Append all buffers, in order, and make them durable, in one call of the system where it has one; the number of bytes.

        Everything that was written before has to be durable already: that one call makes nothing else durable.

        Raises:
            OSError: the write or the sync failed; it is not known which.
        """

    def sync(self) -> None:
        """Make everything written durable (fdatasync).

        Raises:
            OSError: nothing may be assumed of what was written since the last sync, and trying again proves nothing.
        """

    def behind(self, woken: Callable[[], None]) -> Callable[[], int] | None:
        """How to write without waiting for each write; None: what is written becomes durable by `sync` alone.

        Args:
            woken: called on any thread, perhaps more often than needed, when more of the file may have become durable, or
                when writing has failed. It must not wait.

        Returns:
            A function that returns how many bytes of the file, from its beginning, are durable without a `sync`. It raises
            OSError if these are not more than at its last call and never will be: nothing may be assumed of the bytes after
            them.
        """

    def renew(self, offset: int, end: int) -> None:
        """Write bytes of the file once more unchanged, so that the next sync covers them.

        After a failed sync the system may mark the pages as clean, so that another sync succeeds without writing them.
        Not for a file that `create` opened.

        Args:
            offset, end: the range of bytes; `end` is not past the end of the file.

        Raises:
            OSError: it failed; everything that can be read of the file is unchanged.
        """

    def pread(self, offset: int, size: int) -> bytes:
        """Read; fewer bytes only at the end of the file."""

    def pread_now(self, offset: int, size: int) -> bytes | bytearray:
        """Read bytes only if the system has them in memory.

        Raises:
            BlockingIOError: it does not have all of them, or does not say whether it has: `pread` may wait for the
                disk.
            OSError: as `pread`.
        """

    def truncate(self, size: int) -> None:
        """Cut the end off, durably."""

    def close(self) -> None:
        """Let go."""


class Files(Protocol):
    """A file system."""

    def create(self, path: Path) -> LogFile:
        """A new, empty file for appending and reading; it is an error if there is one."""

    def open(self, path: Path) -> LogFile:
        """An existing file for reading (and truncating)."""

    def size(self, path: Path) -> int:
        """Bytes."""

    def names(self, folder: Path) -> list[str]:
        """The names of the files in a folder."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder with its parents, durably, if it is not there."""

    def replace(self, path: Path, over: Path) -> None:
        """Give a file another name, in one step, and delete the one that had it; durable when the folder is synced."""

    def unlink(self, path: Path) -> None:
        """Delete a file; no error if it is gone."""

    def sync_folder(self, folder: Path) -> None:
        """Make the folder's list of files durable."""

    def free_bytes(self, folder: Path) -> int:
        """Room left for this user."""


def read_whole(files: Files, path: Path) -> bytes:
    """All bytes of a file.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
    """
    file = files.open(path)
    try:
        return file.pread(0, files.size(path))
    finally:
        file.close()


def write_over(files: Files, path: Path, content: Sequence[bytes]) -> tuple[LogFile, int]:
    """Write a new file durably, which then takes the name `path` from the old one; the open file, and its size.

    Raises:
        OSError: the old file has the name, or the new one.
    """
    temporary = path.with_name(path.name + ".new")
    files.unlink(temporary)
    file = files.create(temporary)
    try:
        size = file.writev(content)
        file.sync()
        files.replace(temporary, path)
        files.sync_folder(path.parent)
    except OSError:
        file.close()
        raise
    return file, size
