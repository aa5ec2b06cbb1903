"""The producers of one topic: names, access modes, fencing (docs/design/pulsar.md#producers).

    mode                  no other producer   shared ones present   an exclusive one present   and one waits
    Shared                accepted            accepted              refused (busy)             refused (busy)
    Exclusive             accepted            refused (fenced)      refused (fenced)           refused (fenced)
    WaitForExclusive      accepted            queued                queued                     queued after it
    ExclusiveWithFencing  accepted            they are closed       it is closed               all are closed

Each time that a producer gets exclusive access, the topic epoch is raised by one and the producer receives it. It sends
that epoch when it connects again. It keeps its epoch if no other producer had exclusive access in the meantime, and is
refused (fenced) otherwise.

A name is used by one connected producer at a time. The same connection may replace its own producer by one with a
higher producer epoch (it reconnected faster than it noticed the loss). For another connection, the broker first checks
whether the producer with the name is still connected. If it is, the table applies, as in Pulsar: a standby with the
same name waits for its turn. With shared access, and for a producer that sends the current epoch (it reconnects, and
the name is used by its own former connection), the name is busy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

from magnetar.broker.client_bytes import NOTHING_HELD, Held
from magnetar.broker.publish.sequence_numbers import Numbers
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.meter import Meter
from magnetar.core.times import iso_time
from magnetar.wire.plain_sends import PlainMessages

PRODUCERS_WAITING_MAX: Final = 1000
"""A ceiling on producers queued for exclusive access to one topic: each holds memory and no work."""

TOPIC_EPOCH_MAX: Final = 1 << 62
"""A ceiling on a topic epoch, above the topic's own, that a producer may send. No epoch gets this high by counting, and
with the protocol's highest one there would be no room for the next.
"""


class AccessMode(IntEnum):
    """CommandProducer.producer_access_mode."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


NOBODY: Final[Mapping[str, "Producer"]] = MappingProxyType({})


def rates_in(meter: Meter) -> dict[str, float]:
    """Rates from counters that begin with messages and bytes, with Pulsar's keys. The average is over the same interval
    as the rates.
    """
    messages_in, bytes_in = meter.per_s[:2]
    return {
        "msgRateIn": messages_in,
        "msgThroughputIn": bytes_in,
        "averageMsgSize": bytes_in / messages_in if messages_in else 0.0,
    }


class Publish(Protocol):
    """A batch of a producer on its way to the log (`broker.topics.topic.PublishToken`).

    Attributes:
        repeated: (sequence id, highest sequence id) of duplicates that arrived after it.
    """

    repeated: list[tuple[int, int]]


@dataclass(slots=True, eq=False)
class Producer:
    """One producer of one connection on one topic.

    Attributes:
        connection, producer_id: its connection, and its id there.
        request_id: request id of the PRODUCER command, which is answered when the producer is ready.
        topic_epoch: the topic epoch that it sent, if any; once it has exclusive access, its own.
        answered: its PRODUCER command was answered: for its client it is open.
        fenced: it lost its access, or its turn, to another one with exclusive access.
        pending: entries appended and not yet confirmed.
        entries, messages, bytes, chunks: counters since it connected.
        partial: its client can publish to some of a topic's partitions alone (PIP-79), and is then one producer in all of them.
        numbers: sequence ids of its name, if deduplication is on.
        held: its share of the memory for clients' metadata.
        last_publish: its newest batch in flight to the log.
        schema_version: version of its schema, as in its messages; b"" without one.
        plain: recognises its plain messages.
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
    topic_epoch: int | None = None
    ready: bool = False
    answered: bool = False
    fenced: bool = False
    closed: bool = False
    pending: int = 0
    entries: int = 0
    messages: int = 0
    schema_version: bytes = b""
    bytes: int = 0
    chunks: int = 0
    partial: bool = False
    held: Held = NOTHING_HELD
    numbers: Numbers | None = None
    last_publish: Publish | None = None
    meter: Meter = field(init=False)
    plain: PlainMessages = field(init=False)

    def __post_init__(self) -> None:
        self.meter = Meter(3, self.connected_ms)
        self.plain = PlainMessages(self.name)

    @property
    def counted(self) -> tuple[int, int, int]:
        """The counters for its rates: messages, bytes, chunks of messages."""
        return self.messages, self.bytes, self.chunks

    def stats(self) -> dict[str, Any]:
        """Statistics with Pulsar's keys (PublisherStats); the counters are additions of ours."""
        return rates_in(self.meter) | {
            "chunkedMessageRate": self.meter.per_s[2],
            "supportsPartialProducer": self.partial,
            "producerName": self.name,
            "producerId": self.producer_id,
            "address": self.address,
            "accessMode": self.mode.name.title().replace("_", ""),
            "msgInCounter": self.messages,
            "bytesInCounter": self.bytes,
            "connectedSince": iso_time(self.connected_ms),
            "metadata": self.properties,
        }

    @property
    def exclusive(self) -> bool:
        """Whether it requires exclusive access."""
        return self.mode is not AccessMode.SHARED

    def gone(self) -> BrokerError:
        """The answer to its PRODUCER command if the broker closes it before it was open."""
        if self.fenced:
            return BrokerError(ErrorCode.PRODUCER_FENCED, "another producer took exclusive access to the topic")
        return BrokerError(ErrorCode.SERVICE_NOT_READY, "the topic closes its producers for the moment; try again")


class Producers:
    """The producers that may publish to one topic now.

    Args:
        maximum: a ceiling on connected producers of the topic; lowering it closes none.
        topic_epoch: the last one that was assigned, 0 before the first.

    Attributes:
        limit: source of `maximum`, in words.
        waiting: those that wait for exclusive access, the first one first.
    """

    __slots__ = ("_live", "limit", "maximum", "topic_epoch", "waiting")

    def __init__(self, maximum: int, topic_epoch: int = 0) -> None:
        self.maximum = maximum
        self.limit = "policy max-producers"
        self._live: dict[str, Producer] | None = None
        self.waiting: tuple[Producer, ...] = ()
        self.topic_epoch = topic_epoch

    @property
    def live(self) -> Mapping[str, Producer]:
        """The producers that have access, by name."""
        return NOBODY if self._live is None else self._live

    def set_maximum(self, maximum: int, limit: str) -> None:
        """Change the ceiling.

        Args:
            maximum, limit: see the attributes.
        """
        self.maximum, self.limit = maximum, limit

    def everybody(self) -> list[Producer]:
        """All producers, for closing them: waiting ones come first, so that none of them gets access in the
        meantime.
        """
        return [*self.waiting, *self.live.values()]

    def rival(self, name: str) -> Producer | None:
        """The live producer of that name, if any."""
        return self.live.get(name)

    def add(self, producer: Producer, *, probed: bool = False) -> list[Producer]:
        """Add a producer. It is `ready` afterwards, or it waits.

        Args:
            producer: the new producer.
            probed: it was checked that the producer with its name (`rival`) is connected; before that, the name is
                busy.

        Returns:
            Producers that lose their access and must be closed.

        Raises:
            BrokerError: the name is busy, exclusive access is taken, or there are too many.
        """
        self._check_epoch(producer)
        # Producers of the same connection with this id and name: its client reconnected faster than it noticed the
        # loss.
        own = [other for other in self.everybody() if same_producer(other, producer)]
        rival = self.live.get(producer.name)
        fencing = producer.mode is AccessMode.EXCLUSIVE_WITH_FENCING
        if rival is None or fencing:
            busy = False
        elif rival in own:
            busy = producer.epoch <= rival.epoch
        else:
            busy = not (probed and producer.exclusive and producer.topic_epoch is None)
        if rival is not None and busy:
            raise BrokerError(
                ErrorCode.PRODUCER_BUSY,
                f"producer name {producer.name!r} is in use by {rival.address or 'another'}",
            )
        evicted = self.everybody() if fencing else own
        others = [other for other in self.live.values() if other not in evicted]
        # A producer that has access already is not a new one: it does not overtake a waiting one.
        placed = any(other.ready for other in own)
        overtaken = not placed and any(other not in evicted for other in self.waiting)
        queued = producer.mode is AccessMode.WAIT_FOR_EXCLUSIVE and bool(others)
        if queued:
            if len(self.waiting) >= PRODUCERS_WAITING_MAX:
                raise BrokerError(
                    ErrorCode.PRODUCER_BUSY,
                    f"{PRODUCERS_WAITING_MAX} producers already wait for exclusive access",
                )
        elif producer.mode is AccessMode.EXCLUSIVE and (others or overtaken):
            raise BrokerError(
                ErrorCode.PRODUCER_FENCED,
                "exclusive access refused: the topic has other producers",
            )
        elif any(other.exclusive for other in others):
            raise BrokerError(
                ErrorCode.PRODUCER_BUSY,
                "another producer has exclusive access to the topic",
            )
        elif overtaken:
            raise BrokerError(
                ErrorCode.PRODUCER_BUSY,
                "another producer waits for exclusive access to the topic",
            )
        elif len(others) >= self.maximum:
            raise BrokerError(
                ErrorCode.PRODUCER_BUSY,
                f"the topic has {len(others)} producers, the most allowed ({self.limit})",
            )
        for loser in evicted:
            self._forget(loser)
            loser.fenced = fencing and loser not in own
        if queued:
            self.waiting = (*self.waiting, producer)
        else:
            self._admit(producer)
        return evicted

    def _check_epoch(self, producer: Producer) -> None:
        brought = producer.topic_epoch
        if not producer.exclusive or brought is None:
            return
        if brought < self.topic_epoch:
            raise BrokerError(
                ErrorCode.PRODUCER_FENCED,
                f"another producer had exclusive access meanwhile: the topic's epoch is {self.topic_epoch}, not {brought}",
            )
        if brought > max(self.topic_epoch, TOPIC_EPOCH_MAX):
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"the topic's epoch cannot be {brought}; it is {self.topic_epoch}")

    def _admit(self, producer: Producer) -> None:
        if self._live is None:
            self._live = {}
        self._live[producer.name] = producer
        producer.ready = True
        if producer.exclusive:
            # One above ours was given by an incarnation that is forgotten here: no other producer may get it.
            self.topic_epoch = self.topic_epoch + 1 if producer.topic_epoch is None else producer.topic_epoch
            producer.topic_epoch = self.topic_epoch

    def _forget(self, producer: Producer) -> None:
        producer.closed = True
        if producer in self.waiting:
            self.waiting = tuple(other for other in self.waiting if other is not producer)
        elif self._live is not None and self._live.get(producer.name) is producer:
            del self._live[producer.name]
            if not self._live:
                self._live = None  # of a hundred thousand topics most have no producers

    def remove(self, producer: Producer) -> list[Producer]:
        """Remove a producer.

        Returns:
            Producers that no longer wait: at most one is `ready` now; the others have to be closed, because their
            epochs are over.
        """
        self._forget(producer)
        decided = []
        while self.waiting and not self.live:
            successor, *rest = self.waiting
            self.waiting = tuple(rest)
            decided.append(successor)
            try:
                self._check_epoch(successor)
            except BrokerError:
                successor.closed = successor.fenced = True
            else:
                self._admit(successor)
        return decided

    def validate(self) -> None:
        """Check what must hold after every step."""
        exclusive = [producer for producer in self.live.values() if producer.exclusive]
        assert not exclusive or len(self.live) == 1, "an exclusive producer is not alone"
        assert all(producer.ready and not producer.closed for producer in self.live.values())
        assert not any(producer.ready for producer in self.waiting)
        assert not self.waiting or self.live, "somebody waits for an empty topic"


def same_producer(one: Producer, other: Producer) -> bool:
    """Whether both are one producer of one client, which came again."""
    return one.connection == other.connection and one.producer_id == other.producer_id
