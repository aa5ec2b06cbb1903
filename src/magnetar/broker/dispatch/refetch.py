"""Single entries that were read before and are needed again: to be redelivered, or kept waiting for their consumer.

In memory up to a limit, else from the log's cache, else by one read at a time.
"""

from collections.abc import Callable

from magnetar.broker.dispatch.reading import RETRY_MS
from magnetar.broker.dispatch.surroundings import Surroundings
from magnetar.broker.effects import Note, Read, Timer
from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry


class Refetch:
    """Entries by position.

    Args:
        surroundings: the subscription's.
        wanted: whether the entry at a position is still needed.
        lost: called with a position that was needed and exists no more.
        wake: called when an entry that was missing before can be had.

    Attributes:
        failed: the last read failed; it is tried again later.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        wanted: Callable[[Position], bool],
        lost: Callable[[Position], None],
        wake: Callable[[], None],
    ) -> None:
        self._around = surroundings
        self._wanted = wanted
        self._lost = lost
        self._wake = wake
        self._held: dict[Position, StoredEntry] = {}
        self._held_bytes = 0
        self._in_flight = False
        self.failed = False
        self._generation = 0

    def keep(self, entry: StoredEntry) -> None:
        """Keep an entry that is at hand, if there is room."""
        if self._held_bytes + len(entry.data) <= self._around.limits.look_ahead_bytes_max:
            self._hold(entry)

    def get(self, position: Position, run: int = 1) -> StoredEntry | None:
        """The entry at a position, or None: then it is being read, and `wake` follows.

        Args:
            position: of a wanted entry.
            run: how many entries from there on are likely to be wanted next.
        """
        held = self._held.get(position)
        if held is not None:
            return held
        bytes_max = self._around.limits.read_bytes_max
        cached = self._around.log.cached(position, run, bytes_max)
        if cached and cached[0].position == position:
            for entry in cached[1:]:
                if self._wanted(entry.position):
                    self.keep(entry)
            return cached[0]
        if not self._in_flight and not self.failed:
            self._ask(position, run)
        return None

    def drop(self, position: Position) -> None:
        """No longer needed."""
        entry = self._held.pop(position, None)
        if entry is not None:
            self._held_bytes -= len(entry.data)

    def clear(self) -> None:
        """Forget everything, also what is being read."""
        self._held.clear()
        self._held_bytes = 0
        self._in_flight = False
        self.failed = False
        self._generation += 1

    def _hold(self, entry: StoredEntry) -> None:
        position = entry.position
        if position not in self._held:
            self._held[position] = entry
            self._held_bytes += len(entry.data)

    def _evict(self, size: int) -> None:
        while self._held and self._held_bytes + size > self._around.limits.look_ahead_bytes_max:
            self.drop(next(iter(self._held)))

    def _ask(self, position: Position, run: int) -> None:
        self._in_flight = True
        generation = self._generation
        around = self._around

        def answer(entries: list[StoredEntry], error: str) -> None:
            if generation == self._generation:
                self._in_flight = False
                self._answered(position, entries, error)

        around.outbox.put(Read(around.topic, position, run, around.limits.read_bytes_max, answer))

    def _answered(self, position: Position, entries: list[StoredEntry], error: str) -> None:
        around = self._around
        for entry in entries:
            if not self._wanted(entry.position):
                continue
            if entry.position == position:
                # What was asked for must find room: without it nothing would ever go on.
                self._evict(len(entry.data))
                self._hold(entry)
            else:
                self.keep(entry)
        if position not in self._held and self._wanted(position):
            if around.log.valid(position):
                self.failed = True
                problem = error or "the log gave nothing"
                around.outbox.put(Note("error", f"{around}: cannot read {position} again: {problem}; trying again"))
                generation = self._generation
                around.outbox.put(Timer(around.outbox.now_ms + RETRY_MS, lambda now_ms: self._retry(generation)))
                return
            self._lost(position)
        self._wake()

    def _retry(self, generation: int) -> None:
        if generation == self._generation and self.failed:
            self.failed = False
            self._wake()

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._held_bytes == sum(len(entry.data) for entry in self._held.values()), "held bytes are miscounted"
        limit = self._around.limits.look_ahead_bytes_max
        assert self._held_bytes <= limit or len(self._held) == 1, "more bytes are held than allowed"
        for position in self._held:
            assert self._wanted(position), f"{position} is held and not wanted"
