"""Recent entries in memory, bounded in bytes for the whole broker.

Consumers and links at the tail are served from here without touching the disk. The oldest entries of all topics are
removed first: a topic that is read late is read from disk.
"""

from collections import deque

from magnetar.storage.entries import StoredEntry

ENTRY_OVERHEAD_BYTES = 300
"""The memory of one entry in addition to its bytes: the tuple, its numbers, its slots in the tables."""


class EntryCache:
    """Entries by (ledger, entry), oldest out first.

    Args:
        bytes_max: a ceiling on all entries together with their overhead.

    Attributes:
        hits, hit_bytes: entries that readers took from here since the start, and their bytes.
        misses, miss_bytes: entries that they had to read from the disk instead.
        evictions: how often entries were removed to make room. Entries that were added together are removed together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._bytes = 0
        self._entries = 0
        self._ledgers: dict[int, dict[int, StoredEntry] | StoredEntry] = {}
        """Entries by ledger. An idle topic has one entry here, and a dictionary for it would take another 230 bytes."""
        # Ledger, first entry, how many, bytes: numbers alone, which Python's collector need not look at.
        self._order: deque[tuple[int, int, int, int]] = deque()
        # Readers count these, once per read, so there is no work per entry.
        self.hits = self.hit_bytes = self.misses = self.miss_bytes = 0
        self.evictions = 0

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self._bytes

    @property
    def entries(self) -> int:
        """The number of entries held. Entries of a ledger that was dropped count, with their bytes, until they are the
        oldest.
        """
        return self._entries

    def add(self, ledger: int, entries: list[StoredEntry], size: int) -> None:
        """Keep consecutive entries of one ledger that were just confirmed; `size` is the sum of their bytes."""
        size += ENTRY_OVERHEAD_BYTES * len(entries)
        kept = self._ledgers.get(ledger)
        if kept is None and len(entries) == 1:
            self._ledgers[ledger] = entries[0]
        else:
            if kept is None:
                kept = self._ledgers[ledger] = {}
            elif isinstance(kept, StoredEntry):
                kept = self._ledgers[ledger] = {kept.entry: kept}
            for entry in entries:
                kept[entry.entry] = entry
        self._order.append((ledger, entries[0].entry, len(entries), size))
        self._bytes += size
        self._entries += len(entries)
        while self._bytes > self._max and self._order:
            old_ledger, first, count, old_size = self._order.popleft()
            self._bytes -= old_size
            self._entries -= count
            self.evictions += 1
            held = self._ledgers.get(old_ledger)
            if isinstance(held, StoredEntry):
                if first == held.entry:
                    del self._ledgers[old_ledger]
            elif held is not None:
                for number in range(first, first + count):
                    held.pop(number, None)
                if not held:
                    del self._ledgers[old_ledger]

    def at(self, ledger: int, entry: int) -> StoredEntry | None:
        """One entry, or None if it is not here."""
        kept = self._ledgers.get(ledger)
        if isinstance(kept, StoredEntry):
            return kept if kept.entry == entry else None
        return None if kept is None else kept.get(entry)

    def run(self, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Consecutive entries from one on, as far as they are here; at least one may exceed `bytes_max`."""
        kept = self._ledgers.get(ledger)
        found: list[StoredEntry] = []
        if kept is None:
            return found
        if isinstance(kept, StoredEntry):
            return [kept] if kept.entry == entry and entries_max > 0 else found
        size = 0
        while len(found) < entries_max:
            stored = kept.get(entry)
            if stored is None:
                break
            size += len(stored.data)
            if found and size > bytes_max:
                break
            found.append(stored)
            entry += 1
        return found

    def drop(self, ledger: int) -> None:
        """Forget a ledger."""
        self._ledgers.pop(ledger, None)
