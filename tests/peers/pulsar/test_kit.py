"""The kit starts, joins, stops and wipes real Apache Pulsar clusters."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pulsar
import pytest

from tests.support import jvm
from tests.support.apache_pulsar import kit
from tests.support.apache_pulsar.kit import PulsarCluster
from tests.support.brokers import eventually
from tests.support.patience import PATIENCE

WAIT_S = 60 * PATIENCE
"""A deadline: Pulsar that starts again after a kill recovers its ledgers first."""

pytestmark = pytest.mark.timeout(300)


def client_of(url: str, **more: object) -> pulsar.Client:
    """An official client that logs errors only."""
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(url, operation_timeout_seconds=WAIT_S, logger=logger, **more)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PulsarCluster]:
    """One cluster that this test starts and stops."""
    made = PulsarCluster(tmp_path / "peer", "c1")
    yield made
    made.kill()
    made.wipe()


def published(url: str, topic: str, count: int) -> list[bytes]:
    """Publish so many messages, each confirmed."""
    client = client_of(url)
    producer = client.create_producer(topic)
    bodies = [f"message {number}".encode() for number in range(count)]
    for body in bodies:
        producer.send(body)
    client.close()
    return bodies


def consumed(url: str, topic: str, count: int) -> list[bytes]:
    """Consume so many messages of a topic from its beginning, and acknowledge them."""
    client = client_of(url)
    consumer = client.subscribe(topic, f"s-{uuid.uuid4().hex}", initial_position=pulsar.InitialPosition.Earliest)
    bodies = []
    for _ in range(count):
        message = consumer.receive(WAIT_S * 1000)
        bodies.append(message.data())
        consumer.acknowledge(message)
    client.close()
    return bodies


def test_messages_of_an_official_client_outlive_a_kill_and_not_a_wipe(cluster: PulsarCluster) -> None:
    cluster.start()
    # Without it a broker that starts again deletes what its only subscription has consumed, before the next one is there.
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    cluster.rest("POST", "/admin/v2/namespaces/public/default/retention", retention)
    sent = published(cluster.url, "smoke", 20)
    assert consumed(cluster.url, "smoke", 20) == sent
    first = cluster.pid
    cluster.kill()
    assert not psutil.pid_exists(first)

    cluster.start()
    assert consumed(cluster.url, "smoke", 20) == sent  # a confirmed message is on the disk
    cluster.stop()
    assert cluster.process is None

    cluster.wipe()
    assert not cluster.folder.exists()
    cluster.start()
    assert "persistent://public/default/smoke" not in cluster.rest("GET", "/admin/v2/persistent/public/default")


def test_logs_are_bounded(cluster: PulsarCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "LOG_BYTES", 16 << 10)
    cluster.start()  # a start alone writes some 200 KB
    assert 0 < cluster.log_bytes() < 3 * (16 << 10)


def test_a_cluster_whose_disk_fills_is_killed(cluster: PulsarCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.start()
    assert cluster.process is not None
    monkeypatch.setattr(jvm, "FREE_BYTES", 1 << 60)
    assert cluster.process.wait(60) != 0
    assert "its disk had only" in cluster.stopped_because
    cluster.kill()
    with pytest.raises(jvm.PeerError, match="MB of room"):
        cluster.start()


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    cluster = PulsarCluster(tmp_path / "peer", "c1", settings={"brokerServicePort": "nothing"})
    with pytest.raises(jvm.PeerError, match="c1 ended while it started") as failure:
        cluster.start()
    assert "\n" not in str(failure.value)
    assert cluster.process is None


def test_clusters_that_are_joined_replicate_over_a_delaying_proxy(tmp_path: Path) -> None:
    with kit.running(tmp_path, "a", "b", far={"b": 0.02}) as clusters:
        a, b = clusters["a"], clusters["b"]
        sent = published(a.url, "joined", 20)
        eventually(
            lambda: "persistent://public/default/joined" in b.rest("GET", "/admin/v2/persistent/public/default"),
            within_s=60,
        )
        assert consumed(b.url, "joined", 20) == sent
