"""Opens the storage of a broker without a disk: waits until this broker is the owner of the cluster's log, then takes it.

<store>/uuid     the identity of the cluster
<store>/owner    ephemeral: the name of the broker that serves (`runtime.bookkeeper.ownership`)
<store>/chain    which ledgers hold the files of the log (`storage.chain`)
"""

import contextlib
import logging
import threading
import uuid
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError
from kazoo.handlers.threading import KazooTimeoutError
from msgspec.structs import replace

from magnetar.broker.catalog.deletion_proofs import begin_proving
from magnetar.core.addresses import parse_zookeeper
from magnetar.core.errors import StorageError
from magnetar.core.settings import BrokerConfig, ClusterConfig
from magnetar.runtime.bookkeeper.client_ledgers import ClientLedgers
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.bookkeeper.ownership import SESSION_S, Ownership
from magnetar.runtime.bookkeeper.zookeeper_record import ZooKeeperRecord
from magnetar.runtime.broker_storage import BrokerStorage, GivenUp, LogReports
from magnetar.runtime.log.lanes import Lanes
from magnetar.runtime.stores.file_store import FileStore

logger = logging.getLogger("magnetar.broker")

START_S: Final = 30.0
"""How long a start waits for ZooKeeper."""

ROOT: Final = Path("/")
"""The root of the file system of ledgers: the log is in a folder of it, the states of the broker are a file."""


class Opening:
    """The opening of one broker's storage, on a thread of its own because it may wait for hours.

    Args:
        cluster: whose.
        broker: the settings of brokers.
        reports: gets the reports of the log.
        stack: gets what is to be done at the end.
    """

    def __init__(
        self, cluster: ClusterConfig, broker: BrokerConfig, reports: LogReports, stack: contextlib.ExitStack
    ) -> None:
        self._cluster = cluster
        # An append is confirmed when an ack quorum of bookies has it on disk; there is nothing else to choose.
        self._broker = replace(broker, fsync="always")
        self._reports = reports
        self._stack = stack
        self._stopped = threading.Event()
        self._ownership: Ownership | None = None

    def give_up(self) -> None:
        """Make `open` raise `GivenUp` if it waits to become the owner. May be called on any thread."""
        self._stopped.set()
        if self._ownership is not None:
            self._ownership.give_up()

    def open(self) -> BrokerStorage:
        """Wait, take the log, recover.

        Raises:
            StorageError: it cannot be opened, in one line.
            GivenUp: `give_up` was called.
        """
        hosts, path = parse_zookeeper(self._cluster.store)
        zookeeper = self._connected(hosts, path)
        identity = self._identity(zookeeper, f"{path}/uuid")
        ownership = self._ownership = Ownership(zookeeper, f"{path}/owner", self._cluster.broker)
        if self._stopped.is_set():
            raise GivenUp
        self._stack.callback(ownership.close)
        if other := ownership.owner():
            logger.info(
                "broker %s serves cluster %s; broker %s waits to take over",
                other,
                self._cluster.name,
                self._cluster.broker,
            )
        ownership.take()
        try:
            return self._taken(ownership, zookeeper, hosts, path, identity)
        except OSError as error:
            raise StorageError(f"the log of cluster {self._cluster.name} cannot be taken: {error.strerror}") from error

    def _connected(self, hosts: str, path: str) -> KazooClient:
        client = KazooClient(hosts=hosts, timeout=SESSION_S, logger=logging.getLogger("magnetar.kazoo"))
        self._stack.callback(client.close)
        self._stack.callback(client.stop)
        try:
            client.start(timeout=START_S)
            client.ensure_path(path)
        except KazooTimeoutError:
            raise StorageError(f"{self._cluster.store}: ZooKeeper does not answer within {START_S:g} s") from None
        except (KazooException, ValueError) as error:
            raise StorageError(f"{self._cluster.store}: {str(error) or type(error).__name__}") from error
        return client

    def _identity(self, client: KazooClient, path: str) -> str:
        """The uuid of the cluster; made by the first broker that starts."""
        try:
            with contextlib.suppress(NodeExistsError):
                client.create(path, str(uuid.uuid4()).encode())
            text = bytes(client.get(path)[0]).decode(errors="replace")
        except KazooException as error:
            raise StorageError(f"{self._cluster.store}: {str(error) or type(error).__name__}") from error
        try:
            return str(uuid.UUID(text))
        except ValueError:
            raise StorageError(f"{self._cluster.store}: the node {path} holds no uuid but {text[:40]!r}") from None

    def _taken(
        self, ownership: Ownership, zookeeper: KazooClient, hosts: str, path: str, identity: str
    ) -> BrokerStorage:
        cluster = self._cluster
        ledgers = ClientLedgers.connect(
            hosts, root=cluster.ledgers, ensemble=cluster.ensemble, ack_quorum=cluster.ack_quorum
        )
        self._stack.callback(ledgers.close)
        files = LedgerFiles.take(ledgers, ZooKeeperRecord(zookeeper, f"{path}/chain"), ROOT, cluster.broker)

        def lost() -> str:
            return ownership.lost() or files.lost()

        store = FileStore(files, ROOT / "state", lost=lost)
        self._stack.callback(store.close)
        stored = {key: value for key, (value, _version) in store.load().items()}
        log = Lanes(
            files,
            ROOT / "log",
            self._broker,
            on_appended=self._reports.appended,
            on_failed=self._reports.append_failed,
            on_healed=self._reports.healed,
        )
        recovered = log.start()
        self._stack.callback(log.stop)
        for piece in begin_proving(stored, recovered.topics):
            store.apply(piece.puts)
            stored |= piece.puts
        for problem in recovered.problems:
            logger.error("%s", problem)
        return BrokerStorage(identity, log, store, stored, recovered, 0, lost)
