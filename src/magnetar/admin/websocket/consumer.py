"""A consumer's or a reader's WebSocket: messages out; acknowledgements, permits and questions in.

    push   at most `receiverQueueSize` messages are on their way without an acknowledgement; each acknowledgement, positive
           or negative, permits one more. So a page that does not acknowledge is not flooded.
    pull   as many messages are sent as `permit` requests

The broker counts permits of each partition, and sends whole batches. Messages that arrived and may not be sent yet wait
here.

A reader's acknowledgements permit more messages, and acknowledge nothing.
"""

import asyncio
import logging
from collections import deque
from typing import Any, Final, Literal, NamedTuple

import msgspec

from magnetar.admin.websocket.client import BrokerClient
from magnetar.admin.websocket.options import ConsumerOptions, ProducerOptions, message_id
from magnetar.admin.websocket.outgoing import Outgoing
from magnetar.admin.websocket.publisher import Publisher
from magnetar.admin.websocket.reopening import open_again
from magnetar.admin.websocket.unpacking import Beside, Hold, Unpacked, Unpacker, Unreadable
from magnetar.core.errors import BrokerError, MagnetarError
from magnetar.storage.cursor import words_of
from magnetar.wire import pulsar_pb2 as pb

logger = logging.getLogger(__name__)

SUBSCRIBE: Final = 4
MESSAGE: Final = 9
ACK: Final = 10
FLOW: Final = 11
UNSUBSCRIBE: Final = 12
CLOSE_CONSUMER: Final = 16
REDELIVER: Final = 20
REACHED_END_OF_TOPIC: Final = 27

REOPEN_FOR_S: Final = 30.0
"""The time for which a consumer that the broker closed (a seek, an unload) is opened again."""

PERMITS_MAX: Final = 10_000
"""A ceiling on permits that are asked for at once."""

CREDIT_MAX: Final = 1 << 30
"""A ceiling on permits that are not used."""

DEAD_LETTERS_ID: Final = 1 << 20
"""The id of the first producer of dead letters: above the ids of all consumers."""

DEAD_LETTERS: Final = ProducerOptions("", None, 30_000, 1_000, "JavaStringHash", False, "NONE")

NACKED_MAX: Final = 10_000
"""Messages that stay away after a negative acknowledgement; beyond it the oldest comes again at once."""

BATCH_MAX: Final = 1 << 20
"""A ceiling on messages of a batch of which an application acknowledges one that it was not sent here."""

MessageKey = tuple[int, int, int, int]
"""Partition, ledger, entry, index in its batch (-1: none)."""


class Said(msgspec.Struct, rename="camel"):
    """A command of an application (Pulsar's ConsumerCommand)."""

    type: Literal["", "ack", "negativeAcknowledge", "permit", "unsubscribe", "isEndOfTopic"] = ""
    message_id: str = ""
    permit_messages: int = 0


class Sent(NamedTuple):
    """A message that was sent.

    Attributes:
        at_s: when it was sent, by the loop's clock.
        ids: ids that are acknowledged with it: chunks before its last one, and itself.
    """

    at_s: float
    ids: tuple[pb.MessageIdData, ...]


class Part:
    """The consumer of one partition."""

    def __init__(self, topic: str, partition: int, unpacker: Unpacker) -> None:
        self.topic, self.partition, self.unpacker = topic, partition, unpacker
        self.ended = False
        self.last: pb.MessageIdData | None = None
        """The newest message that was unpacked: a reader that is opened again continues after it."""
        self.sent: pb.MessageIdData | None = None
        """The newest message that was sent."""
        self.closings = 0
        """The number of times that its consumer was closed."""
        self.permits = 0
        """Permits that were granted and not used, negative after a large batch; granted again when the consumer is
        opened again.
        """

    def behind(self, messages: list[Unpacked]) -> list[Unpacked]:
        """The messages of an entry after the last one: a reader's first entry may contain messages before its start."""
        last = self.last
        if last is None:
            return messages
        return [message for message in messages if _after(message.id, last)]


class ConsumerSocket:
    """One consumer or reader.

    Args:
        options: options of its URL.
        topic: its full name.
        beside: runs heavy work on another thread.
        hold: holds memory for large payloads; None: no limit.
    """

    def __init__(self, options: ConsumerOptions, topic: str, beside: Beside, hold: Hold | None = None) -> None:
        self._options, self._topic, self._beside, self._hold = options, topic, beside, hold
        self._parts: list[Part] = []
        self._came: deque[tuple[Part, pb.CommandMessage, bytes]] = deque()
        self._news = asyncio.Event()
        self._ready: deque[tuple[Part, Unpacked, int]] = deque()
        self._credit = 0
        """The number of messages that may still be sent."""
        self._sent: dict[MessageKey, Sent] = {}
        self._nacked: dict[MessageKey, Sent] = {}
        """Messages to be redelivered later, in the order of their times."""
        self._nacks: asyncio.TimerHandle | None = None
        self._client: BrokerClient | None = None
        self._outgoing: Outgoing | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead: Publisher | None = None
        self.failed = asyncio.Event()
        self.reason = ""

    async def open(self, client: BrokerClient) -> None:
        """Subscribe to all partitions.

        Raises:
            BrokerError: the broker refuses.
        """
        self._client = client
        partitions = await client.partitions(self._topic)
        names = [(f"{self._topic}-partition-{number}", number) for number in range(partitions)] or [(self._topic, -1)]
        self._parts = [
            Part(topic, partition, Unpacker(partition, self._beside, self._hold)) for topic, partition in names
        ]
        for part in self._parts:
            if self._options.start is not None and self._options.start.entryId < 1 << 62:
                part.last = part.sent = self._options.start
        for number in range(len(self._parts)):
            await self._subscribe(number)

    def start(self, outgoing: Outgoing) -> None:
        """The WebSocket is there: messages may come."""
        self._outgoing = outgoing
        self._run(self._send())
        if self._options.ack_ms:
            self._run(self._look())
        if not self._options.pull:
            self._credit = self._options.queue
            each, more = divmod(self._options.queue, len(self._parts))
            for number in range(len(self._parts)):
                self._flow(number, max(1, each + (1 if number < more else 0)))

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A WebSocket that hears nothing more would be worse than one that ends.
            logger.error("a WebSocket's consumer of %s ends: %r", self._topic, error, exc_info=error)
            self._fail(MagnetarError("the broker made a mistake; its log says more"))

    async def _subscribe(self, number: int) -> None:
        assert self._client is not None
        part, options = self._parts[number], self._options
        command = pb.CommandSubscribe(
            topic=part.topic,
            subscription=options.subscription,
            subType=int(options.kind),
            consumer_id=number,
            request_id=self._client.request_id(),
            durable=options.durable,
            initialPosition=1 if options.earliest else 0,
            priority_level=options.priority,
        )
        if options.name:
            command.consumer_name = options.name
        if options.start is not None:
            command.start_message_id.CopyFrom(part.last or options.start)
        await self._client.ask(pb.BaseCommand(type=SUBSCRIBE, subscribe=command))

    # -------------------------------------------------------------------------------------------------------- permits

    def _permit(self, permits: int) -> None:
        """Grant this many more permits, for messages from any partition."""
        self._credit = min(self._credit + permits, CREDIT_MAX)
        for number in range(len(self._parts)):
            self._top_up(number)
        self._news.set()

    def _top_up(self, number: int) -> None:
        """Pull: each partition gets permits for all requested messages. Surplus messages wait here for later
        requests.
        """
        self._flow(number, self._credit - self._parts[number].permits - len(self._ready))

    def _one_more(self, number: int) -> None:
        """A message that was sent is settled: push another."""
        if not self._options.pull:
            self._credit += 1
            self._flow(number, 1)
            self._news.set()

    def _flow(self, number: int, permits: int) -> None:
        assert self._client is not None
        if permits > 0:
            self._parts[number].permits += permits
            flow = pb.CommandFlow(consumer_id=number, messagePermits=permits)
            self._client.tell(pb.BaseCommand(type=FLOW, flow=flow))

    def _number(self, part: Part) -> int:
        return max(part.partition, 0)

    # ------------------------------------------------------------------------------------------------- from the broker

    def heard(self, command: pb.BaseCommand, payload: bytes) -> None:
        """The broker says something."""
        match command.type:
            case 9:
                part = self._parts[command.message.consumer_id]
                self._came.append((part, command.message, payload))
                if self._outgoing is not None:
                    self._outgoing.held(len(payload))
                self._news.set()
            case 16:
                part = self._parts[command.close_consumer.consumer_id]
                self._drop(part)
                self._run(self._reopen(command.close_consumer.consumer_id))
            case 27:
                self._parts[command.reachedEndOfTopic.consumer_id].ended = True
            case _:
                if self._dead is not None:
                    self._dead.heard(command)

    def _drop(self, part: Part) -> None:
        """Its consumer was closed: messages that arrived and were not sent will arrive again, if they are stored."""
        if self._topic.startswith("non-persistent:"):
            return
        for each, _, payload in self._came:
            if each is part:
                self._waits(-len(payload))
        self._came = deque(entry for entry in self._came if entry[0] is not part)
        for each, message, _ in self._ready:
            if each is part:
                part.permits += 1
                self._waits(-len(message.payload))
        self._ready = deque(entry for entry in self._ready if entry[0] is not part)
        part.unpacker.forget()
        part.closings += 1
        if self._options.start is not None:
            part.last = part.sent

    def _waits(self, size: int) -> None:
        if self._outgoing is not None:
            self._outgoing.held(size)

    async def _reopen(self, number: int) -> None:
        assert self._client is not None
        part = self._parts[number]
        try:
            if not await open_again(self._client, lambda: self._subscribe(number), for_s=REOPEN_FOR_S):
                return
        except BrokerError as error:
            self._fail(error)
            return
        # Messages that were on their way will arrive again: they no longer count against permits.
        waits = sum(key[0] == part.partition for key in self._sent)
        self._sent = {key: sent for key, sent in self._sent.items() if key[0] != part.partition}
        permits, part.permits = part.permits, 0
        if self._options.pull:
            self._top_up(number)
        else:
            self._credit += waits
            self._flow(number, permits + waits)

    def _fail(self, error: MagnetarError) -> None:
        self.reason = str(error)
        self.failed.set()

    async def _send(self) -> None:
        """Send what is ready, and take entries apart as long as more may be sent. All in order."""
        while True:
            await self._news.wait()
            self._news.clear()
            while True:
                while self._ready and (self._credit > 0 or _message_key(self._ready[0][1].id) in self._sent):
                    self._next()
                if self._ready or self._credit <= 0 or not self._came:
                    break
                part, command, payload = self._came.popleft()
                try:
                    await self._entry(part, command, payload)
                    if part.unpacker.holding:
                        # Shared memory must not wait for permits: a large batch is sent whole, and no other one after
                        # it.
                        while self._ready:
                            self._next()
                        self._waits(-len(payload))
                        payload = b""
                        assert self._outgoing is not None
                        await self._outgoing.written()
                finally:
                    self._waits(-len(payload))
                    for held in part.unpacker.holding:
                        held.release()
                    part.unpacker.holding.clear()

    def _next(self) -> None:
        part, message, redeliveries = self._ready.popleft()
        self._waits(-len(message.payload))
        self._put(part, message, redeliveries)

    async def _entry(self, part: Part, command: pb.CommandMessage, payload: bytes) -> None:
        closings = part.closings
        try:
            messages = await part.unpacker.messages(command, payload)
        except Unreadable:
            self._acknowledge(part, command.message_id, unreadable=True)
            messages = []
        except MagnetarError as error:
            self._fail(error)
            return
        if part.closings != closings:
            return  # its consumer was closed meanwhile, and the entry comes again
        for chunk in part.unpacker.given_up:
            self._acknowledge(part, chunk)
        part.unpacker.given_up.clear()
        for chunk in part.unpacker.put_back:
            self._stay_away(_message_key(chunk, part.partition), (chunk,))
        part.unpacker.put_back.clear()
        # A permit is one message. The broker took one for each of the batch that is left, and for a chunk.
        part.permits -= max(1, len(messages))
        if self._options.start is not None:
            messages = part.behind(messages)
        if not messages:
            self._flow(self._number(part), 1)
        for message in messages:
            part.last = message.id
            if self._options.redeliveries_max and command.redelivery_count >= self._options.redeliveries_max:
                await self._bury(part, message)
                continue
            self._waits(len(message.payload))
            self._ready.append((part, message, command.redelivery_count))

    def _put(self, part: Part, message: Unpacked, redeliveries: int) -> None:
        """Send a message."""
        assert self._outgoing is not None
        key = _message_key(message.id)
        self._nacked.pop(key, None)
        if key in self._sent:
            # The broker sends again what is not acknowledged, as an exclusive subscription does with all of it.
            self._flow(self._number(part), 1)
        else:
            self._credit -= 1
        part.sent = message.id
        self._sent[key] = Sent(asyncio.get_running_loop().time(), (*message.others, message.id))
        self._outgoing.put(message.shown | {"redeliveryCount": redeliveries})

    # ------------------------------------------------------------------------------------------------ from the WebSocket

    async def text(self, text: str, outgoing: Outgoing) -> None:
        """The application says something.

        Raises:
            MagnetarError: nothing that it can say; the WebSocket is closed with the reason.
        """
        try:
            said = msgspec.json.decode(text, type=Said)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MagnetarError(f"this is not a command of a consumer: {error}") from None
        match said.type:
            case "permit":
                if not self._options.pull:
                    raise MagnetarError("permits are given with pullMode=true")
                if not 0 < said.permit_messages <= PERMITS_MAX:
                    raise MagnetarError(f"permitMessages is 1 to {PERMITS_MAX}, not {said.permit_messages}")
                self._permit(said.permit_messages)
            case "isEndOfTopic":
                ended = all(part.ended for part in self._parts)
                await outgoing.room()
                outgoing.put({"endOfTopic": ended})
            case "unsubscribe":
                await self._unsubscribe()
            case "negativeAcknowledge":
                self._negative(*self._named(said.message_id))
            case _:
                self._settle(*self._named(said.message_id))

    def _named(self, text: str) -> tuple[MessageKey, pb.MessageIdData]:
        """The message of an id."""
        named = message_id(text)
        key = _message_key(named)
        if max(key[0], 0) >= len(self._parts) or key[0] < self._parts[0].partition:
            raise MagnetarError(f"the topic has no partition {key[0]}")
        if named.batch_size > BATCH_MAX or named.batch_index >= max(named.batch_size, 1):
            raise MagnetarError(f"no batch has a message {named.batch_index} of {named.batch_size}")
        return key, named

    def _settle(self, key: MessageKey, named: pb.MessageIdData) -> None:
        """Acknowledge a message: one that was sent, or that was sent to another consumer before this one."""
        part = self._parts[max(key[0], 0)]
        if (sent := self._sent.pop(key, None)) is not None:
            self._one_more(self._number(part))
        else:
            sent = self._nacked.pop(key, None)
        for each in sent.ids if sent is not None else (named,):
            self._acknowledge(part, each)

    def _acknowledge(self, part: Part, message_id: pb.MessageIdData, *, unreadable: bool = False) -> None:
        assert self._client is not None
        if self._options.start is not None:
            return  # a reader's position is the last message that it read
        acked = pb.MessageIdData(ledgerId=message_id.ledgerId, entryId=message_id.entryId)
        if message_id.batch_size > 0 and message_id.batch_index >= 0:
            acked.ack_set.extend(words_of(((1 << message_id.batch_size) - 1) & ~(1 << message_id.batch_index)) or [0])
            acked.batch_size = message_id.batch_size
        ack = pb.CommandAck(consumer_id=self._number(part), ack_type=0, message_id=[acked])
        if unreadable:
            ack.validation_error = 1  # DecompressionError
        self._client.tell(pb.BaseCommand(type=ACK, ack=ack))

    def _negative(self, key: MessageKey, named: pb.MessageIdData) -> None:
        if key in self._nacked:
            return
        sent = self._sent.pop(key, None)
        if sent is not None:
            self._one_more(max(key[0], 0))
        self._stay_away(key, sent.ids if sent is not None else (named,))

    def _stay_away(self, key: MessageKey, ids: tuple[pb.MessageIdData, ...]) -> None:
        """Ask for a message again when it stayed away for long enough."""
        loop = asyncio.get_running_loop()
        self._nacked.pop(key, None)
        self._nacked[key] = Sent(loop.time() + self._options.nack_ms / 1000, ids)
        if len(self._nacked) > NACKED_MAX:
            self._again([next(iter(self._nacked))])
        if self._nacks is None:
            self._nacks = loop.call_later(self._options.nack_ms / 1000, self._nacks_due)

    def _nacks_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._nacks = None
        now_s = loop.time()
        self._again([key for key, sent in self._nacked.items() if sent.at_s <= now_s])
        if self._nacked:
            first = next(iter(self._nacked.values()))
            self._nacks = loop.call_later(max(0.0, first.at_s - now_s), self._nacks_due)

    async def _look(self) -> None:
        """Redeliver messages that are unacknowledged for too long."""
        while True:
            await asyncio.sleep(min(1.0, self._options.ack_ms / 4000))
            late_s = asyncio.get_running_loop().time() - self._options.ack_ms / 1000
            self._again([key for key, sent in self._sent.items() if sent.at_s <= late_s])

    def _again(self, keys: list[MessageKey]) -> None:
        """Ask for messages again; others of their batches that are not acknowledged come with them."""
        if self._client is None or self._client.ended.is_set():
            return
        entries = {key[:3] for key in keys}
        ids: dict[int, set[tuple[int, int]]] = {}
        for kept, counted in ((self._sent, True), (self._nacked, False)):
            for key in [key for key in kept if key[:3] in entries]:
                number = max(key[0], 0)
                asked = ids.setdefault(number, set())
                asked.update((each.ledgerId, each.entryId) for each in kept.pop(key).ids)
                if counted:
                    self._one_more(number)
        for number, own in ids.items():
            command = pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=number,
                message_ids=[pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in sorted(own)],
            )
            self._client.tell(pb.BaseCommand(type=REDELIVER, redeliverUnacknowledgedMessages=command))

    async def _unsubscribe(self) -> None:
        assert self._client is not None
        for number in range(len(self._parts)):
            command = pb.CommandUnsubscribe(consumer_id=number, request_id=self._client.request_id())
            await self._client.ask(pb.BaseCommand(type=UNSUBSCRIBE, unsubscribe=command))
        self.reason = "unsubscribed"
        self.failed.set()

    async def _bury(self, part: Part, message: Unpacked) -> None:
        """Publish a message to the topic of dead letters, and acknowledge it when it is there."""
        assert self._client is not None
        try:
            if self._dead is None:
                topic = self._options.dead_letters or f"{self._topic}-{self._options.subscription}-DLQ"
                topic = topic if "://" in topic else f"{self._topic.rpartition('/')[0]}/{topic}"
                dead = Publisher(self._client, topic, DEAD_LETTERS, first_id=DEAD_LETTERS_ID, failed=self._fail)
                self._dead = dead
                await dead.open()
            metadata = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
            metadata.properties.extend(message.metadata.properties)
            origin = {
                "REAL_TOPIC": part.topic,
                "REAL_SUBSCRIPTION": self._options.subscription,
                "ORIGIN_MESSAGE_ID": f"{message.id.ledgerId}:{message.id.entryId}:{part.partition}",
            }
            metadata.properties.extend(pb.KeyValue(key=key, value=value) for key, value in origin.items())
            if message.metadata.HasField("partition_key"):
                metadata.partition_key = message.metadata.partition_key
            await self._dead.publish(metadata, message.payload)
        except BrokerError as error:
            self._fail(error)
            return
        for each in (*message.others, message.id):
            self._acknowledge(part, each)
        self._flow(self._number(part), 1)

    def stop(self) -> None:
        """Nothing more can arrive: wake the waiting tasks."""
        self.failed.set()

    async def close(self) -> None:
        """The WebSocket is gone."""
        if self._nacks is not None:
            self._nacks.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._dead is not None:
            self._dead.close()


def _after(message_id: pb.MessageIdData, last: pb.MessageIdData) -> bool:
    if (message_id.ledgerId, message_id.entryId) != (last.ledgerId, last.entryId):
        return (message_id.ledgerId, message_id.entryId) > (last.ledgerId, last.entryId)
    return -1 < last.batch_index < message_id.batch_index


def _message_key(message_id: pb.MessageIdData, partition: int | None = None) -> MessageKey:
    return (
        message_id.partition if partition is None else partition,
        message_id.ledgerId,
        message_id.entryId,
        message_id.batch_index,
    )
