"""SIGKILL at random moments, round after round: brokers, drivers, executors. All messages are there once, in order.

`MAGNETAR_KILL_ROUNDS` says how many rounds of each kind, `MAGNETAR_KILL_SEED` repeats the choices of a run (its seed is
printed when a test fails). Moments are counted in messages, not in seconds: somewhere between two of them.
"""

import contextlib
import os
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.replication.conftest import Mesh
from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline
from tests.support.traffic import Flow

ROUNDS = int(os.environ.get("MAGNETAR_KILL_ROUNDS", "10"))
SEED = int(os.environ.get("MAGNETAR_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)

MOMENT = 30
"""A kill comes within so many messages: some 300 ms of work, which is more than a batch takes, so in any phase of one."""

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120 + 40 * ROUNDS)]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two clusters for all kills; each test has a pipeline of its own kind."""
    world = World(tmp_path_factory.mktemp("kills"), ["a", "b"]).start()
    mesh = Mesh(world, Pipeline(world.config))
    yield mesh
    mesh.close()


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

    def run(*arguments: str, name: str) -> Pipeline:
        before = mesh.pipeline
        if before.log.stem != name or before.process is None or before.process.poll() is not None:
            before.kill()
            mesh.pipeline = Pipeline(mesh.world.config, *arguments, name=name).start()
        return mesh.pipeline

    return run


def a_moment(chance: random.Random, flows: tuple[Flow, Flow], within: int = MOMENT) -> None:
    """Let a random number of messages be published."""
    chance.choice(flows).await_acknowledged(chance.randrange(within))


def all_arrive(flows: tuple[Flow, Flow]) -> None:
    """Everything published so far, and a bit of what comes, arrives in both directions."""
    for flow in flows:
        flow.await_arrivals(10)


def below(pipeline: Pipeline, wanted: Callable[[list[str]], Any]) -> list[psutil.Process]:
    """Processes that a driver started, by their command lines."""
    assert pipeline.process is not None
    found = []
    for one in psutil.Process(pipeline.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if one.status() != psutil.STATUS_ZOMBIE and wanted(one.cmdline()):
                found.append(one)
    return found


def kill_one(pipeline: Pipeline, chance: random.Random, wanted: Callable[[list[str]], Any], what: str) -> None:
    """SIGKILL one of the processes that fit; waits until there is one."""

    def attempt() -> bool:
        found = sorted(below(pipeline, wanted), key=lambda one: one.pid)
        if not found:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(found).kill()
            return True
        return False

    eventually(attempt, within_s=60, every_s=0.05, what=f"there is {what} to kill")


def is_python_worker(words: list[str]) -> bool:
    """Workers of tasks, those of the driver that plan and commit, and the daemons that fork them."""
    return any(word.startswith("pyspark.") for word in words)


def is_executor(words: list[str]) -> bool:
    """The JVM of an executor."""
    return any("CoarseGrainedExecutorBackend" in word for word in words)


def test_kills_of_brokers(mesh: Mesh, run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    run_pipeline(name="local")
    kills = {"a": 0, "b": 0}
    for _ in range(ROUNDS):
        a_moment(chance, flows)
        victims = chance.choice([["a"], ["b"], ["a", "b"]])
        for name in victims:
            mesh[name].kill()
            kills[name] += 1
        for name in victims:
            mesh[name].start()
        all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=kills[flow.origin.cluster])


def test_kills_of_python_workers(run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    pipeline = run_pipeline(name="local")
    for _ in range(ROUNDS):
        a_moment(chance, flows)
        kill_one(pipeline, chance, is_python_worker, "a Python worker")
        all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)


def test_kills_of_executors(run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    pipeline = run_pipeline("--master", "local-cluster[2,1,1024]", name="local-cluster")
    for _ in range(ROUNDS):
        a_moment(chance, flows)
        kill_one(pipeline, chance, is_executor, "an executor")
        all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)


PHASES = ("works", "works", "connected", "java", "java")
"""When a driver is killed: it has moved messages; it talks to the brokers; it has started Java (which takes longest)."""


def await_phase(mesh: Mesh, phase: str, flows: tuple[Flow, Flow]) -> None:
    """Until the driver has come so far."""
    pipeline = mesh.pipeline
    assert pipeline.process is not None
    driver, port = psutil.Process(pipeline.process.pid), mesh["a"].pulsar_port
    if phase == "works":
        all_arrive(flows)
    elif phase == "connected":
        eventually(lambda: any(one.raddr and one.raddr.port == port for one in driver.net_connections()), within_s=60)
    else:
        eventually(lambda: below(pipeline, lambda words: words and words[0].endswith("java")), within_s=60)


def test_kills_of_drivers(mesh: Mesh, run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    pipeline = run_pipeline(name="drivers")
    phases = [PHASES[number % len(PHASES)] for number in range(ROUNDS)]
    chance.shuffle(phases)
    for phase in phases:
        await_phase(mesh, phase, flows)
        a_moment(chance, flows, MOMENT if phase == "works" else 5 * MOMENT)
        pipeline.kill()
        pipeline.start(wait=False)
    all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)
