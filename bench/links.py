"""Figures of links between real brokers through the real pipeline: catching up, the tail, many topics, a dead cluster, idling.

    python -m bench.links [--quick]
    python -m bench.links --peer pulsar ...     # next to Apache Pulsar's geo-replication: bench/links_pulsar.py

Brokers, the Spark driver with its workers, the load generator and the measuring consumer share this machine's processors:
an absolute figure says as much about the machine as about Magnetar. What was measured in one run can be compared.
"""

import argparse
import logging
import statistics
import sys
import threading
import time
from typing import Any

import pulsar
from tests.support.brokers import BrokerProcess, World, eventually
from tests.support.pipelines import Pipeline

from bench.broker import KIB, load
from bench.measuring import ONE_LINK, ProcessorTime, clusters, latencies, paced, running
from bench.results import Figure, store
from magnetar.pipeline.metrics_file import former

TAIL_RATE = 1000
CATCH_UP_S = 300
"""A deadline for the slowest machine."""


def client_of(broker: BrokerProcess) -> pulsar.Client:
    """An official client that logs errors only."""
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(broker.url, operation_timeout_seconds=30, logger=logger)


def lag(broker: BrokerProcess, target: str, key: str = "lag_messages") -> int:
    """What a link has still to send."""
    return sum(int(link[key]) for link in broker.rest("GET", "/geo/v1/links") if link["target"] == target)


def full_name(topic: str) -> str:
    """As administration names it."""
    return f"persistent://public/default/{topic}"


def catch_up(world: World, topic: str, size: int, count: int) -> dict[str, Any]:
    """Publish a backlog while the link is paused, then time how long it takes to be over there."""
    source = world["a"]
    load(f"127.0.0.1:{source.pulsar_port}", topic, "--messages", "1", "--size", "16")
    eventually(lambda: lag(source, "b") == 0, within_s=60)
    source.rest("POST", f"/geo/v1/links/b/pause?topic={full_name(topic)}")
    load(f"127.0.0.1:{source.pulsar_port}", topic, "--messages", str(count), "--size", str(size), "--window", "200")
    started = time.perf_counter()
    source.rest("POST", f"/geo/v1/links/b/resume?topic={full_name(topic)}")
    eventually(lambda: lag(source, "b") == 0, within_s=CATCH_UP_S, every_s=0.01)
    seconds = time.perf_counter() - started
    return {
        "entries": count,
        "entry_bytes": size,
        "seconds": seconds,
        "entries_per_s": count / seconds,
        "mb_per_s": count * size / seconds / 1e6,
    }


def one_link(scale: int, figures: list[Figure]) -> None:
    """Two brokers, one link: what catching up reaches when nothing else is going on. The first round warms up the JVM."""
    with clusters("ab", ONE_LINK) as (world, _):
        for label, size, count, unit, key, aim in (
            ("128 KB", 128 * KIB, 8000 // scale, "MB/s", "mb_per_s", ">= 100"),
            ("1 KB", KIB, 400_000 // scale, "entries/s", "entries_per_s", ">= 50000"),
        ):
            catch_up(world, f"warm-{size}", size, count // 2)
            rounds = [catch_up(world, f"one-{size}-{number}", size, count) for number in range(3)]
            median = statistics.median(one[key] for one in rounds)
            figures.append(
                Figure(f"one link, backlog of {label} entries, median of 3", median, unit, aim, {"rounds": rounds})
            )


def tail(world: World, topic: str, count: int) -> dict[str, Any]:
    """Publish at a steady rate; from the publish time in A to the arrival at a consumer in B."""
    client = client_of(world["b"])
    consumer = client.subscribe(
        topic, "bench", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=5000
    )
    address = f"127.0.0.1:{world['a'].pulsar_port}"
    load(address, topic, "--messages", "50", "--size", "1024", "--rate", "50")
    for _ in range(50):
        consumer.acknowledge(consumer.receive(60_000))
    ages: list[float] = []

    def receive() -> None:
        for _ in range(count):
            message = consumer.receive(60_000)
            ages.append(time.time() * 1000 - message.publish_timestamp())
            consumer.acknowledge(message)

    thread = threading.Thread(target=receive)
    thread.start()
    # The generator's publish time is made when a message is built, so the measuring producer is an official client.
    publisher = client_of(world["a"])
    producer = publisher.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    payload = b"x" * 1024
    for _ in paced(count, TAIL_RATE):
        producer.send_async(payload, lambda _result, _id: None)
    producer.flush()
    thread.join()
    publisher.close()
    client.close()
    return {"messages": len(ages), "rate": TAIL_RATE, **latencies(ages)}


def batch_ms(world: World, seconds: float) -> float:
    """Median duration of the micro-batches of the last while, as the pipeline's own metrics tell."""
    import json

    cut = time.time() * 1000 - seconds * 1000
    newest = world.folder / "data" / "pipeline.jsonl"
    lines = [line for path in (former(newest), newest) if path.exists() for line in path.read_text().splitlines()]
    values = [
        link["latency_ms"]
        for line in lines
        if (record := json.loads(line))["at_ms"] >= cut
        for link in record["links"].values()
        if link["latency_ms"]
    ]
    return statistics.median(values) if values else 0.0


def idle(pipeline: Pipeline, world: World, seconds: float) -> tuple[float, float]:
    """Share of one core that the pipeline, and that all brokers, use while nothing happens."""
    spent = [ProcessorTime(*running(pipeline)), ProcessorTime(*running(*world.brokers.values()))]
    before = [one.seconds() for one in spent]
    time.sleep(seconds)  # the measurement is of a span of time in which nothing happens
    of_pipeline, of_brokers = ((one.seconds() - then) / seconds for one, then in zip(spent, before, strict=True))
    return of_pipeline, of_brokers


def many_topics(world: World, topics: int, count: int) -> dict[str, Any]:
    """The tail of one topic, before and after its namespace has many others."""
    before = tail(world, "busy-alone", count)
    for number in range(topics):
        world["a"].rest("PUT", f"/admin/v2/persistent/public/default/quiet-{number}")
    eventually(lambda: len(world["b"].rest("GET", "/admin/v2/persistent/public/default")) >= topics, within_s=120)
    after = tail(world, "busy-among-many", count)
    return {"alone": before, "among": after, "topics": topics, "ratio": after["p50_ms"] / before["p50_ms"]}


def dead_cluster(world: World, count: int) -> dict[str, Any]:
    """The tail of a -> b while c answers nothing: stopped with SIGSTOP, its port still open."""
    import signal

    before = tail(world, "while-c-lives", count)
    process = world["c"].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        eventually(
            lambda: any(
                link["target"] == "c" and link["state"] == "down" for link in world["a"].rest("GET", "/geo/v1/links")
            ),
            within_s=60,
        )
        after = tail(world, "while-c-is-dead", count)
    finally:
        process.send_signal(signal.SIGCONT)
    return {"before": before, "after": after, "ratio": after["p50_ms"] / before["p50_ms"]}


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages")
    parser.add_argument("--peer", choices=["pulsar"])
    options, more = parser.parse_known_args()
    if options.peer:
        from bench import links_pulsar

        links_pulsar.main(sys.argv[1:])
        return
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    scale = 4 if options.quick else 1
    figures: list[Figure] = []
    one_link(scale, figures)
    with clusters("abc") as (world, pipeline):
        load(f"127.0.0.1:{world['a'].pulsar_port}", "warm", "--messages", "1000", "--size", "1024")
        eventually(lambda: lag(world["a"], "b") == 0, within_s=60)
        idle(pipeline, world, 5)  # what the load left to do (compiling, collecting) is not idling
        of_pipeline, of_brokers = idle(pipeline, world, 20)
        figures.append(Figure("idle: pipeline, 6 links", of_pipeline * 100, "% of a core", "< 2"))
        figures.append(Figure("idle: three brokers together", of_brokers * 100, "% of a core"))
        large = catch_up(world, "large", 128 * KIB, 8000 // scale)
        figures.append(
            Figure("one of two links of a topic, backlog of 128 KB entries", large["mb_per_s"], "MB/s", "", large)
        )
        small = catch_up(world, "small", KIB, 200_000 // scale)
        figures.append(
            Figure(
                "one of two links of a topic, backlog of 1 KB entries",
                small["entries_per_s"],
                "entries/s",
                "",
                small,
            )
        )
        end = tail(world, "tail", 20_000 // scale)
        figures.append(Figure("publish in a to consumer in b, p50", end["p50_ms"], "ms", "< 300", end))
        figures.append(Figure("publish in a to consumer in b, p99", end["p99_ms"], "ms", "< 800"))
        dead = dead_cluster(world, 10_000 // scale)
        figures.append(Figure("p50 with one of three clusters dead / before", dead["ratio"], "ratio", "< 1.1", dead))
        many = many_topics(world, 1000, 10_000 // scale)
        figures.append(Figure("p50 among 1,000 quiet topics / alone", many["ratio"], "ratio", "< 1.2", many))
    store("links", figures, sys.argv)


if __name__ == "__main__":
    main()
