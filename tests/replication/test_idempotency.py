"""Idempotency keys between real clusters over real Spark: an outbox sent again adds nothing; after a cut one copy stays."""

import contextlib
import subprocess
import sys
from itertools import permutations
from urllib.error import HTTPError

import pulsar
import pytest

from tests.replication.conftest import Mesh
from tests.support.brokers import BrokerProcess, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]  # `magnetar verify` is a second Spark, beside the mesh's

KEY = "request"


def rest_path(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


def figures(broker: BrokerProcess, topic: str) -> dict[str, object]:
    return dict(broker.rest("GET", rest_path(topic) + "/stats")["idempotency"])


def exists(broker: BrokerProcess, topic: str) -> bool:
    """Whether a cluster has a topic: the first batch of a link makes those of the others, some time after they were made."""
    try:
        broker.rest("GET", rest_path(topic) + "/stats")
    except HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True


def verify(mesh: Mesh, topic: str) -> None:
    command = [sys.executable, "-m", "magnetar", "verify", topic, "-c", str(mesh.world.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def publish(mesh: Mesh, cluster: str, topic: str, keys: list[str]) -> None:
    producer = mesh.client(cluster).create_producer(topic, batching_enabled=True, batching_max_messages=5)
    for key in keys:
        producer.send_async(f"{key} {cluster}".encode(), lambda _r, _i: None, properties={KEY: key})
    producer.flush()
    producer.close()


def test_an_outbox_and_a_cut(mesh: Mesh, topic: str) -> None:
    clusters = "abc"
    mesh["a"].rest("PUT", rest_path(topic))
    for name in clusters:
        eventually(lambda: exists(mesh[name], topic), what="the topic")  # noqa: B023
        where = f"/geo/v1/{topic.replace('://', '/')}/idempotency"
        mesh[name].rest("POST", where, {"property": KEY, "windowSeconds": 3600})
        eventually(lambda: figures(mesh[name], topic)["status"] == "Enabled", what="idempotency keys")  # noqa: B023

    # Connected: what the links have brought counts.
    publish(mesh, "a", topic, [f"k{n}" for n in range(100)])
    mesh.read_all("b", topic, 100)
    publish(mesh, "b", topic, [f"k{n}" for n in range(50, 120)])
    for name in clusters:
        found = [one.data() for one in mesh.read_all(name, topic, 120)]
        assert sorted(found) == sorted(
            [f"k{n} a".encode() for n in range(100)] + [f"k{n} b".encode() for n in range(100, 120)]
        )
        assert not mesh.extra(name, topic, 120)

    # Apart: each takes the same requests, later it is decided.
    for a, b in permutations(clusters, 2):
        mesh[a].rest("POST", f"/geo/v1/links/{b}/pause?topic={topic}")
    for name in clusters:
        publish(mesh, name, topic, [f"cut{n}" for n in range(20)])
    for a, b in permutations(clusters, 2):
        mesh[a].rest("POST", f"/geo/v1/links/{b}/resume?topic={topic}")
    expected = sorted(found) + sorted(f"cut{n} a".encode() for n in range(20))
    for name in clusters:
        eventually(
            lambda: mesh[name].rest("GET", rest_path(topic) + "/stats")["msgInCounter"] == 180,  # noqa: B023
            what="all messages",
            within_s=120,
        )
        assert sorted(one.data() for one in mesh.read_all(name, topic, 140)) == sorted(expected)
        assert not mesh.extra(name, topic, 140)
        told = figures(mesh[name], topic)
        assert (told["withdrawn"], told["twice"], told["withdrawnInLog"]) == (40, 0, 40)
    assert sorted(subscribed(mesh, topic)) == sorted(expected)

    # They are in the log, and nobody misses them.
    verify(mesh, topic)


def subscribed(mesh: Mesh, topic: str) -> list[bytes]:
    """What a subscription that comes late is given."""
    consumer = mesh.client("c").subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
    found = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(2_000)
            consumer.acknowledge(message)
            found.append(message.data())
    consumer.close()
    return found
