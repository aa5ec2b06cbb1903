"""Messages travel between three clusters over real Spark: once, in each origin's order, nothing altered."""

import json
import time
import urllib.error

import pulsar
import pytest

from tests.replication.conftest import Mesh
from tests.support.brokers import eventually

pytestmark = pytest.mark.spark


def test_every_cluster_publishes_and_all_have_all(mesh: Mesh, topic: str) -> None:
    producers = {name: mesh.client(name).create_producer(topic, batching_enabled=False) for name in "abc"}
    for n in range(100):
        for name, producer in producers.items():
            producer.send_async(f"{name}{n}".encode(), lambda _r, _i: None)
    for producer in producers.values():
        producer.flush()
    for reading in "abc":
        messages = [m.data().decode() for m in mesh.read_all(reading, topic, 300)]
        for origin in "abc":
            assert [m for m in messages if m[0] == origin] == [f"{origin}{n}" for n in range(100)]
        assert not mesh.extra(reading, topic, 300)


def test_everything_of_a_message_arrives(mesh: Mesh, topic: str) -> None:
    client = mesh.client("a")
    plain = client.create_producer(topic, batching_enabled=False, producer_name="plain")
    plain.send(
        b"x",
        properties={"p": "1"},
        partition_key="key",
        ordering_key="o",
        event_timestamp=77,
        sequence_id=5,
    )
    batched = client.create_producer(
        topic,
        batching_max_publish_delay_ms=100,
        compression_type=pulsar.CompressionType.ZSTD,
        producer_name="batched",
    )
    for n in range(50):
        batched.send_async(b"%d" % n, lambda _r, _i: None, properties={"n": str(n)})
    batched.flush()
    chunked = client.create_producer(topic, chunking_enabled=True, batching_enabled=False, producer_name="chunked")
    big = bytes(range(256)) * (11 * 4096)
    chunked.send(big)
    first, *rest = mesh.read_all("b", topic, 52)
    assert (
        first.data(),
        first.properties(),
        first.partition_key(),
        first.event_timestamp(),
    ) == (
        b"x",
        {"p": "1"},
        "key",
        77,
    )
    assert [m.data() for m in rest[:50]] == [b"%d" % n for n in range(50)]
    assert [m.properties() for m in rest[:50]] == [{"n": str(n)} for n in range(50)]
    assert rest[50].data() == big


def test_replicate_to_and_local_only(mesh: Mesh, topic: str) -> None:
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    producer.send(b"to b", replication_clusters=["b"])
    producer.send(b"nowhere", disable_replication=True)
    producer.send(b"everywhere")
    assert [m.data() for m in mesh.read_all("a", topic, 3)] == [
        b"to b",
        b"nowhere",
        b"everywhere",
    ]
    assert [m.data() for m in mesh.read_all("b", topic, 2)] == [b"to b", b"everywhere"]
    assert [m.data() for m in mesh.read_all("c", topic, 1)] == [b"everywhere"]
    assert not mesh.extra("b", topic, 2)
    assert not mesh.extra("c", topic, 1)


def test_partitioned_topics_travel_with_their_count(mesh: Mesh, topic: str) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}/partitions"
    mesh["a"].rest("PUT", path, 3)
    eventually(lambda: _partitions(mesh, "b", path) == 3 and _partitions(mesh, "c", path) == 3)
    producer = mesh.client("a").create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    for n in range(30):
        producer.send(b"%d" % n)
    assert sorted(int(m.data()) for m in mesh.read_all("b", topic, 30)) == list(range(30))
    mesh["a"].rest("POST", path, 5)
    eventually(lambda: _partitions(mesh, "b", path) == 5)


def _partitions(mesh: Mesh, cluster: str, path: str) -> int:
    try:
        return int(mesh[cluster].rest("GET", path)["partitions"])
    except urllib.error.HTTPError:
        return 0


def test_partition_counts_that_conflict_block_this_topic_only(mesh: Mesh, topic: str) -> None:
    # A link carries a new topic as soon as it is made, so both are made before the namespace is replicated.
    namespace = f"public/conflict{time.time_ns()}"
    conflict = f"persistent://{namespace}/t"
    for cluster in "ab":
        mesh[cluster].rest("PUT", f"/admin/v2/namespaces/{namespace}", {"replication_clusters": [cluster]})
    mesh["b"].rest("PUT", f"/admin/v2/persistent/{namespace}/t")
    mesh["a"].rest("PUT", f"/admin/v2/persistent/{namespace}/t/partitions", 2)
    for cluster in "ab":
        mesh[cluster].rest("POST", f"/admin/v2/namespaces/{namespace}/replication", ["a", "b"])
    eventually(lambda: _blocked(mesh, "a", "b", conflict + "-partition-0") == "partitions")
    mesh.client("a").create_producer(topic).send(b"goes on")
    assert mesh.read_all("b", topic, 1)[0].data() == b"goes on"


def _blocked(mesh: Mesh, source: str, target: str, topic: str) -> str:
    for link in mesh[source].rest("GET", "/geo/v1/links"):
        if link["target"] == target:
            for state in link["topics"]:
                if state["topic"] == topic:
                    return str(state["blocked"])
    return ""


def test_missing_namespace_blocks_until_it_is_there(mesh: Mesh) -> None:
    name = f"ns{time.time_ns()}"
    mesh["a"].rest(
        "PUT",
        f"/admin/v2/namespaces/public/{name}",
        {"replication_clusters": ["a", "b"]},
    )
    topic = f"persistent://public/{name}/t"
    mesh.client("a").create_producer(topic).send(b"wait for me")
    eventually(lambda: _blocked(mesh, "a", "b", topic) == "policy")
    mesh["b"].rest(
        "PUT",
        f"/admin/v2/namespaces/public/{name}",
        {"replication_clusters": ["a", "b"]},
    )
    assert mesh.read_all("b", topic, 1, 60_000)[0].data() == b"wait for me"


def test_pause_skip_and_resume(mesh: Mesh, topic: str) -> None:
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    producer.send(b"before")
    assert mesh.read_all("b", topic, 1)[0].data() == b"before"
    mesh["a"].rest("POST", f"/geo/v1/links/b/pause?topic={topic}")
    for n in range(5):
        producer.send(b"skipped %d" % n)
    assert [m.data() for m in mesh.read_all("c", topic, 6)][1:] == [b"skipped %d" % n for n in range(5)]
    assert not mesh.extra("b", topic, 1)
    preview = mesh["a"].rest("POST", f"/geo/v1/links/b/skip?topic={topic}&through=latest&preview=true")
    assert sum(item["messages"] for item in (preview if isinstance(preview, list) else preview["topics"])) == 5
    mesh["a"].rest("POST", f"/geo/v1/links/b/skip?topic={topic}&through=latest")
    mesh["a"].rest("POST", f"/geo/v1/links/b/resume?topic={topic}")
    producer.send(b"after")
    assert [m.data() for m in mesh.read_all("b", topic, 2)] == [b"before", b"after"]


def test_deleted_topic_is_not_brought_back_by_a_link(mesh: Mesh, topic: str) -> None:
    producer = mesh.client("a").create_producer(topic, batching_enabled=False)
    producer.send(b"one")
    assert mesh.read_all("b", topic, 1)[0].data() == b"one"
    mesh["b"].rest("DELETE", f"/admin/v2/{topic.replace('://', '/')}?force=true")
    producer.send(b"two")
    eventually(lambda: _blocked(mesh, "a", "b", topic) == "policy")
    mesh["b"].rest("PUT", f"/admin/v2/{topic.replace('://', '/')}")
    # A re-created destination is new: everything that the source retains comes again.
    assert [m.data() for m in mesh.read_all("b", topic, 2, 60_000)] == [b"one", b"two"]


def test_links_are_reported(mesh: Mesh, topic: str) -> None:
    mesh.client("a").create_producer(topic).send(b"x")
    mesh.read_all("b", topic, 1)
    links = mesh["a"].rest("GET", "/geo/v1/links")
    assert sorted(link["target"] for link in links) == ["b", "c"]
    assert json.dumps(links)
