"""The recovery of a ledger, an example for each rule."""

from dataclasses import replace

import pytest

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import Effect, Ending, Finished, ReadMetadata, Send, UpdateMetadata
from magnetar.bookkeeper.ledgers.metadata import (
    BookieId,
    DigestType,
    LedgerMetadata,
    LedgerState,
    Segment,
    Versioned,
)
from magnetar.bookkeeper.ledgers.recovery import LedgerRecovery, RecoveryLimits
from magnetar.bookkeeper.protocol.entries import EntryCodec
from magnetar.bookkeeper.protocol.messages import (
    LAST_ENTRY,
    AddEntry,
    Code,
    EntryAdded,
    EntryRead,
    ForceLedger,
    LedgerForced,
    ReadEntry,
)

A, B, C, D, E = (BookieId(name) for name in "abcde")
LEDGER = 7
CODEC = EntryCodec(LEDGER, DigestType.CRC32C, b"secret")
OPEN = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Segment(0, (A, B, C)),), DigestType.CRC32C, b"secret")
MARKED = replace(OPEN, state=LedgerState.IN_RECOVERY)


def body(entry: int, lac: int, length: int = 0, payload: bytes = b"x") -> bytes:
    return CODEC.pack(entry, lac, length or entry + 1, payload)


class Example:
    """A recovery, and the requests that wait for an answer."""

    def __init__(self, metadata: LedgerMetadata = MARKED, window: int = 1) -> None:
        bookies = Bookies(lambda count: 0)
        bookies.registered([A, B, C, D, E])
        limits = RecoveryLimits(entries_max=window)
        self.machine = LedgerRecovery(LEDGER, Versioned(metadata, 4), CODEC, bookies, limits)
        self.waiting: dict[tuple[BookieId, str, int], int] = {}
        self.requests: list[tuple[BookieId, object]] = []
        self.others: list[Effect] = []
        self.take(self.machine.start(0.0))

    def take(self, effects: object) -> None:
        self.others = []
        for effect in effects:  # type: ignore[attr-defined]
            if isinstance(effect, Send):
                for bookie in effect.bookies:
                    kind = type(effect.request).__name__
                    self.waiting[bookie, kind, getattr(effect.request, "entry", 0)] = effect.number
                    self.requests.append((bookie, effect.request))
            else:
                self.others.append(effect)

    def read(
        self, bookie: BookieId, entry: int, code: Code = Code.OK, data: bytes | None = None, session: int = 1
    ) -> None:
        number = self.waiting.pop((bookie, "ReadEntry", entry))
        response = EntryRead(LEDGER, entry, code, data, None)
        self.take(self.machine.answered(bookie, number, response, 0.0, session))

    def force(self, bookie: BookieId, session: int = 1, code: Code = Code.OK) -> None:
        number = self.waiting.pop((bookie, "ForceLedger", 0))
        self.take(self.machine.answered(bookie, number, LedgerForced(LEDGER, code), 0.0, session))

    def added(self, bookie: BookieId, entry: int, code: Code = Code.OK) -> None:
        number = self.waiting.pop((bookie, "AddEntry", entry))
        assert number == entry
        self.take(self.machine.answered(bookie, number, EntryAdded(LEDGER, entry, code), 0.0, 1))

    def fail(self, bookie: BookieId, kind: str, entry: int) -> None:
        self.take(self.machine.failed(bookie, self.waiting.pop((bookie, kind, entry)), 0.0))

    def asked(self, kind: str = "ReadEntry") -> list[tuple[BookieId, int]]:
        return [(bookie, entry) for bookie, name, entry in self.waiting if name == kind]

    def fenced_at(self, entry: int, lac: int) -> None:
        """A and B have answered with this last entry."""
        self.read(A, LAST_ENTRY, data=body(entry, lac))
        self.read(B, LAST_ENTRY, data=body(entry, lac))


def ending(example: Example) -> Ending:
    (finished,) = example.others
    assert isinstance(finished, Finished)
    return finished.ending


def test_the_ledger_is_marked_first() -> None:
    example = Example(OPEN)
    assert example.others == [UpdateMetadata(MARKED, 4)]
    assert example.asked() == []
    example.take(example.machine.metadata_written(5, 0.0))
    assert example.asked() == [(A, LAST_ENTRY), (B, LAST_ENTRY), (C, LAST_ENTRY)]
    assert all(
        request == ReadEntry(LEDGER, LAST_ENTRY, fence=True, master_key=CODEC.master_key, high_priority=True)
        for _, request in example.requests
    )


def test_after_a_conflict_the_ensemble_is_that_of_the_metadata_now() -> None:
    example = Example(OPEN)
    moved = replace(OPEN, segments=(Segment(0, (A, B, C)), Segment(3, (A, D, C))))
    example.take(example.machine.metadata_read(Versioned(moved, 5), 0.0))
    assert example.others == [UpdateMetadata(replace(moved, state=LedgerState.IN_RECOVERY), 5)]
    example.take(example.machine.metadata_written(6, 0.0))
    assert example.asked() == [(A, LAST_ENTRY), (D, LAST_ENTRY), (C, LAST_ENTRY)]


def test_a_closed_ledger_needs_nothing() -> None:
    done = quorums.closed(OPEN, 3, 40)
    example = Example(done)
    assert example.others == [Finished(Ending.CLOSED, Versioned(done, 4))]


def test_enough_bookies_are_enough() -> None:
    """C hangs, and is asked last."""
    example = Example()
    example.fenced_at(entry=5, lac=4)
    assert (C, LAST_ENTRY) in example.asked()
    assert {one for one in example.asked() if one[1] == 5} == {(A, 5), (B, 5)}


def test_too_few_bookies_end_the_recovery() -> None:
    example = Example()
    example.read(A, LAST_ENTRY, data=body(5, 4))
    example.fail(B, "ReadEntry", LAST_ENTRY)
    assert example.others == []
    example.read(C, LAST_ENTRY, Code.IO_ERROR)
    assert ending(example) is Ending.NO_BOOKIES


def test_a_wrong_password_ends_the_recovery() -> None:
    example = Example()
    example.read(A, LAST_ENTRY, Code.UNAUTHORISED)
    assert ending(example) is Ending.UNAUTHORISED


def test_a_negative_answer_counts_when_the_fence_is_on_disk() -> None:
    example = Example()
    example.read(A, LAST_ENTRY, Code.NO_LEDGER)
    example.read(B, LAST_ENTRY, data=body(0, -1))
    assert example.requests[-1] == (A, ForceLedger(LEDGER))
    assert example.asked("ReadEntry") == [(C, LAST_ENTRY)]
    example.force(A)
    assert (B, 0) in example.asked()


def test_force_over_another_connection_proves_nothing() -> None:
    """The bookie may have restarted in between, without its fence."""
    example = Example()
    example.read(A, LAST_ENTRY, Code.NO_LEDGER, session=1)
    example.read(B, LAST_ENTRY, data=body(0, -1))
    example.force(A, session=2)
    assert example.others == []
    example.fail(C, "ReadEntry", LAST_ENTRY)
    assert ending(example) is Ending.NO_BOOKIES


def test_a_bookie_that_was_not_reached_is_fenced_by_reading() -> None:
    """Its negative answer counts after FORCE; one of another connection is asked for again."""
    example = Example(window=2)
    example.fenced_at(entry=5, lac=4)
    example.read(A, 5, Code.NO_ENTRY)
    example.fail(B, "ReadEntry", 5)
    example.fail(B, "ReadEntry", 6)
    assert {(C, 5), (C, 6)} <= set(example.asked())
    example.read(C, 5, Code.NO_ENTRY, session=8)
    example.read(C, 6, Code.NO_ENTRY, session=9)
    assert example.asked("ForceLedger") == [(C, 0)]
    example.force(C, session=8)
    assert example.others == []
    # Entry 5 does not exist on A and C: the ledger ends before it, and the length is read from its last entry.
    assert (C, 4) in example.asked()
    example.read(C, 4, data=body(4, 3, length=99))
    assert example.others == [UpdateMetadata(quorums.closed(MARKED, 4, 99), 4)]


def test_entries_before_the_last_segment_are_confirmed() -> None:
    moved = replace(MARKED, segments=(Segment(0, (A, B, C)), Segment(9, (A, B, D))))
    example = Example(moved)
    example.fenced_at(entry=5, lac=2)
    assert {one for one in example.asked() if one[1] >= 0} == {(A, 9), (B, 9)}


def test_a_damaged_last_entry_still_means_that_the_ledger_is_fenced() -> None:
    example = Example()
    example.read(A, LAST_ENTRY, data=b"rubbish")
    example.read(B, LAST_ENTRY, data=body(0, -1))
    assert (A, 0) in example.asked()


def test_what_is_found_is_added_again_and_then_the_ledger_is_closed() -> None:
    example = Example()
    example.fenced_at(entry=5, lac=4)
    example.read(A, 5, data=body(5, 3, length=60, payload=b"found"))
    _, request = example.requests[-1]
    assert isinstance(request, AddEntry)
    assert example.asked("AddEntry") == [(C, 5), (A, 5), (B, 5)]
    assert (request.recovery, request.high_priority) == (True, True)
    stored = CODEC.unpack(5, request.body)
    # It names the LAC that was found, not how far the recovery is.
    assert (stored.lac, stored.length, stored.payload) == (4, 60, b"found")
    example.added(A, 5)
    assert (A, 6) not in example.asked()
    example.added(B, 5)
    example.read(A, 6, Code.NO_ENTRY)
    assert example.others == []  # one bookie proves nothing
    example.read(B, 6, Code.NO_ENTRY)
    assert example.others == [UpdateMetadata(quorums.closed(MARKED, 5, 60), 4)]
    example.take(example.machine.metadata_written(5, 0.0))
    assert ending(example) is Ending.CLOSED


def test_entries_are_read_ahead() -> None:
    example = Example(window=3)
    example.fenced_at(entry=7, lac=4)
    assert {entry for _, entry in example.asked()} == {LAST_ENTRY, 5, 6, 7}
    example.read(A, 6, data=body(6, 4))
    assert example.asked("AddEntry") == []  # in order
    example.read(A, 5, data=body(5, 4))
    assert {entry for _, entry in example.asked("AddEntry")} == {5, 6}


def test_an_entry_that_cannot_be_decided_is_not_guessed() -> None:
    example = Example()
    example.fenced_at(entry=5, lac=4)
    example.read(A, 5, Code.NO_ENTRY)
    example.read(B, 5, Code.UNKNOWN_LEDGER_STATE)
    example.fail(C, "ReadEntry", 5)
    assert ending(example) is Ending.UNDECIDABLE


def test_a_hung_bookie_is_not_waited_for() -> None:
    example = Example()
    example.fenced_at(entry=5, lac=4)
    assert example.machine.wake_at == 0.5
    example.take(example.machine.tick(0.5))
    assert (C, 5) in example.asked()


def test_a_bookie_that_fails_is_replaced_in_memory_and_written_with_the_close() -> None:
    example = Example()
    example.fenced_at(entry=5, lac=4)
    example.read(A, 5, data=body(5, 4))
    example.added(A, 5, Code.IO_ERROR)
    assert example.others == []
    assert (D, 5) in example.asked("AddEntry")
    example.added(D, 5)
    example.added(B, 5)
    # Reading keeps to the bookies of the metadata.
    assert {one for one in example.asked() if one[1] == 6} == {(A, 6), (B, 6)}
    example.read(A, 6, Code.NO_ENTRY)
    example.read(B, 6, Code.NO_ENTRY)
    changed = replace(MARKED, segments=(Segment(0, (A, B, C)), Segment(5, (D, B, C))))
    assert example.others == [UpdateMetadata(quorums.closed(changed, 5, 6), 4)]


@pytest.mark.parametrize("kind", ["closed", "repaired", "lagging", "foreign", "deleted"])
def test_a_close_that_is_refused(kind: str) -> None:
    segments = (Segment(0, (A, B, C)), Segment(6, (A, B, D)))
    example = Example(replace(MARKED, segments=segments))
    example.read(A, LAST_ENTRY, data=body(6, 5))
    example.read(B, LAST_ENTRY, data=body(6, 5))
    example.read(A, 6, data=body(6, 5, length=70))
    example.added(A, 6)
    example.added(B, 6)
    example.read(A, 7, Code.NO_ENTRY)
    example.read(B, 7, Code.NO_ENTRY)
    repaired = replace(MARKED, segments=(Segment(0, (E, B, C)), segments[1]))
    stored, version = {
        "closed": (quorums.closed(repaired, 5, 60), 5),
        "repaired": (repaired, 5),
        "lagging": (MARKED, 3),
        "foreign": (replace(MARKED, segments=(segments[0], Segment(6, (A, B, E)))), 5),
        "deleted": (MARKED, -1),
    }[kind]
    example.take(example.machine.metadata_read(None if kind == "deleted" else Versioned(stored, version), 0.0))
    match kind:
        case "closed":
            assert example.others == [Finished(Ending.CLOSED, Versioned(stored, 5))]
        case "repaired":
            assert example.others == [UpdateMetadata(quorums.closed(repaired, 6, 70), 5)]
        case "lagging":
            assert example.others == [ReadMetadata()]
        case "foreign":
            assert ending(example) is Ending.CONFLICT
        case _:
            assert ending(example) is Ending.NO_SUCH_LEDGER


def test_a_close_that_is_refused_keeps_the_length_that_was_read() -> None:
    segments = (Segment(0, (A, B, C)), Segment(5, (A, B, D)))
    example = Example(replace(MARKED, segments=segments))
    example.fenced_at(entry=5, lac=4)
    for bookie in (A, B):
        example.read(bookie, 5, Code.NO_ENTRY)
    example.read(B, 4, data=body(4, 3, length=99))
    repaired = replace(MARKED, segments=(Segment(0, (E, B, C)), segments[1]))
    example.take(example.machine.metadata_read(Versioned(repaired, 5), 0.0))
    assert example.others == [UpdateMetadata(quorums.closed(repaired, 4, 99), 5)]


def test_an_empty_ledger_is_closed_empty() -> None:
    example = Example()
    for bookie in (A, B):
        example.read(bookie, LAST_ENTRY, Code.NO_LEDGER)
        example.force(bookie)
    for bookie in (A, B):
        example.read(bookie, 0, Code.NO_ENTRY)
    assert example.others == [UpdateMetadata(quorums.closed(MARKED, -1, 0), 4)]


def test_too_many_requests_are_sent_again() -> None:
    example = Example()
    example.read(A, LAST_ENTRY, Code.TOO_MANY)
    assert example.machine.wake_at == 0.05
    example.take(example.machine.tick(0.05))
    assert (A, LAST_ENTRY) in example.asked()
