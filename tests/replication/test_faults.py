"""Clusters are down for a while, lose their disks, are born again. (SIGKILL again and again: the folder kills.)"""

import shutil
from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.replication.conftest import Mesh
from tests.support import traffic
from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline

pytestmark = pytest.mark.spark

MakeMesh = Callable[..., Mesh]


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Three clusters and their pipeline for the tests whose clusters all come back: starting Spark takes most of such a test."""
    world = World(tmp_path_factory.mktemp("faults"), ["a", "b", "c"], "[broker]\nidentity_silence_ms = 1000\n").start()
    mesh = Mesh(world, Pipeline(world.config).start())
    yield mesh
    mesh.close()


def contents(mesh: Mesh, cluster: str, topic: str) -> list[bytes]:
    """All messages of a topic in one cluster, in its order."""
    return traffic.contents(mesh.client(cluster), topic)


@pytest.mark.timeout(300)
def test_destination_down_for_a_while_leaves_the_others_alone(trio: Mesh, topic: str) -> None:
    mesh = trio
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    producer.send(b"0")
    assert mesh.read_all("b", topic, 1)[0].data() == b"0"
    mesh["b"].kill()
    for n in range(1, 20):
        producer.send(b"%d" % n)
    assert [m.data() for m in mesh.read_all("c", topic, 20)] == [b"%d" % n for n in range(20)]
    mesh["b"].start()
    assert [m.data() for m in mesh.read_all("b", topic, 20, 60_000)] == [b"%d" % n for n in range(20)]


@pytest.mark.timeout(300)
def test_once_replicates_what_is_there_and_stops(make_mesh: MakeMesh, topic: str) -> None:
    mesh = make_mesh(["a", "b"])
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    pipeline = Pipeline(mesh.world.config, "--once", "--link", "a:b", name="once").start(wait=False)
    assert pipeline.wait() == 0, pipeline.log.read_text()[-2000:]
    assert contents(mesh, "b", topic) == [b"%d" % n for n in range(10)]


@pytest.mark.timeout(300)
def test_wiped_destination_gets_everything_retained_again(trio: Mesh, topic: str) -> None:
    mesh = trio
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    mesh.read_all("b", topic, 10)
    mesh["b"].kill()
    shutil.rmtree(mesh.world.folder / "data" / "b")
    mesh["b"].start()
    producer.send(b"10")
    eventually(lambda: _has(mesh, "b", topic, 11), within_s=90, every_s=0.3)
    assert contents(mesh, "b", topic) == [b"%d" % n for n in range(11)]


def _has(mesh: Mesh, cluster: str, topic: str, count: int) -> bool:
    try:
        return len(contents(mesh, cluster, topic)) >= count
    except pulsar.PulsarException:
        return False


@pytest.mark.timeout(300)
def test_wiped_source_comes_back_under_its_old_name(trio: Mesh, topic: str) -> None:
    mesh = trio
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(5):
        producer.send(b"old %d" % n)
    mesh.read_all("b", topic, 5)
    producer.close()
    mesh["a"].kill()
    shutil.rmtree(mesh.world.folder / "data" / "a")
    mesh["a"].start()
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for n in range(5):
        producer.send(b"new %d" % n)
    expected = [b"old %d" % n for n in range(5)] + [b"new %d" % n for n in range(5)]
    eventually(lambda: _has(mesh, "b", topic, 10), within_s=90, every_s=0.3)
    assert contents(mesh, "b", topic) == expected


@pytest.mark.timeout(300)
def test_one_way_link(make_mesh: MakeMesh, topic: str) -> None:
    # With short batches, which most worlds of tests do not have.
    mesh = make_mesh(["a", "b"], '[[links]]\nfrom = "a"\nto = "b"\n[replication]\ntail = "short-batches"\n')
    mesh.pipeline.start()
    mesh.client("b").create_producer(topic, batching_enabled=False).send(b"stays in b")
    mesh.client("a").create_producer(topic, batching_enabled=False).send(b"goes to b")
    assert sorted(m.data() for m in mesh.read_all("b", topic, 2)) == [
        b"goes to b",
        b"stays in b",
    ]
    assert contents(mesh, "a", topic) == [b"goes to b"]
