"""The driver of the simulator and of the tests: it enters a broker's machines, one event at a time, and does what they ask for.

`Host` does what `runtime.driver` does, without threads, sockets and a loop. What it keeps itself, and `HeldLog`, answers when
a test says so. A world that wants chance, delays, or the real log and store, gives collaborators of its own.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count
from typing import Any

from magnetar.core.ids import Position
from magnetar.effects.outbox import Compute, FrameLimit, Hold, Note, Outbox, Read, Store, Timer, Write
from magnetar.storage.entries import Append, StoredEntry


def _nothing(*_: object) -> None: ...


class Host:
    """Handles events in their order, and does after each what it asks for, in that order.

    Args:
        outbox: of the machines.
        carry_out: kind of an effect -> what carries it out: at once, later, or never. Timers, transactions, notes and
            computations need none, and what a connection may do is of no consequence. Any other kind that is not named is a
            mistake.
        data: the metadata store's keys; changed in place.
        before: called before each event; sets the outbox's clock where a test does not.
        after: called when an event is handled, and what it asked for is done or on its way; checks.

    Attributes:
        timers, store, notes: what waits there, if `carry_out` does not name others for it.
    """

    def __init__(
        self,
        outbox: Outbox,
        carry_out: Mapping[type, Callable[[Any], object]],
        data: dict[str, bytes] | None = None,
        *,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        self._outbox, self._before, self._after = outbox, before, after
        self.timers = Timers()
        self.store = HeldStore({} if data is None else data, self.run)
        self.notes: list[Note] = []
        self.carry_out: dict[type, Callable[[Any], object]] = {
            Timer: self.timers.set,
            Store: self.store.hold,
            Note: self.notes.append,
            Compute: lambda effect: self.run(effect.then, effect.work()),
            Hold: _nothing,
            FrameLimit: _nothing,
            **carry_out,
        }
        self._events: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._running = False
        self._stops = 0

    def run(self, event: Callable[..., object], *arguments: Any) -> None:
        """Handle an event; one that arises meanwhile comes behind it."""
        self._events.append((event, arguments))
        if self._running:
            return
        self._running = True
        outbox, carry_out, stops = self._outbox, self.carry_out, self._stops
        try:
            while self._events and stops == self._stops:
                event, arguments = self._events.popleft()
                self._before()
                event(*arguments)
                while outbox.effects:
                    for effect in outbox.drain():
                        carry_out[type(effect)](effect)
                self._after()
        finally:
            self._running = False

    def pump(self) -> None:
        """Do what machines asked for that were called directly."""
        self.run(_nothing)

    def due(self, now_ms: int) -> None:
        """Fire the timers whose time has come; those that they set wait for the next time."""
        for then in self.timers.due(now_ms):
            self.run(then, now_ms)

    def advance(self, until_ms: int) -> None:
        """Let time pass, timer by timer."""
        self.pump()
        while (at_ms := self.timers.next_by(until_ms)) is not None:
            self._outbox.now_ms = max(self._outbox.now_ms, at_ms)
            self.run(self.timers.pop(), self._outbox.now_ms)
        self._outbox.now_ms = until_ms

    def stop(self) -> None:
        """The process is gone in the middle of an event. What that asked for is still done; the events behind it are not handled.

        An event that a world enters later reaches machines that are gone, as a call of an operator may.
        """
        self._stops += 1


class Timers:
    """Timers in the order of their times, and of their setting where those are the same.

    Attributes:
        waiting: (when, which, what) of each, a heap.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, Callable[[int], None]]] = []
        self._numbers = count()

    def set(self, timer: Timer) -> None:
        """Keep it."""
        heapq.heappush(self.waiting, (timer.at_ms, next(self._numbers), timer.then))

    def next_by(self, until_ms: int) -> int | None:
        """When the next one is due, if not later than this."""
        return self.waiting[0][0] if self.waiting and self.waiting[0][0] <= until_ms else None

    def pop(self) -> Callable[[int], None]:
        """Take the next one."""
        return heapq.heappop(self.waiting)[2]

    def due(self, now_ms: int) -> list[Callable[[int], None]]:
        """Take all that are due."""
        return [self.pop() for _ in range(sum(at_ms <= now_ms for at_ms, _, _ in self.waiting))]


class HeldLog:
    """A log that writes when it is told to, in order.

    Args:
        stored: called with each append that is durable, before any of the batch is answered.
        failed: called with each that is not and never will be, likewise.
        answer: called with each of the batch and the error, "" if it is durable; tells who asked.

    Attributes:
        waiting: appends on their way.
    """

    def __init__(
        self,
        stored: Callable[[Append], object],
        failed: Callable[[Append], object],
        answer: Callable[[Append, str], object],
    ) -> None:
        self._stored, self._failed, self._answer = stored, failed, answer
        self.waiting: list[Append] = []

    def hold(self, effect: Write) -> None:
        """Let it wait."""
        self.waiting.append(effect.append)

    def take(self, most: int | None = None) -> list[Append]:
        """Take the oldest: their fate is not told to anybody."""
        taken = self.waiting[:most]
        del self.waiting[: len(taken)]
        return taken

    def sync(self, most: int | None = None) -> bool:
        """The disk has the oldest; whether there was one."""
        return self._report(self.take(most), self._stored, "")

    def fail(self, error: str) -> bool:
        """Nothing on its way was stored; whether there was anything."""
        return self._report(self.take(), self._failed, error)

    def _report(self, batch: list[Append], fate: Callable[[Append], object], error: str) -> bool:
        for append in batch:
            fate(append)
        for append in batch:
            self._answer(append, error)
        return bool(batch)


class HeldStore:
    """A metadata store that commits when it is told to, in order.

    Args:
        data: what is durable; changed in place.
        run: makes an event of an answer.

    Attributes:
        waiting: transactions on their way.
    """

    def __init__(self, data: dict[str, bytes], run: Callable[..., None]) -> None:
        self.data, self._run = data, run
        self.waiting: deque[Store] = deque()

    def hold(self, effect: Store) -> None:
        """Let it wait."""
        self.waiting.append(effect)

    def commit(self, which: Store | None = None) -> Store:
        """The oldest (or this one) is durable, and nobody is told: as if power were cut now."""
        effect = self._take(which)
        for key in effect.deletes:
            self.data.pop(key, None)
        self.data.update(effect.puts)
        return effect

    def answer(self, error: str = "", which: Store | None = None) -> bool:
        """The oldest (or this one) is durable, or failed; whether there was one."""
        if not self.waiting:
            return False
        effect = self._take(which) if error else self.commit(which)
        if effect.then is not None:
            self._run(effect.then, error)
        return True

    def _take(self, which: Store | None) -> Store:
        if which is None:
            return self.waiting.popleft()
        self.waiting.remove(which)
        return which


def find(
    read: Read, entries: Iterable[StoredEntry], damaged: Collection[Position] = ()
) -> tuple[list[StoredEntry], str]:
    """What a read finds among entries in order: it ends in front of a damaged one, and fails if that is the first."""
    found: list[StoredEntry] = []
    size = 0
    for entry in entries:
        if entry.position < read.start or (read.only and entry.position not in read.only):
            continue
        if entry.position in damaged:
            return found, "" if found else f"{entry.position} is damaged"
        size += len(entry.data)
        if len(found) >= read.entries_max or (found and size > read.bytes_max):
            break
        found.append(entry)
    return found, ""
