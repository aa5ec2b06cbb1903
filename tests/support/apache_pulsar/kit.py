"""Fetches, starts, joins and stops real Apache Pulsar clusters, one JVM each, on free ports of this machine.

    python -m tests.support.apache_pulsar.kit [--clusters 2]     # runs joined clusters until Ctrl-C, their addresses printed

The released jars come from Maven Central into `$PULSAR_PEER_HOME` (default: `~/.cache/pulsar-peer`), once. `missing()` says in
one line why a peer cannot run here; tests skip with that line. Data and logs are in the folder that the caller gives.
Settings and their reasons are in `standalone.conf` next to this file.

A started cluster takes 400 to 520 MB, and 7 to 12 s until it is ready on a quiet machine.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from magnetar.core.errors import ConfigError
from magnetar.spark_session.session import find_java
from tests.support.brokers import free_port

HERE: Final = Path(__file__).resolve().parent
VERSION: Final = re.search(r"<pulsar.version>(.*)</pulsar.version>", (HERE / "pom.xml").read_text())[1]  # type: ignore[index]

HEAP: Final = "1g"
"""Heap of a cluster, at most: two clusters, Spark and the clients have to fit on a machine with 8 GB. The distribution
takes 2 GB."""

DIRECT: Final = "1g"
"""Memory outside the heap, at most: BookKeeper takes a quarter of it for its write cache and a quarter for its read cache. The
distribution takes 4 GB."""

LOG_BYTES: Final = 16 << 20
"""Size at which a log file is closed. Two files are kept: a replicator that is refused in the wrong way writes 60 MB a second."""

OUTPUT_LINES: Final = 200
"""Lines of the JVM's own output that are kept, for the message when it does not start."""

FREE_BYTES: Final = 2 << 30
"""A cluster is killed when its disk has less room than this: what else runs on the machine needs the room. It does not start with
less than twice that."""

WATCH_S: Final = 0.5
"""How often the room is looked at: the fastest writer so far fills 0.3 GB in that time."""

START_S: Final = 240.0
STOP_S: Final = 120.0
FETCH_S: Final = 1200.0
"""Deadlines for the slowest machine."""

REQUEST_S: Final = 60.0


class PeerError(Exception):
    """A peer did not do what it was asked for; one line says what."""


def home() -> Path:
    """Where the jars are kept."""
    return Path(os.environ.get("PULSAR_PEER_HOME", Path.home() / ".cache" / "pulsar-peer"))


def fetched() -> bool:
    """Whether the jars are there."""
    jars = home() / "lib"
    return (jars / ".complete").exists() and (jars / f"pulsar-broker-{VERSION}.jar").exists()


def missing() -> str:
    """Why no peer can run here, in one line; empty where one can."""
    try:
        find_java()
    except ConfigError as error:
        return f"no real Apache Pulsar: {error}"
    if not fetched() and shutil.which("mvn") is None:
        return "no real Apache Pulsar: Maven fetches it, and there is no `mvn` (Debian, Ubuntu: apt install maven)"
    return ""


def fetch() -> Path:
    """The folder of the jars; asks Maven for them when they are not there.

    Raises PeerError when Maven fails, with its last line.
    """
    jars = home() / "lib"
    if not fetched():
        shutil.rmtree(jars, ignore_errors=True)
        jars.mkdir(parents=True)
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
            raise PeerError(f"mvn could not fetch Apache Pulsar {VERSION}: {lines[-1]}")
        (jars / ".complete").touch()
    return jars


class PulsarCluster:
    """One cluster: a JVM with a broker, a bookie and its metadata.

    Args:
        folder: for data and logs; may exist, then its data are opened.
        name: of the cluster.
        advertised: port that clients and replicators of other places are given, where a proxy stands in front of the broker.
            Clients that look topics up get it by the listener name `outside`.
        settings: more lines of its configuration.
    """

    def __init__(
        self, folder: Path, name: str, *, advertised: int | None = None, settings: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self.pulsar_port, self.http_port, self._bookie_port, self._stream_port = (free_port() for _ in range(4))
        self.advertised = advertised
        self._settings = settings or {}
        self.process: subprocess.Popen[str] | None = None
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self.stopped_because = ""

    @property
    def url(self) -> str:
        """For clients."""
        return f"pulsar://127.0.0.1:{self.pulsar_port}"

    @property
    def web(self) -> str:
        """For administration."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """Of its JVM."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        """Start, and wait until it serves. The thread that starts it has to live as long as the cluster.

        Raises PeerError when it ends or the deadline passes, with its last line; or when the disk has too little room.
        """
        jars = fetch()
        for part in ("metadata", "bookkeeper", "logs", "tmp"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        room = shutil.disk_usage(self.folder).free
        if room < 2 * FREE_BYTES:
            raise PeerError(
                f"{self.folder} has {room >> 20} MB of room; a cluster is started with {FREE_BYTES >> 19} MB or more"
            )
        (self.folder / "standalone.conf").write_text(self.configuration())
        self._ended.clear()
        self._output.clear()
        self.stopped_because = ""
        self.process = subprocess.Popen(
            self._command(jars),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C at a bench goes to the bench, which stops its peers in order
        )
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._keep_output, self._watch_room)]
        for thread in self._threads:
            thread.start()
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """SIGTERM; SIGKILL when that is not enough in time."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def wipe(self) -> None:
        """Delete data and logs of a stopped cluster."""
        assert self.process is None, "stop it first"
        shutil.rmtree(self.folder, ignore_errors=True)

    def rest(self, method: str, path: str, body: Any = None, *, allow: Sequence[int] = ()) -> Any:
        """A request to its administration; the decoded answer.

        Raises PeerError for a status that is neither 2xx nor in `allow`.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=REQUEST_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status // 100 != 2 and answer.status not in allow:
            raise PeerError(f"{self.name}: {method} {path}: status {answer.status}, {content[:200]!r}")
        try:
            return json.loads(content)
        except ValueError:
            return content.decode(errors="replace")

    def log_bytes(self) -> int:
        """Size of its logs."""
        return sum(path.stat().st_size for path in (self.folder / "logs").iterdir())

    def configuration(self) -> str:
        """The text of its configuration file."""
        lines = {
            "clusterName": self.name,
            "brokerServicePort": str(self.pulsar_port),
            "webServicePort": str(self.http_port),
            "metadataStoreUrl": "",
            "configurationMetadataStoreUrl": "",
        }
        if self.advertised is None:
            lines["advertisedAddress"] = "127.0.0.1"
        else:
            inside, outside = (f"pulsar://127.0.0.1:{port}" for port in (self.pulsar_port, self.advertised))
            lines |= {"advertisedListeners": f"inside:{inside},outside:{outside}", "internalListenerName": "inside"}
        lines |= self._settings
        own = "".join(f"{key}={value}\n" for key, value in lines.items())
        return (HERE / "standalone.conf").read_text() + "\n# --- Of this cluster ---\n\n" + own

    def _command(self, jars: Path) -> list[str]:
        opened = [
            "java.base/" + name for name in ("java.io", "java.nio", "java.util.zip", "sun.net", "jdk.internal.misc")
        ]
        opened += ["java.base/jdk.internal.platform", "java.management/sun.management"]
        drivers = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
        # A test or bench that is killed takes its peers with it, where the system has this program (Linux).
        command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command += [
            str(find_java()),
            "-cp",
            f"{jars}/*",
            "-Xms256m",
            f"-Xmx{HEAP}",
            f"-XX:MaxDirectMemorySize={DIRECT}",
        ]
        command += ["-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError", "-Djava.net.preferIPv4Stack=true"]
        command += [f"-Djava.io.tmpdir={self.folder / 'tmp'}", "-Dio.netty.tryReflectionSetAccessible=true"]
        command += [f"--add-opens={name}=ALL-UNNAMED" for name in opened]
        command += [f"-Dpeer.logs={self.folder / 'logs'}", f"-Dpeer.log.bytes={LOG_BYTES}"]
        command += [f"-Dlog4j.configurationFile={HERE / 'log4j2.xml'}", "-Dlog4j.shutdownHookEnabled=false"]
        command += ["-Dlog4j2.contextSelector=org.apache.logging.log4j.core.async.AsyncLoggerContextSelector"]
        command += [
            f"-Dbookkeeper.metadata.{role}.drivers={drivers}{role.title()}Driver" for role in ("bookie", "client")
        ]
        command += ["org.apache.pulsar.PulsarStandaloneStarter", "--config", str(self.folder / "standalone.conf")]
        command += ["--no-functions-worker", "--no-stream-storage", "--num-bookies", "1"]
        command += ["--bookkeeper-port", str(self._bookie_port), "--stream-storage-port", str(self._stream_port)]
        command += [
            "--bookkeeper-dir",
            str(self.folder / "bookkeeper"),
            "--metadata-dir",
            str(self.folder / "metadata"),
        ]
        return command if self.advertised is not None else [*command, "--advertised-address", "127.0.0.1"]

    def _await_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while True:
            if self.process.poll() is not None:
                self._ended.wait(5)
                last = self.stopped_because or (self._output[-1].strip() if self._output else "no output")
                raise PeerError(f"{self.name} ended while it started, logs in {self.folder / 'logs'}: {last}")
            if time.monotonic() > deadline:
                raise PeerError(f"{self.name} was not ready after {START_S:.0f} s, logs in {self.folder / 'logs'}")
            with contextlib.suppress(OSError, http.client.HTTPException, PeerError):
                if self.rest("GET", "/admin/v2/brokers/ready") == "ok" and "public/default" in self.rest(
                    "GET", "/admin/v2/namespaces/public"
                ):
                    return
            time.sleep(0.1)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
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


def join(clusters: Sequence[PulsarCluster], namespace: str = "public/default") -> None:
    """Each cluster learns of the others, and the namespace is replicated between all.

    A cluster with an advertised port is reached by it.
    """
    names = [cluster.name for cluster in clusters]
    tenant = namespace.partition("/")[0]
    for cluster in clusters:
        for other in clusters:
            if other is not cluster:
                reached: dict[str, Any] = {"serviceUrl": other.web, "brokerServiceUrl": other.url}
                if other.advertised is not None:
                    reached |= {"brokerServiceUrl": f"pulsar://127.0.0.1:{other.advertised}", "listenerName": "outside"}
                cluster.rest("PUT", f"/admin/v2/clusters/{other.name}", reached, allow=(409,))
        allowed = {"adminRoles": [], "allowedClusters": names}
        cluster.rest("PUT", f"/admin/v2/tenants/{tenant}", allowed, allow=(409,))
        cluster.rest("POST", f"/admin/v2/tenants/{tenant}", allowed)
        cluster.rest("PUT", f"/admin/v2/namespaces/{namespace}", {"bundles": {"numBundles": 4}}, allow=(409,))
        cluster.rest("POST", f"/admin/v2/namespaces/{namespace}/replication", names)


@contextlib.contextmanager
def running(folder: Path, *names: str) -> Iterator[dict[str, PulsarCluster]]:
    """Clusters with these names, joined when there are several; killed and wiped at the end."""
    clusters = {name: PulsarCluster(folder / name, name) for name in names}
    try:
        for cluster in clusters.values():
            cluster.start()
        if len(clusters) > 1:
            join(list(clusters.values()))
        yield clusters
    finally:
        for cluster in clusters.values():
            cluster.kill()
            cluster.wipe()


def main() -> None:
    """Run clusters until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=1, help="1 to 3, joined (default: 1)")
    options = parser.parse_args()
    if not 1 <= options.clusters <= 3:
        parser.error(f"--clusters {options.clusters}: 1 to 3")
    if reason := missing():
        raise SystemExit(reason)
    names = [f"c{number + 1}" for number in range(options.clusters)]
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), *names) as clusters,
    ):
        for cluster in clusters.values():
            sys.stdout.write(f"{cluster.name}: {cluster.url} {cluster.web}, pid {cluster.pid}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
