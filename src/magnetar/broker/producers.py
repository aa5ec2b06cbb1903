"""The producers of one topic: names, access modes, fencing (pulsar-facts A.8).

    mode                    nobody else there        a shared producer there      an exclusive one there
    Shared                  accepted                 accepted                     refused (busy)
    Exclusive               accepted                 refused (fenced)             refused (fenced)
    WaitForExclusive        accepted                 queued                       queued
    ExclusiveWithFencing    accepted                 the others are closed        the others are closed

A name is used by one live producer at a time. The same connection may replace its own producer with a higher epoch (it
reconnected faster than it noticed); anybody else is told that the name is busy.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.deduplication import Numbers
from magnetar.broker.meter import Meter
from magnetar.core.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from magnetar.broker.topic import PublishToken

PRODUCERS_WAITING_MAX: Final = 1000
"""A ceiling on producers queued for exclusive access to one topic: each holds memory and no work."""


class AccessMode(IntEnum):
    """CommandProducer.producer_access_mode."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


def rates_in(meter: Meter, messages: int, size: int) -> dict[str, float]:
    """Of counters of messages and bytes, with Pulsar's keys."""
    messages_in, bytes_in = meter.per_s
    return {
        "msgRateIn": messages_in,
        "msgThroughputIn": bytes_in,
        "averageMsgSize": size / messages if messages else 0.0,
    }


@dataclass(slots=True, eq=False)
class Producer:
    """One producer of one connection on one topic.

    Attributes:
        connection, producer_id: whose it is.
        request_id: of the PRODUCER command; answered when it is ready.
        pending: entries appended and not yet confirmed.
        entries, messages, bytes: counters since it connected.
        numbers: of its name, where deduplication is on.
        last_publish: its newest batch on the way to the log.
        schema_version: of the schema it brought, as it stamps its messages with it; b"" without one.
    """

    connection: int
    producer_id: int
    request_id: int
    name: str
    mode: AccessMode
    epoch: int
    user_named: bool
    address: str = ""
    connected_ms: int = 0
    link: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    ready: bool = False
    closed: bool = False
    pending: int = 0
    entries: int = 0
    messages: int = 0
    schema_version: bytes = b""
    bytes: int = 0
    numbers: Numbers | None = None
    last_publish: "PublishToken | None" = None
    meter: Meter = field(default_factory=lambda: Meter(2))

    def stats(self) -> dict[str, Any]:
        """With Pulsar's keys (PublisherStats); the counters are ours."""
        return rates_in(self.meter, self.messages, self.bytes) | {
            "producerName": self.name,
            "producerId": self.producer_id,
            "address": self.address,
            "accessMode": self.mode.name.title().replace("_", ""),
            "msgInCounter": self.messages,
            "bytesInCounter": self.bytes,
            "connectedSince": self.connected_ms,
            "metadata": self.properties,
        }

    @property
    def exclusive(self) -> bool:
        """Whether it wants to be alone."""
        return self.mode is not AccessMode.SHARED


class Producers:
    """Who may publish to one topic now.

    Args:
        maximum: a ceiling on live producers of the topic; a lower one closes nobody.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.live: dict[str, Producer] = {}
        self.waiting: list[Producer] = []
        self.topic_epoch = 0

    def rival(self, name: str) -> Producer | None:
        """The live producer of that name, if any."""
        return self.live.get(name)

    def add(self, producer: Producer) -> list[Producer]:
        """Take a producer in. It is `ready` afterwards, or it waits.

        Returns:
            Producers that lose their place and must be closed.

        Raises:
            BrokerError: the name is busy, exclusive access is taken, or there are too many.
        """
        evicted: list[Producer] = []
        rival = self.live.get(producer.name)
        if rival is not None and producer.mode is not AccessMode.EXCLUSIVE_WITH_FENCING:
            same = rival.connection == producer.connection and rival.producer_id == producer.producer_id
            if not (same and producer.epoch > rival.epoch):
                raise BrokerError(
                    ErrorCode.PRODUCER_BUSY,
                    f"producer name {producer.name!r} is in use by {rival.address or 'another'}",
                )
            evicted.append(rival)
        others = [other for other in self.live.values() if other not in evicted]
        if producer.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            evicted = list(self.live.values()) + self.waiting
            self.waiting = []
        elif producer.mode is AccessMode.EXCLUSIVE and others:
            raise BrokerError(
                ErrorCode.PRODUCER_FENCED,
                "exclusive access refused: the topic has other producers",
            )
        elif producer.mode is AccessMode.WAIT_FOR_EXCLUSIVE and others:
            if len(self.waiting) >= PRODUCERS_WAITING_MAX:
                raise BrokerError(
                    ErrorCode.PRODUCER_BUSY,
                    f"{PRODUCERS_WAITING_MAX} producers already wait for exclusive access",
                )
            self.waiting.append(producer)
            return []
        elif any(other.exclusive for other in others):
            raise BrokerError(
                ErrorCode.PRODUCER_BUSY,
                "another producer has exclusive access to the topic",
            )
        if len(others) >= self.maximum:
            raise BrokerError(
                ErrorCode.PRODUCER_BUSY,
                f"the topic has {len(others)} producers, the most allowed (policy max-producers, producers_per_topic_max)",
            )
        for loser in evicted:
            self.live.pop(loser.name, None)
            loser.closed = True
        self._admit(producer)
        return evicted

    def _admit(self, producer: Producer) -> None:
        self.live[producer.name] = producer
        producer.ready = True
        if producer.exclusive:
            self.topic_epoch += 1

    def remove(self, producer: Producer) -> Producer | None:
        """Let a producer go; returns one that was waiting and is ready now."""
        producer.closed = True
        if producer in self.waiting:
            self.waiting.remove(producer)
            return None
        if self.live.get(producer.name) is producer:
            del self.live[producer.name]
        if self.waiting and not self.live:
            successor = self.waiting.pop(0)
            self._admit(successor)
            return successor
        return None

    def validate(self) -> None:
        """Check what must hold after every step."""
        exclusive = [producer for producer in self.live.values() if producer.exclusive]
        assert not exclusive or len(self.live) == 1, "an exclusive producer is not alone"
        assert all(producer.ready and not producer.closed for producer in self.live.values())
        assert not any(producer.ready for producer in self.waiting)
        assert not self.waiting or self.live, "somebody waits for an empty topic"
