"""A packed ledger answers as one that is not, and what regular work asks of it leaves it packed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE, OriginKey
from magnetar.storage.entries import Location
from magnetar.storage.ledger import Ledger
from magnetar.storage.ledgerids import LedgerIds
from magnetar.storage.records import EntryHead
from magnetar.storage.segments.index import Piece
from magnetar.storage.topiclog import EntryCache, TopicLog
from tests.unit.storage.harness import entry as new_entry

HERE = OriginKey("", 7)
MARKER = 4

COLUMNS = (
    "locations", "sizes", "flags", "messages", "publish_times", "markers", "run_entries", "run_origins", "run_firsts",
    "origins", "disordered",
)  # fmt: skip
FACTS = (
    "ledger", "created_ms", "closed", "entries", "bytes", "newest_ms", "newest_publish", "missing", "run_origin", "run_next",
)  # fmt: skip

HEADS = st.lists(
    st.tuples(
        st.sampled_from(["", "", "b", "c"]),
        st.sampled_from([0, 0, 8, MARKER]),
        st.integers(1, 3),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)
Made = list[tuple[str, int, int, int, int]]


def heads(made: Made) -> list[EntryHead]:
    """Entries of several origins, with gaps in their indexes."""
    indexes = {"": 0, "b": 5, "c": 9}
    found = []
    for number, (origin, flags, count, time, gap) in enumerate(made):
        marker = bool(flags & MARKER)
        index = -1 if marker else indexes[origin] + gap
        count = 0 if marker else count  # noqa: PLW2901
        if not marker:
            indexes[origin] = index + count
        incarnation = 3 if origin else 0
        found.append(EntryHead(1, number, flags, count, time, 1_000 + number, origin, incarnation, index, NONE, 0))
    return found


def piece(entries: list[EntryHead]) -> Piece:
    made = Piece(1, entries[0].entry)
    for head in entries:
        made.add(100 * head.entry, 50 + head.entry, head)
    return made


def columns(ledger: Ledger) -> dict[str, object]:
    return {name: getattr(ledger.columns, name) for name in COLUMNS}


def facts(ledger: Ledger) -> dict[str, object]:
    return {name: getattr(ledger, name) for name in FACTS}


@given(HEADS, st.integers(1, 11))
def test_the_first_piece_is_taken_packed_and_the_same_as_in_parts(made: Made, cut: int) -> None:
    entries = heads(made)
    whole, parts = Ledger(1, 1_000), Ledger(1, 1_000)
    whole.extend(piece(entries), 3, HERE)
    for head in entries:
        parts.extend(piece([head]), 3, HERE)
    assert facts(whole) == facts(parts) | {"newest_publish": max(head.publish_time for head in entries)}
    few, more = entries[:cut], entries[cut:]
    halves = Ledger(1, 1_000)
    halves.extend(piece(few), 3, HERE)
    if more:
        halves.extend(piece(more), 3, HERE)
    assert halves.entries == whole.entries
    for ask in questions(len(entries)):
        assert ask(whole) == ask(parts) == ask(halves)


@given(HEADS)
def test_a_packed_ledger_is_the_same_when_it_is_unpacked(made: Made) -> None:
    ledger = Ledger(1, 1_000)
    ledger.extend(piece(heads(made)), 3, HERE)
    before, known = columns(ledger), facts(ledger)
    ledger.pack()
    assert (facts(ledger), columns(ledger)) == (known, before)


def questions(entries: int) -> list[Callable[[Ledger], object]]:
    """What is asked of a ledger as a whole, and of all its entries."""
    spans = [(first, end) for first in range(entries + 1) for end in range(first, entries + 1)]
    origins = [HERE, OriginKey("b", 3), OriginKey("c", 3)]
    return [
        lambda ledger: [ledger.messages_in(*span) for span in spans],
        lambda ledger: [ledger.bytes_in(*span) for span in spans],
        lambda ledger: [ledger.markers_in(*span) for span in spans],
        lambda ledger: ledger.last_message(),
        lambda ledger: [ledger.index_at(entry) for entry in range(entries)],
        lambda ledger: [ledger.entry_of(origin, index) for origin in origins for index in range(60)],
        lambda ledger: (list(ledger.markers), bytes(ledger.flags), list(ledger.locations), list(ledger.sizes)),
    ]


@given(HEADS.filter(lambda made: not any(flags & MARKER for _, flags, _, _, _ in made)))
def test_what_regular_work_asks_leaves_it_packed(made: Made) -> None:
    ledger = Ledger(1, 1_000)
    ledger.extend(piece(heads(made)), 3, HERE)
    counts = [count for _, _, count, _, _ in made]
    assert ledger.messages_in(0, ledger.entries) == sum(counts)
    assert ledger.messages_in(1, ledger.entries) == sum(counts[1:])
    assert ledger.bytes_in(0, ledger.entries) == ledger.bytes
    assert ledger.markers_in(0, ledger.entries) == 0
    assert ledger.last_message() == ledger.entries - 1
    assert not ledger.markers
    assert ledger._columns is None


@pytest.mark.parametrize("more", [0, 1, 5])
def test_the_ledger_of_a_topic_with_one_entry_is_packed(more: int) -> None:
    log = TopicLog("t", 7, LedgerIds(7), EntryCache(0))
    offset = 0
    for number in range(1 + more):
        append = log.stage([new_entry(str(number).encode())], 1_000)
        log.confirm(append, Location(1, offset))
        offset += sum(append.sizes)
    (ledger,) = log.ledger_infos()
    assert (ledger._columns is None) == (not more)
    assert [log.count_at(position) for position in [log.last]] == [1]
    log.validate()
