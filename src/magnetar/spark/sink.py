"""The writers of the format `pulsar`: rows become messages, with producer names and sequence ids that are the same when
a task is repeated.

    producer name    <producerName or "spark">-<query id>-<task number>
    sequence id      <batch id> * 2^31 + <number of the row in the task>

Entries are cut by rows and bytes only, never by time or by the arrival of Spark's batches, so a repeated task makes the
same entries.
"""

import base64
import itertools
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from magnetar.core.errors import ConfigError, NameNotValid
from magnetar.core.names import TopicName
from magnetar.spark.client import Client, take
from magnetar.spark.compression import compress
from magnetar.spark.options import WriteOptions
from magnetar.spark.producing import NotWritten, Producer
from magnetar.spark.topics import retried
from magnetar.spark_session.worker import settle
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import MESSAGES_PER_BATCH_MAX
from magnetar.wire.varint import varint

logger: Final = logging.getLogger("magnetar.spark")

ROWS_PER_TASK_MAX: Final = 1 << 31
"""A ceiling: rows of one task in one batch are numbered by 31 bits, which leaves 32 for the batch."""

SORTED_BYTES_MAX: Final = 1 << 30
"""A ceiling on a task's rows with rowOrder=sorted, which holds them in memory."""

TOPICS_PER_TASK_MAX: Final = 1000
"""A ceiling on different topics (partitions) in a task's rows: each is a producer with an entry that is being filled."""

KEYLESS_RUN: Final = 1000
"""Rows without a key go to one partition in runs of this length, so that they share entries."""

COLUMNS: Final = {
    "value": ("binary", "string"),
    "__key": ("binary", "string"),
    "__topic": ("string",),
    "__eventTime": ("timestamp", "timestamp_ntz", "bigint"),
    "__messageProperties": ("map<string,string>",),
}
"""The columns that can be written, and their types."""

METADATA_BYTES: Final = 1024
"""Room for the metadata of an entry, which brokers count: a producer's name and some numbers."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's local properties of a task in a streaming query."""


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Whether rows of this kind can be written.

    Raises:
        ConfigError: one line that names the column.
    """
    types = {field.name: field.dataType.simpleString() for field in schema}
    for name, kind in types.items():
        if name not in COLUMNS:
            raise ConfigError(
                f"column {name} cannot be written: the columns are {', '.join(COLUMNS)}; put the message into value "
                "(to_json(struct(...)), to_avro)"
            )
        if kind not in COLUMNS[name]:
            raise ConfigError(f"column {name} is {kind}: use {' or '.join(COLUMNS[name])}")
    if "value" not in types:
        raise ConfigError("column value is missing: it is what the message holds, binary or string")
    if not options.topic and "__topic" not in types:
        raise ConfigError("no topic: give the option topic, or a column __topic")
    if options.topic and "__topic" in types:
        raise ConfigError("option topic and column __topic contradict each other: give one of them")


@dataclass
class Written(WriterCommitMessage):
    """The result of a task.

    Attributes:
        rows: rows that were published, or recognised by the broker as published before.
        duplicates: entries that the broker had already.
        unprotected: topics that do not deduplicate.
    """

    rows: int
    duplicates: int
    unprotected: tuple[str, ...]


_warned: set[str] = set()


def _warn(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Warn once of topics that do not deduplicate."""
    topics = {topic for message in messages if isinstance(message, Written) for topic in message.unprotected}
    for topic in sorted(topics - _warned):
        _warned.add(topic)
        logger.warning(
            "topic %s does not deduplicate: rows are written at least once. To have them once: "
            "magnetar topics set-deduplication %s on (or its namespace)", topic, topic,
        )  # fmt: skip


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`: retried tasks add nothing; the same write run again adds nothing if it has the same
    `producerName`.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._run = options.producer or f"spark-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        settle()
        properties, task = _task()
        if self._options.producer and QUERY_ID in properties:  # inside foreachBatch
            return write_rows(
                self._options, f"{self._run}-{properties[QUERY_ID]}-{task}", int(properties[BATCH_ID]), task, iterator
            )
        return write_rows(self._options, f"{self._run}-{task}", 0, task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks wrote."""
        _warn(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: effectively once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        settle()
        properties, task = _task()
        name = f"{self._options.producer or 'spark'}-{properties[QUERY_ID]}-{task}"
        return write_rows(self._options, name, int(properties[BATCH_ID]), task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a batch wrote."""
        _warn(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Written rows stay; the batch will be run again and adds the missing ones."""


def _task() -> tuple[dict[str, str], int]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return dict(context._localProperties or {}), context.partitionId()


def write_rows(options: WriteOptions, name: str, batch: int, task: int, batches: Iterator[pa.RecordBatch]) -> Written:
    """Publish rows.

    Args:
        options: the options.
        name: the producer's name.
        batch, task: numbers of the micro-batch (0 for a batch write) and of the task.
        batches: the rows.

    Raises:
        NotWritten, ConfigError: one line.
    """
    if options.deduplication == "off":
        name = ""
    timeout_s = options.send_timeout_ms / 1000
    writer = RowWriter(options, take(options.access, patience_s=timeout_s), name, batch << 31, task)
    try:
        for rows in _sorted(batches) if options.ordered else batches:
            writer.add(rows)
        return writer.finish()
    finally:
        writer.close()


def _sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows of a task in the order of their content, which is the same whatever order they came in."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > SORTED_BYTES_MAX:
            raise NotWritten(
                f"a task has more than {SORTED_BYTES_MAX} bytes of rows, too many for rowOrder=sorted: make more partitions"
            )
    if not held:
        return
    table = pa.Table.from_batches(held)
    keys = {name: table[name] for name in COLUMNS if name in table.column_names}
    properties = keys.pop("__messageProperties", None)
    if properties is not None:
        keys["properties"] = pa.chunked_array(
            [pa.array([str(sorted(one or [])) for one in properties.to_pylist()], pa.string())]
        )
    order = pc.sort_indices(pa.table(keys), sort_keys=[(key, "ascending") for key in keys])
    yield from table.take(order).combine_chunks().to_batches(max_chunksize=65_536)


class Target:
    """One partition of a topic in one task: the entry that is being filled, and its producer."""

    def __init__(self, options: WriteOptions, producer: Producer) -> None:
        self.producer = producer
        self._options = options
        # More than the broker takes in one entry would be refused, however small the rows are.
        self._messages_max = min(options.messages_max, MESSAGES_PER_BATCH_MAX)
        self._bytes_max = min(options.bytes_max, producer.message_bytes_max - METADATA_BYTES)
        self._parts: list[Any] = []
        self._count = self._bytes = 0
        self._first = self._last = 0
        self._settled = producer.last

    def add(self, sequence: int, head: bytes, value: Any, size: int) -> None:
        """One message: its metadata with both sizes in front, and its bytes."""
        if self._count and (self._first <= self._settled < sequence or self._bytes + size > self._bytes_max):
            self.flush()
        if not self._count:
            self._first = sequence
        self._last = sequence
        self._parts += (head, value)
        self._count += 1
        self._bytes += size
        if self._count >= self._messages_max:
            self.flush()

    def flush(self) -> None:
        """Send the entry that is being filled."""
        if not self._count:
            return
        plain = b"".join(self._parts)
        metadata = pb.MessageMetadata(
            producer_name=self.producer.name, sequence_id=self._first, highest_sequence_id=self._last,
            publish_time=time.time_ns() // 1_000_000, num_messages_in_batch=self._count, uncompressed_size=len(plain),
        )  # fmt: skip
        if self._options.compression:
            metadata.compression = self._options.compression
        payload = compress(self._options.compression, plain)
        self._parts, self._count, self._bytes = [], 0, 0
        self.producer.send(metadata, payload)


class RowWriter:
    """Turns the rows of one task into messages."""

    def __init__(self, options: WriteOptions, client: Client, name: str, base: int, task: int) -> None:
        self._options, self._client, self._name = options, client, name
        self._base, self._task = base, task
        self._row = 0
        self._targets: dict[str, Target] = {}
        self._partitions: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows in their order."""
        names = batch.schema.names
        values = _views(batch.column(names.index("value")))
        columns: dict[str, list[Any] | None] = {}
        for name in ("__key", "__topic", "__eventTime", "__messageProperties"):
            columns[name] = _listed(name, batch.column(names.index(name))) if name in names else None
        if self._row + len(values) > ROWS_PER_TASK_MAX:
            raise NotWritten(f"a task has more than {ROWS_PER_TASK_MAX} rows: make more partitions")
        keys, topics = columns["__key"], columns["__topic"]
        events, properties = columns["__eventTime"], columns["__messageProperties"]
        plain = keys is None and events is None and properties is None
        base = self._base + self._row
        for number, value in enumerate(values):
            sequence = base + number
            key = keys[number] if keys is not None else None
            topic = topics[number] if topics is not None else self._options.topic
            target = self._target(topic, key, self._row + number)
            size = 0 if value is None else len(value)
            if plain and value is not None:
                body = b"\x18" + varint(size) + b"\x40" + varint(sequence)
            else:
                one = pb.SingleMessageMetadata(payload_size=size, sequence_id=sequence)
                if value is None:
                    one.null_value = True
                _fill(
                    one,
                    key,
                    events[number] if events is not None else None,
                    properties[number] if properties is not None else None,
                )
                body = one.SerializeToString()
            target.add(
                sequence, len(body).to_bytes(4, "big") + body, b"" if value is None else value, 4 + len(body) + size
            )
        self._row += len(values)

    def _target(self, topic: str | None, key: bytes | None, row: int) -> Target:
        if topic is None:
            raise NotWritten("a row has no __topic: fill the column, or give the option topic")
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions = self._open(topic)
        if partitions:
            number = (java_hash(key_text(key)[0]) if key is not None else self._task + row // KEYLESS_RUN) % partitions
            topic = f"{topic}-partition-{number}"
        target = self._targets.get(topic)
        if target is None:
            if len(self._targets) >= TOPICS_PER_TASK_MAX:
                raise NotWritten(
                    f"the rows of a task go to more than {TOPICS_PER_TASK_MAX} topics: repartition by __topic"
                )
            producer = Producer(
                self._client, str(TopicName.parse(topic)), self._name, self._options.send_timeout_ms / 1000
            )
            target = self._targets[topic] = Target(self._options, producer)
        return target

    def _open(self, topic: str) -> int:
        try:
            full = TopicName.parse(topic)
        except NameNotValid as error:
            raise NotWritten(f"column __topic: {error}") from None
        count = (
            0
            if full.partition >= 0
            else retried(self._client, lambda: self._client.partitions(str(full), create=True)) or 0
        )
        self._partitions[topic] = count
        return count

    def finish(self) -> Written:
        """Wait until everything is stored."""
        for target in self._targets.values():
            target.flush()
        unprotected: list[str] = []
        for topic, target in self._targets.items():
            target.producer.flush()
            if self._name and target.producer.last < 0 and not target.producer.deduplicated():
                unprotected.append(topic)
        if unprotected and self._options.deduplication == "required":
            raise NotWritten(
                f"topic {unprotected[0]} does not deduplicate, and deduplication=required; rows of this batch are in it"
            )
        duplicates = sum(target.producer.duplicates for target in self._targets.values())
        return Written(self._row, duplicates, tuple(unprotected))

    def close(self) -> None:
        """Leave all topics; the connections stay for the next task."""
        for target in self._targets.values():
            target.producer.close()


def key_text(key: bytes) -> tuple[str, bool]:
    """A key as it travels: as text if it is text, so that every client sees it, else as base64."""
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(key).decode(), True


def _fill(one: pb.SingleMessageMetadata, key: bytes | None, event: int | None, properties: Any) -> None:
    if key is not None:
        one.partition_key, one.partition_key_b64_encoded = key_text(key)
    if event is not None and event > 0:
        one.event_time = event
    for name, value in properties or ():
        one.properties.add(key=name, value=value if value is not None else "")


def java_hash(text: str) -> int:
    """Java's hash of a string, never negative: how official clients choose the partition of a key."""
    value = 0
    encoded = text.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        value = (31 * value + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def _views(column: pa.Array) -> list[Any]:
    """The values as views into Arrow's buffer (None where there is none)."""
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        column = column.cast(pa.binary())
    if not len(column):
        return []
    _, offsets, data = column.buffers()
    positions = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    values: list[Any] = [view[begin:end] for begin, end in itertools.pairwise(positions)]
    if column.null_count:
        values = [value if valid else None for value, valid in zip(values, column.is_valid().to_pylist(), strict=True)]
    return values


def _listed(name: str, column: pa.Array) -> list[Any]:
    if name == "__key" and not pa.types.is_binary(column.type):
        return list(column.cast(pa.binary()).to_pylist())
    if name == "__eventTime" and not pa.types.is_integer(column.type):
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).view(pa.int64()).to_pylist()
        return [None if value is None else value // 1000 for value in micros]
    return list(column.to_pylist())
