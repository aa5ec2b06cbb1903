"""What tests of a cluster's end and return do: commands of the command line, and a disk that is lost."""

import json
import shutil
import subprocess
import sys
from typing import Any, Final

from tests.replication.conftest import Mesh

TOPIC: Final = "persistent://public/default/orders"


def magnetar(mesh: Mesh, *words: object, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar", *(str(word) for word in words), "-c", str(mesh.world.config)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)


def done(mesh: Mesh, *words: object) -> Any:
    result = magnetar(mesh, *words, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


def held(mesh: Mesh, cluster: str, origin: str, topic: str) -> int:
    """Messages of an origin in a cluster, of all its lives."""
    found = mesh[cluster].rest("GET", f"/geo/v1/held/{origin}")
    return sum(life["messages"] for one in found if one["topic"].startswith(topic) for life in one["lives"])


def publish(mesh: Mesh, cluster: str, topic: str, texts: list[str], **settings: Any) -> None:
    producer = mesh.client(cluster).create_producer(topic, block_if_queue_full=True, **settings)
    for text in texts:
        producer.send_async(text.encode(), lambda _result, _id: None)
    producer.flush()
    producer.close()


def wipe(mesh: Mesh, cluster: str) -> None:
    """Power cut, new disk, same name."""
    mesh.close_client(cluster)
    mesh[cluster].kill()
    shutil.rmtree(mesh.world.folder / "data" / cluster)
    mesh[cluster].start()
