"""The delaying proxy: late by the time that is asked for, whole, in order, and bounded."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support import delaying_proxy
from tests.support.delaying_proxy import DelayingProxy, proxied

ONE_WAY = 0.02

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def behind(handler: Handler) -> AsyncIterator[tuple[DelayingProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server behind a proxy, and one client of it."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()
    async with asyncio.timeout(60), server, DelayingProxy(target, ONE_WAY) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            yield proxy, reader, writer
        finally:
            writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything back, and then end the stream."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_bytes_are_late_by_the_time_of_each_direction() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with behind(echo) as (_, reader, writer):
            began = loop.time()
            writer.write(b"first")
            assert await reader.readexactly(5) == b"first"
            first = loop.time()
            # One round trip for the handshake, one for the bytes. A timer may be early by the clock's resolution.
            assert first - began >= 3.9 * ONE_WAY
            writer.write(b"second")
            assert await reader.readexactly(6) == b"second"
            assert loop.time() - first >= 1.9 * ONE_WAY

    asyncio.run(run())


def test_streams_arrive_whole_and_end_behind_their_last_byte() -> None:
    async def run() -> None:
        sent = b"".join(number.to_bytes(4, "big") for number in range(1_000_000))
        async with behind(echo) as (proxy, reader, writer):
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == sent
            assert proxy.held_bytes == 0

    asyncio.run(run())


def test_a_target_that_does_not_read_is_no_reason_to_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delaying_proxy, "HELD_BYTES", 1 << 20)
    sent = bytes(64 << 20)

    async def run() -> None:
        goes_on = asyncio.Event()
        seen = asyncio.get_running_loop().create_future()

        async def stalled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await goes_on.wait()
            seen.set_result(len(await reader.read()))
            writer.close()

        async with behind(stalled) as (proxy, _, writer):
            writer.write(sent)
            writer.write_eof()
            while proxy.held_bytes < 1 << 20:  # noqa: ASYNC110 - the proxy says how much it holds, not when
                await asyncio.sleep(0.01)
            for _ in range(50):  # the client goes on to write for as long as the proxy reads
                await asyncio.sleep(0.01)
                assert proxy.held_bytes < 3 << 20
            goes_on.set()
            assert await seen == len(sent)

    asyncio.run(run())


def test_a_target_that_refuses_ends_the_clients_connection() -> None:
    async def run() -> None:
        with socket.socket() as bound:  # it does not listen
            bound.bind(("127.0.0.1", 0))
            async with asyncio.timeout(60), DelayingProxy(bound.getsockname(), ONE_WAY) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()

    asyncio.run(run())


def test_a_target_that_breaks_the_connection_ends_the_clients() -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"last words")
        await writer.drain()
        writer.transport.abort()

    async def run() -> None:
        async with behind(breaks) as (_, reader, writer):
            writer.write(b"x")
            assert await reader.read() in {b"last words", b""}  # an abort may take what its kernel has not sent

    asyncio.run(run())


def test_the_process_serves_until_it_is_terminated() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            one, _ = server.accept()
            with one:
                one.sendall(one.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            proxied(server.getsockname()[1], ONE_WAY) as port,
            socket.create_connection(("127.0.0.1", port), 60) as client,
        ):
            client.sendall(b"through")
            assert client.recv(100) == b"through"
            thread.join(60)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), 60)
