"""Latency of a link at steady rates, and the processor time of everything for each message: long batches and short ones by turns.

    python -m bench.link_latency [--quick] [--rates 5,50,500,1000,2000] [--topics 100,500] [--tails long-batches,short-batches]
    python -m bench.link_latency --peer pulsar ...     # next to Apache Pulsar's geo-replication: bench/links_pulsar.py

Messages of 1 KB, single, from an official client's producers in A to an official client's consumers in B; the time is from the
publish time to the arrival. Then 1,000 messages a second to many topics, and a mesh of three clusters with six links that has
nothing to do. Brokers, Spark with its workers, producers and consumers share this machine's processors. What was measured in one
run can be compared.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pulsar
from tests.support.brokers import World
from tests.support.pipelines import Pipeline

from bench.links import client_of
from bench.measuring import ONE_LINK, clusters, cpu_s, family, latencies, paced, running
from bench.results import Figure, store

TAILS: Final = ("long-batches", "short-batches")
RATES: Final = "5,50,500,1000,2000"
TOPICS: Final = "100,500"
TOPICS_RATE: Final = 1000
SECONDS: Final = 10
IDLE_S: Final = 20
RESTED_S: Final = 3
"""What the load left to do is not idling."""


class Processes:
    """The processes of a world and its pipeline, by what they do.

    Args:
        world: with running brokers.
        pipeline: started.
    """

    def __init__(self, world: World, pipeline: Pipeline) -> None:
        (self._driver,) = running(pipeline)
        self._brokers = dict(zip(world.brokers, running(*world.brokers.values()), strict=True))
        self._ports = {broker.pulsar_port for broker in world.brokers.values()}

    def _kind(self, one: psutil.Process) -> str:
        """The kind of a process of the pipeline: workers have connections to the ends of the links."""
        if one.pid == self._driver.pid:
            return "driver"
        if one.name() == "java":
            return "java"
        ends = {each.raddr.port for each in one.net_connections("tcp") if each.raddr} & self._ports
        return ("other Python", "reader", "writer")[min(2, len(ends))]

    def seconds(self) -> dict[int, tuple[str, float]]:
        """Kind and processor seconds of each process, by its id."""
        found = {broker.pid: (f"broker {name}", cpu_s(broker)) for name, broker in self._brokers.items()}
        for one in family(self._driver):
            with suppress(psutil.Error):
                found[one.pid] = self._kind(one), cpu_s(one)
        return found

    @staticmethod
    def spent(before: dict[int, tuple[str, float]], after: dict[int, tuple[str, float]]) -> dict[str, float]:
        """Processor seconds by kind between two moments. A worker that has ended, or changed its part, is what it was last."""
        kinds: dict[str, float] = {}
        for pid, (kind, seconds) in after.items():
            was, then = before.get(pid, (kind, 0.0))
            known = was if kind == "other Python" else kind
            kinds[known] = kinds.get(known, 0.0) + seconds - then
        return kinds

    def memory(self) -> dict[str, float]:
        """Memory of the pipeline's processes by kind, in MB: proportional set size, so that shared pages count once."""
        kinds: dict[str, float] = {}
        for one in family(self._driver):
            with suppress(psutil.Error, OSError):
                lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()
                (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
                kind = self._kind(one)
                kind = "workers" if kind not in ("driver", "java") else kind
                kinds[kind] = kinds.get(kind, 0.0) + kilobytes * 1024 / 1e6
        return kinds


class Flow:
    """A producer in A and a consumer in B for each of some topics, and the times of what arrives.

    Args:
        world: with brokers a and b, and a pipeline between them.
        topics: how many.
    """

    def __init__(self, world: World, topics: int) -> None:
        self._clients = [client_of(world[name]) for name in "ab"]
        names = [f"persistent://public/default/latency-{topics}-{number}" for number in range(topics)]
        self._producers = [
            self._clients[0].create_producer(name, batching_enabled=False, block_if_queue_full=True) for name in names
        ]
        self._arrived: list[float] = []
        self._changed = threading.Condition()
        for name in names:
            self._clients[1].subscribe(
                name, "bench", initial_position=pulsar.InitialPosition.Earliest, message_listener=self._receive
            )

    def _receive(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        age = time.time() * 1000 - message.publish_timestamp()
        consumer.acknowledge(message)
        with self._changed:
            self._arrived.append(age)
            self._changed.notify()

    def publish(self, count: int, rate: float) -> list[float]:
        """Publish so many at a steady rate, all topics together; the ages at arrival in ms."""
        self._arrived.clear()
        for number in paced(count, rate):
            self._producers[number % len(self._producers)].send_async(b"x" * 1024, lambda _result, _id: None)
        for producer in self._producers:
            producer.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._arrived) >= count, 120), "messages did not arrive"
            return list(self._arrived)

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()


class Bench:
    """Measures clusters and their pipeline.

    Args:
        world: with running brokers.
        pipeline: started.
    """

    def __init__(self, world: World, pipeline: Pipeline) -> None:
        self.world = world
        self.processes = Processes(world, pipeline)

    def spent(self, work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """What the work returns, and the processor seconds meanwhile by kind of process."""
        before = self.processes.seconds()
        found = work()
        return found, Processes.spent(before, self.processes.seconds())

    def idle(self) -> dict[str, float]:
        """Share of one core that each kind of process takes while nothing happens."""
        time.sleep(RESTED_S)
        _, kinds = self.spent(lambda: time.sleep(IDLE_S))  # a span of time in which nothing happens is what is measured
        return {kind: seconds / IDLE_S for kind, seconds in kinds.items()}

    def steady(self, flow: Flow, rate: int, seconds: int) -> dict[str, Any]:
        """Latency and processor time at a steady rate."""
        count = max(50, rate * seconds)
        ages, kinds = self.spent(lambda: flow.publish(count, rate))
        return {
            **latencies(ages),
            "cpu_ms": sum(kinds.values()) * 1000 / count,
            "cpu_ms_by_kind": {kind: spent * 1000 / count for kind, spent in kinds.items()},
            "messages": count,
        }


@contextmanager
def bench_of(tail: str, names: str, links: str = "") -> Iterator[Bench]:
    """Clusters with one-letter names and this kind of batches; `links` of the configuration, without it all of them."""
    with clusters(names, f'{links}[replication]\ntail = "{tail}"\n') as (world, pipeline):
        yield Bench(world, pipeline)


def measure(tail: str, rates: list[int], topics: list[int], seconds: int) -> dict[str, Any]:
    """One link with this kind of batches: idle, each rate, then many topics; last the memory of its pipeline."""
    found: dict[str, Any] = {}
    with bench_of(tail, "ab", ONE_LINK) as bench:
        flow = Flow(bench.world, 1)
        flow.publish(500, 100)  # the JVM compiles, connections open
        found["idle"] = bench.idle()
        for rate in rates:
            found[str(rate)] = bench.steady(flow, rate, seconds)
        flow.close()
        for number in topics:
            flow = Flow(bench.world, number)
            flow.publish(2 * number, TOPICS_RATE / 2)  # each topic is compared with its destination
            found[f"{number} topics"] = bench.steady(flow, TOPICS_RATE, seconds)
            flow.close()
        found["memory"] = bench.processes.memory()
    return found


def six_links(tail: str) -> dict[str, Any]:
    """Three clusters and all six links, after some messages."""
    with bench_of(tail, "abc") as bench:
        flow = Flow(bench.world, 1)
        flow.publish(200, 100)
        found = {"idle": bench.idle(), "memory": bench.processes.memory()}
        flow.close()
    return found


def figures_of(tail: str, rates: list[int], topics: list[int], rounds: list[dict[str, Any]]) -> list[Figure]:
    """The medians of some rounds."""

    def total(of: Callable[[dict[str, Any]], dict[str, float]]) -> float:
        return statistics.median(sum(of(one).values()) for one in rounds)

    figures = [
        Figure(f"{tail}: idle, one link, everything", 100 * total(lambda one: one["idle"]), "% of a core", "",
               {"rounds": rounds}),
        Figure(f"{tail}: memory of the pipeline (PSS), one link", total(lambda one: one["memory"]), "MB"),
    ]  # fmt: skip
    if "six" in rounds[0]:
        idle = 100 * total(lambda one: one["six"]["idle"])
        figures.append(Figure(f"{tail}: idle, six links, everything", idle, "% of a core", "< 2"))
        memory = total(lambda one: one["six"]["memory"])
        figures.append(Figure(f"{tail}: memory of the pipeline (PSS), six links", memory, "MB", "< 1000"))
    cases = {str(rate): f"1 topic, {rate}/s" for rate in rates}
    cases |= {f"{number} topics": f"{number} topics, {TOPICS_RATE}/s" for number in topics}
    for key, label in cases.items():
        for what, shown, unit in (
            ("p50_ms", "p50", "ms"),
            ("p99_ms", "p99", "ms"),
            ("cpu_ms", "processor", "ms/message"),
        ):
            value = statistics.median(one[key][what] for one in rounds)
            figures.append(Figure(f"{tail}, {label}: {shown}", value, unit))
    return figures


def numbers(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of 4 s for each rate")
    parser.add_argument("--rates", default=RATES, help=f"messages a second (default: {RATES})")
    parser.add_argument("--topics", default=TOPICS, help=f"numbers of topics at {TOPICS_RATE}/s (default: {TOPICS})")
    parser.add_argument("--tails", default=",".join(TAILS), help="kinds of batches (default: both)")
    parser.add_argument("--peer", choices=["pulsar"])
    options, more = parser.parse_known_args()
    if options.peer:
        from bench import links_pulsar

        links_pulsar.main([*sys.argv[1:], "--only", "latency"])
        return
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    rates, topics, tails = numbers(options.rates), numbers(options.topics), options.tails.split(",")
    rounds: dict[str, list[dict[str, Any]]] = {tail: [] for tail in tails}
    for _ in range(1 if options.quick else 3):
        for tail in tails:
            # Quickly: many topics and six links are about long batches only.
            many = topics if tail == TAILS[0] or not options.quick else []
            found = measure(tail, rates, many, 4 if options.quick else SECONDS)
            if many:
                found["six"] = six_links(tail)
            rounds[tail].append(found)
    figures = []
    for tail, found_rounds in rounds.items():
        many = topics if "six" in found_rounds[0] else []
        figures += figures_of(tail, rates, many, found_rounds)
    store("link_latency", figures, sys.argv)


if __name__ == "__main__":
    main()
