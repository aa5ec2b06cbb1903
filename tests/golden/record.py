"""Record what the official Python client sends, as golden bytes for the codec's tests.

    python tests/golden/record.py            # every scenario that has no file for this client version yet
    python tests/golden/record.py NAME...    # these

Goldens are history: a recording is never made again for a version that has one, and never edited; a new client version
gets a new folder. What differs from run to run inside a recording: publish times, the uuid of a chunked message, random
names of readers.

The server here answers just enough for the client to go on. It is no broker: it stores nothing and checks nothing.
"""

import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
from pulsar import schema as schemas

from magnetar.core.errors import ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.wire import commands, metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch
from magnetar.wire.frames import FrameDecoder, encode

FOLDER = Path(__file__).parent / "wire" / f"pulsar-client-{pulsar.__version__}"
TOPIC = "persistent://public/default/golden"
LEDGER = 7
PING_WAIT_S = 45
"""The client pings after 30 s without traffic; a recording may wait for that, a test never does."""


def entries() -> list[bytes]:
    """What every subscription finds: three single messages and a batch of three."""
    singles = [
        metadata.build(
            pb.MessageMetadata(producer_name="golden", sequence_id=number, publish_time=1_700_000_000_000 + number),
            b"message %d" % number,
        )
        for number in range(3)
    ]
    batch = pb.MessageMetadata(
        producer_name="golden", sequence_id=3, publish_time=1_700_000_000_003, num_messages_in_batch=3
    )
    body = encode_batch([(pb.SingleMessageMetadata(), b"batched %d" % number) for number in range(3)])
    return [*singles, metadata.build(batch, body)]


class Recorder:
    """Listens, answers, and keeps every byte of each connection.

    Args:
        partitions: what it says of any topic.
        message_bytes_max: what it says in CONNECTED.
    """

    def __init__(self, partitions: int = 0, message_bytes_max: int = 5 << 20) -> None:
        self.partitions = partitions
        self.message_bytes_max = message_bytes_max
        self.streams: list[bytearray] = []
        self.seen = threading.Condition()
        self.types: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        self._delivered: set[int] = set()
        self._entries: dict[int, int] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            stream = bytearray()
            self.streams.append(stream)
            threading.Thread(target=self._serve, args=(connection, stream), daemon=True).start()

    def _serve(self, connection: socket.socket, stream: bytearray) -> None:
        decoder = FrameDecoder()
        while data := connection.recv(1 << 16):
            stream += data
            for frame in decoder.feed(data):
                for answer in self._answers(frame.command):
                    connection.sendall(answer)
                with self.seen:
                    self.types.append(frame.command.type)
                    self.seen.notify_all()

    def wait(self, kind: int, count: int = 1, timeout_s: float = 15) -> None:
        """Until the client has sent `count` commands of a type."""
        with self.seen:
            if not self.seen.wait_for(lambda: self.types.count(kind) >= count, timeout_s):
                raise SystemExit(f"the client sent {self.types.count(kind)} commands of type {kind}, not {count}")

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _answers(self, command: pb.BaseCommand) -> list[bytes]:
        handler = _HANDLERS.get(command.type)
        return handler(self, command) if handler else []

    def deliver(self, consumer_id: int) -> list[bytes]:
        """Every entry, to a consumer, once."""
        if consumer_id in self._delivered:
            return []
        self._delivered.add(consumer_id)
        answers: list[bytes] = []
        for number, entry in enumerate(entries()):
            answers += (
                commands.message_header(consumer_id, LEDGER, number, -1, 0, None, None, len(entry)),
                entry,
            )
        return answers

    def receipt(self, command: pb.CommandSend) -> list[bytes]:
        """The next position of a producer."""
        entry = self._entries.get(command.producer_id, 0)
        self._entries[command.producer_id] = entry + 1
        return [commands.receipts(command.producer_id, [(command.sequence_id, 0, LEDGER, entry)])]


def _success(request_id: int) -> list[bytes]:
    return [commands.success(request_id)]


_HANDLERS: dict[int, Callable[[Recorder, pb.BaseCommand], list[bytes]]] = {
    2: lambda r, c: [commands.connected(c.connect.protocol_version, r.message_bytes_max)],
    4: lambda r, c: _success(c.subscribe.request_id),
    5: lambda r, c: [commands.producer_success(c.producer.request_id, c.producer.producer_name or "golden-1")],
    6: lambda r, c: r.receipt(c.send),
    10: lambda r, c: (
        [commands.ack_response(c.ack.consumer_id, c.ack.request_id)] if c.ack.HasField("request_id") else []
    ),
    11: lambda r, c: r.deliver(c.flow.consumer_id),
    12: lambda r, c: _success(c.unsubscribe.request_id),
    15: lambda r, c: _success(c.close_producer.request_id),
    16: lambda r, c: _success(c.close_consumer.request_id),
    18: lambda r, c: [commands.pong()],
    21: lambda r, c: [
        commands.partitions_response(
            c.partitionMetadata.request_id, 0 if "-partition-" in c.partitionMetadata.topic else r.partitions
        )
    ],
    23: lambda r, c: [commands.lookup_response(c.lookupTopic.request_id, r.url)],
    28: lambda r, c: _success(c.seek.request_id),
    29: lambda r, c: [
        commands.last_message_id(
            c.getLastMessageId.request_id, Position(LEDGER, 3), batch_index=2, partition=-1, mark_delete=NONE
        )
    ],
    32: lambda r, c: [commands.topics_of_namespace(c.getTopicsOfNamespace.request_id, [TOPIC, f"{TOPIC}-two"])],
    34: lambda r, c: [commands.get_schema_failed(c.getSchema.request_id, ErrorCode.TOPIC_NOT_FOUND, "none")],
    39: lambda r, c: [
        encode(
            pb.BaseCommand(
                type=40,
                getOrCreateSchemaResponse=pb.CommandGetOrCreateSchemaResponse(
                    request_id=c.getOrCreateSchema.request_id, schema_version=bytes(8)
                ),
            )
        )
    ],
}

Scenario = Callable[[Recorder], None]


def client(recorder: Recorder, **options: Any) -> pulsar.Client:
    """The official client, quiet."""
    return pulsar.Client(recorder.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)


def producing(**options: Any) -> Scenario:
    """Six messages by one producer; in batches if the options say so."""

    def scenario(recorder: Recorder) -> None:
        link = client(recorder)
        producer = link.create_producer(TOPIC, **options)
        for number in range(6):
            producer.send_async(
                b"payload " * 40, None, partition_key=f"key-{number % 2}", properties={"number": str(number)}
            )
        producer.flush()
        producer.close()
        link.close()

    return scenario


def plain(recorder: Recorder) -> None:
    """Single messages with everything that a message can carry."""
    link = client(recorder)
    producer = link.create_producer(TOPIC, producer_name="golden-named", properties={"a": "ä"})
    producer.send(b"hello")
    producer.send(b"", properties={"k": "v", "": "empty", "ü": "☃"})
    producer.send(b"keyed", partition_key="key")
    producer.send(b"ordered", partition_key="key", ordering_key="order")
    producer.send(b"numbered", sequence_id=1000)
    producer.send(b"timed", event_timestamp=1_700_000_000_000)
    producer.send(b"restricted", replication_clusters=["us-west", "us-east"])
    producer.send(b"local", disable_replication=True)
    producer.send(b"later", deliver_at=4_000_000_000_000)
    producer.close()
    link.close()


def chunked(recorder: Recorder) -> None:
    """One message in three chunks; the server said that entries have at most 1,200 bytes."""
    link = client(recorder)
    producer = link.create_producer(TOPIC, chunking_enabled=True)
    producer.send(bytes(range(256)) * 10, properties={"chunked": "yes"})
    producer.close()
    link.close()


def with_schema(recorder: Recorder) -> None:
    """A producer and a consumer with a JSON schema."""

    class Flight(schemas.Record):  # type: ignore[misc]
        carrier = schemas.String()
        minutes = schemas.Integer()

    link = client(recorder)
    producer = link.create_producer(TOPIC, schema=schemas.JsonSchema(Flight))
    producer.send(Flight(carrier="UA", minutes=227))
    consumer = link.subscribe(TOPIC, "s", schema=schemas.JsonSchema(Flight))
    consumer.close()
    link.close()


def partitioned(recorder: Recorder) -> None:
    """A producer on a topic of two partitions."""
    link = client(recorder)
    producer = link.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.Exclusive)
    for number in range(4):
        producer.send(b"m", partition_key=str(number))
    link.close()


def consuming(**options: Any) -> Scenario:
    """Subscribe, take everything, acknowledge each message, unsubscribe."""

    def scenario(recorder: Recorder) -> None:
        link = client(recorder)
        consumer = link.subscribe(TOPIC, "golden-sub", receiver_queue_size=10, **options)
        for _ in range(6):
            consumer.acknowledge(consumer.receive(60_000))
        recorder.wait(10)
        consumer.unsubscribe()
        link.close()

    return scenario


def cumulative(recorder: Recorder) -> None:
    """Cumulative acknowledgement, then close."""
    link = client(recorder)
    consumer = link.subscribe(TOPIC, "golden-sub", consumer_name="golden-consumer", properties={"p": "q"})
    messages = [consumer.receive(60_000) for _ in range(6)]
    consumer.acknowledge_cumulative(messages[2])
    recorder.wait(10)
    consumer.close()
    link.close()


def redelivering(recorder: Recorder) -> None:
    """Negative acknowledgement (ids) and redelivery of everything (none)."""
    link = client(recorder)
    consumer = link.subscribe(
        TOPIC, "golden-sub", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    messages = [consumer.receive(60_000) for _ in range(6)]
    consumer.negative_acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    recorder.wait(20)
    consumer.redeliver_unacknowledged_messages()
    recorder.wait(20, 2)
    link.close()


def batch_index(recorder: Recorder) -> None:
    """One message of a batch acknowledged by its index, alone; then two together, of which one completes nothing."""
    link = client(recorder)
    consumer = link.subscribe(
        TOPIC, "golden-sub", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    messages = [consumer.receive(60_000) for _ in range(6)]
    consumer.acknowledge(messages[4])
    recorder.wait(10)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[3])
    recorder.wait(10, 2)
    link.close()


def seeking(recorder: Recorder) -> None:
    """Seek by id, by time, to both ends."""
    link = client(recorder)
    consumer = link.subscribe(TOPIC, "golden-sub", initial_position=pulsar.InitialPosition.Earliest)
    message = consumer.receive(60_000)
    consumer.seek(message.message_id())
    consumer.seek(1_700_000_000_001)
    consumer.seek(pulsar.MessageId.earliest)
    consumer.seek(pulsar.MessageId.latest)
    link.close()


def reading(recorder: Recorder) -> None:
    """A reader from the start, and from a message."""
    link = client(recorder)
    reader = link.create_reader(TOPIC, pulsar.MessageId.earliest)
    assert reader.has_message_available()
    message = reader.read_next(60_000)
    reader.close()
    again = link.create_reader(TOPIC, message.message_id(), reader_name="golden-reader")
    again.has_message_available()
    link.close()


def pattern(recorder: Recorder) -> None:
    """A subscription by regular expression."""
    import re

    link = client(recorder)
    consumer = link.subscribe(re.compile("persistent://public/default/golden.*"), "golden-sub")
    consumer.close()
    link.close()


def token(recorder: Recorder) -> None:
    """A token in CONNECT; the number of partitions."""
    link = client(recorder, authentication=pulsar.AuthenticationToken("golden-token"))
    link.get_topic_partitions(TOPIC)
    link.close()


def pinging(recorder: Recorder) -> None:
    """An idle connection: the client's own PING."""
    link = client(recorder)
    link.create_producer(TOPIC)
    recorder.wait(18, timeout_s=PING_WAIT_S)
    link.close()


_COMPRESSION = pulsar.CompressionType
SCENARIOS: dict[str, tuple[Scenario, dict[str, int]]] = {
    "send-plain": (plain, {}),
    "send-batched": (producing(batching_enabled=True), {}),
    "send-batched-by-key": (producing(batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased), {}),
    "send-lz4": (producing(compression_type=_COMPRESSION.LZ4), {}),
    "send-zlib": (producing(compression_type=_COMPRESSION.ZLib), {}),
    "send-zstd": (producing(compression_type=_COMPRESSION.ZSTD), {}),
    "send-snappy": (producing(compression_type=_COMPRESSION.SNAPPY), {}),
    "send-batched-lz4": (producing(batching_enabled=True, compression_type=_COMPRESSION.LZ4), {}),
    "send-partitioned": (partitioned, {"partitions": 2}),
    "schema-json": (with_schema, {}),
    "consume-exclusive": (consuming(initial_position=pulsar.InitialPosition.Earliest), {}),
    "consume-shared": (
        consuming(consumer_type=pulsar.ConsumerType.Shared, replicate_subscription_state_enabled=True),
        {},
    ),
    "consume-failover": (consuming(consumer_type=pulsar.ConsumerType.Failover, is_read_compacted=True), {}),
    "consume-key-shared": (consuming(consumer_type=pulsar.ConsumerType.KeyShared), {}),
    "consume-key-shared-sticky": (
        consuming(
            consumer_type=pulsar.ConsumerType.KeyShared,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(
                key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 32767), (32768, 65535)]
            ),
        ),
        {},
    ),
    "consume-batch-index": (
        consuming(consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True),
        {},
    ),
    "consume-batch-index-partly": (batch_index, {}),
    "consume-cumulative": (cumulative, {}),
    "consume-redeliver": (redelivering, {}),
    "consume-seek": (seeking, {}),
    "reader": (reading, {}),
    "pattern": (pattern, {}),
    "token": (token, {}),
    "ping": (pinging, {}),
    # The limit that a server announces is kept for the whole process by the client: this one is the last.
    "send-chunked": (chunked, {"message_bytes_max": 1200}),
}


def record(name: str) -> dict[str, Any]:
    """Run one scenario, write its bytes; its line of the index."""
    scenario, options = SCENARIOS[name]
    recorder = Recorder(**options)
    scenario(recorder)
    time.sleep(0.2)  # the last bytes of a closing client are read by threads of our own
    recorder.close()
    streams = []
    for number, stream in enumerate(bytes(stream) for stream in recorder.streams):
        file = f"{name}.bin" if number == 0 else f"{name}.{number}.bin"
        (FOLDER / file).write_bytes(stream)
        kinds = [frame.command.type for frame in FrameDecoder().feed(stream)]
        streams.append({"file": file, "sha256": hashlib.sha256(stream).hexdigest(), "commands": kinds})
    return {"scenario": name, "about": (scenario.__doc__ or "").strip(), "connections": streams}


def main(names: list[str]) -> None:
    """Record what is asked for and missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    index_path = FOLDER / "index.json"
    index: dict[str, Any] = {"client": f"pulsar-client {pulsar.__version__}"}
    if index_path.exists():
        index = json.loads(index_path.read_text())
    done = {item["scenario"]: item for item in index.get("recordings", [])}
    for name in names or [name for name in SCENARIOS if name not in done]:
        if name in done:
            raise SystemExit(f"{name} is recorded for {pulsar.__version__}; goldens are never made again")
        sys.stdout.write(f"{name}\n")
        done[name] = record(name)
        index["recordings"] = [done[key] for key in SCENARIOS if key in done]
        index_path.write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
