"""Reading entries again that were read before: for redelivery, after waiting for their consumer, or when they are due.

    get -> held in memory, or in the log's cache:  returned
        -> neither:  Read of those that are needed next, anywhere in the log ... held -> wake -> get
                     (a few such reads at a time; no two read the same entry)
    a read fails -> its first entry is damaged: left out of further reads ... a second later: tried alone, the others continue

A delayed message may be anywhere in the log. One read for each of a million would wait a million times for the disk and
for two switches between threads. A read of several hundred, in the order of the log, gets neighbouring entries by one
access and switches once.
"""

from collections.abc import Callable, Iterable

from magnetar.broker.subscriptions.dispatch.context import DispatchContext
from magnetar.broker.subscriptions.dispatch.log_reader import RETRY_MS
from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Read, Timer
from magnetar.storage.entries import StoredEntry


class Refetch:
    """Entries by position.

    Args:
        context: the subscription's.
        wanted: whether the entry at a position is still needed.
        lost: called with a position that was needed and exists no more.
        wake: called when an entry that was missing before can be had.

    Attributes:
        failed: a read failed a moment ago; nothing is read until the next attempt.
        damaged: entries that could not be read, oldest failure first; as long as none of them can be, they are left out.
    """

    def __init__(
        self,
        context: DispatchContext,
        wanted: Callable[[Position], bool],
        lost: Callable[[Position], None],
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._lost = lost
        self._wake = wake
        self._held: dict[Position, StoredEntry] = {}
        self._held_bytes = 0
        self._asked: set[Position] = set()
        self._in_flight = 0
        self.failed = False
        self.damaged: dict[Position, None] = {}
        self._retrying = False
        self._generation = 0

    @property
    def reads(self) -> int:
        """Reads under way."""
        return self._in_flight

    def keep(self, entry: StoredEntry) -> None:
        """Keep an entry that is at hand, if there is room."""
        if self._held_bytes + len(entry.data) <= self._context.limits.look_ahead_bytes_max:
            self._hold(entry)

    def get(self, position: Position, upcoming: Iterable[Position]) -> StoredEntry | None:
        """The entry at a position, or None: then those that come next are being read, and `wake` follows.

        Args:
            position: of a wanted entry.
            upcoming: all wanted entries that could be sent now, this one among them, ascending; looked at only to read.
        """
        held = self._held.get(position)
        if held is not None:
            return held
        cached = self._context.log.cached_at(position)
        if cached is not None:
            return cached
        if not self.failed and position not in self._asked and self._in_flight < self._context.limits.again_reads_max:
            self._ask(upcoming)
        return None

    def drop(self, position: Position) -> None:
        """No longer needed."""
        self.damaged.pop(position, None)
        entry = self._held.pop(position, None)
        if entry is not None:
            self._held_bytes -= len(entry.data)

    def clear(self) -> None:
        """Forget everything, also what is being read."""
        self._held.clear()
        self._held_bytes = 0
        self._asked.clear()
        self._in_flight = 0
        self.failed = False
        self.damaged.clear()
        self._retrying = False
        self._generation += 1

    def _hold(self, entry: StoredEntry) -> None:
        position = entry.position
        if position not in self._held:
            self._held[position] = entry
            self._held_bytes += len(entry.data)

    # ------------------------------------------------------------------------------------------------------- reading

    def _ask(self, upcoming: Iterable[Position]) -> None:
        """Read the next entries that are not at hand, by as many reads as may be under way."""
        limits, log = self._context.limits, self._context.log
        group: list[Position] = []
        size = 0
        for each in upcoming:
            if each in self._held or each in self._asked or each in self.damaged or log.cached_at(each) is not None:
                continue
            more = log.size_at(each) if log.valid(each) else 0
            if group and (len(group) >= limits.again_entries_max or size + more > limits.read_bytes_max):
                self._read(group)
                if self._in_flight >= limits.again_reads_max:
                    return
                group, size = [], 0
            group.append(each)
            size += more
        if group:
            self._read(group)

    def _read(self, group: list[Position]) -> None:
        self._in_flight += 1
        self._asked.update(group)
        generation = self._generation
        context = self._context

        def answer(entries: list[StoredEntry], error: str) -> None:
            if generation == self._generation:
                self._in_flight -= 1
                self._asked.difference_update(group)
                self._answered(group, entries, error)

        context.outbox.put(Read(context.topic, group[0], len(group), context.limits.read_bytes_max, answer, only=group))

    def _answered(self, group: list[Position], entries: list[StoredEntry], error: str) -> None:
        if entries and entries[0].position in self.damaged:
            self.damaged.clear()  # the disk works again; entries that are still damaged will show it
        self._take_in([entry for entry in entries if self._wanted(entry.position)])
        for position in group:
            if not self._context.log.valid(position) and self._wanted(position):
                self.damaged.pop(position, None)
                self._lost(position)  # retention deleted it
        first = group[0]
        if not entries and self._wanted(first):
            self._fail(first, error or "the log gave nothing")
        if self.damaged and not self._retrying:
            self._retrying = True
            generation = self._generation
            outbox = self._context.outbox
            outbox.put(Timer(outbox.now_ms + RETRY_MS, lambda now_ms: self._retry(generation)))
        self._wake()

    def _take_in(self, entries: list[StoredEntry]) -> None:
        """Hold what was read.

        It is needed now; entries that are held longer wait for a slow consumer and are dropped to make room. The first
        one is held at any size: without it nothing would ever continue.
        """
        limit = self._context.limits.look_ahead_bytes_max
        size = 0
        for entry in entries:
            size += len(entry.data)
            if size > limit and entry is not entries[0]:
                return
            self.drop(entry.position)  # it is the youngest now
            while self._held and self._held_bytes + len(entry.data) > limit:
                self.drop(next(iter(self._held)))
            self._hold(entry)

    def _fail(self, position: Position, problem: str) -> None:
        """A disk that fails does not get better by being asked at once. An entry that failed before says nothing of it."""
        self.failed = self.failed or position not in self.damaged
        self.damaged.pop(position, None)
        self.damaged[position] = None
        context = self._context
        way_out = context.command("topics", "give-up", context.topic, str(position))
        context.outbox.put(
            Note("error", f"{context}: cannot read {position} again: {problem}; trying again; to give it up: {way_out}")
        )

    def _retry(self, generation: int) -> None:
        """Continue with the others, and try one of the damaged ones."""
        if generation != self._generation:
            return
        self.failed = self._retrying = False
        first = next(iter(self.damaged), None)
        if first is not None and first not in self._asked:
            self._read([first])
        self._wake()

    # ------------------------------------------------------------------------------------------------------ watching

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._held_bytes == sum(len(entry.data) for entry in self._held.values()), "held bytes are miscounted"
        limits = self._context.limits
        assert self._held_bytes <= limits.look_ahead_bytes_max or len(self._held) == 1, "more is held than allowed"
        for position in self._held:
            assert self._wanted(position), f"{position} is held and not wanted"
        assert all(map(self._wanted, self.damaged)), "damaged entries are kept that nobody wants"
        assert 0 <= self._in_flight <= limits.again_reads_max + 1, "too many reads are under way"
        assert bool(self._asked) == bool(self._in_flight), "a read for nothing, or entries that nobody reads"
        assert len(self._asked) <= self._in_flight * limits.again_entries_max, "reads are too large"
