"""How the kernel cuts the bytes of requests decides nothing: all pieces of a story have the same answers as the whole."""

import asyncio
import re
import socket

from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.http_server import connections_to

WAIT_S = 20
HOST = b"Host: x\r\n"


def chunked(pieces: list[bytes], trailer: bytes) -> bytes:
    """A request with a body in chunks."""
    body = b"".join(b"%x;e=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    return (
        b"POST /size HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"
    )


def announced(body: bytes) -> bytes:
    """A request with the length of its body."""
    return b"POST /size HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (HOST, len(body), body)


BODIES = st.sampled_from(
    [b"", b"x", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"0\r\n\r\n", b"y" * 3_000, b"\r\n", b"{}"]
)
REQUESTS = st.one_of(
    st.just(b"GET /size HTTP/1.1\r\n" + HOST + b"\r\n"),
    st.just(b"\r\n\r\nDELETE /size HTTP/1.1\r\n" + HOST + b"\r\n"),
    st.just(b"GET /nothing HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n\r\nbody"),
    st.just(b"POST /refused HTTP/1.1\r\n" + HOST + b"Content-Length: 20\r\n\r\n" + b"0\r\n\r\n" * 4),
    BODIES.map(announced),
    st.lists(BODIES, max_size=3).map(lambda pieces: chunked(pieces, b"")),
    st.lists(BODIES, max_size=3).map(lambda pieces: chunked(pieces, b"X-Trailer: 1\r\n")),
)
ENDS = st.sampled_from(
    [b"", b"{}", b"\x00\xff", b"NONSENSE\r\n\r\n", b"GET /size HTTP/9.9.9\r\n\r\n", b"get / http/1.1\r\n\r\n"]
)


async def size(request: web.Request) -> web.Response:
    return web.Response(text=f"<{len(await request.read())}>")


async def refused(_request: web.Request) -> web.Response:
    return web.Response(status=403, text="<no>")


def application() -> web.Application:
    found = web.Application()
    found.router.add_route("*", "/size", size)
    found.router.add_route("*", "/refused", refused)
    return found


async def answers(port: int, pieces: list[bytes]) -> list[bytes]:
    """Statuses and bodies, in order; the last request asks for the end, if none before was malformed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)  # the other side, in the same loop, may read
        return re.findall(rb"HTTP/1.1 (\d+) |(<\w+>)", await reader.read())
    finally:
        writer.close()


@settings(max_examples=80, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=6), ENDS, st.lists(st.integers(0, 8_000), max_size=12))
def test_the_answers_are_the_same_however_the_bytes_are_cut(requests: list[bytes], end: bytes, cuts: list[int]) -> None:
    whole = b"".join(requests) + (end or b"GET /size HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    places = sorted({cut % len(whole) for cut in cuts})
    pieces = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]

    async def story() -> None:
        async with asyncio.timeout(WAIT_S), connections_to(application()) as port:
            at_once, in_pieces = await answers(port, [whole]), await answers(port, pieces)
            known = [found for found in at_once if found[0] != b"400"]
            assert len([status for status, _ in known if status]) == len(requests) + (not end), (at_once, whole)
            # What is malformed has an answer of its own, or goes with the last one's end: that depends on when it came.
            assert known == [found for found in in_pieces if found[0] != b"400"]

    asyncio.run(story())
