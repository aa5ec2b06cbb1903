import pytest

from magnetar.bookkeeper.ledgers.metadata import BookieId, DigestType, LedgerMetadata, LedgerState, Segment

A, B, C, D = (BookieId(name) for name in "abcd")


def ledger(*segments: Segment, ensemble: int = 3, write: int = 2, ack: int = 2) -> LedgerMetadata:
    return LedgerMetadata(ensemble, write, ack, LedgerState.OPEN, segments, DigestType.CRC32C, b"")


def test_entries_go_round_the_ensemble_of_their_segment() -> None:
    metadata = ledger(Segment(0, (A, B, C)), Segment(4, (A, D, C)))
    assert [list(metadata.bookies_of(entry)) for entry in range(6)] == [[A, B], [B, C], [C, A], [A, B], [D, C], [C, A]]
    assert metadata.segment_of(3).first == 0
    assert metadata.segment_of(4).first == 4


@pytest.mark.parametrize(
    ("segments", "sizes", "words"),
    [
        ((Segment(0, (A, B, C)),), {"write": 4}, "ensemble 3, write quorum 4"),
        ((Segment(0, (A, B, C)),), {"ack": 0}, "at least 1"),
        ((Segment(1, (A, B, C)),), {}, "rise from 0"),
        ((), {}, "rise from 0"),
        ((Segment(0, (A, B, C)), Segment(0, (A, B, D))), {}, "rise from 0"),
        ((Segment(0, (A, B)),), {}, "not 3 bookies"),
    ],
)
def test_what_cannot_be_is_refused(segments: tuple[Segment, ...], sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ledger(*segments, **sizes)
