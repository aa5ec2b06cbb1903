"""One broker of Apache Pulsar whose ledgers are on the bookies of `apache_bookkeeper.kit`, in a JVM of its own."""

import contextlib
import http.client
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.apache_bookkeeper.kit import BookKeeperCluster
from tests.support.apache_pulsar import kit
from tests.support.brokers import free_port
from tests.support.jvm import Jvm, PeerError, java

NAME: Final = "peer"
"""Of the cluster."""

BUNDLES: Final = 4
"""Of the namespace `public/default`."""


class PulsarBroker(Jvm):
    """The only broker of a cluster of Pulsar. ZooKeeper and bookies may serve others, too.

    The settings are those of `standalone.conf`, without those of its bookie.

    Args:
        folder: for its logs.
        cluster: the bookies, which are started.
        quorums: ensemble, write quorum and ack quorum of its ledgers.
    """

    def __init__(self, folder: Path, cluster: BookKeeperCluster, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        super().__init__("Pulsar's broker", folder)
        self.pulsar_port, self.http_port = free_port(), free_port()
        self._cluster = cluster
        self._quorums = quorums

    @property
    def url(self) -> str:
        """For clients."""
        return f"pulsar://127.0.0.1:{self.pulsar_port}"

    def start(self) -> None:
        """Make the metadata of the cluster, start, and wait until it serves.

        Raises PeerError when it ends or the deadline passes, with its last line; or when the disk has too little room.
        """
        self.prepare()
        (self.folder / "broker.conf").write_text(self.configuration())
        self._make_metadata()
        limits = [f"-Xmx{kit.HEAP}", f"-XX:MaxDirectMemorySize={kit.DIRECT}", "-XX:+UseG1GC"]
        command = self._java(["-Xms256m", *limits, "-XX:+ExitOnOutOfMemoryError"])
        command += ["org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(self.folder / "broker.conf")]
        self.launch(command, self._ready, kit.START_S)
        namespace = "/admin/v2/namespaces/public/default"
        self._rest("PUT", "/admin/v2/tenants/public", {"adminRoles": [], "allowedClusters": [NAME]}, allow=(409,))
        self._rest("PUT", namespace, {"bundles": {"numBundles": BUNDLES}}, allow=(409,))

    def owns(self, topics: int) -> None:
        """Let it load the bundles of so many names: a client that looks nothing up is refused before that."""
        for number in range(topics):
            self._rest("GET", f"/lookup/v2/topic/persistent/public/default/owned-{number}")

    def configuration(self) -> str:
        """The text of its configuration file."""
        ensemble, write_quorum, ack_quorum = self._quorums
        lines = {
            "clusterName": NAME,
            "brokerServicePort": self.pulsar_port,
            "webServicePort": self.http_port,
            "advertisedAddress": "127.0.0.1",
            "metadataStoreUrl": self._store,
            "configurationMetadataStoreUrl": self._store,
            "bookkeeperMetadataServiceUri": self._cluster.uri,
            "managedLedgerDefaultEnsembleSize": ensemble,
            "managedLedgerDefaultWriteQuorum": write_quorum,
            "managedLedgerDefaultAckQuorum": ack_quorum,
        }
        own = "".join(f"{key}={value}\n" for key, value in lines.items())
        return (kit.HERE / "standalone.conf").read_text() + "\n# --- Of this broker ---\n\n" + own

    @property
    def _store(self) -> str:
        return f"zk:{self._cluster.hosts}"

    def _java(self, limits: list[str]) -> list[str]:
        properties = {
            "log4j.configurationFile": kit.HERE / "log4j2.xml",
            "log4j2.contextSelector": "org.apache.logging.log4j.core.async.AsyncLoggerContextSelector",
        }
        return java(kit.fetch(), self.folder, limits, properties)

    def _make_metadata(self) -> None:
        command = self._java(["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        command += ["org.apache.pulsar.PulsarClusterMetadataSetup", "--cluster", NAME]
        command += ["--metadata-store", self._store, "--configuration-store", self._store]
        command += ["--web-service-url", f"http://127.0.0.1:{self.http_port}", "--broker-service-url", self.url]
        command += ["--existing-bk-metadata-service-uri", self._cluster.uri]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=kit.START_S, check=False
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
            raise PeerError(f"the metadata of Pulsar's cluster could not be made: {lines[-1]}")

    def _rest(self, method: str, path: str, body: object = None, *, allow: tuple[int, ...] = ()) -> bytes:
        return self.ask(self.http_port, method, path, body, within_s=kit.REQUEST_S, allow=allow)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException, PeerError):
            return self._rest("GET", "/admin/v2/brokers/ready") == b"ok"
        return False


@contextlib.contextmanager
def serving(folder: Path, cluster: BookKeeperCluster) -> Iterator[PulsarBroker]:
    """A broker on these bookies; killed and wiped at the end."""
    broker = PulsarBroker(folder, cluster)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        broker.wipe()
