"""A small blocking client of Pulsar's protocol: it finds topics and reads the entries of one.

`Client` keeps its connections; a worker process keeps its client between tasks (`take`). `connection` gives the reason
for a client of our own.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c
from google.protobuf.message import DecodeError

from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import ErrorCode, MagnetarError, ProtocolError
from magnetar.spark.connection import TIMEOUT_S, Access, Connection, Down, Refused
from magnetar.spark.offsets import EARLIEST, MessagePosition
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.varint import signed

_PERSISTENT, _EXCLUSIVE, _FROM_EARLIEST = 0, 0, 1

REDIRECTS_MAX: Final = 20
"""A ceiling on lookups that are sent from broker to broker, as in the official clients."""

PERMITS: Final = 2_000
"""Messages asked for at first; more once their size is known."""

AHEAD_BYTES: Final = 8 << 20
"""Backpressure: the bytes that a reader requests beyond what it has taken. Enough to hide the broker's response
time.
"""

PERMITS_MIN: Final = 100
PERMITS_MAX: Final = 100_000

RETRY_S: Final = 0.2
"""Between two attempts at a broker that does not answer, or is not ready."""

_PASSING: Final = frozenset(
    {ErrorCode.SERVICE_NOT_READY, ErrorCode.METADATA, ErrorCode.TOO_MANY_REQUESTS, ErrorCode.CONSUMER_BUSY}
)
"""Refusals that are temporary."""


class TopicGone(MagnetarError):
    """The topic does not exist."""


class Entry(NamedTuple):
    """An entry of a topic.

    Attributes:
        ledger, entry: its position.
        ack_set: indexes of a batch to deliver, as the protocol carries them; empty: all.
        metadata: its metadata.
        body: the payload after the metadata, in the receive buffer.
    """

    ledger: int
    entry: int
    ack_set: Sequence[int]
    metadata: pb.MessageMetadata
    body: memoryview

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which is not used
        """Messages in it (a part of a chunked message counts as one)."""
        return max(1, self.metadata.num_messages_in_batch)


class Damaged(MagnetarError):
    """The bytes that a broker delivered are not those that a producer sent."""


def open_entry(payload: memoryview) -> tuple[pb.MessageMetadata, memoryview]:
    """Check the bytes after a MESSAGE command; returns the metadata and the payload.

    Raises:
        ProtocolError: they are damaged.
    """
    if payload[:2].tobytes() == b"\x0e\x02":  # the broker's metadata, which is not requested, is skipped
        payload = payload[6 + int.from_bytes(payload[2:6], "big") :]
    at = 0
    if payload[:2].tobytes() == b"\x0e\x01":
        if crc32c(payload[6:]) != int.from_bytes(payload[2:6], "big"):
            raise ProtocolError("the checksum does not fit the bytes")
        at = 6
    end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
    if end > len(payload):
        raise ProtocolError("the metadata ends behind the message")
    try:
        metadata = pb.MessageMetadata.FromString(payload[at + 4 : end])  # type: ignore[arg-type]  # any buffer will do
    except DecodeError:
        raise ProtocolError("the metadata cannot be decoded") from None
    return metadata, payload[end:]


class Client:
    """Connections to the brokers of one cluster.

    Args:
        access: how to reach it.
        patience_s: how long a broker may be away, or not ready, before that is an error.
    """

    def __init__(self, access: Access, *, patience_s: float = TIMEOUT_S) -> None:
        self.access = access
        self.patience_s = patience_s
        self._addresses = BrokerAddresses(access.addresses())
        self._connections: dict[tuple[str, str], Connection] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def connection(self, url: str = "", proxied: str = "") -> Connection:
        """The connection to a broker; to any of the service URL's when none is named.

        Raises:
            Down: no broker answers there; names every address that was tried.
        """
        kept = self._connections.get((url, proxied))
        if kept is not None and not kept.dead:
            with contextlib.suppress(Down):
                kept.idle()
                return kept
        tries = (BrokerAddresses([url]) if url else self._addresses).round()
        while True:
            patience_s, began = tries.patience_s(TIMEOUT_S), time.monotonic()
            try:
                made = Connection(tries.address, self.access, proxied=proxied, patience_s=patience_s)
            except Down as down:
                if not tries.failed(str(down), silent=time.monotonic() - began >= patience_s):
                    raise Down(tries.reason) from None
            else:
                tries.answered()
                self._connections[url, proxied] = made
                return made

    def broker_of(self, topic: str) -> Connection:
        """A connection to the broker that serves a topic.

        Raises:
            Down, Refused: see there.
            TopicGone: there is no such topic.
        """
        url = proxied = ""
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            connection = self.connection(url, proxied)
            command = pb.BaseCommand(type=pb.LOOKUP)
            lookup = command.lookupTopic
            lookup.topic, lookup.authoritative = topic, authoritative
            found = connection.request(command).lookupTopicResponse
            if found.response == 2:
                raise _refusal(found.error, found.message, topic)
            target = found.brokerServiceUrlTls if self.access.url.startswith("pulsar+ssl") else found.brokerServiceUrl
            authoritative = found.authoritative
            proxied = target.partition("://")[2] if found.proxy_through_service_url else ""
            url = "" if proxied else target
            if found.response == 1:
                return self.connection(url, proxied)
        raise Down(f"{topic}: the lookup was redirected {REDIRECTS_MAX} times")

    def partitions(self, topic: str, *, create: bool = False) -> int | None:
        """The number of partitions of a topic. 0: it is not partitioned. None: it does not exist.

        Raises:
            Down, Refused: see there.
        """
        connection = self.connection()
        command = pb.BaseCommand(type=pb.PARTITIONED_METADATA)
        ask = command.partitionMetadata
        ask.topic, ask.metadata_auto_creation_enabled = topic, create
        answer = connection.request(command).partitionMetadataResponse
        if answer.response == 1:
            refusal = _refusal(answer.error, answer.message, topic)
            if isinstance(refusal, TopicGone):
                return None
            raise refusal
        return answer.partitions

    def topics(self, namespace: str) -> list[str]:
        """The persistent topics of a namespace, partitions one by one.

        Raises:
            Down, Refused: see there.
        """
        connection = self.connection()
        command = pb.BaseCommand(type=pb.GET_TOPICS_OF_NAMESPACE)
        ask = command.getTopicsOfNamespace
        ask.namespace, ask.mode = namespace, _PERSISTENT
        return list(connection.request(command).getTopicsOfNamespaceResponse.topics)

    def schema(self, topic: str, version: bytes = b"") -> pb.Schema | None:
        """A topic's schema by the version that messages carry, or (without one) the newest; None: there is none.

        Raises:
            Down, Refused: see there.
        """
        connection = self.connection()
        command = pb.BaseCommand(type=pb.GET_SCHEMA)
        ask = command.getSchema
        ask.topic = topic
        if version:
            ask.schema_version = version
        answer = connection.request(command).getSchemaResponse
        if not answer.HasField("error_code"):
            return answer.schema
        if answer.error_code == ErrorCode.TOPIC_NOT_FOUND:
            return None
        raise Refused(answer.error_code, answer.error_message, topic)

    def patient(self) -> "Patience":
        """The time for which it may still be tried."""
        return Patience(self.patience_s)


class Patience:
    """Limits how long an operation is tried again; progress restarts the time."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since = time.monotonic()

    def progress(self) -> None:
        """Something came."""
        self._since = time.monotonic()

    def after(self, error: Exception) -> None:
        """Wait a little before the next attempt; raise the error if it was too long, or will not pass."""
        if isinstance(error, Refused) and error.code not in _PASSING:
            raise error
        if time.monotonic() - self._since >= self._limit_s:
            raise error
        time.sleep(RETRY_S)


def _refusal(code: int, message: str, topic: str) -> MagnetarError:
    if code == ErrorCode.TOPIC_NOT_FOUND:
        return TopicGone(f"topic {topic} does not exist")
    return Refused(code, message, topic)


class Reader:
    """Reads the entries of one topic from a position on; connects again after the connection was lost.

    A non-durable subscription: nothing is acknowledged, nothing is kept for it. Nothing is created for it either.

    Args:
        client: gives connections.
        topic: one partition.
        after: the last message that is not wanted. Its entry is delivered too if it exists, so that the reader knows
            whether it does.
        after_time_ms: instead of `after`: from the first entry with this publish time on.
        ahead_bytes: bytes that are requested beyond what was taken.

    Raises:
        TopicGone: there is no such topic.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        after: MessagePosition = EARLIEST,
        *,
        after_time_ms: int | None = None,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        self._client, self._topic = client, topic
        self._after = after
        self._time_ms = after_time_ms
        self._name = f"magnetar-spark-{os.getpid()}-{os.urandom(5).hex()}"
        self._connection: Connection | None = None
        self._id = 0
        self._entries: deque[Entry] = deque()
        self._detached = False
        self._ahead = ahead_bytes
        self._outstanding = self._messages = self._bytes = 0
        self._mark: tuple[int, int] | None = None
        self.last_seen: tuple[int, int] | None = None
        self._retrying(self._attach)

    def _retrying(self, what: Callable[[], None]) -> None:
        patience = self._client.patient()
        while True:
            try:
                what()
                return
            except (Down, Refused) as error:
                if isinstance(error, Refused) and error.code == ErrorCode.TOPIC_NOT_FOUND:
                    raise TopicGone(f"topic {self._topic} does not exist") from None
                patience.after(error)

    def _attach(self) -> None:
        self._detach()
        connection = self._client.broker_of(self._topic)
        self._id = connection.next_id()
        connection.handlers["consumer", self._id] = self._received
        self._subscribe(connection)
        if self._time_ms is not None:
            self._seek(connection, self._time_ms)
        self._connection, self._detached, self._outstanding = connection, False, 0
        self._entries.clear()

    def _subscribe(self, connection: Connection) -> None:
        command = pb.BaseCommand(type=pb.SUBSCRIBE)
        ask = command.subscribe
        ask.topic, ask.subscription, ask.consumer_id = self._topic, self._name, self._id
        ask.subType, ask.durable = _EXCLUSIVE, False
        ask.force_topic_creation, ask.replicate_subscription_state = False, False
        ask.initialPosition = _FROM_EARLIEST
        ledger, entry = self.last_seen or (self._after.ledger, self._after.entry)
        ask.start_message_id.ledgerId, ask.start_message_id.entryId = _unsigned(ledger), _unsigned(entry)
        try:
            connection.request(command)
        except BaseException:
            connection.handlers.pop(("consumer", self._id), None)
            raise

    def _seek(self, connection: Connection, time_ms: int) -> None:
        command = pb.BaseCommand(type=pb.SEEK)
        ask = command.seek
        ask.consumer_id, ask.message_publish_time = self._id, max(0, time_ms)
        connection.request(command)
        self._subscribe(connection)  # a seek disconnects the consumers; the subscription stays, at its new position
        self._time_ms = None if self.last_seen else self._time_ms

    def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None or connection.dead:
            return
        connection.handlers.pop(("consumer", self._id), None)
        if not self._detached:
            command = pb.BaseCommand(type=pb.CLOSE_CONSUMER)
            command.close_consumer.consumer_id = self._id
            with contextlib.suppress(Down):
                connection.tell(command)

    def close(self) -> None:
        """End the subscription; the connection stays."""
        self._detach()

    def _received(self, command: pb.BaseCommand, payload: memoryview) -> None:
        if command.type == pb.CLOSE_CONSUMER:
            self._detached = True
            return
        message = command.message
        position = message.message_id
        ledger, entry = position.ledgerId, position.entryId
        where = f"{self._topic} at {ledger}:{entry}"
        try:
            metadata, body = open_entry(payload)
        except ProtocolError as error:
            raise Damaged(f"{where}: {error}") from None
        self._entries.append(Entry(ledger, entry, tuple(message.ack_set), metadata, body))

    def last(self) -> MessagePosition:
        """The position of the newest message; EARLIEST if there never was one.

        Raises:
            Down, Refused, TopicGone: see there.
        """
        found = EARLIEST

        def ask() -> None:
            nonlocal found
            if self._connection is None or self._detached or self._connection.dead:
                self._attach()
            assert self._connection is not None
            found = self.last_answer(self.ask_last())

        self._retrying(ask)
        return found

    def caught_up(self) -> bool:
        """Whether the broker has nothing left for this reader after its position (which is given by a time after a seek
        by time).

        Raises:
            Down, Refused, TopicGone: see there.
        """
        last = self.last()
        mark = self._mark
        return last == EARLIEST or (mark is not None and mark >= (last.ledger, last.entry))

    def ask_last(self) -> int:
        """Ask for the newest message, to be answered by `last_answer` (several readers can ask before one waits)."""
        if self._connection is None or self._detached:
            raise Down(f"{self._topic}: not connected")
        command = pb.BaseCommand(type=pb.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id = self._id
        return self._connection.ask(command)

    def last_answer(self, request_id: int) -> MessagePosition:
        """The answer to `ask_last`."""
        assert self._connection is not None
        answer = self._connection.answer(request_id).getLastMessageIdResponse
        found, mark = answer.last_message_id, answer.consumer_mark_delete_position
        known = answer.HasField("consumer_mark_delete_position")
        self._mark = (signed(mark.ledgerId), signed(mark.entryId)) if known else None
        ledger, entry = signed(found.ledgerId), signed(found.entryId)
        return EARLIEST if entry < 0 else MessagePosition(ledger, entry, -1)

    def entries(self, wait_s: float) -> Iterator[Entry]:
        """The next entries, until none has arrived for `wait_s`; may be called again.

        Raises:
            Down, Refused, TopicGone: the broker could not be reached, or refuses permanently.
        """
        until = time.monotonic() + wait_s
        patience = self._client.patient()
        while True:
            while self._entries:
                entry = self._entries.popleft()
                if self.last_seen is not None and (entry.ledger, entry.entry) <= self.last_seen:
                    continue  # delivered again, after a new connection
                self.last_seen = (entry.ledger, entry.entry)
                self._outstanding = max(0, self._outstanding - entry.count)
                self._messages += entry.count
                self._bytes += len(entry.body)
                yield entry
                until = time.monotonic() + wait_s
            try:
                if self._connection is None or self._detached:
                    self._attach()
                self._flow()
                assert self._connection is not None
                if not self._connection.turn(until) and not self._entries and time.monotonic() >= until:
                    return
                patience.progress()
            except (Down, Refused) as error:
                if isinstance(error, Refused) and error.code == ErrorCode.TOPIC_NOT_FOUND:
                    raise TopicGone(f"topic {self._topic} does not exist") from None
                self._connection = None
                patience.after(error)
                until = time.monotonic() + wait_s

    def _flow(self) -> None:
        """Keep about `ahead_bytes` of messages coming."""
        assert self._connection is not None
        average = self._bytes // self._messages + 1 if self._messages else self._ahead // PERMITS
        window = min(PERMITS_MAX, max(PERMITS_MIN, self._ahead // average))
        if self._outstanding * 2 > window:
            return
        command = pb.BaseCommand(type=pb.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = self._id, window - self._outstanding
        self._connection.send(command)
        self._outstanding = window


def _unsigned(value: int) -> int:
    return value & (1 << 64) - 1


_clients: dict[tuple[int, Access], Client] = {}
"""Clients kept between the tasks of one process; a forked process creates its own."""


def take(access: Access, *, patience_s: float = TIMEOUT_S) -> Client:
    """The client of this process for a cluster."""
    key = os.getpid(), access
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = Client(access)
    client.patience_s = patience_s
    return client
