"""A cluster's data folder: checks its owner and format version, and that only one broker uses it.

VERSION     format of the folder
LOCK        held with flock while a broker runs; holds its pid
cluster     the name of the cluster
uuid        made with the folder; the cluster's identity towards its peers
reserve     room for the broker on a full disk, holds nothing
meta.sqlite, log/

A file can be removed or replaced while it is locked, and a second broker would then lock the new file. So the folder itself and
`log` are locked as well: another folder at their path has other data. NFS cannot lock folders; there only `LOCK` protects, and a
broker whose `LOCK` is gone stops.
"""

import contextlib
import errno
import fcntl
import logging
import os
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.errors import StorageError
from magnetar.runtime.log.files import make_folder, open_file, read_small, write_small

logger = logging.getLogger("magnetar.broker")

FOLDER_VERSION: Final = "1"

_UNLOCKABLE: Final = frozenset(
    {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EISDIR, errno.EACCES, errno.EPERM}
)
"""Errors of file systems that lock no folders, or only files that are open for writing."""

_PID_BYTES: Final = 32
"""Bytes of `LOCK` that are read, for the refusal of another broker."""


_SHOWN: Final = 60
"""Characters of what should be a name."""


def _holds_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except FileNotFoundError:
        return False


def explain(path: Path, error: OSError) -> str:
    """The error of a data folder, in one line that names the file."""
    name = error.filename if isinstance(error.filename, str) else str(path)
    of = f"{name}: " if name != str(path) else ""
    return f"cannot use the data folder {path}: {of}{error.strerror or error}"


def _in_use(path: Path, lock: int | None) -> StorageError:
    holder = ""
    with contextlib.suppress(OSError):
        if lock is None:
            lock = open_file(path / "LOCK", os.O_RDONLY)
        holder = os.pread(lock, _PID_BYTES, 0).decode("ascii", "replace").strip()
    return StorageError(
        f"the data folder {path} is in use by another broker (pid {holder if holder.isdigit() else '?'}); stop it first"
    )


class FolderLock:
    """The locks of one broker on its data folder.

    Args:
        path: of the data folder, which exists.

    Raises:
        StorageError: another broker has it.
        OSError: it cannot be locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._folders: dict[Path, int] = {}
        self._file = -1
        self.whole = True
        """Whether the folders are locked as well as the file."""
        try:
            self._folder(path)
            self._file = self._lock_file()
        except BaseException:
            self.close()
            raise

    def add(self, folder: Path) -> None:
        """Lock a folder inside the data folder.

        Raises:
            StorageError: another broker has it.
            OSError: it cannot be opened.
        """
        self._folder(folder)

    def _folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _in_use(self._path, None) from None
        except OSError as error:
            if error.errno not in _UNLOCKABLE:
                os.close(descriptor)
                raise
            self.whole = False
        self._folders[folder] = descriptor

    def _lock_file(self) -> int:
        descriptor = open_file(self._path / "LOCK", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refused = _in_use(self._path, descriptor)
            os.close(descriptor)
            raise refused from None
        except OSError:
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            raise OSError(
                errno.EMLINK, "is also the file of another name, which would be overwritten", str(self._path / "LOCK")
            )
        with contextlib.suppress(OSError):
            # For the refusal of another broker; a full disk is no reason not to start.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def lost(self) -> str:
        """Why the folder is no longer this broker's, or ""; from any thread.

        A `LOCK` that was removed is made again where the folder itself is locked: no other broker can have taken the folder.
        """
        with self._turn:
            if self._file < 0:
                return ""
            for folder, descriptor in self._folders.items():
                try:
                    there = folder.stat()
                except OSError as error:
                    return f"the folder {folder} is gone ({error.strerror}): it was moved or deleted while this broker used it"
                ours = os.fstat(descriptor)
                if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                    return f"another folder is at {folder}: the one that this broker used was moved or deleted"
            return self._look_at_file()

    def _look_at_file(self) -> str:
        path = self._path / "LOCK"
        ours = os.fstat(self._file)
        with contextlib.suppress(OSError):
            there = path.lstat()
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return ""
        if not self.whole:
            return f"{path} was removed or replaced while this broker used it: another one may have started on its data"
        try:
            made = self._lock_file()
        except StorageError as error:
            return str(error)
        except OSError:
            return ""  # what lies there now keeps another broker out as well
        os.close(self._file)
        self._file = made
        logger.warning("%s was removed while the broker ran, and is made again; nothing else should touch it", path)
        return ""

    def close(self) -> None:
        """Let another broker have it."""
        with self._turn:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
            for descriptor in self._folders.values():
                os.close(descriptor)
            self._folders.clear()


@dataclass
class DataFolder:
    """An opened data folder.

    Attributes:
        path: of the folder.
        uuid: the cluster's.
        lock: on it.
    """

    path: Path
    uuid: str
    lock: FolderLock

    @classmethod
    def open(cls, path: Path, *, cluster: str) -> "DataFolder":
        """Open a cluster's folder, making it if it is not there.

        Raises:
            StorageError: in use, of another version, of another cluster, damaged, or not writable.
        """
        try:
            make_folder(path)
            lock = FolderLock(path)
        except OSError as error:
            raise StorageError(explain(path, error)) from error
        try:
            return cls._open_locked(path, cluster, lock)
        except OSError as error:
            lock.close()
            raise StorageError(explain(path, error)) from error
        except StorageError:
            lock.close()
            raise

    @classmethod
    def _open_locked(cls, path: Path, cluster: str, lock: FolderLock) -> "DataFolder":
        version = path / "VERSION"
        if not os.path.lexists(version):
            if (path / "meta.sqlite").exists() or _holds_files(path / "log"):
                raise StorageError(
                    f"the data folder {path} has no VERSION file; it is not one of Magnetar's, or damaged"
                )
            write_small(path / "uuid", f"{uuid.uuid4()}\n")
            write_small(path / "cluster", f"{cluster}\n")
            write_small(version, f"{FOLDER_VERSION}\n")
        found = read_small(version)
        if found != FOLDER_VERSION:
            raise StorageError(
                f"the data folder {path} has format {found[:20]!r}, this version of Magnetar uses {FOLDER_VERSION}; "
                "start the version that wrote it"
            )
        owner = read_small(path / "cluster")
        if owner != cluster:
            shown = owner if owner.isprintable() and len(owner) < _SHOWN else repr(owner[:_SHOWN])
            raise StorageError(f"the data folder {path} belongs to cluster {shown}, not {cluster}")
        log = path / "log"
        make_folder(log)
        lock.add(log)
        return cls(path, read_uuid(path, cluster), lock)

    def close(self) -> None:
        """Let another broker use it."""
        self.lock.close()


def read_uuid(path: Path, cluster: str) -> str:
    """The identity in a data folder.

    Raises:
        StorageError: the file holds none.
        OSError: it cannot be read.
    """
    text = read_small(path / "uuid")
    try:
        good = str(uuid.UUID(text)) == text
    except ValueError:
        good = False
    if not good:
        raise StorageError(
            f"{path / 'uuid'} holds no uuid but {text[:40]!r}: the other clusters would take this one for another; put back what "
            f"it held, or have it made again from the metadata store: magnetar recover {cluster} --uuid"
        )
    return text
