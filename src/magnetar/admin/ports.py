"""The HTTP ports of a broker: sockets for an application, with limits on connections, and a line for what is not HTTP."""

import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from aiohttp import web

from magnetar.admin.http.answers import Answers
from magnetar.admin.http.connection import Connection
from magnetar.admin.http.turns import Turns
from magnetar.core.settings import Address, BrokerConfig
from magnetar.runtime.network.connection_slots import ConnectionSlots, per_address
from magnetar.runtime.network.listener import Listener
from magnetar.runtime.network.protocol_sniffing import Urls, handshake_failed, malformed

SHUTDOWN_S: Final = 2.0
"""Time for requests that are being answered when the ports close."""


class HttpPorts:
    """One application on one port or two.

    Args:
        config: the limits.
        connections_max: a ceiling on connections of all ports.
        answers: the memory of answers.
        tell: writes a warning, unless there are too many of its kind.
        urls: the broker's addresses, for clients that came to the wrong port.
    """

    def __init__(
        self,
        config: BrokerConfig,
        connections_max: int,
        answers: Answers,
        tell: Callable[[str], None],
        urls: Callable[[], Urls],
    ) -> None:
        self._answers = answers
        self._tell = tell
        self._urls = urls
        self._turns = Turns()
        self._listeners: list[Listener] = []
        self._runner: web.AppRunner | None = None
        self._room = ConnectionSlots(
            connections_max,
            self._full,
            per_address=per_address(connections_max, config.http_connections_per_address_max),
            crowded=self._crowded,
            made_room=self._made_room,
        )

    async def start(self, application: web.Application) -> None:
        """Prepare the application; no port is open yet."""
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()

    async def listen(self, key: str, address: Address, tls: ssl.SSLContext | None) -> int:
        """Open a port; returns its number.

        Args:
            key: what the configuration calls it, `http` or `https`.
            address: where it listens.
            tls: of the port; None: without.

        Raises:
            MagnetarError: the port is in use or may not be bound, in one line.
        """

        def dropped(peer: str, wrong: str) -> None:
            self._tell(f"closed the connection of {peer}: {wrong}")

        def no_http(peer: str, head: bytes, fault: str) -> None:
            dropped(peer, malformed(key, head, f"malformed HTTP: {fault}", self._urls()))

        def no_tls(peer: str, reason: str) -> None:
            dropped(peer, handshake_failed(key, reason, self._urls()))

        assert self._runner is not None
        assert self._runner.server is not None
        make = partial(
            Connection,
            self._runner.server,
            no_http,
            room=self._room,
            turns=self._turns,
            answers=self._answers,
            dropped=dropped,
        )
        listener = await Listener.open(
            make, address.host, address.port, key=key, tls=tls, failed=no_tls, handshakes=self._room
        )
        self._listeners.append(listener)
        return listener.port

    def close(self) -> None:
        """Close the ports; connections stay."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()

    async def stop(self) -> None:
        """Close the ports and the connections. May be called twice."""
        self.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _full(self, peer: str) -> None:
        self._tell(f"refused a connection from {peer}: {self._room.most} are open (http_connections_max)")

    def _crowded(self, peer: str) -> None:
        most = self._room.per_address
        self._tell(
            f"refused a connection from {peer}: {most} of its address are open (http_connections_per_address_max)"
        )

    def _made_room(self, peer: str) -> None:
        self._tell(
            f"closed the connection of {peer}: it sent no request, and another connection needed its slot (http_connections_max)"
        )
