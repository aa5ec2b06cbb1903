"""Answers that nobody takes: memory has a limit in all, and who takes nothing is dropped."""

import asyncio
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import lz4.block
import pytest
from aiohttp import web

from magnetar.admin.http import answers as module
from magnetar.admin.http.answers import Answers
from magnetar.core.errors import BrokerError
from tests.support.http_server import connections_to
from tests.web.conftest import World, described, raw_answer

MIB = 1 << 20
PEEK = b"GET /admin/v2/persistent/public/default/t/subscription/s/position/1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ONE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
WAIT_S = 60


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often, and waits for nobody."""
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(module, "PRESSED_S", 0.1)
    monkeypatch.setattr(module, "UNREAD_S", 0.3)


@asynccontextmanager
async def deaf(port: int, sent: bytes, count: int) -> AsyncIterator[list[socket.socket]]:
    """Clients that send this and read nothing."""
    loop = asyncio.get_running_loop()
    links = []
    async with AsyncExitStack() as stack:
        for _ in range(count):
            link = stack.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            link.setblocking(False)
            await loop.sock_connect(link, ("127.0.0.1", port))
            await loop.sock_sendall(link, sent)
            links.append(link)
        yield links


async def dropped(told: list[str], count: int) -> None:
    """Wait until so many were dropped."""
    while len(told) < count:  # noqa: ASYNC110 - turning the loop is what is waited for
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", [1, 2])
def test_messages_that_inflate_are_held_a_few_at_a_time_and_who_reads_nothing_is_dropped(
    impatient: None, kind: int
) -> None:
    size, count = 16 * MIB, 12
    packed = lz4.block.compress(bytes(size), store_size=False) if kind == 1 else zlib.compress(bytes(size))
    answers = Answers(40 * MIB, 40 * MIB)
    told: list[str] = []
    peak = 0

    async def story() -> None:
        nonlocal peak
        world = World(answers=answers, entry_bytes_max=MIB)
        world.create("persistent://public/default/t", subscriptions=["s"])
        world.store("persistent://public/default/t", described(0, packed, compression=kind, uncompressed_size=size))
        options = {"answers": answers, "dropped": lambda _peer, reason: told.append(reason)}
        async with connections_to(world.app, **options) as port, asyncio.timeout(WAIT_S):
            tracemalloc.start()
            async with deaf(port, PEEK, count):
                await dropped(told, 1)  # others have their turn when these are gone
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(PEEK)
                status, body = await raw_answer(reader)
                assert status == b"200" and len(body) == size
                writer.close()
                await dropped(told, count)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()

    asyncio.run(story())
    assert answers.held == 0 and len(told) == count
    assert all(reason.startswith("it takes nothing of ") for reason in told)
    assert peak < 40 * MIB + size + 8 * MIB, "of twelve there are three at once, and the one that this test reads"


def test_many_small_answers_that_nobody_takes_end_the_connection(impatient: None) -> None:
    told: list[str] = []
    answers = Answers()

    async def small(_request: web.Request) -> web.Response:
        return web.Response(body=bytes(10_000))

    async def story() -> None:
        application = web.Application()
        application.router.add_get("/", small)
        options = {"answers": answers, "dropped": lambda _peer, reason: told.append(reason)}
        async with asyncio.timeout(WAIT_S), connections_to(application, **options) as port, deaf(port, GET * 2_000, 1):
            await dropped(told, 1)

    asyncio.run(story())


def test_who_takes_a_large_answer_slowly_gets_all_of_it(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNREAD_S", 1.0)
    told: list[str] = []
    answers = Answers()

    async def large(_request: web.Request) -> web.StreamResponse:
        return module.Large(bytes(12 * MIB), held=await answers.hold(12 * MIB))

    async def story() -> None:
        application = web.Application()
        application.router.add_get("/", large)
        options = {"answers": answers, "dropped": lambda _peer, reason: told.append(reason)}
        async with (
            asyncio.timeout(WAIT_S),
            connections_to(application, **options) as port,
            deaf(port, ONE, 1) as (link,),
        ):
            size = 0
            while data := await asyncio.get_running_loop().sock_recv(link, MIB):
                size += len(data)
                if size % (2 * MIB) < len(data):
                    await asyncio.sleep(0.3)
            assert size > 12 * MIB

    asyncio.run(story())
    assert not told and answers.held == 0


def test_a_large_answer_has_a_limit_and_is_made_again_when_it_had_to_wait() -> None:
    answers = Answers(bytes_max=300_000, answer_bytes_max=200_000)

    async def story() -> None:
        world = World(answers=answers)
        for number in range(1_000):
            world.create(f"persistent://public/default/{'t' * 80}{number}")
        asked = b"GET /admin/v2/persistent/public/default HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with connections_to(world.app, answers=answers) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            other = await answers.hold(250_000)
            writer.write(asked)
            while not answers._waiting:  # noqa: ASYNC110 - turning the loop is what is waited for
                await asyncio.sleep(0)
            world.delete(world.topics()[-1])
            other.release()
            status, body = await raw_answer(reader)
            assert status == b"200" and body.count(b"persistent://") == 999
            for number in range(1_000):
                world.create(f"persistent://public/default/{'u' * 80}{number}")
            writer.write(asked)
            status, body = await raw_answer(reader)
            assert status == b"412" and b"http_answer_bytes_max" in body
            writer.close()

    asyncio.run(story())
    assert answers.held == 0


def test_memory_is_given_in_the_order_of_asking_or_not_in_time() -> None:
    async def story() -> None:
        answers = Answers(100, 100)
        first = await answers.hold(60)
        order: list[int] = []

        async def take(size: int) -> None:
            held = await answers.hold(size)
            order.append(size)
            held.release()

        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            for size in (90, 10, 500):
                group.create_task(take(size))
                await asyncio.sleep(0)
            assert answers.hold_now(1) is None, "others wait"
            first.release()
            first.release()
        assert order == [90, 10, 500] and answers.held == 0
        held = await answers.hold(100)
        answers.waits_s = 0.01
        with pytest.raises(BrokerError, match="http_answers_bytes_max"):
            await answers.hold(1)
        cancelled = asyncio.create_task(take(1))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        held.release()
        assert answers.held == 0 and answers.hold_now(100) is not None

    asyncio.run(story())
