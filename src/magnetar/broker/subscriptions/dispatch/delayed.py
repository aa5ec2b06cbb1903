"""Entries that wait for their `deliver_at_time`, on Shared and Key_Shared subscriptions: a million of them in some 22 MB.

    hold_back -> a small heap -- full --> sorted, packed: a run of arrays, consumed from its front
                       ^                                  |
                       +---- the short rest of a run -----+

A priority queue in the manner of sorted runs (as LSM trees and Pulsar's PIP-195 keep them): the next entry is the first
of the heap or of one of the runs, which are in a second small heap. No step moves more than one run's entries, so that
none blocks the event loop, for any number of entries.

Entries are never early: an entry is returned by the first check at or after its time. This state is forgotten with the
last consumer and built again by reading; the same holds after a restart.
"""

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import Position
from magnetar.effects.outbox import Outbox, Timer
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.metadata import parse_metadata

DELAYED = int(EntryFlags.DELAYED)

RUN_ENTRY_BYTES: Final = 22
HEAP_ENTRY_BYTES: Final = 200
"""Memory per entry, estimated: an entry in a run, and one in the heap, a tuple of Python's integers."""

RUN_ENTRIES: Final = 1_024
"""The size of one run, and of the heap in front of them. Packing this many takes 0.6 ms; a million entries are 1,000
runs.
"""

AHEAD_MS: Final = 10_000
"""No timer is set for later than that: timers cannot be taken back, so that far ones would pile up when earlier and earlier
entries come, or consumers come and go. A subscription that waits for next year looks at its clock every ten seconds."""

EVER_MS: Final = 1 << 63
"""Later than every time."""

_Item = tuple[int, int, int, int]
"""Due time, ledger, entry, tag."""


class Run:
    """Entries sorted by due time, 22 bytes each."""

    __slots__ = ("_at", "_due", "_entries", "_ledgers", "_tags")

    def __init__(self, items: list[_Item]) -> None:
        self._due = array("q", [item[0] for item in items])
        self._ledgers = array("q", [item[1] for item in items])
        self._entries = array("I", [item[2] for item in items])
        self._tags = array("H", [item[3] for item in items])
        self._at = 0

    def __len__(self) -> int:
        return len(self._due) - self._at

    def first_due(self) -> int:
        """The time of the first entry."""
        return self._due[self._at]

    def pop(self) -> _Item:
        """Take the first one."""
        at = self._at
        item = self._due[at], self._ledgers[at], self._entries[at], self._tags[at]
        self._at = at = at + 1
        if at * 2 > len(self._due) and at >= 64:
            for each in (self._due, self._ledgers, self._entries, self._tags):
                del each[:at]
            self._at = 0
        return item


class Delayed:
    """Entries by due time.

    Args:
        outbox: the broker's.
        due: called when the first time has come.
        run_entries: see RUN_ENTRIES.
    """

    def __init__(self, outbox: Outbox, due: Callable[[], object], run_entries: int = RUN_ENTRIES) -> None:
        self._outbox = outbox
        self._due = due
        self._run_entries = run_entries
        self._fresh: list[_Item] = []
        self._runs: list[tuple[int, int, Run]] = []
        self._numbers = 0
        self._count = 0
        self._armed_ms: int | None = None
        self._was_ahead = False
        self._generation = 0

    def __len__(self) -> int:
        return self._count

    def hold_back(self, entry: StoredEntry, tag: Callable[[StoredEntry], int] | None = None) -> bool:
        """Whether an entry with a time has to wait; if so it is remembered, with a tag of 16 bits for its later use."""
        try:
            at_ms = parse_metadata(entry.data).deliver_at_time
        except ProtocolError:
            # Its client can recognise it; holding it for ever would be worse than delivering it.
            return False
        if at_ms <= self._outbox.day_ms:
            return False
        self._add((at_ms, entry.ledger, entry.entry, tag(entry) if tag is not None else 0))
        self._count += 1
        self._arm()
        return True

    @property
    def bytes(self) -> int:
        """Memory that it takes, about."""
        fresh = len(self._fresh)
        return fresh * HEAP_ENTRY_BYTES + (self._count - fresh) * RUN_ENTRY_BYTES

    def is_due(self, up_to_ms: int) -> bool:
        """Whether one's time is at or before `up_to_ms`."""
        return self._count > 0 and self._first_due() <= up_to_ms

    def take(self, up_to_ms: int, entries_max: int) -> list[tuple[Position, int]]:
        """The first entries whose time is at or before `up_to_ms`, with their tags; they are no longer remembered."""
        taken: list[tuple[Position, int]] = []
        fresh, runs = self._fresh, self._runs
        while self._count and len(taken) < entries_max:
            from_run = bool(runs) and (not fresh or runs[0][0] < fresh[0][0])
            if (runs[0][0] if from_run else fresh[0][0]) > up_to_ms:
                break
            item = self._pop_run() if from_run else heappop(fresh)
            self._count -= 1
            taken.append((Position(item[1], item[2]), item[3]))
        self._arm()
        return taken

    def clear(self) -> None:
        """Forget all."""
        self._fresh.clear()
        self._runs.clear()
        self._count = 0
        self._generation += 1
        self._armed_ms = None

    # ------------------------------------------------------------------------------------------------------ internal

    def _first_due(self) -> int:
        if not self._runs:
            return self._fresh[0][0]
        return min(self._runs[0][0], self._fresh[0][0]) if self._fresh else self._runs[0][0]

    def _add(self, item: _Item) -> None:
        heappush(self._fresh, item)
        self._pack_if_full()

    def _pack_if_full(self) -> None:
        """Make the heap a run when it is large enough."""
        if len(self._fresh) >= self._run_entries:
            self._fresh.sort()
            self._numbers += 1
            heappush(self._runs, (self._fresh[0][0], self._numbers, Run(self._fresh)))
            self._fresh.clear()

    def _pop_run(self) -> _Item:
        """The first entry of the run whose first is due first."""
        _due, number, run = self._runs[0]
        item = run.pop()
        left = len(run)
        # About a sixteenth, but not of all runs alike: those of scattered times shrink together, and would all go in one event.
        if left * 256 > self._run_entries * (8 + number % 16):
            heapreplace(self._runs, (run.first_due(), number, run))
            return item
        # A short rest goes back to the heap: else there could be as many runs as entries.
        heappop(self._runs)
        self._fresh += [run.pop() for _ in range(left)]
        heapify(self._fresh)
        self._pack_if_full()
        return item

    def _arm(self) -> None:
        """Set one timer for the first entry; an earlier timer for a later time finds nothing to do.

        None is set for due entries: the caller that had no room for them checks again when there is room.
        """
        if not self._count:
            return
        wait_ms, now_ms = self._first_due() - self._outbox.day_ms, self._outbox.now_ms
        if wait_ms <= 0:
            return
        at_ms = now_ms + min(wait_ms, AHEAD_MS)
        if self._armed_ms is None or at_ms < self._armed_ms:
            self._armed_ms, self._was_ahead = at_ms, self._outbox.ahead_ms > 0
            generation = self._generation
            self._outbox.put(Timer(at_ms, lambda _now_ms: self._fire(generation, at_ms)))

    def _fire(self, generation: int, at_ms: int) -> None:
        if generation != self._generation or at_ms != self._armed_ms:
            return
        self._armed_ms = None
        if self.is_due(self._outbox.day_ms):
            self._due()
        self._arm()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._count == len(self._fresh) + sum(len(run) for _, _, run in self._runs), "entries are miscounted"
        assert all(due == run.first_due() for due, _, run in self._runs), "a run is in the wrong place"
        assert len(self._fresh) < self._run_entries, "the heap is too large"
        if self._count and self._first_due() > self._outbox.day_ms:
            assert self._armed_ms is not None, "no timer is set"
            # While the time of day was further back, the timer was set for later; by at most AHEAD_MS.
            most = self._first_due() if not self._was_ahead else self._outbox.now_ms + AHEAD_MS
            assert self._armed_ms <= most, "the timer comes too late"
