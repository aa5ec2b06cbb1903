"""A connection to the HTTP ports: requests that are no HTTP are answered in the shape of all errors, and told in one line.

aiohttp's own answer is a page of text, and its own story a traceback for each, or nothing at all.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from magnetar.admin.replies import one_line, refusal
from magnetar.runtime.listener import shown
from magnetar.runtime.strangers import HEAD_BYTES

Malformed = Callable[[str, bytes, str], None]
"""Told of a connection that is closed because of what came: who it was, its first bytes, what is wrong."""

IDLE_S: Final = 75
"""Seconds that a connection may stay without a whole head of a request: more than the 60 after which proxies close theirs."""

_REASON_CHARACTERS: Final = 120
"""Of what the parser says: the rest is the bytes that it met."""


class Connection(web.RequestHandler):
    """One client.

    Args:
        server: of aiohttp: the application behind it.
        malformed: told once, if what came is no HTTP.
        idle_s: how long it may stay without a request; so long also a head may take that comes byte by byte.
    """

    __slots__ = ("_head", "_malformed")

    def __init__(self, server: web.Server, malformed: Malformed, idle_s: float = IDLE_S) -> None:
        loop = asyncio.get_running_loop()
        # AppRunner's documentation: no log is None.
        super().__init__(server, loop=loop, access_log=None, keepalive_timeout=idle_s)  # type: ignore[arg-type]
        self._malformed = malformed
        self._head = b""

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._head:
            self._head = data[:HEAD_BYTES]
        super().data_received(data)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Tell of a mistake of this side; that the rest of a refused request's body cannot be read is the sender's."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is no request; everything else has been answered by the application's middlewares."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        wrong = one_line(exc.message.partition("\n")[0]).rstrip(":")[:_REASON_CHARACTERS]
        self._malformed(shown(self.peername), self._head, wrong)
        answer = refusal(status, f"this is not HTTP: {wrong}")
        answer.force_close()
        return answer
