"""A producer's WebSocket: JSON messages in, one answer for each."""

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from magnetar.admin.websocket.client import BrokerClient
from magnetar.admin.websocket.options import ProducerOptions, from_base64
from magnetar.admin.websocket.outgoing import Outgoing
from magnetar.admin.websocket.publisher import Publisher, Receipt
from magnetar.core.errors import BrokerError
from magnetar.replication.link.policy import LOCAL_ONLY
from magnetar.wire import pulsar_pb2 as pb

NOT_JSON: Final = (3, "Failed to de-serialize from JSON")
NOT_BASE64: Final = (7, "Invalid payload encoding")
UNKNOWN: Final = (8, "Unknown error")
"""Numbers and words of Pulsar's WebSocketError."""

PENDING_BYTES_MAX: Final = 16 << 20
"""Bytes of messages without a receipt, beyond which a WebSocket is not read: the broker's memory, times its connections."""


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Scalar = str | int | float | bool
"""The types that Pulsar accepts as a text: numbers and booleans are taken as they are written."""


class Published(msgspec.Struct, rename="camel"):
    """A message of an application (Pulsar's ProducerMessage).

    Attributes:
        payload: in base64.
        properties: texts.
        context: returned with the answer, as a text.
        key: chooses the partition, and is the key for ordering.
        replication_clusters: the clusters that get the message; None or empty: as its topic's policy says.
        event_time: ISO 8601 with an offset, as consumers receive it; or ms, as a number or a text.
        delivery_at, delivery_after_ms: earliest delivery, as a time or from now on, ms.
        disable_replication: it is not replicated.
    """

    payload: str | None = None
    properties: dict[str, Scalar] | None = None
    context: Scalar | None = None
    key: Scalar | None = None
    replication_clusters: list[str] | None = None
    event_time: int | str | None = None
    delivery_at: int | str | None = msgspec.field(default=None, name="deliverAt")
    delivery_after_ms: int | str | None = msgspec.field(default=None, name="deliverAfterMs")
    disable_replication: bool | None = None


class ProducerSocket:
    """One producer.

    Args:
        options: of its URL.
        topic: its full name.
        now_ms: the wall clock.
    """

    def __init__(self, options: ProducerOptions, topic: str, now_ms: Callable[[], int]) -> None:
        self._options, self._topic, self._now_ms = options, topic, now_ms
        self.failed = asyncio.Event()
        """Set when the topic's producers cannot be opened again."""
        self.reason = ""
        self._room = asyncio.Event()
        self._bytes = 0
        self._publisher: Publisher | None = None

    async def open(self, client: BrokerClient) -> None:
        """Open the topic's producers.

        Raises:
            BrokerError: the broker refuses.
        """
        self._publisher = Publisher(client, self._topic, self._options, failed=self._lost)
        await self._publisher.open()

    def heard(self, command: pb.BaseCommand, _payload: bytes) -> None:
        """The broker says something."""
        if self._publisher is not None:
            self._publisher.heard(command)

    async def text(self, text: str, outgoing: Outgoing) -> None:
        """A message came."""
        assert self._publisher is not None
        await outgoing.room()
        context: str | None = None
        try:
            said = msgspec.json.decode(text, type=Published)
            context = None if said.context is None else _text(said.context)
            metadata = self._metadata(said)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            outgoing.put(_error(NOT_JSON, str(error), context))
            return
        try:
            if said.payload is None:
                raise ValueError("there is no payload")
            payload = from_base64(said.payload)
            if said.event_time is not None:
                metadata.event_time = _moment(said.event_time)
        except ValueError as error:
            outgoing.put(_error(NOT_BASE64, str(error), context))
            return
        receipt = self._publisher.publish(metadata, payload)
        self._bytes += len(text)
        receipt.add_done_callback(lambda done: self._answer(done, context, len(text), outgoing))
        while not self.failed.is_set() and self._full():
            self._room.clear()
            await self._room.wait()

    def _full(self) -> bool:
        assert self._publisher is not None
        return self._publisher.pending >= self._options.pending_max or self._bytes > PENDING_BYTES_MAX

    def _metadata(self, said: Published) -> pb.MessageMetadata:
        metadata = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
        metadata.properties.extend(
            pb.KeyValue(key=key, value=_text(value)) for key, value in (said.properties or {}).items()
        )
        if said.key is not None:
            metadata.partition_key = _text(said.key)
        if said.disable_replication:
            metadata.replicate_to.append(LOCAL_ONLY)
        elif said.replication_clusters is not None:
            metadata.replicate_to.extend(said.replication_clusters)
        if said.delivery_at is not None:
            metadata.deliver_at_time = _number("deliverAt", said.delivery_at)
        elif said.delivery_after_ms is not None:
            metadata.deliver_at_time = self._now_ms() + _number("deliverAfterMs", said.delivery_after_ms)
        return metadata

    def _answer(self, done: Receipt, context: str | None, size: int, outgoing: Outgoing) -> None:
        self._bytes -= size
        self._room.set()
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            outgoing.put(_error(UNKNOWN, str(error), context))
        else:
            outgoing.put(_with_context({"result": "ok", "messageId": _id(done.result())}, context))

    def _lost(self, error: BrokerError) -> None:
        self.reason = str(error)
        self.stop()

    def stop(self) -> None:
        """Nothing more can be sent: wake the waiting tasks."""
        self.failed.set()
        self._room.set()

    async def close(self) -> None:
        """The WebSocket is gone."""
        if self._publisher is not None:
            self._publisher.close()


def _id(message_id: pb.MessageIdData) -> str:
    return base64.b64encode(message_id.SerializeToString()).decode()


def _text(value: Scalar) -> str:
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _moment(value: int | str) -> int:
    """A time in ms, of ISO 8601 or of ms.

    Raises:
        ValueError: it is not one.
    """
    if not isinstance(value, str) or "T" not in value:
        return _number("eventTime", value)
    moment = datetime.fromisoformat(value)
    return _number("eventTime", (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1))


def _number(key: str, value: int | str) -> int:
    number = int(value)
    if not 0 <= number < 1 << 62:
        raise ValueError(f"{key} is a time in ms, not {number}")
    return number


def _with_context(answer: dict[str, Any], context: str | None) -> dict[str, Any]:
    return answer if context is None else answer | {"context": context}


def _error(kind: tuple[int, str], reason: str, context: str | None) -> dict[str, Any]:
    number, words = kind
    return _with_context({"result": f"send-error:{number}", "errorMsg": f"{words}: {reason}"}, context)
