"""Two clusters for the kills of one kind, and messages that go on meanwhile."""

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.replication.conftest import Mesh
from tests.support.brokers import World
from tests.support.pipelines import Pipeline
from tests.support.random_kills import ROUNDS, SEED
from tests.support.traffic import Flow
from tests.support.workers import FILTERED


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two clusters for all kills; each test has a pipeline of its own kind."""
    world = World(tmp_path_factory.mktemp("kills"), ["a", "b"], '[replication]\ntail = "long-batches"\n').start()
    mesh = Mesh(world, Pipeline(world.config))
    yield mesh
    mesh.close()


@pytest.fixture(scope="module")
def filtered(mesh: Mesh) -> Path:
    """A configuration of the same clusters in which the link from a to b has a filter: its entries are rows of Spark."""
    config = mesh.world.folder / "filtered.toml"
    config.write_text(mesh.world.config.read_text() + FILTERED)
    return config


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """This test's choices."""
    print(f"{request.node.name}: MAGNETAR_KILL_SEED={SEED} MAGNETAR_KILL_ROUNDS={ROUNDS}")  # noqa: T201 - shown on failure
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture
def flows(mesh: Mesh) -> Iterator[tuple[Flow, Flow]]:
    """Messages in both directions, in topics of this test alone."""
    name = f"persistent://public/default/kills-{uuid.uuid4().hex[:8]}"
    made = (
        Flow(mesh["a"], mesh["b"], mesh.client, name + "-from-a", "a"),
        Flow(mesh["b"], mesh["a"], mesh.client, name + "-from-b", "b"),
    )
    yield made
    for flow in made:
        flow.publisher.stop()


@pytest.fixture(scope="module")
def run_pipeline(mesh: Mesh) -> Callable[..., Pipeline]:
    """Start a pipeline in the place of the one before, unless that is the same and still runs."""

    def run(*arguments: str, name: str, config: Path = mesh.world.config) -> Pipeline:
        before = mesh.pipeline
        if before.log.stem != name or before.process is None or before.process.poll() is not None:
            before.kill()
            mesh.pipeline = Pipeline(config, *arguments, name=name).start()
        return mesh.pipeline

    return run
