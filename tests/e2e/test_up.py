"""`magnetar up`: real brokers and a real pipeline under the supervisor; what dies comes back, the end is clean."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pulsar
import pytest

from tests.support.brokers import World, eventually

pytestmark = pytest.mark.e2e

NO_LINKS = "links = []\n"


class Up:
    """`magnetar up` as a child, its lines collected by two threads."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "magnetar", "up", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []

        def read(stream: object, lines: list[str]) -> None:
            for line in stream:  # type: ignore[attr-defined]
                lines.append(line.rstrip("\n"))  # noqa: PERF401 - each at once, somebody waits for it

        self._threads = [
            threading.Thread(target=read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self._threads:
            thread.start()

    def said(self, words: str, within_s: float = 30) -> str:
        """Wait for a line with these words; the line."""

        def find() -> str | None:
            return next((line for line in self.out if words in line), None)

        return str(eventually(find, within_s=within_s, what=f"{words!r} in {self.out} {self.err[-5:]}"))

    def children(self) -> dict[str, psutil.Process]:
        """Its children by what they run: `broker a`, `replicate`."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            words = child.cmdline()
            if "magnetar" in words:
                after = words[words.index("magnetar") + 1 :]
                found[" ".join(after[:2]) if after[0] == "broker" else after[0]] = child
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        for thread in self._threads:
            thread.join(10)
        return code


@pytest.fixture
def started() -> Iterator[list[Up]]:
    """Whatever is started is ended, with all its children."""
    running: list[Up] = []
    yield running
    for up in running:
        if up.process.poll() is None:
            children = psutil.Process(up.process.pid).children(recursive=True)
            up.process.kill()
            for child in children:
                child.kill()
            up.process.wait(20)


def start(started: list[Up], world: World, *arguments: str) -> Up:
    up = Up(world.folder, *arguments)
    started.append(up)
    return up


def test_a_broker_that_dies_comes_back_and_the_end_is_clean(tmp_path: Path, started: list[Up]) -> None:
    world = World(tmp_path, ["a", "b"])
    world.config.write_text(NO_LINKS + world.config.read_text())
    up = start(started, world)  # finds clusters.toml in its folder
    up.said("Ctrl-C stops everything")
    assert any(world["a"].url in line and world["a"].web in line for line in up.out)
    children = up.children()
    assert set(children) == {"broker a", "broker b"}
    children["broker a"].send_signal(signal.SIGKILL)
    assert "killed by SIGKILL; restarting in" in up.said("broker a ended")
    up.said("broker a is back")
    again = up.children()
    assert again["broker a"].pid != children["broker a"].pid
    assert again["broker b"].pid == children["broker b"].pid
    client = pulsar.Client(world["a"].url)
    client.create_producer("t").send(b"x")
    client.close()
    assert up.end(signal.SIGINT) == 0
    assert not any(child.is_running() for child in again.values())


def test_no_restart(tmp_path: Path, started: list[Up]) -> None:
    world = World(tmp_path, ["a"], "")
    up = start(started, world, "--no-restart")
    up.said("Ctrl-C stops everything")
    up.children()["broker a"].send_signal(signal.SIGKILL)
    assert up.process.wait(30) == 1
    assert "not restarted (--no-restart)" in up.said("broker a ended")


def test_a_port_in_use_is_the_brokers_own_line(tmp_path: Path, started: list[Up]) -> None:
    world = World(tmp_path, ["a", "b"])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", world["b"].pulsar_port))
        taken.listen()
        up = start(started, world, "-c", str(world.config))
        assert up.process.wait(30) == 1
        up.end()
    lines = [line for line in up.err if line.startswith("magnetar: ")]
    assert len(lines) == 1
    assert "broker b did not start" in lines[0]
    assert str(world["b"].pulsar_port) in lines[0]
    assert "Traceback" not in "".join(up.err)


def test_when_the_supervisor_is_killed_its_brokers_end_too(tmp_path: Path, started: list[Up]) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("the kernel's signal for it is Linux's")
    world = World(tmp_path, ["a"])
    up = start(started, world)
    up.said("Ctrl-C stops everything")
    child = up.children()["broker a"]
    up.process.kill()
    up.process.wait(20)
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the broker to end")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_messages_travel_under_up_and_the_pipeline_comes_back(tmp_path: Path, started: list[Up]) -> None:
    world = World(tmp_path, ["a", "b"])
    up = start(started, world, "-c", str(world.config))
    up.said("pipeline: replicating", within_s=120)
    client = {name: pulsar.Client(world[name].url, operation_timeout_seconds=30) for name in "ab"}
    topic = "persistent://public/default/under-up"
    producer = client["a"].create_producer(topic)
    producer.send(b"before")
    reader = client["b"].create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"before"
    pipeline = up.children()["replicate"]
    os.killpg(pipeline.pid, signal.SIGKILL)
    assert "killed by SIGKILL" in up.said("pipeline ended")
    producer.send(b"after")
    up.said("pipeline is back", within_s=120)
    assert reader.read_next(60_000).data() == b"after"
    for one in client.values():
        one.close()
    verify = [sys.executable, "-m", "magnetar", "verify", topic, "-c", str(world.config), "--json"]
    done = subprocess.run(verify, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, '"clean": true' in done.stdout) == (0, True), done.stderr
    children = psutil.Process(up.process.pid).children(recursive=True)
    assert up.end() == 0
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
