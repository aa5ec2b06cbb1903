"""The shards of a cluster in ZooKeeper (docs/design/cluster.md#shards).

<store>/shards      how many the cluster has; written at the first start
<store>/shards/N    the shard with the number N; its owner and its chain are below this node
<store>/chain       keeps brokers out that know nothing of shards
"""

import contextlib
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from magnetar.core.errors import StorageError

SHARDS: Final = 1
"""Shards of a cluster. One broker serves at a time, so more of them would only make its group commits smaller."""

KEPT_OUT: Final = b'{"format":2}'
"""The content of the node that had the chain before there were shards. Brokers of that version know format 1, and end with one
line."""


def shard_path(path: str, number: int = 0) -> str:
    """The node of a shard.

    Args:
        path: the node of the cluster.
        number: of the shard, from 0 on.
    """
    return f"{path}/shards/{number}"


def make_shards(client: KazooClient, path: str) -> None:
    """Make the nodes of the shards at the first start of a cluster, and compare their number with this version's at every other.

    Args:
        client: connected.
        path: the node of the cluster, which is there.

    Raises:
        StorageError: the cluster has another number of shards.
        KazooException: ZooKeeper refuses it or does not answer.
    """
    with contextlib.suppress(NodeExistsError):
        client.create(f"{path}/shards", str(SHARDS).encode())
    count = bytes(client.get(f"{path}/shards")[0]).decode(errors="replace")
    if count != str(SHARDS):
        raise StorageError(
            f"ZooKeeper, {path}/shards: the cluster was made with {count[:20]!a} shards, and this version of Magnetar has "
            f"'{SHARDS}': start the version that made it, or write another path in the cluster's store"
        )
    for number in range(SHARDS):
        with contextlib.suppress(NodeExistsError):
            client.create(shard_path(path, number))


def adopt_chain(client: KazooClient, path: str) -> None:
    """Take over the chain of a cluster that was made before there were shards, and keep brokers of that version out.

    Only the owner calls this. The former node of the chain gets content that such a broker refuses (`KEPT_OUT`). Otherwise it
    would find no chain, and serve a new, empty cluster. A chain that is there moves into the only shard in the same transaction.

    Args:
        client: connected.
        path: the node of the cluster.

    Raises:
        KazooException: ZooKeeper refuses it or does not answer.
    """
    former = f"{path}/chain"
    try:
        data, stat = client.get(former)
    except NoNodeError:
        client.create(former, KEPT_OUT)
        return
    if data == KEPT_OUT:
        return
    transaction = client.transaction()
    transaction.create(f"{shard_path(path)}/chain", bytes(data))
    transaction.set_data(former, KEPT_OUT, stat.version)
    for result in transaction.commit():
        if isinstance(result, Exception):
            raise result
