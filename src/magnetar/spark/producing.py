"""A producer of the sink: it sends entries in order, handles receipts, and sends unanswered entries again after a lost
connection.

Sequence ids come from the rows' numbers in the task, so sending again, in this task or in a later attempt, is harmless
if the broker deduplicates. The broker decides by the first id of an entry. Therefore no entry may reach beyond the last
id of an earlier attempt: its later rows would be taken for duplicates and lost. `last` is that id.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from magnetar.core.errors import ErrorCode, MagnetarError
from magnetar.spark.client import Client
from magnetar.spark.connection import Connection, Down, Refused
from magnetar.wire import pulsar_pb2 as pb

WINDOW_BYTES: Final = 16 << 20
"""Backpressure: bytes sent and not yet confirmed, which the task keeps to send them again."""

WINDOW_ENTRIES: Final = 500

_PASSING: Final = frozenset(
    {
        ErrorCode.UNKNOWN, ErrorCode.METADATA, ErrorCode.PERSISTENCE, ErrorCode.SERVICE_NOT_READY, ErrorCode.PRODUCER_BUSY,
        ErrorCode.TOO_MANY_REQUESTS,
    }
)  # fmt: skip
"""Refusals that pass: the producer comes back and sends again. A busy name is an earlier attempt that has not ended yet."""

_MAGIC: Final = b"\x0e\x01"


class NotWritten(MagnetarError):
    """Rows could not be written."""


@dataclass(slots=True)
class Sent:
    """An entry without a receipt."""

    first: int
    last: int
    count: int
    buffers: Sequence[bytes]
    size: int


def seal(metadata: pb.MessageMetadata, payload: bytes) -> list[bytes]:
    """An entry's bytes; the payload is not copied."""
    body = metadata.SerializeToString()
    head = len(body).to_bytes(4, "big") + body
    return [_MAGIC + crc32c(payload, crc32c(head)).to_bytes(4, "big") + head, payload]


class Producer:
    """Publishes to one topic under one name.

    Args:
        client: to connect by.
        topic: one partition.
        name: "" lets the broker choose (then nothing is deduplicated).
        timeout_s: how long an entry may remain unconfirmed.

    Attributes:
        name: as the broker says it.
        last: the highest sequence id that the broker had of this name at the beginning; -1: none, or it does not deduplicate.
        duplicates: entries that the broker had already.
    """

    def __init__(self, client: Client, topic: str, name: str, timeout_s: float) -> None:
        self.name = name
        self.last = -1
        self.duplicates = 0
        self._client, self._topic, self._timeout_s = client, topic, timeout_s
        self._given = bool(name)
        self._connection: Connection | None = None
        self._id = self._epoch = 0
        self._pending: deque[Sent] = deque()
        self._bytes = 0
        self._trouble: Refused | None = None
        self._moved = time.monotonic()
        self._persist(self._attach)
        self.last = self._last_stored

    @property
    def message_bytes_max(self) -> int:
        """The largest entry that the broker takes."""
        assert self._connection is not None
        return self._connection.message_bytes_max

    def send(self, metadata: pb.MessageMetadata, payload: bytes) -> None:
        """Send an entry; waits while too much is unconfirmed.

        Raises:
            NotWritten: the broker refuses it, or confirms nothing for too long.
        """
        count = metadata.num_messages_in_batch
        buffers = seal(metadata, payload)
        size = sum(map(len, buffers))
        if len(payload) > self.message_bytes_max:
            raise NotWritten(
                f"{self._topic}: a row of {len(payload)} bytes is larger than the broker accepts ({self.message_bytes_max} bytes)"
            )
        entry = Sent(metadata.sequence_id, metadata.highest_sequence_id, count, buffers, size)
        if not self._pending:
            self._moved = time.monotonic()
        self._pending.append(entry)
        self._bytes += size
        self._persist(lambda: self._put(entry))
        while len(self._pending) > WINDOW_ENTRIES or self._bytes > WINDOW_BYTES:
            self._persist(self._wait)
        if len(self._pending) & 15 == 0:
            self._persist(self._look)

    def flush(self) -> None:
        """Wait until everything is confirmed.

        Raises:
            NotWritten: see `send`.
        """
        while self._pending:
            self._persist(self._wait)

    def deduplicated(self) -> bool:
        """Whether the broker knows this name's sequence now that something was confirmed: it attaches again to learn it."""
        self.flush()
        self._persist(self._reattach)
        return self._last_stored >= 0

    def close(self) -> None:
        """Leave; the name is free for the next task."""
        connection, self._connection = self._connection, None
        if connection is None or connection.dead:
            return
        connection.handlers.pop(("producer", self._id), None)
        command = pb.BaseCommand(type=pb.CLOSE_PRODUCER)
        command.close_producer.producer_id = self._id
        try:
            connection.request(command)
        except (Down, Refused):
            connection.close()  # the broker then ends the producer with it

    # ------------------------------------------------------------------------------------------------------- internals

    def _persist(self, what: Callable[[], None]) -> None:
        """Do it, coming back and sending again as long as that may help."""
        patience = self._client.patient()
        while True:
            try:
                what()
                return
            except (Down, Refused) as error:
                if isinstance(error, Refused) and error.code not in _PASSING:
                    raise NotWritten(str(error)) from None
                self._drop()
                if self._pending and time.monotonic() - self._moved > self._timeout_s:
                    # The broker takes the producer back each time, and confirms nothing.
                    raise NotWritten(
                        f"{self._topic}: nothing was confirmed for {self._timeout_s:g} s: {error}"
                    ) from None
                try:
                    patience.after(Down(str(error)))
                except Down:
                    raise NotWritten(f"{self._topic}: {error}") from None
                what = self._attach

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._trouble = None
        if connection is not None and not connection.dead:
            # Whatever else the broker sends about this producer is about what will be sent again.
            connection.close()

    def _reattach(self) -> None:
        self.close()
        self._attach()

    def _attach(self) -> None:
        if self._connection is not None and not self._connection.dead:
            return
        connection = self._client.broker_of(self._topic)
        self._id = connection.next_id()
        command = pb.BaseCommand(type=pb.PRODUCER)
        ask = command.producer
        ask.topic, ask.producer_id, ask.epoch = self._topic, self._id, self._epoch
        ask.user_provided_producer_name = self._given
        if self.name:
            ask.producer_name = self.name
        connection.handlers["producer", self._id] = self._received
        try:
            answer = connection.request(command).producer_success
        except BaseException:
            connection.handlers.pop(("producer", self._id), None)
            raise
        self._epoch += 1
        self._connection, self._trouble = connection, None
        self.name = answer.producer_name
        self._last_stored = answer.last_sequence_id
        for entry in self._pending:
            self._put(entry)

    def _put(self, entry: Sent) -> None:
        if self._connection is None:
            raise Down(f"{self._topic}: not connected")
        command = pb.BaseCommand(type=pb.SEND)
        send = command.send
        send.producer_id, send.sequence_id, send.num_messages = self._id, entry.first, entry.count
        send.highest_sequence_id = entry.last
        self._connection.send(command, entry.buffers)

    def _wait(self) -> None:
        """Receive once."""
        self._check()
        assert self._connection is not None
        self._connection.turn(time.monotonic() + min(1.0, self._timeout_s))
        self._check()
        if self._pending and time.monotonic() - self._moved > self._timeout_s:
            raise NotWritten(
                f"{self._topic}: nothing was confirmed within pulsar.producer.sendTimeoutMs={self._timeout_s * 1000:.0f}"
            )

    def _look(self) -> None:
        """Take the receipts that are there."""
        self._check()
        assert self._connection is not None
        while self._connection.turn(0):
            pass
        self._check()

    def _check(self) -> None:
        if self._connection is None:
            raise Down(f"{self._topic}: not connected")
        if self._trouble is not None:
            raise self._trouble

    def _received(self, command: pb.BaseCommand, _: memoryview) -> None:
        if command.type == pb.CLOSE_PRODUCER:
            self._trouble = Refused(ErrorCode.SERVICE_NOT_READY, "the broker closed the producer", self._topic)
            return
        if command.type == pb.SEND_ERROR:
            error = command.send_error
            self._trouble = self._trouble or Refused(error.error, error.message, self._topic)
            return
        receipt = command.send_receipt
        if not self._pending or receipt.sequence_id < self._pending[0].first:
            return  # again, of an entry that is settled
        if receipt.sequence_id > self._pending[0].last:
            self._trouble = Refused(
                ErrorCode.UNKNOWN,
                f"receipt {receipt.sequence_id} came before that of {self._pending[0].first}",
                self._topic,
            )
            return
        entry = self._pending.popleft()
        self._bytes -= entry.size
        self._moved = time.monotonic()
        if receipt.message_id.ledgerId >= 1 << 63:
            self.duplicates += 1
