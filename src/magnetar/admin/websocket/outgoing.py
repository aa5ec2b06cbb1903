"""Texts on their way to a WebSocket: written in order, bounded, with back-pressure to the broker."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import ClientConnectionError, web

HIGH_BYTES: Final = 1 << 20
"""Above so many waiting bytes the broker is asked to send no more messages."""

LOW_BYTES: Final = HIGH_BYTES // 4


class Outgoing:
    """What one WebSocket is sent.

    Args:
        socket: prepared.
        writable: told whether more can be taken.
    """

    def __init__(self, socket: web.WebSocketResponse, writable: Callable[[bool], None]) -> None:
        self._socket, self._writable = socket, writable
        self._texts: deque[str] = deque()
        self._bytes = 0
        self._full = False
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._task = asyncio.get_running_loop().create_task(self._write())

    def put(self, value: Any) -> None:
        """Send a value as JSON, behind what was put before."""
        text = msgspec.json.encode(value).decode()
        self._texts.append(text)
        self._written.clear()
        self.held(len(text))
        self._news.set()

    def held(self, size: int) -> None:
        """So many bytes more wait, or with a minus fewer."""
        self._bytes += size
        if not self._full and self._bytes > HIGH_BYTES:
            self._full = True
            self._writable(False)
        elif self._full and self._bytes <= LOW_BYTES:
            self._full = False
            self._writable(True)

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
            self._texts.clear()  # the reading side ends, too
        finally:
            self._written.set()

    async def written(self) -> None:
        """Wait until all that was put is written, or nothing more will be."""
        if not self._task.done():
            await self._written.wait()

    async def close(self) -> None:
        """Write nothing more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
