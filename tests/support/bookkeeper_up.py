"""`magnetar up` with the two brokers of one cluster whose log is on BookKeeper."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.brokers import eventually, free_port


class Up:
    """`magnetar up` as a child process, with the lines that it has written.

    Args:
        folder: for its file.
        hosts: of ZooKeeper.
        store: the node of ZooKeeper.
        more: tables of the file.
    """

    def __init__(self, folder: Path, hosts: str, store: str, more: str = "") -> None:
        self.file = folder / "clusters.toml"
        text = f'[clusters.one]\nstorage = "bookkeeper"\nstore = "zookeeper://{hosts}{store}"\n'
        ports = []
        for name in "ab":
            ports.append(free_port())
            text += (
                f'[clusters.one.brokers.{name}]\npulsar = "127.0.0.1:{ports[-1]}"\nhttp = "127.0.0.1:{free_port()}"\n'
            )
        self.file.write_text(text + more)
        self.url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        self.lines: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Start it, and do not wait."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "magnetar", "up", "-c", os.fspath(self.file)],
            cwd=self.file.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader.start()

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    def line(self, pattern: str, after: int = 0, within_s: float = 60) -> re.Match[str]:
        """The first line that is, in whole, of this form.

        Args:
            pattern: a regular expression.
            after: lines that do not count.
            within_s: the deadline.
        """

        def found() -> re.Match[str] | None:
            return next(filter(None, (re.fullmatch(pattern, line) for line in self.lines[after:])), None)

        try:
            match = eventually(found, within_s=within_s, what=pattern)
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
        """Wait for its end; the exit code."""
        assert self.process is not None
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code
