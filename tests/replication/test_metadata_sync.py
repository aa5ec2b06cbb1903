"""Tenants, namespaces and policies are the same in three clusters that share no store, over real Spark."""

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.pipelines import replicating

pytestmark = pytest.mark.spark

ON = '[metadata]\nmetadata_sync_topic = "persistent://pulsar/system/metadata-sync"\n'
N = "/admin/v2/namespaces"
KEPT = "persistent://gone/one/kept"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three clusters that synchronise, and the pipeline between them."""
    with replicating(tmp_path_factory.mktemp("metasync"), "abc", ON) as (world, _):
        yield world


def policies(broker: BrokerProcess, namespace: str) -> dict[str, Any] | None:
    """The policies of a namespace, None if there is none."""
    try:
        return dict(broker.rest("GET", f"{N}/{namespace}"))
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return None


def agree(world: World) -> bool:
    """Whether all clusters that run are in the same state."""
    states = [broker.rest("GET", "/geo/v1/metadata") for broker in world.brokers.values() if broker.process]
    return len({state["digest"] for state in states}) == 1


def magnetar(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """One command of the command line."""
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *words, "-c", str(world.config)], capture_output=True, text=True, timeout=60
    )


def make(world: World, namespace: str, clusters: list[str] | None = None) -> None:
    """A namespace, made in cluster a, everywhere."""
    tenant = namespace.partition("/")[0]
    if tenant not in world["a"].rest("GET", "/admin/v2/tenants"):
        world["a"].rest("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["a", "b", "c"], "adminRoles": []})
    world["a"].rest("PUT", f"{N}/{namespace}", {"replication_clusters": clusters or ["a", "b", "c"]})
    eventually(lambda: all(policies(world[name], namespace) for name in "bc"), within_s=60)


def test_a_namespace_and_its_policies_are_everywhere(world: World) -> None:
    make(world, "acme/orders")
    world["b"].rest("POST", f"{N}/acme/orders/messageTTL", 60)
    world["c"].rest("POST", f"{N}/acme/orders/deduplication", True)
    wanted = {"message_ttl_in_seconds": 60, "deduplicationEnabled": True}
    for name in "abc":
        eventually(lambda name=name: wanted.items() <= (policies(world[name], "acme/orders") or {}).items())
    eventually(lambda: agree(world))
    before = world["c"].rest("GET", "/geo/v1/metadata")["counters"]["told"]
    world["a"].rest("POST", f"{N}/acme/orders/messageTTL", 61)
    eventually(lambda: (policies(world["c"], "acme/orders") or {}).get("message_ttl_in_seconds") == 61)
    told = world["c"].rest("GET", "/geo/v1/metadata/document?path=namespaces/acme/orders")
    assert {"message_ttl_in_seconds": "a", "deduplicationEnabled": "c"}.items() <= {
        row["field"]: row["set_by"] for row in told
    }.items()
    assert world["c"].rest("GET", "/geo/v1/metadata")["counters"]["told"] == before


def test_the_same_field_at_the_same_time_in_three_clusters(world: World) -> None:
    make(world, "race/track")
    for name, seconds in (("a", 1), ("b", 2), ("c", 3)):
        world[name].rest("POST", f"{N}/race/track/messageTTL", seconds)
    eventually(lambda: agree(world))
    shown = {name: (policies(world[name], "race/track") or {})["message_ttl_in_seconds"] for name in "abc"}
    assert len(set(shown.values())) == 1


def test_partitioned_topics_are_made_and_grow_without_a_message(world: World) -> None:
    make(world, "parts/two", ["a", "b"])
    topic = "persistent://parts/two/p"
    path = "/admin/v2/persistent/parts/two/p/partitions"
    world["a"].rest("PUT", path, 2)
    eventually(lambda: count(world["b"], path) == 2)
    world["b"].rest("POST", path, 5)
    eventually(lambda: count(world["a"], path) == 5)
    eventually(lambda: agree(world))
    assert count(world["c"], path) == 0
    assert f"partitioned/{topic}" in world["c"].rest("GET", "/geo/v1/metadata")["hidden"]


def count(broker: BrokerProcess, path: str) -> int:
    """Partitions of a topic; 0 if it is not there."""
    try:
        return int(broker.rest("GET", path)["partitions"])
    except urllib.error.HTTPError:
        return 0


def test_topic_policies_follow(world: World) -> None:
    make(world, "acme2/t")
    world["a"].rest("PUT", "/admin/v2/persistent/acme2/t/one")
    eventually(lambda: "persistent://acme2/t/one" in world["b"].rest("GET", "/admin/v2/persistent/acme2/t"))
    world["a"].rest("POST", "/admin/v2/persistent/acme2/t/one/maxConsumers", 7)
    eventually(lambda: world["b"].rest("GET", "/admin/v2/persistent/acme2/t/one/maxConsumers") == 7)


def test_permissions_follow_and_are_taken_back_everywhere(world: World) -> None:
    make(world, "acme3/t")
    of_namespace = f"{N}/acme3/t/permissions"
    of_topic = "/admin/v2/persistent/acme3/t/one/permissions"
    reserved = f"{of_namespace}/subscription"

    def shown(name: str) -> list[Any]:
        return [world[name].rest("GET", path) for path in (of_namespace, of_topic, reserved)]

    world["a"].rest("POST", f"{of_namespace}/app", ["consume"])
    world["b"].rest("POST", f"{of_topic}/app", ["produce"])
    world["a"].rest("POST", f"{reserved}/billing", ["app"])
    world["b"].rest("POST", f"{reserved}/billing%2Fnight", ["app", "ops"])
    users = {"billing": ["app"], "billing/night": ["app", "ops"]}
    for name in "abc":
        eventually(lambda name=name: shown(name) == [{"app": ["consume"]}, {"app": ["consume", "produce"]}, users])
    world["c"].rest("DELETE", f"{of_namespace}/billing/app")
    world["c"].rest("POST", f"{reserved}/billing%2Fnight", ["ops"])
    world["c"].rest("DELETE", f"{of_namespace}/app")
    for name in "abc":
        eventually(lambda name=name: shown(name) == [{}, {"app": ["produce"]}, {"billing/night": ["ops"]}])
    eventually(lambda: agree(world))


def test_what_is_no_event_is_refused_and_does_no_harm(world: World) -> None:
    import pulsar

    make(world, "calm/sea")
    client = pulsar.Client(world["b"].url)
    producer = client.create_producer("persistent://pulsar/system/metadata-sync", batching_enabled=False)
    forged = {"magnetar": 1, "cluster": "c", "kind": "change", "records": {}}
    stranger = {"magnetar": 1, "cluster": "mars", "kind": "change", "records": {}}
    impossible = {
        "path": "/admin/policies/calm/sea", "value": {"message_ttl_in_seconds": -5}, "sourceCluster": "b",
        "lastUpdatedTimestamp": 1_900_000_000_000, "type": "Modified",
    }  # fmt: skip
    for data in (
        b"\x00rubbish",
        json.dumps(forged).encode(),
        json.dumps(stranger).encode(),
        json.dumps(impossible).encode(),
    ):
        producer.send(data)
    for name in "abc":
        eventually(lambda name=name: world[name].rest("GET", "/geo/v1/metadata")["counters"]["refused"] >= 4)
    lines = world["a"].rest("GET", "/geo/v1/metadata")["refused"]
    assert any("not JSON" in line for line in lines)
    assert any("came from b" in line for line in lines)
    assert any("mars" in line for line in lines)
    assert any("-5" in line for line in lines)
    plain = {
        "path": "/admin/policies/calm/sea", "value": {"replication_clusters": ["a", "b", "c"], "message_ttl_in_seconds": 9},
        "sourceCluster": "b", "lastUpdatedTimestamp": 4_000_000_000_000, "type": "Modified",
    }  # fmt: skip
    producer.send(json.dumps(plain).encode())
    client.close()
    for name in "abc":
        eventually(lambda name=name: "namespaces/calm/sea" in world[name].rest("GET", "/geo/v1/metadata")["waiting"])
    assert all("message_ttl_in_seconds" not in (policies(world[name], "calm/sea") or {}) for name in "abc")
    world["a"].rest("POST", f"{N}/calm/sea/messageTTL", 11)  # other changes go on
    eventually(lambda: (policies(world["c"], "calm/sea") or {}).get("message_ttl_in_seconds") == 11)


def test_status_and_preview(world: World) -> None:
    make(world, "store/web")
    world["b"].rest("POST", f"{N}/store/web/messageTTL", 60)
    eventually(lambda: agree(world))
    shown = magnetar(world, "metadata", "status")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("agrees") == 3
    assert "agrees" in magnetar(world, "status").stdout
    same = magnetar(world, "metadata", "diff")
    assert (same.returncode, "is the same" in same.stdout) == (0, True), same.stderr
    for name in "abc":
        eventually(lambda name=name: (policies(world[name], "store/web") or {}).get("message_ttl_in_seconds") == 60)
    asked = magnetar(world, "namespaces", "set", "store/web", "ttl", "30", "--preview")
    assert asked.returncode == 0, asked.stderr
    assert [line.partition(" (")[0] for line in asked.stdout.splitlines()[:3]] == [
        f"{name}: message_ttl_in_seconds: 60" for name in "abc"
    ]
    assert "set by b" in asked.stdout
    assert "-> 30" in asked.stdout
    assert (policies(world["a"], "store/web") or {})["message_ttl_in_seconds"] == 60


def test_the_commands_of_the_page(world: World) -> None:
    """Every command of docs/metadata.md, in its order."""
    page = (Path(__file__).parents[2] / "docs" / "metadata.md").read_text()
    lines = [line.strip() for line in page.splitlines() if line.startswith("    magnetar ")]
    assert len(lines) >= 7
    for line in lines:
        words = line.replace("us-west", "a").replace("us-east", "b").split()[1:]
        if "preview" in line:
            eventually(lambda: all(policies(world[name], "shop/orders") for name in "abc"))
        done = magnetar(world, *words)
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_deleted_elsewhere_while_a_cluster_was_away(world: World) -> None:
    """Its topics keep what they need; when they are deleted by name, the tenant goes here too. An emptied cluster joins."""
    make(world, "gone/one")
    make(world, "gone/two")
    kept = "/admin/v2/persistent/gone/one/kept"
    world["c"].rest("PUT", kept)
    # Links make a topic in the other clusters as soon as they look at it, also an empty one.
    eventually(lambda: all(KEPT in world[name].rest("GET", "/admin/v2/persistent/gone/one") for name in "ab"))
    eventually(lambda: agree(world))
    world["c"].kill()
    for name in "ab":
        world[name].rest("DELETE", f"{kept}?force=true")
    for path in (f"{N}/gone/one", f"{N}/gone/two", "/admin/v2/tenants/gone"):
        world["a"].rest("DELETE", path)
    eventually(lambda: policies(world["b"], "gone/one") is None)
    world["c"].start()
    eventually(lambda: policies(world["c"], "gone/two") is None, within_s=60)
    state = world["c"].rest("GET", "/geo/v1/metadata")
    assert set(state["kept"]) == {"namespaces/gone/one", "tenants/gone"}
    assert policies(world["c"], "gone/one") is not None
    eventually(lambda: agree(world))
    world["c"].rest("DELETE", f"{kept}?force=true")
    eventually(lambda: "gone" not in world["c"].rest("GET", "/admin/v2/tenants"))
    empty(world, "c")
    eventually(lambda: policies(world["c"], "acme/orders"), within_s=90)
    eventually(lambda: agree(world), within_s=60)
    assert "gone" not in world["c"].rest("GET", "/admin/v2/tenants")


def empty(world: World, cluster: str) -> None:
    """A disk is lost."""
    import shutil

    world[cluster].kill()
    shutil.rmtree(Path(world.folder) / "data" / cluster)
    world[cluster].start()
