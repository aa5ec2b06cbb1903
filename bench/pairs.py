"""Two joined clusters a and b: of Magnetar with its pipeline, or of Apache Pulsar with its own geo-replication. Benches use both
alike.
"""

import contextlib
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import psutil
import pulsar as official
from tests.support.apache_pulsar import kit
from tests.support.brokers import eventually
from tests.support.jvm import PeerError
from tests.support.pipelines import replicating

from bench.measuring import ProcessorTime, running
from bench.peers_client import quiet

STEADY: Final = 0.05
"""A run whose processor time for each message is less than this share below the best before is no longer warming up."""

OPEN_S: Final = 300
"""A deadline for the slowest machine."""


class Cluster(Protocol):
    """What both kinds of clusters have."""

    @property
    def url(self) -> str:
        """For clients."""

    @property
    def pulsar_port(self) -> int:
        """Where the broker listens, without any proxy."""

    def rest(self, method: str, path: str) -> Any:
        """A request to its administration."""


@dataclass(frozen=True)
class Pair:
    """Two running clusters with everything that replicates between them.

    Attributes:
        name: "magnetar" or "pulsar".
        clusters: "a" and "b".
        processor: of the servers, and of the pipeline with everything that it starts; without clients and proxies.
        config: Magnetar's configuration file.
    """

    name: str
    clusters: dict[str, Cluster] = field(repr=False)
    processor: ProcessorTime = field(repr=False)
    config: Path | None = None

    def __getitem__(self, cluster: str) -> Cluster:
        return self.clusters[cluster]


def stored(cluster: Cluster, topic: str) -> int:
    """Messages that arrived at a topic of a cluster since its start; 0 where it is not there."""
    with contextlib.suppress(urllib.error.HTTPError, PeerError):
        return int(cluster.rest("GET", f"/admin/v2/persistent/public/default/{topic}/stats")["msgInCounter"])
    return 0


def opened(pair: Pair) -> Pair:
    """The pair, when a first message has come from a to b. On a busy machine Pulsar takes minutes for its first topic."""
    client = official.Client(pair["a"].url, operation_timeout_seconds=OPEN_S, logger=quiet())
    client.create_producer("opened").send(b"x")
    client.close()
    eventually(lambda: stored(pair["b"], "opened") == 1, within_s=OPEN_S)
    return pair


@contextlib.contextmanager
def magnetar(folder: Path, one_way: float = 0.0, extra: str = "") -> Iterator[Pair]:
    """Two brokers and one pipeline, which is next to a; b is `one_way` seconds away from both.

    Args:
        folder: for data and logs.
        one_way: 0 for no proxy.
        extra: lines of the configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with replicating(folder, "ab", extra, far={"b": one_way} if one_way else None) as (world, pipeline):
        processor = ProcessorTime(*running(pipeline, *world.brokers.values()))
        yield opened(Pair("magnetar", {name: world[name] for name in "ab"}, processor, world.config))


@contextlib.contextmanager
def pulsar(folder: Path, one_way: float = 0.0) -> Iterator[Pair]:
    """Two clusters that replicate public/default to each other; b is `one_way` seconds away from a."""
    with kit.running(folder, *"ab", far={"b": one_way} if one_way else None) as made:
        processor = ProcessorTime(*(psutil.Process(cluster.pid) for cluster in made.values()))
        yield opened(Pair("pulsar", {name: made[name] for name in "ab"}, processor))


KINDS: Final[dict[str, Callable[[Path, float], contextlib.AbstractContextManager[Pair]]]] = {
    "magnetar": magnetar,
    "pulsar": pulsar,
}


def warmed(run: Callable[[int], float], most: int) -> dict[str, Any]:
    """Repeat a run until its processor time for each message is steady, at most so many times.

    It is steady when two runs in succession are no more than `STEADY` below the best before: then the JVM has compiled what the
    run uses. Processor time decides, because a rate depends on what else the machine does. `run` takes the number of the run and
    returns processor time for each message. The result has all of them, and whether the last ones were steady.
    """
    best, calm, spent = float("inf"), 0, list[float]()
    while calm < 2 and len(spent) < most:
        cost = run(len(spent))
        calm = calm + 1 if cost > best * (1 - STEADY) else 0
        best = min(best, cost)
        spent.append(cost)
    return {"runs": spent, "steady": calm == 2}
