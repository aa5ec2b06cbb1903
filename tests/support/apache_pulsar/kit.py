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
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.support.brokers import free_port
from tests.support.delaying_proxy import proxied
from tests.support.jvm import Jvm, PeerError, Release, java

HERE: Final = Path(__file__).resolve().parent

HEAP: Final = "1g"
"""Heap of a cluster, at most: two clusters, Spark and the clients have to fit on a machine with 8 GB. The distribution
takes 2 GB."""

DIRECT: Final = "1g"
"""Memory outside the heap, at most: BookKeeper takes a quarter of it for its write cache and a quarter for its read cache. The
distribution takes 4 GB."""

START_S: Final = 240.0
"""A deadline for the slowest machine."""

REQUEST_S: Final = 60.0


RELEASE: Final = Release(
    "Apache Pulsar", HERE / "pom.xml", "pulsar", "pulsar-broker", "PULSAR_PEER_HOME", "pulsar-peer"
)
VERSION: Final = RELEASE.version
home, fetched, missing, fetch = RELEASE.home, RELEASE.fetched, RELEASE.missing, RELEASE.fetch


class PulsarCluster(Jvm):
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
        super().__init__(name, folder)
        self.pulsar_port, self.http_port, self._bookie_port, self._stream_port = (free_port() for _ in range(4))
        self.advertised = advertised
        self._settings = settings or {}

    @property
    def url(self) -> str:
        """For clients."""
        return f"pulsar://127.0.0.1:{self.pulsar_port}"

    @property
    def web(self) -> str:
        """For administration."""
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> Self:
        """Start, and wait until it serves.

        Raises PeerError when it ends or the deadline passes, with its last line; or when the disk has too little room.
        """
        jars = fetch()
        self.prepare()
        for part in ("metadata", "bookkeeper"):
            (self.folder / part).mkdir(exist_ok=True)
        (self.folder / "standalone.conf").write_text(self.configuration())
        self.launch(self._command(jars), self._ready, START_S)
        return self

    def rest(self, method: str, path: str, body: Any = None, *, allow: Sequence[int] = ()) -> Any:
        """A request to its administration; the decoded answer.

        Raises PeerError for a status that is neither 2xx nor in `allow`.
        """
        content = self.ask(self.http_port, method, path, body, within_s=REQUEST_S, allow=allow)
        try:
            return json.loads(content)
        except ValueError:
            return content.decode(errors="replace")

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
        drivers = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
        properties = {
            f"bookkeeper.metadata.{role}.drivers": f"{drivers}{role.title()}Driver" for role in ("bookie", "client")
        }
        properties["log4j.configurationFile"] = str(HERE / "log4j2.xml")
        properties["log4j2.contextSelector"] = "org.apache.logging.log4j.core.async.AsyncLoggerContextSelector"
        limits = ["-Xms256m", f"-Xmx{HEAP}", f"-XX:MaxDirectMemorySize={DIRECT}"]
        command = java(jars, self.folder, [*limits, "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError"], properties)
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

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException, PeerError):
            return bool(
                self.rest("GET", "/admin/v2/brokers/ready") == "ok"
                and "public/default" in self.rest("GET", "/admin/v2/namespaces/public")
            )
        return False


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
def running(folder: Path, *names: str, far: Mapping[str, float] | None = None) -> Iterator[dict[str, PulsarCluster]]:
    """Clusters with these names, joined when there are several; killed and wiped at the end.

    Args:
        folder: for data and logs.
        names: of the clusters.
        far: the seconds between a cluster and the others in each direction, by its name: they reach it through a proxy.
    """
    clusters = {name: PulsarCluster(folder / name, name) for name in names}
    with contextlib.ExitStack() as stack:
        for name, one_way in (far or {}).items():
            clusters[name].advertised = stack.enter_context(proxied(clusters[name].pulsar_port, one_way))
        for cluster in clusters.values():
            stack.callback(cluster.wipe)
            stack.callback(cluster.kill)
            cluster.start()
        if len(clusters) > 1:
            join(list(clusters.values()))
        yield clusters


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
