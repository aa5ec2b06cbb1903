"""Connections of a waiting broker to the broker that serves, for requests that clients cannot be redirected with.

Each client that needs it has a connection of its own there, which presents what the client presented. So the serving broker
authenticates the client itself, and no broker has to trust another one.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Hashable, Mapping
from typing import Final, cast
from urllib.parse import urlencode

from magnetar.broker.waiting.registration import Registration
from magnetar.broker.waiting.session import Answered
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError, ProtocolError
from magnetar.core.secret_file import file_state
from magnetar.runtime.network.descriptors import fitting
from magnetar.runtime.security import tls
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import ClientConnection, Connected, ConnectRefused, Event, Response

logger = logging.getLogger("magnetar.broker")

CONNECTIONS_MAX: Final = 500
"""Connections to the serving broker at a time. Clients need theirs only while they open topics; each takes a descriptor here, in
addition to that of the client, and one there. Where too few files may be open there are fewer (`fitting_with_relay`)."""

ANSWER_S: Final = 10.0
"""How long an answer may take: clients give up after 30 s, and have time for another try."""

IDLE_S: Final = 5.0
"""After this time without a request a connection is closed. A client asks for many topics in a row, and then no more."""

ANSWER_BYTES_MAX: Final = 64 << 20
"""The largest answer: a list of 100,000 topics has 10 MB."""

RECEIVE_BYTES: Final = 4096
"""The receive buffer: most answers have 30 bytes."""


def fitting_with_relay(files: int | None, connections: int, http: int) -> tuple[int, ...]:
    """`descriptors.fitting` for a waiting broker: the last one is for the connections to the serving broker.

    Args:
        files: how many may be open; None: no limit.
        connections: `connections_max`; each client has one connection there at most.
        http: `http_connections_max`.
    """
    return fitting(files, connections, http, min(CONNECTIONS_MAX, connections))


class _Upstream(asyncio.Protocol):
    """The connection of one client.

    Args:
        relay: that made it.
        number: of the client's connection.
        serving: the broker that serves.
        connect: the client's credentials.
    """

    def __init__(self, relay: "OwnerRelay", number: int, serving: Registration, connect: pb.CommandConnect) -> None:
        self._relay = relay
        self._number = number
        self.serving = serving
        self._client = ClientConnection(ANSWER_BYTES_MAX, receive_bytes=RECEIVE_BYTES)
        self._client.connect(connect)
        self._waiting: dict[int, tuple[Answered, float]] = {}
        self._transport: asyncio.Transport | None = None
        self._used_s = relay.loop.time()
        self._held = False
        self._ended = False
        self._timer = relay.loop.call_later(IDLE_S, self._look)
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer."""
        return not self._waiting

    def open(self, url: str) -> None:
        """Begin to connect."""
        self._task = self._relay.loop.create_task(self._open(url))

    def ask(self, command: pb.BaseCommand, answered: Answered) -> None:
        """Send a request, as soon as the connection is open."""
        self._used_s = self._relay.loop.time()
        self._waiting[self._client.request(command)] = (answered, self._used_s + ANSWER_S)
        self._flush()

    def hold(self, hold: bool) -> None:
        """The client takes no more answers, or takes more again."""
        self._held = hold
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if hold else self._transport.resume_reading)()

    def end(self, error: BrokerError | None = None) -> None:
        """Close; with an error, what waits for an answer gets it."""
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        self._relay.ended(self._number, self)
        waiting, self._waiting = self._waiting, {}
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        if error is not None:
            for answered, _ in waiting.values():
                self._relay.run(answered, error)

    # ---------------------------------------------------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)
        if self._ended:
            self._transport.abort()
            return
        self._flush()
        if self._held:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Answers came."""
        try:
            events = self._client.receive(data)
        except ProtocolError as error:
            self.end(self._failed(str(error)))
            return
        for event in events:
            self._handle(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The serving broker is gone, or closed the connection."""
        self.end(self._failed("it closed the connection"))

    # ------------------------------------------------------------------------------------------------------------ parts

    async def _open(self, url: str) -> None:
        try:
            target = self._relay.target(url)
            async with asyncio.timeout(ANSWER_S):
                await self._relay.loop.create_connection(
                    lambda: self,
                    target.host,
                    target.port,
                    ssl=target.context,
                    server_hostname=target.host if target.context is not None else None,
                )
        except TimeoutError:
            self.end(self._failed(f"no connection within {ANSWER_S:g} s"))
        except ssl.SSLError as error:
            self.end(self._failed(tls.reason_of(error)))
        except OSError as error:
            self.end(self._failed(error.strerror or str(error)))
        except MagnetarError as error:
            self.end(self._failed(str(error)))

    def _handle(self, event: Event) -> None:
        if isinstance(event, Response):
            answered, _ = self._waiting.pop(event.request_id)
            self._used_s = self._relay.loop.time()
            self._relay.run(answered, event.command)
        elif isinstance(event, ConnectRefused):
            self.end(BrokerError(ErrorCode.of(event.error.error), event.error.message))
        elif not isinstance(event, Connected):
            logger.debug("broker %s pushed command type %s", self.serving.broker, event.command.type)

    def _flush(self) -> None:
        transport = self._transport
        while transport is not None and not transport.is_closing() and (buffers := self._client.outgoing()):
            transport.writelines(buffers)
            self._client.sent(sum(map(len, buffers)))

    def _look(self) -> None:
        """Now and then: whether an answer is overdue, or the connection is no longer used."""
        now_s = self._relay.loop.time()
        if self._waiting:
            if not self._held and min(until_s for _, until_s in self._waiting.values()) <= now_s:
                self.end(self._failed(f"no answer within {ANSWER_S:g} s"))
                return
        elif now_s - self._used_s >= IDLE_S:
            self.end()
            return
        self._timer = self._relay.loop.call_later(IDLE_S / 2, self._look)

    def _failed(self, reason: str) -> BrokerError:
        return BrokerError(
            ErrorCode.SERVICE_NOT_READY, f"broker {self.serving.broker}, which serves, does not answer: {reason}"
        )


class OwnerRelay:
    """All these connections; `broker.waiting.session.Relay`.

    Args:
        loop: the event loop.
        run: brings an event to the machine (`runtime.waiting_driver.WaitingDriver.run`).
        trust: files for addresses by TLS: `ca`, `cert` and `key` (`runtime.security.tls.target_of`); "" for none.
        connections_max: see `CONNECTIONS_MAX`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[..., None],
        trust: Mapping[str, str],
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._connections_max = connections_max
        self.loop = loop
        self.run = run
        self._trust = trust
        self._by_tls: tuple[Hashable, tls.Target] | None = None
        self._upstreams: dict[int, _Upstream] = {}

    def ask(
        self,
        connection: int,
        serving: Registration,
        connect: pb.CommandConnect,
        command: pb.BaseCommand,
        answered: Answered,
        *,
        tls: bool,
    ) -> None:
        """See `Relay`."""
        upstream = self._upstreams.get(connection)
        if upstream is not None and upstream.serving != serving:
            upstream.end(BrokerError(ErrorCode.SERVICE_NOT_READY, f"broker {upstream.serving.broker} serves no longer"))
            upstream = None
        if upstream is None:
            url = serving.pulsar_url(tls=tls)
            if not url or not self._room():
                reason = (
                    f"{self._connections_max} clients are being helped"
                    if url
                    else f"the record of broker {serving.broker} has no address for clients"
                )
                self.run(answered, BrokerError(ErrorCode.SERVICE_NOT_READY, f"{reason}; try again"))
                return
            upstream = self._upstreams[connection] = _Upstream(self, connection, serving, connect)
            upstream.open(url)
        upstream.ask(command, answered)

    def forget(self, connection: int) -> None:
        """See `Relay`."""
        upstream = self._upstreams.get(connection)
        if upstream is not None:
            upstream.end()

    def hold(self, connection: int, hold: bool) -> None:
        """See `Relay`."""
        upstream = self._upstreams.get(connection)
        if upstream is not None:
            upstream.hold(hold)

    def ended(self, connection: int, upstream: _Upstream) -> None:
        """One of the connections has ended."""
        if self._upstreams.get(connection) is upstream:
            del self._upstreams[connection]

    def target(self, url: str) -> tls.Target:
        """Where an address leads. The context of TLS, which takes milliseconds to make, is kept while its files stay as they are.

        Raises:
            ConfigError: the address, or a file of the context, is wrong.
        """
        if not url.startswith("pulsar+ssl://"):
            return tls.target_of(url)
        made_of = (url, *map(file_state, self._trust.values()))
        if self._by_tls is None or self._by_tls[0] != made_of:
            self._by_tls = made_of, tls.target_of(f"{url}?{urlencode(self._trust)}")
        return self._by_tls[1]

    def close(self) -> None:
        """Close all connections."""
        for upstream in list(self._upstreams.values()):
            upstream.end()

    def _room(self) -> bool:
        """Whether there may be another connection; an idle one makes room."""
        if len(self._upstreams) < self._connections_max:
            return True
        idle = next((one for one in self._upstreams.values() if one.idle), None)
        if idle is None:
            return False
        idle.end()
        return True
