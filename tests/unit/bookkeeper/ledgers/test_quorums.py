"""The arithmetic of quorums."""

import pytest

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.metadata import BookieId, DigestType, LedgerMetadata, LedgerState, Segment

NAMES = tuple(BookieId(f"b{number}") for number in range(9))


def metadata(ensemble: int, write: int, ack: int, segments: tuple[Segment, ...] = ()) -> LedgerMetadata:
    segments = segments or (Segment(0, NAMES[:ensemble]),)
    return LedgerMetadata(ensemble, write, ack, LedgerState.OPEN, segments, DigestType.CRC32C, b"")


def test_an_entry_is_stored_by_successive_bookies() -> None:
    striped = metadata(5, 3, 2)
    assert [index for index in range(5) if quorums.stores(striped, index, 0)] == [0, 1, 2]
    assert [index for index in range(5) if quorums.stores(striped, index, 4)] == [0, 1, 4]


@pytest.mark.parametrize(("sizes", "fenced", "enough"), [
    ((3, 3, 2), {0}, False),
    ((3, 3, 2), {0, 2}, True),
    ((3, 3, 3), {1}, True),  # every entry was to be on all three
    ((3, 2, 2), {0}, False),
    ((3, 2, 2), {0, 1}, True),
    ((3, 2, 1), {0, 1}, False),
    ((3, 2, 1), {0, 1, 2}, True),
    ((5, 3, 2), {0, 1, 3}, False),  # the write set 2, 3, 4
    ((5, 3, 2), {0, 1, 3, 4}, True),
])  # fmt: skip
def test_a_ledger_is_fenced_when_no_ack_quorum_is_left(
    sizes: tuple[int, int, int], fenced: set[int], enough: bool
) -> None:
    assert quorums.covered(metadata(*sizes), fenced) is enough


@pytest.mark.parametrize(("sizes", "needed"), [((3, 3, 2), 2), ((3, 3, 3), 1), ((3, 3, 1), 3), ((5, 3, 2), 2)])
def test_so_many_bookies_prove_that_an_entry_is_not_confirmed(sizes: tuple[int, int, int], needed: int) -> None:
    assert quorums.absences_needed(metadata(*sizes)) == needed


@pytest.mark.parametrize(("sizes", "missing", "enough"), [
    ((3, 3, 2), {0}, True), ((3, 3, 2), {0, 1}, False), ((3, 3, 3), {0}, False), ((4, 2, 2), {3}, False),
    ((4, 3, 2), {3}, True), ((4, 3, 1), {0, 1}, True),
])  # fmt: skip
def test_a_ledger_can_be_written_with_bookies_missing(
    sizes: tuple[int, int, int], missing: set[int], enough: bool
) -> None:
    assert quorums.writable_without(metadata(*sizes), missing) is enough


def test_a_new_segment_replaces_one_without_entries() -> None:
    first = metadata(3, 3, 2)
    second = quorums.with_ensemble(first, 10, NAMES[3:6])
    assert second.segments == (Segment(0, NAMES[:3]), Segment(10, NAMES[3:6]))
    assert quorums.with_ensemble(second, 10, NAMES[6:9]).segments == (Segment(0, NAMES[:3]), Segment(10, NAMES[6:9]))
    with pytest.raises(ValueError, match="must rise"):
        quorums.with_ensemble(second, 9, NAMES[6:9])


def test_closing_keeps_the_rest() -> None:
    done = quorums.closed(metadata(3, 3, 2), 4, 500)
    assert (done.state, done.last_entry, done.length) == (LedgerState.CLOSED, 4, 500)
    assert done.segments == metadata(3, 3, 2).segments
