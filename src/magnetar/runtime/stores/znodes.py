"""Limits, names and contents of the nodes of `runtime.stores.zookeeper`."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency

from magnetar.runtime.stores.writes import Done

TRANSACTION_BYTES_MAX: Final = 900_000
"""A ceiling: ZooKeeper's 1 MiB (`jute.maxbuffer`) less the bytes of a request that are not names and values."""

OPERATIONS_MAX: Final = 1_000
"""Size of grouped writes: a larger transaction delays all others for longer than it saves."""

COMMITS_KEPT: Final = 1_000
"""Transactions whose keys are remembered: a store that lags further reads everything again."""

READS_AT_ONCE: Final = 500
"""Requests under way while everything is read."""

BUCKETS: Final = 256
"""A listing of one node's children must stay below 1 MiB, too: so spread, some two million keys fit."""

_DOTS: Final = {".": "%2E", "..": "%2E%2E"}


class Write:
    """One transaction that waits: the keys to put, to delete, to compare, and the callback for its result."""

    __slots__ = ("deletes", "done", "expected", "operations", "puts", "size")

    def __init__(
        self,
        puts: Mapping[str, bytes],
        deletes: tuple[str, ...],
        expected: Mapping[str, int] | None,
        done: Done,
    ) -> None:
        self.puts = puts
        self.deletes = deletes
        self.expected = expected
        self.done = done
        self.operations = len(puts) + len(deletes)
        # Every key stands in its path and in the commit's list; some 60 bytes more for each operation.
        self.size = sum(4 * len(key) + len(value) + 60 for key, value in puts.items())
        self.size += sum(4 * len(key) + 60 for key in deletes)


def number(version: int) -> bytes:
    """A version as stored in a node."""
    return version.to_bytes(8, "big")


def key_of(path: str) -> str:
    """The key of an entry's node."""
    return unquote(path.rpartition("/")[2])


def entry_path(key: str) -> str:
    """Where an entry's node is, below `entries`."""
    name = quote(key, safe="")
    return f"{zlib.crc32(key.encode()) % BUCKETS:02x}/{_DOTS.get(name, name)}"


def encode(token: str, keys: list[str]) -> bytes:
    """A commit: whose it is, and the keys that it wrote."""
    return msgspec.msgpack.encode((token, keys))


def decode(data: bytes) -> tuple[str, list[str]]:
    """A commit read back."""
    return msgspec.msgpack.decode(data, type=tuple[str, list[str]])


def followed(error: Exception) -> bool:
    """Errors of operations that were undone because of another one's."""
    return isinstance(error, RolledBackError | RuntimeInconsistency)


class ZNodes:
    """Reading the nodes below one path. Everything raises kazoo's errors.

    Args:
        client: started.
        root: the path.
    """

    def __init__(self, client: KazooClient, root: str) -> None:
        self._client = client
        self._root = root

    def path(self, key: str) -> str:
        """Path of an entry's node."""
        return f"{self._root}/entries/{entry_path(key)}"

    def commit_path(self, version: int) -> str:
        """Path of a commit's node."""
        return f"{self._root}/commits/{version:020d}"

    def version(self, watch: Callable[[Any], None] | None = None) -> tuple[int, int]:
        """The last transaction's version, and ZooKeeper's of the node."""
        data, stat = self._client.get(f"{self._root}/version", watch=watch)
        return int.from_bytes(data, "big"), stat.version

    def read_all(self) -> dict[str, tuple[bytes, int]]:
        """Every key; keys that are written meanwhile may be in it or not."""
        folders = [f"{self._root}/entries/{bucket:02x}" for bucket in range(BUCKETS)]
        listed = [self._client.get_children_async(folder) for folder in folders]
        paths = [f"{folder}/{name}" for folder, names in zip(folders, listed, strict=True) for name in names.get()]
        return self._read(paths)

    def _read(self, paths: list[str]) -> dict[str, tuple[bytes, int]]:
        found: dict[str, tuple[bytes, int]] = {}
        for start in range(0, len(paths), READS_AT_ONCE):
            part = paths[start : start + READS_AT_ONCE]
            for path, answer in zip(part, [self._client.get_async(path) for path in part], strict=True):
                try:
                    data, _stat = answer.get()
                except NoNodeError:
                    continue
                found[key_of(path)] = (data[8:], int.from_bytes(data[:8], "big"))
        return found

    def written(self, after: int, up_to: int) -> dict[str, int] | None:
        """Keys that transactions with after < n <= up_to wrote, and which of them last; None: some are forgotten."""
        latest: dict[str, int] = {}
        for each in range(after + 1, up_to + 1):
            try:
                _token, keys = decode(self._client.get(self.commit_path(each))[0])
            except NoNodeError:
                return None
            latest |= dict.fromkeys(keys, each)
        return latest

    def read_some(self, keys: Iterable[str]) -> dict[str, tuple[bytes, int]]:
        """The given keys that exist: key -> (value, version)."""
        return self._read([f"{self._root}/entries/{entry_path(key)}" for key in keys])
