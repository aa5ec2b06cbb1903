"""The start of a broker on BookKeeper: what ZooKeeper lacks is one line, by a real ZooKeeper."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError
from kazoo.protocol.states import KeeperState

from magnetar.bookkeeper.network.zookeeper_client import OPEN, ZooKeeperSecurity, make_client
from magnetar.core import config
from magnetar.core.errors import StorageError
from magnetar.core.settings import ClusterConfig
from magnetar.runtime.bookkeeper.connecting import KAZOO, Connecting
from magnetar.runtime.bookkeeper.ledgers import VersionConflict
from magnetar.runtime.bookkeeper.shards import adopt_chain, make_shards, shard_path
from magnetar.runtime.bookkeeper.zookeeper_record import ZooKeeperRecord
from magnetar.runtime.broker_storage import GivenUp
from magnetar.storage.bookkeeper.chain import Chain
from tests.support import zookeeper as servers
from tests.support.brokers import free_port

SESSION_S = 4.0


def cluster(hosts: str, name: str = "west", more: str = "") -> ClusterConfig:
    """A cluster with its log below /one."""
    text = (
        f'[clusters.{name}]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nstorage = "bookkeeper"\n'
        f'store = "zookeeper://{hosts}/one"\n{more}'
    )
    return config.parse(text, Path("/x/clusters.toml")).cluster(name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ZooKeeper]:
    made = servers.ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    client = KazooClient(hosts=made.hosts)
    client.start(20)
    servers.make_bookkeeper(client, "/ledgers")
    client.stop()
    client.close()
    yield made
    made.kill()


@pytest.fixture
def client(server: servers.ZooKeeper) -> Iterator[KazooClient]:
    """Looks at the nodes."""
    made = KazooClient(hosts=server.hosts)
    made.start(20)
    yield made
    made.stop()
    made.close()


Connect = Callable[..., Connecting]


@pytest.fixture
def quiet() -> Iterator[None]:
    """The level of kazoo's lines is restored."""
    before = KAZOO.level
    yield
    KAZOO.setLevel(before)


@pytest.fixture
def connecting(quiet: None) -> Iterator[Connect]:
    clients: list[KazooClient] = []

    def made(cluster: ClusterConfig, **times: float) -> Connecting:
        client = KazooClient(
            hosts=cluster.store[len("zookeeper://") :].partition("/")[0], timeout=SESSION_S, logger=KAZOO
        )
        clients.append(client)
        return Connecting(client, cluster, **times)

    yield made
    for client in clients:
        client.stop()
        client.close()


def line_of(connecting: Connecting) -> str:
    with pytest.raises(StorageError) as caught:
        connecting.connect()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_name_is_recorded_and_compared(server: servers.ZooKeeper, connecting: Connect) -> None:
    for _ in range(2):
        connecting(cluster(server.hosts)).connect()
    assert line_of(connecting(cluster(server.hosts, "east"))) == (
        f"zookeeper://{server.hosts}/one: cluster 'west' has its log there: write another path in [clusters.east] store"
    )


def test_the_number_of_shards_is_recorded_and_compared(
    server: servers.ZooKeeper, client: KazooClient, connecting: Connect
) -> None:
    connecting(cluster(server.hosts)).connect()
    try:
        assert client.get("/one/shards")[0] == b"1"
        assert client.get_children("/one/shards") == ["0"]
        client.set("/one/shards", b"64")
        assert line_of(connecting(cluster(server.hosts))) == (
            "ZooKeeper, /one/shards: the cluster was made with '64' shards, and this version of Magnetar has '1': start the "
            "version that made it, or write another path in the cluster's store"
        )
    finally:
        client.set("/one/shards", b"1")


def test_a_chain_from_before_there_were_shards_is_moved(client: KazooClient) -> None:
    """All or nothing; a former owner that still runs cannot change it from then on, and a later call finds nothing to do."""
    client.create("/old")
    record = ZooKeeperRecord(client, "/old/chain")
    version = record.write(Chain().taken("a").encode(), -1)
    make_shards(client, "/old")
    for _ in range(2):
        adopt_chain(client, "/old")
        data, _ = ZooKeeperRecord(client, f"{shard_path('/old')}/chain").read()
        assert Chain.decode(data).owner == "a"
    with pytest.raises(VersionConflict):
        record.write(b"of the former owner", version)
    # A chain that is there already is not replaced.
    client.set("/old/chain", b"another")
    with pytest.raises(NodeExistsError):
        adopt_chain(client, "/old")
    assert record.read()[0] == b"another"


def test_a_broker_from_before_there_were_shards_is_kept_out(client: KazooClient) -> None:
    """It reads the chain where it was, and would begin with an empty log if there was none."""
    client.create("/new")
    make_shards(client, "/new")
    for _ in range(2):
        adopt_chain(client, "/new")
        with pytest.raises(StorageError, match="this version of Magnetar reads format 1"):
            Chain.decode(ZooKeeperRecord(client, "/new/chain").read()[0])


def test_a_zookeeper_without_bookkeeper(server: servers.ZooKeeper, connecting: Connect) -> None:
    line = line_of(connecting(cluster(server.hosts, more='ledgers = "/book/ledgers"')))
    assert line.startswith(f"zookeeper://{server.hosts}/book/ledgers: there is no metadata of BookKeeper: ")
    assert "`bookkeeper shell initnewcluster`" in line
    assert "[clusters.west] ledgers" in line


def test_a_zookeeper_that_is_away(quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    """Said soon, and the reason at the end; kazoo is silent, also when the client is stopped after that."""
    caplog.set_level(logging.INFO)
    away = f"127.0.0.1:{free_port()}"
    client = KazooClient(hosts=away, timeout=SESSION_S, logger=KAZOO)
    line = line_of(Connecting(client, cluster(away), start_s=0.5, patience_s=0.1))
    client.stop()
    client.close()
    assert line == f"zookeeper://{away}/one: ZooKeeper does not answer within 0.5 s: {away}: Connection refused"
    assert [record.getMessage() for record in caplog.records] == [
        f"ZooKeeper does not answer: {away}: Connection refused; the broker tries for 0.5 s"
    ]


def test_a_server_without_sasl_is_one_line(server: servers.ZooKeeper, quiet: None) -> None:
    user = 'user = "m"\npassword_file = "p"\n'
    security = ZooKeeperSecurity(sasl=("m", "secret"))
    client = make_client(server.hosts, SESSION_S, KAZOO, security)
    line = line_of(
        Connecting(client, cluster(server.hosts, more=f"[clusters.west.zookeeper]\n{user}"), security, start_s=5)
    )
    client.stop()
    client.close()
    assert ("ends the connection while user 'm' logs in: it was stopped, or its servers have no SASL" in line) or (
        "does not answer as a server of ZooKeeper that serves, or it has no SASL" in line
    )
    assert "secret" not in line


class Refused(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A client whose user is refused when its session has begun, and which has closed itself before its caller looks."""

    def start_async(self) -> threading.Event:
        for state in (KeeperState.CONNECTED, KeeperState.AUTH_FAILED, KeeperState.CLOSED):
            self._session_callback(state)
        return threading.Event()


def test_a_refused_user_is_one_line_when_the_client_has_closed_itself() -> None:
    user = 'user = "m"\npassword_file = "p"\n'
    refused = cluster("127.0.0.1:1", more=f"[clusters.west.zookeeper]\n{user}")
    assert line_of(Connecting(Refused(hosts="127.0.0.1:1"), refused, start_s=0, patience_s=0)) == (
        "zookeeper://127.0.0.1:1/one: ZooKeeper refuses the user 'm' or the password: look at user and password_file in "
        "[clusters.west.zookeeper], and at the login configuration of the servers"
    )


def test_nodes_of_a_user_are_closed_to_others(server: servers.ZooKeeper, quiet: None) -> None:
    """By the scheme `digest`, with the list of `creator_only`; a stranger gets one line."""
    text = (
        '[clusters.west]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nstorage = "bookkeeper"\n'
        f'store = "zookeeper://{server.hosts}/closed"\n'
    )
    closed = config.parse(text, Path("/x/clusters.toml")).cluster("west")
    lines = []
    for security in (ZooKeeperSecurity(digest=("m", "secret"), creator_only=True), OPEN):
        client = make_client(server.hosts, SESSION_S, KAZOO, security)
        try:
            Connecting(client, closed, security).connect()
        except StorageError as error:
            lines.append(str(error))
        finally:
            client.stop()
            client.close()
    assert "".join(lines) == (
        f"zookeeper://{server.hosts}/closed: the access lists of ZooKeeper's nodes do not allow it to a client without a user: "
        "write the user of their owner in [clusters.west.zookeeper], or change the lists with `setAcl -R`"
    )


def test_a_server_that_does_not_answer_is_named_too(connecting: Connect) -> None:
    away = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        open_port = f"127.0.0.1:{silent.getsockname()[1]}"
        line = line_of(connecting(cluster(f"{away},{open_port}"), start_s=0.4, patience_s=0.1))
    assert f": {away}: Connection refused, {open_port}: accepts connections, but does not answer" in line


def test_a_start_that_waits_for_zookeeper_can_be_given_up(connecting: Connect) -> None:
    waiting = connecting(cluster(f"127.0.0.1:{free_port()}"), start_s=600, patience_s=500)
    ends: list[BaseException] = []

    def run() -> None:
        try:
            waiting.connect()
        except GivenUp as error:
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    waiting.give_up()
    thread.join(20)
    assert len(ends) == 1
