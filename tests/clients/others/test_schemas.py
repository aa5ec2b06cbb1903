"""The official Java client with every type of schema, in one cluster and over a link to another."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.others.conversation import LOGS_TO_STDERR, Missing, java_program
from tests.support.brokers import World
from tests.support.replicator import Replicator

pytestmark = pytest.mark.timeout(1200)

STEPS = 29
"""The program's: so that one which ends early does not pass."""


@pytest.fixture(scope="module")
def command() -> list[str]:
    try:
        return java_program("java-schemas", "Schemas", ("-Xmx512m", LOGS_TO_STDERR))
    except Missing as why:
        pytest.skip(f"the Java client cannot be built here: {why}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two clusters and both links; replicators carry them."""
    world = World(tmp_path_factory.mktemp("schemas"), ["a", "b"]).start()
    replicators = [Replicator(world, "a", "b"), Replicator(world, "b", "a")]
    yield world
    for replicator in replicators:
        replicator.close()
    world.close()


@pytest.mark.parametrize("there", ["a", "b"], ids=["in-one-cluster", "over-a-link"])
def test_every_type(command: list[str], world: World, tmp_path: Path, there: str) -> None:
    with (tmp_path / "java.log").open("wb") as log:
        done = subprocess.run(
            [*command, world["a"].url, world[there].url, f"to-{there}"],
            stdout=subprocess.PIPE, stderr=log, text=True, check=False, timeout=600,
        )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) == STEPS, done.stdout
