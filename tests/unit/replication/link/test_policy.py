"""Who gets what; and the count of local messages against a dumb twin."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.ids import NONE, Position
from magnetar.replication.link.policy import (
    LOCAL_ONLY,
    MAY_GO,
    goes_to,
    index_after,
    local_messages,
    may_go,
    targets,
    unlinked,
)
from magnetar.storage.entries import EntryFlags
from tests.unit.replication.link.rig import Rig, message


def test_a_target_is_named_linked_and_not_here() -> None:
    assert targets("a", {"a", "b", "c"}, ["b"]) == {"b"}
    assert targets("a", {"a"}, ["b"]) == set()


def test_a_cluster_that_is_named_without_a_link_is_told() -> None:
    assert unlinked("a", {"a", "b", "c"}, ["b"]) == {"c"}
    assert unlinked("a", {"a", "b"}, ["b", "c"]) == set()
    assert unlinked("a", {"a"}, []) == set()


def test_which_entries_go() -> None:
    assert may_go(0)
    assert may_go(EntryFlags.BATCH | EntryFlags.CHUNK | EntryFlags.RESTRICTED)
    assert not may_go(EntryFlags.REPLICATED)
    assert may_go(EntryFlags.MARKER)
    assert may_go(EntryFlags.MARKER | EntryFlags.RESTRICTED)
    assert not may_go(EntryFlags.MARKER | EntryFlags.REPLICATED)
    assert [bool(MAY_GO[flags]) for flags in range(256)] == [may_go(flags) for flags in range(256)]


def test_where_an_entry_goes() -> None:
    everywhere, restricted, stays = message(), message(to=("b",)), message(to=(LOCAL_ONLY,))
    assert goes_to(everywhere.flags, everywhere.data, "b")
    assert goes_to(restricted.flags, restricted.data, "b")
    assert not goes_to(restricted.flags, restricted.data, "c")
    assert not goes_to(stays.flags, stays.data, "b")
    assert not goes_to(restricted.flags | EntryFlags.REPLICATED, restricted.data, "b")
    assert goes_to(EntryFlags.RESTRICTED, b"not to be parsed", "b"), "the destination says what is wrong with it"


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=40),
    st.integers(1, 9),
    st.integers(-1, 39),
    st.integers(-1, 39),
)
def test_local_messages_are_counted_like_one_by_one(
    kinds: list[tuple[bool, int]], ledger_entries: int, low: int, high: int
) -> None:
    topic = Rig().topic(ledger_entries=ledger_entries)
    positions = [topic.publish(message(count=n, origin="c" if foreign else ""))[0] for foreign, n in kinds]

    def at(number: int) -> Position:
        return positions[min(number, len(positions) - 1)] if positions and number >= 0 else NONE

    after, up_to = at(low), at(high)
    expected = sum(
        n for (foreign, n), position in zip(kinds, positions, strict=True) if not foreign and after < position <= up_to
    )
    assert local_messages(topic.log, after, up_to) == expected
    before = sum(
        n for (foreign, n), position in zip(kinds, positions, strict=True) if not foreign and position <= after
    )
    assert index_after(topic.log, after) == before
