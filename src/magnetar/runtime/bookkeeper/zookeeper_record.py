"""The record of a chain in ZooKeeper: one node."""

import errno
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from magnetar.bookkeeper.network.zookeeper_client import explained
from magnetar.runtime.bookkeeper.kazoo_errors import UNANSWERED
from magnetar.runtime.bookkeeper.ledgers import VersionConflict

ANSWER_S: Final = 10.0
"""How long a request waits for an answer: as long as a session of ZooKeeper usually lasts."""


class ZooKeeperRecord:
    """`ChainRecord`, as one node.

    Args:
        client: connected.
        path: of the node; its parent is there.
    """

    def __init__(self, client: KazooClient, path: str) -> None:
        self._client = client
        self._path = path

    def read(self) -> tuple[bytes, int]:
        """See `ChainRecord`."""
        try:
            data, stat = self._answer(lambda: self._client.get_async(self._path))
        except NoNodeError:
            return b"", -1
        return data, stat.version

    def write(self, data: bytes, version: int) -> int:
        """See `ChainRecord`."""
        try:
            if version < 0:
                self._answer(lambda: self._client.create_async(self._path, data))
                return 0
            return int(self._answer(lambda: self._client.set_async(self._path, data, version)).version)
        except (BadVersionError, NodeExistsError, NoNodeError):
            raise VersionConflict from None

    def _answer(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask().get(timeout=ANSWER_S)
        except (BadVersionError, NodeExistsError, NoNodeError):
            raise
        except UNANSWERED as error:
            raise OSError(errno.ETIMEDOUT, f"ZooKeeper, {self._path}: {explained(error)}") from error
