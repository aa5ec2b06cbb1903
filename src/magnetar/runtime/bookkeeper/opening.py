"""Opens the storage of a broker without a disk: waits until this broker is the owner of the cluster's log, then takes it.

<store>/uuid     the identity of the cluster (`runtime.bookkeeper.identity`)
<store>/brokers  the brokers, each with its addresses (`runtime.bookkeeper.registry`)
<store>/cluster  its name (`runtime.bookkeeper.connecting`)
<store>/shards/0 the cluster's only shard (`runtime.bookkeeper.shards`):
    /owner       ephemeral: the broker that serves (`runtime.bookkeeper.ownership`)
    /chain       which ledgers hold the files of the log (`storage.bookkeeper.chain`)
<store>/chain    keeps brokers out that know nothing of shards
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kazoo.exceptions import KazooException
from msgspec.structs import replace

from magnetar.bookkeeper.network.zookeeper_client import SaslMissing, explained, make_client
from magnetar.broker.waiting.registration import Brokers, registration_of
from magnetar.core.addresses import parse_zookeeper
from magnetar.core.errors import StorageError
from magnetar.core.settings import BrokerConfig, BrokerEndpoints, ClusterConfig
from magnetar.runtime.bookkeeper.client_ledgers import ClientLedgers
from magnetar.runtime.bookkeeper.connecting import KAZOO, Connecting
from magnetar.runtime.bookkeeper.enough_bookies import EnoughBookies
from magnetar.runtime.bookkeeper.identity import identity_of
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.bookkeeper.ownership import SESSION_S, Ownership
from magnetar.runtime.bookkeeper.registry import Registry
from magnetar.runtime.bookkeeper.shards import adopt_chain, shard_path
from magnetar.runtime.bookkeeper.zookeeper_record import ZooKeeperRecord
from magnetar.runtime.broker_storage import BrokerStorage, GivenUp, LogReports, prove_deletions
from magnetar.runtime.log.lanes import Lanes
from magnetar.runtime.security.outgoing import bookie_security, zookeeper_security
from magnetar.runtime.stores.file_store import FileStore

ROOT: Final = Path("/")
"""The root of the file system of ledgers: the log is in a folder of it, the states of the broker are a file."""


class Opening:
    """The opening of one broker's storage: `register`, then `wait`, perhaps for hours, then `open`. All three block; call them on
    another thread.

    Args:
        cluster: whose.
        endpoints: name and addresses of this broker.
        reports: gets the reports of the log.
        stack: gets what is to be done at the end.
        changed: gets the brokers of the cluster when they have changed, on a thread of its own.

    Raises:
        ConfigError: a file of the security of these connections is missing or wrong.
        StorageError: a library is missing.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        endpoints: BrokerEndpoints,
        reports: LogReports,
        stack: contextlib.ExitStack,
        changed: Callable[[Brokers], None],
    ) -> None:
        self._cluster = cluster
        self._name = endpoints.name
        self._reports = reports
        self._stack = stack
        self._hosts, self._path = parse_zookeeper(cluster.store)
        where = f"clusters.{cluster.name}"
        self._bookie_security = bookie_security(cluster.bookies, f"{where}.bookies")
        self._zookeeper_security = zookeeper_security(cluster.zookeeper, f"{where}.zookeeper")
        try:
            self._zookeeper = make_client(self._hosts, SESSION_S, KAZOO, self._zookeeper_security)
        except SaslMissing as error:
            raise StorageError(str(error)) from None
        self._connecting = Connecting(self._zookeeper, cluster, self._zookeeper_security)
        own = registration_of(endpoints)
        self._shard = shard_path(self._path)
        self._ownership = Ownership(self._zookeeper, f"{self._shard}/owner", own)
        self._enough = EnoughBookies(cluster.ensemble, self._ownership.lost)
        self._ledgers: ClientLedgers | None = None
        self._registry = Registry(
            self._zookeeper,
            self._path,
            own,
            SESSION_S,
            changed,
            name_taken=self._ownership.give_up,
            silence=self._connecting.silence,
        )

    def give_up(self) -> None:
        """Make `register`, `wait` or `open` raise `GivenUp`, if they wait. May be called on any thread."""
        self._connecting.give_up()
        self._registry.give_up()
        self._ownership.give_up()
        self._enough.give_up()

    def register(self) -> None:
        """Connect to ZooKeeper, make this broker known to the others, and find the bookies.

        Raises:
            StorageError: see `Connecting.connect`; or another broker has this one's name.
            GivenUp: `give_up` was called.
        """
        self._stack.callback(self._zookeeper.close)
        self._stack.callback(self._zookeeper.stop)
        self._stack.callback(self._registry.close)
        self._stack.callback(self._ownership.close)
        self._connecting.connect()
        self._registry.register()
        # Now, not when the other broker has died: a takeover is faster, and what is wrong is said at the start.
        cluster = self._cluster
        self._ledgers = ClientLedgers.connect(
            self._hosts,
            root=cluster.ledgers,
            ensemble=cluster.ensemble,
            ack_quorum=cluster.ack_quorum,
            security=self._bookie_security,
            zookeeper_security=self._zookeeper_security,
            bookies_changed=self._enough.changed,
            lost=self._ownership.lost,
        )
        self._stack.callback(self._ledgers.close)

    def wait(self, waits: Callable[[], None]) -> None:
        """Wait until this broker is the owner.

        Args:
            waits: called once if another broker is the owner.

        Raises:
            StorageError: ZooKeeper does not answer, or another broker has got this one's name.
            GivenUp: `give_up` was called.
        """
        try:
            self._ownership.take(waits)
        except GivenUp:
            if reason_why := self._registry.lost():
                raise StorageError(f"{self._cluster.store}: {reason_why}") from None
            raise

    def seen(self) -> Brokers:
        """The brokers of the cluster as they were seen last. May be asked on any thread."""
        return self._registry.brokers

    def open(self, broker: BrokerConfig) -> BrokerStorage:
        """Take the log from its former owner, and recover it.

        Args:
            broker: the settings of brokers.

        Raises:
            StorageError: it cannot be opened, in one line.
            GivenUp: `give_up` was called while too few bookies took entries.
        """
        try:
            return self._open(broker)
        except OSError as error:
            raise StorageError(f"the log of cluster {self._cluster.name} cannot be taken: {error.strerror}") from error

    def _open(self, broker: BrokerConfig) -> BrokerStorage:
        ledgers = self._ledgers
        assert ledgers is not None, "opened before it was registered"
        self._enough.wait(lambda: ledgers.bookies, self._too_few)
        try:
            adopt_chain(self._zookeeper, self._path)
        except KazooException as error:
            raise self._explained(error) from error
        record = ZooKeeperRecord(self._zookeeper, f"{self._shard}/chain")
        files = LedgerFiles.take(ledgers, record, ROOT, self._name)

        def lost() -> str:
            return self._ownership.lost() or self._registry.lost() or files.lost()

        store = FileStore(files, ROOT / "state", lost=lost)
        self._stack.callback(store.close)
        log = Lanes(
            files,
            ROOT / "log",
            # An append is confirmed when an ack quorum of bookies has it on disk; there is nothing else to choose.
            replace(broker, fsync="always"),
            on_appended=self._reports.appended,
            on_failed=self._reports.append_failed,
            on_healed=self._reports.healed,
        )
        recovered = log.start()
        self._stack.callback(log.stop)
        stored = {key: value for key, (value, _version) in store.load().items()}
        try:
            identity = identity_of(self._zookeeper, self._path, self._cluster.name, stored)
        except KazooException as error:
            raise self._explained(error) from error
        prove_deletions(store, stored, recovered)
        return BrokerStorage(identity, log, store, stored, recovered, 0, lost, self._ownership.lease)

    def _too_few(self, bookies: int) -> str:
        cluster = self._cluster
        return (
            f"zookeeper://{self._hosts}{cluster.ledgers}: {bookies} bookies take entries, and cluster {cluster.name} needs "
            f"{cluster.ensemble}: start more, or write a smaller ensemble in [clusters.{cluster.name}]"
        )

    def _explained(self, error: Exception) -> StorageError:
        return StorageError(f"{self._cluster.store}: {explained(error)}")
