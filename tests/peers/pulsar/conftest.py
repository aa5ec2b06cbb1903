"""A real Apache Pulsar can run here, or its tests are skipped."""

import pytest

from tests.support.apache_pulsar import kit
from tests.support.jvm import PeerError


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    """A real Apache Pulsar can run here: there are a Java and its jars, or Maven fetches them."""
    if reason := kit.missing():
        pytest.skip(reason)
    try:
        kit.fetch()
    except PeerError as error:
        pytest.skip(f"no real Apache Pulsar: {error}")
