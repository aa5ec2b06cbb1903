"""The examples of docs/replicated-subscriptions.md and docs/deduplication.md, run as they stand."""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.clients.conftest import connect
from tests.support.brokers import World, eventually

DOCS = Path(__file__).parents[2] / "docs"
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two clusters without a pipeline: commands and policies need none."""
    world = World(tmp_path, ["us-west", "us-east"]).start()
    yield world
    world.close()


def commands(page: str) -> list[str]:
    """What the page tells to type, in its order: console blocks and indented lines of commands."""
    text = (DOCS / page).read_text()
    found = re.findall(r"^\$ (magnetar .*)$|^    (magnetar [^#\n]*)", text, re.MULTILINE)
    return [(console or indented).strip() for console, indented in found]


def run(world: World, command: str) -> str:
    """A command as a user types it, in the folder of clusters.toml."""
    words = [word.replace("TOPIC", TOPIC) for word in command.split()[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *words], capture_output=True, text=True, check=False, cwd=world.folder
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{command}: {done.stderr}"
    return done.stdout


def states(world: World, cluster: str) -> list[dict[str, Any]]:
    return list(world[cluster].rest("GET", "/geo/v1/subscriptions"))


def test_replicated_subscriptions(world: World) -> None:
    client = connect(world["us-west"])
    source = re.search(r"```python\n(.*?)```", (DOCS / "replicated-subscriptions.md").read_text(), re.DOTALL)
    assert source is not None
    # The page's client is the one of this test: its address and its log.
    lines = [line for line in source.group(1).splitlines() if not line.startswith(("import", "client ="))]
    names: dict[str, Any] = {"client": client, "pulsar": pulsar}
    exec(textwrap.dedent("\n".join(lines)), names)
    assert [row["subscription"] for row in states(world, "us-west")] == ["billing"]
    world["us-east"].rest("PUT", "/admin/v2/persistent/public/default/orders")
    world["us-east"].rest(
        "PUT", "/admin/v2/persistent/public/default/orders/subscription/billing", {"ledgerId": -1, "entryId": -1}
    )
    world["us-east"].rest(
        "PUT", "/admin/v2/persistent/public/default/orders/subscription/other", {"ledgerId": -1, "entryId": -1}
    )
    assert states(world, "us-east") == []
    typed = commands("replicated-subscriptions.md")
    assert len(typed) == 4
    told = {command: run(world, command) for command in typed}
    eventually(lambda: {row["subscription"] for row in states(world, "us-east")} == {"billing", "other"})
    assert "billing" in told["magnetar status"]
    assert {row["mode"] for row in states(world, "us-west")} == {"snapshot"}
    client.close()


def test_deduplication(world: World) -> None:
    client = connect(world["us-west"])
    client.create_producer("orders")
    typed = commands("deduplication.md")
    assert len(typed) == 4
    told = [run(world, command) for command in typed]
    assert '"Enabled"' in told[1]
    assert '"request-id"' in told[3]
    client.close()


def programs(page: str) -> list[str]:
    """The Python programs of a page, in its order."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_publishing_once(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Both programs run as they stand, twice: what the first run stored, the second does not store again."""
    client = connect(world["us-west"])
    monkeypatch.setattr(pulsar, "Client", lambda _url: client)
    where = "/admin/v2/persistent/public/default/payments"
    world["us-west"].rest("PUT", where)
    run(world, "magnetar namespaces set-deduplication public/default on")
    run(world, "magnetar topics set-idempotency payments request-id --window 86400")
    numbered, keyed = programs("deduplication.md")[:2]
    for _ in range(2):
        exec(numbered, {})
        assert capsys.readouterr().out == "stored up to 3\na repeated one is at (-1, -1)\n"
        exec(keyed, {})
        assert capsys.readouterr().out == "stored once: True\n"
    for topic, messages in (("orders", 3), ("payments", 1)):
        stats = world["us-west"].rest("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
        assert stats["msgInCounter"] == messages
    client.close()


def test_processing_once(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The program runs as it stands, twice: the second time it finds nothing left."""
    client = connect(world["us-west"])
    producer = client.create_producer("orders")
    for customer, cents in (("ann", 5), ("bob", 7), ("ann", 10)):
        producer.send(b"%d" % cents, partition_key=customer)
    source = programs("deduplication.md")[2]
    monkeypatch.chdir(world.folder)
    monkeypatch.setattr(pulsar, "Client", lambda _url: client)
    for billed in (3, 0):
        names: dict[str, Any] = {}
        exec(source, names)
        assert f"{billed} orders billed" in capsys.readouterr().out
        with names["engine"].begin() as connection:
            assert dict(connection.execute(names["text"]("select * from bills")).all()) == {"ann": 15, "bob": 7}
        names["engine"].dispose()
    client.close()
