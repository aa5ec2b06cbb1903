"""Several attempts of one task: Spark tries a failed task again, and copies a slow one (speculative execution).

Spark does neither with the local masters that other tests use: there a failed task ends its batch. A copy runs on another host
only. So the cluster here has two workers with addresses of their own.
"""

import json
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.replication.conftest import Mesh
from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline
from tests.support.standalone import Standalone
from tests.support.traffic import Flow
from tests.support.workers import connections, descendants, is_python

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

RETRIES: Final = 3
"""Each after a kill at another moment of a task."""

TASK_START = '"Event":"SparkListenerTaskStart"'

SPECULATION = """
[replication.spark]
"spark.executor.memory" = "600m"
"spark.executor.cores" = "2"
"spark.speculation" = "true"
"spark.speculation.task.duration.threshold" = "2s"
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.dir" = "{events}"
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master, and a worker with one executor on each of two hosts."""
    made = Standalone(tmp_path_factory.mktemp("standalone"), hosts=("127.0.0.1", "127.0.0.2"))
    yield made
    made.close()


@pytest.fixture(params=["long-batches", "short-batches"])
def mesh(request: pytest.FixtureRequest, tmp_path: Path, standalone: Standalone) -> Iterator[Mesh]:
    """Two clusters, a link, and its pipeline on the cluster of executors."""
    (tmp_path / "events").mkdir()
    tail = f'[replication]\ntail = "{request.param}"\n'
    spark = SPECULATION.format(events=(tmp_path / "events").as_uri())
    world = World(tmp_path, ["a", "b"], f'[[links]]\nfrom = "a"\nto = "b"\n{tail}{spark}').start()
    made = Mesh(world, Pipeline(world.config, "--master", standalone.url))
    made.pipeline.start()
    yield made
    made.close()


@pytest.fixture
def flow(mesh: Mesh) -> Iterator[Flow]:
    """Messages from one cluster to the other, while the test runs."""
    topic = f"persistent://public/default/attempts-{uuid.uuid4().hex[:8]}"
    made = Flow(mesh["a"], mesh["b"], mesh.client, topic, "m")
    yield made
    made.publisher.stop()


def attempts(mesh: Mesh, since_ms: int) -> list[dict[str, Any]]:
    """What Spark says of each attempt that it started since a time, as far as its log of events is written."""
    texts = (path.read_text() for path in (mesh.world.folder / "events").rglob("*") if path.is_file())
    starts = [json.loads(line)["Task Info"] for text in texts for line in text.splitlines() if TASK_START in line]
    return [start for start in starts if start["Launch Time"] > since_ms]


def copies(mesh: Mesh, since_ms: int) -> int:
    """How many of these attempts are copies of running ones."""
    return sum(start["Speculative"] for start in attempts(mesh, since_ms))


def retries(mesh: Mesh, since_ms: int) -> int:
    """How many of these attempts follow one that failed."""
    return sum(start["Attempt"] > 0 and not start["Speculative"] for start in attempts(mesh, since_ms))


def at_work(standalone: Standalone, broker_port: int) -> list[psutil.Process]:
    """The Python processes of the executor that has one with a connection to a broker; none while there is no such executor."""
    for executor in standalone.executors():
        found = descendants(executor, is_python)
        if any(connections(one, (broker_port,)) for one in found):
            return found
    return []


def task_workers(standalone: Standalone, broker_port: int) -> list[psutil.Process]:
    """Those of them that have a connection to a broker."""
    return [one for one in at_work(standalone, broker_port) if connections(one, (broker_port,))]


def test_a_failed_task_is_tried_again_and_the_link_goes_on(mesh: Mesh, standalone: Standalone, flow: Flow) -> None:
    """The retry begins where the failed attempt began. What that one has sent by then is stored already."""
    began_ms = time.time_ns() // 1_000_000

    def kill() -> int:
        flow.await_arrivals(20)
        # Between two short batches it has no task, and nothing fails.
        eventually(lambda: task_workers(standalone, mesh["a"].pulsar_port), what="a worker that reads")[0].kill()
        flow.await_arrivals(20)
        return retries(mesh, began_ms)

    eventually(lambda: kill() >= RETRIES, within_s=120, what="tasks that are tried again")
    flow.finish(origin_kills=0)


def test_a_copy_of_a_slow_task_stores_nothing_twice_and_the_link_goes_on(
    mesh: Mesh, standalone: Standalone, flow: Flow
) -> None:
    """A task is slow because the Python processes of its executor are stopped. They continue when the copy has done the work."""
    stopped: list[psutil.Process] = []
    try:
        flow.await_arrivals(20)
        stopped = eventually(lambda: at_work(standalone, mesh["a"].pulsar_port), what="an executor that reads")
        for one in stopped:
            one.send_signal(signal.SIGSTOP)
        since_ms = time.time_ns() // 1_000_000
        flow.await_arrivals(50)
        eventually(lambda: copies(mesh, since_ms), within_s=120, every_s=0.2, what="a copy of a task")
        while stopped:
            stopped.pop().send_signal(signal.SIGCONT)
        flow.await_arrivals(50)  # what the stopped ones still send is stored already
        flow.finish(origin_kills=0)
    finally:
        for one in stopped:
            one.send_signal(signal.SIGCONT)
