"""The worst age of a message when a part of a link dies or stands still: real brokers, the real pipeline on Spark.

    python -m bench.link_faults [--quick] [--rate 50] [--only writer,reader,...] [--tail long-batches] [--master local[4,4]]

Messages are published in A at a steady rate. Every few milliseconds B is asked for its number of entries, over a connection of
its own: a client would have to reconnect first. So the age of a message is from the return of its `send` to the answer that
counts it.
Each fault happens several times. The figure is the median of the worst ages, and `detail` has all of them:

    writer           the Python process of a task that writes is killed, and reads where there is no filter: the worst age of any
                     message
    reader           the same for the process that reads a link with a filter, in a pair of clusters of its own
    destination      B is killed and started again: from its ready line until it has all that was published before
    stopped          B is stopped for 3 s and goes on: from there until it has all that was published before
    still            the same for A, for 30 s: from there until B has all, with what A takes in meanwhile
    driver           the driver with Java and all workers is killed and started again: from its start until B has all;
                     `detail` has the time of "replicating", for how much of that is the start
"""

import argparse
import contextlib
import http.client
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline
from tests.support.workers import FILTERED, readers, writers

from bench.links import client_of
from bench.measuring import Admin, clusters
from bench.results import Figure, store

TOPIC: Final = "persistent://public/default/faults"
STATS: Final = "/admin/v2/persistent/public/default/faults/internalStats"
STOPPED_S: Final = 3.0
STILL_S: Final = 30.0
SEND_MS: Final = 120_000
DOWN_S: Final = 2.0
QUIET_S: Final = 3.0
"""Before each fault: nothing of the last one is left."""


class Flow:
    """A publisher in A at a steady rate, and the moments at which B had each message."""

    def __init__(self, world: World, rate: int) -> None:
        self._client = client_of(world["a"])
        # A broker that stands still for 30 s must not end the flow.
        self._producer = self._client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=SEND_MS)
        self._admin = Admin(world["b"])
        self.sent: list[float] = []
        self.arrived: list[float] = []
        self._rate = rate
        self._over = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._publish, self._watch)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        due = time.perf_counter()
        while not self._over.is_set():
            due = max(due + 1 / self._rate, time.perf_counter() - 0.1)
            time.sleep(max(0.0, due - time.perf_counter()))
            self._producer.send(b"x" * 1024)
            self.sent.append(time.perf_counter())

    def _watch(self) -> None:
        while not self._over.wait(0.004):
            # B may be away, or have no such topic yet.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                stats = self._admin.look(STATS) or {"numberOfEntries": 0}
                now = time.perf_counter()
                self.arrived += [now] * (int(stats["numberOfEntries"]) - len(self.arrived))

    def caught_up(self) -> float:
        """Wait until everything sent by now has arrived; the moment when it had."""
        wanted = len(self.sent)
        eventually(lambda: len(self.arrived) >= wanted, within_s=120, every_s=0.002, what=f"{wanted} messages")
        return self.arrived[wanted - 1]

    def worst(self, first: int) -> float:
        """The worst age of the messages since number `first`, in seconds; all have arrived."""
        return max(there - here for here, there in zip(self.sent[first:], self.arrived[first:], strict=False))

    def close(self) -> None:
        """End both threads."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._client.close()


class Faults:
    """One pair of clusters, its pipeline, and what can go wrong with them."""

    def __init__(self, world: World, pipeline: Pipeline, flow: Flow) -> None:
        self._world, self._pipeline, self._flow = world, pipeline, flow
        self._ports = {broker.pulsar_port for broker in world.brokers.values()}
        self.detail: dict[str, list[float]] = {"start_s": []}

    def _kill(self, which: Callable[[], list[Any]]) -> float:
        first = len(self._flow.sent)
        for victim in eventually(which, within_s=60, every_s=0.01):
            victim.kill()  # one of them works; a writer of an earlier batch may still have its connections
        time.sleep(2)  # a span of time whose messages count
        self._flow.caught_up()
        return self._flow.worst(first)

    def writer(self) -> float:
        """SIGKILL of the task's process that writes."""
        return self._kill(lambda: writers(self._pipeline, self._ports))

    def reader(self) -> float:
        """SIGKILL of the task's process that reads."""
        return self._kill(lambda: readers(self._pipeline, self._ports))

    def destination(self) -> float:
        """SIGKILL of B."""
        self._world["b"].kill()
        time.sleep(DOWN_S)
        self._world["b"].start()
        back = time.perf_counter()
        return self._flow.caught_up() - back

    def _stop(self, cluster: str, seconds: float) -> float:
        process = self._world[cluster].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        before = len(self._flow.sent)
        process.send_signal(signal.SIGCONT)
        back = time.perf_counter()
        # A source that stood still took nothing: the message that it takes first counts.
        eventually(lambda: len(self._flow.sent) > before, within_s=60, every_s=0.001, what="a message is taken")
        return self._flow.caught_up() - back

    def stopped(self) -> float:
        """SIGSTOP of B."""
        return self._stop("b", STOPPED_S)

    def still(self) -> float:
        """SIGSTOP of A, for longer than it holds a question."""
        return self._stop("a", STILL_S)

    def driver(self) -> float:
        """SIGKILL of the driver and what it started."""
        self._pipeline.kill()
        began = time.perf_counter()
        self._pipeline.start()
        self.detail["start_s"].append(round(time.perf_counter() - began, 3))
        return self._flow.caught_up() - began


AIMS: Final = {
    "writer": "< 1 s",
    "reader": "< 1 s",
    "destination": "< 1 s",
    "stopped": "< 1 s",
    "still": "",
    "driver": "its start",
}
ROUNDS: Final = {"writer": 8, "reader": 8, "destination": 5, "stopped": 5, "still": 2, "driver": 3}


def measure(faults: Sequence[str], links: str, options: argparse.Namespace) -> list[Figure]:
    """Faults of one pair of clusters.

    Args:
        faults: by name, in order.
        links: more lines of clusters.toml.
        options: of the command.
    """
    if not faults:
        return []
    figures = []
    extra = f'[replication]\ntail = "{options.tail}"\n{links}'
    master = ["--master", options.master] if options.master else []
    with clusters("ab", extra, *master) as (world, pipeline), contextlib.closing(Flow(world, options.rate)) as flow:
        made = Faults(world, pipeline, flow)
        for fault in faults:
            found = []
            for _ in range(2 if options.quick else ROUNDS[fault]):
                time.sleep(QUIET_S)
                flow.caught_up()
                found.append(round(getattr(made, fault)(), 3))
            detail: dict[str, Any] = {"worst_s": found}
            if fault == "driver":
                detail |= made.detail
            figures.append(Figure(f"{options.tail}: {fault}", statistics.median(found), "s", AIMS[fault], detail))
            print(fault, detail, flush=True)
    return figures


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of each, without `still`")
    parser.add_argument("--rate", type=int, default=50, help="messages a second (default: 50)")
    parser.add_argument("--only", default=",".join(AIMS), help="some of the faults")
    parser.add_argument("--tail", default="long-batches", help="or short-batches")
    parser.add_argument("--master", default="", help="of Spark (default: the configuration's)")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if not (options.quick and name == "still")]
    figures = measure([name for name in only if name != "reader"], "", options)
    figures += measure([name for name in only if name == "reader"], FILTERED, options)
    store("link_faults", figures, sys.argv)


if __name__ == "__main__":
    main()
