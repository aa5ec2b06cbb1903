"""One address that a broker listens on, with TLS or without.

The event loop's own servers do not report a handshake that fails: a client that speaks plain text to a port of TLS, or does not
trust the certificate there, would be closed without a line in any log. So connections by TLS are accepted here.

Such a connection is accepted, makes its handshake in a task of its own, and is then given to its protocol.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from magnetar.core.errors import MagnetarError

logger = logging.getLogger("magnetar.broker")

BACKLOG: Final = 1024
"""Connections that the kernel keeps for us: thousands of clients come at once after a start."""

HANDSHAKE_S: Final = 10.0
"""Time for a handshake of TLS: three round trips and the questions to the client's user."""

ACCEPT_PAUSE_S: Final = 1.0
"""Pause after a connection could not be accepted, such as without descriptors: the next try would fail at once, too."""

Failed = Callable[[str, str], None]
"""Takes a handshake that failed: the client's address, and OpenSSL's own name of the reason (`HTTP_REQUEST`)."""


class Handshakes(Protocol):
    """Counts the handshakes under way: each takes a socket and some 100 KiB, for a client that has proved nothing yet."""

    def begin(self, connection: asyncio.BaseProtocol, peer: str, drop: Callable[[], None]) -> bool:
        """Add the handshake of this connection, unless the limit is reached; `drop` ends it."""

    def end(self, connection: asyncio.BaseProtocol) -> None:
        """Remove one, however it ended. A connection that was made counts for itself, in the slot of its handshake."""


class _Unlimited:
    """All may begin."""

    def begin(self, connection: asyncio.BaseProtocol, peer: str, drop: Callable[[], None]) -> bool:
        return True

    def end(self, connection: asyncio.BaseProtocol) -> None: ...


UNLIMITED: Final = _Unlimited()

TIMEOUT: Final = "TIMEOUT"
"""The reason of a handshake that took too long."""


def shown(address: object) -> str:
    """A peer's address as written in lines of the log."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


class Listener:
    """Listens on an address; made by `open`.

    Attributes:
        port: that it listens on.
    """

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self.port = 0
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        make: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        key: str,
        tls: ssl.SSLContext | None = None,
        failed: Failed = lambda _peer, _reason: None,
        handshakes: Handshakes = UNLIMITED,
    ) -> "Listener":
        """Listen.

        Args:
            make: the protocol of a connection.
            host, port: the address; 0: any free port.
            key: what the configuration calls it.
            tls: of the listener; None: without.
            failed: takes handshakes that fail.
            handshakes: counts them, and lets them begin.

        Raises:
            MagnetarError: the port is in use or may not be bound, in one line.
        """
        listener = cls(make)
        try:
            if tls is None:
                await listener._serve(host, port)
            else:
                await listener._serve_tls(host, port, tls, failed, handshakes)
        except OSError as error:
            listener.close()
            raise MagnetarError(f"cannot listen on {host}:{port} ({key}): {error.strerror or error}") from error
        return listener

    def close(self) -> None:
        """Listen no more; connections stay, handshakes end."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    async def _serve(self, host: str, port: int) -> None:
        self._server = await self._loop.create_server(self._make, host, port, backlog=BACKLOG, reuse_address=True)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _serve_tls(
        self, host: str, port: int, tls: ssl.SSLContext, failed: Failed, handshakes: Handshakes
    ) -> None:
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            self._sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
        for listening in self._sockets:
            listening.listen(BACKLOG)
            self._start(self._accept(listening, tls, failed, handshakes))
        self.port = int(self._sockets[0].getsockname()[1])

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(
        self, listening: socket.socket, tls: ssl.SSLContext, failed: Failed, handshakes: Handshakes
    ) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listening)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # that one was gone before it was accepted
                    where = shown(listening.getsockname())
                    logger.warning("cannot accept connections on %s: %s", where, error.strerror or error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            peer, made = shown(address), self._make()
            tasks: list[asyncio.Task[None]] = []
            if handshakes.begin(made, peer, partial(_cancel, tasks)):
                connection.setblocking(False)
                with contextlib.suppress(OSError):  # it is gone already, or no socket of TCP's
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = self._start(self._shake(connection, made, peer, tls, failed))
                tasks.append(task)
                task.add_done_callback(partial(_over, handshakes, made))
            else:
                connection.close()
            await asyncio.sleep(0)  # a thousand that wait are not accepted in one turn

    async def _shake(
        self, connection: socket.socket, made: asyncio.BaseProtocol, peer: str, tls: ssl.SSLContext, failed: Failed
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: made, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S
            )
        except ssl.SSLError as error:
            failed(peer, error.reason or str(error))
        except (ConnectionAbortedError, TimeoutError):
            failed(peer, TIMEOUT)
        except OSError:
            pass  # it came and went, as those do that only look whether the port is open


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _over(handshakes: Handshakes, connection: asyncio.BaseProtocol, _task: object) -> None:
    """A handshake's task ended, or was cancelled."""
    handshakes.end(connection)
