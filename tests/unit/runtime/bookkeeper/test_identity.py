"""The identity of a cluster in a real ZooKeeper: made once, and never exchanged for another one."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient

from magnetar.core.errors import StorageError
from magnetar.metadata.keys import cluster_key
from magnetar.metadata.policies.namespace import ClusterData
from magnetar.runtime.bookkeeper.identity import identity_of
from tests.support import zookeeper as servers

OWN, OTHER = "550e8400-e29b-41d4-a716-446655440000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"

STORED = {cluster_key("west"): msgspec.json.encode(ClusterData(uuid=OWN))}
"""The states of the brokers, after the first start."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KazooClient]:
    server = servers.ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    made = KazooClient(hosts=server.hosts)
    made.start(20)
    yield made
    made.stop()
    made.close()
    server.kill()


@pytest.fixture
def path(client: KazooClient, tmp_path: Path) -> str:
    """Of the cluster's node; there is none below it."""
    made = f"/{tmp_path.name}"
    client.create(made)
    return made


def refused(client: KazooClient, path: str, stored: dict[str, bytes]) -> str:
    """The one line; the node stays as it is."""
    before = client.get(f"{path}/uuid")
    with pytest.raises(StorageError) as caught:
        identity_of(client, path, "west", stored)
    assert client.get(f"{path}/uuid") == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_is_made_once(client: KazooClient, path: str) -> None:
    made = identity_of(client, path, "west", {})
    assert str(uuid.UUID(made)) == made
    assert identity_of(client, path, "west", {}) == made
    assert client.get(f"{path}/uuid")[0] == made.encode()


def test_a_node_that_is_missing_is_made_again(client: KazooClient, path: str) -> None:
    assert identity_of(client, path, "west", STORED) == OWN
    assert client.get(f"{path}/uuid")[0] == OWN.encode()


@pytest.mark.parametrize("damaged", [b"", b"\xff\x00", OWN[:-1].encode(), b"x" * 100])
def test_a_node_that_holds_no_uuid(client: KazooClient, path: str, damaged: bytes) -> None:
    client.create(f"{path}/uuid", damaged)
    text = damaged.decode(errors="replace")[:40]
    assert refused(client, path, STORED) == (
        f"ZooKeeper, {path}/uuid: it holds no uuid but {text!a}: the other clusters would take this one for another; write "
        f"{OWN}, which the states of its brokers have"
    )
    assert refused(client, path, {}) == (
        f"ZooKeeper, {path}/uuid: it holds no uuid but {text!a}: the cluster has never served, so delete the node, and a start "
        "makes it again"
    )


def test_a_node_that_holds_the_uuid_of_another_cluster(client: KazooClient, path: str) -> None:
    client.create(f"{path}/uuid", OTHER.encode())
    assert refused(client, path, STORED) == (
        f"ZooKeeper, {path}/uuid: it holds another cluster's uuid, {OTHER}: the other clusters would take this one for another; "
        f"write {OWN}, which the states of its brokers have"
    )


def test_a_damaged_record_of_the_cluster(client: KazooClient, path: str) -> None:
    with pytest.raises(StorageError, match="^the stored record of cluster west is damaged: "):
        identity_of(client, path, "west", {cluster_key("west"): b"{"})
