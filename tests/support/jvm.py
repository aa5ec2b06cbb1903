"""Real peers in Java: fetches their released jars by Maven, and runs each process in a folder of its own, bounded.

`Release` names what is fetched and where it is kept. `Jvm` is one process. The kits `apache_pulsar` and `apache_bookkeeper`
build on both.
"""

import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from magnetar.cli.processes.orphans import with_parent
from magnetar.core.errors import ConfigError
from magnetar.spark_session.session import find_java

LOG_BYTES: Final = 16 << 20
"""Size at which a log file is closed. Two files are kept: a replicator that is refused in the wrong way writes 60 MB a second."""

OUTPUT_LINES: Final = 200
"""Lines of a JVM's own output that are kept, for the message when it does not start."""

FREE_BYTES: Final = 2 << 30
"""A process is killed when its disk has less room than this: what else runs on the machine needs the room. It does not start with
less than twice that."""

WATCH_S: Final = 0.5
"""How often the room is looked at: the fastest writer so far fills 0.3 GB in that time."""

STOP_S: Final = 120.0
FETCH_S: Final = 1200.0
"""Deadlines for the slowest machine."""

POLL_S: Final = 0.05
"""Time between two questions whether a process is ready."""

OPENED: Final = tuple(
    f"--add-opens={name}=ALL-UNNAMED"
    for name in (
        "java.base/java.io",
        "java.base/java.nio",
        "java.base/java.util.zip",
        "java.base/sun.net",
        "java.base/jdk.internal.misc",
        "java.base/jdk.internal.platform",
        "java.management/sun.management",
    )
)
"""Parts of Java that the peers use although newer versions of Java close them."""


_STARTER: Final = ThreadPoolExecutor(1, "peers")
"""Starts all processes: Linux ends a process with the thread that started it, and this one lives as long as the program."""


class PeerError(Exception):
    """A peer did not do what it was asked for; one line says what."""


@dataclass(frozen=True, slots=True)
class Release:
    """Released jars of one project.

    Attributes:
        name: for messages, as in "Apache Pulsar".
        pom: a file for Maven that names the jars. Its properties are the versions.
        artifact: the property `<artifact>.version` is the release's version; `main_jar` shows that the jars are there.
        main_jar: name of the project's own jar, without its version.
        variable: of the environment: where the jars are kept.
        cache: the folder below `~/.cache` where they are kept without that.
    """

    name: str
    pom: Path
    artifact: str
    main_jar: str
    variable: str
    cache: str

    @property
    def version(self) -> str:
        """As the pom has it."""
        found = re.search(rf"<{self.artifact}\.version>(.*)<", self.pom.read_text())
        assert found, f"{self.pom} has no {self.artifact}.version"
        return found[1]

    def home(self) -> Path:
        """Where the jars are kept."""
        return Path(os.environ.get(self.variable, Path.home() / ".cache" / self.cache))

    def fetched(self) -> bool:
        """Whether the jars are there."""
        jars = self.home() / "lib"
        return (jars / ".complete").exists() and (jars / f"{self.main_jar}-{self.version}.jar").exists()

    def missing(self) -> str:
        """Why no peer can run here, in one line; empty where one can."""
        try:
            find_java()
        except ConfigError as error:
            return f"no real {self.name}: {error}"
        if not self.fetched() and shutil.which("mvn") is None:
            return (
                f"no real {self.name}: Maven fetches it into {self.home()} ({self.variable}), and there is no `mvn` "
                "(Debian, Ubuntu: apt install maven)"
            )
        return ""

    def fetch(self, within_s: float = FETCH_S) -> Path:
        """The folder of the jars; asks Maven for them when they are not there. Other processes that need them wait.

        Args:
            within_s: how long Maven may take. What it has loaded by then it need not load again.

        Raises PeerError when Maven fails, with its last line, or takes too long.
        """
        jars = self.home() / "lib"
        if self.fetched():
            return jars
        self.home().mkdir(parents=True, exist_ok=True)
        with (self.home() / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.fetched():
                self._ask_maven(jars, within_s)
        return jars

    def _ask_maven(self, jars: Path, within_s: float) -> None:
        shutil.rmtree(jars, ignore_errors=True)
        jars.mkdir(parents=True)
        command = ["mvn", "-q", "-B", "-f", str(self.pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        why = f"mvn could not fetch {self.name} {self.version} into {jars}"
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{why} within {within_s:.0f} s") from None
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
            raise PeerError(f"{why}: {lines[-1]}")
        (jars / ".complete").touch()


def java(jars: Path, folder: Path, options: Sequence[str], properties: Mapping[str, object]) -> list[str]:
    """The command of a JVM over these jars, up to the name of its main class.

    Args:
        jars: the class path.
        folder: of the process; logs are in `logs`, temporary files in `tmp`.
        options: of the JVM, such as its limits.
        properties: for `-D`.
    """
    command = [str(find_java()), "-cp", f"{jars}/*", *options, *OPENED]
    common: dict[str, object] = {
        "java.net.preferIPv4Stack": "true",
        "java.io.tmpdir": folder / "tmp",
        "io.netty.tryReflectionSetAccessible": "true",
        "peer.logs": folder / "logs",
        "peer.log.bytes": LOG_BYTES,
        "log4j.shutdownHookEnabled": "false",
    }
    return command + [f"-D{key}={value}" for key, value in (common | dict(properties)).items()]


class Jvm:
    """One process in a folder of its own. It is killed when its disk runs full. On Linux it dies with this process.

    Args:
        name: for messages.
        folder: for data, logs and temporary files.

    Attributes:
        hung: whether `freeze` has let it hang since its start.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.hung = False
        self.stopped_because = ""
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process is not None
        return self.process.pid

    def prepare(self) -> None:
        """Make the folders. Raises PeerError: the disk has too little room for a start."""
        for part in ("logs", "tmp"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        room = shutil.disk_usage(self.folder).free
        if room < 2 * FREE_BYTES:
            raise PeerError(
                f"{self.folder} has {room >> 20} MB of room; a cluster is started with {FREE_BYTES >> 19} MB or more"
            )

    def launch(self, command: Sequence[str], ready: Callable[[], bool], within_s: float) -> None:
        """Start what was prepared, and wait until it is ready.

        Raises PeerError when it ends or the deadline passes, with its last line.
        """
        self._ended.clear()
        self._output.clear()
        self.stopped_because = ""
        self.hung = False
        self.process = _STARTER.submit(
            subprocess.Popen[str],
            # A test or bench that is killed takes its peers with it.
            with_parent(list(command), os.getpid(), signal.SIGKILL),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C at a bench goes to the bench, which stops its peers in order
        ).result()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._keep_output, self._watch_room)]
        for thread in self._threads:
            thread.start()
        try:
            self.await_(ready, within_s)
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end; SIGKILL when that is not enough in time. Nothing if it does not run."""
        if self.process is None:
            return
        self.process.send_signal(number)
        if number != signal.SIGKILL:
            self.process.send_signal(signal.SIGCONT)  # a process that was stopped acts on no other signal
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def stop(self) -> None:
        """SIGTERM; SIGKILL when that is not enough in time."""
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.end(signal.SIGKILL)

    def freeze(self, frozen: bool) -> None:
        """Let it hang (SIGSTOP), or go on."""
        assert self.process is not None
        self.hung |= frozen
        self.process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def wipe(self) -> None:
        """Delete data and logs of a stopped process."""
        assert self.process is None, "stop it first"
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(
        self, port: int, method: str, path: str, body: Any = None, *, within_s: float, allow: Sequence[int] = ()
    ) -> bytes:
        """A request to its administration by HTTP, with a body in JSON; the content of the answer.

        Raises PeerError for a status that is neither 2xx nor in `allow`.
        """
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=within_s)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status // 100 != 2 and answer.status not in allow:
            raise PeerError(f"{self.name}: {method} {path}: status {answer.status}, {content[:200]!r}")
        return content

    def log_bytes(self) -> int:
        """Size of its logs."""
        return sum(path.stat().st_size for path in (self.folder / "logs").iterdir())

    def await_(self, ready: Callable[[], bool], within_s: float) -> None:
        """Wait until it is ready; raises PeerError when it ends before that, or the deadline passes."""
        assert self.process is not None
        deadline = time.monotonic() + within_s
        while not ready():
            if self.process.poll() is not None:
                self._ended.wait(5)
                last = self.stopped_because or (self._output[-1].strip() if self._output else "no output")
                raise PeerError(f"{self.name} ended while it started, logs in {self.folder / 'logs'}: {last}")
            if time.monotonic() > deadline:
                raise PeerError(f"{self.name} was not ready after {within_s:.0f} s, logs in {self.folder / 'logs'}")
            time.sleep(POLL_S)

    def _keep_output(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._output.append(line)
        self._ended.set()

    def _watch_room(self) -> None:
        process = self.process
        assert process is not None
        while not self._ended.wait(WATCH_S):
            room = shutil.disk_usage(self.folder).free
            if room < FREE_BYTES:
                self.stopped_because = f"{self.name} was killed: its disk had only {room >> 20} MB of room"
                process.kill()
                return
