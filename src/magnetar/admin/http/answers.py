"""The memory of answers: a limit on all of them, and a time limit for clients that do not read theirs.

A small answer is written at once and left to the system. A large one counts from before it is made until its client has
read the last byte: an answer that does not fit into the limit is not made yet. A client that reads nothing is
disconnected, sooner when others wait for the memory.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from magnetar.core.errors import BrokerError, ErrorCode

logger = logging.getLogger("magnetar.admin")

SMALL_BYTES: Final = 16 * 1024
"""Answers up to this size do not count: most are that small, and this much may wait for each connection anyway."""

PIECE_BYTES: Final = 64 * 1024
"""The size of a piece of a large answer; each is written when the one before was read."""

UNREAD_S: Final = 20.0
"""A client that reads less than `LEAST_BYTES` of a waiting answer in this time is disconnected: no network is that
slow.
"""

PRESSED_S: Final = 3.0
"""The same while others wait for the memory."""

LEAST_BYTES: Final = 64 * 1024

LOOK_S: Final = 1.0
"""The interval of the checks whether answers are read."""

WAIT_S: Final = 20.0
"""The time for which a request waits for memory before it is refused (429): longer than it takes to disconnect a client
that reads nothing.
"""

BYTES_MAX: Final = 128 << 20
"""`http_answers_bytes_max`, where nothing says another."""

ANSWER_BYTES_MAX: Final = 64 << 20
"""`http_answer_bytes_max`, where nothing says another."""

_T = TypeVar("_T")


class Taker(Protocol):
    """A connection for which something waits."""

    def unsent(self) -> int:
        """Bytes that wait."""

    def taken(self) -> int:
        """Bytes that it took, since it came."""

    def drop(self, reason: str) -> None:
        """End it at once."""


class Held:
    """Memory that is held; given back once.

    Attributes:
        size: bytes.
    """

    def __init__(self, answers: "Answers", size: int) -> None:
        self._answers: Answers | None = answers
        self.size = size

    def resize(self, size: int) -> None:
        """Change the number of bytes that are held: the number requested was an estimate."""
        if self._answers is not None:
            freed, self.size = self.size - size, size
            self._answers.give(freed)

    def release(self) -> None:
        """Give it back."""
        answers, self._answers = self._answers, None
        if answers is not None:
            answers.give(self.size)


class Answers:
    """Memory of answers of one broker.

    Args:
        bytes_max: of all that are large.
        answer_bytes_max: of one.
    """

    def __init__(self, bytes_max: int = BYTES_MAX, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.answer_bytes_max = min(answer_bytes_max, bytes_max)
        self.held = 0
        self.waits_s = WAIT_S
        self.alone = asyncio.Lock()
        """Held by who makes a large answer."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._takers: dict[Taker, tuple[int, float]] = {}
        self._looks: asyncio.TimerHandle | None = None
        self._worker: ThreadPoolExecutor | None = None

    # ------------------------------------------------------------------------------------------------------- memory

    def hold_now(self, size: int) -> Held | None:
        """Hold this many bytes if there is room and no other request waits for it."""
        if self._waiting or self.held + size > self.bytes_max:
            return None
        self.held += size
        return Held(self, size)

    async def hold(self, size: int) -> Held:
        """Hold this many bytes, or all of the memory if it is more, after the requests that waited before.

        Raises:
            BrokerError: TOO_MANY_REQUESTS: it did not become free in time.
        """
        size = min(size, self.bytes_max)
        if (held := self.hold_now(size)) is not None:
            return held
        waiter = (size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self.waits_s):
                await waiter[1]
        except TimeoutError:
            raise BrokerError(
                ErrorCode.TOO_MANY_REQUESTS,
                f"other answers take all of http_answers_bytes_max ({self.bytes_max} bytes); ask again",
            ) from None
        finally:
            if not waiter[1].done() or waiter[1].cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
                self._let_in()
        return Held(self, size)

    def give(self, size: int) -> None:
        """Free this many bytes."""
        self.held -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            size, waiter = self._waiting[0]
            if not waiter.done():
                if self.held + size > self.bytes_max:
                    return
                self.held += size
                waiter.set_result(None)
            self._waiting.popleft()

    async def beside(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Do heavy work on a thread of its own, one piece at a time: all cores but one stay with others."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="http")
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    def close(self) -> None:
        """Let go of the thread."""
        if self._looks is not None:
            self._looks.cancel()
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------------- who takes nothing

    def watch(self, taker: Taker) -> None:
        """Something waits for a connection: look whether it is taken."""
        if taker in self._takers:
            return
        loop = asyncio.get_running_loop()
        self._takers[taker] = (taker.taken(), loop.time())
        if self._looks is None:
            self._looks = loop.call_later(LOOK_S, self._look)

    def forget(self, taker: Taker) -> None:
        """A connection is gone."""
        self._takers.pop(taker, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        limit = PRESSED_S if self._waiting else UNREAD_S
        for taker, (taken, since) in list(self._takers.items()):
            if not (unsent := taker.unsent()):
                del self._takers[taker]
            elif taker.taken() - taken >= LEAST_BYTES:
                self._takers[taker] = (taker.taken(), now)
            elif now - since >= limit:
                del self._takers[taker]
                taker.drop(f"it takes nothing of {unsent} bytes that wait for it")
        self._looks = loop.call_later(LOOK_S, self._look) if self._takers else None


class Large(web.StreamResponse):
    """A large answer, written in pieces as its client takes them.

    Args:
        body: of it.
        status, content_type: of HTTP.
        held: the memory that it takes; None: it is there anyway.
    """

    def __init__(
        self,
        body: bytes | bytearray | memoryview | Sequence[bytes],
        *,
        status: int = 200,
        content_type: str = "application/json",
        held: Held | None = None,
    ) -> None:
        super().__init__(status=status)
        self._parts: list[memoryview] = (
            [memoryview(body)]
            if isinstance(body, bytes | bytearray | memoryview)
            else [memoryview(part) for part in body]
        )
        self._held = held
        self.content_type = content_type
        self.content_length = sum(len(part) for part in self._parts)

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Begin."""
        if request.method == "HEAD":
            self._parts = []
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        """Write all of it."""
        try:
            for part in self._parts:
                for at in range(0, len(part), PIECE_BYTES):
                    piece = part[at : at + PIECE_BYTES]
                    # The transport keeps what it writes: a view of it would keep all.
                    await self.write(piece if self._held is None else bytes(piece))
                    if self._req is not None:
                        await self._req.writer.drain()
            await super().write_eof(data)
        finally:
            self.release()

    def release(self) -> None:
        """Give the memory back."""
        self._parts = []
        if self._held is not None:
            self._held.release()
