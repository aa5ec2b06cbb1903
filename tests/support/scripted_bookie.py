"""A bookie that answers as a test says, over a real socket."""

import asyncio
from collections.abc import Callable
from typing import Self

from magnetar.bookkeeper.ledgers.metadata import BookieId
from magnetar.bookkeeper.protocol import v2, v3
from magnetar.bookkeeper.protocol.frames import FrameReader, ProtocolError
from magnetar.bookkeeper.protocol.messages import (
    AddEntry,
    Authenticate,
    Authenticated,
    Code,
    EntryAdded,
    EntryRead,
    Request,
    Response,
)

NO_PLUGIN = "AuthDisabledPlugin"

Answer = Callable[[Request], Response | None]
"""None: no answer."""


def plain(request: Request) -> Response | None:
    """Answers greetings, accepts adds, has no entries."""
    match request:
        case Authenticate():
            return Authenticated(NO_PLUGIN, b"")
        case AddEntry(ledger=ledger, entry=entry):
            return EntryAdded(ledger, entry, Code.OK)
        case _:
            return EntryRead(0, 0, Code.NO_ENTRY, None, None)


class ScriptedBookie:
    """Listens on a port of its own; an asynchronous context manager.

    Args:
        answer: of each request.

    Attributes:
        answer: may be replaced.
        requests: all that came, with the version of the protocol.
        frames: all that came, as bytes.
        connections: how many there were.
    """

    def __init__(self, answer: Answer = plain) -> None:
        self.answer = answer
        self.requests: list[tuple[int, Request]] = []
        self.frames: list[bytes] = []
        self.connections = 0
        self.came = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._held: list[tuple[asyncio.StreamWriter, int, int | None, Request]] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def id(self) -> BookieId:
        """Its name."""
        return BookieId(f"127.0.0.1:{self.port}")

    async def __aenter__(self) -> Self:
        """Listen."""
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close everything."""
        await self.stop()

    async def listen(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no longer, and cut all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def send(self, content: bytes) -> None:
        """Send bytes to all."""
        for writer in self._writers:
            writer.write(content)

    def answer_held(self, order: Callable[[list[Request]], list[Request]] = list) -> None:
        """Answer what had no answer, in an order, as `plain` does."""
        held, self._held = self._held, []
        by_id = {id(request): (writer, version, number) for writer, version, number, request in held}
        for request in order([request for *_, request in held]):
            writer, version, number = by_id[id(request)]
            self._reply(writer, version, number, plain(request))

    async def until(self, check: Callable[[], bool]) -> None:
        """Wait for requests until this is true."""
        async with asyncio.timeout(60):
            while not check():
                self.came.clear()
                await self.came.wait()

    def adds(self) -> list[AddEntry]:
        """The adds that came."""
        return [request for _, request in self.requests if isinstance(request, AddEntry)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        frames, version = FrameReader(), 3
        try:
            while data := await reader.read(1 << 16):
                for frame in frames.feed(data):
                    if version == 3:
                        try:
                            number, request = v3.decode_request(frame)
                        except ProtocolError:
                            version = 2  # for good, as a real one
                    if version == 2:
                        number, request = v2.decode_request(frame)
                    self.frames.append(bytes(frame))
                    self.requests.append((version, request))
                    response = self.answer(request)
                    if response is None:
                        self._held.append((writer, version, number, request))
                    self._reply(writer, version, number, response)
                    self.came.set()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self.came.set()

    def _reply(self, writer: asyncio.StreamWriter, version: int, number: int | None, response: Response | None) -> None:
        if response is not None:
            encode = v2.encode_response if version == 2 else v3.encode_response
            writer.write(b"".join(encode(response, number)))
