"""The generator of `bench.peers`: official clients that publish or consume, timed; the same program for every broker.

    python -m bench.peers_client produce --url URL --topics T... --messages N --size BYTES [--batch] [--rate PER_S]
    python -m bench.peers_client consume --url URL --topics T... --subscriptions F --messages N [--reset]

A payload begins with the monotonic clock when it was handed to the client, which all processes of a machine share, so that a
consumer in another process can tell how old it is. `consume` prints "ready" when it is subscribed; both end with a line of
JSON.
"""

import argparse
import json
import os
import struct
import threading
import time
from array import array
from typing import Any, Final, NoReturn

import pulsar

from bench.loadgen import percentiles

STAMP: Final = struct.Struct("<q")
PATIENCE_MS: Final = 60_000
RECEIVER_QUEUE: Final = 10_000
PENDING_MAX: Final = 5_000


def quiet() -> pulsar.FileLogger:
    """The client's own logger, of errors alone: beside one of Python's, client 3.13 writes every message of several topics to
    the pipe that is read at the end, and waits there.
    """
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr")


def produce(options: argparse.Namespace) -> dict[str, Any]:
    """Publish `messages` in turn to all topics; until every receipt is there."""
    client = pulsar.Client(options.url, logger=quiet(), io_threads=1)
    producers = [
        client.create_producer(
            topic,
            batching_enabled=options.batch,
            batching_max_messages=1000,
            batching_max_publish_delay_ms=1 if options.rate else 5,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            max_pending_messages_across_partitions=PENDING_MAX * 100,
        )
        for topic in options.topics
    ]
    filling = bytes(options.size - STAMP.size)
    latencies = array("d")
    failures: list[Any] = []

    def receipt(handed: int) -> Any:
        def came(result: Any, _: Any) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)
            latencies.append((time.monotonic_ns() - handed) / 1e9)

        return came

    started = time.monotonic_ns()
    for number in range(options.messages):
        if options.rate:
            due = started + int(number / options.rate * 1e9)
            while (left := due - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
        now = time.monotonic_ns()
        producers[number % len(producers)].send_async(STAMP.pack(now) + filling, receipt(now))
    for producer in producers:
        producer.flush()
    seconds = (time.monotonic_ns() - started) / 1e9
    client.close()
    if failures or len(latencies) != options.messages:
        raise SystemExit(f"{len(failures)} of {options.messages} messages failed: {failures[:1]}")
    return {
        "messages_per_s": options.messages / seconds,
        "seconds": seconds,
        "receipt_ms": percentiles(latencies),
    }


def consume(options: argparse.Namespace) -> dict[str, Any]:
    """Receive and acknowledge all messages of all topics in each of the subscriptions."""
    client = pulsar.Client(options.url, logger=quiet(), io_threads=1)
    position = pulsar.InitialPosition.Earliest
    consumers = [
        client.subscribe(
            options.topics if len(options.topics) > 1 else options.topics[0],
            f"bench-{number}",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=position,
            receiver_queue_size=RECEIVER_QUEUE,
        )
        for number in range(options.subscriptions)
    ]
    print("ready", flush=True)
    ages = [array("d") for _ in consumers]
    firsts = [0] * len(consumers)
    lasts = [0] * len(consumers)

    def drain(which: int) -> None:
        consumer, mine = consumers[which], ages[which]
        while len(mine) < options.messages:
            message = consumer.receive(PATIENCE_MS)
            now = time.monotonic_ns()
            if not mine:
                firsts[which] = now
            (handed,) = STAMP.unpack_from(message.data())
            mine.append((now - handed) / 1e9)
            consumer.acknowledge(message)
        lasts[which] = time.monotonic_ns()

    threads = [threading.Thread(target=drain, args=(which,)) for which in range(len(consumers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    if any(len(mine) != options.messages for mine in ages):
        raise SystemExit(f"received {[len(mine) for mine in ages]} of {options.messages} messages each")
    every = array("d")
    for mine in ages:
        every.extend(mine)
    seconds = (max(lasts) - min(firsts)) / 1e9
    return {"messages_per_s": len(every) / seconds, "seconds": seconds, "age_ms": percentiles(every)}


def main() -> NoReturn:
    """Parse, do, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["produce", "consume"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--topics", nargs="+", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--batch", action="store_true")
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--subscriptions", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(produce(options) if options.what == "produce" else consume(options)), flush=True)
    os._exit(0)  # everything is measured and said; the client's C++ threads can abort a process that takes itself apart


if __name__ == "__main__":
    main()
