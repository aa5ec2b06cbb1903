"""Bodies of requests: they are read after the sender is known, and decompressed up to their limit, outside the event
loop.
"""

import asyncio
import zlib
from typing import Final

from aiohttp import web

from magnetar.admin.http.replies import EncodingError, SlowError, TooLargeError
from magnetar.metadata.errors import BadRequest

BODY_S: Final = 30.0
"""The time limit for receiving a body: the largest has a few megabytes, which arrive in this time over any office
network.
"""

ENCODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Values of `Content-Encoding` that are read, and what zlib calls them."""

SMALL_BYTES: Final = 64 * 1024
"""Bodies up to here are read as they come."""

LARGE_AT_ONCE: Final = 32
"""Larger ones that are read at the same time, in all; others wait. They are lists of names, and seldom."""


class _Large:
    """Counts the large bodies that are being read."""

    def __init__(self) -> None:
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def slots(self) -> asyncio.Semaphore:
        """The semaphore of the running loop."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._loop is not loop:
            self._slots, self._loop = asyncio.Semaphore(LARGE_AT_ONCE), loop
        return self._slots


_large = _Large()


async def read_body(request: web.Request, bytes_max: int) -> bytes:
    """The body of a request, inflated.

    Args:
        request: the request; its sender was authorized.
        bytes_max: the largest size, both as received and decompressed.

    Raises:
        TooLargeError. SlowError. EncodingError: its compression is not supported. BadRequest: it cannot be read.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ENCODINGS and encoding != "identity":
        raise EncodingError(
            f"Content-Encoding {encoding[:40]!a} is not supported; use {', '.join(ENCODINGS)} are, or none"
        )
    if (request.content_length or 0) > bytes_max:
        raise TooLargeError(f"the body is over {bytes_max} bytes")
    if (ask := getattr(request.protocol, "ask_for_body", None)) is not None:
        await ask(request)
    try:
        async with asyncio.timeout(BODY_S):
            body = await _read(request, bytes_max)
    except TimeoutError:
        raise SlowError(f"the body did not come within {BODY_S:g} s") from None
    except (web.RequestPayloadError, ConnectionError) as error:
        # The sender went in the middle of it, and will not get this; or its chunks are invalid.
        raise BadRequest(f"the body cannot be read: {error}") from None
    if encoding == "identity":
        return body
    try:
        return await asyncio.to_thread(inflated, body, encoding, bytes_max)
    except BadRequest:
        # A client that sends this may not find the boundary of its next request.
        if (end := getattr(request.protocol, "end", None)) is not None:
            end()
        raise


async def _read(request: web.Request, bytes_max: int) -> bytes:
    body = bytearray()
    large = False
    try:
        while data := await request.content.readany():
            body += data
            if len(body) > bytes_max:
                raise TooLargeError(f"the body is over {bytes_max} bytes")
            if len(body) > SMALL_BYTES and not large:
                await _large.slots.acquire()
                large = True
        return bytes(body)
    finally:
        if large:
            _large.slots.release()


def inflated(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """The content of a compressed body; call it outside the event loop.

    Args:
        body: as received.
        encoding: one of `ENCODINGS`.
        bytes_max: largest decompressed size.

    Raises:
        TooLargeError. BadRequest: it does not match its encoding.
    """
    bits = ENCODINGS[encoding]
    if encoding == "deflate" and (len(body) < 2 or body[0] & 15 != 8 or int.from_bytes(body[:2], "big") % 31):
        bits = -zlib.MAX_WBITS  # without the envelope, as some clients send it
    engine = zlib.decompressobj(bits)
    try:
        plain = engine.decompress(body, bytes_max + 1)
    except zlib.error:
        raise BadRequest(f"the body is no {encoding}") from None
    if len(plain) > bytes_max:
        raise TooLargeError(f"the body holds more than {bytes_max} bytes")
    if not engine.eof:
        raise BadRequest(f"the body is no {encoding}: its end is missing")
    if engine.unused_data:
        raise BadRequest(f"the body is no {encoding}: something stands behind its end")
    return plain
