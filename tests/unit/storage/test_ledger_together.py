"""Entries that are added together are the same as entries added one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE
from magnetar.storage import topiclog
from magnetar.storage.entries import Append, Location, NewEntry
from magnetar.storage.ledger import Ledger
from magnetar.storage.ledger_columns import Columns
from magnetar.storage.ledgerids import LedgerIds
from magnetar.storage.topiclog import EntryCache, TopicLog

ENTRIES = st.lists(
    st.tuples(st.binary(max_size=9), st.sampled_from([0, 8, 32]), st.integers(1, 5), st.integers(-(2**63), 2**63 - 1)),
    min_size=4,
    max_size=9,
)
KINDS = st.sampled_from(["local", "local", "local", "link", "marker"])


def log() -> TopicLog:
    return TopicLog("t", 7, LedgerIds(7), EntryCache(1 << 20), ledger_entries_max=12)


def fields(ledger: Ledger) -> dict[str, object]:
    return {name: getattr(ledger.columns, name) for name in Columns.__slots__} | {
        name: getattr(ledger, name) for name in Ledger.__slots__ if name != "_columns"
    }


@given(st.lists(st.tuples(KINDS, ENTRIES, st.integers(0, 3)), max_size=6))
def test_together_or_one_by_one(appends: list[tuple[str, list[tuple[bytes, int, int, int]], int]]) -> None:
    together, each = log(), log()
    offset = 12
    for kind, items, wait in appends:
        entries = [NewEntry(data, flags, count, time) for data, flags, count, time in items]
        if kind == "link":
            entries[0] = entries[0]._replace(origin="b", incarnation=3, first_index=5, source=NONE)
        elif kind == "marker":
            entries[0] = entries[0]._replace(flags=4, count=0)
        append = together.stage(entries, 1_000 + wait)
        same = each.stage(entries, 1_000 + wait)
        assert append.records == same.records
        together.confirm(append, Location(1, offset))
        one_by_one(each, same, Location(1, offset))
        offset += sum(append.sizes)
        assert [fields(one) for one in together.ledger_infos()] == [fields(one) for one in each.ledger_infos()]
        names = ("next_index", "bytes_retained", "last", "_watermarks")
        assert [getattr(together, name) for name in names] == [getattr(each, name) for name in names]
        together.validate()


def one_by_one(topic_log: TopicLog, append: Append, location: Location) -> None:
    """Confirm an append in the way of short ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topiclog, "TOGETHER_MIN", 1 << 30)
        topic_log.confirm(append, location)
