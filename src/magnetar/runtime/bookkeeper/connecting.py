"""Connects a broker to ZooKeeper at its start, and says what is missing: an answer, BookKeeper's metadata, a node of its own.

<store>/cluster    the name of the cluster that has its log there; written at the first start
"""

import contextlib
import logging
import threading
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    SessionClosedRequireSaslError,
)
from kazoo.protocol.states import KeeperState

from magnetar.bookkeeper.network.zookeeper_client import OPEN, ZooKeeperSecurity, explained, silence
from magnetar.core.addresses import parse_zookeeper
from magnetar.core.errors import StorageError
from magnetar.core.settings import ClusterConfig
from magnetar.runtime.bookkeeper.kazoo_errors import UNANSWERED
from magnetar.runtime.bookkeeper.shards import make_shards
from magnetar.runtime.broker_storage import GivenUp

logger = logging.getLogger("magnetar.broker")

KAZOO: Final = logging.getLogger("magnetar.kazoo")
"""Gets kazoo's own lines."""

BOOKIES_KAZOO: Final = logging.getLogger("magnetar.bookkeeper.kazoo")
"""Gets those of the client that looks for bookies and ledgers."""

START_S: Final = 30.0
"""How long a start waits for ZooKeeper."""

PATIENCE_S: Final = 2.0
"""After this time without an answer, a start says what it waits for."""


class Connecting:
    """The connection of a broker to ZooKeeper, until it is there.

    Args:
        client: not started.
        cluster: whose.
        security: of the client.
        start_s, patience_s: see `START_S`, `PATIENCE_S`.
    """

    def __init__(
        self,
        client: KazooClient,
        cluster: ClusterConfig,
        security: ZooKeeperSecurity = OPEN,
        start_s: float = START_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._security = security
        self._hosts, self._path = parse_zookeeper(cluster.store)
        self._start_s = start_s
        self._patience_s = patience_s
        self._woken = threading.Event()
        self._given_up = False
        self._refused = False

    def give_up(self) -> None:
        """Make `connect` end. May be called on any thread."""
        self._given_up = True
        self._woken.set()

    def connect(self) -> None:
        """Connect, and check the cluster's nodes.

        Raises:
            StorageError: ZooKeeper does not answer; there is no BookKeeper; the node is another cluster's, or one with
                another number of shards. One line.
            GivenUp: `give_up` was called.
        """
        # Its lines come with each attempt, every second for as long as ZooKeeper is away, and do not say what they mean for this
        # broker: `Registry` says it once.
        for kazoo in (KAZOO, BOOKIES_KAZOO):
            kazoo.setLevel(logging.ERROR)
        self._client.add_listener(self._state_changed)
        try:
            self._connect()
            self._client.ensure_path(self._path)
            self._check_name()
            make_shards(self._client, self._path)
            self._check_ledgers()
        except (*UNANSWERED, ValueError) as error:
            raise self._wrong(error) from error
        finally:
            self._client.remove_listener(self._state_changed)

    def _connect(self) -> None:
        self._client.start_async()
        if not self._woken.wait(self._patience_s):
            logger.warning("ZooKeeper does not answer: %s; the broker tries for %g s", self.silence(), self._start_s)
            self._woken.wait(self._start_s - self._patience_s)
        if self._given_up:
            raise GivenUp
        if self._refused:
            raise self._wrong(AuthFailedError())
        if not self._client.connected:
            raise StorageError(
                f"{self._cluster.store}: ZooKeeper does not answer within {self._start_s:g} s: {self.silence()}"
            )

    def _state_changed(self, _state: object) -> None:
        # A client that is refused closes itself right after this: its state does not say later that it was refused.
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self._refused = True
        self._woken.set()

    def silence(self) -> str:
        """Which servers do not answer, and why. It asks them once more."""
        return silence(self._hosts, self._security)

    def _wrong(self, error: Exception) -> StorageError:
        """The fault of a ZooKeeper that answers, and what to do. A session begins before a user logs in."""
        table, user = f"[clusters.{self._cluster.name}.zookeeper]", self._cluster.zookeeper.user
        match error:
            case _ if self._refused:
                why = (
                    f"ZooKeeper refuses the user {user!a} or the password: look at user and password_file in {table}, and at the "
                    "login configuration of the servers"
                )
            case SessionClosedRequireSaslError():
                why = f'ZooKeeper wants a user: write user and password_file in {table}, with authentication = "sasl"'
            case NoAuthError():
                who = f"user {user!a}" if user else "a client without a user"
                why = (
                    f"the access lists of ZooKeeper's nodes do not allow it to {who}: write the user of their owner in {table}, "
                    "or change the lists with `setAcl -R`"
                )
            case ConnectionLoss() if self._security.sasl is not None:
                why = (
                    f"ZooKeeper ends the connection while user {user!a} logs in: it was stopped, or its servers have no SASL "
                    "(authProvider.sasl, and a login configuration)"
                )
            case _:
                why = explained(error)
        return StorageError(f"{self._cluster.store}: {why}")

    def _check_name(self) -> None:
        """Two files with the same store and different names of the cluster must not share one log."""
        path = f"{self._path}/cluster"
        with contextlib.suppress(NodeExistsError):
            self._client.create(path, self._cluster.name.encode())
        name = bytes(self._client.get(path)[0]).decode(errors="replace")
        if name != self._cluster.name:
            raise StorageError(
                f"{self._cluster.store}: cluster {name[:64]!a} has its log there: write another path in "
                f"[clusters.{self._cluster.name}] store"
            )

    def _check_ledgers(self) -> None:
        root = self._cluster.ledgers
        if self._client.exists(f"{root}/LAYOUT") is None:
            raise StorageError(
                f"zookeeper://{self._hosts}{root}: there is no metadata of BookKeeper: `bookkeeper shell initnewcluster` "
                f"makes them; [clusters.{self._cluster.name}] ledgers names the node"
            )
