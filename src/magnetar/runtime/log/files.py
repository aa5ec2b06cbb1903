"""The operating system's file system, which implements `storage.files`."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

RENEW_BYTES: Final = 1 << 20
"""Written again by one call of the system."""

IOV_MAX = 1024
"""Buffers per call that every Linux and macOS takes."""

WRITE_THROUGH: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Linux: this write is durable when it returns (pwritev2(2)). Each call of the system costs a thread the interpreter, and under
load it waits for it: one is better than two."""

READ_NOW: Final[int] = getattr(os, "RWF_NOWAIT", 0)
"""Linux: this read takes the bytes that are in memory and does not wait for the disk (preadv2(2))."""

UNKNOWN: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})
"""Errors of a system that has the call, or the flag, only in its headers (an old kernel, a sandbox). Nothing was written."""

UNSYNCED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL})
"""The folder around a data folder may be one that its user must not read, or of a file system that syncs no folders."""

SMALL_BYTES_MAX: Final = 4096
"""A ceiling on the small files of a data folder, each of which holds one line: a larger one is something else."""

IS_LINK: Final = "is a symbolic link, which is not followed; put the file itself there"
IS_NO_FILE: Final = "is not a regular file"

AT_THE_END: Final = -1
"""As an offset: where the file's own position is, and with O_APPEND at its end."""


class OsFile:
    """An open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writev(self, buffers: Sequence[bytes]) -> int:
        """Append all buffers, also when the system takes only a part at a time."""
        total = 0
        for at in range(0, len(buffers), IOV_MAX):
            part = list(buffers[at : at + IOV_MAX])
            total += self._finish(part, os.writev(self._descriptor, part))
        return total

    def write_through(self, buffers: Sequence[bytes]) -> int:
        """Append all buffers, durably."""
        written = 0
        if WRITE_THROUGH and len(buffers) <= IOV_MAX:
            try:
                written = os.pwritev(self._descriptor, buffers, AT_THE_END, WRITE_THROUGH)
            except OSError as error:
                if error.errno not in UNKNOWN:
                    raise
        total = self._finish(buffers, written) if written else self.writev(buffers)
        if written < total:
            self.sync()
        return total

    def _finish(self, buffers: Sequence[bytes], written: int) -> int:
        """Write the bytes that one call has not taken; returns the bytes in all."""
        size = sum(map(len, buffers))
        if written < size:
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                count = os.write(self._descriptor, rest)
                if not count:
                    raise OSError("the disk took nothing")
                rest = rest[count:]
        return size

    def sync(self) -> None:
        """Fdatasync where there is one."""
        getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def behind(self, woken: Callable[[], None]) -> None:
        """None: only a sync makes bytes durable."""

    def renew(self, offset: int, end: int) -> None:
        """Make the pages dirty again, by writing their own content."""
        while offset < end:
            data = os.pread(self._descriptor, min(RENEW_BYTES, end - offset), offset)
            offset += os.pwrite(self._descriptor, data, offset)

    def pread(self, offset: int, size: int) -> bytes:
        """Read at an offset."""
        return os.pread(self._descriptor, size, offset)

    def pread_now(self, offset: int, size: int) -> bytearray:
        """Read at an offset the bytes that are in memory."""
        if not READ_NOW:
            raise BlockingIOError(errno.EAGAIN, "this system does not report it")
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor, [data], offset, READ_NOW)
        except OSError as error:
            if error.errno in UNKNOWN:
                raise BlockingIOError(errno.EAGAIN, "this file system does not report it") from None
            raise
        if count < size:
            raise BlockingIOError(errno.EAGAIN, f"{count} bytes of {size} are in memory")
        return data

    def truncate(self, size: int) -> None:
        """Cut the end off, durably."""
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # Readers of a segment that is being deleted keep the file open until the last of them is done.
        self.close()


def open_file(path: Path, flags: int, mode: int = 0o600, *, follow: bool = False) -> int:
    """Open a regular file of the data folder; its descriptor.

    A link would lead a write to another user's file, and a pipe would block its reader.

    Args:
        path: of the file.
        flags: of open(2).
        mode: of a file that is made.
        follow: a link leads to the file.

    Raises:
        OSError: it is a link or no regular file, or cannot be opened.
    """
    try:
        flags |= os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, IS_LINK, str(path)) from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, IS_NO_FILE, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, IS_NO_FILE, str(path))
    return descriptor


def read_small(path: Path, *, follow: bool = False) -> str:
    """The one line of a small file of the data folder, without blanks around it.

    Args:
        path: of the file.
        follow: see `open_file`.

    Raises:
        OSError: as `open_file`; also when it is larger than `SMALL_BYTES_MAX`, or no text.
    """
    descriptor = open_file(path, os.O_RDONLY, follow=follow)
    try:
        data = os.read(descriptor, SMALL_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > SMALL_BYTES_MAX:
        raise OSError(errno.EFBIG, f"is larger than {SMALL_BYTES_MAX} bytes, and should hold one line", str(path))
    try:
        return data.decode().strip()
    except UnicodeDecodeError:
        raise OSError(errno.EINVAL, "is not text, and should hold one line", str(path)) from None


def write_small(path: Path, text: str) -> None:
    """Write a small file durably, so that it is whole or not there.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, durably: what is synced in it is of no use where a power cut takes the folder.

    Raises:
        OSError: it cannot be made.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for each in reversed(made):
        try:
            sync_folder(each.parent)
        except OSError as error:
            if error.errno not in UNSYNCED:
                raise


def sync_folder(folder: Path) -> None:
    """Fsync of a folder: its list of names.

    Raises:
        OSError: it is not known to be durable.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OsFiles:
    """The operating system's files.

    Args:
        lost: returns why the folder is no longer this broker's, or "". It is called before a file is made and before the free
            space is checked, which the log does every 50 ms while it writes: once it is lost, nothing is accepted.
    """

    def __init__(self, lost: Callable[[], str] = lambda: "") -> None:
        self._lost = lost

    def _check(self) -> None:
        if reason := self._lost():
            raise OSError(errno.ESTALE, reason)

    def create(self, path: Path) -> OsFile:
        """A new file."""
        self._check()
        return OsFile(open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND))

    def open(self, path: Path) -> OsFile:
        """An existing file, which is no link."""
        return OsFile(open_file(path, os.O_RDWR))

    def size(self, path: Path) -> int:
        """Bytes."""
        return path.stat().st_size

    def names(self, folder: Path) -> list[str]:
        """The names of the files in a folder."""
        return [path.name for path in folder.iterdir()]

    def make_folder(self, folder: Path) -> None:
        """Make a folder with its parents, durably."""
        make_folder(folder)

    def replace(self, path: Path, over: Path) -> None:
        """Give a file the name of another one."""
        path.replace(over)

    def unlink(self, path: Path) -> None:
        """Delete a file."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Fsync of the folder."""
        sync_folder(folder)

    def free_bytes(self, folder: Path) -> int:
        """Room left."""
        self._check()
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize
