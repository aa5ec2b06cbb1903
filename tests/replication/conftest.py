"""Three clusters and one pipeline, shared by the tests that break nothing; the others make their own."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.brokers import BrokerProcess, World
from tests.support.pipelines import Pipeline


class Mesh:
    """Clusters, clients, and (when started) the pipeline between them."""

    def __init__(self, world: World, pipeline: Pipeline) -> None:
        self.world = world
        self.pipeline = pipeline
        self._clients: dict[str, pulsar.Client] = {}

    def __getitem__(self, cluster: str) -> BrokerProcess:
        return self.world[cluster]

    def client(self, cluster: str) -> pulsar.Client:
        """An official client of one cluster."""
        if cluster not in self._clients:
            logger = logging.getLogger("pulsar-client")
            logger.setLevel(logging.CRITICAL)
            self._clients[cluster] = pulsar.Client(self.world[cluster].url, operation_timeout_seconds=30, logger=logger)
        return self._clients[cluster]

    def read_all(self, cluster: str, topic: str, count: int, timeout_ms: int = 90_000) -> list[pulsar.Message]:
        """Read so many messages of a topic from its beginning."""
        reader = self.client(cluster).create_reader(topic, pulsar.MessageId.earliest)
        try:
            return [reader.read_next(timeout_ms) for _ in range(count)]
        finally:
            reader.close()

    def extra(self, cluster: str, topic: str, count: int) -> bool:
        """Whether the topic holds more than so many messages now."""
        reader = self.client(cluster).create_reader(topic, pulsar.MessageId.earliest)
        try:
            for _ in range(count):
                reader.read_next(60_000)
            return bool(reader.has_message_available())
        finally:
            reader.close()

    def close_client(self, cluster: str) -> None:
        """Forget the client of a cluster that will be another one."""
        client = self._clients.pop(cluster, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        """End everything."""
        for client in self._clients.values():
            client.close()
        self.pipeline.kill()
        self.world.close()


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Three clusters a, b, c in a full mesh, replicating."""
    # Short ones are at work in `test_faults.test_one_way_link`, and between clusters in memory (tests/spark).
    world = World(tmp_path_factory.mktemp("mesh"), ["a", "b", "c"], '[replication]\ntail = "long-batches"\n').start()
    mesh = Mesh(world, Pipeline(world.config).start())
    yield mesh
    mesh.close()


@pytest.fixture
def make_mesh(tmp_path: Path) -> Iterator[object]:
    """Make a mesh of this test alone; brokers started, pipeline not."""
    made: list[Mesh] = []

    def make(clusters: list[str], extra: str = "", *, start: bool = True) -> Mesh:
        world = World(tmp_path, clusters, extra)
        if start:
            world.start()
        mesh = Mesh(world, Pipeline(world.config))
        made.append(mesh)
        return mesh

    yield make
    for mesh in made:
        mesh.close()


@pytest.fixture
def topic() -> str:
    """A topic of this test alone."""
    return f"persistent://public/default/r-{uuid.uuid4().hex[:12]}"
