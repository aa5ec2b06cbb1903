"""A non-blocking connection to a broker for the link commands, and a way to wait on several of them.

Why not the blocking client of `runtime`: a task talks to several clusters at once and must not wait for one of them
(docs/design/pipeline.md#dead-cluster), and a payload of megabytes must reach Arrow without being copied. A received
frame is one buffer of its own; its payload is a view into it.
"""

import os
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError

from magnetar.core.errors import MagnetarError
from magnetar.runtime.security.tls import TlsSocket, shown, target_of
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import LINK_AUTH_METHOD
from magnetar.wire.frames import encode_head

FRAME_BYTES_MAX: Final = 64 << 20
"""A ceiling for what a broker may send us in one frame: reads ask for at most 8 MiB, topic lists stay below."""

RECEIVE_BYTES: Final = 256 << 10
"""What one call of the kernel may return while no large frame is under way."""

BUFFERS_PER_SEND: Final = 512
"""Below the kernel's limit of 1,024 buffers for one sendmsg."""

CONNECT: Final = 2
CONNECTED: Final = 3
ERROR: Final = 14
PING: Final = 18
PONG: Final = 19
GEO_TOPICS: Final = 1000
GEO_TOPICS_RESPONSE: Final = 1001
GEO_READ: Final = 1002
GEO_READ_RESPONSE: Final = 1003
GEO_APPEND: Final = 1004
GEO_APPEND_RESPONSE: Final = 1005
GEO_COMMIT: Final = 1006
GEO_COMMIT_RESPONSE: Final = 1007
GEO_WATERMARKS: Final = 1008
GEO_WATERMARKS_RESPONSE: Final = 1009
GEO_SCHEMAS: Final = 1014
GEO_SCHEMAS_RESPONSE: Final = 1015
GEO_SCHEMAS_WANTED: Final = 1016
GEO_SCHEMAS_BROUGHT: Final = 1017


class LinkDown(MagnetarError):
    """The peer cannot be reached, went away, is silent, refuses the token, or is no broker of ours."""


class Frame(NamedTuple):
    """One received command; `payload` is a view into the frame's own buffer."""

    command: pb.BaseCommand
    payload: memoryview


class LinkChannel(Protocol):
    """What the pipeline needs of a connection; tests bring their own."""

    frames_received: int
    progress_at: float
    fresh: bool

    def fileno(self) -> int:
        """For the selector."""
        ...

    @property
    def wants_write(self) -> bool:
        """Whether something waits to be sent."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """How much."""
        ...

    def send(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> None:
        """Queue one frame."""
        ...

    def pump(self, readable: bool, writable: bool) -> list[Frame]:
        """Send and receive what goes without waiting. Raises LinkDown."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


class Channel:
    """A non-blocking connection, by TLS when the address says so, authenticated by what links present.

    Frames may be queued before the broker has answered CONNECT; they follow it on the wire only once it has, for a broker
    that refuses the token must not be sent data.
    """

    def __init__(self, address: str, token: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        self.hello: pb.GeoHello | None = None
        self.frames_received = 0
        self.fresh = True
        self.message_bytes_max = 0
        self._clock = clock
        self.progress_at = clock()
        self._out: deque[memoryview] = deque()
        self._held: list[memoryview] = []
        self.unsent_bytes = 0
        self._scratch = bytearray(RECEIVE_BYTES)
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._connected = False
        self.presented = token
        self._target = target_of(address)
        self.locator = address
        self.address = address = shown(address)
        try:
            family = socket.getaddrinfo(self._target.host, self._target.port, type=socket.SOCK_STREAM)[0]
            self._socket: socket.socket | TlsSocket = socket.socket(family[0], family[1], family[2])
        except OSError as error:
            raise LinkDown(f"{address}: {error.strerror or error}") from None
        self._socket.setblocking(False)
        assert isinstance(self._socket, socket.socket)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.connect(family[4])
        except BlockingIOError:
            pass
        except OSError as error:
            self._socket.close()
            raise LinkDown(f"{address}: {error.strerror or error}") from None
        hello = pb.BaseCommand(type=CONNECT)
        hello.connect.client_version = "magnetar-link"
        hello.connect.protocol_version = 21
        hello.connect.auth_method_name = LINK_AUTH_METHOD
        hello.connect.auth_data = token.encode()
        greeting = encode_head(hello, 0)
        self._out.append(memoryview(greeting))
        self.unsent_bytes += len(greeting)

    def fileno(self) -> int:
        """Of the socket, for the selector; -1 once closed."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether the selector should look for room to write, or for the end of connecting."""
        if isinstance(self._socket, TlsSocket) and self._socket.waits_to_read:
            return False
        return bool(self._out) or not self._connected

    def send(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> None:
        """Queue one frame: a command, and its payload in any number of buffers (kept until sent, not copied)."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        self._queue([encode_head(command, sum(map(len, views))), *views])

    def _queue(self, buffers: Sequence[bytes | memoryview]) -> None:
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        self.unsent_bytes += sum(map(len, views))
        (self._held if self.hello is None else self._out).extend(views)

    def pump(self, readable: bool, writable: bool) -> list[Frame]:
        """Send and receive what goes without waiting.

        Raises:
            LinkDown: the connection failed, was closed, or what came is no answer of a broker of ours.
        """
        try:
            if writable:
                self._finish_connecting()
                self._send_some()
            frames = self._receive_some() if readable else []
            if self._out and frames:  # an answer to PING, or what waited for CONNECTED
                self._send_some()
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkDown(f"{self.address}: {error.strerror or error}") from None
        return frames

    def _finish_connecting(self) -> None:
        if not self._connected:
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            self._connected = True
            self.progress_at = self._clock()
            if self._target.context is not None and isinstance(self._socket, socket.socket):
                self._socket = TlsSocket(self._socket, self._target.context, self._target.host)

    def _send_some(self) -> None:
        while self._out:
            batch = list(islice(self._out, BUFFERS_PER_SEND))
            try:
                sent = self._socket.sendmsg(batch)
            except BlockingIOError:
                return
            self.progress_at = self._clock()
            self.unsent_bytes -= sent
            while sent:
                head = self._out[0]
                if sent < len(head):
                    self._out[0] = head[sent:]
                    break
                sent -= len(head)
                self._out.popleft()

    def _receive_some(self) -> list[Frame]:
        frames: list[Frame] = []
        while True:
            if self._large is not None:
                view = memoryview(self._large)[self._large_filled :]
            else:
                view = memoryview(self._scratch)[self._filled :]
            try:
                count = self._socket.recv_into(view)
            except BlockingIOError:
                return frames
            if count == 0:
                if frames:
                    return frames  # the end comes again with the next call
                raise LinkDown(f"{self.address}: connection closed by the broker")
            self.progress_at = self._clock()
            full = count == len(view)
            if self._large is not None:
                self._large_filled += count
                if full:
                    large, self._large = self._large, None
                    self._accept(memoryview(large), frames)
            else:
                self._filled += count
                self._split(frames)
            if not full:
                return frames

    def _split(self, frames: list[Frame]) -> None:
        """Take the whole frames out of the scratch buffer; give a large one a buffer of its own."""
        at = 0
        while self._filled - at >= 4:
            (size,) = struct.unpack_from(">I", self._scratch, at)
            if not 4 <= size <= FRAME_BYTES_MAX:
                raise LinkDown(f"{self.address}: a frame of {size} bytes is not Pulsar's protocol")
            have = self._filled - at - 4
            if have < size:
                if size + 4 > RECEIVE_BYTES:
                    self._large = bytearray(size)
                    self._large[:have] = self._scratch[at + 4 : self._filled]
                    self._large_filled = have
                    at = self._filled
                break
            self._accept(memoryview(bytes(memoryview(self._scratch)[at + 4 : at + 4 + size])), frames)
            at += 4 + size
        rest = self._filled - at
        if at and rest:
            self._scratch[:rest] = self._scratch[at : self._filled]
        self._filled = rest

    def _accept(self, body: memoryview, frames: list[Frame]) -> None:
        (size,) = struct.unpack_from(">I", body)
        if size > len(body) - 4:
            raise LinkDown(f"{self.address}: a command of {size} bytes in a frame of {len(body)}")
        try:
            command = pb.BaseCommand.FromString(bytes(body[4 : 4 + size]))
        except DecodeError:
            raise LinkDown(f"{self.address}: a command that cannot be read") from None
        self.frames_received += 1
        if command.type == PING:
            self._queue([encode_head(pb.BaseCommand(type=PONG, pong=pb.CommandPong()), 0)])
        elif command.type == CONNECTED:
            self._greeted(command.connected)
        elif command.type == ERROR and self.hello is None:
            raise LinkDown(f"{self.address}: {command.error.message}")
        elif command.type != PONG:
            frames.append(Frame(command, body[4 + size :]))

    def _greeted(self, connected: pb.CommandConnected) -> None:
        if not connected.HasField("geo"):
            raise LinkDown(f"{self.address}: the broker does not accept this link token (or is no Magnetar broker)")
        self.hello = connected.geo
        self.message_bytes_max = connected.max_message_size
        self._out.extend(self._held)
        self._held.clear()
        self._send_some()

    def close(self) -> None:
        """Close the socket; may be called twice."""
        self._socket.close()


def wait(channels: Iterable[LinkChannel], timeout: float) -> list[tuple[LinkChannel, bool, bool]]:
    """Wait until one of the channels can go on; returns (channel, readable, writable) of each that can."""
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
            selector.register(channel, events, channel)
        return [
            (key.data, bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE))
            for key, events in selector.select(timeout)
        ]


def call(
    channel: LinkChannel, command: pb.BaseCommand, timeout: float, *, clock: Callable[[], float] = time.monotonic
) -> Frame:
    """Send one request and wait for one answer; for callers that have nothing else to do.

    Raises:
        LinkDown: no answer within `timeout` seconds, or the connection failed, or the broker answered with an error.
    """
    channel.send(command)
    until = clock() + timeout
    writable, readable = True, False
    while True:
        for frame in channel.pump(readable, writable):
            if frame.command.type == ERROR:
                raise LinkDown(frame.command.error.message)
            return frame
        left = until - clock()
        if left <= 0:
            raise LinkDown(f"no answer within {timeout * 1000:.0f} ms")
        ready = wait([channel], left)
        _, readable, writable = ready[0] if ready else (channel, False, False)


_kept: dict[tuple[str, str], Channel] = {}
"""Connections kept between the tasks of one executor process; a worker process runs one task at a time."""


def take(address: str, token: str) -> Channel:
    """A connection to a broker: the one kept from the last task if it still lives, else a new one.

    Raises:
        LinkDown: it cannot be begun.
    """
    kept = _kept.pop((address, token), None)
    if kept is not None:
        try:
            kept.pump(True, False)  # answers the pings that came meanwhile, and finds out whether it was closed
        except LinkDown:
            kept.close()
        else:
            kept.fresh = False
            kept.frames_received = 0
            return kept
    return Channel(address, token)


def keep(channel: Channel, token: str) -> None:
    """Keep an idle connection for the next task."""
    before = _kept.get((channel.locator, token))
    if before is not None:
        before.close()
    channel.fresh = False
    _kept[channel.locator, token] = channel
