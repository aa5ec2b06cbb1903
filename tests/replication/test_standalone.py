"""The pipeline on a real Spark standalone cluster: master and worker as processes, executors as the worker starts them."""

import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import magnetar
from tests.replication.conftest import Mesh
from tests.support.brokers import World
from tests.support.pipelines import Pipeline
from tests.support.standalone import Standalone
from tests.support.traffic import contents

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = (
    '[replication.spark]\n"spark.app.name" = "of-the-file"\n"spark.executor.memory" = "600m"\n"spark.cores.max" = "1"\n'
)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and a worker."""
    made = Standalone(tmp_path_factory.mktemp("standalone"))
    yield made
    made.close()


def publish(mesh: Mesh, topic: str) -> list[bytes]:
    """A few messages in a."""
    sent = [b"%d" % n for n in range(20)]
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    for data in sent:
        producer.send(data)
    return sent


def replicate_once(mesh: Mesh, standalone: Standalone) -> None:
    """Run the pipeline on the cluster; everything is said if it fails."""
    pipeline = Pipeline(mesh.world.config, "--master", standalone.url, "--once", name="once").start(wait=False)
    code = pipeline.wait(400)
    logs = [path.read_text()[-3000:] for path in mesh.world.folder.rglob("spark.log*")]
    assert code == 0, "\n".join([pipeline.output(), pipeline.log.read_text()[-2000:], *logs])


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    """Two clusters with settings for Spark in their file."""
    world = World(tmp_path, ["a", "b"], SETTINGS).start()
    made = Mesh(world, Pipeline(world.config))
    yield made
    made.close()


def test_once_on_a_standalone_cluster(mesh: Mesh, standalone: Standalone, topic: str) -> None:
    sent = publish(mesh, topic)
    replicate_once(mesh, standalone)
    assert contents(mesh.client("b"), topic) == sent
    # What the master saw is what clusters.toml says.
    (app,) = [one for one in standalone.state()["completedapps"] if one["name"] == "of-the-file"]
    assert (app["cores"], app["memoryperexecutor"]) == (1, 600)


def test_executors_without_the_package_get_it_from_py_files(
    mesh: Mesh, standalone: Standalone, topic: str, tmp_path: Path
) -> None:
    # The executors' Python has the libraries but not Magnetar: without `site` no .pth of an editable install is read.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    libraries = site.getsitepackages()[0]
    package = Path(magnetar.__file__).parent
    shipped = shutil.make_archive(str(tmp_path / "magnetar"), "zip", package.parent, package.name)
    bare = subprocess.run(
        [python, "-c", "import pyarrow, magnetar"], env={"PYTHONPATH": libraries}, capture_output=True, text=True
    )
    assert "No module named 'magnetar'" in bare.stderr, "the executors have the package anyway: the test proves nothing"
    with mesh.world.config.open("a") as file:
        file.write(f'"spark.pyspark.python" = "{python}"\n"spark.executorEnv.PYTHONPATH" = "{libraries}"\n')
        file.write(f'"spark.submit.pyFiles" = "{shipped}"\n')
    sent = publish(mesh, topic)
    replicate_once(mesh, standalone)
    assert contents(mesh.client("b"), topic) == sent
