"""Reading a dispatcher's new entries: from memory if they are recent, else by one read from disk at a time.

    at the tail:      peek -> entries of the log's cache, nothing kept here
    catching up:      peek -> nothing there: Read ... ahead -> peek -> take -> (half empty: Read) ...
    after a rewind:   what was read ahead and a read in flight belong to an older generation and are dropped
    damaged entry:    everything stops before it, and reading it is repeated until an operator gives it up
                      (`broker.topics.damaged_entries`): then it counts as acknowledged and is skipped. A damaged marker is
                      always skipped

While one chunk is being consumed the next one is read; both together are bounded by twice `read_bytes_max`.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from magnetar.broker.subscriptions.dispatch.context import DispatchContext
from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Read, Timer
from magnetar.storage.entries import EntryFlags, StoredEntry

_MARKER: Final = int(EntryFlags.MARKER)

RETRY_MS: Final = 1_000
"""The pause after a failed read. A failing disk does not recover by faster repetition."""


def do_nothing(*_ignored: object) -> None:
    """Does nothing: replaces callbacks after `close`."""


class LogReader:
    """The read position of one subscription.

    Args:
        context: the subscription's.
        wake: called when entries came that were missing before.

    Attributes:
        after: everything at or below was taken.
        in_flight: a read is under way.
        stopped: the entry that could not be read, and why; None: none.
    """

    def __init__(self, context: DispatchContext, wake: Callable[[], object]) -> None:
        self._context = context
        self._wake = wake
        self.after = context.cursor.mark_delete
        self._ahead: deque[StoredEntry] = deque()
        self._ahead_bytes = 0
        self.in_flight = False
        self.stopped: tuple[Position, str] | None = None
        self._failed = False
        self._passed: set[Position] = set()
        """Entries that cannot be read and are skipped."""
        self._generation = 0

    def rewind(self, after: Position) -> None:
        """The next entry is the one after `after`, whatever was taken before."""
        self._generation += 1
        self.in_flight = False
        self._failed = False
        self.stopped = None
        self._passed.clear()
        self._ahead.clear()
        self._ahead_bytes = 0
        self.after = after

    def stop(self) -> None:
        """Stop reading and waking: reads that return find nothing to do."""
        self.rewind(self._context.cursor.mark_delete)
        self._wake = do_nothing  # else dispatcher and reading refer to each other for ever

    def peek(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """The next entries, at least one if there is one at hand; none when there is none or it has to be read first."""
        context = self._context
        if self.after < context.cursor.mark_delete:
            self._skip_to(context.cursor.mark_delete)
        if self._ahead:
            return list(islice(self._ahead, entries_max))
        if self.in_flight or self._failed or self.after >= context.log.last:
            return []
        start = self._next(self.after)
        if self._passed and start != context.log.next_after(self.after):
            # Entries in between can never be read: they are done.
            self.after = context.log.position_before(start) if start is not None else context.log.last
        if start is None:
            return []
        entries = context.log.cached(start, entries_max, bytes_max)
        if not entries:
            self._ask(start)
        return entries

    def take(self, entries: list[StoredEntry], count: int) -> None:
        """The first `count` of the entries last peeked at are dealt with."""
        if not count:
            return
        last = entries[count - 1]
        self.after = Position(last.ledger, last.entry)
        ahead = self._ahead
        if not ahead:
            log = self._context.log
            whole = count == len(entries)
            log.count_hits(
                count, log.cached_bytes if whole else sum(len(entry.data) for entry in islice(entries, count))
            )
            return
        for _ in range(count):
            self._ahead_bytes -= len(ahead.popleft().data)
        if not self.in_flight and not self._failed and self._ahead_bytes * 2 < self._context.limits.read_bytes_max:
            newest = ahead[-1] if ahead else last
            start = self._next(Position(newest.ledger, newest.entry))
            if start is not None:
                self._ask(start)

    def _next(self, after: Position) -> Position | None:
        """The first entry after a position that may be read."""
        start = self._context.log.next_after(after)
        while start in self._passed:
            start = self._context.log.next_after(start)
        return start

    def _skip_to(self, position: Position) -> None:
        self.after = position
        while self._ahead and self._ahead[0].position <= position:
            self._ahead_bytes -= len(self._ahead.popleft().data)

    def _ask(self, start: Position) -> None:
        self.in_flight = True
        generation = self._generation
        limits = self._context.limits

        def answer(entries: list[StoredEntry], error: str) -> None:
            if generation == self._generation:
                self._answered(start, entries, error)

        self._context.outbox.put(
            Read(self._context.topic, start, limits.read_entries_max, limits.read_bytes_max, answer)
        )

    def _answered(self, start: Position, entries: list[StoredEntry], error: str) -> None:
        self.in_flight = False
        context = self._context
        # An answer may be overtaken: the cursor moved on, or retention deleted what was asked for.
        fresh = [entry for entry in entries if entry.position > self.after]
        if fresh:
            self.stopped = None
            self._ahead.extend(fresh)
            self._ahead_bytes += sum(len(entry.data) for entry in fresh)
        elif error or (not entries and context.log.valid(start)):
            problem = error or "the log gave nothing"
            if self._pass(start, problem):
                self._wake()
                return
            self._failed = True
            self.stopped = start, problem
            way_out = context.command("topics", "give-up", context.topic, str(start))
            context.outbox.put(
                Note(
                    "error",
                    f"{context}: cannot read from {start} on: {problem}; trying again; to give it up: {way_out}",
                )
            )
            generation = self._generation
            context.outbox.put(Timer(context.outbox.now_ms + RETRY_MS, lambda now_ms: self._retry(generation)))
            return
        self._wake()

    def _pass(self, position: Position, problem: str) -> bool:
        """Skip an entry that cannot be read, if it counts as acknowledged or is a marker."""
        context = self._context
        if not context.log.valid(position):
            return False
        if position not in context.cursor.acked:
            if not context.log.flags_at(position) & _MARKER:
                return False
            context.outbox.put(
                Note("error", f"{context}: the marker at {position} cannot be read and is left out: {problem}")
            )
        self.stopped = None
        self._passed.add(position)
        return True

    def _retry(self, generation: int) -> None:
        if generation == self._generation and self._failed:
            self._failed = False
            self._wake()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._ahead_bytes == sum(len(entry.data) for entry in self._ahead), "read-ahead is counted wrongly"
        positions = [entry.position for entry in self._ahead]
        assert positions == sorted(positions), "read-ahead is out of order"
        assert not positions or positions[0] > self.after, "read-ahead holds what was taken"
        limit = 2 * self._context.limits.read_bytes_max
        assert len(positions) <= 1 or self._ahead_bytes - len(self._ahead[-1].data) <= limit, "read-ahead is too large"
