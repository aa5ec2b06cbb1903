"""A non-blocking shell around `wire.client` for link commands, and a way to wait on several of them.

Why not the blocking client of `runtime`: a task talks to several clusters at once and must not wait for one of them
(docs/design/pipeline.md#dead-cluster), and a payload of megabytes must reach Arrow without being copied.

A cluster may have several brokers, one of which serves. A channel tries their addresses in turn until one of them accepts it
(docs/design/cluster.md#links). Requests wait for that, so a broker that does not serve never gets any.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from math import inf
from typing import Final

from magnetar.core.addresses import BrokerAddresses
from magnetar.core.errors import ProtocolError
from magnetar.pipeline.tasks.channel_poll import ChannelPoll
from magnetar.pipeline.tasks.pace import Pace
from magnetar.runtime.network.link_connection import LinkDown, link_connect
from magnetar.runtime.security.tls import TlsSocket, shown, target_of
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import ClientConnection, Connected, ConnectRefused, Push, Response

FRAME_BYTES_MAX: Final = 64 << 20
"""A ceiling for what a broker may send us in one frame: reads ask for at most 8 MiB, topic lists stay below."""

_KEEPALIVE: Final = tuple(
    (getattr(socket, name), value)
    for name, value in {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
)
"""In seconds: a question may be held for 15 s, and a host that is gone would not be noticed before. The system asks it, not the
broker: one that stands still for a while keeps its connections."""


class LinkChannel:
    """A connection by TCP, or TLS when the address says so, authenticated by what links present.

    Args:
        addresses: of the cluster (see `runtime.security.tls.target_of`); a text is `BrokerAddresses.parse`d.
        token: what links present.
        clock: seconds, monotonic.

    Attributes:
        address: the one that is tried, or that accepted the connection; for error texts.
        locator: the addresses as a text.
        presented: the token.
        fresh: whether it was opened for the present task, so that a failure says something about the broker.
        progress_at: when bytes last went in or out, by `clock`.
        tried_at: when `address` was begun to be tried, likewise.
        hello: who the broker is; None until it accepted CONNECT.
        round_trip_s: seconds from CONNECT to its answer; 0 until then.
        pace: of the bytes that are sent over it and answered. It is kept with the connection, so that a task begins with the
            window at which the last one ended.

    Raises:
        LinkDown: it cannot be begun.
    """

    _patience_s: float = inf

    def __init__(
        self, addresses: BrokerAddresses | str, token: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fresh = True
        self.hello: pb.GeoHello | None = None
        self._clock = clock
        self.progress_at = self.tried_at = clock()
        self.round_trip_s = 0.0
        self.pace = Pace(self.progress_at)
        self._greets_at = 0.0
        self._connected = False
        self._client = ClientConnection(FRAME_BYTES_MAX)
        self._received_before = 0
        self.presented = token
        self.locator = str(addresses)
        self._addresses = BrokerAddresses.parse(addresses) if isinstance(addresses, str) else addresses
        self._round = self._addresses.round()
        self._tried: list[socket.socket | TlsSocket] = []
        """Sockets of addresses that were of no use. They are closed with the channel, or when one is accepted: a selector would
        not notice that the next socket has the number of one that was closed."""
        self._begin()
        self._client.connect(link_connect(token.encode()))

    def _begin(self) -> None:
        """Begin to connect to the next address that can be tried."""
        while True:
            try:
                self._open(self._round.address)
            except OSError as error:
                if not self._round.failed(f"{self.address}: {error.strerror or error}"):
                    self._close_tried()
                    raise LinkDown(self._round.reason) from None
            else:
                return

    def _open(self, address: str) -> None:
        self._target = target_of(address)
        self.address = shown(address)
        self.progress_at = self.tried_at = self._clock()
        self._patience_s = self._round.patience_s(inf)
        family = socket.getaddrinfo(self._target.host, self._target.port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family[0], family[1], family[2])
        self._socket: socket.socket | TlsSocket = opened
        self._tried.append(opened)
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
        with suppress(BlockingIOError):
            opened.connect(family[4])
        self._tried.pop()

    def fileno(self) -> int:
        """Descriptor of the socket, for the selector; -1 once closed."""
        return self._socket.fileno()

    @property
    def wake_at(self) -> float:
        """When the next address is tried if nothing is heard of this one; `inf`: this is the last one, or it accepted."""
        return self.progress_at + self._patience_s

    @property
    def connected(self) -> bool:
        """Whether connecting is over: then bytes can be sent before the selector says so, mostly."""
        return self._connected

    @property
    def wants_write(self) -> bool:
        """Whether the selector should look for room to write, or for the end of connecting."""
        if isinstance(self._socket, TlsSocket) and self._socket.waits_to_read:
            return False
        return self._client.has_outgoing or not self._connected

    @property
    def frames_received(self) -> int:
        """How many frames came since it was opened, or taken from those that were kept."""
        return self._client.received_commands - self._received_before

    def taken(self) -> None:
        """It was idle and is used by another task now."""
        self.fresh, self._received_before = False, self._client.received_commands

    def request(self, command: pb.BaseCommand, buffers: Sequence[bytes | memoryview] = ()) -> int:
        """Queue a request (see `ClientConnection.request`); returns its id."""
        return self._client.request(command, buffers)

    def send(self, command: pb.BaseCommand) -> None:
        """Queue a command that has no response."""
        self._client.send(command)

    def pump(self, readable: bool, writable: bool) -> list[Response | Push]:
        """Send and receive as much as possible without waiting; continue with the next address if the present one is of no use.

        Raises:
            LinkDown: the connection failed, was closed, or no address has a broker that accepts this link.
        """
        try:
            events = self._exchange(readable, writable)
        except (OSError, ProtocolError) as error:
            reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
            if self._client.greeting is not None:
                raise LinkDown(f"{self.address}: {reason}") from None
            self._next_address(reason)
            return []
        if self._patience_s != inf and self.wake_at <= self._clock():
            self._next_address(f"no answer within {self._patience_s * 1000:.0f} ms", silent=True)
        return events

    def _exchange(self, readable: bool, writable: bool) -> list[Response | Push]:
        """Send and receive. Raises OSError or ProtocolError if the connection, or what came, is of no use."""
        try:
            if writable:
                self._finish_connecting()
                self._send_some()
            events = self._receive_some() if readable else []
            if self._client.has_outgoing and events:  # what waited for CONNECTED, or came up meanwhile
                self._send_some()
        except BlockingIOError:
            return []
        return events

    def _next_address(self, reason: str, *, silent: bool = False) -> None:
        """Connect to the next address. Nothing was sent to the present one but CONNECT."""
        self._tried.append(self._socket)
        if not self._round.failed(f"{self.address}: {reason}", silent=silent):
            raise LinkDown(self._round.reason)
        self._connected, self._greets_at = False, 0.0
        self._begin()
        self._client.connect_elsewhere(link_connect(self.presented.encode()))

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
        while buffers := self._client.outgoing():
            try:
                sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                return
            self.progress_at = self._clock()
            self._greets_at = self._greets_at or self.progress_at
            self._client.sent(sent)

    def _receive_some(self) -> list[Response | Push]:
        events: list[Response | Push] = []
        while True:
            room = self._client.get_buffer()
            try:
                count = self._socket.recv_into(room)
            except BlockingIOError:
                return events
            if count == 0:
                if events:
                    return events  # the end comes again with the next call
                raise ProtocolError("connection closed by the broker")
            self.progress_at = self._clock()
            full = count == len(room)
            for event in self._client.received(count):
                if isinstance(event, Connected):
                    self._greeted(event.greeting)
                elif isinstance(event, ConnectRefused):
                    raise ProtocolError(event.error.message)
                else:
                    events.append(event)
            if not full:
                return events

    def _greeted(self, greeting: pb.CommandConnected) -> None:
        if not greeting.HasField("geo"):
            raise ProtocolError("the broker does not accept this link token (or is no Magnetar broker)")
        self.hello = greeting.geo
        self.round_trip_s = self._clock() - self._greets_at
        self._patience_s = inf
        self._round.answered()
        self._close_tried()
        self._send_some()

    def _close_tried(self) -> None:
        for tried in self._tried:
            tried.close()
        self._tried.clear()

    def close(self) -> None:
        """Close the socket; may be called twice. An address that had not accepted the connection is not tried first again."""
        self._round.give_up()
        self._close_tried()
        self._socket.close()


def wait(channels: Iterable[LinkChannel], timeout: float) -> list[tuple[LinkChannel, bool, bool]]:
    """Wait once until one of the channels is ready; returns (channel, readable, writable) of each that is."""
    with closing(ChannelPoll[LinkChannel]()) as poll:
        return poll.wait(channels, timeout)


def call(
    channel: LinkChannel, command: pb.BaseCommand, timeout: float, *, clock: Callable[[], float] = time.monotonic
) -> pb.BaseCommand:
    """Send one request and wait for its response; for callers that have nothing else to do.

    Args:
        channel: the connection, also one that is still being made.
        command: the request.
        timeout: in seconds. It begins again with each address of the cluster that is tried.
        clock: seconds, monotonic; that of the channel.

    Raises:
        LinkDown: no response within `timeout`, or the connection failed, or the broker answered with an error.
    """
    request_id = channel.request(command)
    until = clock() + timeout
    writable, readable = True, False
    while True:
        for event in channel.pump(readable, writable):
            if event.command.type == pb.ERROR:
                raise LinkDown(event.command.error.message)
            if isinstance(event, Response) and event.request_id == request_id:
                return event.command
        left = max(until, channel.tried_at + timeout) - clock()
        if left <= 0:
            raise LinkDown(f"no answer within {timeout * 1000:.0f} ms")
        ready = wait([channel], left)
        _, readable, writable = ready[0] if ready else (channel, False, False)


_kept: dict[tuple[str, str], LinkChannel] = {}
"""Connections kept between the tasks of one executor process; a worker process runs one task at a time."""

_clusters: dict[str, BrokerAddresses] = {}
"""The clusters that tasks of this process connected to, by their addresses: which broker answered last is kept between tasks."""


def new_channel(addresses: str, token: str) -> LinkChannel:
    """A new connection to a cluster, beginning with the broker that answered this process last.

    Raises:
        LinkDown: it cannot be begun.
    """
    cluster = _clusters.get(addresses)
    if cluster is None:
        cluster = _clusters[addresses] = BrokerAddresses.parse(addresses)
    return LinkChannel(cluster, token)


def open_channel(addresses: str, token: str) -> LinkChannel:
    """A connection to a cluster: the one kept from the last task if it is still open, else a new one.

    Raises:
        LinkDown: it cannot be begun.
    """
    kept = _kept.pop((addresses, token), None)
    if kept is not None:
        try:
            kept.pump(True, False)  # answers the pings that came meanwhile, and finds out whether it was closed
        except LinkDown:
            kept.close()
        else:
            kept.taken()
            return kept
    return new_channel(addresses, token)


def keep_channel(channel: LinkChannel, token: str) -> None:
    """Keep an idle connection for the next task."""
    before = _kept.get((channel.locator, token))
    if before is not None:
        before.close()
    channel.fresh = False
    _kept[channel.locator, token] = channel
