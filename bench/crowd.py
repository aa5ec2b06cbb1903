"""Many raw clients in one event loop: connections, producers, consumers, with counters instead of queues.

What they cost is taken from the processors that they share with the broker; in life they are on other machines. So they do as
little as clients can: of a message they look at the bytes in front of its id, and at the id, which they send back as it
came; of a receipt at its kind. What does not look as expected is parsed properly, and so is each connection's first message.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

from bench.loadgen import send_head
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, encode
from magnetar.wire.varint import varint

PERMITS: Final = 1_000
"""Messages that a consumer asks for at first, and half of them again and again, as the official clients do by default."""

ACKS_S: Final = 0.1
"""Acknowledgements are gathered so long,"""

ACKS_MAX: Final = 1_000
"""or until there are so many: likewise."""

BUFFER_BYTES: Final = 1 << 14
"""Of a connection at first; it grows with what comes at once,"""

READ_BYTES: Final = 1 << 20
"""up to this, and beyond it to the largest frame."""

MESSAGE: Final = b"\x08\x09\x4a"
RECEIPT: Final = b"\x08\x07\x3a"
"""How such commands begin: the kind, and the field that holds the rest. Its size follows."""

CONSUMER: Final = 0x08
MESSAGE_ID: Final = 0x12
"""The first two fields of a MESSAGE: a number, here of less than 128, and the id, which begins with its size."""

SIZE: Final = struct.Struct(">I")


class Crowd(asyncio.BufferedProtocol):
    """One connection.

    Attributes:
        batch: messages of each entry that it receives.
        received: messages, by consumer id.
        confirmed: receipts.
    """

    def __init__(self) -> None:
        self.batch = 1
        self.received: dict[int, int] = {}
        self.confirmed = 0
        self.refused = 0
        self.acknowledges = True
        self._parsed = False
        self._buffer = bytearray(BUFFER_BYTES)
        self._filled = 0
        self._wanted = 8
        self._answers: dict[int, asyncio.Future[pb.BaseCommand]] = {}
        self._granted: dict[int, int] = {}
        self._acks: dict[int, list[bytes]] = {}
        self._requests = 0
        self._transport: asyncio.Transport | None = None
        self.on_receipt: Callable[[], None] = lambda: None
        self.on_message: Callable[[], None] = lambda: None

    @classmethod
    async def connect(cls, port: int) -> "Crowd":
        """Connect and shake hands."""
        made = (await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port))[1]
        assert isinstance(made, cls)
        hello = pb.CommandConnect(client_version="magnetar-bench", protocol_version=19)
        shaken = made._answers[0] = asyncio.get_running_loop().create_future()
        made.write(encode(pb.BaseCommand(type=2, connect=hello)))
        await shaken
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)

    def write(self, *buffers: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.writelines(buffers)

    def deafen(self) -> None:
        """Read nothing any more."""
        assert self._transport is not None
        self._transport.pause_reading()

    def close(self) -> None:
        """Drop the connection, and what is not acknowledged with it."""
        self._acks.clear()
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------------------------------------ what comes

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """What the broker says."""
        self._filled += nbytes
        if self._filled >= self._wanted:
            with memoryview(self._buffer) as view:
                data = bytes(view[: self._filled])
            rest = self._take(data)
            self._buffer[: len(data) - rest] = data[rest:]
            self._filled = len(data) - rest
            self._wanted = 4 + SIZE.unpack_from(self._buffer)[0] if self._filled >= 4 else 8
        size = len(self._buffer)
        if self._filled == size or self._wanted > size:
            # Another one: uvloop may still hold the old one.
            larger = bytearray(max(min(2 * size, READ_BYTES), self._wanted + BUFFER_BYTES))
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger

    def _take(self, data: bytes) -> int:
        """Everything that is whole; where the rest begins."""
        at, end, size = 0, len(data), SIZE.unpack_from
        while end - at >= 12:
            stop = at + 4 + size(data, at)[0]
            if stop > end:
                break
            head = data[at + 8 : at + 11]
            if head == MESSAGE and self._parsed and data[at + 12] == CONSUMER and data[at + 14] == MESSAGE_ID:
                self._message(data[at + 13], data[at + 15 : at + 16 + data[at + 15]])
            elif head == RECEIPT:
                self.confirmed += 1
                self.on_receipt()
            else:
                self._other(data[at:stop])
            at = stop
        return at

    def _other(self, data: bytes) -> None:
        """Neither a receipt nor a message; or the first one, or one of another shape."""
        (frame,) = FrameDecoder(1 << 26).feed(data)
        command = frame.command
        kind = command.type
        if kind == 9:
            metadata = memoryview(frame.payload)[6:]
            size = SIZE.unpack_from(metadata)[0]
            held = pb.MessageMetadata.FromString(bytes(metadata[4 : 4 + size])).num_messages_in_batch
            if held != self.batch:
                raise RuntimeError(f"an entry of {held} messages, not {self.batch}")
            told = command.message.message_id.SerializeToString()
            self._parsed = True
            self._message(command.message.consumer_id, varint(len(told)) + told)
        elif kind == 8:
            self.refused += 1
            self.on_receipt()
        elif kind == 18:
            self.write(encode(pb.BaseCommand(type=19, pong=pb.CommandPong())))
        elif kind == 3:
            self._answers.pop(0).set_result(command)
        else:
            for name in ("success", "producer_success", "error", "lookupTopicResponse"):
                if command.HasField(name):
                    waiting = self._answers.pop(getattr(command, name).request_id, None)
                    if waiting is not None:
                        waiting.set_result(command)

    def _message(self, consumer: int, sized_id: bytes) -> None:
        self.received[consumer] = self.received.get(consumer, 0) + self.batch
        self.on_message()
        if not self.acknowledges:
            return
        acks = self._acks.get(consumer)
        if acks is None:
            acks = self._acks[consumer] = []
            asyncio.get_running_loop().call_later(ACKS_S, self._acknowledge_rest, consumer)
        acks.append(sized_id)
        if len(acks) >= ACKS_MAX:
            self._acknowledge(consumer, acks)
            acks.clear()
        granted = self._granted[consumer] = self._granted.get(consumer, 0) + self.batch
        if granted >= PERMITS // 2:
            self.flow(consumer, self._granted.pop(consumer))

    def _acknowledge_rest(self, consumer: int) -> None:
        acks = self._acks.pop(consumer, None)
        if acks:
            self._acknowledge(consumer, acks)

    def _acknowledge(self, consumer: int, ids: list[bytes]) -> None:
        body = b"".join((b"\x08", varint(consumer), b"\x10\x00\x1a", b"\x1a".join(ids)))
        command = b"\x08\x0a\x52" + varint(len(body)) + body
        self.write(struct.pack(">II", 4 + len(command), len(command)) + command)

    def flow(self, consumer: int, permits: int) -> None:
        """Ask for messages."""
        self.write(encode(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=consumer, messagePermits=permits))))

    async def ask(self, kind: int, **part: Any) -> pb.BaseCommand:
        """One request, its answer."""
        self._requests += 1
        ((name, body),) = part.items()
        body.request_id = self._requests
        waiting = self._answers[self._requests] = asyncio.get_running_loop().create_future()
        self.write(encode(pb.BaseCommand(type=kind, **{name: body})))
        answer = await waiting
        if answer.type == 14:
            raise RuntimeError(f"refused: {answer.error.message}")
        return answer

    async def produce(self, topic: str, producer_id: int) -> None:
        """Open a producer."""
        await self.ask(5, producer=pb.CommandProducer(topic=full(topic), producer_id=producer_id, request_id=0))

    async def consume(self, topic: str, name: str, consumer_id: int, permits: int = PERMITS, kind: int = 1) -> None:
        """Open a consumer that begins with the first message."""
        body = pb.CommandSubscribe(
            topic=full(topic), subscription=name, subType=kind, consumer_id=consumer_id, request_id=0, initialPosition=1
        )
        await self.ask(4, subscribe=body)
        if permits:
            self.flow(consumer_id, permits)

    def send(self, producer_id: int, sequence: int, payload: bytes, deliver_at_ms: int = 0) -> None:
        """Publish one message."""
        meta = pb.MessageMetadata(producer_name="crowd", sequence_id=sequence, publish_time=1)
        if deliver_at_ms:
            meta.deliver_at_time = deliver_at_ms
        self.write(send_head(producer_id, sequence, meta.SerializeToString(), payload, 1), payload)


def full(topic: str) -> str:
    """A topic's full name."""
    return topic if "://" in topic else f"persistent://public/default/{topic}"


async def in_turns(jobs: list[Callable[[], Awaitable[Any]]], at_once: int = 100) -> None:
    """Run jobs, so many at a time."""
    left = iter(jobs)

    async def worker() -> None:
        for job in left:
            await job()

    await asyncio.gather(*(worker() for _ in range(at_once)))


async def on_each(clients: list[Crowd], topics_each: int, act: Callable[[Crowd, str, int], Awaitable[Any]]) -> None:
    """Do something with so many topics of each client.

    Args:
        clients: who.
        topics_each: of each client; all are `crowd-CLIENT-NUMBER`.
        act: what: given the client, the topic, and its number there.
    """
    topics = ((client, f"crowd-{at}-{each}", each) for at, client in enumerate(clients) for each in range(topics_each))
    await in_turns([partial(act, *one) for one in topics])


async def until(check: Callable[[], bool], every_s: float = 0.02, within_s: float = 300.0) -> None:
    """Wait for something that counters tell.

    Raises:
        TimeoutError: it did not come.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while not check():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"not within {within_s} s")
        await asyncio.sleep(every_s)
