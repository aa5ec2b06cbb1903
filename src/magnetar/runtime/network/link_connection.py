"""One authenticated socket to a broker: requests out, answers in, each told apart by its id; blocking, one thread.

`runtime.network.link_client` gives it its shape; here is how it waits. Whoever calls does the I/O: nothing happens between
calls. A
request is overdue when its time is up *and* nothing moved for as long: a slow line that still carries bytes is not down.
"""

import math
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from magnetar.core.errors import ErrorCode, MagnetarError, ProtocolError
from magnetar.runtime.security.tls import TlsSocket
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD, NO_REQUEST
from magnetar.wire.frames import Frame, FrameDecoder, encode, encode_head
from magnetar.wire.versions import PROTOCOL_VERSION

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A ceiling on what a broker may send in one frame: reads ask for less, lists of 10,000 topics stay below 10 MB."""

HELLO_VERSION: Final = 1
"""The version of the link commands that this side speaks."""

_BUFFERS_PER_SEND: Final = 512  # below the kernel's limit of 1,024
_CONNECT, _CONNECTED, _ERROR, _PING, _PONG = 2, 3, 14, 18, 19
_PONG_BYTES: Final = encode(pb.BaseCommand(type=_PONG, pong=pb.CommandPong()))
_ANSWERS: Final[dict[int, str]] = {
    1001: "geo_topics_response",
    1003: "geo_read_response",
    1005: "geo_append_response",
    1007: "geo_commit_response",
    1009: "geo_watermarks_response",
    1011: "geo_status_response",
    1013: "geo_restore_response",
    1015: "geo_schemas_response",
}
_WANTED, _BROUGHT = 1016, 1017
_CODES: Final = frozenset(int(code) for code in ErrorCode)


class LinkDown(MagnetarError):
    """The peer is gone, silent or talks nonsense: back off, connect anew."""


class LinkRefused(MagnetarError):
    """The peer refused one request.

    Attributes:
        code: as the protocol calls it; UNKNOWN for numbers that this side does not know.
        message: the peer's own line.
    """

    def __init__(self, code: int, message: str, where: str) -> None:
        super().__init__(f"{where}: {message}")
        self.code = ErrorCode(code) if code in _CODES else ErrorCode.UNKNOWN
        self.message = message


class _Pending(NamedTuple):
    """A request on its way: the command type of its answer, and until when that is not late."""

    answer: int
    until: float


class LinkConnection:
    """Sends requests and collects answers.

    Args:
        connection: connected; this takes it over.
        address: for error texts.
        timeout_s: how long an answer may take while nothing moves.
        clock: seconds, monotonic.

    Attributes:
        hello, message_bytes_max: what the broker said of itself, after `handshake`.
        answered: request ids whose answers came, in that order; `take` hands them out.
    """

    def __init__(
        self, connection: socket.socket | TlsSocket, address: str, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self.hello = pb.GeoHello()
        self.on_wanted: Callable[[pb.CommandGeoSchemasWanted], pb.CommandGeoSchemasBrought] = _cannot_tell
        self.message_bytes_max = 0
        self.answered: dict[int, Frame] = {}
        self._address = address
        self._socket = connection
        self._clock = clock
        self._timeout_s = timeout_s
        self._moved_at = clock()
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._out: deque[memoryview] = deque()
        self._pending: dict[int, _Pending] = {}
        self._next_request = 0
        self._greeting: Frame | None = None
        self._dead: LinkDown | None = None

    def close(self) -> None:
        """Close the socket; what is in flight is forgotten here."""
        if self._dead is None:
            self._dead = LinkDown(f"{self._address}: the connection was closed here")
        self._socket.close()
        self._out.clear()

    def check(self) -> None:
        """Raise the LinkDown that ended this connection, if one did."""
        if self._dead is not None:
            raise self._dead

    def die(self, reason: str) -> LinkDown:
        """Close because of what the peer did; the error to raise. Answers that came before can still be taken."""
        if self._dead is None:
            self._dead = LinkDown(f"{self._address}: {reason}")
            self.close()
        return self._dead

    def handshake(self, token: bytes) -> None:
        """Present the token and learn who the broker is.

        Raises:
            LinkDown, LinkRefused: see there.
        """
        self._socket.setblocking(False)
        connect = pb.CommandConnect(
            client_version="magnetar-link",
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=LINK_AUTH_METHOD,
            auth_data=token,
        )
        self._queue([encode(pb.BaseCommand(type=_CONNECT, connect=connect))])
        until = self._clock() + self._timeout_s
        while self._greeting is None:
            if self._clock() >= until:
                raise self.die(f"no answer to CONNECT within {self._timeout_s:g} s")
            self.turn(until)
        command = self._greeting.command
        if command.type == _ERROR:
            raise LinkRefused(command.error.error, command.error.message, self._address)
        if command.type != _CONNECTED:
            raise self.die(f"answered CONNECT by command type {command.type}")
        self._meet(command.connected)

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

    def next_request_id(self) -> int:
        """A number that no other request of this connection has."""
        self._next_request += 1
        return self._next_request

    def request(
        self, command: pb.BaseCommand, request_id: int, buffers: Sequence[memoryview] = (), *, extra_s: float = 0
    ) -> None:
        """Queue a request and send what goes at once.

        Args:
            command: of an even type; its answer has the next odd one.
            request_id: as in the command.
            buffers: bytes behind it; kept, not copied.
            extra_s: how much longer than usual the answer may take.

        Raises:
            LinkDown: see there.
        """
        self.check()
        self._pending[request_id] = _Pending(command.type + 1, self._clock() + self._timeout_s + extra_s)
        self._queue([encode_head(command, sum(map(len, buffers))), *buffers])
        self._flush()

    def wait_for(self, request_id: int) -> Frame:
        """The answer to one request, other than an error.

        Raises:
            LinkDown, LinkRefused: see there.
        """
        while request_id not in self.answered:
            self.turn(self.deadline())
        frame = self.answered.pop(request_id)
        if frame.command.type == _ERROR:
            raise LinkRefused(frame.command.error.error, frame.command.error.message, self._address)
        return frame

    def deadline(self) -> float:
        """When the first request may be overdue; far away if there is none."""
        first = min((pending.until for pending in self._pending.values()), default=math.inf)
        return max(first, self._moved_at + self._timeout_s)

    def turn(self, until: float) -> None:
        """Send and receive what goes; if nothing does, wait for the socket, but not beyond `until`.

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
        if self._pending and self.deadline() <= self._clock():
            raise self.die(f"no answer within {self._timeout_s:g} s")

    def _wants_write(self) -> bool:
        waits = isinstance(self._socket, TlsSocket) and self._socket.waits_to_read
        return bool(self._out) and not waits

    def _queue(self, buffers: Sequence[bytes | memoryview]) -> None:
        self._out.extend(memoryview(buffer) for buffer in buffers if len(buffer))

    def _flush(self) -> None:
        while self._out:
            request = self._out[0].obj is not _PONG_BYTES
            try:
                sent = self._socket.sendmsg(list(islice(self._out, _BUFFERS_PER_SEND)))
            except BlockingIOError:
                return
            except OSError as error:
                raise self.die(error.strerror or str(error)) from None
            if request:
                self._moved_at = self._clock()
            while sent:
                head = self._out[0]
                if sent < len(head):
                    self._out[0] = head[sent:]
                    break
                sent -= len(head)
                self._out.popleft()

    def _receive(self) -> None:
        while True:
            room = self._decoder.get_buffer()
            try:
                count = self._socket.recv_into(room)
            except BlockingIOError:
                return
            if count == 0:
                raise self.die("the broker closed the connection")
            for frame in self._decoder.buffer_updated(count):
                self._accept(frame)
            if self._decoder.buffered_bytes:
                self._moved_at = self._clock()  # part of an answer; a ping comes in one piece
            if count < len(room):
                return

    def _accept(self, frame: Frame) -> None:
        kind = frame.command.type
        if kind == _PING:
            # Behind everything else that is queued: a frame must not begin in the middle of another.
            self._queue([_PONG_BYTES])
        elif kind == _PONG:
            return
        elif self._greeting is None:
            self._greeting = frame
        elif kind == _ERROR:
            if frame.command.error.request_id == NO_REQUEST:
                raise self.die(frame.command.error.message)
            self._settle(frame.command.error.request_id, frame)
        elif kind in _ANSWERS:
            self._settle(getattr(frame.command, _ANSWERS[kind]).request_id, frame)
        elif kind == _WANTED:
            brought = self.on_wanted(frame.command.geo_schemas_wanted)
            self._queue([encode(pb.BaseCommand(type=_BROUGHT, geo_schemas_brought=brought))])
            self._moved_at = self._clock()
        else:
            raise self.die(f"sent command type {kind}, which is no answer")

    def _settle(self, request_id: int, frame: Frame) -> None:
        pending = self._pending.pop(request_id, None)
        kind = frame.command.type
        if pending is None or kind not in {pending.answer, _ERROR}:
            raise self.die(f"answered request {request_id} by command type {kind}, which nobody asked for")
        self._moved_at = self._clock()
        self.answered[request_id] = frame


def _cannot_tell(wanted: pb.CommandGeoSchemasWanted) -> pb.CommandGeoSchemasBrought:
    """Of a client that carries entries of which nobody asks for schemas."""
    return pb.CommandGeoSchemasBrought(ticket=wanted.ticket, reason=f"nobody asks {wanted.source} for schemas")


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
