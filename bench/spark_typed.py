"""Typed columns of the format `pulsar` beside raw values: real flights of 20 fields, in Avro and in JSON, on local[2].

    python -m bench.spark_typed                     330,000 messages of each kind
    python -m bench.spark_typed --messages 50000

The same bytes are read as binary and as columns. Beside them what one would write without typed columns: JSON as binary,
and Spark's own `from_json` over it.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pulsar
from examples.demo import flights, schema
from pyarrow import struct
from pyspark.sql import functions as f
from tests.support.brokers import BrokerProcess, World

from bench.results import Figure, store
from bench.spark_format import rate
from magnetar.schemas.types import Definition, SchemaType
from magnetar.spark import register
from magnetar.spark.columns import Columns, columns_of
from magnetar.spark.typed import Part, Run, Typed
from magnetar.spark_session import session

AVRO, JSON, OLD = (f"persistent://public/default/typed-{name}" for name in ("avro", "json", "versions"))


def payloads(count: int) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Flights in Avro, in JSON, and in Avro with the older schema."""
    lines = flights.rows(flights.source())
    columns = next(lines)
    known = [flights.flight(number, dict(zip(columns, row, strict=True))) for number, row in zip(range(count), lines)]  # noqa: B905
    return (
        [schema.encode(one, "new") for one in known],
        [json.dumps(one, separators=(",", ":")).encode() for one in known],
        [schema.encode(one, "old") for one in known],
    )


def publish(client: pulsar.Client, topic: str, brought: Any, several: list[bytes]) -> None:
    """By the official client, in batches."""
    producer = client.create_producer(
        topic, schema=brought, batching_enabled=True, batching_max_messages=1000, block_if_queue_full=True
    )
    for one in several:
        producer.send_async(one, lambda *_: None)
    producer.flush()
    producer.close()


class Json(pulsar.schema.JsonSchema):  # type: ignore[misc]
    """Announces the schema; values are encoded already."""

    def __init__(self) -> None:
        self._schema_info = pulsar._pulsar.SchemaInfo(
            pulsar._pulsar.SchemaType.JSON, "JSON", json.dumps(schema.definition("new"))
        )

    def encode(self, obj: bytes) -> bytes:
        """As it is."""
        return obj


def measured(broker: BrokerProcess, folder: Path, count: int) -> list[Figure]:
    """All figures."""
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    client = pulsar.Client(broker.url, logger=logger)
    new, as_json, old = payloads(count)
    publish(client, AVRO, schema.official("new"), new)
    publish(client, JSON, Json(), as_json)
    for start in range(0, count, 10_000):  # versions in turns
        age, several = ("old", old) if start // 10_000 % 2 else ("new", new)
        publish(client, OLD, schema.official(age), several[start : start + 10_000])  # type: ignore[arg-type]
    client.close()
    spark = session.build(app="bench", master="local[2]", log=folder / "spark.log")
    register(spark)

    def frame(topic: str, columns: str = "") -> Any:
        reader = spark.read.format("pulsar").options(
            **{"service.url": broker.url, "topic": topic, "minPartitions": "2"}
        )
        return (reader.schema(columns) if columns else reader).load()

    def read(topic: str, columns: str = "") -> float:
        def act() -> None:
            frame(topic, columns).write.format("noop").mode("append").save()

        return rate(count, act)

    def parsed() -> None:
        fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame(JSON).schema
                           if not field.name.startswith("__"))  # fmt: skip
        made = frame(JSON, "value binary").select(f.from_json(f.col("value").cast("string"), fields).alias("one"))
        made.select("one.*").write.format("noop").mode("append").save()

    fields = schema.definition("new")["fields"]
    types = {field.name: field.dataType.simpleString() for field in frame(AVRO).schema}
    assert list(types)[: len(fields)] == [field["name"] for field in fields]
    every = ", ".join(f"{name} {kind}" for name, kind in types.items() if not name.startswith("__"))
    few = "carrier string, dep_delay int, origin string"
    assert frame(AVRO, few).where("dep_delay > 60").count() == frame(JSON, few).where("dep_delay > 60").count() > 0
    detail = {"fields": len(fields), "avro_bytes": len(new[0]), "json_bytes": len(as_json[0])}
    read(AVRO, "value binary")
    figures = [
        Figure("Avro, raw value", read(AVRO, "value binary"), "messages/s", "", detail),
        Figure("Avro, all fields as columns", read(AVRO, every), "messages/s", "", detail),
        Figure("Avro, three fields as columns", read(AVRO, few), "messages/s"),
        Figure("Avro, all fields, two versions in turns", read(OLD, every), "messages/s"),
        Figure("JSON, raw value", read(JSON, "value binary"), "messages/s"),
        Figure("JSON, all fields as columns", read(JSON, every), "messages/s"),
        Figure("JSON, three fields as columns", read(JSON, few), "messages/s"),
        Figure("JSON, raw value and Spark's from_json", rate(count, parsed), "messages/s"),
    ]
    session.stop(spark, folder / "spark.log")
    return figures


def decoding(count: int) -> list[Figure]:
    """Microseconds a message to make columns of values, in this process, without Spark and broker; the best of five."""
    new, as_json, old = (several[:16_384] for several in payloads(min(count, 16_384)))
    several: dict[bytes, Definition] = {
        version: Definition(SchemaType.AVRO, json.dumps(schema.definition(age)).encode())  # type: ignore[arg-type]
        for version, age in ((bytes(8), "old"), (bytes(7) + b"\1", "new"))
    }
    newest = bytes(7) + b"\1"
    columns = columns_of(several[newest])
    assert columns is not None
    few = {name: columns[name] for name in ("carrier", "dep_delay", "origin")}
    mixed: list[bytes] = [one for pair in zip(old, new, strict=True) for one in pair][: len(new)]
    in_json = {newest: Definition(SchemaType.JSON, several[newest].data)}

    def spent(wanted: Columns, known: dict[bytes, Definition], values: list[bytes], runs: list[Run]) -> float:
        typed = Typed(wanted, known.get)
        best = 1e9
        for _ in range(5):
            began = time.perf_counter()
            typed.arrays(values, [], runs)
            best = min(best, time.perf_counter() - began)
        return best / len(values) * 1e6

    def by_value() -> float:
        part = Part(several[newest], struct(list(columns.items())))
        began = time.perf_counter()
        part._avro_by_value(list(new))
        return (time.perf_counter() - began) / len(new) * 1e6

    one = [Run(1, 0, newest, len(new))]
    turns = [Run(1, number, [bytes(8), newest][number % 2], 1) for number in range(len(mixed))]
    return [
        Figure("decode Avro, all fields", spent(columns, several, new, one), "us/message"),
        Figure("decode Avro, three fields", spent(few, several, new, one), "us/message"),
        Figure(
            "decode Avro, all fields, every other message of the older version",
            spent(columns, several, mixed, turns),
            "us/message",
        ),
        Figure("decode Avro, all fields, value by value (fastavro)", by_value(), "us/message"),
        Figure("decode JSON, all fields", spent(columns, in_json, as_json, one), "us/message"),
        Figure("decode JSON, three fields", spent(few, in_json, as_json, one), "us/message"),
    ]


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=330_000)
    parser.add_argument("--quick", action="store_true", help="50,000 messages")
    parser.add_argument("--decoding", action="store_true", help="only what needs no Spark")
    given = parser.parse_args()
    count = 50_000 if given.quick else given.messages
    alone = decoding(count)
    if given.decoding:
        store("spark_typed", alone, sys.argv)
        return
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), ["solo"]).start()
        try:
            store("spark_typed", [*alone, *measured(world["solo"], Path(name), count)], sys.argv)
        finally:
            world.close()


if __name__ == "__main__":
    main()
