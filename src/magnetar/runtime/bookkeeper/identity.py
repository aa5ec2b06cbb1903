"""The identity of a cluster on BookKeeper: the uuid by which other clusters know it.

<store>/uuid     made by the first broker that serves

The states of the brokers have it, too. A node that holds another uuid was changed by mistake: the other clusters would refuse its
links, or take its messages for those of another cluster.
"""

import contextlib
import uuid
from collections.abc import Mapping
from typing import Final

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from magnetar.core.errors import StorageError
from magnetar.metadata.keys import cluster_key
from magnetar.metadata.policies.namespace import ClusterData

SHOWN: Final = 40
"""Characters of a damaged node that a line shows."""


def identity_of(client: KazooClient, path: str, cluster: str, stored: Mapping[str, bytes]) -> str:
    """The uuid of the cluster. A node that is missing is made, with the uuid that is stored, if there is one.

    Args:
        client: connected.
        path: the node of the cluster.
        cluster: its name.
        stored: the states of the brokers.

    Raises:
        StorageError: the node holds no uuid, or another one than the states; one line, with the way out.
        KazooException: ZooKeeper refuses it or does not answer.
    """
    node = f"{path}/uuid"
    known = _known(cluster, stored)
    with contextlib.suppress(NodeExistsError):
        client.create(node, (known or str(uuid.uuid4())).encode())
    text = bytes(client.get(node)[0]).decode(errors="replace")
    way_out = (
        f"the other clusters would take this one for another; write {known}, which the states of its brokers have"
        if known
        else "the cluster has never served, so delete the node, and a start makes it again"
    )
    try:
        found = str(uuid.UUID(text))
    except ValueError:
        raise StorageError(f"ZooKeeper, {node}: it holds no uuid but {text[:SHOWN]!a}: {way_out}") from None
    if known and found != known:
        raise StorageError(f"ZooKeeper, {node}: it holds another cluster's uuid, {found}: {way_out}")
    return found


def _known(cluster: str, stored: Mapping[str, bytes]) -> str:
    """The uuid in the states of the brokers; empty: none."""
    data = stored.get(cluster_key(cluster))
    if data is None:
        return ""
    try:
        return msgspec.json.decode(data, type=ClusterData).uuid
    except msgspec.DecodeError as error:
        raise StorageError(f"the stored record of cluster {cluster} is damaged: {error}") from error
