"""Long polls on topics: a request is answered when a condition is true, or at its timeout."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from magnetar.effects.outbox import Outbox, Timer

WAIT_MS_MAX: Final = 20_000
"""A ceiling on a long poll, below the patience of HTTP clients and proxies (30 s)."""

WAITS_MAX: Final = 1_000
"""A ceiling on long polls under way, each a command that waits: more are answered at once, and ask again."""


class _Wait(NamedTuple):
    ready: Callable[[], bool]
    then: Callable[[], None]


class Waits:
    """The long polls of one broker.

    Args:
        outbox: the broker's.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waits: dict[str, list[_Wait]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._waits)

    def wait(self, text: str, wait_ms: int, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` when `ready`, asked now and at each `wake` of the topic, or after `wait_ms`."""
        if ready() or wait_ms <= 0 or self._count >= WAITS_MAX:
            then()
            return
        wait = _Wait(ready, then)
        self._waits.setdefault(text, []).append(wait)
        self._count += 1
        due_ms = self._outbox.now_ms + min(wait_ms, WAIT_MS_MAX)
        self._outbox.put(Timer(due_ms, lambda _now: self._answer(text, [wait])))

    def wake(self, text: str) -> None:
        """Something happened in a topic."""
        if text in self._waits:
            self._answer(text, [wait for wait in self._waits[text] if wait.ready()])

    def _answer(self, text: str, waits: Iterable[_Wait]) -> None:
        for wait in waits:
            pending = self._waits.get(text, [])
            if any(wait is one for one in pending):
                self._waits[text] = [one for one in pending if one is not wait]
                self._count -= 1
                wait.then()
        if not self._waits.get(text, True):
            del self._waits[text]

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._count == sum(map(len, self._waits.values())), "long polls are miscounted"
