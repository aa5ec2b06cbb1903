"""Real bookies for tests: one cluster for all of them, made well again after each."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_bookkeeper import kit
from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.bookkeeper_brokers import Brokers
from tests.support.jvm import FETCH_S, PeerError

FETCH_IN_MAKE_TEST_S = 240.0
"""How long Maven may load jars in `make test`, which has 25 minutes. It took 70 s on a busy machine."""

BOOKIES = 4
"""An ensemble of three, and one that takes over."""


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    """A real Apache BookKeeper can run here: there are a Java and its jars, or Maven fetches them."""
    if reason := kit.missing():
        pytest.skip(reason)
    try:
        kit.fetch(FETCH_S if os.environ.get("MAGNETAR_PEERS") else FETCH_IN_MAKE_TEST_S)
    except PeerError as error:
        pytest.skip(f"no real Apache BookKeeper: {error}")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    """The cluster of all tests."""
    with kit.running(Path(tmp_path_factory.mktemp("bookkeeper")), BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: BookKeeperCluster) -> Iterator[BookKeeperCluster]:
    """The cluster; what a test has killed, stopped or made read-only serves again afterwards."""
    yield shared
    shared.heal()


@pytest.fixture
def brokers(cluster: BookKeeperCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    """Two brokers of one cluster, not started."""
    made = Brokers(tmp_path, cluster, f"/magnetar/{request.node.name}")
    yield made
    made.close()


@pytest.fixture
def serving(brokers: Brokers) -> Brokers:
    """Broker a serves, broker b waits."""
    return brokers.start()
