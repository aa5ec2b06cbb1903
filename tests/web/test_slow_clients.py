"""HTTP clients that do not finish what they begin keep nothing for long."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from magnetar.admin.http.connection import IDLE_S, REQUEST_HEAD_BYTES_MAX, Connection
from magnetar.runtime.network.connection_slots import ConnectionSlots
from tests.web.conftest import World, raw_answer, told

HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
WAIT_S = 20


@asynccontextmanager
async def listening(
    idle_s: float, told: list[str] | None = None, refuse: Any = None, **options: Any
) -> AsyncIterator[int]:
    """A server as a broker has it, but for the time and what `Connection` takes; its port. `refuse` answers at /metrics."""

    async def hello(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text="hello")

    def malformed(_peer: str, _head: bytes, fault: str) -> None:
        if told is not None:
            told.append(fault)

    application = web.Application()
    application.router.add_route("*", "/metrics", refuse or hello)
    application.router.add_route("*", "/known", hello)
    runner = web.AppRunner(application)
    await runner.setup()
    assert runner.server is not None
    make = partial(Connection, runner.server, malformed, idle_s, **options)
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


def lines(size: int) -> bytes:
    """Lines of a head, so many bytes of them; each is one that the parser takes."""
    whole, rest = divmod(size, 8000)
    return b"".join(b"X-%03d: %s\r\n" % (number, b"a" * 7991) for number in range(whole)) + b"X: %s\r\n" % (b"a" * rest)


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["unfinished", "whole"])
@pytest.mark.parametrize("pieces", [1, 40])
@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first", "second"])
def test_a_head_that_is_too_large_is_refused_whether_it_ends_or_not(before: bytes, pieces: int, end: bytes) -> None:
    told: list[str] = []

    async def story() -> bytes:
        async with listening(IDLE_S, told) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            found = b""
            if before:
                writer.write(before)
                found = await reader.readuntil(b"hello")
            # Only its last piece is too much: what came behind the refusal would reset the connection.
            head = HEAD + lines(REQUEST_HEAD_BYTES_MAX) + end
            step = -(-len(head) // pieces)
            for at in range(0, len(head), step):
                writer.write(head[at : at + step])
                await writer.drain()
            found += await reader.readuntil(b"}")
            assert await reader.read() == b"", "it is closed"
            writer.close()
            return found

    answer = asyncio.run(story())
    assert b" 431 " in answer and b'{"reason":"the head of a request is larger than 65536 bytes"}' in answer
    assert told == ["the head of a request is larger than 65536 bytes"]


POST = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (HEAD + lines(REQUEST_HEAD_BYTES_MAX - 200) + b"\r\n", 1),
        (POST + b"\r\n" + b"b" * 500_000, 1),
        (POST + lines(40_000) + b"\r\n" + b"b" * 500_000 + HEAD + lines(40_000) + b"\r\n", 2),
        ((HEAD + lines(2_000) + b"\r\n") * 100, 100),
    ],
    ids=["a large head", "a body", "both, and another", "many at once"],
)
def test_what_is_no_head_that_is_too_large(sent: bytes, answers: int) -> None:
    async def story() -> None:
        async with listening(IDLE_S) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            for _ in range(answers):
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(story())


DELETE = b"DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("whole", "answers"),
    [
        (DELETE, 1),
        (b"\r\n\r\n" + DELETE + b"\r\n" + DELETE, 2),
        (POST.replace(b"500000", b"8") + b"\r\n" + b"\r\n\r\nbody" + DELETE, 2),
    ],
    ids=["no body", "two, between empty lines", "a body with an empty line, and none"],
)
def test_a_request_is_answered_whatever_stands_behind_it(whole: bytes, answers: int) -> None:
    """As the body that nothing announces of Node.js's `http.request` for DELETE; and wherever the kernel cuts the bytes."""
    told: list[str] = []

    async def story() -> None:
        async with listening(IDLE_S, told) as port, asyncio.timeout(WAIT_S):
            for cut in range(len(whole) + 1):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                writer.write(whole[:cut])
                await asyncio.sleep(0)  # the other side, in the same loop, may read
                writer.write(whole[cut:] + b"{}")
                found = await reader.read()
                writer.close()
                assert found.count(b"HTTP/1.1 200") == answers, (cut, found)
                # It is told with the last answer, if it is known by then, else it has an answer of its own.
                assert found.count(b"Connection: close") + found.count(b"this is not HTTP") == 1, (cut, found)
                assert cut == len(whole) or b"Connection: close" in found, (cut, found)

    asyncio.run(story())
    assert len(told) == len(whole) + 1


def test_requests_that_come_together_wait_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One read brings thousands of small ones; each costs kilobytes once it is parsed, and nobody knows who sends them."""
    most = 0

    class Seen(Connection):
        def data_received(self, data: bytes) -> None:
            nonlocal most
            super().data_received(data)
            most = max(most, len(self._messages))

    monkeypatch.setitem(globals(), "Connection", Seen)

    async def story() -> None:
        async with listening(IDLE_S) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(DELETE * 3_000)
            for _ in range(3_000):
                await reader.readuntil(b"hello")
            writer.close()

    asyncio.run(story())
    assert most == 1


def test_connections_above_the_limit_are_closed_and_one_that_goes_makes_room() -> None:
    refused: list[str] = []
    room = ConnectionSlots(2, refused.append)

    async def story() -> None:
        async with listening(IDLE_S, room=room) as port, asyncio.timeout(WAIT_S):
            inside = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in inside:
                writer.write(HEAD + b"\r\n")
                await reader.readuntil(b"hello")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert len(refused) == 1 and refused[0].startswith("127.0.0.1:") and room.open == 2
            inside[0][1].close()
            while room.open == 2:  # noqa: ASYNC110 - turning the loop is what is waited for
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"\r\n")
            await reader.readuntil(b"hello")
            writer.close()
            inside[1][1].close()

    asyncio.run(story())
    assert room.open == 0


def test_handshakes_of_tls_have_a_place_among_the_connections() -> None:
    refused: list[str] = []
    room = ConnectionSlots(2, refused.append)
    a, b, c, d = (asyncio.Protocol() for _ in "abcd")
    assert room.begin(a, "a") and room.begin(b, "b") and not room.begin(c, "c")
    assert not room.take(d, "d")
    assert room.take(a, "a"), "its place is that of its handshake"
    room.end(a)
    assert room.open == 1 and not room.begin(c, "c")
    room.end(b)
    assert room.take(d, "d") and room.open == 2
    assert refused == ["c", "d", "c"]


def test_a_body_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.admin.http.bodies.BODY_S", 0.3)

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
        assert "slow" not in world.resources.tenants()

    told(story)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /met", HEAD + b"\r\n"], ids=["nothing", "half a head", "a request, refused"]
)
def test_strangers_do_not_keep_an_administrator_out(sent: bytes) -> None:
    made_room: list[str] = []
    room = ConnectionSlots(40, lambda peer: None, made_room=made_room.append)

    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=401, text="who?")

    async def story() -> None:
        async with listening(IDLE_S, room=room, refuse=refuse) as port, asyncio.timeout(WAIT_S):
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            for reader, writer in idle:
                writer.write(sent)
                if b"\r\n\r\n" in sent:
                    await reader.readuntil(b"who?")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD.replace(b"metrics", b"known") + b"\r\n")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            for _, other in (*idle, (reader, writer)):
                other.close()

    asyncio.run(story())
    assert made_room


def test_a_stranger_is_let_go_earlier_than_who_asked_for_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.admin.http.connection.STRANGER_S", 0.2)

    async def story() -> None:
        async with listening(IDLE_S) as port, asyncio.timeout(WAIT_S):
            known_reader, known = await asyncio.open_connection("127.0.0.1", port)
            known.write(HEAD + b"\r\n")
            await known_reader.readuntil(b"hello")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /met")
            assert await reader.read() == b""
            known.write(HEAD + b"\r\n")
            assert await known_reader.readuntil(b"hello")
            known.close()
            writer.close()

    asyncio.run(story())
