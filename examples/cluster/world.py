"""All processes: ZooKeeper, four bookies, two brokers on them, a broker with a disk, and the pipeline. Each can be killed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.apache_bookkeeper.kit import BookieServer, BookKeeperCluster
from tests.support.jvm import PeerError

from examples.demo.ports import free_ports
from examples.demo.world import BROKER_START_S, KEEP_ALL, PIPELINE_START_S, Process, brief_java
from magnetar.admin.client import AdminClient
from magnetar.cli.commands.up import BROKER_READY, PIPELINE_READY
from magnetar.core.errors import MagnetarError

CLUSTER: Final = "jfk"
"""The cluster of two brokers."""

OTHER: Final = "lga"
"""The cluster of one broker, with a disk."""

BROKERS: Final = ("a", "b")
BOOKIES: Final = 4
ENSEMBLE: Final = 3
"""Three bookies get each entry, so one is left to replace a dead one."""

FILE: Final = """\
[magnetar]
data_dir = "data"

[clusters.{cluster}]
storage = "bookkeeper"
store = "zookeeper://{zookeeper}/{cluster}"
ensemble = {ensemble}
ack_quorum = 2
{brokers}
[clusters.{other}]
pulsar = "127.0.0.1:{pulsar}"
http = "127.0.0.1:{http}"

[deduplication]
enabled = true                    # a producer that sends again after a takeover is not stored twice

[replication]
master = "{master}"
"""


class World:
    """Everything, on free ports, with one clusters.toml.

    Args:
        folder: for the file, data and logs; made if need be.
        master: Spark master of the pipeline.
        brief: it will run for a minute, not for hours.
    """

    def __init__(self, folder: Path, master: str, *, brief: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.config = folder / "clusters.toml"
        self.bookkeeper = BookKeeperCluster(folder / "bookkeeper", BOOKIES)
        ports = free_ports(2 * (len(BROKERS) + 1))
        tables, pulsar_ports = [], []
        self._http: dict[str, int] = {}
        for name in BROKERS:
            pulsar, http = ports.pop(), ports.pop()
            pulsar_ports.append(pulsar)
            self._http[name] = http
            tables.append(
                f'\n[clusters.{CLUSTER}.brokers.{name}]\npulsar = "127.0.0.1:{pulsar}"\nhttp = "127.0.0.1:{http}"\n'
            )
        pulsar, http = ports
        self._http[OTHER] = http
        self.urls = {
            CLUSTER: "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in pulsar_ports),
            OTHER: f"pulsar://127.0.0.1:{pulsar}",
        }
        self.config.write_text(
            FILE.format(
                cluster=CLUSTER,
                other=OTHER,
                zookeeper=self.bookkeeper.hosts,
                ensemble=ENSEMBLE,
                brokers="".join(tables),
                pulsar=pulsar,
                http=http,
                master=master,
            )
        )
        at = ["-c", str(self.config)]
        self.brokers = {
            name: Process(
                f"broker {CLUSTER} {name}", ["broker", f"{CLUSTER}/{name}", *at], BROKER_READY, folder, BROKER_START_S
            )
            for name in BROKERS
        }
        self.other = Process(f"broker {OTHER}", ["broker", OTHER, *at], BROKER_READY, folder, BROKER_START_S)
        self.environment = brief_java(os.environ) if brief else {}
        self.pipeline = Process(
            "pipeline", ["replicate", *at], PIPELINE_READY, folder, PIPELINE_START_S, self.environment
        )
        self.serving = BROKERS[0]
        """The broker of CLUSTER that serves."""

    @property
    def waiting(self) -> str:
        """The broker of CLUSTER that waits to take over."""
        return next(name for name in BROKERS if name != self.serving)

    def admin(self, cluster: str) -> AdminClient:
        """The REST interface of a cluster, at the broker that serves."""
        return AdminClient(f"http://127.0.0.1:{self._http[self.serving if cluster == CLUSTER else cluster]}")

    def open(self, look: Callable[[], None] = lambda: None) -> None:
        """Start everything but the pipeline's Spark session, which takes some seconds more.

        Raises:
            MagnetarError: something did not start.
        """
        try:
            self.bookkeeper.start()
        except PeerError as error:
            raise MagnetarError(str(error)) from error
        self.other.launch()
        self.brokers[self.serving].start(look)
        self.other.await_ready(look)
        # It waits: its own line comes when it takes over.
        self.brokers[self.waiting].launch()
        for cluster in (CLUSTER, OTHER):
            self.admin(cluster).post("/admin/v2/namespaces/public/default/retention", KEEP_ALL)
        self.pipeline.launch()

    def await_takeover(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait until the broker that waits has taken over; the other one starts again, and waits."""
        former = self.serving
        self.serving = self.waiting
        self.brokers[self.serving].await_ready(look)
        self.brokers[former].launch()

    def busiest_bookie(self) -> BookieServer:
        """The bookie that wrote to its journal last, so one that holds the newest entries."""

        def written(bookie: BookieServer) -> float:
            times = [path.stat().st_mtime for path in (bookie.folder / "journal").rglob("*.txn")]
            return max(times, default=0.0)

        return max(self.bookkeeper.bookies, key=written)

    def close(self) -> None:
        """End everything at once: what had to be orderly has been."""
        for process in (self.pipeline, self.other, *self.brokers.values()):
            process.kill()
        self.bookkeeper.end()
