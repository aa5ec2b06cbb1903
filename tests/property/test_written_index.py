"""The index of a segment that was made while it was written is the one that a scan makes of its bytes."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import Position
from magnetar.storage.entries import EntryFlags, Location, NewEntry
from magnetar.storage.records import SEGMENT_MAGIC, pack_check, pack_seal, pack_start
from magnetar.storage.segments import written_index
from magnetar.storage.segments.index import encode_index
from magnetar.storage.segments.scanning import Scanner
from magnetar.storage.segments.written_index import WrittenIndex
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog

NUMBER = 3
HIGH = 99

entries = st.lists(
    st.tuples(
        st.sampled_from(["", "", "", "west", "east"]),
        st.sampled_from([0, 0, 0, 0, int(EntryFlags.BATCH), int(EntryFlags.MARKER)]),
        st.integers(1, 5),  # messages
        st.integers(0, 60),  # publish time
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=8,
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "lost", "copied", "check"]), st.sampled_from(["t", "u"]), entries
    ),
    max_size=20,
)


@given(steps)
def test_it_is_the_index_of_a_scan(drawn: list[tuple[str, str, list[tuple[str, int, int, int, bytes]]]]) -> None:
    ids = LedgerIds(HIGH)
    logs = {name: TopicLog(name, 7, ids, EntryCache(1 << 20), ledger_entries_max=6) for name in "tu"}
    data = bytearray(SEGMENT_MAGIC + pack_start(NUMBER, b"saltsalt", HIGH) + pack_seal(1, 500))
    written = WrittenIndex(NUMBER, HIGH)
    following = {"west": 0, "east": 10}
    for turn, (step, name, batch) in enumerate(drawn):
        if step == "check":
            data += pack_check(b"saltsalt", len(data))
            continue
        new = []
        for origin, flags, messages, time, content in batch:
            marker = bool(flags & EntryFlags.MARKER)
            count = 0 if marker else messages
            if not origin:
                new.append(NewEntry(content, flags, count, time))
                continue
            source = Position(1, following[origin])
            index = -1 if marker else following[origin]
            following[origin] += messages
            new.append(NewEntry(content, flags, count, time, origin, 3, index, source))
        append = logs[name].stage(new, turn)
        logs[name].confirm(append, Location(NUMBER, len(data)))
        if step == "append":
            written.append(append, len(data))
            data += b"".join(append.records)
        elif step == "copied":  # it was in another segment, as "lost" still is: its entries are missing in between
            stored = b"".join(append.records)
            for size in append.sizes:
                record, stored = stored[:size], stored[size:]
                written.copy(record, len(data))
                data += record
    scanner = Scanner(NUMBER, lambda offset, size: bytes(data[offset : offset + size]), len(data))
    assert encode_index(written.ended(len(data))) == encode_index(scanner.run())
    assert not scanner.index.problems
    assert not written.overfull


def test_what_is_kept_in_memory_has_a_limit() -> None:
    log = TopicLog("t", 7, LedgerIds(HIGH), EntryCache(1 << 20))
    many = WrittenIndex(NUMBER, HIGH)
    batch = [NewEntry(b"", 0, 1, 0)] * 1_000
    for _ in range(written_index.ENTRIES_MAX // len(batch)):
        many.append(log.stage(batch, 0), 0)
    assert not many.overfull
    many.append(log.stage(batch[:1], 0), 0)
    assert many.overfull

    pieces = WrittenIndex(NUMBER, HIGH)
    for number in range(written_index.PIECES_MAX // 2):
        pieces.append(TopicLog(f"t{number}", 7, LedgerIds(number), EntryCache(0)).stage(batch[:1], 0), 0)
    assert not pieces.overfull
    pieces.append(TopicLog("last", 7, LedgerIds(HIGH << 20), EntryCache(0)).stage(batch[:1], 0), 0)
    assert pieces.overfull
