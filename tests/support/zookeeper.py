"""A ZooKeeper server of one test, from Debian's package: installed, or unpacked into a cache folder; else the test is skipped."""

import logging
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from magnetar.bookkeeper.ledgers.layouts import Layout, encode_layout
from tests.support.brokers import eventually, free_port

PACKAGES = ("libzookeeper-java", "libslf4j-java", "libdropwizard-metrics-java", "libsnappy-java", "libnetty-java")
JARS = (
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "slf4j-api.jar",
    "slf4j-nop.jar",
    "metrics-core.jar",
    "snappy-java.jar",
    "netty-all.jar",
)
INSTALLED = Path("/usr/share/java")
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"

QUIET = logging.getLogger("tests.zookeeper")
QUIET.addHandler(logging.NullHandler())
"""A server that is starting drops connections, which is no news."""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "magnetar" / "zookeeper-debian"


def _apt(*words: str, folder: Path) -> str:
    """Run apt-get; why it did not work, "" if it did."""
    try:
        done = subprocess.run(["apt-get", *words], cwd=folder, capture_output=True, timeout=90)
    except subprocess.TimeoutExpired:
        return f"apt-get {words[0]} takes too long"
    return (
        (done.stderr.decode(errors="replace")[-200:].strip() or f"exit code {done.returncode}")
        if done.returncode
        else ""
    )


def jars() -> str:
    """The class path; skips the test when the package cannot be had."""
    for folder in (INSTALLED, _cache() / "usr/share/java"):
        if (folder / "zookeeper.jar").exists():
            return ":".join(str(folder / jar) for jar in JARS)
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        pytest.skip("no ZooKeeper on this machine (Debian's package zookeeper), and no apt-get to fetch it")
    cache = _cache()
    # Beside it, then moved: two test processes may do this at once.
    work = cache.with_name(f"{cache.name}.{os.getpid()}")
    work.mkdir(parents=True, exist_ok=True)
    why = _apt("download", *PACKAGES, folder=work)
    if why and os.geteuid() == 0:
        # A bare machine, such as that of continuous integration, has no lists of packages yet.
        why = _apt("update", folder=work) or _apt("download", *PACKAGES, folder=work)
    if why:
        shutil.rmtree(work)
        pytest.skip(f"Debian's package zookeeper cannot be fetched: {why}")
    for package in work.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(work)], check=True, timeout=60)
        package.unlink()
    try:
        work.rename(cache)
    except OSError:
        shutil.rmtree(work)
    return ":".join(str(cache / "usr/share/java" / jar) for jar in JARS)


def serves(client: KazooClient) -> bool:
    """Whether this client, which is not started, can begin a session.

    The port of a server is open before that: a client that connects in between may be left without an answer.
    """
    try:
        client.start(timeout=5)
    except KazooTimeoutError:
        return False
    finally:
        client.stop()
        client.close()
    return True


def make_bookkeeper(client: KazooClient, root: str) -> None:
    """Make the nodes of a BookKeeper cluster that has no bookies."""
    client.create(f"{root}/LAYOUT", encode_layout(Layout.HIERARCHICAL), makepath=True)
    client.create(f"{root}/INSTANCEID", b"the-instance")
    client.create(f"{root}/available", b"")


class ZooKeeper:
    """A server on a port of its own; started on creation.

    Args:
        folder: for its data and log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jars = jars()
        if not shutil.which("java"):
            pytest.skip("no Java on this machine")
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def hosts(self) -> str:
        """For clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it (again), with what it had."""
        with (self._folder / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "java",
                    "-Xmx128m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-Dzookeeper.admin.enableServer=false",
                    "-Dzookeeper.forceSync=no",
                    "-Dzookeeper.4lw.commands.whitelist=ruok",
                    "-cp",
                    self._jars,
                    MAIN,
                    str(self.port),
                    str(self._folder / "data"),
                ],
                stdout=log,
                stderr=log,
            )
        eventually(self._answers, within_s=30, what="ZooKeeper does not answer")
        # It says that it is well before it serves.
        eventually(
            lambda: serves(KazooClient(hosts=self.hosts, timeout=5, logger=QUIET)),
            within_s=60,
            what="ZooKeeper does not serve",
        )

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as asked:
                asked.sendall(b"ruok")
                return asked.recv(4) == b"imok"
        except OSError:
            assert self._process is not None and self._process.poll() is None, (
                self._folder / "zookeeper.log"
            ).read_text()
            return False

    def freeze(self, frozen: bool) -> None:
        """Let it hang (SIGSTOP), or go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
