"""The Spark format `pulsar`: messages of 1 KB in and out of one broker, on local[2].

    python -m bench.spark_format                     400,000 messages
    python -m bench.spark_format --messages 100000

Sink: rows that Spark makes up, to topics with deduplication. Source: one of these topics to Spark's `noop` sink, value alone
and all columns, as a batch of two tasks and as a stream (its own count of rows and milliseconds). Beside them, without
Spark, in one process: the client of the format and the official one. Broker, JVM and workers share the machine's cores;
other load on it counts against every figure.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.brokers import BrokerProcess, World

from bench.results import Figure, store
from magnetar.spark import register
from magnetar.spark.client import Client, Reader
from magnetar.spark.connection import Access
from magnetar.spark.offsets import EARLIEST
from magnetar.spark.reading import Stretch, Task
from magnetar.spark_session import session

TOPIC = "persistent://public/default/bench"
SIZE = 1024


def rate(count: int, act: Callable[[], Any], repeats: int = 3) -> float:
    """Messages a second; the best of some, for everything else on the machine only takes away."""
    best = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        best = max(best, count / (time.perf_counter() - began))
    return best


def own_client(broker: BrokerProcess, count: int) -> None:
    """All messages as record batches, in this process."""
    client = Client(Access(broker.url))
    reader = Reader(client, TOPIC)
    last = reader.last()
    task = Task(client, Stretch(TOPIC, EARLIEST, last), ["value"], fail_on_data_loss=True, timeout_s=30)
    seen = sum(batch.num_rows for batch in task.batches())
    client.close()
    assert seen == count, (seen, count)


def official_client(broker: BrokerProcess, count: int) -> None:
    """The same by the official client, bytes of each message taken."""
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(broker.url, logger=logger)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=10_000)
    for _ in range(count):
        reader.read_next(30_000).data()
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=400_000)
    count = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = World(folder, ["solo"], "[deduplication]\nenabled = true\n").start()
        try:
            store("spark_format", measured(world["solo"], folder, count), sys.argv)
        finally:
            world.close()


def measured(broker: BrokerProcess, folder: Path, count: int) -> list[Figure]:
    """All figures."""
    spark = session.build(app="bench", master="local[2]", log=folder / "spark.log")
    register(spark)
    url = {"service.url": broker.url}
    rows = spark.range(0, count, 1, 2).selectExpr(
        f"cast(concat(repeat('x', {SIZE - 8}), lpad(cast(id as string), 8, '0')) as binary) value"
    )

    def write(topic: str, compression: str = "NONE") -> None:
        options = {"topic": topic, "pulsar.producer.compressionType": compression}
        rows.write.format("pulsar").options(**url, **options).mode("append").save()

    def read(*columns: str) -> None:
        frame = spark.read.format("pulsar").schema(", ".join(columns)) if columns else spark.read.format("pulsar")
        frame.options(**url, topic=TOPIC, minPartitions="2").load().write.format("noop").mode("append").save()

    checkpoints = iter(range(100))

    def stream(topics: str) -> float:
        frame = spark.readStream.format("pulsar").schema("value binary").options(**url, topics=topics)
        writer = frame.option("startingOffsets", "earliest").load().writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{next(checkpoints)}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = query.recentProgress
        return sum(one["numInputRows"] for one in progress) / sum(
            one["durationMs"]["triggerExecution"] / 1000 for one in progress
        )

    write(TOPIC + "-warm")
    numbers = iter(range(100))
    sink = rate(count, lambda: write(f"{TOPIC}-{next(numbers)}"), 2)
    sink_lz4 = rate(count, lambda: write(f"{TOPIC}-{next(numbers)}", "LZ4"), 1)
    write(TOPIC)
    read("value binary")
    figures = [
        Figure("sink", sink, "messages/s", "50,000", {"bytes": SIZE, "deduplication": True}),
        Figure("sink, LZ4", sink_lz4, "messages/s", "", {"bytes": SIZE, "deduplication": True}),
        Figure("source, batch of two tasks, value alone", rate(count, lambda: read("value binary")), "messages/s", "200,000"),
        Figure("source, batch of two tasks, all columns", rate(count, read), "messages/s"),
        Figure("source, stream of two topics", max(stream(f"{TOPIC},{TOPIC}-0") for _ in range(3)), "messages/s", "200,000"),
        Figure("client of the format, one process, no Spark", rate(count, lambda: own_client(broker, count)), "messages/s"),
        Figure("official client, one process, no Spark", rate(count, lambda: official_client(broker, count), 1), "messages/s"),
    ]  # fmt: skip
    session.stop(spark, folder / "spark.log")
    return figures


if __name__ == "__main__":
    main()
