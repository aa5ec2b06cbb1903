"""docs/failover.md, run: every command with the output that the page shows, numbers aside."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.core import config as configuration
from tests.clients.conftest import connect
from tests.support.brokers import World, eventually
from tests.support.replicator import Replicator

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs" / "failover.md"
TOPIC = "persistent://public/default/orders"


def blocks(kind: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def examples() -> list[tuple[str, str]]:
    """(command, output) in the page's order."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def pattern(output: str) -> str:
    """What must match: figures that depend on the clock may be others."""
    escaped = re.escape(output.strip())
    escaped = re.sub(r"\d{13}@", r"\\d{13}@", escaped)
    escaped = re.sub(r"pause\\ [\d.]+\\ ms", r"pause [\\d.]+ m?s", escaped)
    return re.sub(r'"pause_ms":\\ \d+', r'"pause_ms": \\d+', escaped)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, ["us-west", "us-east"]).start()
    replicators = [Replicator(world, "us-west", "us-east"), Replicator(world, "us-east", "us-west")]
    yield world
    for replicator in replicators:
        replicator.close()
    world.close()


def test_the_page_says_what_happens(world: World) -> None:
    client = connect(world["us-west"])
    consumer = client.subscribe("orders", "billing", replicate_subscription_state_enabled=True)
    producer = client.create_producer("orders")
    producer.send(b"one")
    consumer.acknowledge(consumer.receive(60_000))
    path = "/geo/v1/failover/persistent/public/default/orders/billing"

    def quiet(cluster: str) -> bool:
        """Everything is acknowledged and has gone where it goes, so that the page's zeros are zeros."""
        row = world[cluster].rest("GET", path)[0]
        lags = [link["lag_messages"] for link in row["links"].values() if link["lease"]]
        return lags == [0] and row["unsent"] == row["in_flight"] == row["backlog"] == 0

    eventually(
        lambda: any("orders" in name for name in world["us-east"].rest("GET", "/admin/v2/persistent/public/default"))
    )
    eventually(
        lambda: "billing" in world["us-east"].rest("GET", "/admin/v2/persistent/public/default/orders/subscriptions")
    )
    environment = os.environ | {"COLUMNS": "400", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shown = examples()
    assert len(shown) == 6
    for command, output in shown:
        for cluster in ("us-west", "us-east"):
            eventually(lambda: quiet(cluster), what=f"quiet in {cluster}")  # noqa: B023 - called at once
        source = re.search(r"failover .*--from (\S+)", command)
        if source:
            eventually(
                lambda: world[source[1]].rest("GET", path)[0]["consumers"] == 1,  # noqa: B023 - called at once
                what=f"the consumer in {source[1]}",
            )
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=world.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        assert re.fullmatch(pattern(output), done.stdout.strip()), (command, done.stdout)
        if "unfence" not in command:
            producer.send(b"more")
            consumer.acknowledge(consumer.receive(60_000))
    client.close()


def test_the_settings_of_the_page_exist(tmp_path: Path) -> None:
    (lines,) = blocks("toml")
    path = tmp_path / "clusters.toml"
    path.write_text('[clusters.a]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n' + lines)
    assert configuration.load(path).broker.topic_migrated_to_cpp is True


def test_the_python_of_the_page_is_right() -> None:
    for block in blocks("python"):
        compile(block, str(PAGE), "exec")
    auto = next(block for block in blocks("python") if "AutoClusterFailover" in block)
    made: dict[str, object] = {"pulsar": pulsar}
    exec(auto.partition("client =")[0], made)
    assert isinstance(made["failover"], pulsar.AutoClusterFailover)
