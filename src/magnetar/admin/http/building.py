"""Making large answers in steps, so that other work gets its turn, and up to the limit on an answer."""

import asyncio
import heapq
import time
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from magnetar.admin.http.answers import Answers
from magnetar.metadata.errors import PreconditionFailed

TURN_S: Final = 0.001
"""The time of making an answer before other work gets its turn; a step that has begun is finished."""

ALONE_BYTES: Final = 128 * 1024
"""Only one answer above this size is made at a time: the memory that it takes is not known until it is counted."""

LIGHT: Final = 500
"""Values that are encoded in one go: a tenth of a millisecond."""

SORTED_TOGETHER: Final = 2_000
"""Names that are sorted in one go."""

_T = TypeVar("_T")


class Building:
    """The making of one answer.

    Args:
        answers: memory of answers.
        give_way: lets the log's thread have the interpreter, see `Services`.
    """

    def __init__(self, answers: Answers, give_way: Callable[[], None] = lambda: None) -> None:
        self._answers = answers
        self._give_way = give_way
        self._size = 0
        self._alone = False
        self._end_s = time.perf_counter() + TURN_S

    async def others(self) -> None:
        """Let others have their turn, if this one is over."""
        if time.perf_counter() >= self._end_s:
            await self.end_turn()

    async def end_turn(self) -> None:
        """Let others have their turn now: the other tasks of the loop, and the log's thread, which writes what they publish."""
        self._give_way()
        await asyncio.sleep(0)
        self._end_s = time.perf_counter() + TURN_S

    async def steps(self, steps: Generator[None, None, _T]) -> _T:
        """Run steps, with other work in between, and return their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self.others()

    async def listed(self, values: Iterable[Any]) -> msgspec.Raw:
        """A list of values, which are made as they are taken.

        Raises:
            PreconditionFailed: it is larger than an answer may be.
        """
        parts: list[bytes] = []
        for value in values:
            parts.append(msgspec.json.encode(value))
            await self._count(len(parts[-1]) + 1)
        return msgspec.Raw(b"[%b]" % b",".join(parts))

    async def names(self, names: Iterable[str]) -> list[str]:
        """Names in order."""
        runs: list[list[str]] = []
        left = iter(names)
        while run := list(islice(left, SORTED_TOGETHER)):
            run.sort()
            runs.append(run)
            await self.others()
        if len(runs) == 1:
            return runs[0]
        found: list[str] = []
        merged = heapq.merge(*runs)
        while run := list(islice(merged, SORTED_TOGETHER)):
            found += run
            await self.others()
        return found

    async def encoded(self, value: Any) -> bytes:
        """A value as JSON.

        Raises:
            PreconditionFailed: it is larger than an answer may be.
        """
        if _light(value):
            return msgspec.json.encode(value)
        parts: list[bytes] = []
        await self._encode(value, parts)
        return b"".join(parts)

    async def _encode(self, value: Any, parts: list[bytes]) -> None:
        if _light(value):
            parts.append(msgspec.json.encode(value))
            await self._count(0 if isinstance(value, msgspec.Raw) else len(parts[-1]))
        elif isinstance(value, dict):
            before = b"{"
            for key, inner in list(value.items()):
                parts.append(before + msgspec.json.encode(key) + b":")
                await self._encode(inner, parts)
                before = b","
            parts.append(b"}")
        else:
            before = b"["
            for inner in list(value):
                parts.append(before)
                await self._encode(inner, parts)
                before = b","
            parts.append(b"]")

    async def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._answers.answer_bytes_max:
            raise PreconditionFailed(
                f"the answer would be over http_answer_bytes_max ({self._answers.answer_bytes_max} bytes); ask for less of it"
            )
        if self._size > ALONE_BYTES and not self._alone:
            await self._answers.alone.acquire()
            self._alone = True
        await self.others()

    def end(self) -> None:
        """It is made, or is not."""
        if self._alone:
            self._alone = False
            self._answers.alone.release()


def _light(value: Any) -> bool:
    """Whether a value is encoded in no time; one that is not is a dict with names, a list or a tuple."""
    if not isinstance(value, dict | list | tuple):
        return True
    if isinstance(value, dict) and not all(isinstance(key, str) for key in islice(value, LIGHT)):
        return True
    left = LIGHT
    stack: list[Any] = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            inner: Iterable[Any] = one.values()
        elif isinstance(one, list | tuple):
            inner = one
        else:
            left -= len(one) >> 8 if isinstance(one, str) else 0
            continue
        left -= len(one)
        if left < 0:
            return False
        stack.extend(inner)
    return left >= 0
