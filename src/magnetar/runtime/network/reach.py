"""Finds out whether another broker accepts connections; `broker.waiting.look_ups.Reach`."""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from magnetar.core.addresses import SILENT_S

KNOWN_S: Final = 0.2
"""How long a broker that accepted a connection is taken for one that accepts the next: thousands of clients may ask at a time."""


class BrokerReach:
    """One attempt at a time for each address; all who ask meanwhile get its outcome.

    Args:
        loop: the event loop.
        run: brings an event to the machine (`runtime.waiting_driver.WaitingDriver.run`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, run: Callable[..., None]) -> None:
        self._loop = loop
        self._run = run
        self._known: tuple[str, float] = ("", 0.0)
        self._asking: dict[str, list[Callable[[bool], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def reach(self, url: str, reached: Callable[[bool], None]) -> None:
        """See `Reach`. An empty address cannot be tried, and is taken for one that accepts connections."""
        known, until_s = self._known
        if not url or (url == known and self._loop.time() < until_s):
            self._run(reached, True)
            return
        asking = self._asking.setdefault(url, [])
        asking.append(reached)
        if len(asking) == 1:
            task = self._loop.create_task(self._try(url))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End all attempts; those who ask get no answer."""
        self._asking.clear()
        for task in self._tasks:
            task.cancel()

    async def _try(self, url: str) -> None:
        reachable = await self._accepts(url)
        if reachable:
            self._known = url, self._loop.time() + KNOWN_S
        for reached in self._asking.pop(url, []):
            self._run(reached, reachable)

    async def _accepts(self, url: str) -> bool:
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(SILENT_S):
                transport, _ = await self._loop.create_connection(
                    asyncio.Protocol, parts.hostname or "", parts.port or 0
                )
        except (OSError, TimeoutError):
            return False
        transport.abort()
        return True
