"""A planned failover over the real pipeline: the consumer goes there and back, nothing is lost, nothing comes twice."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests.replication.conftest import Mesh
from tests.support.brokers import eventually

pytestmark = pytest.mark.spark


def test_there_and_back_over_spark(mesh: Mesh, topic: str) -> None:
    consumer = mesh.client("a").subscribe(topic, "moving", replicate_subscription_state_enabled=True)
    producers = [mesh.client(name).create_producer(topic, batching_enabled=False) for name in "ac"]
    path = f"/geo/v1/failover/{topic.replace('://', '/')}/moving"
    sent = 0
    seen: list[bytes] = []

    def publish(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            for producer in producers:
                producer.send(b"%d" % sent)
                sent += 1

    def receive() -> None:
        while len(seen) < sent:
            message = consumer.receive(60_000)
            seen.append(message.data())
            consumer.acknowledge(message)

    def there() -> bool:
        with contextlib.suppress(OSError):
            return bool(mesh["b"].rest("GET", path))
        return False

    publish(20)
    receive()
    eventually(there, within_s=60, what="the subscription in b")
    for source, target in (("a", "b"), ("b", "a")):
        publish(10)
        receive()
        report = _move(mesh, topic, source, target)
        assert (report["redelivered"], report["skipped"]) == (0, 0)
        publish(10)
        receive()
        eventually(lambda: mesh[target].rest("GET", path)[0]["consumers"] == 1, what=f"it follows to {target}")  # noqa: B023
    assert Counter(seen) == Counter(b"%d" % number for number in range(sent))


def _move(mesh: Mesh, topic: str, source: str, target: str) -> dict[str, Any]:
    """By the command."""
    words = ["failover", topic, "moving", "--from", source, "--to", target, "-c", str(mesh.world.config), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *words, "--timeout", "90"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
