"""Producers and consumers that speak the protocol as the official clients do, and misbehave as users do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.core.ids import Position
from magnetar.storage.cursor import bits_of, words_of
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import encode, encode_with_payload
from magnetar.wire.versions import PROTOCOL_VERSION
from magnetar_sim.connections.net import Connection, Network, Server
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.records import Published, entry_bytes, uid_of

CONNECT: Final = encode(
    pb.BaseCommand(type=pb.CONNECT, connect=pb.CommandConnect(client_version="sim", protocol_version=PROTOCOL_VERSION))
)

PERMITS: Final = 500
"""A consumer's queue, as official clients have it: asked for again when half of it is used."""

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = 0, 1, 2, 3


class ClientEvents(Protocol):
    """What clients report; see `observers.Observer`."""

    def before(self, consumer: "Consumer", frame: Frame) -> None:
        """A consumer's frame is about to reach its broker."""

    def behind(self, consumer: "Consumer", frame: Frame) -> None:
        """The broker has handled the frame."""

    def sent(self, consumer: "Consumer", frame: Frame) -> None:
        """A broker sends a message to a consumer."""

    def delivered(self, consumer: "Consumer", uids: set[int]) -> None:
        """Messages reached a consumer."""

    def ack_answered(self, consumer: "Consumer", response: pb.CommandAckResponse) -> None:
        """A consumer's acknowledgement was answered."""

    def seek_answered(self, consumer: "Consumer") -> None:
        """A consumer's seek was answered."""

    def receipted(self, cluster: str, entry: Published) -> None:
        """A producer has the receipt of an entry."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every client needs of its world.

    Attributes:
        context: of the world.
        net: what connections are made over.
        clusters: by their names.
        published: entries by their uid.
        events: what clients see is reported to it.
    """

    context: WorldContext
    net: Network
    clusters: Mapping[str, Server]
    published: Mapping[int, Published]
    events: ClientEvents


class Client:
    """One connection to one cluster's broker.

    Args:
        around: the world.
        cluster: whom to talk to.
    """

    each_frame = True

    def __init__(self, around: Surroundings, cluster: str) -> None:
        self.around, self.cluster = around, cluster
        self.requests = 0
        self.connection: Connection | None = around.net.connect(around.clusters[cluster], f"near {cluster}", self)
        if self.connection is not None:
            self.connection.send(CONNECT)

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return self.connection is not None and self.connection.open

    def request(self, kind: int, **body: object) -> int:
        """Send a command with a request id."""
        self.requests += 1
        (name, value), *_ = body.items()
        value.request_id = self.requests  # type: ignore[attr-defined]
        self.put(encode(pb.BaseCommand(type=kind, **{name: value})))  # type: ignore[arg-type]
        return self.requests

    def put(self, data: bytes) -> None:
        """Send bytes."""
        if self.connection is not None:
            self.connection.send(data)

    def before(self, frame: Frame) -> None:
        """See `net.End`."""

    def behind(self, frame: Frame) -> None:
        """See `net.End`."""

    def sent(self, frames: list[Frame]) -> None:
        """See `net.End`."""

    def arrived(self, frames: list[Frame]) -> None:
        """The broker's PING is answered here."""
        for frame in frames:
            if frame.command.type == pb.PING:
                self.put(encode(pb.BaseCommand(type=pb.PONG, pong=pb.CommandPong())))
            else:
                self.frame(frame)

    def frame(self, frame: Frame) -> None:
        """A frame of the broker that is no PING."""

    def closed(self) -> None:
        """The connection is gone."""

    def close(self) -> None:
        """Hang up."""
        if self.connection is not None:
            self.connection.close()


AVRO = 4
SCHEMAS = [
    b"",
    *(
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}%s]}' % more
        for more in (b"", *(b',{"name":"%s","type":"int","default":0}' % name for name in (b"b", b"c", b"d")))
    ),
]
"""What producers bring, where worlds have schemas: all are compatible with each other."""


class Publisher(Client):
    """A producer of one topic; a broken one is thrown away.

    Args:
        around, cluster: as `Client`.
        topic: full name.
    """

    def __init__(self, around: Surroundings, cluster: str, topic: str) -> None:
        super().__init__(around, cluster)
        self.topic = topic
        self.ready = False
        self.schema = around.context.rng.choice(SCHEMAS) if around.context.options.schemas else b""
        self._version = b""
        self._queue: list[Published] = []
        self._sent: dict[int, Published] = {}
        if self.open:
            producer = pb.CommandProducer(topic=topic, producer_id=1, request_id=0)
            if self.schema:
                producer.schema.CopyFrom(pb.Schema(name="R", schema_data=self.schema, type=AVRO))
            self.request(pb.PRODUCER, producer=producer)

    def publish(self, entry: Published) -> None:
        """Send an entry, as soon as the producer is open."""
        self._queue.append(entry)
        self._flush()

    def _flush(self) -> None:
        if not self.ready:
            return
        for entry in self._queue:
            self._sent[entry.uid] = entry
            command = pb.BaseCommand(
                type=pb.SEND, send=pb.CommandSend(producer_id=1, sequence_id=entry.uid, num_messages=entry.count)
            )
            entry.schema = self.schema
            self.put(b"".join(encode_with_payload(command, [entry_bytes(entry, self._version)])))
        self._queue.clear()

    def frame(self, frame: Frame) -> None:
        """Receipts and refusals."""
        kind = frame.command.type
        if kind == pb.PRODUCER_SUCCESS:
            self.ready = frame.command.producer_success.producer_ready
            self._version = frame.command.producer_success.schema_version
            self._flush()
        elif kind == pb.SEND_RECEIPT:
            entry = self._sent.pop(frame.command.send_receipt.sequence_id, None)
            if entry is not None:
                entry.receipted = True
                self.around.events.receipted(self.cluster, entry)
        elif kind in (pb.SEND_ERROR, pb.ERROR, pb.CLOSE_PRODUCER):
            self.close()


@dataclass(slots=True)
class Received:
    """A message (or batch) that waits for its acknowledgement: `bits` has a 1 for each message that is not acknowledged."""

    position: Position
    uid: int
    count: int
    bits: int


class Consumer(Client):
    """A consumer of one subscription.

    Args:
        around, cluster: as `Client`.
        topic, subscription: of what.
        kind: subscription type.
        replicated: the client's flag.
        earliest: where a new subscription starts, else at the latest.
    """

    def __init__(
        self,
        around: Surroundings,
        cluster: str,
        topic: str,
        subscription: str,
        kind: int,
        *,
        replicated: bool,
        earliest: bool,
    ) -> None:
        # Before the connection: the broker may find the end of its lease while it accepts, and close it at once.
        self.received: list[Received] = []
        super().__init__(around, cluster)
        self.topic, self.subscription, self.kind = topic, subscription, kind
        self.ready = False
        self._unused = 0
        self._seeks: set[int] = set()
        self._subscribe = pb.CommandSubscribe(
            topic=topic, subscription=subscription, subType=kind, consumer_id=1, request_id=0,
            initialPosition=int(earliest), replicate_subscription_state=replicated,
        )  # fmt: skip
        if self.open:
            self.request(pb.SUBSCRIBE, subscribe=self._subscribe)

    def before(self, frame: Frame) -> None:
        """Observers see what its frames do."""
        self.around.events.before(self, frame)

    def behind(self, frame: Frame) -> None:
        """Observers see what its frames did."""
        self.around.events.behind(self, frame)

    def sent(self, frames: list[Frame]) -> None:
        """Observers see messages when they are sent."""
        for frame in frames:
            if frame.command.type == pb.MESSAGE:
                self.around.events.sent(self, frame)

    def frame(self, frame: Frame) -> None:
        """Messages; the end of it all."""
        command = frame.command
        if command.type == pb.MESSAGE:
            self._message(frame)
        elif command.type == pb.SUCCESS and not self.ready:
            self.ready = True
            self.flow(PERMITS)
        elif command.type == pb.SUCCESS and command.success.request_id in self._seeks:
            self.around.events.seek_answered(self)
        elif command.type == pb.ACK_RESPONSE:
            self.around.events.ack_answered(self, command.ackResponse)
        elif command.type in (pb.ERROR, pb.CLOSE_CONSUMER):
            self.close()

    def closed(self) -> None:
        """What was not acknowledged comes again, to any consumer."""
        self.received.clear()

    def flow(self, permits: int) -> None:
        """Ask for messages."""
        self._unused += permits
        self.put(encode(pb.BaseCommand(type=pb.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=permits))))

    def _message(self, frame: Frame) -> None:
        message = frame.command.message
        position = Position(message.message_id.ledgerId, message.message_id.entryId)
        published = self.around.published[uid_of(frame.payload)]
        full = (1 << published.count) - 1
        bits = bits_of(message.ack_set) & full if message.ack_set else full
        self.received.append(Received(position, published.uid, published.count, bits))
        uids = {published.uid + number for number in range(published.count) if bits >> number & 1}
        self.around.events.delivered(self, uids)
        self._unused -= bits.bit_count()
        if self._unused < PERMITS // 2:
            self.flow(PERMITS)

    # --------------------------------------------------------------------------------------------------- acknowledging

    def ack(self, chosen: list[Received], *, answer: bool = False) -> None:
        """Acknowledge whole entries, one by one."""
        command = pb.CommandAck(consumer_id=1, ack_type=0)
        for one in chosen:
            command.message_id.add(ledgerId=one.position.ledger, entryId=one.position.entry)
            self.received.remove(one)
        self._put_ack(command, answer=answer)

    def ack_some(self, one: Received, keep: int) -> None:
        """Acknowledge messages of a batch: those whose bit is not in `keep`."""
        one.bits &= keep
        command = pb.CommandAck(consumer_id=1, ack_type=0)
        item = command.message_id.add(ledgerId=one.position.ledger, entryId=one.position.entry)
        if one.bits:
            item.ack_set.extend(words_of(keep))
        else:
            self.received.remove(one)
        self._put_ack(command, answer=False)

    def ack_through(self, one: Received, *, answer: bool = False) -> None:
        """Acknowledge everything up to an entry."""
        command = pb.CommandAck(consumer_id=1, ack_type=1)
        command.message_id.add(ledgerId=one.position.ledger, entryId=one.position.entry)
        self.received = [other for other in self.received if other.position > one.position]
        self._put_ack(command, answer=answer)

    def _put_ack(self, command: pb.CommandAck, *, answer: bool) -> None:
        if answer:
            self.request(pb.ACK, ack=command)
        else:
            self.put(encode(pb.BaseCommand(type=pb.ACK, ack=command)))

    def ack_ids(self, positions: list[Position]) -> None:
        """Acknowledge entries one by one, received or not."""
        self.received = [one for one in self.received if one.position not in positions]
        command = pb.CommandAck(consumer_id=1, ack_type=0)
        for position in positions:
            command.message_id.add(ledgerId=position.ledger, entryId=position.entry)
        self._put_ack(command, answer=False)

    def seek(self, position: Position, bits: int = 0) -> None:
        """Go to a message; `bits`: of its batch, those that are to come."""
        target = pb.MessageIdData(ledgerId=position.ledger % (1 << 64), entryId=position.entry % (1 << 64))
        target.ack_set.extend(words_of(bits) if bits else ())
        self._seeks.add(self.request(pb.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=0, message_id=target)))

    def seek_time(self, time_ms: int) -> None:
        """Go to what was published then."""
        self._seeks.add(
            self.request(pb.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=0, message_publish_time=time_ms))
        )

    def unsubscribe(self) -> None:
        """Give the subscription up."""
        self.request(pb.UNSUBSCRIBE, unsubscribe=pb.CommandUnsubscribe(consumer_id=1, request_id=0, force=True))

    def redeliver(self) -> None:
        """Ask for everything unacknowledged again."""
        self.received.clear()
        command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        self.put(
            encode(pb.BaseCommand(type=pb.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=command))
        )
