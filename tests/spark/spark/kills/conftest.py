"""A broker of each test alone: some kill it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import BrokerProcess, World


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    world = World(tmp_path, ["solo"], "[deduplication]\nenabled = true\n").start()
    yield world["solo"]
    world.close()
