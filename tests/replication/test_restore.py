"""A cluster loses its disk and gets its messages back: all three clusters hold everything once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from tests.replication.conftest import Mesh
from tests.replication.jobs import TOPIC, done, held, magnetar, publish, wipe
from tests.support.brokers import eventually
from tests.support.pipelines import START_S

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

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
