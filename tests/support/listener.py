"""A broker's listener over a driver that runs events at once and knows who sent what."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from magnetar.runtime.network.server import Connection, PulsarServer
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import encode

PING = encode(pb.BaseCommand(type=18, ping=pb.CommandPing()))


class FakeDriver:
    """Runs events at once, knows who sent what, and may hold a connection in the middle of its frames."""

    def __init__(self) -> None:
        self.peers: dict[int, Connection] = {}
        self.handled: list[tuple[int, int]] = []
        self.hold_after = 0
        self.broker = self
        self.quiet: Any = None

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        event(*arguments)

    def attach(self, number: int, peer: Connection) -> None:
        self.peers[number] = peer

    def detach(self, number: int) -> None:
        del self.peers[number]

    def connected(self, number: int, address: str, certificate: str, tls: bool) -> None: ...

    def disconnected(self, number: int) -> None: ...

    def writable(self, number: int, writable: bool) -> None: ...

    def frames(self, number: int, frames: list[Frame]) -> None:
        self.handled.append((number, len(frames)))
        if self.hold_after and self.count(number) >= self.hold_after:
            self.peers[number].hold(True)

    def count(self, number: int) -> int:
        """Frames of one connection so far."""
        return sum(frames for sender, frames in self.handled if sender == number)


async def serve(driver: Any, tls: ssl.SSLContext | None = None, connections_max: int = 10) -> tuple[PulsarServer, int]:
    """A listener over it."""
    server = PulsarServer(
        asyncio.get_running_loop(),
        driver,
        driver,
        frame_bytes_max=1 << 20,
        connections_max=connections_max,
        keep_alive_ms=60_000,
    )
    return server, await server.start("127.0.0.1", 0, tls)


async def until(check: Callable[[], bool]) -> None:
    """Let the loop turn."""
    async with asyncio.timeout(30):
        while not check():  # noqa: ASYNC110 - turning the loop is what is tested
            await asyncio.sleep(0)
