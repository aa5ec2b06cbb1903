"""A connection to the HTTP ports: requests that are no HTTP are answered in the shape of all errors, and told in one line.

aiohttp's own answer is a page of text, and its own story a traceback for each, or nothing at all.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError

from magnetar.admin.http.answers import Answers, Large
from magnetar.admin.http.heads import REQUEST_HEAD_BYTES_MAX, Heads, begins, wrong
from magnetar.admin.http.replies import refusal
from magnetar.admin.http.turns import Turns
from magnetar.runtime.network.connection_places import Places
from magnetar.runtime.network.listener import shown
from magnetar.runtime.network.protocol_sniffing import HEAD_BYTES

Malformed = Callable[[str, bytes, str], None]
"""Told of a connection that is closed because of what came: who it was, its first bytes, what is wrong."""

IDLE_S: Final = 75
"""Seconds that a connection may stay without a whole head of a request: more than the 60 after which proxies close theirs."""

STRANGER_S: Final = 20
"""The same for the first one: a client that connects has something to ask."""

LINE_BYTES_MAX: Final = 8190
"""A ceiling on the first line of a request, which holds names and parameters: aiohttp's default."""

UNSENT_BYTES: Final = 16 * 1024
"""Above so many unsent bytes an answer is not written on, and no other one is begun."""

PIECE_BYTES: Final = 64 * 1024
"""Of a body, in one step."""

UNHANDLED_BYTES_MAX: Final = 64 * 1024
"""What is read of a socket and waits for its turn, or for the answer in front of it; then nothing more is read."""

BODY_BUFFER_BYTES: Final = 16 * 1024
"""Of a body that comes faster than it is read, half of what is kept."""

PASSED_OVER_BYTES_MAX: Final = 8 << 20
"""Of a body behind its answer, such as a refusal: clients that send it to its end before they read find the answer then. Of a
longer one the connection is closed."""


class Room(Places):
    """The places of the connections of all HTTP ports."""

    def enter(self, connection: asyncio.BaseProtocol, peer: str, drop: Callable[[], None] | None = None) -> bool:
        """Count one in, unless there are too many."""
        return self.take(connection, peer, drop)


class Connection(web.RequestHandler):
    """One client. Its requests are told apart one at a time: what stands behind one waits as bytes until that is answered.

    Args:
        server: of aiohttp: the application behind it.
        malformed: told once, if what came is no HTTP.
        idle_s: how long it may stay without a request; so long also a head may take that comes byte by byte.
        room: shared by the ports; None: everybody is let in.
        turns: shared by the ports; None: its own.
        answers: shared by the ports; None: nobody looks whether answers are taken.
        dropped: told who is dropped, and why.

    Attributes:
        waiting: whether it waits for its turn.
    """

    __slots__ = (
        "_answered",
        "_answers",
        "_at",
        "_dropped",
        "_ends",
        "_head",
        "_heads",
        "_inside",
        "_malformed",
        "_passed",
        "_room",
        "_turns",
        "_unhandled",
        "_writer",
        "_written",
        "waiting",
    )

    def __init__(
        self,
        server: web.Server,
        malformed: Malformed,
        idle_s: float = IDLE_S,
        room: Room | None = None,
        turns: Turns | None = None,
        answers: Answers | None = None,
        dropped: Callable[[str, str], None] = lambda _peer, _reason: None,
    ) -> None:
        loop = asyncio.get_running_loop()
        # Bodies are inflated by who reads them, who knows whether and how far: a parser would do it for anybody, in the loop.
        # AppRunner's documentation: no log is None.
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=idle_s,
            auto_decompress=False,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=2 * REQUEST_HEAD_BYTES_MAX,
            read_bufsize=BODY_BUFFER_BYTES,
        )
        self._malformed = malformed
        self._head = b""
        self._room = room
        self._turns = turns or Turns()
        self._answers = answers
        self._dropped = dropped
        self._writer: AbstractStreamWriter | None = None
        self._written = 0
        self._inside = False
        self._heads = Heads(self._parser)
        self._parser = cast("Any", self._heads)
        self._unhandled = b""
        self._at = 0
        self._answered = 0
        self._passed = 0
        self._ends = False
        self.waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, or refuse when there are too many."""
        peer = shown(transport.get_extra_info("peername"))
        if self._room is not None and not self._room.enter(self, peer, cast("asyncio.Transport", transport).abort):
            cast("asyncio.Transport", transport).abort()
            return
        self._inside = True
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=UNSENT_BYTES)
        super().connection_made(transport)
        if self._keepalive_handle is not None and (first_s := min(STRANGER_S, self._keepalive_timeout)):
            self._keepalive_handle.cancel()
            self._next_keepalive_close_time = self._loop.time() + first_s
            self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Gone, by whoever's wish; of one that was refused nobody knows."""
        if self._inside:
            self._inside = False
            if self._answers is not None:
                self._answers.forget(self)
            self._unhandled, self._at = b"", 0
            if self._request_count == self._answered:
                self._heads.leave()  # otherwise aiohttp tells who reads it
            if self._room is not None:
                self._room.leave(self)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; none: aiohttp goes on with what it keeps."""
        if not self._inside:
            return
        if not data or (self._upgraded and self._at == len(self._unhandled)):
            super().data_received(data)
            return
        if not self._head:
            self._head = data[:HEAD_BYTES]
        self._unhandled = self._unhandled[self._at :] + data
        self._at = 0
        if len(self._unhandled) > UNHANDLED_BYTES_MAX:
            super()._pause_transport_reading()
        self._turns.ask(self)

    def step(self) -> None:
        """Hand a piece to the parser: to the end of the head or body that is being read at most."""
        if self._at == len(self._unhandled):
            return
        if self._close or self._force_close:
            self._unhandled, self._at = b"", 0
            return
        if (end := self._piece()) == 0:
            return  # who is waited for asks again
        data = self._unhandled[self._at : end]
        self._at = min(end, len(self._unhandled))
        begun = self._request_count
        super().data_received(data)
        if self._room is not None and self._request_count > begun:
            self._room.busy(self)
        if self._at < len(self._unhandled):
            self._turns.ask(self)
        if len(self._unhandled) - self._at <= UNHANDLED_BYTES_MAX and not (self._reading_paused or self._buffer_paused):
            super()._resume_transport_reading()

    def _piece(self) -> int:
        """Where the next piece ends; 0 when it has to wait."""
        if self._upgraded:
            return len(self._unhandled)
        busy = self._request_count > self._answered
        if self._heads.in_body:
            if self._reading_paused:
                return 0
            if not busy:
                self._passed += min(len(self._unhandled) - self._at, PIECE_BYTES)
                if self._passed > PASSED_OVER_BYTES_MAX:
                    self.force_close()
                    return 0
        elif busy and begins(self._unhandled, self._at):
            return 0
        else:
            self._passed = 0
        return min(self._heads.piece(self._unhandled, self._at), self._at + PIECE_BYTES)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """The body that is being read has room again."""
        super().resume_reading(resume_parser)
        if self._at < len(self._unhandled):
            self._turns.ask(self)

    def _resume_transport_reading(self) -> None:
        if len(self._unhandled) - self._at <= UNHANDLED_BYTES_MAX:
            super()._resume_transport_reading()

    async def ask_for_body(self, request: web.BaseRequest) -> None:
        """Tell the sender to send the body, if it waits for that."""
        if self._heads.expects:
            self._heads.expects = False
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # as before: no answer has begun

    def end(self) -> None:
        """Close behind the answer to the request that is being handled."""
        self._ends = True

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """A WebSocket begins: who sends it is known, and it is at work from now on."""
        if self._room is not None:
            self._room.known(self)
        super().set_parser(parser, data_received_cb)

    # ------------------------------------------------------------------------------------------------ answers.Taker

    def pause_writing(self) -> None:
        """The socket takes no more."""
        super().pause_writing()
        if self._answers is not None and not self._upgraded:
            self._answers.watch(self)

    def unsent(self) -> int:
        """Bytes that wait for the client."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def taken(self) -> int:
        """Bytes of answers that the client's side took."""
        return self._written + (self._writer.output_size if self._writer is not None else 0) - self.unsent()

    def drop(self, reason: str) -> None:
        """End it at once."""
        if self.transport is not None:
            self._dropped(shown(self.peername), reason)
            self.transport.abort()

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
        said = self._tell(exc)
        answer = refusal(exc.code, said) if exc.code == 431 else refusal(status, f"this is not HTTP: {said}")
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
        if self._ends and not resp.prepared:
            resp.force_close()
        if self._heads.expects and not resp.prepared:
            resp.force_close()  # the sender may send the body nevertheless, or leave it out: nothing tells
            self._lingering_time = 0.0
        self._writer = request.writer
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1
            self._written, self._writer = self._written + self._writer.output_size, None
            if isinstance(resp, Large):
                resp.release()
            if self._answers is not None and self.unsent():
                self._answers.watch(self)
            if self._room is not None:
                if resp.status < 400:
                    self._room.known(self)
                self._room.idle(self)
            if self._at < len(self._unhandled):
                self._turns.ask(self)

    def _tell(self, fault: HttpProcessingError) -> str:
        """Who closes this connection, and why, in one line."""
        said = wrong(fault)
        self._malformed(shown(self.peername), self._head, said)
        return said
