"""Opens the metadata store that the configuration names."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar.core.addresses import SQLITE, parse_zookeeper
from magnetar.core.errors import StorageError
from magnetar.core.security import ZooKeeperSecurityConfig
from magnetar.metadata.store import Store
from magnetar.runtime.log.reserve import Reserve
from magnetar.runtime.stores.sqlite import SqliteStore

UNSECURED: Final = ZooKeeperSecurityConfig()


def open_store(
    address: str,
    cluster: str,
    folder: Path,
    reserve: Reserve,
    *,
    zookeeper: ZooKeeperSecurityConfig = UNSECURED,
    lost: Callable[[], str] = lambda: "",
    on_commit: Callable[[int], None] = lambda _version: None,
) -> Store:
    """The store of one broker, which is its only writer while the store is open.

    Args:
        address: `sqlite`, or `zookeeper://host:port/path`.
        cluster: whose; in ZooKeeper each cluster has a node of its own below the path.
        folder: the broker's, for `meta.sqlite`.
        reserve: of the same folder.
        zookeeper: `[metadata.zookeeper]`.
        lost: says why the folder is no longer this broker's, or "".
        on_commit: called with each transaction that is durable.

    Raises:
        StorageError: it cannot be opened, is in use, or kazoo is not installed.
        ConfigError: a file of the security of its connections is missing or wrong.
    """
    if address == SQLITE:
        return SqliteStore(
            folder / "meta.sqlite",
            reserve,
            lost=lost,
            on_commit=on_commit,
            way_out=f"; put back a copy of the data folder, or keep what is whole: magnetar recover {cluster} --salvage",
        )
    hosts, path = parse_zookeeper(address)
    try:
        from magnetar.runtime.security.outgoing import zookeeper_security
        from magnetar.runtime.stores.zookeeper import ZooKeeperStore
    except ModuleNotFoundError as error:
        if error.name == "kazoo":
            raise StorageError('metadata in ZooKeeper needs kazoo: pip install "magnetar[zookeeper]"') from None
        raise
    security = zookeeper_security(zookeeper, "metadata.zookeeper")
    return ZooKeeperStore(hosts, f"{path}/{cluster}", security, on_commit=on_commit)
