"""A small blocking client of Pulsar's protocol, for one thread: connections.

Why not the official client library in the tasks: it hands out one Python object a message, with its bytes copied
(figures in docs/spark.md). Here a MESSAGE's payload is a view into the receive buffer; it is copied once, into the Arrow
column. Nothing but the official protocol is used, so that any Pulsar broker will do.

Whoever calls does the I/O; between calls nothing happens, but for the kernel's buffers filling up.
"""

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from magnetar.core.errors import ConfigError, ErrorCode, MagnetarError
from magnetar.core.hosts import is_host, port_of
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import encode, encode_head
from magnetar.wire.versions import PROTOCOL_VERSION

FRAME_BYTES_MAX: Final = 128 << 20
"""A ceiling for what a broker may send in one frame: brokers accept messages of 5 MiB by default, and are set higher."""

RECEIVE_BYTES: Final = 2 << 20
"""One receive buffer: what is copied when a frame stands across two of them is small beside it."""

TIMEOUT_S: Final = 30.0
"""How long an answer may take: the official clients' operation timeout."""

_CONNECT, _CONNECTED, _SEND, _ERROR, _PING, _PONG = 2, 3, 6, 14, 18, 19
_PONG_BYTES: Final = encode(pb.BaseCommand(type=_PONG, pong=pb.CommandPong()))
_BUFFERS_PER_SEND: Final = 512  # below the kernel's limit of 1,024
_LEAST: Final = 8  # two sizes

ANSWERS: Final[dict[int, str]] = {
    13: "success",
    14: "error",
    17: "producer_success",
    22: "partitionMetadataResponse",
    24: "lookupTopicResponse",
    30: "getLastMessageIdResponse",
    33: "getTopicsOfNamespaceResponse",
    35: "getSchemaResponse",
    38: "ackResponse",
}
"""Commands that answer a request by its id, and their fields."""

_CODES: Final = frozenset(int(code) for code in ErrorCode)


class Down(MagnetarError):
    """The broker is gone, silent or talks nonsense: connect anew and go on where it stopped."""


class Refused(MagnetarError):
    """The broker answered one request with an error.

    Attributes:
        code: as the protocol calls it; UNKNOWN for numbers that this side does not know.
    """

    def __init__(self, code: int, message: str, where: str) -> None:
        super().__init__(f"{where}: {message}")
        self.code = ErrorCode(code) if code in _CODES else ErrorCode.UNKNOWN


@dataclass(frozen=True)
class Access:
    """How to reach a cluster.

    Attributes:
        url: `pulsar://host:port[,host:port...]`, or `pulsar+ssl://`.
        token: "" without authentication.
        trust: file of certificates to trust; "" for the system's.
        insecure: accept any certificate.
        check_name: whether the certificate must be of the host.
    """

    url: str
    token: str = ""
    trust: str = ""
    insecure: bool = False
    check_name: bool = False

    def __repr__(self) -> str:
        return f"Access({self.url!r})"  # never the token

    def addresses(self) -> list[str]:
        """`scheme://host:port` of each address of the URL."""
        scheme, separator, rest = self.url.partition("://")
        if not separator:
            return [self.url]  # `split_url` says what is wrong with it
        return [f"{scheme}://{part}" for part in rest.rstrip("/").split(",")]


def split_url(url: str) -> tuple[bool, str, int]:
    """Whether encrypted, host and port.

    Raises:
        ConfigError: no such URL.
    """
    scheme, separator, rest = url.partition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    host = host.strip("[]")
    if not separator or scheme not in {"pulsar", "pulsar+ssl"} or not is_host(host) or not port_of(port):
        raise ConfigError(f"service.url {url[:300]!r} is not valid: write pulsar://host:port or pulsar+ssl://host:port")
    return scheme == "pulsar+ssl", host, port_of(port)


def _open(url: str, access: Access, timeout_s: float) -> socket.socket:
    encrypted, host, port = split_url(url)
    try:
        plain = socket.create_connection((host, port), timeout=timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not encrypted:
            return plain
        context = ssl.create_default_context(cafile=access.trust or None)
        context.check_hostname = access.check_name and not access.insecure
        if access.insecure:
            context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(plain, server_hostname=host)
    except OSError as error:
        raise Down(f"{url}: {error.strerror or error}") from None


def _buffer(size: int) -> memoryview:
    """Memory that is not cleared first."""
    return memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]  # the stubs do not know that arrays are buffers


Handler = Callable[[pb.BaseCommand, memoryview], None]


class Connection:
    """An open connection. Producers and readers register a handler under their id; answers are waited for by `request`.

    Attributes:
        message_bytes_max: the largest entry that the broker accepts.
        handlers: by ("consumer" or "producer", id).
        dead: why it ended; "" while it lives.
    """

    def __init__(self, url: str, access: Access, *, proxied: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self.message_bytes_max = 5 << 20
        self.handlers: dict[tuple[str, int], Handler] = {}
        self.dead = ""
        self._timeout_s = timeout_s
        self._answers: dict[int, pb.BaseCommand] = {}
        self._awaited: set[int] = set()
        self._next_id = 0
        self._hello: pb.BaseCommand | None = None
        self._chunk = _buffer(RECEIVE_BYTES)
        self._start = self._end = 0
        self._socket = _open(url, access, timeout_s)
        self._shake_hands(access.token, proxied)

    def _shake_hands(self, token: str, proxied: str) -> None:
        connect = pb.CommandConnect(client_version="magnetar-spark", protocol_version=PROTOCOL_VERSION)
        connect.feature_flags.SetInParent()
        if token:
            connect.auth_method_name, connect.auth_data = "token", token.encode()
        if proxied:
            connect.proxy_to_broker_url = proxied
        self.send(pb.BaseCommand(type=_CONNECT, connect=connect))
        until = time.monotonic() + self._timeout_s
        while self._hello is None:
            self.turn(until)
        if self._hello.type == _ERROR:
            raise self._die(self._hello.error.message)
        self.message_bytes_max = self._hello.connected.max_message_size or self.message_bytes_max

    def close(self) -> None:
        """Close the socket; what is in flight is forgotten here."""
        self.dead = self.dead or f"{self.url}: closed here"
        self._socket.close()
        self.handlers.clear()

    def _die(self, reason: str) -> Down:
        self.dead = self.dead or f"{self.url}: {reason}"
        self.close()
        return Down(self.dead)

    def next_id(self) -> int:
        """A number that no other request, producer or consumer of this connection has."""
        self._next_id += 1
        return self._next_id

    def send(self, command: pb.BaseCommand, payload: Sequence[bytes | memoryview] = ()) -> None:
        """Send one frame; waits while the kernel's buffer is full.

        Raises:
            Down: see there.
        """
        self.send_buffers([encode_head(command, sum(map(len, payload))), *payload])

    def send_buffers(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send what is a whole frame, or several.

        Raises:
            Down: see there.
        """
        if self.dead:
            raise Down(self.dead)
        try:
            self._socket.settimeout(self._timeout_s)
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.sendall(b"".join(buffers))
                return
            views = [memoryview(buffer) for buffer in buffers]
            at = 0
            while at < len(views):
                sent = self._socket.sendmsg(views[at : at + _BUFFERS_PER_SEND])
                while at < len(views) and sent >= len(views[at]):
                    sent -= len(views[at])
                    at += 1
                if sent:
                    views[at] = views[at][sent:]
        except OSError as error:
            raise self._die(error.strerror or str(error) or "no progress") from None

    def request(self, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        """Send a request and wait for its answer.

        Raises:
            Down, Refused: see there.
        """
        self.ask(command, request_id)
        return self.answer(request_id)

    def ask(self, command: pb.BaseCommand, request_id: int) -> None:
        """Send a request whose `answer` is taken later."""
        self._awaited.add(request_id)
        self.send(command)

    def answer(self, request_id: int) -> pb.BaseCommand:
        """Wait for the answer of a request.

        Raises:
            Down, Refused: see there.
        """
        until = time.monotonic() + self._timeout_s
        while request_id not in self._answers:
            if time.monotonic() >= until:
                raise self._die(f"no answer within {self._timeout_s:g} s")
            self.turn(until)
        command = self._answers.pop(request_id)
        self._awaited.discard(request_id)
        if command.type == _ERROR:
            raise Refused(command.error.error, command.error.message, self.url)
        return command

    def idle(self) -> None:
        """Answer what came since the last use; finds out whether the broker is still there.

        Raises:
            Down: it is not.
        """
        while self._readable(0):
            self.turn(time.monotonic())

    def _readable(self, timeout_s: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        try:
            return bool(select.select([self._socket], [], [], max(0.0, timeout_s))[0])
        except (OSError, ValueError):
            raise self._die("closed") from None

    def turn(self, until: float) -> bool:
        """Receive once, waiting until then at most; whether anything came.

        Raises:
            Down: see there.
        """
        if self.dead:
            raise Down(self.dead)
        if not self._readable(until - time.monotonic()):
            return False
        try:
            count = self._socket.recv_into(self._chunk[self._end :])
        except OSError as error:
            raise self._die(error.strerror or str(error)) from None
        if not count:
            raise self._die("the broker closed the connection")
        self._end += count
        self._split()
        return True

    def _split(self) -> None:
        chunk, need = self._chunk, _LEAST
        while self._end - self._start >= 4:
            (size,) = struct.unpack_from(">I", chunk, self._start)
            if not 4 <= size <= FRAME_BYTES_MAX:
                raise self._die(f"a frame of {size} bytes is not Pulsar's protocol")
            if self._end - self._start < 4 + size:
                need = 4 + size
                break
            begin = self._start + 4
            self._start = begin + size
            self._accept(chunk[begin : begin + size])
        if self._start + need > len(chunk) or self._end == len(chunk):
            # A new buffer, never this one again: what was handed out are views into it.
            rest = self._end - self._start
            fresh = _buffer(max(RECEIVE_BYTES, need))
            fresh[:rest] = chunk[self._start : self._end]
            self._chunk, self._start, self._end = fresh, 0, rest

    def _accept(self, body: memoryview) -> None:
        (size,) = struct.unpack_from(">I", body)
        try:
            if size > len(body) - 4:
                raise DecodeError
            command = pb.BaseCommand.FromString(body[4 : 4 + size])  # type: ignore[arg-type]  # any buffer will do
        except DecodeError:
            raise self._die("a command that cannot be read") from None
        kind = command.type
        if kind == 9:
            self._hand("consumer", command.message.consumer_id, command, body[4 + size :])
        elif kind == 7:
            self._hand("producer", command.send_receipt.producer_id, command, body)
        elif kind == 8:
            self._hand("producer", command.send_error.producer_id, command, body)
        elif kind == 15:
            self._hand("producer", command.close_producer.producer_id, command, body)
        elif kind == 16:
            self._hand("consumer", command.close_consumer.consumer_id, command, body)
        elif kind == _PING:
            self.send_buffers([_PONG_BYTES])
        elif self._hello is None and kind in (_CONNECTED, _ERROR):
            self._hello = command
        elif kind in ANSWERS:
            self._answered(command)

    def _answered(self, command: pb.BaseCommand) -> None:
        answer = getattr(command, ANSWERS[command.type])
        if command.type == 17 and not answer.producer_ready:
            return  # queued behind an exclusive producer; the real answer follows
        if answer.request_id in self._awaited:
            self._answers[answer.request_id] = command
        elif command.type == _ERROR and answer.request_id == (1 << 64) - 1:
            raise self._die(command.error.message)

    def _hand(self, kind: str, number: int, command: pb.BaseCommand, payload: memoryview) -> None:
        handler = self.handlers.get((kind, number))
        if handler is not None:
            handler(command, payload)


def closed_quietly(connection: Connection) -> None:
    """Close a connection whose state is unknown."""
    with contextlib.suppress(OSError):
        connection.close()
