"""A file system in memory that fails on purpose: the `storage.files.Files` of tests and the simulator.

Bytes that were written and not synced are *volatile*: `crash` keeps any prefix of it, or garbage, or nothing, as the
random source says. A file exists durably only after its folder was synced.
"""

import errno
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from magnetar.storage.files import LogFile
from magnetar_sim.host.breakable import Breakable


class MemoryFile:
    """One file: its durable bytes, and the volatile bytes written after them."""

    def __init__(self, files: "MemoryFiles", path: Path) -> None:
        self._files = files
        self.path = path
        self.data = bytearray()
        self.synced = 0
        self.spoiled = False

    def writev(self, buffers: Sequence[bytes]) -> int:
        """Append; a fault may leave a part of the bytes written."""
        with self._files.lock:
            joined = b"".join(buffers)
            fault = self._files.fault("write", self.path)
            if fault is not None:
                keep = self._files.random.randint(0, len(joined))
                self.data += joined[:keep]
                raise fault
            if self._files.used() + len(joined) > self._files.capacity:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.data += joined
            return len(joined)

    def write_through(self, buffers: Sequence[bytes]) -> int:
        """Both, one of which may fail."""
        count = self.writev(buffers)
        self.sync()
        return count

    def sync(self) -> None:
        """Make everything durable; after a failed sync it is unknown for ever which part is durable."""
        with self._files.lock:
            fault = self._files.fault("sync", self.path)
            if fault is not None:
                self.spoiled = True
                raise fault
            if self.spoiled:
                raise AssertionError(f"{self.path.name} was synced again after a sync had failed")
            self.synced = len(self.data)

    def behind(self, woken: Callable[[], None]) -> None:
        """None: only a sync makes bytes durable."""

    def renew(self, offset: int, end: int) -> None:
        """Mark what is not durable as dirty again, if all of it is written."""
        with self._files.lock:
            fault = self._files.fault("write", self.path)
            if fault is not None:
                raise fault
            assert end <= len(self.data), f"{self.path.name} ends in front of {end}"
            if offset <= self.synced and end == len(self.data):
                self.spoiled = False

    def pread(self, offset: int, size: int) -> bytes:
        """Read."""
        with self._files.lock:
            fault = self._files.fault("read", self.path)
            if fault is not None:
                raise fault
            return bytes(self.data[offset : offset + size])

    def pread_now(self, offset: int, size: int) -> bytes:
        """Read bytes that are there; a fault of kind "wait" raises as if it had to wait."""
        with self._files.lock:
            fault = self._files.fault("wait", self.path)
            if fault is not None:
                raise fault
        data = self.pread(offset, size)
        if len(data) < size:
            raise BlockingIOError(errno.EAGAIN, f"{len(data)} bytes of {size} are there")
        return data

    def truncate(self, size: int) -> None:
        """Cut, durably."""
        with self._files.lock:
            fault = self._files.fault("truncate", self.path)
            if fault is not None:
                raise fault
            del self.data[size:]
            self.spoiled = False
            self.synced = len(self.data)

    def close(self) -> None:
        """Nothing to let go of."""


class MemoryFiles(Breakable):
    """A file system in memory.

    Rules are asked before each write, sync, create, unlink, truncate and read, and "wait" before a read of bytes that are in
    memory.

    Args:
        rng: decides what survives a crash.
        capacity: bytes of all files together.
    """

    def __init__(self, rng: random.Random, capacity: int = 1 << 40) -> None:
        super().__init__()
        self.random = rng
        self.capacity = capacity
        self.lock = threading.RLock()
        self._files: dict[Path, MemoryFile] = {}
        self._durable: set[Path] = set()
        self._unlinked: dict[Path, MemoryFile] = {}

    def content(self, path: Path) -> bytearray:
        """The bytes of a file, to be damaged."""
        return self._files[path].data

    def used(self) -> int:
        """Bytes of all files."""
        return sum(len(file.data) for file in self._files.values())

    def crash(self) -> "MemoryFiles":
        """The file system as it is found after a power cut."""
        with self.lock:
            after = MemoryFiles(self.random, self.capacity)
            returned = {path: file for path, file in self._unlinked.items() if self.random.random() < 0.5}
            for path, file in {**returned, **self._files}.items():
                if path not in self._durable and path not in returned and self.random.random() < 0.5:
                    continue
                survivor = MemoryFile(after, path)
                volatile = file.data[file.synced :]
                kept = volatile[: self.random.randint(0, len(volatile))]
                if kept and self.random.random() < 0.3:
                    # A block that was never written shows what was there before: zeros.
                    hole = self.random.randrange(len(kept))
                    kept[hole : hole + 64] = bytes(len(kept[hole : hole + 64]))
                survivor.data = file.data[: file.synced] + kept
                survivor.synced = len(survivor.data)
                after._files[path] = survivor
                after._durable.add(path)
            return after

    # ---------------------------------------------------------------------------------------------------------- Files

    def create(self, path: Path) -> LogFile:
        """A new file."""
        with self.lock:
            fault = self.fault("create", path)
            if fault is not None:
                raise fault
            if path in self._files:
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            file = self._files[path] = MemoryFile(self, path)
            return file

    def open(self, path: Path) -> LogFile:
        """An existing file."""
        with self.lock:
            if path not in self._files:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            return self._files[path]

    def size(self, path: Path) -> int:
        """Bytes."""
        with self.lock:
            if path not in self._files:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            return len(self._files[path].data)

    def names(self, folder: Path) -> list[str]:
        """The names of the files in a folder."""
        with self.lock:
            return [path.name for path in self._files if path.parent == folder]

    def make_folder(self, folder: Path) -> None:
        """Folders are everywhere."""

    def replace(self, path: Path, over: Path) -> None:
        """Give a file the name of another one."""
        with self.lock:
            file = self._files.pop(path)
            file.path = over
            self._files[over] = file
            self._durable.discard(path)

    def unlink(self, path: Path) -> None:
        """Delete; until its folder is synced a crash may restore it."""
        with self.lock:
            fault = self.fault("unlink", path)
            if fault is not None:
                raise fault
            if path in self._durable and path in self._files:
                self._unlinked[path] = self._files[path]
            self._files.pop(path, None)
            self._durable.discard(path)

    def sync_folder(self, folder: Path) -> None:
        """The files of a folder exist durably."""
        with self.lock:
            fault = self.fault("sync", folder)
            if fault is not None:
                raise fault
            self._durable |= {path for path in self._files if path.parent == folder}
            self._unlinked = {path: file for path, file in self._unlinked.items() if path.parent != folder}

    def free_bytes(self, folder: Path) -> int:
        """Room left."""
        with self.lock:
            return max(0, self.capacity - self.used())
