"""What several benches share: clusters with their pipeline, a steady rate, percentiles, processor time, administration."""

import argparse
import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from tests.support.apache_bookkeeper import kit
from tests.support.bookkeeper_brokers import Brokers
from tests.support.brokers import BrokerProcess, World
from tests.support.pipelines import Pipeline, replicating

TREE: Final = Path(__file__).resolve().parents[1]
"""This checkout."""

ONE_LINK: Final = '[[links]]\nfrom = "a"\nto = "b"\n'
"""Lines of clusters.toml."""

SHORTEST_SLEEP_S: Final = 0.0005
"""A wait that is shorter than this is left out: the system's timer is late by about a tenth of it."""


# -------------------------------------------------------------------------------------------------------------------- clusters


@contextlib.contextmanager
def clusters(
    names: Sequence[str], extra: str = "", *arguments: str, far: Mapping[str, float] | None = None
) -> Iterator[tuple[World, Pipeline]]:
    """`tests.support.pipelines.replicating` in a temporary folder. When a bench fails, the ends of the brokers' logs are printed:
    the logs go with the folder.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        replicating(Path(folder), names, extra, *arguments, far=far) as (world, pipeline),
    ):
        try:
            yield world, pipeline
        except Exception:
            for name, cluster in world.brokers.items():
                ended = cluster.process.poll() if cluster.process is not None else None
                tail = cluster.log.read_text()[-2_000:] if cluster.log.exists() else ""
                print(f"{name}: exit code {ended}\n{tail}", file=sys.stderr)
            raise


@contextlib.contextmanager
def bookkeeper_brokers(*, deduplicates: bool = True) -> Iterator[Brokers]:
    """Two brokers on a real BookKeeper of three bookies, in a temporary folder; the caller starts them."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        kit.ended_by_sigterm(),
        kit.running(Path(name) / "bookkeeper") as cluster,
    ):
        folder = Path(name) / "brokers"
        folder.mkdir()
        with contextlib.closing(Brokers(folder, cluster, "/bench", deduplicates=deduplicates)) as brokers:
            yield brokers


class Admin:
    """A broker's administration over one kept-alive connection, which is opened again after an error of the network.

    Every method raises OSError or http.client.HTTPException when the broker does not answer.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> None:
        """One request; raises SystemExit when it is refused."""
        status, text = self._exchange(method, path, body)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {status} {text[:200]!r}")

    def look(self, path: str) -> Any:
        """The decoded answer to a GET; None when it is empty or an error, such as that of a topic that is not there yet."""
        status, text = self._exchange("GET", path, None)
        return json.loads(text) if text and status < 300 else None

    def _exchange(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise


# ------------------------------------------------------------------------------------------------------------ rates and figures


def paced(count: int, per_s: float) -> Iterator[int]:
    """The numbers from 0 to `count` - 1, each when it is due at a steady rate that begins now; a rate of 0 has no waits."""
    begin = time.perf_counter()
    for number in range(count):
        ahead = begin + number / per_s - time.perf_counter() if per_s else 0.0
        if ahead > SHORTEST_SLEEP_S:
            time.sleep(ahead)
        yield number


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that covers a share of all; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def latencies(ms: Sequence[float]) -> dict[str, float]:
    """What is kept of latencies in ms. Raises ValueError where there are none."""
    return {"p50_ms": percentile(ms, 0.5), "p99_ms": percentile(ms, 0.99), "max_ms": max(ms)}


# --------------------------------------------------------------------------------------------------------------- processor time


def cpu_s(process: psutil.Process) -> float:
    """User and system seconds of one process until now, also of its threads that have ended."""
    times = process.cpu_times()
    return float(times.user + times.system)


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and everything below it."""
    return [process, *process.children(recursive=True)]


class ProcessorTime:
    """Processor seconds of some processes and of everything below them.

    A process that has ended counts as when last seen: Spark ends idle workers, and their seconds must not be subtracted from
    those of the others.
    """

    def __init__(self, *roots: psutil.Process) -> None:
        self._roots = roots
        self._seen: dict[int, float] = {}

    def seconds(self) -> float:
        """Until now."""
        for root in self._roots:
            for one in family(root):
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._seen[one.pid] = cpu_s(one)
        return sum(self._seen.values())


def running(*started: BrokerProcess | Pipeline) -> list[psutil.Process]:
    """The processes of brokers and pipelines that have been started."""
    return [psutil.Process(one.process.pid) for one in started if one.process is not None]


# ------------------------------------------------------------------------------------------------------------- trees to compare


def add_tree(parser: argparse.ArgumentParser) -> None:
    """The option `--tree` of benches that compare checkouts; its value is a list of paths, or None."""
    parser.add_argument(
        "--tree", type=_tree, action="append", help="a checkout to measure; may be given more than once"
    )


def _tree(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / "src" / "magnetar").is_dir():
        # Without sources there, Python would import the installed package, and the bench would measure that.
        raise argparse.ArgumentTypeError(f"{text} has no folder src/magnetar; give the folder of a checkout")
    return path
