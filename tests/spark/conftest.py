"""One Spark session for all tests here; clusters in memory and a coordinator for each."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import ALL, Link
from magnetar.pipeline.replicate import Queries, prepare_checkpoint
from magnetar.pipeline.shared_state import Pipeline
from magnetar.spark_session import session
from tests.spark.fakes import TOKEN, FakeCluster

MASTER = "local[2,4]"
DEFAULTS = ReplicationLimits()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    built = session.build(app="tests", master=MASTER, log=log)
    yield built
    session.stop(built, log)


@pytest.fixture
def clusters() -> Iterator[Callable[..., list[FakeCluster]]]:
    """Start clusters by name."""
    started: list[FakeCluster] = []

    def start(*names: str) -> list[FakeCluster]:
        new = [FakeCluster(name).start() for name in names]
        started.extend(new)
        return new

    yield start
    for cluster in started:
        cluster.silent = False
        cluster.stop()
        assert not cluster.violations, cluster.violations


class Running:
    """A pipeline that runs, and what it said."""

    def __init__(
        self,
        spark: Any,
        folder: Path,
        clusters: list[FakeCluster],
        links: tuple[Link, ...],
        queries: tuple[str, ...],
        limits: ReplicationLimits,
    ) -> None:
        self.lines: list[str] = []
        addresses = {cluster.name: cluster.address for cluster in clusters}
        self.coordinator = PipelineCoordinator(
            Pipeline(links, addresses, TOKEN, 2, "tests", limits), self.lines.append
        ).start()
        prepare_checkpoint(folder)
        self.queries = Queries(spark, self.coordinator, queries, folder, self.lines.append)
        # As `magnetar replicate` does: Spark gives a stream's Python process ten seconds to start, and ends the query otherwise.
        self._over = threading.Event()
        self._tending = threading.Thread(target=self._tend, daemon=True)
        self._tending.start()

    def _tend(self) -> None:
        while not self._over.wait(0.05):
            self.queries.tend()

    def stop(self) -> None:
        self._over.set()
        self._tending.join()
        self.coordinator.drain(10_000)
        self.queries.stop()
        self.coordinator.stop()


@pytest.fixture
def pipeline(spark: Any, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start the pipeline between clusters: `pipeline(a, b, links=("a:b",), filters={"a:b": "..."})`; a full mesh by default."""
    running: list[Running] = []

    def start(
        *clusters: FakeCluster,
        links: tuple[str, ...] = (),
        filters: dict[str, str] | None = None,
        queries: tuple[str, ...] = (ALL,),
        limits: ReplicationLimits = DEFAULTS,
    ) -> Running:
        names = [cluster.name for cluster in clusters]
        wanted = links or tuple(f"{x}:{y}" for x in names for y in names if x != y)
        numbered = tuple(
            Link(number, *text.split(":"), (filters or {}).get(text, "")) for number, text in enumerate(wanted)
        )
        folder = tmp_path / f"checkpoint-{len(running)}"
        running.append(Running(spark, folder, list(clusters), numbered, queries, limits))
        return running[-1]

    yield start
    for one in running:
        one.stop()
