"""Replay at the start: the markers of a topic after its checkpoint are read again in order
(docs/design/acknowledged-sets.md#recovery).

Only markers are read: the index has one byte of flags per entry, and the scan of it makes no object for a message.
Entries that are appended meanwhile are reached by the same scan; it ends when there is no later marker.
"""

from collections.abc import Callable
from typing import Final

from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Outbox, Read, Timer
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.topiclog import TopicLog

ENTRIES_MAX: Final = 1_000
"""Entries in one read, as everywhere: beyond it another event comes in between."""

BYTES_MAX: Final = 1 << 20
"""The bytes of one read; memory per topic that recovers."""

BRIDGE: Final = 32
"""Messages between two markers that are read all the same: a read more would cost more than reading them."""

RETRY_MS: Final = 1_000
"""When a read that failed is tried again."""

PATIENCE_MS: Final = 30_000
"""The time for which markers that cannot be read are tried again, from the first failure of a replay on. After a takeover
bookies may be away or slow. A damaged record stays unreadable, and its topic begins without it."""

_MARKER: Final = int(EntryFlags.MARKER)
_MARKERS: Final = bytes(int(bool(flags & _MARKER)) for flags in range(256))


class Replay:
    """One topic's replay.

    Args:
        outbox: the broker's.
        log: of the topic.
        after: everything at or below is covered by what is stored.
        give: gets markers, in order, some at a time.
        done: called once when there is none left.

    Attributes:
        after: how far it is.
        lost: markers that could not be read.
    """

    def __init__(
        self,
        outbox: Outbox,
        log: TopicLog,
        after: Position,
        give: Callable[[list[StoredEntry]], None],
        done: Callable[[], None],
    ) -> None:
        self.after = after
        self.lost = 0
        self._outbox, self._log, self._give, self._done = outbox, log, give, done
        self._until_ms = 0

    def start(self) -> None:
        """Begin; `done` is called at once if there is nothing."""
        self._step()

    def _step(self) -> None:
        chunk = self._next()
        if chunk is None:
            self._done()
            return
        first, count = chunk
        self._outbox.put(
            Read(
                self._log.name, first, count, BYTES_MAX, lambda entries, error: self._got(first, count, entries, error)
            )
        )

    def _next(self) -> tuple[Position, int] | None:
        """The next run worth reading: from a marker to the last one before a long stretch without."""
        for ledger in self._log.ledger_infos():
            if ledger.ledger < self.after.ledger or not ledger.markers:
                continue
            begin = self.after.entry + 1 if ledger.ledger == self.after.ledger else 0
            segment = ledger.flags[max(begin, 0) :].translate(_MARKERS)
            found = segment.find(1)
            if found < 0:
                continue
            stretch = segment.find(bytes(BRIDGE), found, found + ENTRIES_MAX)
            end = stretch if stretch >= 0 else min(len(segment), found + ENTRIES_MAX)
            return Position(ledger.ledger, max(begin, 0) + found), end - found
        return None

    def _got(self, first: Position, count: int, entries: list[StoredEntry], error: str) -> None:
        last = Position(first.ledger, first.entry + count - 1)
        read = [entry for entry in entries if first <= entry.position <= last]
        if read:
            self.after = read[-1].position
            markers = [entry for entry in read if entry.flags & _MARKER]
            if markers:
                self._give(markers)
        elif error and self._log.valid(first) and self._waits(first, error):
            return
        else:
            # A missing marker leads to duplicate messages; a topic that never starts is worse.
            self.after = first
            if self._log.valid(first):
                self.lost += 1
                text = f"{self._log.name}: the marker at {first} cannot be read and is left out: {error or 'nothing is there'}"
                self._outbox.put(Note("error", text))
        self._step()

    def _waits(self, first: Position, error: str) -> bool:
        """Whether a read that failed is tried again."""
        now_ms = self._outbox.now_ms
        if not self._until_ms:
            self._until_ms = now_ms + PATIENCE_MS
            text = f"the marker at {first} cannot be read yet: {error}; trying again for {PATIENCE_MS // 1000} s"
            self._outbox.put(Note("warning", f"{self._log.name}: {text}"))
        if now_ms >= self._until_ms:
            return False
        self._outbox.put(Timer(now_ms + RETRY_MS, lambda _now_ms: self._step()))
        return True
