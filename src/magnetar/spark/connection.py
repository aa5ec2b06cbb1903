"""A blocking shell around `wire.client` for producers and readers, for one thread.

The tasks do not use the official client library, because it makes one Python object per message (figures in
docs/spark.md). Here a MESSAGE's payload stays one buffer until it is copied into the Arrow column. Only the official
protocol is used, so any Pulsar broker works.

The caller does the I/O: between calls nothing happens, except that the kernel's buffers fill up.
"""

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from magnetar.core.addresses import is_host, port_of
from magnetar.core.errors import ConfigError, ErrorCode, MagnetarError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import ClientConnection, ClientFault, ConnectRefused, Event, Push, Response
from magnetar.wire.connection import NO_REQUEST
from magnetar.wire.versions import PROTOCOL_VERSION

FRAME_BYTES_MAX: Final = 128 << 20
"""A ceiling for what a broker may send in one frame: brokers accept messages of 5 MiB by default, and are set higher."""

TIMEOUT_S: Final = 30.0
"""The longest time for an answer: the official clients' operation timeout."""

OWNER_OF: Final[dict[int, tuple[str, Callable[[pb.BaseCommand], int]]]] = {
    pb.MESSAGE: ("consumer", attrgetter("message.consumer_id")),
    pb.CLOSE_CONSUMER: ("consumer", attrgetter("close_consumer.consumer_id")),
    pb.SEND_RECEIPT: ("producer", attrgetter("send_receipt.producer_id")),
    pb.SEND_ERROR: ("producer", attrgetter("send_error.producer_id")),
    pb.CLOSE_PRODUCER: ("producer", attrgetter("close_producer.producer_id")),
}
"""Commands for a consumer or a producer: for which kind, and where its id is."""


class Down(MagnetarError):
    """The broker is gone, silent, or sends invalid data. The caller may connect again and continue where it stopped."""


class Refused(MagnetarError):
    """The broker answered one request with an error.

    Attributes:
        code: as the protocol calls it; UNKNOWN for numbers that this side does not know.
    """

    def __init__(self, code: int, message: str, where: str) -> None:
        super().__init__(f"{where}: {message}")
        self.code = ErrorCode.of(code)


@dataclass(frozen=True)
class Access:
    """The address and credentials for a cluster.

    Attributes:
        url: `pulsar://host:port[,host:port...]`, or `pulsar+ssl://`.
        token: "" without authentication.
        trust: file of certificates to trust; "" for the system's.
        insecure: accept any certificate.
        check_name: whether the certificate's name must be the host's.
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


Handler = Callable[[pb.BaseCommand, memoryview], None]


class Connection:
    """An open connection. Producers and readers register a handler under their id; answers are waited for by `request`.

    Args:
        url: of the broker.
        access: the credentials.
        proxied: the broker that a proxy leads to; "" without one.
        patience_s: for connecting, and then for the answer to CONNECT.
        timeout_s: for each later answer.

    Attributes:
        message_bytes_max: the largest entry that the broker accepts.
        handlers: by ("consumer" or "producer", id).
        dead: why it ended; "" while it is open.
    """

    def __init__(
        self,
        url: str,
        access: Access,
        *,
        proxied: str = "",
        patience_s: float = TIMEOUT_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.url = url
        self.message_bytes_max = 5 << 20
        self.handlers: dict[tuple[str, int], Handler] = {}
        self.dead = ""
        self._timeout_s = timeout_s
        self._events: deque[Event] = deque()
        self._responses: dict[int, Response] = {}
        self._awaited: set[int] = set()
        self._client = ClientConnection(FRAME_BYTES_MAX)
        self._socket = _open(url, access, patience_s)
        self._shake_hands(access.token, proxied, patience_s)

    def _shake_hands(self, token: str, proxied: str, patience_s: float) -> None:
        connect = pb.CommandConnect(client_version="magnetar-spark", protocol_version=PROTOCOL_VERSION)
        connect.feature_flags.SetInParent()
        if token:
            connect.auth_method_name, connect.auth_data = "token", token.encode()
        if proxied:
            connect.proxy_to_broker_url = proxied
        self._client.connect(connect)
        self._flush()
        until = time.monotonic() + patience_s
        while self._client.greeting is None:
            if time.monotonic() >= until:
                raise self._die(f"no answer within {patience_s:g} s")
            self.turn(until)
        self.message_bytes_max = self._client.greeting.max_message_size or self.message_bytes_max

    def close(self) -> None:
        """Close the socket; requests in flight are forgotten here."""
        self.dead = self.dead or f"{self.url}: closed here"
        self._socket.close()
        self.handlers.clear()

    def _die(self, reason: str) -> Down:
        self.dead = self.dead or f"{self.url}: {reason}"
        self.close()
        return Down(self.dead)

    def next_id(self) -> int:
        """A number that no other request, producer or consumer of this connection has."""
        return self._client.next_id()

    def send(self, command: pb.BaseCommand, payload: Sequence[bytes | memoryview] = ()) -> None:
        """Send one frame; waits while the kernel's buffer is full.

        Raises:
            Down: see there.
        """
        if self.dead:
            raise Down(self.dead)
        self._client.send(command, payload)
        self._flush()

    def _flush(self) -> None:
        try:
            self._socket.settimeout(self._timeout_s)
            while buffers := self._client.outgoing():
                if isinstance(self._socket, ssl.SSLSocket):
                    self._socket.sendall(b"".join(buffers))
                    sent = sum(map(len, buffers))
                else:
                    sent = self._socket.sendmsg(buffers)
                self._client.sent(sent)
        except OSError as error:
            raise self._die(error.strerror or str(error) or "no progress") from None

    def request(self, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send a request and wait for its response.

        Raises:
            Down, Refused: see there.
        """
        return self.answer(self.ask(command))

    def ask(self, command: pb.BaseCommand) -> int:
        """Send a request whose `answer` is taken later; returns its id."""
        if self.dead:
            raise Down(self.dead)
        request_id = self._client.request(command)
        self._awaited.add(request_id)
        self._flush()
        return request_id

    def tell(self, command: pb.BaseCommand) -> None:
        """Send a request whose response is not waited for."""
        if self.dead:
            raise Down(self.dead)
        self._client.request(command)
        self._flush()

    def answer(self, request_id: int) -> pb.BaseCommand:
        """Wait for the response to a request.

        Raises:
            Down, Refused: see there.
        """
        until = time.monotonic() + self._timeout_s
        while request_id not in self._responses:
            if time.monotonic() >= until:
                raise self._die(f"no answer within {self._timeout_s:g} s")
            self.turn(until)
        response = self._responses.pop(request_id)
        self._awaited.discard(request_id)
        if response.error is not None:
            raise Refused(response.error.error, response.error.message, self.url)
        return response.command

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
        if self._events:  # a handler raised, and left these
            self._handle()
            return True
        if not self._readable(until - time.monotonic()):
            return False
        try:
            count = self._socket.recv_into(self._client.get_buffer())
        except OSError as error:
            raise self._die(error.strerror or str(error)) from None
        if not count:
            raise self._die("the broker closed the connection")
        fault: ClientFault | None = None
        try:
            self._events.extend(self._client.received(count))
        except ClientFault as error:
            fault = error
            self._events.extend(error.events)
        self._handle()
        if fault is not None:
            raise self._die(str(fault))
        if self._client.has_outgoing:  # the answer to a PING
            self._flush()
        return True

    def _handle(self) -> None:
        events = self._events
        while events:
            event = events.popleft()
            if isinstance(event, Push):
                self._pushed(event.command, event.payload)
            elif isinstance(event, Response):
                if event.request_id in self._awaited:
                    self._responses[event.request_id] = event
            elif isinstance(event, ConnectRefused):
                raise self._die(event.error.message)

    def _pushed(self, command: pb.BaseCommand, payload: memoryview) -> None:
        owner = OWNER_OF.get(command.type)
        if owner is not None:
            kind, number_of = owner
            handler = self.handlers.get((kind, number_of(command)))
            if handler is not None:
                handler(command, payload)
        elif command.type == pb.ERROR and command.error.request_id == NO_REQUEST:
            raise self._die(command.error.message)
