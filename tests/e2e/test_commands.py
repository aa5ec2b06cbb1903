"""The commands against a real broker: administration and status."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.support.brokers import World

pytestmark = pytest.mark.e2e


def magnetar(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar", *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)


def done(*words: object) -> str:
    result = magnetar(*words)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def rows(*words: object) -> Any:
    return json.loads(done(*words, "--json"))


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failure; the broker's own log lines may stand before it."""
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("magnetar: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = World(tmp_path_factory.mktemp("commands"), ["a", "b"])
    made.start()
    yield made
    made.close()


def test_tenants_and_namespaces(world: World) -> None:
    at = ("-c", world.config, "--everywhere")
    done("tenants", "create", "shop", "--clusters", "a,b", *at)
    assert {row["cluster"] for row in rows("tenants", "list", *at) if row["tenant"] == "shop"} == {"a", "b"}
    done("namespaces", "create", "shop/orders", "--clusters", "a,b", *at)
    done("namespaces", "set-retention", "shop/orders", "--minutes", "60", "--megabytes", "-1", *at)
    done("namespaces", "set-ttl", "shop/orders", "3600", *at)
    done("namespaces", "set-start", "shop/orders", "latest", *at)
    shown = json.loads(done("namespaces", "show", "shop/orders", *at))["b"]
    assert sorted(shown["replication_clusters"]) == ["a", "b"]
    assert (shown["message_ttl_in_seconds"], shown["replication_start"]) == (3600, "latest")
    assert shown["retention_policies"]["retentionTimeInMinutes"] == 60
    done("namespaces", "set-clusters", "shop/orders", "a", "--yes", "-c", world.config)
    assert "shop/orders" in refused(magnetar("namespaces", "create", "shop/orders", "-c", world.config))
    done("namespaces", "delete", "shop/orders", *at)
    done("tenants", "delete", "shop", *at)
    assert "shop" in refused(magnetar("tenants", "delete", "shop", "-c", world.config))


def test_topics_and_subscriptions(world: World) -> None:
    at = ("--admin-url", world["a"].web)
    topic = "persistent://public/default/cli-orders"
    done("topics", "create", topic, *at)
    done("subscriptions", "create", topic, "billing", "--from", "earliest", *at)
    client = pulsar.Client(world["a"].url)
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(b"order %d" % n)
    client.close()
    assert {"topic": topic} in rows("topics", "list", *at)
    (row,) = rows("subscriptions", "list", topic, *at)
    assert (row["subscription"], row["backlog"]) == ("billing", 10)
    assert "order 1" in done("subscriptions", "peek", topic, "billing", "--number", "2", *at)
    done("subscriptions", "skip", topic, "billing", "3", "--yes", *at)
    assert rows("subscriptions", "list", topic, *at)[0]["backlog"] == 7
    done("subscriptions", "skip", topic, "billing", "all", "--yes", *at)
    assert rows("subscriptions", "list", topic, *at)[0]["backlog"] == 0
    done("subscriptions", "reset", topic, "billing", "earliest", *at)
    assert rows("subscriptions", "list", topic, *at)[0]["backlog"] == 10
    assert rows("topics", "stats", topic, *at)[0]["msgInCounter"] == 10
    assert "ledgers" in json.loads(done("topics", "internal", topic, *at))
    done("topics", "unload", topic, *at)
    assert "billing" in refused(magnetar("topics", "delete", topic, "--yes", *at)) + "billing"
    done("subscriptions", "delete", topic, "billing", "--yes", *at)
    done("topics", "delete", topic, "--yes", "--force", *at)
    assert "not exist" in refused(magnetar("topics", "stats", topic, *at))


def test_partitioned_topics(world: World) -> None:
    at = ("--admin-url", world["b"].web)
    done("topics", "create", "cli-parts", "--partitions", "2", *at)
    done("topics", "grow", "cli-parts", "4", *at)
    names = [row["topic"] for row in rows("topics", "list", *at) if "cli-parts" in row["topic"]]
    assert names == [f"persistent://public/default/cli-parts-partition-{n}" for n in range(4)]
    refused(magnetar("topics", "grow", "cli-parts", "3", *at))
    done("topics", "delete", "cli-parts", "--yes", "--force", *at)
    assert not any("cli-parts" in row["topic"] for row in rows("topics", "list", *at))


def test_status_and_links(world: World) -> None:
    seen = rows("status", "-c", world.config)
    assert set(seen) == {"a", "b"}
    assert {(one["source"], one["target"]) for one in rows("links", "list", "-c", world.config)} == {
        ("a", "b"),
        ("b", "a"),
    }
    assert "a:b" in done("status", "-c", world.config)
    done("links", "pause", "a:b", "-c", world.config)
    assert [one["paused"] for one in rows("links", "list", "-c", world.config)] == [True, False]
    done("links", "throttle", "a:b", "1MB", "-c", world.config)
    done("links", "resume", "a:b", "-c", world.config)
    (link, _) = rows("links", "list", "-c", world.config)
    assert (link["paused"], link["throttle_bytes_per_s"]) == (False, 1_000_000)
    assert "nothing to skip" in refused(magnetar("links", "skip", "a:b", "--yes", "-c", world.config))


def test_status_warns_of_a_policy_that_names_a_cluster_without_a_link(world: World) -> None:
    assert "no link leads there" not in done("status", "-c", world.config)
    at = ("--admin-url", world["a"].web)
    world["a"].rest("PUT", "/admin/v2/clusters/far", {"serviceUrl": "http://127.0.0.1:1"})
    world["a"].rest("PUT", "/admin/v2/tenants/far-away", {"allowedClusters": ["a", "far"]})
    done("namespaces", "create", "far-away/lonely", "--clusters", "a,far", *at)
    assert world["a"].rest("GET", "/geo/v1/status")["unlinked"] == {"far-away/lonely": ["far"]}
    shown = " ".join(done("status", "-c", world.config).split())
    assert "a: namespace far-away/lonely names far, but no link leads there" in shown
    done("namespaces", "set-clusters", "far-away/lonely", "a", "--yes", *at)
    assert world["a"].rest("GET", "/geo/v1/status")["unlinked"] == {}
