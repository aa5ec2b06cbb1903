"""Entries that wait for their `deliver_at_time`, on Shared and Key_Shared subscriptions.

Never early: an entry is given back at the first timer at or after its time. What is known here is forgotten with the
last consumer and read again.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from magnetar.broker.effects import Outbox, Timer
from magnetar.core.errors import ProtocolError
from magnetar.core.ids import Position
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.metadata import parse_metadata

DELAYED = int(EntryFlags.DELAYED)


class Delayed:
    """A heap of due times.

    Args:
        outbox: the broker's.
        due: called when the first time has come.
    """

    def __init__(self, outbox: Outbox, due: Callable[[], None]) -> None:
        self._outbox = outbox
        self._due = due
        self._heap: list[tuple[int, Position]] = []
        self._armed_ms: int | None = None
        self._generation = 0

    def __len__(self) -> int:
        return len(self._heap)

    def hold_back(self, entry: StoredEntry) -> bool:
        """Whether an entry with a time has to wait; if so it is remembered."""
        try:
            at_ms = parse_metadata(entry.data).deliver_at_time
        except ProtocolError:
            # Its client can tell; holding it for ever would be worse than delivering it.
            return False
        if at_ms <= self._outbox.now_ms:
            return False
        heappush(self._heap, (at_ms, entry.position))
        self._arm()
        return True

    def take_due(self) -> list[Position]:
        """The entries whose time has come, no longer remembered; a timer is set for the rest."""
        ready = []
        while self._heap and self._heap[0][0] <= self._outbox.now_ms:
            ready.append(heappop(self._heap)[1])
        self._arm()
        return ready

    def take_all(self) -> list[Position]:
        """Every entry, no longer remembered: nobody has to wait any more."""
        taken = [position for _at_ms, position in self._heap]
        self.clear()
        return taken

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        self._generation += 1
        self._armed_ms = None

    def _arm(self) -> None:
        """One timer is under way, for the first time; a later one that was set before finds nothing due."""
        if self._heap and (self._armed_ms is None or self._heap[0][0] < self._armed_ms):
            self._armed_ms = at_ms = self._heap[0][0]
            generation = self._generation
            self._outbox.put(Timer(at_ms, lambda now_ms: self._fire(generation, at_ms)))

    def _fire(self, generation: int, at_ms: int) -> None:
        if generation == self._generation and at_ms == self._armed_ms:
            self._armed_ms = None
            self._due()
            self._arm()

    def validate(self) -> None:
        """Check what must hold after every step."""
        if self._heap:
            assert self._armed_ms is not None, "no timer is set"
            assert self._armed_ms <= self._heap[0][0], "the timer comes too late"
