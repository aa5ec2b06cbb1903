"""A real Apache Pulsar can run here, or its tests are skipped."""

import pytest

from tests.support.apache_pulsar import kit


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    """A real Apache Pulsar can run here."""
    if reason := kit.missing():
        pytest.skip(reason)
