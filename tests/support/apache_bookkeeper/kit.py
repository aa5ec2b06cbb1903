"""Fetches, starts, disturbs and stops a real Apache BookKeeper: ZooKeeper and some bookies, one JVM each, on free ports.

    python -m tests.support.apache_bookkeeper.kit [--bookies 3]     # runs a cluster until Ctrl-C, its addresses printed

The released jars come from Maven Central into `$BOOKKEEPER_PEER_HOME` (default: `~/.cache/bookkeeper-peer`), once. `missing()`
says in one line why a peer cannot run here; tests skip with that line. Data and logs are in the folder that the caller gives.
Settings and their reasons are in `bookie.conf` next to this file.

ZooKeeper takes about 100 MB, a bookie 160 MB and under load 350. ZooKeeper is ready after 1 to 2 s, a bookie after 2 to 5.
"""

import argparse
import base64
import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from magnetar.bookkeeper.network.zookeeper_client import has_tls
from tests.support.brokers import free_port
from tests.support.jvm import Jvm, PeerError, Release, java
from tests.support.zookeeper import QUIET, serves

HERE: Final = Path(__file__).resolve().parent
RELEASE: Final = Release(
    "Apache BookKeeper",
    HERE / "pom.xml",
    "bookkeeper",
    "bookkeeper-server",
    "BOOKKEEPER_PEER_HOME",
    "bookkeeper-peer",
)
missing, fetch = RELEASE.missing, RELEASE.fetch

ZOOKEEPER_HEAP: Final = "192m"
"""Heap of ZooKeeper, at most; its data are a few hundred nodes."""

HEAP: Final = "512m"
"""Heap of a bookie, at most. One of 256 MB was too small for entries of 128 KB that a client sent without waiting."""

DIRECT: Final = "256m"
"""Memory outside the heap of a bookie, at most; the caches in `bookie.conf` take 48 MB of it."""

SHELL_HEAP: Final = "192m"
"""Heap of a command, at most."""

START_S: Final = 180.0
SHELL_S: Final = 180.0
REQUEST_S: Final = 30.0
"""Deadlines for the slowest machine."""

SESSION_S: Final = 10.0
"""Session of the kit's own client of ZooKeeper."""

PASSWORD: Final = b"secret"
"""Of the ledgers that Java's client writes or reads."""

ROOT: Final = "/ledgers"
"""The node of ZooKeeper below which BookKeeper keeps everything."""


def quiet_client(hosts: str) -> KazooClient:
    """A client of ZooKeeper that is not started."""
    return KazooClient(hosts=hosts, timeout=SESSION_S, logger=QUIET)


@dataclass(frozen=True, slots=True)
class Protection:
    """What TLS and authentication add to a cluster.

    Attributes:
        zookeeper: lines of ZooKeeper's configuration.
        bookie: lines of the configuration of every bookie.
        tools: lines of the configuration of Java's clients and of BookieShell.
        properties: of every JVM.
        secure_port: whether ZooKeeper has a port for TLS, too.
        connect: makes a client of ZooKeeper from its address.
    """

    zookeeper: Mapping[str, str] = field(default_factory=dict)
    bookie: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, object] = field(default_factory=dict)
    secure_port: bool = False
    connect: Callable[[str], KazooClient] = quiet_client


NONE: Final = Protection()


class ZooKeeperServer(Jvm):
    """One ZooKeeper server.

    Args:
        folder: for data and logs.
        protection: see there.
    """

    def __init__(self, folder: Path, protection: Protection = NONE) -> None:
        super().__init__("ZooKeeper", folder)
        self.port = free_port()
        self.secure_port = free_port() if protection.secure_port else 0
        self._protection = protection

    @property
    def hosts(self) -> str:
        """For clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def secure_hosts(self) -> str:
        """For clients by TLS."""
        return f"127.0.0.1:{self.secure_port}"

    def start(self) -> None:
        """Start it (again), with what it had; raises PeerError when it is not ready in time."""
        jars = fetch()
        self.prepare()
        settings = {
            "tickTime": 500,
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 60_000,
        } | dict(self._protection.zookeeper)
        if self.secure_port:
            settings |= {"secureClientPort": self.secure_port, "secureClientPortAddress": "127.0.0.1"}
        (self.folder / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        properties = {
            "zookeeper.admin.enableServer": "false",
            "log4j.configurationFile": HERE / "log4j2.xml",
        } | dict(self._protection.properties)
        limits = ["-Xms32m", f"-Xmx{ZOOKEEPER_HEAP}", "-XX:+UseSerialGC"]
        command = java(jars, self.folder, limits, properties)
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]
        self.launch(command, self._ready, START_S)

    def _ready(self) -> bool:
        # Java takes seconds for its first handshake.
        return is_open(self.port) and serves(self._protection.connect(self.hosts)) and self._shakes_hands()

    def _shakes_hands(self) -> bool:
        return not self.secure_port or has_tls("127.0.0.1", self.secure_port, START_S)


class BookieServer(Jvm):
    """One bookie.

    Args:
        number: names it in messages; from 1 on.
        folder: for data and logs; may exist, then its data are opened.
        hosts: of ZooKeeper.
        settings: more lines of its configuration.
        properties: more properties of its JVM.

    Attributes:
        returned: whether it was started again, and `BookKeeperCluster.heal` has not looked after it since then.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        hosts: str,
        settings: Mapping[str, str],
        properties: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(f"bookie {number}", folder)
        self.number = number
        self.port, self.http_port = free_port(), free_port()
        self.settings = dict(settings)
        self.returned = False
        self._began = False
        self._hosts = hosts
        self._properties = dict(properties or {})

    @property
    def id(self) -> str:
        """The name under which it is registered."""
        return self.settings.get("bookieId", f"127.0.0.1:{self.port}")

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it serves; raises PeerError when it does not in time."""
        jars = fetch()
        self.returned, self._began = self._began, True
        self.prepare()
        (self.folder / "bookie.conf").write_text(self.configuration())
        limits = ["-Xms64m", f"-Xmx{HEAP}", f"-XX:MaxDirectMemorySize={DIRECT}"]
        limits += ["-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"]
        command = java(jars, self.folder, limits, {"log4j.configurationFile": HERE / "log4j2.xml"} | self._properties)
        command += ["org.apache.bookkeeper.server.Main", "-c", str(self.folder / "bookie.conf")]
        self.launch(command, self.serves if wait else lambda: True, START_S)

    def configuration(self) -> str:
        """The text of its configuration file."""
        lines = {
            "bookiePort": self.port,
            "httpServerPort": self.http_port,
            "metadataServiceUri": f"zk+hierarchical://{self._hosts}{ROOT}",
            "journalDirectories": self.folder / "journal",
            "ledgerDirectories": self.folder / "ledgers",
            "indexDirectories": self.folder / "ledgers",
        } | self.settings
        own = "".join(f"{key}={value}\n" for key, value in lines.items())
        # Of two lines with one key the first would count.
        common = (HERE / "bookie.conf").read_text().splitlines()
        kept = "".join(f"{line}\n" for line in common if line.partition("=")[0] not in lines)
        return f"{kept}\n# --- Of this bookie ---\n\n{own}"

    def serves(self) -> bool:
        """Whether it runs and is registered; a port that is open does not say so."""
        with contextlib.suppress(OSError, http.client.HTTPException, PeerError, ValueError):
            state = self.request("GET", "/api/v1/bookie/state")
            return bool(state["running"] and not state["shuttingDown"] and is_open(self.port))
        return False

    def takes_none(self) -> bool:
        """Whether it serves what it has, and takes no entries."""
        return self.serves() and bool(self.request("GET", "/api/v1/bookie/state")["readOnly"])

    def read_only(self, read_only: bool = True) -> None:
        """Let it refuse to write, or write again."""
        self.request("PUT", "/api/v1/bookie/state/readonly", {"readOnly": read_only})

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """A request to its administration; the decoded answer. Raises PeerError for a status that is not 2xx."""
        return json.loads(self.ask(self.http_port, method, path, body, within_s=REQUEST_S))


class BookKeeperCluster:
    """ZooKeeper and its bookies.

    Args:
        folder: for the data and logs of all.
        bookies: how many there are at the start; `add` makes more.
        settings: more lines of the configuration of every bookie.
        protection: see there.
    """

    def __init__(
        self,
        folder: Path,
        bookies: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        protection: Protection = NONE,
    ) -> None:
        self.folder = folder
        self.zookeeper = ZooKeeperServer(folder / "zookeeper", protection)
        self.bookies: list[BookieServer] = []
        self._settings = dict(settings or {}) | dict(protection.bookie)
        self._protection = protection
        self._zookeeper_was_away = False
        for _ in range(bookies):
            self.add()

    @property
    def hosts(self) -> str:
        """Of ZooKeeper, for clients."""
        return self.zookeeper.hosts

    @property
    def uri(self) -> str:
        """For Java's clients."""
        return f"zk+hierarchical://{self.hosts}{ROOT}"

    def add(
        self, settings: Mapping[str, str] | None = None, properties: Mapping[str, object] | None = None
    ) -> BookieServer:
        """One more bookie, not started."""
        number = len(self.bookies) + 1
        own = self._settings | dict(settings or {})
        more = dict(self._protection.properties) | dict(properties or {})
        made = BookieServer(number, self.folder / f"bookie{number}", self.hosts, own, more)
        self.bookies.append(made)
        return made

    def bookie(self, id_: str) -> BookieServer:
        """The one that is registered under this name."""
        return next(bookie for bookie in self.bookies if bookie.id == id_)

    def start(self) -> None:
        """Start everything, and format the metadata. Raises PeerError when something is not ready in time."""
        self.zookeeper.start()
        self.format()
        # At the same time: most of a start is waiting.
        for bookie in self.bookies:
            bookie.start(wait=False)
        for bookie in self.bookies:
            bookie.await_(bookie.serves, START_S)

    def format(self) -> None:
        """Make the metadata of a new cluster: its layout, its id, the nodes that bookies register in."""
        self.shell("initnewcluster")

    def end(self) -> None:
        """Kill everything. Data stay."""
        for each in (*self.bookies, self.zookeeper):
            each.kill()

    def close(self) -> None:
        """Kill everything and delete all data."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def heal(self) -> None:
        """All bookies serve and take entries again, and stay registered; what was killed is started."""
        if self.zookeeper.process is None:
            self.start_zookeeper()
        for bookie in self.bookies:
            if bookie.process is None:
                bookie.start(wait=False)
            else:
                bookie.freeze(False)
        for bookie in self.bookies:
            bookie.await_(bookie.serves, START_S)
            if bookie.hung or bookie.returned or self._zookeeper_was_away:
                # Its node may be that of a session that ends soon, or has ended at ZooKeeper only just. A bookie that becomes
                # read-only deletes the node, and makes it again afterwards, each time by a session that lives.
                bookie.read_only()
            bookie.read_only(False)
            bookie.await_(partial(self.registered, bookie), START_S)
            bookie.returned = False
        self._zookeeper_was_away = False

    def start_zookeeper(self) -> None:
        """Start ZooKeeper again, with what it had. Bookies connect again by themselves, or fail to: `heal` helps them."""
        self.zookeeper.start()
        self._zookeeper_was_away = True

    def wipe(self, bookie: BookieServer) -> None:
        """Take everything from a stopped bookie, its cookie in ZooKeeper, too: it starts as a new one with its former name.

        A bookie whose folders are empty while its cookie is there refuses to start.
        """
        bookie.wipe()
        with self.client() as client, contextlib.suppress(NoNodeError):
            client.delete(f"{ROOT}/cookies/{bookie.id}")

    @contextlib.contextmanager
    def client(self) -> Iterator[KazooClient]:
        """A client of ZooKeeper."""
        client = self._protection.connect(self.hosts)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def registered(self, bookie: BookieServer) -> bool:
        """Whether ZooKeeper names it as one that takes entries. It names a dead one until its session ends."""
        with self.client() as client:
            return client.exists(f"{ROOT}/available/{bookie.id}") is not None

    def unregistered(self) -> list[BookieServer]:
        """Bookies that run, and that ZooKeeper does not name as such that take entries."""
        with self.client() as client:
            names = set(client.get_children(f"{ROOT}/available"))
        return [bookie for bookie in self.bookies if bookie.process is not None and bookie.id not in names]

    def java_writes(
        self, digests: str, quorums: tuple[int, int, int], count: int, size: int, *, v2: bool = True, close: bool = True
    ) -> list[int]:
        """Java's own client writes a ledger for each digest (names with commas between them); their ids.

        The password is `PASSWORD`, the content of the entries `java_content`.
        """
        command = "write" if close else "leave"
        return [int(line) for line in self._ledgers(command, *quorums, digests, PASSWORD.decode(), count, size, v2)]

    def java_reads(self, ledgers: Mapping[int, str], *, recover: bool = False) -> dict[int, list[bytes]]:
        """Java's own client reads ledgers, by id with their digests; the entries of each."""
        words = [f"{ledger}:{digest}" for ledger, digest in ledgers.items()]
        found: dict[int, list[bytes]] = {ledger: [] for ledger in ledgers}
        for line in self._ledgers("recover" if recover else "read", PASSWORD.decode(), *words):
            ledger, _, content = line.partition(":")
            found[int(ledger)].append(base64.b64decode(content))
        return found

    def _ledgers(self, command: str, *words: object) -> list[str]:
        settings = f"{self._tools_conf()}"
        return self.java(str(HERE / "Ledgers.java"), command, settings, *map(str, words)).split()

    def shell(self, *words: str) -> str:
        """A command of BookieShell; its output. Raises PeerError when it fails."""
        return self.java("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(self._tools_conf()), *words)

    def java(self, *words: str) -> str:
        """A Java program with the peer's jars: a class, or a file with its source, and its arguments; its output.

        Raises PeerError when it fails.
        """
        folder = self.folder / "shell"
        for part in ("logs", "tmp"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        limits = [f"-Xmx{SHELL_HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        properties = {"log4j.configurationFile": HERE / "log4j2.xml"} | dict(self._protection.properties)
        command = java(fetch(), folder, limits, properties)
        try:
            done = subprocess.run(
                [*command, *words], cwd=folder, capture_output=True, text=True, timeout=SHELL_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"{' '.join(words)}: not done after {SHELL_S:.0f} s") from None
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
            raise PeerError(f"{' '.join(words)}: exit code {done.returncode}: {lines[-1]}")
        return done.stdout

    def _tools_conf(self) -> Path:
        path = self.folder / "shell" / "shell.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = {"metadataServiceUri": self.uri, "allowLoopback": "true", "zkTimeout": "10000"}
        lines |= self._protection.tools
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path


def java_content(number: int, size: int) -> bytes:
    """The entries that Java's client writes."""
    return bytes((number + at) % 256 for at in range(size))


def is_open(port: int) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does: what it has started is ended first."""
    former = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _exit(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def running(
    folder: Path, bookies: int = 3, *, settings: Mapping[str, str] | None = None, protection: Protection = NONE
) -> Iterator[BookKeeperCluster]:
    """A cluster; killed and wiped at the end."""
    cluster = BookKeeperCluster(folder, bookies, settings=settings, protection=protection)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def main() -> None:
    """Run a cluster until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bookies", type=int, default=3, help="1 to 9 (default: 3)")
    options = parser.parse_args()
    if not 1 <= options.bookies <= 9:
        parser.error(f"--bookies {options.bookies}: 1 to 9")
    if reason := missing():
        raise SystemExit(reason)
    with (
        contextlib.suppress(KeyboardInterrupt),
        ended_by_sigterm(),
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "cluster", options.bookies) as cluster,
    ):
        sys.stdout.write(f"zookeeper: {cluster.hosts}, pid {cluster.zookeeper.pid}\n")
        for bookie in cluster.bookies:
            sys.stdout.write(f"{bookie.name}: {bookie.id}, pid {bookie.pid}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
