"""The index of a topic against a dumb twin that keeps everything in lists; also after recovery from the log's bytes."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.core.ids import LATEST, NONE, Identity, Position
from magnetar.storage.entries import EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.records import SEGMENT_MAGIC
from magnetar.storage.recovery import Assembly, Recovered
from magnetar.storage.segments.index import SegmentIndex, decode_index, encode_index
from magnetar.storage.segments.scanning import Scanner
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog

ORIGINS = ["", "", "west", "east"]
FOLDER = Path("/unused")

staged = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(ORIGINS),
            st.sampled_from([0, 0, 0, int(EntryFlags.MARKER), int(EntryFlags.BATCH)]),
            st.integers(1, 5),
            st.integers(0, 60),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=5,
    ),
    max_size=20,
)


class Twin:
    """What is stored, in lists."""

    def __init__(self) -> None:
        self.entries: list[StoredEntry] = []

    def message(self, entry: StoredEntry) -> bool:
        return not entry.flags & EntryFlags.MARKER

    def seek(self, time: int) -> Position:
        return next(
            (entry.position for entry in self.entries if self.message(entry) and entry.publish_time >= time), LATEST
        )

    def named(self) -> dict[Identity, Position]:
        return {
            Identity(entry.origin, entry.incarnation if entry.origin else 7, entry.first_index + at): entry.position
            for entry in self.entries
            if self.message(entry)
            for at in range(entry.count)
        }


def build(batches: list[list[tuple[str, int, int, int, int]]], segments: int) -> tuple[TopicLog, Twin, list[bytes]]:
    """A topic with these entries, in segments that take turns."""
    log = TopicLog("t", 7, LedgerIds(50), EntryCache(1 << 20), ledger_entries_max=4)
    twin = Twin()
    data = [bytearray(SEGMENT_MAGIC) for _ in range(segments)]
    following = {"west": 0, "east": 10}
    for turn, batch in enumerate(batches):
        entries = []
        for origin, flags, count, time, gap in batch:
            marker = bool(flags & EntryFlags.MARKER)
            if not origin:
                entries.append(NewEntry(b"d", flags, 0 if marker else count, time))
                continue
            index = -1 if marker else following[origin] + gap
            if not marker:
                following[origin] = index + count
            source = Position(1, following[origin] + gap)
            entries.append(NewEntry(b"d", flags, 0 if marker else count, time, origin, 3, index, source))
        append = log.stage(entries, turn)
        segment = turn * segments // max(1, len(batches))
        log.confirm(append, Location(segment, len(data[segment])))
        data[segment] += b"".join(append.records)
        twin.entries += append.entries
    return log, twin, [bytes(each) for each in data]


def agrees(log: TopicLog, twin: Twin) -> None:
    log.validate()
    positions = [entry.position for entry in twin.entries]
    names = twin.named()
    for entry in twin.entries:
        identity = log.identity_of(entry.position)
        if not twin.message(entry):
            assert identity is None
            continue
        assert identity == Identity(entry.origin, entry.incarnation if entry.origin else 7, entry.first_index)
        assert log.count_at(entry.position) == entry.count
    for identity, position in names.items():
        assert log.position_of(identity) == position
    for cluster in ("", "west", "east"):
        for index in range(40):
            name = Identity(cluster, 3 if cluster else 7, index)
            assert log.position_of(name) == names.get(name)
    for time in range(62):
        assert log.seek_time(time) == twin.seek(time)
    probes = [NONE, *positions, LATEST, *(Position(each.ledger, each.entry + 1) for each in positions), Position(60, 0)]
    for probe in probes:
        behind = [position for position in positions if position > probe]
        assert log.next_after(probe) == (behind[0] if behind else None)
        before = [position for position in positions if position < probe]
        if before:
            assert log.position_before(probe) == before[-1]
        between = [entry for entry in twin.entries if entry.position > probe]
        assert log.entries_between(probe, LATEST) == len(between)
        assert log.messages_between(probe, LATEST) == sum(entry.count for entry in between)
        assert log.markers_between(probe, LATEST) == sum(not twin.message(entry) for entry in between)
    marks: dict[str, Position] = {}
    for entry in twin.entries:
        if entry.origin:
            marks[entry.origin] = max(entry.source, marks.get(entry.origin, NONE))
    assert log.watermarks() == marks
    local = [entry for entry in twin.entries if not entry.origin and twin.message(entry)]
    assert log.next_index == (local[-1].first_index + local[-1].count if local else 0)


def assembled(indexes: list[SegmentIndex]) -> TopicLog:
    recovered = Recovered()
    Assembly(recovered, indexes).run()
    assert recovered.problems == []
    return TopicLog("t", 7, LedgerIds(50), EntryCache(1), recovered=recovered.topics.get(("t", 7)), fresh=False)


@settings(max_examples=150, deadline=None)
@given(batches=staged, segments=st.integers(1, 4))
def test_the_index_is_what_a_list_would_be(batches: list[list[tuple[str, int, int, int, int]]], segments: int) -> None:
    log, twin, data = build(batches, segments)
    agrees(log, twin)
    scans = []
    for number, content in enumerate(data):
        scanner = Scanner(number, lambda offset, size, content=content: content[offset : offset + size], len(content))  # type: ignore[misc]
        scans.append(scanner.run())
    agrees(assembled(scans), twin)
    sidecars = [decode_index(encode_index(index), index.number) for index in scans]
    agrees(assembled([index for index in sidecars if index is not None]), twin)


@settings(max_examples=80, deadline=None)
@given(batches=staged, keep=st.data())
def test_copies_in_later_segments_double_nothing(
    batches: list[list[tuple[str, int, int, int, int]]], keep: st.DataObject
) -> None:
    """A rewrite that was cut short leaves some records twice, a finished one leaves them in the later segment only."""
    _, twin, data = build(batches, 3)
    scans = []
    for number, content in enumerate(data):
        scanner = Scanner(number, lambda offset, size, content=content: content[offset : offset + size], len(content))  # type: ignore[misc]
        scans.append(scanner.run())
    first = scans[0]
    records = sorted(
        [(placed.offset, placed.size) for placed in first.openings]
        + [pair for piece in first.pieces for pair in zip(piece.offsets, piece.sizes, strict=True)]
    )
    done = keep.draw(st.booleans(), label="finished")
    count = len(records) if done else keep.draw(st.integers(0, len(records)), label="copied")
    copy = bytes(SEGMENT_MAGIC) + b"".join(data[0][offset : offset + size] for offset, size in records[:count])
    copied = Scanner(9, lambda offset, size: copy[offset : offset + size], len(copy)).run()
    agrees(assembled([*([] if done else [first]), *scans[1:], copied]), twin)


def test_a_lookup_by_identity_does_not_walk_the_runs() -> None:
    """Entries of two origins take turns, so that every entry is a run."""
    log = TopicLog("t", 7, LedgerIds(50), EntryCache(1), ledger_entries_max=1 << 20)
    for number in range(2000):
        new = [NewEntry(b"d", 0, 1, 0), NewEntry(b"d", 0, 1, 0, "west", 3, number, Position(1, number))]
        append = log.stage(new, 0)
        log.confirm(append, Location(1, number * 1000))
    for number in range(2000):
        assert log.position_of(Identity("west", 3, number)) == Position(7, 2 * number + 1)
        assert log.position_of(Identity("", 7, number)) == Position(7, 2 * number)
