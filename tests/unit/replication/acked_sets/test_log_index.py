"""A topic's log as sets and back, against a dumb twin that looks at every message."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.acked_sets.log_index import LogIndex
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags, Location, NewEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, Retention, TopicLog
from tests.unit.replication.acked_sets.strategies import ids, index_set

MARKER = int(EntryFlags.MARKER)

entries = st.lists(
    st.tuples(st.sampled_from(("", "", "b", "c", "marker")), st.sampled_from((1, 1, 2, 5)), st.integers(0, 2)),
    max_size=24,
)


class Twin:
    """A log, and where each of its messages is."""

    def __init__(self, shape, ledger_entries):
        self.log = TopicLog("t", 7, LedgerIds(7), EntryCache(0), ledger_entries_max=ledger_entries)
        self.where = {}
        self.entries = []
        nexts = {"b": 0, "c": 0}
        for origin, count, hole in shape:
            if origin == "marker":
                entry = NewEntry(b"", MARKER, 0, 1)
            elif origin:
                entry = NewEntry(b"", 0, count, 1, origin, 3, nexts[origin] + hole, Position(1, len(self.entries)))
                nexts[origin] += hole + count
            else:
                entry = NewEntry(b"", 0, count, 1)
            append = self.log.stage([entry], 1)
            self.log.confirm(append, Location(0, 0))
            stored = append.entries[0]
            self.entries.append(stored.position)
            for number in range(stored.count):
                key = (origin or "a", 3 if origin else 7, stored.first_index + number)
                self.where[key] = (stored.position, number)
        self.log_index = LogIndex(self.log, "a")

    def pick(self, number):
        return self.entries[number % len(self.entries)] if self.entries else NONE


twins = st.builds(Twin, entries, st.sampled_from((1, 3, 100)))


@given(twins, st.integers(0, 30), st.integers(0, 30))
def test_held(twin, first, last):
    after, up_to = twin.pick(first), twin.pick(last)
    assert ids(twin.log_index.held(after, up_to)) == {m for m, at in twin.where.items() if after < at[0] <= up_to}
    assert ids(twin.log_index.held()) == set(twin.where)


@given(twins, st.data())
def test_cursor_to_set(twin, data):
    cursor = Cursor.at(twin.log, twin.pick(data.draw(st.integers(0, 30))))
    for _ in range(data.draw(st.integers(0, 5))):
        position = twin.pick(data.draw(st.integers(0, 30)))
        if data.draw(st.booleans()):
            cursor.ack([position])
        elif twin.log.valid(position):
            cursor.ack_indexes(position, data.draw(st.integers(0, 31)))
    acked = set()
    for message, (position, number) in twin.where.items():
        partial = cursor.partial.get(position)
        if cursor.is_acked(position) or (partial is not None and not partial.bits >> number & 1):
            acked.add(message)
    assert ids(twin.log_index.of_cursor(cursor)) == acked


@given(twins, st.data())
def test_acknowledgement_to_set(twin, data):
    after, up_to = twin.pick(data.draw(st.integers(0, 30))), twin.pick(data.draw(st.integers(0, 30)))
    singles = [twin.pick(number) for number in data.draw(st.lists(st.integers(0, 30), max_size=6))]
    partial = {
        twin.pick(number): bits
        for number, bits in data.draw(st.dictionaries(st.integers(0, 30), st.integers(0, 63))).items()
    }
    partial.pop(NONE, None)
    expected = {m for m, at in twin.where.items() if after < at[0] <= up_to or at[0] in singles}
    expected |= {m for m, at in twin.where.items() if partial.get(at[0], 0) >> at[1] & 1}
    acked = Acked(after, up_to, [p for p in singles if p != NONE], partial)
    assert ids(twin.log_index.of_acked(acked)) == expected


@given(twins, st.data())
def test_set_to_log(twin, data):
    chosen = set(data.draw(st.lists(st.sampled_from(sorted(twin.where)), max_size=30))) if twin.where else set()
    away = {("b", 3, 500), ("d", 1, 0), ("a", 6, 0)}
    wanted = index_set(chosen | away)
    located = twin.log_index.locate(wanted)
    located.entries.validate()
    found = {
        m for m, at in twin.where.items() if at[0] in located.entries or located.partial.get(at[0], 0) >> at[1] & 1
    }
    assert found == chosen
    assert ids(twin.log_index.held_of(wanted)) == chosen
    for position in located.entries:
        assert not twin.log.flags_at(position) & MARKER
        assert position not in located.partial
    for position, bits in located.partial.items():
        assert 0 < bits < (1 << twin.log.count_at(position)) - 1


@given(twins)
def test_marks(twin):
    lows, highs = twin.log_index.lowest(), twin.log_index.highest()
    for cluster in ("a", "b", "c"):
        mine = [m[1:] for m in twin.where if m[0] == cluster]
        assert lows.get(cluster) == (min(mine) if mine else None)
        assert highs.get(cluster) == ((max(mine)[0], max(mine)[1] + 1) if mine else None)


def test_lowest_follows_retention():
    twin = Twin([("", 2, 0), ("b", 1, 0), ("", 1, 0), ("b", 1, 0)], 1)
    assert twin.log_index.lowest() == {"a": (7, 0), "b": (3, 0)}
    trim = twin.log.trim(twin.entries[1], 10, Retention(0, 0))
    twin.log.forget(trim)
    assert twin.log_index.lowest() == {"a": (7, 2), "b": (3, 1)}
    assert ids(twin.log_index.held_of(index_set({("a", 7, 0), ("a", 7, 2)}))) == {("a", 7, 2)}


def test_a_restored_log_is_out_of_order():
    twin = Twin([], 100)
    for source, first in ((Position(1, 5), 5), (Position(1, 2), 2)):
        append = twin.log.stage([NewEntry(b"", 0, 2, 1, "b", 3, first, source)], 1)
        twin.log.confirm(append, Location(0, 0))
    assert twin.log_index.lowest() == {"b": (3, 2)}
    assert twin.log_index.highest() == {"b": (3, 7)}
    assert ids(twin.log_index.held_of(index_set({("b", 3, 6), ("b", 3, 2)}))) == {("b", 3, 6), ("b", 3, 2)}


def test_a_long_run_is_one_range():
    log = TopicLog("t", 7, LedgerIds(7), EntryCache(0))
    append = log.stage([NewEntry(b"", 0, 1, 1) for _ in range(20_000)], 1)
    log.confirm(append, Location(0, 0))
    log_index = LogIndex(log, "a")
    assert list(log_index.spans(NONE, log.last)) == [(OriginKey("a", 7), 0, 20_000)]
    wanted = MessageSet()
    wanted.add_range(OriginKey("a", 7), 10, 19_990)
    located = log_index.locate(wanted)
    assert list(located.entries.runs()) == [(Position(7, 10), Position(7, 19_989))]
