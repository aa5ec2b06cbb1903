"""Publishing to a topic: choosing the partition of each message, its sequence id, and its receipt.

to publish   a message gets the next number of its partition's producer, is sent and is pending
receipt      it is no longer pending
error        the same; only that message is concerned
closed       the broker closed a producer (an unload, a quota): it is opened again after a pause, with the same name, and
             pending messages are sent again with the same numbers, so that deduplication recognises them
"""

import asyncio
import time
import zlib
from collections.abc import Callable
from typing import Final

from magnetar.admin.websocket.client import BrokerClient
from magnetar.admin.websocket.options import ProducerOptions
from magnetar.admin.websocket.reopening import open_again
from magnetar.broker.subscriptions.dispatch.hashing import murmur3_32
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build

PRODUCER: Final = 5
SEND: Final = 6
SEND_RECEIPT: Final = 7
SEND_ERROR: Final = 8
CLOSE_PRODUCER: Final = 15

REOPEN_FOR_S: Final = 30.0
"""The time for which a producer that the broker closed is opened again, if messages have no timeout."""

LZ4_ID: Final = 1
ZLIB_ID: Final = 2

Receipt = asyncio.Future[pb.MessageIdData]


class Pending:
    """A message without its receipt.

    Args:
        data: metadata and payload, as SEND has them.
        receipt: done with the message's id, or with a BrokerError.
        due_s: of the loop's clock, when it is given up; 0: never.
    """

    __slots__ = ("data", "due_s", "receipt")

    def __init__(self, data: bytes, receipt: Receipt, due_s: float) -> None:
        self.data, self.receipt, self.due_s = data, receipt, due_s


class Lane:
    """The producer of one partition.

    Args:
        client: the connection to the broker.
        number: its id on the connection.
        topic: the topic of the partition.
        partition: its number, -1 when the topic has none.
        name: name of the producer, "" for a name from the broker.
        first: sequence id of its first message, less one; None: continue after the broker's last one.
    """

    def __init__(
        self, client: BrokerClient, number: int, topic: str, partition: int, name: str, first: int | None
    ) -> None:
        self._client = client
        self.number, self.topic, self.partition, self.name = number, topic, partition, name
        self._first = first
        self._next = 0
        self._open = False
        self.pending: dict[int, Pending] = {}

    async def open(self) -> None:
        """Open the producer, and send what is pending.

        Raises:
            BrokerError: the broker refuses.
        """
        command = pb.CommandProducer(topic=self.topic, producer_id=self.number, request_id=self._client.request_id())
        if self.name:
            command.producer_name = self.name
        answer = (await self._client.ask(pb.BaseCommand(type=PRODUCER, producer=command))).producer_success
        self.name = answer.producer_name
        last = answer.last_sequence_id if self._first is None else max(self._first, answer.last_sequence_id)
        self._next = max(self._next, last + 1)
        self._open = True
        for sequence_id, pending in list(self.pending.items()):
            self._send(sequence_id, pending.data)

    def closed(self) -> None:
        """The broker closed it."""
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether what is published is sent at once."""
        return self._open

    def publish(self, metadata: pb.MessageMetadata, payload: bytes, due_s: float) -> Receipt:
        """Publish a message.

        Args:
            metadata: producer, number and time are filled in.
            payload: as it is stored.
            due_s: of the loop's clock, when it is given up; 0: never.
        """
        metadata.producer_name, metadata.sequence_id = self.name, self._next
        metadata.publish_time = time.time_ns() // 1_000_000
        pending = Pending(build(metadata, payload), asyncio.get_running_loop().create_future(), due_s)
        self.pending[self._next] = pending
        if self._open:
            self._send(self._next, pending.data)
        self._next += 1
        return pending.receipt

    def _send(self, sequence_id: int, data: bytes) -> None:
        send = pb.CommandSend(producer_id=self.number, sequence_id=sequence_id)
        self._client.tell(pb.BaseCommand(type=SEND, send=send), data)

    def receipt(self, reply: pb.CommandSendReceipt) -> None:
        """A message is stored."""
        pending = self.pending.pop(reply.sequence_id, None)
        if pending is not None and not pending.receipt.done():
            found = pb.MessageIdData(ledgerId=reply.message_id.ledgerId, entryId=reply.message_id.entryId)
            if self.partition >= 0:
                found.partition = self.partition
            pending.receipt.set_result(found)

    def refused(self, sequence_id: int, error: BrokerError) -> None:
        """A message is not stored."""
        pending = self.pending.pop(sequence_id, None)
        if pending is not None and not pending.receipt.done():
            pending.receipt.set_exception(error)

    def expire(self, now_s: float) -> None:
        """Give up what waits for too long."""
        for sequence_id, pending in list(self.pending.items()):
            if pending.due_s and pending.due_s <= now_s:
                self.refused(sequence_id, BrokerError(ErrorCode.SERVICE_NOT_READY, "no receipt came in time"))


class Publisher:
    """Publishes to all partitions of a topic.

    Args:
        client: the connection to the broker.
        topic: its full name.
        options: the options of the producer.
        first_id: first id of its producers on the connection.
        failed: called when a producer cannot be opened again.
    """

    def __init__(
        self,
        client: BrokerClient,
        topic: str,
        options: ProducerOptions,
        *,
        first_id: int = 0,
        failed: Callable[[BrokerError], None],
    ) -> None:
        self._client, self._topic, self._options, self._first_id = client, topic, options, first_id
        self._failed = failed
        self._lanes: list[Lane] = []
        self._turn = 0
        self._looks: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the producers of all partitions.

        Raises:
            BrokerError: the broker refuses.
        """
        partitions = await self._client.partitions(self._topic)
        names = [(f"{self._topic}-partition-{number}", number) for number in range(partitions)] or [(self._topic, -1)]
        options = self._options
        self._lanes = [
            Lane(self._client, self._first_id + at, topic, partition, options.name, options.first_sequence_id)
            for at, (topic, partition) in enumerate(names)
        ]
        for lane in self._lanes:
            await lane.open()
        self._turn = hash(id(self)) % len(self._lanes)
        self._look()

    @property
    def pending(self) -> int:
        """Messages without a receipt."""
        return sum(len(lane.pending) for lane in self._lanes)

    def publish(self, metadata: pb.MessageMetadata, payload: bytes) -> Receipt:
        """Publish a message to the partition of its key, or to the next one."""
        lane = self._lanes[self._choose(metadata.partition_key if metadata.HasField("partition_key") else None)]
        payload = _compressed(metadata, payload, self._options.compression)
        send_s = self._options.send_ms / 1000
        return lane.publish(metadata, payload, asyncio.get_running_loop().time() + send_s if send_s else 0.0)

    def _choose(self, key: str | bytes | None) -> int:
        lanes = len(self._lanes)
        if lanes == 1:
            return 0
        if key:
            text = key if isinstance(key, str) else key.decode("utf-8", "replace")
            hashed = java_hash(text) if self._options.hashing == "JavaStringHash" else murmur3_32(text.encode())
            return (hashed & 0x7FFFFFFF) % lanes
        if not self._options.single:
            self._turn = (self._turn + 1) % lanes
        return self._turn

    def heard(self, command: pb.BaseCommand) -> bool:
        """Take what the broker says of its producers; whether it was of these."""
        match command.type:
            case 7:
                lane = self._lane(command.send_receipt.producer_id)
                if lane is not None:
                    lane.receipt(command.send_receipt)
            case 8:
                reply = command.send_error
                lane = self._lane(reply.producer_id)
                if lane is not None:
                    lane.refused(reply.sequence_id, BrokerError(ErrorCode.of(reply.error), reply.message))
            case 15:
                lane = self._lane(command.close_producer.producer_id)
                if lane is not None:
                    lane.closed()
                    task = asyncio.get_running_loop().create_task(self._reopen(lane))
                    self._opening.add(task)
                    task.add_done_callback(self._opening.discard)
            case _:
                return False
        return lane is not None

    def _lane(self, number: int) -> Lane | None:
        at = number - self._first_id
        return self._lanes[at] if 0 <= at < len(self._lanes) else None

    async def _reopen(self, lane: Lane) -> None:
        try:
            await open_again(self._client, lane.open, for_s=self._options.send_ms / 1000 or REOPEN_FOR_S)
        except BrokerError as error:
            self._failed(error)

    def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for lane in self._lanes:
            lane.expire(now_s)
        if self._options.send_ms:
            self._looks = asyncio.get_running_loop().call_later(1.0, self._look)

    def close(self) -> None:
        """Stop; tasks that wait for a receipt get an error."""
        if self._looks is not None:
            self._looks.cancel()
        for task in list(self._opening):
            task.cancel()
        for lane in self._lanes:
            for sequence_id in list(lane.pending):
                lane.refused(sequence_id, BrokerError(ErrorCode.SERVICE_NOT_READY, "the connection is closed"))


def java_hash(text: str) -> int:
    """Java's hash of a text, over its UTF-16 units; unsigned."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = (31 * value + int.from_bytes(encoded[at : at + 2], "big")) & 0xFFFFFFFF
    return value


def _compressed(metadata: pb.MessageMetadata, payload: bytes, kind: str) -> bytes:
    """The payload as it is stored: LZ4 and ZLIB are compressed, ZSTD and SNAPPY are taken as wishes that change nothing."""
    if kind not in {"LZ4", "ZLIB"} or not payload:
        return payload
    metadata.uncompressed_size = len(payload)
    if kind == "ZLIB":
        metadata.compression = ZLIB_ID
        return zlib.compress(payload)
    import lz4.block

    metadata.compression = LZ4_ID
    return bytes(lz4.block.compress(payload, store_size=False))
