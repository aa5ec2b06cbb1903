"""Tests next to real peers. Only `make peers` collects them, and they skip with one line where a peer cannot run."""

import os
from pathlib import Path

import pytest

from tests.support.apache_pulsar import kit

collect_ignore = (
    [] if os.environ.get("MAGNETAR_PEERS") else [path.name for path in Path(__file__).parent.glob("test_*.py")]
)


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    """A real Apache Pulsar can run here."""
    if reason := kit.missing():
        pytest.skip(reason)
