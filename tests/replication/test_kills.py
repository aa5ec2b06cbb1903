"""SIGKILL at random moments, round after round: brokers, drivers, executors. All messages are there once, in order.

`MAGNETAR_KILL_ROUNDS` says how many rounds of each kind, `MAGNETAR_KILL_SEED` repeats the choices of a run (its seed is
printed when a test fails). Moments are counted in messages, not in seconds: somewhere between two of them.

Topics at their end are carried by long batches here. `tests/spark/pipeline/test_query.py` kills the workers of short ones.
"""

import contextlib
import json
import os
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pulsar.schema import Integer, JsonSchema, Record

from tests.replication.conftest import Mesh
from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline
from tests.support.traffic import Flow
from tests.support.workers import below, readers, workers, writers

ROUNDS = int(os.environ.get("MAGNETAR_KILL_ROUNDS", "10"))
SEED = int(os.environ.get("MAGNETAR_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)

MOMENT = 30
"""A kill comes within so many messages: some 300 ms of work, which is more than a batch takes, so in any phase of one."""

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120 + 40 * ROUNDS)]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two clusters for all kills; each test has a pipeline of its own kind."""
    world = World(tmp_path_factory.mktemp("kills"), ["a", "b"], '[replication]\ntail = "long-batches"\n').start()
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

    def run(*arguments: str, name: str, config: Path = mesh.world.config) -> Pipeline:
        before = mesh.pipeline
        if before.log.stem != name or before.process is None or before.process.poll() is not None:
            before.kill()
            mesh.pipeline = Pipeline(config, *arguments, name=name).start()
        return mesh.pipeline

    return run


def a_moment(chance: random.Random, flows: tuple[Flow, Flow], within: int = MOMENT) -> None:
    """Let a random number of messages be published."""
    chance.choice(flows).await_acknowledged(chance.randrange(within))


def all_arrive(flows: tuple[Flow, Flow]) -> None:
    """Everything published so far, and a bit of what comes, arrives in both directions."""
    for flow in flows:
        flow.await_arrivals(10)


def kill_one(pipeline: Pipeline, chance: random.Random, wanted: Callable[[], list[psutil.Process]], what: str) -> None:
    """SIGKILL one of the processes that fit; waits until there is one."""

    def attempt() -> bool:
        found = sorted(wanted(), key=lambda one: one.pid)
        if not found:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(found).kill()
            return True
        return False

    eventually(attempt, within_s=60, every_s=0.05, what=f"there is {what} to kill")


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


def test_kills_of_python_workers(
    mesh: Mesh, run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random
) -> None:
    pipeline = run_pipeline(name="local")
    ports = {mesh[name].pulsar_port for name in "ab"}
    # Workers of tasks, those of the driver that plan and commit, and the daemons that fork them.
    kinds: list[tuple[str, Callable[[], list[psutil.Process]]]] = [
        ("the reader of a long batch", lambda: readers(pipeline, ports)),
        ("the writer of a long batch", lambda: writers(pipeline, ports)),
        ("a Python worker", lambda: workers(pipeline)),
    ]
    for number in range(ROUNDS):
        a_moment(chance, flows)
        what, wanted = kinds[number % len(kinds)]
        kill_one(pipeline, chance, wanted, what)
        all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)


class First(Record):
    number = Integer()


class Second(Record):
    number = Integer()
    more = Integer(required_default=True)


@pytest.fixture
def on_executors(mesh: Mesh, run_pipeline: Any) -> Pipeline:
    """A pipeline on a cluster of executors, which leaves out messages with the key "here" from a to b."""
    config = mesh.world.folder / "filtered.toml"
    config.write_text(
        mesh.world.config.read_text()
        + '[[links]]\nfrom = "a"\nto = "b"\nfilter = "key is null or key <> \'here\'"\n[[links]]\nfrom = "b"\nto = "a"\n'
    )
    # Two tasks for each: the turns of long batches need two at once, also while one of the executors is gone.
    pipeline: Pipeline = run_pipeline("--master", "local-cluster[2,2,1024]", name="local-cluster", config=config)
    return pipeline


def test_filtered_entries_with_schemas_through_executors(mesh: Mesh, on_executors: Pipeline) -> None:
    """A filter sees each entry, the destination asks for schemas in the middle of a batch, C moves over what is left out."""
    topic = f"persistent://public/default/filtered-{uuid.uuid4().hex[:8]}"
    expected = []
    for record in (First, Second):
        producer = mesh.client("a").create_producer(topic, schema=JsonSchema(record), batching_enabled=False)
        for number in range(10):
            kept = number % 3 == 0
            producer.send(record(number=number), partition_key="there" if kept else "here")
            expected += [number] if kept else []
        producer.close()
    messages = mesh.read_all("b", topic, len(expected))
    assert [json.loads(one.data())["number"] for one in messages] == expected
    assert [one._message.int_schema_version() for one in messages] == [0] * 4 + [1] * 4
    eventually(
        lambda: mesh["a"].rest("GET", "/geo/v1/links/b")["lag_messages"] == 0, what="C is behind what was left out"
    )
    assert not mesh.extra("b", topic, len(expected))


def test_kills_of_executors(on_executors: Pipeline, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    for _ in range(ROUNDS):
        a_moment(chance, flows)
        kill_one(on_executors, chance, lambda: below(on_executors, is_executor), "an executor")
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
