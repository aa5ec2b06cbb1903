"""Which broker serves, by a real ZooKeeper: one owner at a time, and a lease that ends before another one may follow."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.broker.waiting.registration import Registration, read_registration
from magnetar.runtime.bookkeeper.ledgers import VersionConflict
from magnetar.runtime.bookkeeper.ownership import Ownership
from magnetar.runtime.bookkeeper.zookeeper_record import ZooKeeperRecord
from magnetar.runtime.broker_storage import GivenUp
from magnetar.storage.bookkeeper.lease import LEASE_PART
from tests.support import zookeeper as servers
from tests.support.brokers import eventually

SESSION_S = 4.0

SHORT_S = 1.0
"""For a test that waits for the end of a lease: an owner may take its session for shorter than it is."""


def not_expected() -> None:
    """No other broker is the owner."""
    raise AssertionError("it waits")


def named(name: str) -> Registration:
    """The record of a broker."""
    return Registration(broker=name, pulsar=f"pulsar://{name}:6650")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.ZooKeeper]:
    made = servers.ZooKeeper(tmp_path)
    yield made
    made.kill()


Connect = Callable[[], KazooClient]


@pytest.fixture
def connect(server: servers.ZooKeeper) -> Iterator[Connect]:
    clients: list[KazooClient] = []

    def connected() -> KazooClient:
        client = KazooClient(hosts=server.hosts, timeout=SESSION_S)
        clients.append(client)
        client.start(20)
        return client

    yield connected
    for client in clients:
        client.stop()
        client.close()


class Waiting:
    """A broker that waits on a thread of its own."""

    def __init__(self, ownership: Ownership) -> None:
        self.ownership = ownership
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self.waits: list[bool] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.ownership.take(lambda: self.waits.append(True))
        except BaseException as error:  # noqa: BLE001 - reported by the test
            self.failure = error
        self.ended.set()


def test_one_after_the_other(connect: Connect) -> None:
    first_client, second_client = connect(), connect()
    first, second = Ownership(first_client, "/owner", named("a")), Ownership(second_client, "/owner", named("b"))
    assert first.lost() == "it has not become the owner"
    assert not first_client.exists("/owner")
    first.take(not_expected)
    assert first.lost() == ""
    assert read_registration(second_client.get("/owner")[0]) == named("a")
    waiting = Waiting(second)
    assert not waiting.ended.wait(0.2)
    first.close()
    assert first.lost() == "it has given up the log"
    first_client.stop()
    # The end of the session is enough: nothing waits until it expires.
    assert waiting.ended.wait(SESSION_S / 2)
    assert waiting.failure is None
    assert waiting.waits == [True]
    assert second.lost() == ""
    second.close()


def test_who_waits_can_give_up(connect: Connect) -> None:
    first = Ownership(connect(), "/owner", named("a"))
    first.take(not_expected)
    waiting = Waiting(Ownership(connect(), "/owner", named("b")))
    waiting.ownership.give_up()
    assert waiting.ended.wait(20)
    assert isinstance(waiting.failure, GivenUp)
    waiting.ownership.close()
    first.close()


def test_an_owner_without_zookeeper_ends_before_its_session(server: servers.ZooKeeper, connect: Connect) -> None:
    owner = Ownership(connect(), "/owner", named("a"), SHORT_S)
    owner.take(not_expected)
    server.kill()
    eventually(owner.lost, what="the lease is over")
    assert owner.lost() == f"ZooKeeper has not confirmed for {LEASE_PART * SHORT_S:.1f} s that /owner is its own"
    owner.close()


def test_an_owner_whose_node_is_gone_ends_at_once(connect: Connect) -> None:
    client = connect()
    owner = Ownership(client, "/owner", named("a"))
    owner.take(not_expected)
    client.delete("/owner")
    eventually(owner.lost, what="the owner has noticed")
    assert owner.lost() == "its session of ZooKeeper is over, and another broker may own the log"
    owner.close()


def test_a_record_is_changed_by_one_who_knows_its_version(server: servers.ZooKeeper, connect: Connect) -> None:
    record, other = ZooKeeperRecord(connect(), "/chain"), ZooKeeperRecord(connect(), "/chain")
    assert record.read() == (b"", -1)
    assert record.write(b"one", -1) == 0
    with pytest.raises(VersionConflict):
        other.write(b"two", -1)
    assert other.read() == (b"one", 0)
    assert other.write(b"two", 0) == 1
    with pytest.raises(VersionConflict):
        record.write(b"three", 0)
    assert record.read() == (b"two", 1)
    with pytest.raises(VersionConflict):
        ZooKeeperRecord(connect(), "/nowhere").write(b"x", 4)
