"""HTTP clients that do not finish what they begin keep nothing for long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from aiohttp import web

from magnetar.admin.connection import IDLE_S, Connection
from tests.web.conftest import World, raw_answer

HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
WAIT_S = 20


@asynccontextmanager
async def listening(idle_s: float) -> AsyncIterator[int]:
    """A server as a broker has it, but for the time; its port."""

    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    application = web.Application()
    application.router.add_get("/metrics", hello)
    runner = web.AppRunner(application)
    await runner.setup()
    assert runner.server is not None
    make = partial(Connection, runner.server, lambda *_: None, idle_s)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await runner.cleanup()


@pytest.mark.parametrize("sent", [b"", b"GET /met", HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + HEAD])
def test_who_sends_no_whole_request_is_let_go(sent: bytes) -> None:
    async def story() -> bytes:
        async with listening(0.3) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = await reader.read()  # to the end, which is the server's doing
            writer.close()
            return answer

    assert asyncio.run(story()).endswith(b"hello") == (b"\r\n\r\n" in sent)


def test_who_asks_again_in_time_stays() -> None:
    async def story() -> None:
        async with listening(IDLE_S) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(HEAD + b"\r\n")
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(story())


def test_a_body_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.admin.call.BODY_S", 0.3)

    async def story(world: World) -> None:
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
            writer.write(
                b"PUT /admin/v2/tenants/slow HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            status, body = await raw_answer(reader)
            writer.close()
        assert status == b"408" and b"the body did not come within 0.3 s" in body
        assert "slow" not in world.control.existing

    asyncio.run(World().within(story))
