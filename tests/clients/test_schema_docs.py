"""The commands of docs/schemas.md and of `magnetar schemas --help`, run as they stand against two clusters."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import World

PAGE = Path(__file__).parents[2] / "docs" / "schemas.md"
TOPIC = "persistent://public/default/orders"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("schemas"), ["us-west", "us-east"]).start()
    (made.folder / "order.avsc").write_text(json.dumps(ORDER))
    for cluster in ("us-west", "us-east"):
        made[cluster].rest("PUT", "/admin/v2/persistent/public/default/orders/partitions", 2)
    yield made
    made.close()


def run(world: World, command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "magnetar", *command.split()[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=world.folder, timeout=60)
    assert "Traceback" not in done.stderr
    return done


def typed() -> list[str]:
    """What the page tells to type about schemas and their strategies, in its order; each command once."""
    found = re.findall(r"^ +\$? ?(magnetar (?:schemas|namespaces set|topics set) .*)$", PAGE.read_text(), re.MULTILINE)
    return list(dict.fromkeys(" ".join(line.split()) for line in found))


def test_every_command_of_the_page(world: World) -> None:
    commands = typed()
    assert {command.split()[2] for command in commands} >= {"check", "upload", "list", "show", "diff", "delete", "set"}
    differ = 0
    for command in commands:
        done = run(world, command + (" --yes" if " schemas delete " in command else ""))
        if " diff " in command:
            # One cluster has it after `upload`, as the page says: that is what `diff` is for.
            assert (done.returncode, "Order(id)" in done.stdout) == (1, True)
            assert done.stderr.startswith("magnetar: the clusters differ")
            differ += 1
        elif " schemas delete " in command and done.returncode:
            assert "has no schema" in done.stderr, "the page deletes twice"
        else:
            assert (done.returncode, done.stderr) == (0, ""), command
    assert differ == 1


def test_one_cluster_that_is_away_is_named_and_the_others_answer(world: World, tmp_path: Path) -> None:
    run(world, f"magnetar schemas upload {TOPIC} order.avsc --everywhere")
    here = run(world, f"magnetar schemas diff {TOPIC}-partition-1")
    assert (here.returncode, "Order(id)" in here.stdout) == (0, True)
    config = (world.folder / "clusters.toml").read_text()
    east = world["us-east"]
    (tmp_path / "away.toml").write_text(config.replace(f":{east.http_port}", ":9"))
    for command in (f"schemas check {TOPIC} order.avsc", f"schemas diff {TOPIC}"):
        done = run(world, f"magnetar {command} -c {tmp_path / 'away.toml'}")
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert done.stderr.startswith("magnetar: us-east: ")
        assert "us-west: registered already" in done.stdout or "Order(id)" in done.stdout


def test_the_examples_of_the_help(world: World) -> None:
    listed = run(world, "magnetar schemas --help").stdout
    names = re.findall(r"^ {2}([a-z]+) ", listed, re.MULTILINE)
    assert set(names) == {"list", "show", "upload", "delete", "check", "diff"}
    # By name in an order that makes sense.
    for name in ("upload", "check", "diff", "list", "show", "delete"):
        told = " ".join(run(world, f"magnetar schemas {name} --help").stdout.split())
        example = re.search(r"Example: (magnetar schemas .*)$", told)
        assert example is not None, name
        done = run(world, example.group(1) + (" --everywhere" if name == "upload" else ""))
        assert (done.returncode, done.stderr) == (0, ""), example.group(1)
