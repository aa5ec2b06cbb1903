"""Many raw clients in one event loop: connections, producers, consumers, with counters instead of queues."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench.loadgen import send_head
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import FrameDecoder, encode

PERMITS = 1_000

ACKS_S = 0.1
"""Acknowledgements are gathered so long,"""

ACKS_MAX = 1_000
"""or until there are so many: as the official clients do by default."""


class Crowd(asyncio.Protocol):
    """One connection.

    Attributes:
        received: messages, by consumer id.
        confirmed: receipts.
    """

    def __init__(self) -> None:
        self.received: dict[int, int] = {}
        self.confirmed = 0
        self.refused = 0
        self.acknowledges = True
        self._decoder = FrameDecoder(1 << 26)
        self._answers: dict[int, asyncio.Future[pb.BaseCommand]] = {}
        self._granted: dict[int, int] = {}
        self._acks: dict[int, list[pb.MessageIdData]] = {}
        self._requests = 0
        self._transport: asyncio.Transport | None = None
        self.on_receipt: Callable[[], None] = lambda: None
        self.on_message: Callable[[int, pb.CommandMessage], None] = lambda _consumer, _message: None

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
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

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

    def data_received(self, data: bytes) -> None:
        """What the broker says."""
        for frame in self._decoder.feed(data):
            command = frame.command
            kind = command.type
            if kind == 9:
                self._message(command.message, frame.payload)
            elif kind == 7:
                self.confirmed += 1
                self.on_receipt()
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

    def _message(self, message: pb.CommandMessage, payload: Any) -> None:
        consumer = message.consumer_id
        count = _count(payload)
        self.received[consumer] = self.received.get(consumer, 0) + count
        self.on_message(consumer, message)
        if not self.acknowledges:
            return
        acks = self._acks.get(consumer)
        if acks is None:
            acks = self._acks[consumer] = []
            asyncio.get_running_loop().call_later(ACKS_S, self._acknowledge_rest, consumer)
        acks.append(message.message_id)
        if len(acks) >= ACKS_MAX:
            self._acknowledge(consumer, acks)
            acks.clear()
        self._granted[consumer] = self._granted.get(consumer, 0) + count
        if self._granted[consumer] >= PERMITS // 2:
            self.flow(consumer, self._granted.pop(consumer))

    def _acknowledge_rest(self, consumer: int) -> None:
        acks = self._acks.pop(consumer, None)
        if acks:
            self._acknowledge(consumer, acks)

    def _acknowledge(self, consumer: int, ids: list[pb.MessageIdData]) -> None:
        ack = pb.CommandAck(consumer_id=consumer, ack_type=0, message_id=ids)
        self.write(encode(pb.BaseCommand(type=10, ack=ack)))

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


def _count(payload: Any) -> int:
    """Messages of an entry, as its metadata says."""
    view = memoryview(payload)
    size = int.from_bytes(view[6:10], "big")
    return pb.MessageMetadata.FromString(bytes(view[10 : 10 + size])).num_messages_in_batch


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
