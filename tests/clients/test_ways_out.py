"""Ways out that brokers print are run as they are printed, by a shell's rules, against real brokers; then the trouble is gone.

Two clusters, no pipeline: a link's handshake is asked by hand.
"""

import contextlib
import io
import shlex
import sys
import urllib.error
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from magnetar import cli
from magnetar.runtime.network.link_client import LinkClient
from magnetar.wire import pulsar_pb2 as pb
from tests.support.brokers import World
from tests.support.commands import Terminal

LATER: Final = 4_000_000_000_000
"""An incarnation after every deletion; 1 is before."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    links = '[[links]]\nfrom = "a"\nto = "b"\n[[links]]\nfrom = "b"\nto = "a"\n'
    made = World(tmp_path_factory.mktemp("ways"), ["a", "b"], links).start()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Somebody whose configuration names no cluster of these: a command has to say which one it is for."""
    monkeypatch.delenv("MAGNETAR_ADMIN_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "400")


def handshake(world: World, topic: str, partitions: int = 0, incarnation: int = 1, *, to: str = "b") -> tuple[str, str]:
    """What the other cluster's link is told of a topic: the kind of block, and the reason."""
    (token,) = Path(world.folder).rglob("link.token")
    source = "a" if to == "b" else "b"
    identity = world[source].rest("GET", "/geo/v1/status")["uuid"]
    address = f"127.0.0.1:{world[to].pulsar_port}"
    client = LinkClient.connect(address, token.read_bytes().strip(), timeout_ms=5_000)
    try:
        query = pb.GeoWatermarkQuery(topic=topic, incarnation=incarnation, partitions=partitions)
        (told,) = client.watermarks(source, identity, [query]).topics
    finally:
        client.close()
    return told.blocked, told.reason


def run(world: World, printed: str, *, folder: Path | None = None) -> str:
    """Run commands that are joined by `&&`, by somebody who says yes to what is asked; what they said."""
    said = io.StringIO()
    for command in printed.split(" && "):
        words = shlex.split(command)
        assert words[0] == "magnetar"
        with contextlib.ExitStack() as stack:
            if folder is not None:
                stack.enter_context(contextlib.chdir(folder))
            stack.enter_context(contextlib.redirect_stdout(said))
            stack.enter_context(contextlib.redirect_stderr(said))
            kept, sys.stdin = sys.stdin, Terminal("y\n")
            try:
                code = cli.run(words[1:])
            finally:
                sys.stdin = kept
        assert code == 0, (command, said.getvalue())
    return said.getvalue()


def behind(reason: str, colon: str) -> str:
    """The commands that a reason ends with, behind these words."""
    assert colon in reason, reason
    return reason.partition(colon)[2]


def refused(world: World, cluster: str, method: str, path: str, body: Any = None) -> str:
    """The reason of a request that is refused."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        world[cluster].rest(method, path, body)
    return str(caught.value.read().decode())


def name(kind: str) -> str:
    return f"persistent://public/default/{kind}-{uuid.uuid4().hex[:8]}"


def rest(topic: str, more: str = "") -> str:
    return "/admin/v2/" + topic.replace("://", "/") + more


class Case(NamedTuple):
    """A trouble of a link, its words, and what has to be there when it is over."""

    prepare: Callable[[World], tuple[str, int]]
    kind: str
    colon: str


def deleted(world: World) -> tuple[str, int]:
    topic = name("deleted")
    world["b"].rest("PUT", rest(topic))
    world["b"].rest("DELETE", rest(topic, "?force=true"))
    return topic, 0


def deleted_parts(world: World) -> tuple[str, int]:
    topic = name("parts")
    world["b"].rest("PUT", rest(topic, "/partitions"), 3)
    world["b"].rest("DELETE", rest(topic, "/partitions?force=true"))
    return f"{topic}-partition-2", 3


def deleted_and_made_by_another_link(world: World) -> tuple[str, int]:
    topic, _ = deleted(world)
    assert handshake(world, topic, incarnation=LATER) == ("", "")
    return topic, 0


def strange(world: World) -> tuple[str, int]:
    topic = 'persistent://public/default/it\'s $HOME; `id` & "so"'
    path = "/admin/v2/persistent/public/default/it%27s%20%24HOME%3B%20%60id%60%20%26%20%22so%22"
    world["b"].rest("PUT", path)
    world["b"].rest("DELETE", path + "?force=true")
    return topic, 0


def no_tenant(world: World) -> tuple[str, int]:
    return f"persistent://t{uuid.uuid4().hex[:8]}/n/t", 0


def no_namespace(world: World) -> tuple[str, int]:
    return f"persistent://public/n{uuid.uuid4().hex[:8]}/t", 0


def not_replicated(world: World) -> tuple[str, int]:
    space = f"public/n{uuid.uuid4().hex[:8]}"
    world["b"].rest("PUT", f"/admin/v2/namespaces/{space}", {"replication_clusters": ["a"]})
    return f"persistent://{space}/t", 0


def not_allowed(world: World) -> tuple[str, int]:
    space = f"public/n{uuid.uuid4().hex[:8]}"
    policies = {"replication_clusters": ["a"], "allowed_clusters": ["a"]}
    world["b"].rest("PUT", f"/admin/v2/namespaces/{space}", policies)
    return f"persistent://{space}/t", 0


def not_for_the_tenant(world: World) -> tuple[str, int]:
    tenant = f"t{uuid.uuid4().hex[:8]}"
    world["b"].rest("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["a"], "adminRoles": []})
    world["b"].rest("PUT", f"/admin/v2/namespaces/{tenant}/n", {"replication_clusters": ["a"]})
    return f"persistent://{tenant}/n/t", 0


def plain_here(world: World) -> tuple[str, int]:
    topic = name("plain")
    world["b"].rest("PUT", rest(topic))
    return f"{topic}-partition-1", 2


CASES: Final = [
    Case(deleted, "policy", "to have it again: "),
    Case(deleted_parts, "policy", "to have it again: "),
    Case(deleted_and_made_by_another_link, "policy", "to have it again: "),
    Case(strange, "policy", "to have it again: "),
    Case(no_tenant, "policy", "create it: "),
    Case(no_namespace, "policy", "create it: "),
    Case(not_replicated, "policy", "allow it: "),
    Case(not_allowed, "policy", "allow it: "),
    Case(not_for_the_tenant, "policy", "allow it: "),
    Case(plain_here, "partitions", "in the first partition: "),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.prepare.__name__)
def test_what_blocks_a_topic_ends_by_what_is_printed(world: World, case: Case) -> None:
    topic, partitions = case.prepare(world)
    kind, reason = handshake(world, topic, partitions)
    assert kind == case.kind
    run(world, behind(reason, case.colon))
    assert handshake(world, topic, partitions) == ("", "")


def test_the_form_of_a_topic_is_mended_in_the_cluster_that_it_is_told_of(world: World) -> None:
    """The block of the way back names the cluster at the other end."""
    topic = name("parts")
    world["a"].rest("PUT", rest(topic, "/partitions"), 2)
    world["b"].rest("PUT", rest(topic))
    kind, reason = handshake(world, topic, to="a")
    assert kind == "partitions"
    run(world, behind(reason, "in the first partition: "))
    assert world["b"].rest("GET", rest(topic, "/partitions"))["partitions"] == 2
    assert handshake(world, f"{topic}-partition-0", 2, to="a") == ("", "")


def test_one_topic_too_many(world: World) -> None:
    space = f"public/n{uuid.uuid4().hex[:8]}"
    world["b"].rest("PUT", f"/admin/v2/namespaces/{space}", {"replication_clusters": ["b"]})
    world["b"].rest("POST", f"/admin/v2/namespaces/{space}/maxTopicsPerNamespace", 2)
    path = f"/admin/v2/persistent/{space}/many/partitions"
    reason = refused(world, "b", "PUT", path, 9)
    run(world, "magnetar " + reason.partition("magnetar ")[2].partition('"')[0].replace("\\", ""))
    world["b"].rest("PUT", path, 9)


def test_a_topic_with_idempotency_keys_is_adopted_without_them(world: World) -> None:
    topic = name("keys")
    world["b"].rest("PUT", rest(topic))
    own = rest(topic).replace("/admin/v2/", "/geo/v1/")
    world["b"].rest("POST", own + "/idempotency", {"property": "k", "windowSeconds": 60, "keysMax": 10})
    reason = refused(world, "b", "POST", own + "/adoptPartitions", 2)
    run(world, behind(reason, "off first: ").partition('"')[0])
    world["b"].rest("POST", own + "/adoptPartitions", 2)


def test_a_paused_link_is_resumed(world: World) -> None:
    world["a"].rest("POST", "/geo/v1/links/b/pause")
    assert [link["paused"] for link in world["a"].rest("GET", "/geo/v1/links") if link["target"] == "b"] == [True]
    run(world, "magnetar links resume a:b", folder=world.folder)
    assert [link["paused"] for link in world["a"].rest("GET", "/geo/v1/links") if link["target"] == "b"] == [False]
