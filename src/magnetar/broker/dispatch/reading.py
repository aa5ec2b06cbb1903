"""Where a dispatcher's new entries come from: memory if they are recent, else one read from disk at a time.

    at the tail:      peek -> entries of the log's cache, nothing kept here
    catching up:      peek -> nothing there: Read ... ahead -> peek -> take -> (half empty: Read) ...
    after a rewind:   what was read ahead and a read in flight belong to an older generation and are dropped

While one chunk is being consumed the next one is read; both together are bounded by twice `read_bytes_max`.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from magnetar.broker.dispatch.surroundings import Surroundings
from magnetar.broker.effects import Note, Read, Timer
from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry

RETRY_MS: Final = 1_000
"""After a read that failed. A disk that fails does not get better by being asked at once."""


def nobody(*_told: object) -> None:
    """Who is told what nobody wants to know any more."""


class Reading:
    """The read position of one subscription.

    Args:
        surroundings: the subscription's.
        wake: called when entries came that were missing before.

    Attributes:
        after: everything at or below was taken.
        in_flight: a read is under way.
    """

    def __init__(self, surroundings: Surroundings, wake: Callable[[], None]) -> None:
        self._around = surroundings
        self._wake = wake
        self.after = surroundings.cursor.mark_delete
        self._ahead: deque[StoredEntry] = deque()
        self._ahead_bytes = 0
        self.in_flight = False
        self._failed = False
        self._generation = 0

    def rewind(self, after: Position) -> None:
        """The next entry is the one behind `after`, whatever was taken before."""
        self._generation += 1
        self.in_flight = False
        self._failed = False
        self._ahead.clear()
        self._ahead_bytes = 0
        self.after = after

    def stop(self) -> None:
        """Nothing is read any more, and nobody woken: reads that come back find nothing to do."""
        self.rewind(self._around.cursor.mark_delete)
        self._wake = nobody  # else dispatcher and reading refer to each other for ever

    def peek(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """The next entries, at least one if there is one at hand; none when there is none or it has to be read first."""
        around = self._around
        if self.after < around.cursor.mark_delete:
            self._skip_to(around.cursor.mark_delete)
        if self._ahead:
            return list(islice(self._ahead, entries_max))
        if self.in_flight or self._failed or self.after >= around.log.last:
            return []
        start = around.log.next_after(self.after)
        if start is None:
            return []
        entries = around.log.cached(start, entries_max, bytes_max)
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
            log = self._around.log
            whole = count == len(entries)
            log.count_hits(
                count, log.cached_bytes if whole else sum(len(entry.data) for entry in islice(entries, count))
            )
            return
        for _ in range(count):
            self._ahead_bytes -= len(ahead.popleft().data)
        if not self.in_flight and not self._failed and self._ahead_bytes * 2 < self._around.limits.read_bytes_max:
            newest = ahead[-1] if ahead else last
            start = self._around.log.next_after(Position(newest.ledger, newest.entry))
            if start is not None:
                self._ask(start)

    def _skip_to(self, position: Position) -> None:
        self.after = position
        while self._ahead and self._ahead[0].position <= position:
            self._ahead_bytes -= len(self._ahead.popleft().data)

    def _ask(self, start: Position) -> None:
        self.in_flight = True
        generation = self._generation
        limits = self._around.limits

        def answer(entries: list[StoredEntry], error: str) -> None:
            if generation == self._generation:
                self._answered(start, entries, error)

        self._around.outbox.put(Read(self._around.topic, start, limits.read_entries_max, limits.read_bytes_max, answer))

    def _answered(self, start: Position, entries: list[StoredEntry], error: str) -> None:
        self.in_flight = False
        around = self._around
        # An answer may be overtaken: the cursor moved on, or retention deleted what was asked for.
        fresh = [entry for entry in entries if entry.position > self.after]
        if fresh:
            self._ahead.extend(fresh)
            self._ahead_bytes += sum(len(entry.data) for entry in fresh)
        elif error or (not entries and around.log.valid(start)):
            self._failed = True
            problem = error or "the log gave nothing"
            around.outbox.put(Note("error", f"{around}: cannot read from {start} on: {problem}; trying again"))
            generation = self._generation
            around.outbox.put(Timer(around.outbox.now_ms + RETRY_MS, lambda now_ms: self._retry(generation)))
            return
        self._wake()

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
        limit = 2 * self._around.limits.read_bytes_max
        assert len(positions) <= 1 or self._ahead_bytes - len(self._ahead[-1].data) <= limit, "read-ahead is too large"
