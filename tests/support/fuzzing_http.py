"""A client that breaks HTTP: requests that lie, bodies that inflate, answers that nobody takes. A seed decides everything."""

import contextlib
import gzip
import random
import re
import socket
import struct
import zlib
from collections import Counter
from typing import Final

from magnetar.admin.http.server import ROUTES

_NAMES: Final = (
    "public",
    "default",
    "solo",
    "t",
    "t-partition-0",
    "s",
    "%2e%2e",
    "%00",
    "a+b",
    "%ff",
    "x" * 300,
    "0",
    "-1",
    "9" * 25,
)
_BODIES: Final = (
    b"",
    b"{}",
    b"null",
    b"[" * 3_000,
    b'{"a": ' * 500,
    b'"' + b"x" * 100_000 + b'"',
    b"4",
    b'["a", "b"]',
    b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00\xff" * 50,
)
_BOMB: Final = bytes(4 << 20)
_HEADERS: Final = (
    b"Expect: 100-continue",
    b"Connection: close",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket",
    b"Upgrade: h2c",
    b"Authorization: Bearer " + b"a" * 20_000,
    b"Authorization: Basic !!!",
    b"Authorization: nothing",
    b"Origin: http://elsewhere",
    b"Host: elsewhere.example",
    b"Accept: text/html",
    b"Range: bytes=0-1",
    b"X-Original-Principal: root",
    b"Cookie: " + b"c" * 9_000,
    b"Bad Header",
    b": none",
    b"Content-Length: 5",
    b"Transfer-Encoding: gzip",
    b"X-Control: \x01",
)


class HttpFuzzer:
    """One episode: a connection, some requests, and an end.

    Args:
        seed: decides everything.
        port: of HTTP.

    Attributes:
        answers: how often each status came.
    """

    def __init__(self, seed: int, port: int) -> None:
        self.chance = random.Random(seed)
        self._port = port
        self.answers: Counter[int] = Counter()

    def _path(self) -> bytes:
        chance = self.chance
        if chance.random() < 0.1:
            return chance.choice(
                [b"/", b"*", b"//", b"/nothing", b"http://x/", b"/" + b"y" * 9_000, b"/%", b"/?" + b"q&" * 100]
            )
        path = re.sub(r"\{\w+\}", lambda _: chance.choice(_NAMES), chance.choice(ROUTES).path)
        return (path + chance.choice(["", "", "/", "?force=true", "?x=%ff", "?applied=true"])).encode()

    def _body(self) -> bytes:
        """Headers of a body, an empty line, and the body."""
        chance = self.chance
        body = chance.choice(_BODIES)
        head = b""
        match chance.randrange(8):
            case 0:
                head, body = b"Content-Encoding: gzip\r\n", gzip.compress(chance.choice([body, _BOMB]), 1)
            case 1:
                head, body = b"Content-Encoding: deflate\r\n", zlib.compress(chance.choice([body, _BOMB]), 1)
            case 2:
                head = b"Content-Encoding: %s\r\n" % chance.choice([b"br", b"zstd", b"gzip, gzip", b"gzip", b"x" * 50])
            case _:
                pass
        match chance.randrange(6):
            case 0:
                size = max(1, chance.randrange(5_000))
                pieces = [body[at : at + size] for at in range(0, len(body), size)]
                text = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
                end = chance.choice([b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"ZZ\r\n", b""])
                return head + b"Transfer-Encoding: chunked\r\n\r\n" + text + end
            case 1:
                lie = chance.choice([len(body) + 7, max(0, len(body) - 3), 1 << 40])
                return head + b"Content-Length: %d\r\n\r\n" % lie + body
            case _:
                return head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def request(self) -> bytes:
        """Some bytes that are a request, or nearly."""
        chance = self.chance
        if chance.random() < 0.03:
            return chance.randbytes(chance.randrange(1, 400))
        method = chance.choice([b"GET", b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS", b"PATCH", b"TRACE", b"get"])
        head = b"%s %s HTTP/1.%d\r\nHost: localhost\r\n" % (method, self._path(), chance.choice([1, 1, 1, 0]))
        for _ in range(chance.choice([0, 0, 1, 2])):
            head += chance.choice(_HEADERS) + b"\r\n"
        return head + (self._body() if chance.random() < 0.5 else b"\r\n")

    def run(self) -> None:
        """Send it, read some of the answers, go.

        Raises:
            AssertionError: an answer is no HTTP, or says that the broker made a mistake.
        """
        chance = self.chance
        sent = b"".join(self.request() for _ in range(chance.choice([1, 1, 2, 5, 40])))
        with contextlib.suppress(ConnectionError, TimeoutError), socket.socket() as link:
            if chance.random() < 0.2:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            link.settimeout(chance.choice([0.05, 0.05, 0.5]))
            link.connect(("127.0.0.1", self._port))
            size = chance.choice([1 << 20, 1 << 20, 700, 50]) if len(sent) < 20_000 else 1 << 20
            for at in range(0, len(sent), size):
                link.sendall(sent[at : at + size])
            found = b""
            while len(found) < chance.choice([0, 1 << 16, 1 << 22]) and (data := link.recv(1 << 16)):
                found += data
                self._look(data)
            if chance.random() < 0.3:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _look(self, data: bytes) -> None:
        for status in re.findall(rb"HTTP/1\.[01] (\d\d\d) ", data):
            self.answers[int(status)] += 1
            assert status != b"500", data[:600]
