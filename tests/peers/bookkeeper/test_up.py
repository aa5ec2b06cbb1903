"""`magnetar up` with two brokers of one cluster on real bookies: one serves, one waits; who ends comes back; a clean end."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.brokers import eventually, free_port

pytestmark = pytest.mark.timeout(300)


class Up:
    """`magnetar up` as a child process, with the lines that it has written."""

    def __init__(self, folder: Path, cluster: BookKeeperCluster, store: str) -> None:
        self.file = folder / "clusters.toml"
        text = f'[clusters.one]\nstorage = "bookkeeper"\nstore = "zookeeper://{cluster.hosts}{store}"\n'
        for name in "ab":
            text += (
                f'[clusters.one.brokers.{name}]\npulsar = "127.0.0.1:{free_port()}"\nhttp = "127.0.0.1:{free_port()}"\n'
            )
        self.file.write_text(text)
        self.lines: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "magnetar", "up", "-c", os.fspath(self.file)],
            cwd=self.file.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader.start()

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    def line(self, pattern: str, after: int = 0) -> re.Match[str]:
        """The first line that is, in whole, of this form."""

        def found() -> re.Match[str] | None:
            return next(filter(None, (re.fullmatch(pattern, line) for line in self.lines[after:])), None)

        try:
            match = eventually(found, within_s=60, what=pattern)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(self.lines)) from None
        assert isinstance(match, re.Match)
        return match

    def broker(self, name: str) -> int:
        """The process of a broker."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        command = b"\0broker\0one/" + name.encode() + b"\0"
        (found,) = (int(child) for child in children if command in Path(f"/proc/{child}/cmdline").read_bytes())
        return found

    def states(self) -> dict[str, str]:
        """The brokers as `magnetar status` shows them."""
        command = [sys.executable, "-m", "magnetar", "status", "--json", "-c", os.fspath(self.file)]
        seen = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
        return {row["broker"]: row["state"] for row in seen["one"]["brokers"]}

    def wait(self, seconds: float = 60) -> int:
        assert self.process is not None
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code


@pytest.fixture
def up(cluster: BookKeeperCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Up]:
    made = Up(tmp_path, cluster, f"/magnetar/{request.node.name}")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_two_brokers_of_one_cluster(up: Up) -> None:
    up.start()
    waits = up.line(r"broker one/([ab]) waits")[1]
    serves = "ab"["ba".index(waits)]
    up.line(r"ready \(.*\); Ctrl-C stops everything")
    assert sum(line.split()[:2] == ["one", waits] for line in up.lines) == 1, up.lines
    assert up.states() == {serves: "serves", waits: "waits"}
    paused = up.broker(serves)
    os.kill(paused, signal.SIGSTOP)
    up.line(f"broker one/{waits} serves")
    os.kill(paused, signal.SIGCONT)
    # It finds that it may no longer serve, ends, and is started again to wait.
    up.line(f"broker one/{serves} ended: exit code 1; restarting in .* s")
    up.line(f"broker one/{serves} waits")
    assert up.process is not None
    up.process.terminate()
    assert up.wait() == 0
    # The one that waited did not take over at the end.
    assert not [line for line in up.lines if line == f"broker one/{serves} serves"]
    assert not any("Traceback" in line for line in up.lines), up.lines


def test_what_is_missing_is_the_last_line(up: Up, cluster: BookKeeperCluster) -> None:
    for bookie in cluster.bookies[:2]:
        bookie.kill()
    eventually(lambda: sum(map(cluster.registered, cluster.bookies)) == 2, within_s=60, what="two bookies are gone")
    up.start()
    assert up.wait() == 1
    assert re.fullmatch(
        rf"magnetar: broker one/[ab] did not start: zookeeper://{cluster.hosts}/ledgers: 2 bookies take entries, and cluster "
        r"one needs 3: start more, or write a smaller ensemble in \[clusters.one\]",
        up.lines[-1],
    ), up.lines
