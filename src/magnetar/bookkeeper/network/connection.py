"""Connections to bookies over TCP: requests go out, each is answered or fails exactly once.

A bookie has up to two connections. One speaks version 2 of the protocol, for adding entries and for batches of entries: there an
answer to an add names only ledger and entry. The other one speaks version 3, for everything else. A recovery adds entries by
version 3, so that an answer to the former writer is not taken for one to the recovery.

A request that is not answered in time ends its connection, and with it fails everything that waits there: of a bookie that hangs,
no single request is worth waiting for, and an answer that comes later cannot be mixed up with one to a newer request.

Source: docs/design/bookkeeper.md#connections.
"""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.network.errors import AuthenticationRefused
from magnetar.bookkeeper.protocol import v2, v3
from magnetar.bookkeeper.protocol.frames import Buffers, Frame, FrameReader, ProtocolError
from magnetar.bookkeeper.protocol.messages import (
    AddEntry,
    Authenticate,
    Authenticated,
    Code,
    EntryAdded,
    ReadBatch,
    ReadEntry,
    Request,
    Response,
    StartTls,
    TlsStarted,
)

logger = logging.getLogger("magnetar.bookkeeper")

Address: TypeAlias = tuple[str, int]
"""Host and port."""

WRITE_BUFFER_BYTES: Final = 1 << 20
"""Bytes that the buffer of a socket takes before further frames are held back: enough to keep a bookie busy."""

LARGE_BYTES: Final = 64 << 10
"""Pieces of frames that have this size or more are written one by one. Smaller ones are joined, which costs a copy and saves
system calls."""

NO_PLUGIN: Final = "AuthDisabledPlugin"
"""The name of the authentication where there is none."""

AUTHENTICATION_STEPS: Final = 10
"""Messages of an authentication at most; the known ones need two or three."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds of connections.

    Attributes:
        request_s: seconds until an unanswered request ends its connection. A bookie that syncs a slow disk takes seconds.
        connect_s: seconds for connecting, with TLS and authentication.
        backoff_min_s, backoff_max_s: seconds without an attempt after a first and after many failed attempts to connect.
            Meanwhile requests fail at once, so that another bookie is chosen.
        bytes_max: of requests that a bookie has not answered. Bookies do not bound what they take from a socket, so a slow one
            would run out of memory. Above it `Connections.has_room` is false. Above twice as many the bookie is taken for failed.
    """

    request_s: float = 10.0
    connect_s: float = 5.0
    backoff_min_s: float = 0.2
    backoff_max_s: float = 5.0
    bytes_max: int = 64 << 20


DEFAULT_LIMITS: Final = ConnectionLimits()


class Owner(Protocol):
    """The sender of a request. For each bookie one of the methods is called, once, and never while the request is being sent."""

    def answered(self, bookie: BookieId, number: int, response: Response, session: int) -> None:
        """The answer; `session` names the connection, with a number that no other connection has."""

    def failed(self, bookie: BookieId, number: int) -> None:
        """There will be no answer."""


class Authentication(Protocol):
    """One authentication of a connection.

    Attributes:
        plugin: the name that both sides know it by.
    """

    plugin: str

    def first(self) -> bytes:
        """The first message to the bookie."""

    def next(self, payload: bytes) -> bytes | None:
        """The answer to a message of the bookie; None: it is complete.

        Raises:
            AuthenticationRefused: the bookie is not what it should be.
        """


@dataclass(frozen=True, slots=True)
class Security:
    """How connections are secured.

    Attributes:
        tls: returns the context of one connection, so that certificates can be replaced; None: without TLS. The context decides
            which certificates are trusted, and whether host names are checked.
        authentication: makes one for each connection; None: the bookies ask for none, or take the client's certificate for it.
    """

    tls: Callable[[], ssl.SSLContext] | None = None
    authentication: Callable[[], Authentication] | None = None


class _Waiting(NamedTuple):
    """A request that is not answered.

    Attributes:
        owner, number: to be called.
        size: of the frame.
        deadline: seconds of the loop's clock.
    """

    owner: Owner
    number: int
    size: int
    deadline: float


class _Outgoing(NamedTuple):
    """A frame for one bookie, with the key of its answer."""

    key: Hashable
    frame: Buffers
    waiting: _Waiting


class _Refused(Exception):
    """The bookie does not accept this client."""


class _Asked:
    """The owner of a single question, whose answer is awaited."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Response] = loop.create_future()

    def answered(self, bookie: BookieId, number: int, response: Response, session: int) -> None:
        if not self.answer.done():
            self.answer.set_result(response)

    def failed(self, bookie: BookieId, number: int) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectionError("the bookie has closed the connection"))


_sessions = itertools.count(1)


class _Connection(asyncio.Protocol):
    """One connection. It begins with version 3; `speak` changes that."""

    def __init__(self, bookie: "_Bookie", lost: Callable[["_Connection"], None], limits: ConnectionLimits) -> None:
        self.session = next(_sessions)
        self.transport: asyncio.Transport | None = None
        self._bookie = bookie
        self._lost = lost
        self._limits = limits
        self._loop = bookie.loop
        self._decode: Callable[[Frame], tuple[int | None, Response]] = v3.decode_response
        self._reader = FrameReader()
        self._waiting: dict[Hashable, _Waiting] = {}
        # More requests with the same key: the same entry asked for by several readers, or sent again.
        self._more: dict[Hashable, list[_Waiting]] = {}
        self._out: list[bytes] = []
        self._paused = False
        self._flushing = False
        self._check: asyncio.TimerHandle | None = None
        self.tls_problem = ""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any longer."""
        return self.transport is None or self.transport.is_closing()

    def speak(self, version: int) -> None:
        """Decode what comes from now on as this version. The first frame of version 2 changes the bookie's side."""
        self._decode = v2.decode_response if version == v2.VERSION else v3.decode_response

    def send(self, outgoing: _Outgoing) -> None:
        """Send a frame; all frames of one turn of the loop go out together."""
        key, frame, waiting = outgoing
        if key in self._waiting:
            self._more.setdefault(key, []).append(waiting)
        else:
            self._waiting[key] = waiting
        self._out += frame
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        if self._check is None:
            self._check = self._loop.call_later(self._limits.request_s / 10, self._check_deadlines)

    async def ask(self, request: Request) -> Response:
        """Send one request of version 3 and wait for its answer."""
        asked = _Asked(self._loop)
        number = next(self._bookie.numbers)
        frame = v3.encode_request(request, number)
        size = sum(map(len, frame))
        deadline = self._loop.time() + self._limits.request_s
        self._bookie.add(size)
        self.send(_Outgoing(number, frame, _Waiting(asked, number, size, deadline)))
        return await asked.answer

    def secure(self, transport: asyncio.Transport) -> None:
        """Continue over TLS."""
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def end(self) -> None:
        """Close the connection; what waits fails."""
        if self.transport is not None:
            self.transport.abort()

    # ------------------------------------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            # In TLS 1.3 a bookie refuses a client's certificate after the handshake has ended for the client.
            self.tls_problem = tls_problem(exc)
        if self._check is not None:
            self._check.cancel()
        waiting = [*self._waiting.values(), *(one for more in self._more.values() for one in more)]
        self._waiting.clear()
        self._more.clear()
        self._out.clear()
        self._lost(self)
        for one in waiting:
            self._bookie.subtract(one.size)
            one.owner.failed(self._bookie.id, one.number)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        bookie, session, pending = self._bookie, self.session, self._waiting
        try:
            for frame in self._reader.feed(data):
                number, response = self._decode(frame)
                key: Hashable = number
                if number is None:
                    # Version 2 has no numbers. Only adds are sent without.
                    key = (response.ledger, response.entry) if isinstance(response, EntryAdded) else None
                waiting = pending.pop(key, None)
                if waiting is None:
                    continue
                if self._more and (more := self._more.get(key)):
                    pending[key] = more.pop(0)
                    if not more:
                        del self._more[key]
                bookie.subtract(waiting.size)
                waiting.owner.answered(bookie.id, waiting.number, response, session)
        except ProtocolError as error:
            bookie.trouble(f"it breaks the protocol: {error}")
            self.end()

    # ---------------------------------------------------------------------------------------------------------- private

    def _flush(self) -> None:
        self._flushing = False
        if self._paused or self.transport is None or self.transport.is_closing():
            return
        out, self._out = self._out, []
        small: list[bytes] = []
        for piece in out:
            if len(piece) < LARGE_BYTES:
                small.append(piece)
                continue
            if small:
                self.transport.write(b"".join(small))
                small = []
            self.transport.write(piece)
        if small:
            self.transport.write(b"".join(small) if len(small) > 1 else small[0])

    def _check_deadlines(self) -> None:
        self._check = None
        now = self._loop.time()
        if any(waiting.deadline <= now for waiting in self._waiting.values()):
            self._bookie.trouble("it has not answered in time")
            self.end()
        elif self._waiting:
            self._check = self._loop.call_later(self._limits.request_s / 10, self._check_deadlines)


class _Link:
    """The connection of one version to one bookie: made when it is needed, and again after it was lost.

    Args:
        bookie: the other end.
        version: of the protocol.
        limits: see `ConnectionLimits`.
        security: see `Security`.
    """

    def __init__(self, bookie: "_Bookie", version: int, limits: ConnectionLimits, security: Security) -> None:
        self._bookie = bookie
        self._version = version
        self._limits = limits
        self._security = security
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._queue: list[_Outgoing] = []
        self._backoff_s = 0.0
        self._not_before = 0.0
        self._ended = False
        self._unanswered = ""

    def send(self, outgoing: _Outgoing) -> None:
        """Send a frame, as soon as there is a connection."""
        if self._connection is not None:
            self._connection.send(outgoing)
        elif self._ended or self._bookie.loop.time() < self._not_before:
            self._bookie.loop.call_soon(self._fail, [outgoing])
        else:
            self._queue.append(outgoing)
            if self._connecting is None:
                self._connecting = self._bookie.loop.create_task(self._connect())
                # Not in the task: one that is cancelled before its first step runs nothing, and what waits has to fail.
                self._connecting.add_done_callback(self._connected)

    def drop(self) -> None:
        """Close the connection; what waits fails."""
        if self._connection is not None:
            self._connection.end()
        elif self._connecting is not None:
            self._connecting.cancel()

    async def end(self) -> None:
        """Close for good."""
        self._ended = True
        self.drop()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])

    async def _connect(self) -> _Connection:
        """A connection that has been greeted.

        Raises:
            OSError, TimeoutError, _Refused: there is none.
        """
        connection: _Connection | None = None
        self._unanswered = "it does not answer"
        try:
            async with asyncio.timeout(self._limits.connect_s):
                host, port = self._bookie.address()
                _, connection = await self._bookie.loop.create_connection(
                    lambda: _Connection(self._bookie, self._lost, self._limits), host, port
                )
                await self._greet(connection, host)
                return connection
        except BaseException as error:
            if connection is not None:
                connection.end()
                if isinstance(error, ConnectionError) and connection.tls_problem:
                    raise _Refused(connection.tls_problem) from error
            if isinstance(error, ssl.SSLError):
                raise _Refused(tls_problem(error)) from error
            raise

    def _connected(self, connecting: asyncio.Task[_Connection]) -> None:
        """The attempt to connect has ended."""
        self._connecting = None
        queue, self._queue = self._queue, []
        error = None if connecting.cancelled() else connecting.exception()
        if connecting.cancelled():
            self._failed("the connection was given up", queue)
        elif isinstance(error, TimeoutError):
            self._failed(f"{self._unanswered} within {self._limits.connect_s:g} s", queue)
        elif error is not None:
            self._failed(str(error) or type(error).__name__, queue)
        elif (connection := connecting.result()).closed:
            self._failed("it has closed the connection", queue)
        else:
            self._backoff_s = 0.0
            connection.speak(self._version)
            self._connection = connection
            self._bookie.well()
            for outgoing in queue:
                connection.send(outgoing)

    async def _greet(self, connection: _Connection, host: str) -> None:
        """TLS, then the authentication. An answer also shows that the bookie does not hang.

        Raises:
            _Refused: the bookie does not want this client as it is.
        """
        if self._security.tls is not None:
            answer = await connection.ask(StartTls())
            if not isinstance(answer, TlsStarted) or answer.code is not Code.OK:
                raise _Refused("it has no TLS, and this client is to use it")
            assert connection.transport is not None
            loop = self._bookie.loop
            context = self._security.tls()
            transport = await loop.start_tls(connection.transport, connection, context, server_hostname=host)
            if transport is None:
                raise ConnectionError("it has closed the connection while TLS began")
            connection.secure(transport)
        make = self._security.authentication
        authentication = make() if make is not None else None
        plugin = authentication.plugin if authentication is not None else NO_PLUGIN
        payload = authentication.first() if authentication is not None else b""
        for step in range(AUTHENTICATION_STEPS):
            if step:
                # A bookie says nothing to a user or a password that it refuses.
                self._unanswered = (
                    f"it refuses the user or the password: it does not answer the authentication {plugin}"
                )
            answer = await connection.ask(Authenticate(plugin, payload))
            if not isinstance(answer, Authenticated) or answer.code is not Code.OK:
                raise _Refused(self._refusal(plugin))
            if authentication is None or answer.plugin == NO_PLUGIN:
                # The bookie has no authentication, or has accepted the certificate. Java's client continues then, too.
                return
            try:
                following = authentication.next(answer.payload)
            except AuthenticationRefused as error:
                raise _Refused(f"the authentication {plugin} fails: {error}") from None
            if following is None:
                return
            payload = following
        raise _Refused(f"the authentication {plugin} has no end")

    def _refusal(self, plugin: str) -> str:
        """The problem of a bookie that answers with a refusal."""
        if plugin != NO_PLUGIN:
            return f"it refuses the authentication {plugin}"
        if self._security.tls is None:
            return "it wants an authentication, and this client has none"
        return "it wants an authentication, and this client has none; or it does not allow the client's certificate"

    def _failed(self, problem: str, queue: list[_Outgoing]) -> None:
        limits = self._limits
        self._backoff_s = min(max(2 * self._backoff_s, limits.backoff_min_s), limits.backoff_max_s)
        self._not_before = self._bookie.loop.time() + self._backoff_s
        self._bookie.trouble(problem)
        self._fail(queue)

    def _fail(self, outgoing: Iterable[_Outgoing]) -> None:
        for each in outgoing:
            self._bookie.subtract(each.waiting.size)
            each.waiting.owner.failed(self._bookie.id, each.waiting.number)

    def _lost(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None


class _Bookie:
    """One bookie: its two links, and what it has not answered."""

    def __init__(
        self,
        id_: BookieId,
        loop: asyncio.AbstractEventLoop,
        numbers: "itertools.count[int]",
        resolve: Callable[[BookieId], Address | None],
        limits: ConnectionLimits,
        security: Security,
    ) -> None:
        self.id = id_
        self.loop = loop
        self.numbers = numbers
        self.outstanding = 0
        self.problem = ""
        self._resolve = resolve
        self._limits = limits
        self._room: asyncio.Event | None = None
        self.links = {version: _Link(self, version, limits, security) for version in (v2.VERSION, v3.VERSION)}

    def address(self) -> Address:
        """Where it listens.

        Raises:
            OSError: this is not known.
        """
        found = self._resolve(self.id)
        if found is None:
            raise OSError("it is not registered in ZooKeeper, so its address is not known")
        return found

    def send(self, version: int, outgoing: _Outgoing) -> None:
        """Send a frame."""
        self.add(outgoing.waiting.size)
        self.links[version].send(outgoing)
        if self.outstanding > 2 * self._limits.bytes_max:
            self.trouble(f"it has not answered requests of {self.outstanding} bytes")
            self.links[version].drop()

    def add(self, size: int) -> None:
        """Count bytes that are sent."""
        self.outstanding += size

    def subtract(self, size: int) -> None:
        """Count bytes that are answered or have failed."""
        self.outstanding -= size
        if self._room is not None and self.outstanding < self._limits.bytes_max:
            self._room.set()
            self._room = None

    @property
    def has_room(self) -> bool:
        """Whether it has answered enough of what was sent."""
        return self.outstanding < self._limits.bytes_max

    async def room(self) -> None:
        """Wait until it has answered enough."""
        while not self.has_room:
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    def trouble(self, problem: str) -> None:
        """It did not do what it should; one line of the log for each kind in a row."""
        if problem != self.problem:
            logger.warning("bookie %s: %s", self.id, problem)
        self.problem = problem

    def well(self) -> None:
        """It has accepted a connection."""
        self.problem = ""


def tls_problem(error: ssl.SSLError) -> str:
    """Why TLS with a server failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        return f"it ends TLS ({reason}): it may want a certificate of the client, or another one"
    return f"TLS fails: {reason}"


class Connections:
    """The connections to all bookies of a cluster. Use it in one event loop only.

    Args:
        loop: of the connections.
        resolve: returns the address of a bookie; None: it is not known.
        limits: see `ConnectionLimits`.
        security: see `Security`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resolve: Callable[[BookieId], Address | None],
        limits: ConnectionLimits = DEFAULT_LIMITS,
        security: Security | None = None,
    ) -> None:
        self._loop = loop
        self._resolve = resolve
        self._limits = limits
        self._security = security or Security()
        self._bookies: dict[BookieId, _Bookie] = {}
        self._numbers = itertools.count(1)

    def send(self, bookies: Iterable[BookieId], number: int, request: Request, owner: Owner) -> None:
        """Send the same request to some bookies. It is encoded once.

        Args:
            bookies: which ones.
            number: for the owner.
            request: not `Authenticate` or `StartTls`, which connections send themselves.
            owner: whose methods are called.

        Raises:
            ValueError: the request is too large.
        """
        key: Hashable = next(self._numbers)
        wait_s = self._limits.request_s
        if type(request) is AddEntry and not request.recovery and not request.deferred_sync:
            version, key = v2.VERSION, (request.ledger, request.entry)
            frame = v2.encode_request(request)
        elif type(request) is ReadBatch:
            version = v2.VERSION
            frame = v2.encode_request(request, cast("int", key))
        else:
            version = v3.VERSION
            frame = v3.encode_request(request, cast("int", key))
            if type(request) is ReadEntry:
                wait_s += request.timeout_ms / 1000
        size = sum(map(len, frame))
        outgoing = _Outgoing(key, frame, _Waiting(owner, number, size, self._loop.time() + wait_s))
        for id_ in bookies:
            bookie = self._bookies.get(id_)
            if bookie is None:
                bookie = self._bookies[id_] = self._made(id_)
            bookie.send(version, outgoing)

    async def ask(self, bookie: BookieId, request: Request) -> Response:
        """Send one request to one bookie; its answer.

        Raises:
            ConnectionError: there is none.
        """
        asked = _Asked(self._loop)
        self.send((bookie,), 0, request, asked)
        return await asked.answer

    def has_room(self, bookies: Iterable[BookieId]) -> bool:
        """Whether all of these bookies have answered enough of what was sent to them."""
        return all(self._bookies[id_].has_room for id_ in bookies if id_ in self._bookies)

    async def room(self, bookies: Iterable[BookieId]) -> None:
        """Wait until all of these bookies have answered enough of what was sent to them."""
        for id_ in bookies:
            if id_ in self._bookies:
                await self._bookies[id_].room()

    def problem(self, bookies: Iterable[BookieId]) -> str:
        """The problems of these bookies, in one line; empty: none is known."""
        known = (self._bookies[id_] for id_ in bookies if id_ in self._bookies)
        return "; ".join(f"bookie {bookie.id}: {bookie.problem}" for bookie in known if bookie.problem)

    def keep(self, bookies: Iterable[BookieId]) -> None:
        """Forget bookies other than these that have no requests under way: names change with every start in some clusters."""
        kept = set(bookies)
        for id_ in [id_ for id_, bookie in self._bookies.items() if id_ not in kept and not bookie.outstanding]:
            for link in self._bookies.pop(id_).links.values():
                link.drop()

    async def close(self) -> None:
        """Close all connections; requests without an answer fail."""
        bookies, self._bookies = self._bookies, {}
        for bookie in bookies.values():
            for link in bookie.links.values():
                await link.end()

    def _made(self, id_: BookieId) -> _Bookie:
        return _Bookie(id_, self._loop, self._numbers, self._resolve, self._limits, self._security)
