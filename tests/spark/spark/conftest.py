"""One broker and one client for each module of tests, and a session that knows them."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.brokers import BrokerProcess, World
from tests.support.spark_format import Session


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    world = World(tmp_path_factory.mktemp("format"), ["solo"], "[deduplication]\nenabled = true\n").start()
    yield world["solo"]
    world.close()


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    made = pulsar.Client(broker.url, operation_timeout_seconds=20, logger=logger)
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/s-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def session(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Session:
    return Session(spark, broker, tmp_path)
