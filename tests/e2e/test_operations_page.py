"""docs/operations.md: its commands do what it says, in its order, on real clusters."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TOPIC = "persistent://public/default/orders"
MESSAGES = 500
HEIR = "[broker]\nidentity_silence_ms = 500\n"


def shown() -> list[tuple[list[str], list[str]]]:
    """Each command of the page with the lines that it shows."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].split(), []))
            else:
                found[-1][1].append(line)
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, ["us-west", "us-east"], HEIR).start()
    yield made
    made.close()


def test_the_page_is_true(world: World) -> None:
    pipeline = Pipeline(world.config).start()
    try:
        client = pulsar.Client(world["us-west"].url)
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(MESSAGES):
            producer.send_async(b"order %d" % number, lambda _result, _id: None)
        producer.flush()
        client.close()
        commands = shown()
        assert [words[1] for words, _ in commands] == ["drain", "restore", "restore", "verify"]
        run(world, *commands[0])
        world["us-west"].kill()
        shutil.rmtree(world.folder / "data" / "us-west")
        world["us-west"].start()
        eventually(lambda: world["us-west"].rest("GET", "/geo/v1/status")["broker"]["ready"])
        for words, lines in commands[1:]:
            run(world, words, lines)
    finally:
        pipeline.kill()


def run(world: World, words: list[str], lines: list[str]) -> None:
    """Run a command as the page has it, in the folder of clusters.toml; it prints the page's lines, in their order."""
    assert words[0] == "magnetar" and lines
    result = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False, timeout=200, cwd=world.folder
    )
    assert result.returncode == 0, result.stdout + result.stderr
    printed = iter([plain(line) for line in result.stdout.splitlines()])
    for line in lines:
        assert any(plain(line) in one for one in printed), f"{' '.join(words)} did not print {line!r}:\n{result.stdout}"


def plain(line: str) -> str:
    """Without what differs from run to run: spaces of tables, bytes (names of producers have numbers of any length)."""
    return re.sub(r"[\d.]+ [kMG]?B\b", "SIZE", " ".join(line.split()))
