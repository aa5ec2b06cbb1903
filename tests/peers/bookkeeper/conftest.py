"""Real bookies for tests: one cluster for all of them, made well again after each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_bookkeeper import kit
from tests.support.apache_bookkeeper.kit import BookKeeperCluster

BOOKIES = 4
"""An ensemble of three, and one that takes over."""


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    """A real Apache BookKeeper can run here."""
    if reason := kit.missing():
        pytest.skip(reason)


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
