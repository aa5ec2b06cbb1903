"""Latency of a link at steady rates, and the processor time of everything for each message: long batches and short ones by turns.

    python -m bench.link_latency [--quick] [--rates 5,50,500,1000,2000] [--topics 1]

Messages of 1 KB, single, from an official client's producer in A to an official client's consumer in B; the time is from the
publish time to the arrival. Brokers, Spark with its workers, producer and consumer share this machine's processors. What was
measured in one run can be compared.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import psutil
import pulsar
from tests.support.brokers import World
from tests.support.pipelines import Pipeline

from bench.links import busy, client_of
from bench.results import Figure, store

TAILS: Final = ("long-batches", "short-batches")
RATES: Final = "5,50,500,1000,2000"
SECONDS: Final = 10
IDLE_S: Final = 20


class Flow:
    """A producer in A and a consumer in B for each of some topics, and the times of what arrives.

    Args:
        world: with brokers a and b, and a pipeline between them.
        topics: how many.
    """

    def __init__(self, world: World, topics: int) -> None:
        self._clients = [client_of(world[name]) for name in "ab"]
        names = [f"persistent://public/default/latency-{number}" for number in range(topics)]
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
        """Publish so many at a steady rate, all topics together; the ages at arrival in ms, sorted."""
        self._arrived.clear()
        begin = time.perf_counter()
        for number in range(count):
            ahead = begin + number / rate - time.perf_counter()
            if ahead > 0.0005:
                time.sleep(ahead)
            self._producers[number % len(self._producers)].send_async(b"x" * 1024, lambda _result, _id: None)
        for producer in self._producers:
            producer.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._arrived) >= count, 120), "messages did not arrive"
            return sorted(self._arrived)

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()


def measure(tail: str, rates: list[int], topics: int, seconds: int) -> dict[str, Any]:
    """One pair of clusters with this kind of batches: idle, then each rate."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        links = f'[[links]]\nfrom = "a"\nto = "b"\n[replication]\ntail = "{tail}"\n'
        world, pipeline = World(Path(name), ["a", "b"], links), None
        try:
            world.start()
            pipeline = Pipeline(world.config).start()
            flow = Flow(world, topics)
            flow.publish(500, 100)  # the JVM compiles, connections open
            assert pipeline.process is not None
            roots = [pipeline.process, *(broker.process for broker in world.brokers.values())]
            processes = [psutil.Process(root.pid) for root in roots if root is not None]
            time.sleep(3)  # what the load left to do is not idling
            before = sum(map(busy, processes))
            time.sleep(IDLE_S)  # the measurement is of a span of time in which nothing happens
            found["idle"] = (sum(map(busy, processes)) - before) / IDLE_S
            for rate in rates:
                count = max(50, rate * seconds)
                before = sum(map(busy, processes))
                ages = flow.publish(count, rate)
                found[str(rate)] = {
                    "p50_ms": ages[len(ages) // 2],
                    "p99_ms": ages[int(len(ages) * 0.99)],
                    "max_ms": ages[-1],
                    "cpu_ms": (sum(map(busy, processes)) - before) * 1000 / count,
                    "messages": count,
                }
            flow.close()
        finally:
            if pipeline is not None:
                pipeline.kill()
            world.close()
    return found


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of 4 s for each rate")
    parser.add_argument("--rates", default=RATES, help=f"messages a second (default: {RATES})")
    parser.add_argument("--topics", type=int, default=1)
    options = parser.parse_args()
    rates = [int(rate) for rate in options.rates.split(",")]
    rounds: dict[str, list[dict[str, Any]]] = {tail: [] for tail in TAILS}
    for _ in range(1 if options.quick else 3):
        for tail in TAILS:
            rounds[tail].append(measure(tail, rates, options.topics, 4 if options.quick else SECONDS))
    figures = []
    for tail, found in rounds.items():
        idle = statistics.median(one["idle"] for one in found)
        figures.append(Figure(f"{tail}: idle, everything", 100 * idle, "% of a core", "", {"rounds": found}))
        for rate in map(str, rates):
            for key, label, unit in (
                ("p50_ms", "p50", "ms"),
                ("p99_ms", "p99", "ms"),
                ("cpu_ms", "processor", "ms/message"),
            ):
                value = statistics.median(one[rate][key] for one in found)
                figures.append(Figure(f"{tail}, {options.topics} topic(s), {rate}/s: {label}", value, unit))
    store("link_latency", figures, sys.argv)


if __name__ == "__main__":
    main()
