"""The examples of `--help`, run as they stand against two real brokers; replicators carry the links."""

import contextlib
import io
import re
import sys
import urllib.error
from collections.abc import Iterator

import pytest

from magnetar import cli
from tests.clients.conftest import connect
from tests.support.brokers import World, eventually
from tests.support.commands import LEAVES, Terminal
from tests.support.replicator import Replicator

pytestmark = pytest.mark.e2e

CLUSTERS = ("us-west", "us-east")
TOPIC = "persistent://public/default/orders"
BILLING = "/admin/v2/persistent/public/default/orders/subscription/billing"
FENCE = "/geo/v1/failover/persistent/public/default/orders/billing"
SHOP = "/admin/v2/namespaces/shop/orders"

SAYS = {
    "failover": r"active in us-east: 0 messages re-delivered, 0 skipped",
    "drain": r"us-west can be switched off now",
    "restore": r"us-west got 0 messages back from us-east",
    "subscriptions list": r"billing .*yes",
    "subscriptions create": r"created billing",
    "subscriptions replicate": r"billing is replicated",
    "subscriptions rate": r"billing of persistent://public/default/orders: messages=1000",
    "subscriptions delete": r"deleted billing",
    "subscriptions reset": r"billing continues at 2026-01-31T12:00",
    "subscriptions skip": r"billing skipped 1",
    "subscriptions expire": r"billing is up to date",
    "subscriptions peek": r"message 1",
    "subscriptions unfence": r"billing is active in us-west again",
    "namespaces list": r"public/default",
    "namespaces show": r"replication_clusters",
    "namespaces create": r"created namespace shop/orders",
    "namespaces set-subscription-mode": r"subscriptions of public/default follow in exact mode",
    "namespaces replicate-subscriptions": r"subscriptions of public/default are replicated",
    "namespaces set": r"max-producers",
    "namespaces get": r"max-producers",
    "namespaces delete": r"deleted namespace shop/orders",
    "namespaces set-clusters": r"us-west, ?us-east",
    "namespaces set-start": r"latest",
    "namespaces set-retention": r"retention set",
    "namespaces set-deduplication": r"deduplic",
    "namespaces set-idempotency": r"request-id",
    "namespaces set-ttl": r"86,?400",
}
"""What each has to print, besides ending well: the commands whose examples are about clusters and subscriptions."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("help"), list(CLUSTERS)).start()
    replicators = [Replicator(made, "us-west", "us-east"), Replicator(made, "us-east", "us-west")]
    yield made
    for replicator in replicators:
        replicator.close()
    made.close()


def ask(world: World, cluster: str, method: str, path: str, body: object = None) -> bool:
    """Whether it was done; it may be so already."""
    with contextlib.suppress(urllib.error.HTTPError):
        world[cluster].rest(method, path, body)
        return True
    return False


def prepare(world: World, command: str) -> None:
    """What the examples take for granted: three messages that billing, in both clusters, has not got; and shop/orders."""
    for cluster in CLUSTERS:
        ask(world, cluster, "PUT", "/admin/v2/tenants/shop", {"allowedClusters": list(CLUSTERS)})
        if command == "namespaces create":
            ask(world, cluster, "DELETE", SHOP)
        else:
            ask(world, cluster, "PUT", SHOP, {"replication_clusters": list(CLUSTERS)})
    if ask(world, "us-west", "GET", FENCE) and world["us-west"].rest("GET", FENCE)[0]["phase"] != "active":
        world["us-west"].rest("POST", f"{FENCE}/unfence")
    client = connect(world["us-west"])
    ask(world, "us-west", "PUT", "/admin/v2/persistent/public/default/orders")
    if command == "subscriptions create":
        ask(world, "us-west", "DELETE", f"{BILLING}?force=true")
    else:
        ask(world, "us-west", "PUT", f"{BILLING}?replicated=true", {"ledgerId": -1, "entryId": -1})
        ask(world, "us-west", "POST", f"{BILLING}/skip_all")
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(3):
            producer.send(b"message %d" % number)
        eventually(lambda: ask(world, "us-east", "GET", FENCE), what="billing in us-east")
    client.close()
    if command == "subscriptions unfence":
        run(world, example(world, "failover"))


def example(world: World, command: str) -> str:
    """From its help."""
    shown = run(world, f"magnetar {command} --help")
    return " ".join(shown.split("Example: ")[1].split())


def run(world: World, command: str) -> str:
    """As somebody at a terminal in the folder of clusters.toml, who is asked and says yes; what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(world.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        kept, sys.stdin = sys.stdin, Terminal("y\n")
        try:
            code = cli.run(command.split()[1:])
        finally:
            sys.stdin = kept
    assert code == 0, (command, out.getvalue(), err.getvalue())
    return out.getvalue()


def test_none_is_left_out() -> None:
    nouns = {command.split()[0] for command in SAYS}
    assert {" ".join(words) for words in LEAVES if words[0] in nouns} == set(SAYS)


@pytest.mark.parametrize("command", SAYS)
def test_the_example_does_what_it_says(world: World, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAGNETAR_ADMIN_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    prepare(world, command)
    said = run(world, example(world, command))
    assert re.search(SAYS[command], said), said
