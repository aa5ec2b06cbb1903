"""The writer of a ledger, an example for each rule."""

from dataclasses import replace

import pytest

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import Confirmed, Ending, Finished, ReadMetadata, Send, UpdateMetadata
from magnetar.bookkeeper.ledgers.metadata import (
    BookieId,
    DigestType,
    LedgerMetadata,
    LedgerState,
    Segment,
    Versioned,
)
from magnetar.bookkeeper.ledgers.writer import (
    DEFAULT_LIMITS,
    EXPLICIT_LAC,
    LedgerWriter,
    NotWritable,
    TooMuchUnconfirmed,
    WriterLimits,
)
from magnetar.bookkeeper.protocol.entries import EntryCodec
from magnetar.bookkeeper.protocol.messages import AddEntry, Code, EntryAdded, WriteLac

A, B, C, D, E = (BookieId(name) for name in "abcde")
LEDGER = 7
CODEC = EntryCodec(LEDGER, DigestType.CRC32C, b"secret")
OPEN = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Segment(0, (A, B, C)),), DigestType.CRC32C, b"secret")


def writer(
    *spare: BookieId, metadata: LedgerMetadata = OPEN, limits: WriterLimits = DEFAULT_LIMITS
) -> tuple[LedgerWriter, Bookies]:
    bookies = Bookies(lambda count: 0)
    bookies.registered([A, B, C, *spare])
    return LedgerWriter(LEDGER, Versioned(metadata, 4), CODEC, bookies, limits), bookies


def answer(made: LedgerWriter, bookie: BookieId, entry: int, code: Code = Code.OK, now: float = 0.0) -> list[object]:
    return list(made.answered(bookie, entry, EntryAdded(LEDGER, entry, code), now))


def sends(effects: object) -> list[tuple[tuple[BookieId, ...], int]]:
    return [(one.bookies, one.number) for one in effects if isinstance(one, Send)]  # type: ignore[attr-defined]


def test_one_request_for_all_bookies_of_the_write_set() -> None:
    made, _ = writer()
    (send,) = made.append(b"first")
    assert (send.bookies, send.number) == ((A, B, C), 0)
    assert isinstance(send.request, AddEntry)
    stored = CODEC.unpack(0, send.request.body)
    assert (stored.lac, stored.length, stored.payload) == (-1, 5, b"first")
    assert send.request.master_key == CODEC.master_key


def test_the_header_says_what_is_confirmed_and_how_long_the_ledger_is() -> None:
    made, _ = writer()
    made.append(b"first")
    made.append(b"second")
    answer(made, A, 0)
    assert answer(made, C, 0) == [Confirmed(0)]
    (send,) = made.append(b"third")
    assert isinstance(send.request, AddEntry)
    stored = CODEC.unpack(2, send.request.body)
    assert (stored.lac, stored.length) == (0, 16)


def test_entries_are_confirmed_in_order() -> None:
    made, _ = writer()
    for _ in range(3):
        made.append(b"x")
    for bookie in (A, B):
        assert answer(made, bookie, 2) == []
        assert answer(made, bookie, 1) == []
    assert answer(made, A, 0) == []
    assert answer(made, B, 0) == [Confirmed(2)]
    assert (made.last_confirmed, made.unconfirmed) == (2, 0)


def test_what_is_not_confirmed_is_bounded() -> None:
    made, _ = writer(limits=WriterLimits(entries_max=2))
    made.append(b"x")
    assert made.room
    made.append(b"x")
    assert not made.room
    with pytest.raises(TooMuchUnconfirmed, match="2 entries wait"):
        made.append(b"x")
    large, _ = writer(limits=WriterLimits(bytes_max=100))
    large.append(b"x" * 100)
    assert not large.room


def test_a_failed_bookie_is_replaced_from_the_first_unconfirmed_entry_on() -> None:
    made, _ = writer(D)
    for _ in range(3):
        made.append(b"x")
    answer(made, A, 0)
    answer(made, B, 0)
    (update,) = made.failed(C, 0, 0.0)
    assert isinstance(update, UpdateMetadata)
    assert update.version == 4
    assert update.metadata.segments == (Segment(0, (A, B, C)), Segment(1, (A, B, D)))
    # While the metadata are written nothing is confirmed, and nothing is sent to D.
    answer(made, A, 1)
    assert answer(made, B, 1) == []
    assert sends(made.append(b"x")) == [((A, B), 3)]
    effects = made.metadata_written(5, 0.0)
    assert sends(effects) == [((D,), 1), ((D,), 2), ((D,), 3)]
    assert effects[-1] == Confirmed(1)
    assert made.metadata.version == 5


def test_a_segment_without_entries_is_replaced() -> None:
    made, _ = writer(D)
    made.append(b"x")
    (update,) = made.failed(C, 0, 0.0)
    assert isinstance(update, UpdateMetadata)
    assert update.metadata.segments == (Segment(0, (A, B, D)),)


def test_acks_of_the_replaced_bookie_do_not_count() -> None:
    made, _ = writer(D)
    made.append(b"x")
    made.append(b"x")
    for bookie in (A, C):
        answer(made, bookie, 1)
    made.failed(C, 0, 0.0)
    made.metadata_written(5, 0.0)
    assert answer(made, C, 0) == []  # late
    answer(made, A, 0)
    assert answer(made, B, 0) == [Confirmed(0)]  # entry 1 has A alone
    assert answer(made, D, 1) == [Confirmed(1)]


def test_the_same_dead_bookie_is_replaced_once() -> None:
    made, _ = writer(D, E)
    for _ in range(3):
        made.append(b"x")
    assert len(made.failed(C, 0, 0.0)) == 1
    assert made.failed(C, 1, 0.0) == []
    made.metadata_written(5, 0.0)
    assert made.failed(C, 2, 0.0) == []


def test_failures_during_a_change_follow_after_it() -> None:
    made, _ = writer(D, E)
    made.append(b"x")
    made.failed(C, 0, 0.0)
    assert answer(made, B, 0, Code.IO_ERROR) == []
    effects = made.metadata_written(5, 0.0)
    assert sends(effects) == [((D,), 0)]
    (update,) = (one for one in effects if isinstance(one, UpdateMetadata))
    assert update == UpdateMetadata(replace(OPEN, segments=(Segment(0, (A, E, D)),)), 5)


@pytest.mark.parametrize(("code", "ending"), [(Code.FENCED, Ending.FENCED), (Code.UNAUTHORISED, Ending.UNAUTHORISED)])
def test_a_refused_writer_has_finished(code: Code, ending: Ending) -> None:
    made, _ = writer(D)
    made.append(b"x")
    answer(made, A, 0)
    assert answer(made, B, 0, code) == [Finished(ending, Versioned(OPEN, 4))]
    assert answer(made, C, 0) == []
    assert made.close(0.0) == []
    with pytest.raises(NotWritable, match=ending.value):
        made.append(b"x")


def test_too_many_requests_are_sent_again_later() -> None:
    made, bookies = writer(D)
    made.append(b"x")
    assert answer(made, B, 0, Code.TOO_MANY, now=10.0) == []
    assert made.wake_at == 10.05
    assert made.tick(10.04) == []
    assert sends(made.tick(10.05)) == [((B,), 0)]
    assert not bookies.quarantined(B, 11.0)
    answer(made, B, 0, Code.TOO_MANY, now=10.1)
    answer(made, A, 0)
    answer(made, C, 0)
    # It is confirmed by now, so the tick sends only what is confirmed.
    assert sends(made.tick(11.0)) == [((A, B, C), EXPLICIT_LAC)]


def test_a_lost_answer_is_found_in_the_metadata() -> None:
    made, _ = writer(D)
    made.append(b"x")
    (update,) = made.failed(C, 0, 0.0)
    assert isinstance(update, UpdateMetadata)
    effects = made.metadata_read(Versioned(update.metadata, 5), 0.0)
    assert sends(effects) == [((D,), 0)]


def test_after_a_conflict_the_same_is_proposed_for_what_is_stored_now() -> None:
    """The first proposal may be under way still: only another version makes sure that it is refused."""
    begun = replace(OPEN, segments=(Segment(0, (A, B, E)), Segment(9, (A, B, C))))
    made, _ = writer(D, metadata=begun)
    made._adds.lac = 9  # entries 0 to 9 were confirmed
    (update,) = made.failed(C, 9, 0.0)
    assert isinstance(update, UpdateMetadata)
    repaired = replace(begun, segments=(Segment(0, (A, B, D)), Segment(9, (A, B, C))))
    assert made.metadata_read(Versioned(repaired, 5), 0.0) == [
        UpdateMetadata(quorums.with_ensemble(repaired, 10, (A, B, D)), 5)
    ]


def test_the_answer_of_a_server_that_lags_counts_for_nothing() -> None:
    made, _ = writer(D)
    made.append(b"x")
    (update,) = made.failed(C, 0, 0.0)
    assert isinstance(update, UpdateMetadata)
    assert made.metadata_read(Versioned(update.metadata, 3), 0.0) == [ReadMetadata()]


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_a_ledger_that_another_client_recovers_is_left_to_it(state: LedgerState) -> None:
    made, _ = writer(D)
    made.append(b"x")
    made.failed(C, 0, 0.0)
    stored = Versioned(replace(OPEN, state=state), 5)
    assert made.metadata_read(stored, 0.0) == [Finished(Ending.FENCED, stored)]


def test_foreign_segments_end_the_writer() -> None:
    made, _ = writer(D)
    made.append(b"x")
    made.failed(C, 0, 0.0)
    stored = Versioned(replace(OPEN, segments=(Segment(0, (E, B, C)),)), 5)
    (finished,) = made.metadata_read(stored, 0.0)
    assert isinstance(finished, Finished)
    assert finished.ending is Ending.CONFLICT
    other, _ = writer(D)
    other.append(b"x")
    other.failed(C, 0, 0.0)
    (gone,) = other.metadata_read(None, 0.0)
    assert isinstance(gone, Finished)
    assert gone.ending is Ending.NO_SUCH_LEDGER


def test_without_a_replacement_an_ack_quorum_is_enough() -> None:
    made, bookies = writer()
    made.append(b"x")
    assert made.failed(C, 0, 100.0) == []
    answer(made, A, 0)
    assert answer(made, B, 0) == [Confirmed(0)]
    assert sends(made.append(b"x")) == [((B, A), 1)]
    # It comes back: the metadata are still right.
    assert made.wake_at == 101.0
    assert sends(made.tick(101.0)) == [((C,), 1)]
    # Or there is another one.
    made.failed(C, 1, 102.0)
    bookies.registered([A, B, C, D])
    (update,) = made.tick(103.0)
    assert isinstance(update, UpdateMetadata)
    assert update.metadata.segments[-1] == Segment(1, (A, B, D))


def test_what_was_stored_during_a_change_is_confirmed_although_too_few_bookies_are_left() -> None:
    made, bookies = writer(D)
    made.append(b"x")
    made.failed(C, 0, 0.0)
    for bookie in (A, B):
        assert answer(made, bookie, 0) == []  # the metadata are being written
        made.failed(bookie, 0, 0.0)
    bookies.registered([A, B, D])
    effects = made.metadata_written(5, 0.0)
    assert sends(effects) == [((D,), 0)]
    assert effects[-1] == Confirmed(0)
    assert sends(made.append(b"x")) == [((D,), 1)]


def test_patience_with_too_few_bookies_ends() -> None:
    made, bookies = writer(limits=WriterLimits(patience_s=3.0))
    made.append(b"x")
    bookies.registered([A])
    made.failed(B, 0, 0.0)
    made.failed(C, 0, 0.0)
    assert answer(made, A, 0) == []
    assert [made.tick(now) for now in (1.0, 2.0)] == [[], []]
    (finished,) = made.tick(3.0)
    assert isinstance(finished, Finished)
    assert finished.ending is Ending.NO_BOOKIES


def test_segments_are_bounded() -> None:
    made, _ = writer(D, limits=WriterLimits(segments_max=1))
    made.append(b"x")
    answer(made, A, 0)
    answer(made, B, 0)
    (finished,) = made.failed(C, 0, 0.0)
    assert isinstance(finished, Finished)
    assert finished.ending is Ending.TOO_MANY_SEGMENTS


def test_an_idle_writer_says_what_is_confirmed() -> None:
    made, _ = writer()
    made.append(b"x")
    answer(made, A, 0, now=5.0)
    answer(made, B, 0, now=5.0)
    assert made.wake_at == 5.5
    (send,) = made.tick(5.5)
    assert isinstance(send, Send)
    assert (send.bookies, send.number) == ((A, B, C), EXPLICIT_LAC)
    assert isinstance(send.request, WriteLac)
    assert CODEC.unpack_lac(send.request.body) == 0
    assert made.wake_at is None
    made.failed(B, EXPLICIT_LAC, 6.0)
    assert made.wake_at == 6.5
    # An entry brings it, too.
    made.append(b"x")
    assert made.wake_at is None


def test_a_clean_close_waits_for_all_entries() -> None:
    made, _ = writer()
    made.append(b"first")
    assert made.close(0.0) == []
    with pytest.raises(NotWritable, match="closed"):
        made.append(b"x")
    answer(made, A, 0)
    confirmed, update = answer(made, B, 0)
    assert confirmed == Confirmed(0)
    assert update == UpdateMetadata(quorums.closed(OPEN, 0, 5), 4)
    assert made.metadata_written(5, 0.0) == [Finished(Ending.CLOSED, Versioned(quorums.closed(OPEN, 0, 5), 5))]


def test_an_empty_ledger_can_be_closed() -> None:
    made, _ = writer()
    assert made.close(0.0) == [UpdateMetadata(quorums.closed(OPEN, -1, 0), 4)]


@pytest.mark.parametrize(("last", "ending"), [(0, Ending.CLOSED), (1, Ending.FENCED)])
def test_a_close_whose_answer_was_lost(last: int, ending: Ending) -> None:
    """With other values a recovery was faster."""
    made, _ = writer()
    made.append(b"first")
    answer(made, A, 0)
    answer(made, B, 0)
    made.close(0.0)
    stored = Versioned(quorums.closed(OPEN, last, 5), 5)
    assert made.metadata_read(stored, 0.0) == [Finished(ending, stored)]
