"""Links between clusters that are far apart: a delaying proxy stands between the pipeline and one cluster, or both.

    python -m bench.links_wide [--quick]

The pipeline is near one of the clusters, or near neither. Producer and consumer are near their own clusters, so a latency is the
way of the message alone: half a round trip for each cluster that is far from the pipeline. Brokers, proxies, Spark with its
workers, producer and consumer share this machine's processors. What was measured in one run can be compared.
"""

import argparse
import statistics
import sys
import threading
import time
from typing import Any, Final, NamedTuple

import pulsar
from tests.support.brokers import World, eventually

from bench.broker import load
from bench.link_latency import Flow
from bench.links import client_of, lag
from bench.measuring import ONE_LINK, clusters, latencies
from bench.results import Figure, store

LINKS: Final = f'{ONE_LINK}[replication]\ntail = "long-batches"\n'
LARGE_BYTES: Final = 100_000
LARGE: Final = 3_000
SMALL: Final = 100_000
RATES: Final = (5, 50, 500)


class Scene(NamedTuple):
    """Which clusters are far from the pipeline, and how far."""

    label: str
    far: str
    round_trip_ms: int

    @property
    def one_way_ms(self) -> int:
        """The time that a message needs for the way."""
        return len(self.far) * self.round_trip_ms // 2


SCENES: Final = (
    Scene("source far", "a", 80),
    Scene("destination far", "b", 80),
    Scene("both far", "ab", 80),
    Scene("source far", "a", 200),
    Scene("destination far", "b", 200),
)


def large_at_once(world: World, topic: str, count: int) -> float:
    """Messages of 100 KB to one topic, as fast as possible; MB/s from the first publish until all are confirmed."""
    source = world["a"]
    address = f"127.0.0.1:{source.pulsar_port}"
    load(address, topic, "--messages", "1", "--size", "16")
    eventually(lambda: lag(source, "b") == 0, within_s=60)
    begin = time.perf_counter()
    load(address, topic, "--messages", str(count), "--size", str(LARGE_BYTES), "--window", "50")
    eventually(lambda: lag(source, "b") == 0, within_s=300, every_s=0.02)
    return count * LARGE_BYTES / (time.perf_counter() - begin) / 1e6


def small_at_once(world: World, topic: str) -> dict[str, float]:
    """Messages of 1 KB from an official producer that makes batches; the rates of publishing and of arriving."""
    clients = [client_of(world[name]) for name in "ab"]
    consumer = clients[1].subscribe(
        topic, "bench", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=5000
    )
    producer = clients[0].create_producer(
        topic, max_pending_messages=20_000, block_if_queue_full=True, batching_max_publish_delay_ms=5,
        batching_max_allowed_size_in_bytes=128 << 10,
    )  # fmt: skip
    producer.send(b"first")
    consumer.acknowledge(consumer.receive(60_000))

    def receive() -> None:
        for number in range(SMALL):
            message = consumer.receive(60_000)
            if number % 500 == 499:
                consumer.acknowledge_cumulative(message)

    thread = threading.Thread(target=receive)
    begin = time.perf_counter()
    thread.start()
    for _ in range(SMALL):
        producer.send_async(b"x" * 1024, lambda _result, _id: None)
    producer.flush()
    published = time.perf_counter() - begin
    thread.join()
    arrived = time.perf_counter() - begin
    for client in clients:
        client.close()
    return {"published_per_s": SMALL / published, "arrived_per_s": SMALL / arrived}


def measure(scene: Scene, rounds: int, seconds: int) -> dict[str, Any]:
    """One pair of clusters at this distance."""
    found: dict[str, Any] = {}
    with clusters("ab", LINKS, far=dict.fromkeys(scene.far, scene.round_trip_ms / 2000)) as (world, _):
        flow = Flow(world, 1)
        flow.publish(300, 100)  # the JVM compiles, connections open
        for rate in RATES if scene.round_trip_ms == SCENES[0].round_trip_ms else RATES[1:2]:
            found[str(rate)] = latencies(flow.publish(max(30, rate * seconds), rate))
        flow.close()
        large_at_once(world, "warm", LARGE // 2)
        found["large"] = [large_at_once(world, f"large-{number}", LARGE) for number in range(rounds)]
        if scene.round_trip_ms == SCENES[0].round_trip_ms:
            found["small"] = small_at_once(world, "small")
    return found


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, 3 s for each rate; some 4 minutes")
    options = parser.parse_args()
    figures = []
    for scene in SCENES:
        found = measure(scene, 1 if options.quick else 3, 3 if options.quick else 10)
        name = f"{scene.label}, {scene.round_trip_ms} ms"
        for rate in RATES:
            if (one := found.get(str(rate))) is not None:
                aim = f"< {scene.one_way_ms + 15}"
                figures.append(Figure(f"{name}, {rate}/s: p50", one["p50_ms"], "ms", aim, one))
        aim = ">= 100" if scene.round_trip_ms == SCENES[0].round_trip_ms else ">= 60"
        figures.append(
            Figure(f"{name}, one topic of 100 KB messages", statistics.median(found["large"]), "MB/s", aim, found)
        )
        if (small := found.get("small")) is not None:
            share = small["arrived_per_s"] / small["published_per_s"]
            figures.append(Figure(f"{name}, 1 KB in batches: arrived", small["arrived_per_s"], "messages/s", "", small))
            figures.append(Figure(f"{name}, 1 KB in batches: share of the publish rate", share, "", "near 1", small))
    store("links_wide", figures, sys.argv)


if __name__ == "__main__":
    main()
