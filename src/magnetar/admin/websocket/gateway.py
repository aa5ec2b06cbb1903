"""The paths of WebSockets, authorization, and shut-down.

    /ws/v2/producer/{persistent|non-persistent}/TENANT/NAMESPACE/TOPIC
    /ws/v2/consumer/.../TOPIC/SUBSCRIPTION
    /ws/v2/reader/.../TOPIC

The topic is opened before the WebSocket is accepted, so that a refusal is an HTTP answer with its reason. Credentials
are those of HTTP, or `?token=` for browsers, which cannot set headers here; the broker's session checks them and the
permissions.

A browser lets any page open a WebSocket to any server and adds the credentials of its user. So a page of another site
is refused, unless it sends a token in the URL, or its origin is one of `websocket_origins`.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from aiohttp import WSCloseCode, WSMsgType, web

from magnetar.admin.http.answers import Answers
from magnetar.admin.http.gate import presented, sender
from magnetar.admin.http.guard import urlsplit_netloc
from magnetar.admin.http.replies import refusal
from magnetar.admin.websocket.client import BrokerClient, Opens
from magnetar.admin.websocket.consumer import ConsumerSocket
from magnetar.admin.websocket.options import consumer_options, producer_options, reader_options
from magnetar.admin.websocket.outgoing import Outgoing
from magnetar.admin.websocket.producer import ProducerSocket
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import BadRequest, Forbidden
from magnetar.wire import pulsar_pb2 as pb

HEARTBEAT_S: Final = 30.0
"""The interval of pings; a client that does not answer one in half this time is disconnected."""

GOODBYE_S: Final = 2.0
"""The time that clients have to answer the close frame when the broker stops."""

STATUS: Final = {
    ErrorCode.CONSUMER_BUSY: 409,
    ErrorCode.PRODUCER_BUSY: 409,
    ErrorCode.PRODUCER_FENCED: 409,
    ErrorCode.INCOMPATIBLE_SCHEMA: 409,
    ErrorCode.BACKLOG_QUOTA_HOLD: 503,
    ErrorCode.BACKLOG_QUOTA_EXCEPTION: 503,
    ErrorCode.TOPIC_TERMINATED: 503,
}
"""Statuses of refusals for which Pulsar's WebSockets differ from its admin interface
(AbstractWebSocketHandler.getErrorCode).
"""

REASON_BYTES_MAX: Final = 120
"""The longest reason in a close frame: the frame holds 125 bytes."""


class Endpoint(Protocol):
    """The producer, consumer or reader of a WebSocket."""

    reason: str
    failed: asyncio.Event

    async def open(self, client: BrokerClient) -> None:
        """Open it at the broker."""

    def heard(self, command: pb.BaseCommand, payload: bytes) -> None:
        """The broker says something."""

    async def text(self, text: str, outgoing: Outgoing) -> None:
        """The application says something."""

    def stop(self) -> None:
        """The broker's side has ended."""

    async def close(self) -> None:
        """The WebSocket is gone."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The shared part of all WebSockets of a broker.

    Attributes:
        opens: opens a connection to the broker.
        answers: runs heavy work.
        now_ms: the wall clock.
        text_bytes_max: largest text of an application.
        origins: origins of other sites' pages that are accepted; `*`: any.
        certificates: whether client certificates are credentials.
        tokens: whether tokens are checked: without authentication a token does not prove that a page is trusted.
        open: the open WebSockets.
        opening: connections to the broker for WebSockets that are being opened.
    """

    opens: Opens
    answers: Answers
    now_ms: Callable[[], int]
    text_bytes_max: int
    origins: tuple[str, ...]
    certificates: bool
    tokens: bool
    open: set[web.WebSocketResponse] = field(default_factory=set)
    opening: set[BrokerClient] = field(default_factory=set)

    def routes(self, application: web.Application) -> None:
        """Add the paths to an application."""
        for root in ("/ws/v2", "/ws"):
            where = "{domain:persistent|non-persistent}/{tenant:[^/]+}/{namespace:[^/]+}/{topic:[^/]+}"
            application.router.add_get(f"{root}/producer/{where}", self.producer)
            application.router.add_get(f"{root}/consumer/{where}/{{subscription:[^/]+}}", self.consumer)
            application.router.add_get(f"{root}/reader/{where}", self.reader)
        application.on_shutdown.append(self.shut_down)

    async def producer(self, request: web.Request) -> web.StreamResponse:
        """A producer."""
        options, topic = producer_options(request.query), _topic(request)
        return await self._serve(request, ProducerSocket(options, topic, self.now_ms))

    async def consumer(self, request: web.Request) -> web.StreamResponse:
        """A consumer."""
        options = consumer_options(request.query, request.match_info["subscription"])
        return await self._serve(
            request, ConsumerSocket(options, _topic(request), self.answers.beside, self.answers.hold)
        )

    async def reader(self, request: web.Request) -> web.StreamResponse:
        """A reader."""
        options = reader_options(request.query, f"reader-{secrets.token_hex(5)}")
        return await self._serve(
            request, ConsumerSocket(options, _topic(request), self.answers.beside, self.answers.hold)
        )

    async def _serve(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=self.text_bytes_max, compress=False)
        if not socket.can_prepare(request).ok:
            raise BadRequest("this path is a WebSocket's: the request has to ask for an upgrade to it")
        self._check_origin(request)
        client = BrokerClient(self.opens, endpoint.heard)
        self.opening.add(client)
        try:
            await self._connect(request, client)
            await endpoint.open(client)
            try:
                await socket.prepare(request)
            except ConnectionError:
                return refusal(503, "the client went away while its WebSocket was opened")  # nothing reads it
            self.opening.discard(client)
            await self._run(socket, endpoint, client)
        except BrokerError as error:
            if socket.prepared or error.code not in STATUS:
                raise
            return refusal(STATUS[error.code], str(error))
        finally:
            self.opening.discard(client)
            await endpoint.close()
            client.close()
        return socket

    async def _connect(self, request: web.Request, client: BrokerClient) -> None:
        transport = request.transport
        tls = transport is not None and transport.get_extra_info("ssl_object") is not None
        address, certificate = sender(request)
        if (token := request.query.get("token")) is not None:
            method, data = "token", token.encode("utf-8", "replace")
        else:
            method, data = presented(request, certificate=bool(certificate) and self.certificates)
        principal = request.headers.get("X-Original-Principal", "")
        await client.connect(address, certificate, method, data, tls=tls, principal=principal)

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if origin is None or (self.tokens and "token" in request.query) or {"*", origin} & set(self.origins):
            return
        if urlsplit_netloc(origin) != request.headers.get("Host", "").lower():
            raise Forbidden(
                f"WebSockets are not opened by pages of {origin[:80]!a}: bring a token in the URL (?token=), or name the origin "
                "in websocket_origins"
            )

    async def _run(self, socket: web.WebSocketResponse, endpoint: Endpoint, client: BrokerClient) -> None:
        outgoing = Outgoing(socket, client.writable)
        self.open.add(socket)
        watch = asyncio.get_running_loop().create_task(_close_at_end(socket, endpoint, client))
        try:
            if isinstance(endpoint, ConsumerSocket):
                endpoint.start(outgoing)
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await client.may_send()
                    await endpoint.text(message.data, outgoing)
                elif message.type is WSMsgType.BINARY:
                    raise MagnetarError("texts are understood, no binary messages")
        except MagnetarError as error:
            await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=_reason(str(error)))
        finally:
            watch.cancel()
            self.open.discard(socket)
            await outgoing.close()

    async def shut_down(self, _application: web.Application) -> None:
        """The broker stops. Clients that do not answer are not waited for, each alone and all together."""
        for client in list(self.opening):
            client.close()
        closing = [
            asyncio.ensure_future(socket.close(code=WSCloseCode.GOING_AWAY, message=b"the broker stops"))
            for socket in list(self.open)
        ]
        if closing:
            _, left = await asyncio.wait(closing, timeout=GOODBYE_S)
            for each in left:
                each.cancel()
            await asyncio.gather(*closing, return_exceptions=True)


async def _close_at_end(socket: web.WebSocketResponse, endpoint: Endpoint, client: BrokerClient) -> None:
    """Close the WebSocket when the broker ended the connection, or its endpoint cannot continue."""
    waits = [asyncio.ensure_future(event.wait()) for event in (client.ended, endpoint.failed)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    reason = endpoint.reason if endpoint.failed.is_set() else client.reason
    endpoint.stop()
    code = WSCloseCode.OK if reason == "unsubscribed" else WSCloseCode.INTERNAL_ERROR
    await socket.close(code=code, message=_reason(reason or "the broker closed the connection"))


def _topic(request: web.Request) -> str:
    """The full name of the topic of the path.

    Raises:
        NameNotValid: it is not one.
    """
    names = request.match_info
    namespace = NamespaceName.parse(f"{names['tenant']}/{names['namespace']}")
    return str(TopicName.parse(f"{names['domain']}://{namespace}/{names['topic']}"))


def _reason(text: str) -> bytes:
    return text.encode()[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
