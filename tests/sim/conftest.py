"""What all tests of worlds have in common."""

from collections.abc import Iterator

import pytest

from magnetar_sim.host.quiet import quiet


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield
