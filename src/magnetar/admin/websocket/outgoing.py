"""Texts to a WebSocket: written in order, bounded, with back-pressure to the broker."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import ClientConnectionError, web

HIGH_BYTES: Final = 1 << 20
"""Above this many waiting bytes the broker is asked to pause."""

LOW_BYTES: Final = HIGH_BYTES // 4


class Outgoing:
    """The texts that are being sent to one WebSocket.

    Args:
        socket: prepared.
        writable: called when more texts can be accepted, or none.
    """

    def __init__(self, socket: web.WebSocketResponse, writable: Callable[[bool], None]) -> None:
        self._socket, self._writable = socket, writable
        self._texts: deque[str] = deque()
        self._bytes = 0
        self._full = self._ended = False
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._room = asyncio.Event()
        self._room.set()
        self._task = asyncio.get_running_loop().create_task(self._write())

    def put(self, value: Any) -> None:
        """Send a value as JSON, after those that were put before."""
        if self._ended:
            return
        text = msgspec.json.encode(value).decode()
        self._texts.append(text)
        self._written.clear()
        self.held(len(text))
        self._news.set()

    def held(self, size: int) -> None:
        """Count this many more waiting bytes, or fewer if negative."""
        self._bytes += size
        if not self._full and self._bytes > HIGH_BYTES:
            self._full = True
            self._room.clear()
            self._writable(False)
        elif self._full and self._bytes <= LOW_BYTES:
            self._full = False
            self._room.set()
            self._writable(True)

    async def room(self) -> None:
        """Wait while too many bytes wait: a client that sends requests and never reads the answers is not read."""
        await self._room.wait()

    async def _write(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._texts:
                    text = self._texts.popleft()
                    await self._socket.send_str(text)
                    self.held(-len(text))
                self._written.set()
        except (ConnectionError, ClientConnectionError):
            pass  # the reading side ends, too
        finally:
            self._texts.clear()
            self._ended = True
            self._room.set()
            self._written.set()

    async def written(self) -> None:
        """Wait until all that was put is written, or nothing more will be."""
        await self._written.wait()

    async def close(self) -> None:
        """Write nothing more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
