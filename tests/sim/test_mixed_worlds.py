"""Whole brokers in random worlds of mixed mode. `make sim` runs 100,000; a failure prints the command that replays it."""

import pytest

from tests.support.simworlds import promises_hold, promises_hold_widely


@pytest.mark.timeout(900)
def test_promises_hold() -> None:
    promises_hold("mixed")


@pytest.mark.timeout(600)
def test_promises_hold_in_wide_worlds() -> None:
    promises_hold_widely("mixed")
