"""The part of docs/schemas.md about links, followed as it stands: what is seen when a schema does not fit, and each way out."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from tests.clients.conftest import connect
from tests.support.brokers import World, eventually
from tests.support.replicator import Replicator

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs" / "schemas.md"
TOPIC = "persistent://public/default/orders"
STRATEGY = "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"


class Order(Record):
    article = String()


class Strict(Record):
    article = String()
    count = Integer(required=True)


class Odd(Record):
    article = Integer(required=True)


class Numbered(Record):
    article = String()
    number = Integer(required=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two clusters and a link; a replicator carries it."""
    world = World(tmp_path, ["us-west", "us-east"]).start()
    replicator = Replicator(world, "us-west", "us-east")
    yield world
    replicator.close()
    world.close()


def commands() -> dict[str, str]:
    """The commands of the section on links, by what they do."""
    section = PAGE.read_text().partition("## Over links")[2]
    found = re.findall(r"^ +(magnetar .+)$", section, re.MULTILINE)
    assert len(found) == 4
    return dict(zip(("strategy", "delete", "foreign", "skip"), found, strict=True))


def run(world: World, command: str, *more: str, code: int = 0) -> str:
    """A command as a user types it, in the folder of clusters.toml."""
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *command.split()[1:], *more],
        capture_output=True, text=True, check=False, cwd=world.folder, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, f"{command}: {done.stderr}"
    return done.stdout + done.stderr


def east(world: World) -> list[str]:
    """`--admin-url` of the cluster whose rules are in the way."""
    return ["--admin-url", world["us-east"].web]


def blocked(world: World) -> str:
    (link,) = world["us-west"].rest("GET", "/geo/v1/links")
    return next((str(one["blocked"]) for one in link["topics"] if one["topic"] == TOPIC), "")


def test_each_way_out(world: World) -> None:
    typed, client = commands(), connect(world["us-west"])
    world["us-west"].rest("PUT", STRATEGY, "ALWAYS_COMPATIBLE")

    def publish(schema: type[Record], **fields: object) -> None:
        producer = client.create_producer("orders", schema=AvroSchema(schema))
        producer.send(schema(**fields))
        producer.close()

    def held_up() -> None:
        eventually(lambda: blocked(world) == "schema")

    def goes_on() -> None:
        eventually(lambda: not blocked(world))

    publish(Order, article="a")
    publish(Strict, article="b", count=1)
    held_up()
    told = " ".join(run(world, "magnetar status").split())  # lines are as wide as the terminal
    for part in ("us-west:us-east", TOPIC, "blocked: schema for ", "has schema version 1 (AVRO ", "version 0 (AVRO "):
        assert part in told, part
    # 1. Make it compatible: by the strategy, ...
    run(world, typed["strategy"], *east(world))
    goes_on()
    # ... or by other schemas there.
    run(world, typed["strategy"].replace("ALWAYS_COMPATIBLE", "FULL"), *east(world))
    publish(Odd, article=7)
    held_up()
    run(world, typed["delete"], *east(world), "--yes")
    goes_on()
    # 3. Give messages up: it says how many, and asks.
    publish(Numbered, article="c", number=1)
    held_up()
    assert "Lose 1 messages" in run(world, typed["skip"], code=1), "nobody is there to answer"
    assert blocked(world) == "schema"
    assert "skipped 1 messages" in run(world, typed["skip"], "--yes")
    goes_on()
    # 2. For reading alone.
    publish(Strict, article="d", count=2)
    publish(Numbered, article="e", number=2)
    held_up()
    run(world, typed["foreign"], *east(world))
    goes_on()
    reader = connect(world["us-east"]).create_reader(TOPIC, pulsar.MessageId.earliest)
    read = [reader.read_next(60_000) for _ in range(5)]
    assert [one._message.int_schema_version() for one in read] == [0, 1, 3, 1, 4]
    client.close()
