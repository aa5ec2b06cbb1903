"""HTTP clients that cost more than they send: bodies that inflate, requests by thousands, heads that hold secrets."""

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from magnetar.admin.http.connection import REQUEST_HEAD_BYTES_MAX
from magnetar.admin.http.server import BODY_BYTES_MAX
from magnetar.admin.http.turns import STEPS_A_TURN, Turns
from tests.support.http_server import connections_to
from tests.web.conftest import World, raw_answer

WAIT_S = 20
ZEROS = bytes(32 << 20)
BODY = b'{"allowedClusters": ["us-west"]}'
TENANT = b"PUT /admin/v2/tenants/new HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def refusing() -> web.Application:
    """An application that lets nobody in, as a gate does."""

    @web.middleware
    async def gate(request: web.Request, handler: Callable[..., Awaitable[web.StreamResponse]]) -> web.Response:
        return web.Response(status=401, text="no")

    return web.Application(middlewares=[gate])


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts what anybody in this process inflates."""
    counts = [0]
    real = zlib.decompressobj

    class Counting:
        def __init__(self, *args: Any, **options: Any) -> None:
            self._engine = real(*args, **options)

        def decompress(self, *args: Any) -> bytes:
            plain = self._engine.decompress(*args)
            counts[0] += len(plain)
            return plain

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    return counts


def chunks(body: bytes) -> bytes:
    """A body in chunks."""
    pieces = [body[at : at + 9_000] for at in range(0, len(body), 9_000)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("path", [b"/admin/v2/tenants/new", b"/nothing/here", b"/metrics"])
@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("method", [b"POST", b"GET", b"HEAD"])
def test_a_refused_body_is_not_inflated(
    inflated: list[int], path: bytes, encoding: bytes, chunked: bool, method: bytes
) -> None:
    body = gzip.compress(ZEROS) if encoding == b"gzip" else zlib.compress(ZEROS)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: %s\r\n%s\r\n\r\n" % (method, path, encoding, length)

    async def story() -> None:
        async with connections_to(refusing()) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):  # the second tells that the body of the first was passed over to its end
                writer.write(head + (chunks(body) if chunked else body))
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
                if method != b"HEAD":
                    assert await reader.readexactly(2) == b"no"
            writer.close()

    asyncio.run(story())
    assert inflated == [0]


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        (b"gzip", gzip.compress(BODY), b"204"),
        (b"x-gzip", gzip.compress(BODY), b"204"),
        (b"deflate", zlib.compress(BODY), b"204"),
        (b"deflate", zlib.compress(BODY, wbits=-15), b"204"),
        (b"identity", BODY, b"204"),
        (b"gzip", gzip.compress(ZEROS), b"413"),
        (b"gzip", gzip.compress(b" " * (BODY_BYTES_MAX + 1)), b"413"),
        (b"gzip", gzip.compress(BODY.ljust(BODY_BYTES_MAX)), b"204"),
        (b"gzip", gzip.compress(BODY)[:-9], b"400"),
        (b"gzip", gzip.compress(b"") * 20_000, b"400"),
        (b"gzip", b"", b"400"),
        (b"gzip, gzip", gzip.compress(gzip.compress(b"{}")), b"415"),
        (b"br", b"anything", b"415"),
        (b"zstd", b"anything", b"415"),
    ],
    ids=range(14),
)
def test_a_body_of_who_may_send_it_is_inflated_up_to_its_limit(
    inflated: list[int], encoding: bytes, body: bytes, status: bytes
) -> None:
    async def story() -> None:
        async with connections_to(World().app) as port, asyncio.timeout(WAIT_S):
            for text in (chunks(body), body):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                length = b"Transfer-Encoding: chunked" if text is not body else b"Content-Length: %d" % len(body)
                writer.write(TENANT + b"Content-Encoding: %s\r\n%s\r\n\r\n" % (encoding, length) + text)
                answered = (await reader.readuntil(b"\r\n\r\n")).split()[1]
                assert answered == status or (status, answered) == (b"204", b"409")
                writer.close()

    asyncio.run(story())
    assert inflated[0] <= 2 * (BODY_BYTES_MAX + 1)


def test_who_is_refused_is_not_asked_for_the_body_first() -> None:
    expecting = b"Expect: 100-continue\r\nContent-Length: 20\r\n\r\n"

    async def story() -> None:
        async with connections_to(refusing()) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(TENANT + expecting)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
            writer.close()
        async with connections_to(World().app) as port, asyncio.timeout(WAIT_S):
            for path, status in ((b"/admin/v2/tenants/new", b"400"), (b"/nothing", b"404")):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(TENANT.replace(b"/admin/v2/tenants/new", path) + expecting)
                head = await reader.readuntil(b"\r\n\r\n")
                if status == b"400":
                    assert head == b"HTTP/1.1 100 Continue\r\n\r\n"
                    writer.write(b"x" * 20)
                    head = await reader.readuntil(b"\r\n\r\n")
                assert head.split()[1] == status, head
                writer.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "before", [b"", b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"]
)
def test_requests_of_many_connections_are_begun_a_few_at_a_time(before: bytes) -> None:
    """Between two of them the loop has looked at its sockets, where a publish may have come."""
    begun: list[int] = []
    turn = 0

    async def count(_request: web.Request) -> web.Response:
        begun.append(turn)
        return web.Response(text="!")

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def story() -> None:
        application = web.Application()
        application.router.add_route("*", "/", count)
        async with connections_to(application, turns=Turns()) as port, asyncio.timeout(WAIT_S):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
            counting = asyncio.create_task(turns())
            for _reader, writer in clients:
                writer.write(before + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
            for reader, writer in clients:
                for _ in range(31 if before else 30):
                    await reader.readuntil(b"!")
                writer.close()
            counting.cancel()

    asyncio.run(story())
    assert len(begun) == 50 * (31 if before else 30)
    assert max(begun.count(number) for number in set(begun)) <= STEPS_A_TURN


SECRET = b"s3cr3t-" * 10
FAULTS = {
    "a line too long": b"GET / HTTP/1.1\r\nAuthorization: Bearer " + SECRET * 2_000 + b"\r\n\r\n",
    "a head too long": b"GET / HTTP/1.1\r\n" + b"Authorization: Bearer %s\r\n" % (SECRET * 70) * 50 + b"\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\n: Bearer " + SECRET + b"\r\n\r\n",
    "a header with a bad name": b"GET / HTTP/1.1\r\nAutho rization: Bearer " + SECRET + b"\r\n\r\n",
    "a bad name that is the secret": b"GET / HTTP/1.1\r\n" + SECRET + b"\x01: x\r\n\r\n",
    "a header with a bad value": b"GET / HTTP/1.1\r\nAuthorization: Bearer " + SECRET + b"\x01\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nAuthorization: Bearer\r\n " + SECRET + b"\r\n\r\n",
    "a query too long": b"GET /?token=" + SECRET * 200 + b" HTTP/1.1\r\n\r\n",
    "a bad request line": b"GET /?token=" + SECRET + b" HTTP/9.9.9\r\n\r\n",
    "a URL that is none": b"GET http://user:" + SECRET + b"@[::x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method that is the secret": SECRET + b" / HTTP/1.1\r\n\r\n",
    "a bad length": b"GET / HTTP/1.1\r\nAuthorization: %s\r\nContent-Length: %s\r\n\r\n" % (SECRET, SECRET),
    "another authority": b"CONNECT user:" + SECRET + b"@@ HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_came_is_never_part_of_what_is_told(what: str, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def story() -> bytes:
        async with connections_to(refusing(), told) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(FAULTS[what])
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
            writer.close()
            return head + body

    answer = asyncio.run(story())
    assert answer.split()[1] in {b"400", b"431"} and b'{"reason":' in answer
    assert len(told) == 1 and told[0]
    for text in (*told, answer.decode(), caplog.text):
        assert "s3cr3t" not in text, text


@pytest.mark.parametrize("size", [8_190, 12_000, 16_384, 60_000])
def test_tokens_up_to_the_limit_of_a_head_come_through(size: int) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response(len(request.headers["Authorization"]))

    async def story() -> None:
        assert size < REQUEST_HEAD_BYTES_MAX
        application = web.Application()
        application.router.add_get("/", echo)
        async with connections_to(application) as port, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"t" * size + b"\r\n\r\n")
            assert await raw_answer(reader) == (b"200", b"%d" % (size + len("Bearer ")))
            writer.close()

    asyncio.run(story())
