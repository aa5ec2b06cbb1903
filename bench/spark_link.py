"""One link on Spark: throughput while catching up, latency at the tail.

    python bench/spark_link.py                     the pipeline alone, between null brokers in a process of their own
    python bench/spark_link.py --entries 1024      entries of 1 KB instead of 128 KB
    python bench/spark_link.py --tail              latency instead of throughput

The null source serves one prepared answer again and again, the null destination counts and forgets, both over real
sockets: what is measured is Spark, Arrow, Python workers and the wire, not a broker. Prints one JSON line.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.spark.fakes import TOKEN, Cursor, FakeCluster, Topic, entry_bytes, wire

from magnetar.core.ids import Position
from magnetar.pipeline.coordinator import PipelineCoordinator
from magnetar.pipeline.link_state import ALL, Link
from magnetar.pipeline.planner import BULK, TAIL
from magnetar.pipeline.replicate import Queries
from magnetar.pipeline.shared_state import Pipeline
from magnetar.spark_session import session
from magnetar.wire import pulsar_pb2 as pb

LEDGER = 7


class NullSource(FakeCluster):
    """Has `total` entries of one size in each of its topics, without holding them."""

    def __init__(self, name: str, size: int, total: int) -> None:
        super().__init__(name)
        self._entry = entry_bytes(size)
        self._total = total
        self._answers: dict[int, bytes] = {}

    def bulk_topic(self, name: str, to: str) -> None:
        """Create a topic that has everything behind its cursor."""
        with self.lock:
            topic = self.topics[name] = Topic(name, LEDGER, ledger=LEDGER)
            topic.cursors[to] = Cursor()
            self._touch(topic)

    def _topics(self, asked: pb.CommandGeoTopics) -> pb.BaseCommand:
        answer = super()._topics(asked)
        for state in answer.geo_topics_response.topics:
            left = self._total - 1 - state.cursor.c.entry
            state.last.CopyFrom(pb.GeoPosition(ledger=LEDGER, entry=self._total - 1))
            state.pending_entries, state.pending_bytes = left, left * len(self._entry)
        return answer

    def _read(self, asked: pb.CommandGeoRead) -> tuple[pb.BaseCommand, bytes]:
        first = asked.after.entry + 1
        count = min(self._total - first, -(-asked.bytes_max // len(self._entry)))
        answer = pb.BaseCommand(type=pb.GEO_READ_RESPONSE)
        read = answer.geo_read_response
        read.request_id = asked.request_id
        numbers = range(first, first + count)
        read.ledgers.extend([LEDGER] * count)
        read.entries.extend(numbers)
        read.first_indexes.extend(numbers)
        read.counts.extend([1] * count)
        read.flags.extend([0] * count)
        read.publish_times.extend([time.time_ns() // 1_000_000] * count)
        read.sizes.extend([len(self._entry)] * count)
        read.end.CopyFrom(pb.GeoPosition(ledger=LEDGER, entry=first + count - 1))
        if count not in self._answers:
            self._answers[count] = self._entry * count
        return answer, self._answers[count]


class NullDestination(FakeCluster):
    """Judges by the chain rule and counts; stores nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.entries = self.bytes = 0

    def _append(self, asked: pb.CommandGeoAppend, payload: bytes) -> pb.BaseCommand:
        answer = pb.BaseCommand(type=pb.GEO_APPEND_RESPONSE)
        response = answer.geo_append_response
        response.request_id = asked.request_id
        with self.lock:
            topic = self.topics[asked.topic]
            persisted = topic.persisted.get(asked.source, Position(-1, -1))
            last = Position(asked.ledgers[-1], asked.entries[-1])
            if Position(asked.p.ledger, asked.p.entry) > persisted:
                response.refused = True
            elif last > persisted:
                self.entries += len(asked.sizes)
                self.bytes += len(payload)
                topic.persisted[asked.source] = last
            response.persisted.CopyFrom(wire(topic.persisted.get(asked.source, persisted)))
        return answer


def serve(pipe: "multiprocessing.connection.Connection", size: int, total: int, topics: int, tail: bool) -> None:
    """The process of the null brokers: tells its addresses, then answers questions about what arrived."""
    target = FakeCluster("b") if tail else NullDestination("b")
    source = FakeCluster("a") if tail else NullSource("a", size, total)
    target.start()
    source.start()
    for number in range(topics):
        name = f"persistent://public/default/bench-{number}"
        if isinstance(source, NullSource):
            source.bulk_topic(name, "b")
        else:
            source.create(name, links=("b",))
    pipe.send((source.address, target.address))
    while (question := pipe.recv()) is not None:
        if question == "arrived" and isinstance(target, NullDestination):
            pipe.send((target.entries, target.bytes))
        elif question == "publish":
            began = time.monotonic()
            name = "persistent://public/default/bench-0"
            before = len(target.identities(name, "a"))
            source.publish(name, entry_bytes(size))
            with target.lock:
                while name not in target.topics or len(target.topics[name].log) <= before:
                    target.lock.wait(30)
            pipe.send(time.monotonic() - began)


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=128 << 10, help="bytes of an entry")
    parser.add_argument("--total", type=int, default=0, help="entries in all (default: 2 GB)")
    parser.add_argument("--topics", type=int, default=2)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--one-query", action="store_true")
    parser.add_argument("--tail", action="store_true")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    total = options.total or (2 << 30) // options.entries // options.topics
    ours, theirs = multiprocessing.Pipe()
    brokers = multiprocessing.get_context("fork").Process(
        target=serve, args=(theirs, options.entries, total, options.topics, options.tail), daemon=True
    )
    brokers.start()
    if not ours.poll(10):
        sys.exit("the null brokers did not start")
    source, target = ours.recv()
    pipeline = Pipeline(
        (Link(0, "a", "b"),), {"a": source, "b": target}, TOKEN, session.cores_of(options.master), "bench"
    )
    folder = Path(tempfile.mkdtemp(prefix="magnetar-bench-"))
    spark = session.build(
        app="bench", master=options.master, log=folder / "spark.log",
        settings=dict(setting.split("=", 1) for setting in options.conf),
    )  # fmt: skip
    coordinator = PipelineCoordinator(pipeline, print).start()
    queries = Queries(spark, coordinator, (ALL,) if options.one_query else (TAIL, BULK), folder / "checkpoint", print)
    try:
        measure = tail_latency if options.tail else catch_up
        result = measure(ours, queries, coordinator, options.samples, total * options.topics)
        print(
            json.dumps({"entry_bytes": options.entries, "topics": options.topics, "master": options.master, **result})
        )
    finally:
        coordinator.drain(10_000)
        queries.stop()
        session.stop(spark, folder / "spark.log")
        coordinator.stop()
        ours.send(None)
        brokers.join(5)


def catch_up(
    brokers: "multiprocessing.connection.Connection",
    queries: Queries,
    coordinator: PipelineCoordinator,
    samples: int,
    total: int,
) -> dict[str, float]:
    """Throughput between the first tenth and the last entry."""
    began, first = 0.0, (0, 0)
    while True:
        queries.tend()
        brokers.send("arrived")
        entries, size = brokers.recv()
        if entries >= total // 10 and not began:
            began, first = time.monotonic(), (entries, size)
        if entries >= total:
            break
        time.sleep(0.02)
    seconds = time.monotonic() - began
    return {
        "mb_per_s": round((size - first[1]) / seconds / 1e6, 1),
        "entries_per_s": round((entries - first[0]) / seconds),
        "batches": sum(coordinator.batches.values()),
        "seconds": round(seconds, 2),
    }


def tail_latency(
    brokers: "multiprocessing.connection.Connection",
    queries: Queries,
    coordinator: PipelineCoordinator,
    samples: int,
    total: int,
) -> dict[str, float]:
    """Publish one entry, wait for it, and so on; the first ten warm up."""
    times = []
    for _ in range(samples + 10):
        queries.tend()
        brokers.send("publish")
        times.append(brokers.recv())
        time.sleep(0.03)
    times = sorted(times[10:])
    return {
        "p50_ms": round(statistics.median(times) * 1000),
        "p99_ms": round(times[int(len(times) * 0.99) - 1] * 1000),
        "samples": len(times),
    }


if __name__ == "__main__":
    main()
