"""A connection to the HTTP ports: requests that are no HTTP are answered in the shape of all errors, and told in one line.

aiohttp's own answer is a page of text, and its own story a traceback for each, or nothing at all.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from magnetar.admin.replies import one_line, refusal
from magnetar.runtime.listener import Places, shown
from magnetar.runtime.strangers import HEAD_BYTES

Malformed = Callable[[str, bytes, str], None]
"""Told of a connection that is closed because of what came: who it was, its first bytes, what is wrong."""

IDLE_S: Final = 75
"""Seconds that a connection may stay without a whole head of a request: more than the 60 after which proxies close theirs."""

REQUEST_HEAD_BYTES_MAX: Final = 64 * 1024
"""A ceiling on the head of a request, which is held before anybody knows who sends it: the longest token fits many times, and so
much for each connection is all that strangers can make a broker keep."""

REQUESTS_TOGETHER_MAX: Final = 32
"""So many requests of one read are told apart; what stands behind them waits as bytes, in the parser, until those are answered:
parsed each takes a hundred times its size. As many as aiohttp queues."""

_REASON_CHARACTERS: Final = 120
"""Of what the parser says: the rest is the bytes that it met."""


class Room(Places):
    """Counts the connections of all HTTP ports, and those to be that are in a handshake of TLS.

    Args:
        most: so many may be open at once.
        full: told who was refused.
    """

    def __init__(self, most: int, full: Callable[[str], None]) -> None:
        super().__init__(most, lambda: self.open, full)
        self.open = 0

    def enter(self, connection: asyncio.BaseProtocol, peer: str) -> bool:
        """Count one in, unless there are too many."""
        if not self.take(connection, peer):
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        """Count one out."""
        self.open -= 1


_END: Final = b"\r\n\r\n"
"""Of a head."""
_EMPTY: Final = re.compile(rb"[\r\n]*")
"""What may stand before one."""


class _Heads:
    """aiohttp's parser of one connection, with a limit on the head of a request: the parser knows only one on each line.

    Args:
        parser: of requests.
    """

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._waiting = 0
        self._body: Any = None
        self._body_left = 0
        self._last = b""
        self._over = False
        self.fault: HttpProcessingError | None = None
        """Why what stands behind the last request is none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    @property
    def _in_body(self) -> bool:
        return self._body is not None and not self._body.is_eof()

    def first(self, data: bytes, at: int) -> int:
        """Where the bytes end that belong to the request that is being read, behind the place where they begin.

        The parser forgets a whole request if what stands behind it in the same bytes is none. Of a body in chunks only the
        parser knows where it ends: all belong to it then.
        """
        if self._in_body:
            return at + self._body_left if self._body_left else len(data)
        here = len(_END) - 1  # so many bytes of it here, if it began in those before
        if self._waiting and (begun := (self._last + data[at : at + here]).find(_END)) >= 0:
            return at + begun + len(_END) - len(self._last)
        end = data.find(_END, at if self._waiting else _EMPTY.match(data, at).end())  # type: ignore[union-attr]
        return len(data) if end < 0 else end + len(_END)

    def feed_data(self, data: bytes) -> tuple[Sequence[Any], bool, bytes]:
        """What is complete now.

        Raises:
            HttpProcessingError: it is no HTTP, or a head is too large; said once.
        """
        if self._over:
            return (), False, b""
        in_body = self._in_body
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError as error:
            self._over = True
            if not in_body:
                self.fault = error
                raise
            # Who waits for the rest of the body would wait for ever, and answers now.
            self._body.set_exception(web.RequestPayloadError(one_line(error.message)))
            return (), False, b""
        if messages:
            head, self._body = messages[-1]
            self._waiting, self._last = 0, b""
            self._body_left = int(head.headers.get("Content-Length", 0))
        elif in_body:
            self._body_left = max(self._body_left - len(data), 0)
        else:
            self._waiting += len(data)
            self._last = (self._last + data)[1 - len(_END) :]
        # A head that came at once counts as one that came in pieces: how the kernel cuts the bytes must decide nothing.
        if max(self._waiting, *(_size(message) for message, _ in messages), 0) > REQUEST_HEAD_BYTES_MAX:
            self._over = True
            raise HttpProcessingError(
                code=431, message=f"the head of a request is larger than {REQUEST_HEAD_BYTES_MAX} bytes"
            )
        return messages, upgraded, tail


def _size(message: Any) -> int:
    return len(message.path) + sum(len(name) + len(value) + 4 for name, value in message.raw_headers)


class Connection(web.RequestHandler):
    """One client.

    Args:
        server: of aiohttp: the application behind it.
        malformed: told once, if what came is no HTTP.
        idle_s: how long it may stay without a request; so long also a head may take that comes byte by byte.
        room: shared by the ports; None: everybody is let in.
    """

    __slots__ = ("_head", "_heads", "_inside", "_malformed", "_room")

    def __init__(
        self, server: web.Server, malformed: Malformed, idle_s: float = IDLE_S, room: Room | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        # AppRunner's documentation: no log is None.
        super().__init__(server, loop=loop, access_log=None, keepalive_timeout=idle_s)  # type: ignore[arg-type]
        self._malformed = malformed
        self._head = b""
        self._room = room
        self._inside = False
        self._heads = _Heads(self._parser)
        self._parser = cast("Any", self._heads)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, or refuse when there are too many."""
        if self._room is not None and not self._room.enter(self, shown(transport.get_extra_info("peername"))):
            cast("asyncio.Transport", transport).abort()
            return
        self._inside = True
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Gone, by whoever's wish; of one that was refused nobody knows."""
        if self._inside:
            self._inside = False
            if self._room is not None:
                self._room.leave()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._inside:
            return
        if not self._head:
            self._head = data[:HEAD_BYTES]
        # A request that is whole is answered, whatever stands behind it: how the kernel cuts the bytes must decide nothing.
        at = 0
        for _ in range(REQUESTS_TOGETHER_MAX):
            if (end := self._heads.first(data, at)) >= len(data):
                break
            super().data_received(data[at:end])
            at = end
        super().data_received(data[at:] if at else data)

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
        wrong = self._tell(exc)
        answer = refusal(exc.code, wrong) if exc.code == 431 else refusal(status, f"this is not HTTP: {wrong}")
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; with it goes that the connection ends, if what came behind the request is known to be none.

        Node.js sends a body with DELETE and does not announce it; the refusal of that would answer its next request.
        """
        if self._heads.fault is not None and len(self._messages) == 1 and not resp.prepared:
            self._tell(self._heads.fault)
            resp.force_close()
        return await super().finish_response(request, resp, start_time)

    def _tell(self, fault: HttpProcessingError) -> str:
        """Who closes this connection, and why, in one line."""
        wrong = one_line(fault.message.partition("\n")[0]).rstrip(":")[:_REASON_CHARACTERS]
        self._malformed(shown(self.peername), self._head, wrong)
        return wrong
