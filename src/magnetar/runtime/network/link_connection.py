"""A blocking shell around `wire.client` for link commands: one authenticated socket, one thread.

The caller does the I/O: nothing happens between calls. A request is overdue when its time is up *and* no byte moved for the
same time: a slow line that still carries bytes is not down.
"""

import math
import select
import socket
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnetar.core.errors import ErrorCode, MagnetarError, ProtocolError
from magnetar.runtime.security.tls import TlsSocket
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import ClientConnection, ClientFault, ConnectRefused, Event, Push, Response
from magnetar.wire.connection import LINK_AUTH_METHOD, NO_REQUEST, request_id_of
from magnetar.wire.versions import PROTOCOL_VERSION

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A ceiling on what a broker may send in one frame: reads ask for less, lists of 10,000 topics stay below 10 MB."""

HELLO_VERSION: Final = 1
"""The version of the link commands that this side speaks."""


def link_connect(token: bytes) -> pb.CommandConnect:
    """The CONNECT of a link peer.

    Args:
        token: what links present.
    """
    return pb.CommandConnect(
        client_version="magnetar-link",
        protocol_version=PROTOCOL_VERSION,
        auth_method_name=LINK_AUTH_METHOD,
        auth_data=token,
    )


class LinkDown(MagnetarError):
    """The peer cannot be reached, went away, is silent, or is not a broker that accepts this link: back off, connect again."""


class LinkRefused(MagnetarError):
    """The peer refused one request.

    Attributes:
        code: as the protocol calls it; UNKNOWN for numbers that this side does not know.
        message: the peer's own line.
    """

    def __init__(self, code: int, message: str, where: str) -> None:
        super().__init__(f"{where}: {message}")
        self.code = ErrorCode.of(code)
        self.message = message


class LinkConnection:
    """Sends requests and collects responses.

    Args:
        connection: connected; this takes it over.
        address: for error texts.
        timeout_s: how long a response may take while nothing moves.
        clock: seconds, monotonic.

    Attributes:
        hello, message_bytes_max: what the broker said of itself, after `handshake`.
        responses: those that came, by request id, in the order in which they came; the caller takes them out.
    """

    def __init__(
        self, connection: socket.socket | TlsSocket, address: str, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self.hello = pb.GeoHello()
        self.message_bytes_max = 0
        self.responses: dict[int, Response] = {}
        self._address = address
        self._socket = connection
        self._clock = clock
        self._timeout_s = timeout_s
        self._moved_at = clock()
        self._client = ClientConnection(FRAME_BYTES_MAX)
        self._due: dict[int, float] = {}
        self._schemas: Callable[[pb.CommandGeoSchemasWanted], pb.CommandGeoSchemasBrought] = _refuse_schemas
        self._refusal: LinkRefused | None = None
        self._dead: LinkDown | None = None

    def answer_schemas(self, schemas: Callable[[pb.CommandGeoSchemasWanted], pb.CommandGeoSchemasBrought]) -> None:
        """Set the function that answers the broker's GEO_SCHEMAS_WANTED from now on; without one they are refused."""
        self._schemas = schemas

    def close(self) -> None:
        """Close the socket; requests in flight are forgotten here."""
        if self._dead is None:
            self._dead = LinkDown(f"{self._address}: the connection was closed here")
        self._socket.close()

    def check(self) -> None:
        """Raise the LinkDown that ended this connection, if one did."""
        if self._dead is not None:
            raise self._dead

    def die(self, reason: str) -> LinkDown:
        """Close because of an error of the peer; returns the error to raise. Responses that came before can still be taken."""
        if self._dead is None:
            self._dead = LinkDown(f"{self._address}: {reason}")
            self.close()
        return self._dead

    def handshake(self, token: bytes, patience_s: float) -> None:
        """Present the token and learn who the broker is.

        Args:
            token: what links present.
            patience_s: how long the broker may take.

        Raises:
            LinkDown, LinkRefused: see there.
        """
        self._socket.setblocking(False)
        self._client.connect(link_connect(token))
        until = self._clock() + patience_s
        while self._client.greeting is None:
            if self._refusal is not None:
                raise self._refusal
            if self._clock() >= until:
                raise self.die(f"no answer to CONNECT within {patience_s:g} s")
            self.turn(until)
        self._meet(self._client.greeting)

    def _meet(self, connected: pb.CommandConnected) -> None:
        if not connected.HasField("geo") or connected.geo.version != HELLO_VERSION:
            speaks = f"version {connected.geo.version} of" if connected.HasField("geo") else "no"
            raise LinkRefused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connected.server_version} speaks {speaks} link commands; version {HELLO_VERSION} is needed",
                self._address,
            )
        self.hello = connected.geo
        self.message_bytes_max = connected.max_message_size

    def request(self, command: pb.BaseCommand, buffers: Sequence[memoryview] = (), *, extra_s: float = 0) -> int:
        """Queue a request and send as much as the socket takes at once.

        Args:
            command: see `ClientConnection.request`, which sets its request id.
            buffers: bytes after it; kept, not copied.
            extra_s: how much longer than usual the response may take.

        Returns:
            The request id.

        Raises:
            LinkDown: see there.
        """
        self.check()
        request_id = self._client.request(command, buffers)
        self._due[request_id] = self._clock() + self._timeout_s + extra_s
        self._flush()
        return request_id

    def wait_for(self, request_id: int) -> Response:
        """The response to one request, other than an error.

        Raises:
            LinkDown, LinkRefused: see there.
        """
        while request_id not in self.responses:
            self.turn(self.deadline())
        response = self.responses.pop(request_id)
        if response.error is not None:
            raise LinkRefused(response.error.error, response.error.message, self._address)
        return response

    def deadline(self) -> float:
        """When the first request may be overdue; a time far away if there is no request."""
        first = min(self._due.values(), default=math.inf)
        return max(first, self._moved_at + self._timeout_s)

    def turn(self, until: float) -> None:
        """Send and receive as much as possible; if nothing moves, wait for the socket, but not beyond `until`.

        Raises:
            LinkDown: also when a request is overdue.
        """
        self.check()
        try:
            self._flush()
            ready = _wait(self._socket, writable=self._wants_write(), timeout_s=until - self._clock())
            if ready.write:
                self._flush()
            if ready.read:
                self._receive()
        except OSError as error:
            raise self.die(error.strerror or str(error)) from None
        except ProtocolError as error:
            raise self.die(str(error)) from None
        if self._due and self.deadline() <= self._clock():
            raise self.die(f"no answer within {self._timeout_s:g} s")

    def _wants_write(self) -> bool:
        waits = isinstance(self._socket, TlsSocket) and self._socket.waits_to_read
        return self._client.has_outgoing and not waits

    def _flush(self) -> None:
        while buffers := self._client.outgoing():
            try:
                sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                return
            except OSError as error:
                raise self.die(error.strerror or str(error)) from None
            if self._client.sent(sent):
                self._moved_at = self._clock()

    def _receive(self) -> None:
        while True:
            room = self._client.get_buffer()
            try:
                count = self._socket.recv_into(room)
            except BlockingIOError:
                return
            if count == 0:
                raise self.die("the broker closed the connection")
            try:
                self._accept(self._client.received(count))
            except ClientFault as fault:
                self._accept(fault.events)
                raise
            if self._client.buffered_bytes:
                self._moved_at = self._clock()  # part of a response; a ping comes in one piece
            if count < len(room):
                return

    def _accept(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Response):
                self._moved_at = self._clock()
                del self._due[event.request_id]
                self.responses[event.request_id] = event
            elif isinstance(event, Push):
                self._pushed(event.command)
            elif isinstance(event, ConnectRefused):
                self._refusal = LinkRefused(event.error.error, event.error.message, self._address)

    def _pushed(self, command: pb.BaseCommand) -> None:
        kind, request_id = command.type, request_id_of(command)
        if kind == pb.GEO_SCHEMAS_WANTED:
            brought = self._schemas(command.geo_schemas_wanted)
            self._client.send(pb.BaseCommand(type=pb.GEO_SCHEMAS_BROUGHT, geo_schemas_brought=brought))
            self._moved_at = self._clock()
        elif kind == pb.ERROR and request_id == NO_REQUEST:
            raise self.die(command.error.message)
        elif request_id != NO_REQUEST:
            raise self.die(f"answered request {request_id} by command type {kind}, which is not an answer to it")
        else:
            raise self.die(f"sent command type {kind}, which is not an answer")


def _refuse_schemas(wanted: pb.CommandGeoSchemasWanted) -> pb.CommandGeoSchemasBrought:
    """The answer of a client without a source to ask (see `LinkConnection.answer_schemas`)."""
    return pb.CommandGeoSchemasBrought(
        ticket=wanted.ticket, reason=f"this client does not ask {wanted.source} for schemas"
    )


class _Ready(NamedTuple):
    read: bool
    write: bool


def _wait(connection: socket.socket | TlsSocket, *, writable: bool, timeout_s: float) -> _Ready:
    """Wait until a socket has bytes, or (`writable`) room, or time is up."""
    # poll, not select: file numbers above 1,023 are normal in a Spark executor.
    poller = select.poll()
    poller.register(connection, select.POLLIN | (select.POLLOUT if writable else 0))
    events = 0
    for _, found in poller.poll(max(0, math.ceil(timeout_s * 1000))):
        events |= found
    # Errors and hang-ups count as readable: the read then says what happened.
    return _Ready(bool(events & ~select.POLLOUT), bool(events & select.POLLOUT))
