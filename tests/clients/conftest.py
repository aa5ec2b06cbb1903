"""One broker for the tests of the official client; tests that kill it make their own."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.brokers import BrokerProcess, World
from tests.support.secured import Secured


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker, shared."""
    world = World(tmp_path_factory.mktemp("broker"), ["solo"]).start()
    yield world["solo"]
    world.close()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker of this test alone."""
    world = World(tmp_path, ["solo"]).start()
    yield world["solo"]
    world.close()


def connect(broker: BrokerProcess) -> pulsar.Client:
    """An official client that logs errors only."""
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(broker.url, operation_timeout_seconds=20, logger=logger)


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """An official client of the shared broker."""
    client = connect(broker)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    """A topic of this test alone."""
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A secured broker, shared."""
    made = Secured(tmp_path_factory.mktemp("secured"))
    made.world.start()
    yield made
    made.world.close()
