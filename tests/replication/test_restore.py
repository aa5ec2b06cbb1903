"""A cluster loses its disk and gets its messages back: all three clusters hold everything once; drain says when it may go."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from tests.replication.conftest import Mesh
from tests.support.brokers import eventually
from tests.support.pipelines import START_S

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

TOPIC = "persistent://public/default/orders"
PARTS = "persistent://public/default/parts"
TYPED = "persistent://public/default/typed"
CONSUMED = 1000
HEIR = "[broker]\nidentity_silence_ms = 500\n"
"""A reborn cluster is believed soon."""


class Older(Record):
    number = Integer()


class Newer(Record):
    number = Integer()
    more = Integer(required_default=True)


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


def consume(mesh: Mesh, cluster: str, count: int) -> None:
    """Acknowledge the first messages of the topic in a replicated subscription."""
    consumer = mesh.client(cluster).subscribe(
        TOPIC,
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
    )
    for _ in range(count):
        consumer.acknowledge(consumer.receive(60_000))
    consumer.close()


def backlog(mesh: Mesh, cluster: str) -> int:
    """Messages of the subscription that nobody acknowledged, as this cluster knows it; -1: it does not know it."""
    stats = mesh[cluster].rest("GET", f"/admin/v2/{TOPIC.replace('://', '/')}/stats")
    return int(stats["subscriptions"].get("s", {"msgBacklog": -1})["msgBacklog"])


def wipe(mesh: Mesh, cluster: str) -> None:
    """Power cut, new disk, same name."""
    mesh.close_client(cluster)
    mesh[cluster].kill()
    shutil.rmtree(mesh.world.folder / "data" / cluster)
    mesh[cluster].start()


def test_a_wiped_cluster_gets_everything_back_once(make_mesh: Callable[..., Mesh]) -> None:
    mesh = make_mesh(["a", "b", "c"], HEIR)
    mesh.pipeline.start()
    mesh["a"].rest("PUT", f"/admin/v2/{PARTS.replace('://', '/')}/partitions", 2)
    text = "x" * 1000
    publish(mesh, "a", TOPIC, [f"a{n} {text}" for n in range(6000)], batching_enabled=False)
    only = mesh.client("a").create_producer(TOPIC, batching_enabled=False)
    only.send(b"only c", replication_clusters=["c"])
    only.close()
    publish(mesh, "a", TOPIC, [f"a{n} batched" for n in range(6000, 7000)], batching_max_publish_delay_ms=5)
    publish(mesh, "a", PARTS, [f"p{n}" for n in range(200)], batching_enabled=False)
    publish(mesh, "c", TOPIC, [f"c{n}" for n in range(300)], batching_enabled=False)
    publish_typed(mesh)
    eventually(lambda: (held(mesh, "b", "a", TOPIC), held(mesh, "c", "a", TOPIC)) == (7000, 7001), within_s=90)
    eventually(lambda: (held(mesh, "b", "a", PARTS), held(mesh, "b", "c", TOPIC)) == (200, 300), within_s=60)
    eventually(lambda: held(mesh, "b", "a", TYPED) == 20, within_s=60)
    consume(mesh, "b", CONSUMED)

    wipe(mesh, "a")
    eventually(lambda: held(mesh, "a", "c", TOPIC) == 300, within_s=90, what="the others' messages by their own links")
    publish(mesh, "a", TOPIC, [f"n{n}" for n in range(50)], batching_enabled=False)

    # The restore dies in the middle: the cluster is held still when it has something, the whole job is killed.
    plan = {row["topic"]: row for row in done(mesh, "restore", "a", "--from", "b", "--dry-run")}
    assert plan[TOPIC]["to_restore"] == 7000 and plan[TOPIC]["gaps"] == 1
    assert held(mesh, "a", "a", TOPIC) == 50
    kill_in_the_middle(mesh)
    some = held(mesh, "a", "a", TOPIC) - 50
    assert 0 < some < 7000

    told = done(mesh, "restore", "a", "--from", "b")
    rows = {row["topic"]: row for row in told["topics"]}
    assert (told["missing"], rows[TOPIC]["restored"] + rows[TOPIC]["here_before"]) == (0, 7000)
    assert rows[TOPIC]["here_before"] >= some
    assert told["gaps"] == 1, "what only c was sent"
    again = done(mesh, "restore", "a", "--from", "b")
    assert (again["restored"], again["missing"]) == (0, 0)

    # Once everywhere, in order, unaltered, and not sent over the links again.
    mesh.close_client("a")
    eventually(lambda: held(mesh, "b", "a", TOPIC) == 7050 and held(mesh, "c", "a", TOPIC) == 7051, within_s=60)
    assert [held(mesh, cluster, "a", PARTS) for cluster in "abc"] == [200] * 3
    compared = json.loads(magnetar(mesh, "verify", TOPIC, "--json").stdout)
    for row in compared["clusters"]:
        wrong = [row[kind] for kind in ("missing", "duplicated", "reordered", "altered")]
        assert wrong == [1 if row["cluster"] == "a" else 0, 0, 0, 0], row
    read_typed(mesh)
    messages = mesh.read_all("a", TOPIC, 7350)
    texts = [message.data().decode().split()[0] for message in messages]
    assert [one for one in texts if one[0] == "a"] == [f"a{n}" for n in range(7000)]
    assert not mesh.extra("a", TOPIC, 7350)
    eventually(
        lambda: backlog(mesh, "a") == 7350 - CONSUMED, within_s=60, what="what was consumed in b stays consumed in a"
    )


def publish_typed(mesh: Mesh) -> None:
    """Messages of two schemas, of which b has the second under the first number."""
    mesh["b"].rest(
        "POST",
        f"/admin/v2/schemas/{TYPED.removeprefix('persistent://')}/schema",
        {"type": "AVRO", "schema": json.dumps(AvroSchema(Newer)._schema), "properties": {}},
    )
    for kind in (Older, Newer):
        producer = mesh.client("a").create_producer(TYPED, schema=AvroSchema(kind), batching_enabled=False)
        for n in range(10):
            producer.send(kind(number=n))
        producer.close()


def read_typed(mesh: Mesh) -> None:
    """They came back to a, which had lost its registry, with their schemas."""
    consumer = mesh.client("a").subscribe(
        TYPED, "s", initial_position=pulsar.InitialPosition.Earliest, schema=AvroSchema(Newer)
    )
    for kind in (Older, Newer):
        for n in range(10):
            message = consumer.receive(60_000)
            assert message.value().number == n
            info = mesh.client("a")._client.get_schema_info(TYPED, message._message.int_schema_version())
            assert json.loads(info.schema()) == AvroSchema(kind)._schema
    consumer.close()


def kill_in_the_middle(mesh: Mesh) -> None:
    """Start a restore, stop the cluster when it has the first messages, kill the job and everything it started."""
    words = ["restore", "a", "--from", "b", "--topic", TOPIC, "-c", str(mesh.world.config)]
    command = [sys.executable, "-m", "magnetar", *words]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    broker = mesh["a"].process
    assert broker is not None
    try:
        eventually(
            lambda: mesh["a"].rest("GET", "/geo/v1/status")["restored"]["messages"] > 0, within_s=START_S, every_s=0.001
        )
        broker.send_signal(signal.SIGSTOP)
        assert job.poll() is None, "the job was done before it could be killed"
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(timeout=20)
        broker.send_signal(signal.SIGCONT)


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
