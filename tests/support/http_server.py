"""An HTTP server whose connections are those of a broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from magnetar.admin.http.connection import Connection


@asynccontextmanager
async def connections_to(
    application: web.Application, told: list[str] | None = None, **options: Any
) -> AsyncIterator[int]:
    """The port of a server whose connections are those of a broker."""

    def malformed(_peer: str, _head: bytes, fault: str) -> None:
        if told is not None:
            told.append(fault)

    runner = web.AppRunner(application)
    await runner.setup()
    assert runner.server is not None
    make = partial(Connection, runner.server, malformed, **options)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await runner.cleanup()
