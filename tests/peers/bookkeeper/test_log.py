"""The log of a broker and its store on real bookies: the suites of files and stores, and takeovers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.metadata.store import Store
from magnetar.runtime.bookkeeper.client_ledgers import ClientLedgers
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.bookkeeper.zookeeper_record import ZooKeeperRecord
from magnetar.runtime.stores.file_store import FileStore
from magnetar.storage.files import Files
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.files_conformance import FilesConformance
from tests.support.memory_ledgers import ROOT
from tests.support.store_conformance import StoreConformance
from tests.unit.storage.harness import TOPIC, Log, entry

pytestmark = pytest.mark.timeout(300)


class Owners:
    """Brokers that take one log, one after the other."""

    def __init__(self, cluster: BookKeeperCluster, path: str) -> None:
        self._cluster = cluster
        self._path = path
        self._zookeeper = KazooClient(hosts=cluster.hosts)
        self._zookeeper.start(20)
        self._zookeeper.ensure_path("/magnetar")
        self.clients: list[ClientLedgers] = []

    def take(self, owner: str) -> LedgerFiles:
        self.clients.append(ClientLedgers.connect(self._cluster.hosts))
        return LedgerFiles.take(self.clients[-1], ZooKeeperRecord(self._zookeeper, self._path), ROOT, owner)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self._zookeeper.stop()
        self._zookeeper.close()


@pytest.fixture
def owners(cluster: BookKeeperCluster, request: pytest.FixtureRequest) -> Iterator[Owners]:
    made = Owners(cluster, f"/magnetar/{request.node.name}")
    yield made
    made.close()


class TestLedgerFiles(FilesConformance):
    @pytest.fixture
    def files(self, owners: Owners) -> Files:
        return owners.take("a")

    @pytest.fixture
    def folder(self) -> Path:
        return ROOT


class TestFileStore(StoreConformance):
    @pytest.fixture
    def store(self, owners: Owners) -> Iterator[Store]:
        store = FileStore(owners.take("a"), ROOT / "state")
        yield store
        store.close()


def texts(log: Log) -> list[bytes]:
    return [one.data for one in log.read(log.topics.get(TOPIC) or log.topic())]


def test_another_broker_takes_over_while_the_former_one_serves(owners: Owners) -> None:
    former = Log(owners.take("a"), ROOT)
    topic = former.topic()
    for number in range(50):
        former.append(topic, f"{number}", b"x" * 70_000)
    latter = Log(owners.take("b"), ROOT)
    late = topic.stage([entry("late")], 1000)
    former.thread.submit(late)
    former.settle([late])
    assert former.files.lost() == "b has taken the log (epoch 2)"
    latter.append(latter.topic(), "new")
    found = texts(latter)
    assert found == [data for number in range(50) for data in (b"%d" % number, b"x" * 70_000)] + [b"new"]
    former.thread.stop()
    latter.thread.stop()
    last = Log(owners.take("c"), ROOT)
    assert texts(last) == found
    assert last.recovered.problems == []
    last.thread.stop()


def test_a_bookie_that_dies_costs_nothing(owners: Owners, cluster: BookKeeperCluster) -> None:
    log = Log(owners.take("a"), ROOT)
    topic = log.topic()
    log.append(topic, "before")
    cluster.bookies[0].kill()
    for number in range(20):
        log.append(topic, f"{number}")
    assert texts(log) == [b"before", *(b"%d" % number for number in range(20))]
    assert log.files.lost() == ""
    log.thread.stop()
    again = Log(owners.take("b"), ROOT)
    assert texts(again) == [b"before", *(b"%d" % number for number in range(20))]
    again.thread.stop()
