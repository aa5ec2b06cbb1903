"""A cluster's data folder: whose it is, which version wrote it, and that only one broker uses it.

VERSION     format of the folder
LOCK        held with flock while a broker runs; holds its pid
uuid        made with the folder; the cluster's identity towards its peers
reserve     room for the broker on a full disk, holds nothing
meta.sqlite, log/
"""

import contextlib
import fcntl
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from magnetar.core.errors import StorageError
from magnetar.runtime.files import make_folder, sync_folder

FOLDER_VERSION: Final = "1"


def _write_durably(path: Path, text: str) -> None:
    """Write a small file so that it is whole or not there."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def _read(path: Path) -> str:
    """The line in a small file; what is no text is shown as such."""
    return path.read_text(errors="replace").strip()


@dataclass
class DataFolder:
    """An opened data folder.

    Attributes:
        path: of the folder.
        uuid: the cluster's.
    """

    path: Path
    uuid: str
    _lock: IO[str]

    @classmethod
    def open(cls, path: Path, *, cluster: str) -> "DataFolder":
        """Open a cluster's folder, making it if it is not there.

        Raises:
            StorageError: in use, of another version, of another cluster, or not writable.
        """
        try:
            make_folder(path)
            lock = (path / "LOCK").open("a+")
        except OSError as error:
            raise StorageError(f"cannot use the data folder {path}: {error.strerror}") from error
        try:
            return cls._open_locked(path, cluster, lock)
        except OSError as error:
            lock.close()
            raise StorageError(f"cannot use the data folder {path}: {error.strerror}") from error
        except StorageError:
            lock.close()
            raise

    @classmethod
    def _open_locked(cls, path: Path, cluster: str, lock: IO[str]) -> "DataFolder":
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "?"
            raise StorageError(f"the data folder {path} is in use by another broker (pid {holder})") from error
        with contextlib.suppress(OSError):
            # For whoever is refused; a full disk is no reason not to start.
            lock.seek(0)
            lock.truncate()
            os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        version = path / "VERSION"
        if not version.exists():
            if (path / "meta.sqlite").exists() or (path / "log").exists():
                raise StorageError(
                    f"the data folder {path} has no VERSION file; it is not one of Magnetar's, or damaged"
                )
            _write_durably(path / "uuid", f"{uuid.uuid4()}\n")
            _write_durably(path / "cluster", f"{cluster}\n")
            _write_durably(version, f"{FOLDER_VERSION}\n")
        found = _read(version)
        if found != FOLDER_VERSION:
            raise StorageError(
                f"the data folder {path} has format {found[:20]!r}, this version of Magnetar uses {FOLDER_VERSION}; "
                "start the version that wrote it"
            )
        owner = _read(path / "cluster")
        if owner != cluster:
            raise StorageError(f"the data folder {path} belongs to cluster {owner}, not {cluster}")
        return cls(path, _read(path / "uuid"), lock)

    def close(self) -> None:
        """Let another broker use it."""
        self._lock.close()
