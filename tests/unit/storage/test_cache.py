"""Recent entries: what goes first, and that Python's collector walks through none of them."""

import gc

from magnetar.core.ids import NONE
from magnetar.storage.cache import ENTRY_OVERHEAD_BYTES, EntryCache
from magnetar.storage.entries import StoredEntry

SIZE = 100
COST = SIZE + ENTRY_OVERHEAD_BYTES


def stored(ledger: int, number: int) -> StoredEntry:
    """An entry of SIZE bytes."""
    return StoredEntry(ledger, number, 0, 1, 0, 0, "", 0, number, NONE, bytes(SIZE))


def test_the_oldest_go_first_whoevers_they_are() -> None:
    cache = EntryCache(6 * COST)
    for start in range(0, 6, 2):
        cache.add(7, [stored(7, start), stored(7, start + 1)], 2 * SIZE)
    assert [entry.entry for entry in cache.run(7, 0, 10, 1 << 20)] == [0, 1, 2, 3, 4, 5]
    cache.add(8, [stored(8, 0)], SIZE)
    assert cache.run(7, 0, 10, 1 << 20) == []
    assert cache.run(7, 1, 10, 1 << 20) == []
    assert [entry.entry for entry in cache.run(7, 2, 10, 1 << 20)] == [2, 3, 4, 5]
    assert [cache.at(7, number) for number in (1, 2)] == [None, stored(7, 2)]
    assert (cache.bytes, cache.entries) == (5 * COST, 5)
    cache.drop(7)
    assert cache.at(7, 2) is None
    cache.add(8, [stored(8, number) for number in range(1, 6)], 5 * SIZE)
    assert [entry.entry for entry in cache.run(8, 0, 10, 1 << 20)] == [0, 1, 2, 3, 4, 5]


def test_what_is_cached_costs_the_collector_nothing() -> None:
    cache = EntryCache(1 << 20)
    for number in range(1_000):
        cache.add(7, [stored(7, number)], SIZE)
    gc.collect()
    assert not any(gc.is_tracked(entry) for entry in cache.run(7, 0, 1_000, 1 << 20))
    assert not any(gc.is_tracked(item) for item in cache._order)


def test_an_entry_is_compared_and_changed_by_its_fields() -> None:
    assert stored(7, 1) == stored(7, 1)
    assert stored(7, 1) != stored(7, 2)
    assert stored(7, 1)._replace(entry=2, first_index=2) == stored(7, 2)


def test_evictions_are_counted_by_what_was_added_together() -> None:
    cache = EntryCache(4 * COST)
    for start in range(0, 4, 2):
        cache.add(7, [stored(7, start), stored(7, start + 1)], 2 * SIZE)
    assert cache.evictions == 0
    cache.add(7, [stored(7, 4)], SIZE)
    assert cache.evictions == 1


def test_a_ledger_with_one_entry_here() -> None:
    """As idle topics have: the entry is kept without a dictionary."""
    cache = EntryCache(2 * COST)
    cache.add(7, [stored(7, 3)], SIZE)
    assert cache.at(7, 3) == stored(7, 3) and cache.at(7, 2) is None
    assert cache.run(7, 3, 10, 1) == [stored(7, 3)], "one may be larger than asked for"
    assert cache.run(7, 2, 10, 1 << 20) == cache.run(7, 3, 0, 1 << 20) == []
    cache.add(7, [stored(7, 4)], SIZE)
    assert cache.run(7, 3, 10, 1 << 20) == [stored(7, 3), stored(7, 4)]
    cache.add(8, [stored(8, 0)], SIZE)
    assert cache.at(7, 3) is None and cache.at(7, 4) is not None
    cache.add(9, [stored(9, 0), stored(9, 1)], 2 * SIZE)
    assert (cache.at(7, 4), cache.at(8, 0)) == (None, None)
    assert cache.at(9, 1) is not None
    cache.add(6, [stored(6, 0)], SIZE)
    cache.drop(6)
    assert cache.at(6, 0) is None
    cache.add(5, [stored(5, number) for number in range(2)], 2 * SIZE)
    assert [entry.entry for entry in cache.run(5, 0, 9, 1 << 20)] == [0, 1]
