"""Spark with `format("pulsar")`: a session with its options, and topics with numbered messages."""

from pathlib import Path
from typing import Any

import pulsar

from magnetar.spark import register
from tests.support.brokers import BrokerProcess


class Session:
    """The session with its options filled in."""

    def __init__(self, spark: Any, broker: BrokerProcess, folder: Path) -> None:
        register(spark)
        self.spark, self.url, self.folder = spark, broker.url, folder

    def read(self, **options: str) -> Any:
        return self.spark.read.format("pulsar").options(**{"service.url": self.url, **options}).load()

    def stream(self, **options: str) -> Any:
        return self.spark.readStream.format("pulsar").options(**{"service.url": self.url, **options}).load()

    def values(self, topic: str, **options: str) -> list[bytes]:
        return [bytes(row.value) for row in self.read(topic=topic, **options).select("value").collect()]

    def writing(self, frame: Any, topic: str, name: str = "query", **options: str) -> Any:
        return frame.writeStream.format("pulsar").options(
            **{"service.url": self.url, "topic": topic, "checkpointLocation": str(self.folder / name), **options}
        )


def publish(client: pulsar.Client, topic: str, values: list[bytes], **options: Any) -> None:
    """By the official client, in batches unless told otherwise."""
    keys = options.pop("keys", None)
    producer = client.create_producer(
        topic,
        **{"batching_enabled": True, "batching_max_publish_delay_ms": 5, "block_if_queue_full": True, **options},
    )
    for number, value in enumerate(values):
        key = keys[number] if keys else None
        producer.send_async(value, lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]
