"""A cluster that is to be switched off: `magnetar drain` says when it may be, and otherwise what is missing."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.replication.conftest import Mesh
from tests.replication.jobs import TOPIC, done, held, magnetar, publish, wipe
from tests.support.brokers import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_drain_waits_for_producers_and_links_and_names_them(make_mesh: Callable[..., Mesh]) -> None:
    mesh = make_mesh(["a", "b"])
    producer = mesh.client("a").create_producer(TOPIC, producer_name="the last one")
    producer.send(b"x")
    refused = magnetar(mesh, "drain", "a", "--timeout", "0")
    assert refused.returncode == 1
    assert "no pipeline serves this link" in refused.stderr and "producer the last one" in refused.stderr
    mesh.pipeline.start()
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            producer.send_async(b"y" * 500, lambda _result, _id: None)
            time.sleep(0.001)
        producer.flush()
        producer.close()

    thread = threading.Thread(target=load)
    thread.start()
    try:
        drain = subprocess.Popen(
            [sys.executable, "-m", "magnetar", "drain", "a", "-c", str(mesh.world.config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert drain.stdout is not None
        first = drain.stdout.readline()
        assert "producers connected" in first
        under_load = magnetar(mesh, "drain", "a", "--timeout", "2")
        assert under_load.returncode == 1 and "it is not safe to switch a off" in under_load.stderr
    finally:
        stop.set()
        thread.join()
    out, err = drain.communicate(timeout=60)
    assert drain.returncode == 0, out + err
    assert out.endswith("a can be switched off now: its links have delivered everything\n")
    published = mesh["a"].rest("GET", f"/admin/v2/{TOPIC.replace('://', '/')}/stats")["msgInCounter"]
    mesh["a"].kill()  # that is what it is about
    assert held(mesh, "b", "a", TOPIC) == published


def test_drain_names_a_paused_topic_and_a_destination_that_lost_its_disk(make_mesh: Callable[..., Mesh]) -> None:
    mesh = make_mesh(["a", "b"])
    mesh.pipeline.start()
    publish(mesh, "a", TOPIC, ["x"])
    eventually(lambda: held(mesh, "b", "a", TOPIC) == 1, within_s=60)
    mesh["a"].rest("POST", f"/geo/v1/links/b/pause?topic={TOPIC}")
    publish(mesh, "a", TOPIC, ["y", "z"])
    paused = magnetar(mesh, "drain", "a", "--timeout", "1")
    assert f"a:b {TOPIC}: 2 messages not delivered, paused: magnetar links resume a:b --topic {TOPIC}" in paused.stderr
    mesh["a"].rest("POST", f"/geo/v1/links/b/resume?topic={TOPIC}")
    assert done(mesh, "drain", "a", "--timeout", "60")["safe"] is True
    mesh.pipeline.stop()  # so that only drain itself can find out
    wipe(mesh, "b")
    lost = magnetar(mesh, "drain", "a", "--timeout", "0")
    assert lost.returncode == 1 and "b has lost data" in lost.stderr
    mesh["b"].kill()
    gone = magnetar(mesh, "drain", "a", "--timeout", "0")
    assert gone.returncode == 1 and "b cannot be asked what it has" in gone.stderr
