"""The demo's processes: three brokers and the pipeline, each a real child that can be killed and started again."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from examples.demo.ports import free_ports
from magnetar.admin.client import AdminClient
from magnetar.cli.commands.up import BROKER_READY, PIPELINE_READY
from magnetar.cli.processes.orphans import with_parent
from magnetar.core.errors import MagnetarError

BROKER_START_S: Final = 20.0
"""A deadline; a broker is ready in well under a second."""

PIPELINE_START_S: Final = 300.0
"""A deadline for one that hangs; that it ended is noticed at once. Spark's session takes some seven seconds on an idle machine,
and took 120 on two cores with twenty processes that wanted them."""

STOP_S: Final = 30.0
"""How long a child may take to end after SIGTERM."""

JAVA_VARIABLE: Final = "JDK_JAVA_OPTIONS"
"""Read by the `java` launcher itself."""

BRIEF_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No optimising compiler: on two cores it competes for half a minute with the work that it would speed up later (a
comparison of 21,000 messages took 15-19 s instead of 23-26 s)."""

KEEP_ALL: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
"""The proof at the end reads everything: what a consumer has acknowledged must stay, too."""


class Process:
    """One child of the demo.

    Args:
        name: for lines about it.
        arguments: of `magnetar`.
        ready: text of the stdout line that says it is ready.
        folder: for its log.
        start_s: deadline for that line.
        environment: added to ours.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        ready: str,
        folder: Path,
        start_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.arguments, self.ready, self.start_s = name, list(arguments), ready, start_s
        self._environment = os.environ | dict(environment or {})
        self.log = folder / f"{name.replace(' ', '-')}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._said = b""

    def launch(self) -> None:
        """Start it, without waiting; from the main thread only (`with_parent`)."""
        self._said = b""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                with_parent([sys.executable, "-m", "magnetar", *self.arguments], os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)

    def await_ready(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait for its ready line.

        Raises:
            MagnetarError: it ended, or the deadline passed; with its own last line.
        """
        assert self._child is not None
        assert self._child.stdout is not None
        deadline = time.monotonic() + self.start_s
        while not self.said_ready():
            select.select([self._child.stdout], [], [], 0.1)
            if not self.said_ready() and self._child.poll() is not None:
                raise MagnetarError(f"{self.name} ended with exit code {self._child.wait(STOP_S)}: {self.last_line()}")
            if time.monotonic() > deadline:
                raise MagnetarError(f"{self.name} was not ready within {self.start_s:g} s: {self.last_line()}")
            look()

    def said_ready(self) -> bool:
        """Whether it has printed its ready line. A process that does not run has printed nothing."""
        if self._child is None:
            return False
        assert self._child.stdout is not None
        self._said += self._child.stdout.read() or b""
        return self.ready.encode() in self._said

    def start(self, look: Callable[[], None] = lambda: None) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        self.await_ready(look)

    def last_line(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else f"no line in {self.log}"

    def freeze(self, frozen: bool) -> None:
        """Let it hang (SIGSTOP), or continue."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to it and everything it started: no chance to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, or SIGKILL when it takes too long; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        if child.poll() is None:
            if number == signal.SIGKILL:
                os.killpg(child.pid, number)
            else:
                child.send_signal(number)
        assert child.stdout is not None
        child.stdout.close()
        try:
            return child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None


class World:
    """Three clusters on free ports, with one clusters.toml.

    Args:
        folder: for the file, data and logs; made if need be.
        clusters: their names.
        master: Spark master of the pipeline.
        brief: it will run for a minute, not for hours.
    """

    def __init__(self, folder: Path, clusters: Sequence[str], master: str, *, brief: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.config = folder / "clusters.toml"
        ports = free_ports(2 * len(clusters))
        lines = ['[magnetar]\ndata_dir = "data"\n']
        self.urls: dict[str, str] = {}
        self.admin_urls: dict[str, str] = {}
        for name in clusters:
            pulsar, http = ports.pop(), ports.pop()
            self.urls[name] = f"pulsar://127.0.0.1:{pulsar}"
            self.admin_urls[name] = f"http://127.0.0.1:{http}"
            lines.append(f'[clusters.{name}]\npulsar = "127.0.0.1:{pulsar}"\nhttp = "127.0.0.1:{http}"\n')
        lines.append(f'[replication]\nmaster = "{master}"\n')
        lines.append('[metadata]\nmetadata_sync_topic = "persistent://pulsar/system/metadata-sync"\n')
        self.config.write_text("\n".join(lines))
        at = ["-c", str(self.config)]
        self.brokers = {
            name: Process(f"broker {name}", ["broker", name, *at], BROKER_READY, folder, BROKER_START_S)
            for name in clusters
        }
        self.environment = brief_java(os.environ) if brief else {}
        self.pipeline = Process(
            "pipeline", ["replicate", *at], PIPELINE_READY, folder, PIPELINE_START_S, self.environment
        )

    def open(self, look: Callable[[], None] = lambda: None) -> None:
        """Start the brokers, then the pipeline without waiting for it: it takes some seconds.

        Raises:
            MagnetarError: a broker did not start.
        """
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.await_ready(look)
        for url in self.admin_urls.values():
            AdminClient(url).post("/admin/v2/namespaces/public/default/retention", KEEP_ALL)
        self.pipeline.launch()

    def close(self) -> None:
        """End everything at once: what had to be orderly has been."""
        for process in (self.pipeline, *self.brokers.values()):
            process.kill()


def brief_java(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that lets a JVM start quickly rather than run fast for hours; the user's own options stay."""
    return {JAVA_VARIABLE: f"{BRIEF_JAVA} {environment.get(JAVA_VARIABLE, '')}".strip()}
