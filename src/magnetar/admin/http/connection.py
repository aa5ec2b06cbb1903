"""A connection to the HTTP ports: input that is not HTTP is answered in the same shape as all errors, and logged in one
line.

aiohttp would answer with a page of text, and log a traceback for each, or nothing at all.
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
from magnetar.runtime.network.connection_slots import ConnectionSlots
from magnetar.runtime.network.listener import shown
from magnetar.runtime.network.protocol_sniffing import HEAD_BYTES

Malformed = Callable[[str, bytes, str], None]
"""Called for a connection that is closed because of invalid input, with its address, its first bytes, and the error."""

IDLE_S: Final = 75
"""Seconds that a connection may stay without a whole head of a request: more than the 60 after which proxies close theirs."""

STRANGER_S: Final = 20
"""The same for the first one: a client that connects has something to ask."""

LINE_BYTES_MAX: Final = 8190
"""A ceiling on the first line of a request, which holds names and parameters: aiohttp's default."""

UNSENT_BYTES: Final = 16 * 1024
"""Above this many unsent bytes an answer is not continued, and no other one is begun."""

PIECE_BYTES: Final = 64 * 1024
"""The size of a piece of a body that is handled in one step."""

UNHANDLED_BYTES_MAX: Final = 64 * 1024
"""The most unhandled bytes of a socket that wait for their turn or for the answer before them; above it, reading
stops.
"""

BODY_BUFFER_BYTES: Final = 16 * 1024
"""Half of the most bytes that are buffered of a body that arrives faster than it is read."""

PASSED_OVER_BYTES_MAX: Final = 8 << 20
"""The most bytes of a body that are read and dropped after its answer, such as a refusal: clients that send the whole
body before they read find the answer then. For a longer body the connection is closed.
"""


class Connection(web.RequestHandler):
    """One client. Its requests are parsed one at a time: bytes after a request wait until it is answered.

    Args:
        server: aiohttp's server with the application.
        malformed: called once, if the input is not HTTP.
        idle_s: the time limit for a connection without a request, and for a head that arrives byte by byte.
        room: shared by the ports; None: no limit on connections.
        turns: shared by the ports; None: its own.
        answers: shared by the ports; None: answers have no time limit.
        dropped: called with the address and the reason when a client is disconnected.

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
        room: ConnectionSlots | None = None,
        turns: Turns | None = None,
        answers: Answers | None = None,
        dropped: Callable[[str, str], None] = lambda _peer, _reason: None,
    ) -> None:
        loop = asyncio.get_running_loop()
        # Bodies are decompressed by the code that reads them, which knows whether and up to which size; the parser
        # would decompress any body in the loop. AppRunner's documentation: None means no log.
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
        if self._room is not None and not self._room.take(self, peer, cast("asyncio.Transport", transport).abort):
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
        """The connection is closed; a refused one was never announced."""
        if self._inside:
            self._inside = False
            if self._answers is not None:
                self._answers.forget(self)
            self._unhandled, self._at = b"", 0
            if self._request_count == self._answered:
                self._heads.leave()  # otherwise aiohttp reports the end to the reader
            if self._room is not None:
                self._room.leave(self)
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived; none: aiohttp continues with the bytes that it has kept."""
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
            return  # the request that is waited for asks again
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
        """The end of the next piece; 0 if it has to wait."""
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
        """Ask the sender for the body, if it waits for that."""
        if self._heads.expects:
            self._heads.expects = False
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # as before: no answer has begun

    def end(self) -> None:
        """Close after the answer to the current request."""
        self._ends = True

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """A WebSocket begins: its sender is authenticated, and from now on it does not count as idle."""
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
        """Log a mistake of this side; an unreadable body of a refused request is the sender's mistake."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer input that is not a request; everything else has been answered by the application's middlewares."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        said = self._tell(exc)
        answer = refusal(exc.code, said) if exc.code == 431 else refusal(status, f"this is not HTTP: {said}")
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer. It announces the end of the connection if the bytes after the request are known not to be a
        request.

        Node.js sends a body with DELETE without announcing it; the refusal of those bytes would be taken for the answer
        to its next request.
        """
        if self._heads.fault is not None and len(self._messages) == 1 and not resp.prepared:
            self._tell(self._heads.fault)
            resp.force_close()
        if self._ends and not resp.prepared:
            resp.force_close()
        if self._heads.expects and not resp.prepared:
            resp.force_close()  # the sender may still send the body or leave it out: there is no way to know
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
        """The address of this connection and the reason for closing it, in one line."""
        said = wrong(fault)
        self._malformed(shown(self.peername), self._head, said)
        return said
