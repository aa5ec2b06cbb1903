"""One consumer of one subscription: its permits, and its unacknowledged entries."""

from dataclasses import dataclass, field
from enum import IntEnum
from operator import add
from typing import Any, NamedTuple

from magnetar.broker.client_bytes import NOTHING_HELD, Held
from magnetar.broker.connection import Connection
from magnetar.core.ids import Position
from magnetar.core.meter import Meter
from magnetar.core.times import iso_time
from magnetar.schemas.types import SchemaType
from magnetar.wire import pulsar_pb2 as pb


class SubType(IntEnum):
    """Pulsar's subscription types (CommandSubscribe.SubType)."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def shown(self) -> str:
        """The name in statistics."""
        return _SHOWN[self]


_SHOWN = {
    SubType.EXCLUSIVE: "Exclusive",
    SubType.SHARED: "Shared",
    SubType.FAILOVER: "Failover",
    SubType.KEY_SHARED: "Key_Shared",
}

PERMITS_MAX = (1 << 31) - 1
"""Ceiling: permits are a sum of u32 numbers from outside; a larger number is not a receiver queue. It is the highest
number that clients can read in statistics (Java's int).
"""


class Counters(NamedTuple):
    """Counters of one consumer, or sums over several."""

    messages_out: int = 0
    bytes_out: int = 0
    messages_redelivered: int = 0
    messages_acked: int = 0
    chunks_out: int = 0

    @classmethod
    def of(cls, consumer: "Consumer") -> "Counters":
        """A consumer's."""
        return cls(
            consumer.messages_out,
            consumer.bytes_out,
            consumer.messages_redelivered,
            consumer.messages_acked,
            consumer.chunks_out,
        )

    def __add__(self, other: tuple[int, ...]) -> "Counters":  # type: ignore[override]
        """Sum, number by number."""
        return Counters(*map(add, self, other))


def rates_out(meter: Meter) -> dict[str, float]:
    """Rates from `Counters`, with Pulsar's keys."""
    messages_out, bytes_out, redelivered, acked, chunks = meter.per_s
    return {
        "msgRateOut": messages_out,
        "msgThroughputOut": bytes_out,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acked,
        "chunkedMessageRate": chunks,
    }


@dataclass(slots=True, eq=False)
class Consumer:
    """A client's consumer, from SUBSCRIBE to its end.

    Attributes:
        connection: its connection.
        consumer_id: its number on that connection.
        name: chosen by the client or the broker.
        priority: 0 is the highest.
        epoch: CommandSubscribe.consumer_epoch, or None; echoed in every MESSAGE (PIP-84).
        protocol_version: agreed with the client.
        permits: messages that may still be sent to it; below zero after a batch larger than the rest.
        paused: its connection accepts no more bytes for now.
        blocked: it holds too many unacknowledged messages (Shared and Key_Shared).
        returning: entries that it gave back are still being returned; until that is done, nothing is sent to it (Shared
            and Key_Shared).
        pending: entries that were sent to it and are not acknowledged, with the number of messages left in each; kept
            for Shared and Key_Shared only, in order of sending.
        unacked: messages in `pending`.
        first_flow_ms, flow_ms: when it first and last requested messages, wall clock; 0 for never. Likewise
            `first_sent_ms` and `last_consumed_ms` for messages sent to it, `last_acked_ms` for its acknowledgements.
        cumulative: it acknowledged cumulatively at least once.
        remembers: its client can be sent TOPIC_MIGRATED (`Connection.remembers_migration`).
        learns_end: REACHED_END_OF_TOPIC may be sent to its client (`Connection.learns_end`); False after it was sent.
        held: its share of the memory for clients' metadata.
        auto_schema: it accepts any schema of the topic (AUTO_CONSUME).
    """

    connection: int
    consumer_id: int
    name: str
    sub_type: SubType
    priority: int = 0
    epoch: int | None = None
    protocol_version: int = 0
    address: str = ""
    connected_ms: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    permits: int = 0
    paused: bool = False
    blocked: bool = False
    returning: bool = False
    pending: dict[Position, int] = field(default_factory=dict)
    unacked: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    entries_out: int = 0
    messages_redelivered: int = 0
    messages_acked: int = 0
    chunks_out: int = 0
    first_flow_ms: int = 0
    flow_ms: int = 0
    first_sent_ms: int = 0
    last_consumed_ms: int = 0
    last_acked_ms: int = 0
    cumulative: bool = False
    remembers: bool = False
    learns_end: bool = False
    auto_schema: bool = False
    held: Held = NOTHING_HELD
    meter: Meter = field(init=False)

    @classmethod
    def of_command(cls, connection: Connection, command: pb.CommandSubscribe, name: str, now_ms: int) -> "Consumer":
        """The consumer that a SUBSCRIBE asks for.

        Args:
            connection: over which it came.
            command: says what it wants.
            name: of the consumer.
            now_ms: the clock.
        """
        return cls(
            connection=connection.number,
            consumer_id=command.consumer_id,
            name=name,
            sub_type=SubType(command.subType),
            priority=command.priority_level,
            epoch=command.consumer_epoch if command.HasField("consumer_epoch") else None,
            protocol_version=connection.handshake.protocol_version,
            remembers=connection.remembers_migration,
            learns_end=connection.learns_end,
            auto_schema=command.HasField("schema") and command.schema.type == SchemaType.AUTO_CONSUME,
            address=connection.address,
            connected_ms=now_ms,
            properties={pair.key: pair.value for pair in command.metadata},
        )

    def __post_init__(self) -> None:
        self.meter = Meter(len(Counters._fields), self.connected_ms)

    @property
    def can_receive(self) -> bool:
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and not self.paused and not self.blocked and not self.returning

    def grant(self, permits: int, now_ms: int) -> None:
        """It requested this many more messages."""
        self.permits = min(self.permits + permits, PERMITS_MAX)
        self.flow_ms = now_ms
        if not self.first_flow_ms:
            self.first_flow_ms = now_ms

    def stats(self) -> dict[str, Any]:
        """Statistics with Pulsar's keys (ConsumerStats)."""
        return rates_out(self.meter) | {
            "consumerName": self.name,
            "msgOutCounter": self.messages_out,
            "bytesOutCounter": self.bytes_out,
            "availablePermits": self.permits,
            "unackedMessages": self.unacked,
            "blockedConsumerOnUnackedMsgs": self.blocked,
            "avgMessagesPerEntry": round(self.messages_out / self.entries_out) if self.entries_out else 0,
            "address": self.address,
            "connectedSince": iso_time(self.connected_ms),
            "lastAckedTimestamp": self.last_acked_ms,
            "lastAckedTime": iso_time(self.last_acked_ms),
            "lastConsumedTimestamp": self.last_consumed_ms,
            "lastConsumedTime": iso_time(self.last_consumed_ms),
            "firstMessagesSentTimestamp": self.first_sent_ms,
            "lastConsumedFlowTimestamp": self.flow_ms,
            "firstConsumedFlowTimestamp": self.first_flow_ms,
            "metadata": self.properties,
        }
