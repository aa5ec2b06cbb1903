"""The reader of a ledger, an example for each rule."""

from dataclasses import replace

import pytest

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import (
    EntriesRead,
    LastConfirmed,
    ReadFailed,
    ReadMetadata,
    ReadProblem,
    Send,
)
from magnetar.bookkeeper.ledgers.metadata import (
    BookieId,
    DigestType,
    LedgerMetadata,
    LedgerState,
    Segment,
    Versioned,
)
from magnetar.bookkeeper.ledgers.reader import LedgerReader, NotReadable, ReaderLimits
from magnetar.bookkeeper.protocol.entries import EntryCodec
from magnetar.bookkeeper.protocol.messages import (
    LAST_ENTRY,
    BatchRead,
    Code,
    EntryRead,
    LacRead,
    ReadBatch,
    ReadEntry,
    ReadLac,
    Request,
    Response,
)

A, B, C, D = (BookieId(name) for name in "abcd")
LEDGER = 7
CODEC = EntryCodec(LEDGER, DigestType.CRC32C, b"secret")
OPEN = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Segment(0, (A, B, C)),), DigestType.CRC32C, b"secret")
CLOSED = quorums.closed(OPEN, 9, 100)
STRIPED = replace(CLOSED, write_quorum=2)


def body(entry: int, lac: int = -1, payload: bytes = b"") -> bytes:
    return CODEC.pack(entry, lac, 9 * (entry + 1), payload or b"payload %d" % entry)


class Example:
    """A reader, and the requests that wait for an answer."""

    def __init__(self, metadata: LedgerMetadata = CLOSED, *, batches: bool = False, **limits: int) -> None:
        self.bookies = Bookies(lambda count: 0)
        self.machine = LedgerReader(
            LEDGER, Versioned(metadata, 4), CODEC, self.bookies, ReaderLimits(**limits), batches=batches
        )
        self.waiting: list[tuple[BookieId, int, Request]] = []
        self.now = 0.0

    def take(self, effects: object) -> list[object]:
        """The effects that are not requests."""
        others = []
        for effect in effects:  # type: ignore[attr-defined]
            if isinstance(effect, Send):
                self.waiting += [(bookie, effect.number, effect.request) for bookie in effect.bookies]
            else:
                others.append(effect)
        return others

    def read(self, first: int, last: int) -> list[object]:
        return self.take(self.machine.read(1, first, last, self.now))

    def asked(self) -> list[tuple[BookieId, int]]:
        return [(bookie, getattr(request, "entry", -2)) for bookie, _, request in self.waiting]

    def pop(self, bookie: BookieId, entry: int | None = None) -> tuple[int, Request]:
        for waiting in self.waiting:
            if waiting[0] == bookie and entry in {None, getattr(waiting[2], "entry", None)}:
                self.waiting.remove(waiting)
                return waiting[1], waiting[2]
        raise AssertionError(f"{bookie} was not asked for {entry}: {self.asked()}")

    def answer(self, bookie: BookieId, response: Response, entry: int | None = None) -> list[object]:
        number, _ = self.pop(bookie, entry)
        return self.take(self.machine.answered(bookie, number, response, self.now))

    def entry(self, bookie: BookieId, entry: int, data: bytes | None = None, code: Code = Code.OK) -> list[object]:
        data = body(entry) if data is None and code is Code.OK else data
        return self.answer(bookie, EntryRead(LEDGER, entry, code, data, None), entry)

    def fail(self, bookie: BookieId) -> list[object]:
        number, _ = self.pop(bookie)
        return self.take(self.machine.failed(bookie, number, self.now))


def test_the_writer_knows_first_what_is_confirmed() -> None:
    example = Example(OPEN)
    with pytest.raises(NotReadable):
        example.read(0, 2)
    assert example.machine.confirmed(2) == [LastConfirmed(2, closed=False)]
    assert example.machine.confirmed(1) == []
    example.read(0, 2)
    assert example.asked() == [(A, 0), (B, 1), (C, 2)]


def test_a_closed_ledger_is_read_in_order() -> None:
    example = Example()
    assert example.machine.last_readable == 9
    assert example.read(3, 5) == []
    assert example.asked() == [(A, 3), (B, 4), (C, 5)]
    assert example.entry(C, 5) == []
    assert example.entry(A, 3) == [EntriesRead(1, 3, (b"payload 3",), (36,), False)]
    assert example.entry(B, 4) == [EntriesRead(1, 4, (b"payload 4", b"payload 5"), (45, 54), True)]
    assert not example.machine.reading


def test_entries_under_way_are_bounded() -> None:
    example = Example(entries_max=2)
    example.read(0, 9)
    assert example.asked() == [(A, 0), (B, 1)]
    example.entry(A, 0)
    assert example.asked() == [(B, 1), (C, 2)]


def test_reads_are_bounded() -> None:
    example = Example(reads_max=1)
    example.read(0, 1)
    with pytest.raises(NotReadable, match="1 reads are under way"):
        example.machine.read(2, 0, 1, 0.0)


@pytest.mark.parametrize(("first", "last"), [(0, 10), (-1, 3), (4, 3)])
def test_only_confirmed_entries_can_be_read(first: int, last: int) -> None:
    with pytest.raises(NotReadable, match="entries up to 9 can be read"):
        Example().machine.read(1, first, last, 0.0)


def test_an_open_ledger_has_nothing_to_read_before_a_bookie_says_so() -> None:
    example = Example(OPEN)
    assert example.machine.last_readable == -1
    assert example.take(example.machine.learn(0.0)) == []
    assert [request for _, _, request in example.waiting] == [ReadLac(LEDGER)] * 3
    assert example.answer(A, LacRead(LEDGER, Code.NO_LEDGER, None, None)) == []
    # The largest answer counts: of the last entry's header and of what `WriteLac` has stored.
    assert example.answer(B, LacRead(LEDGER, Code.OK, CODEC.pack_lac(4), body(4, 3))) == [LastConfirmed(4, False)]
    assert example.answer(C, LacRead(LEDGER, Code.OK, b"rubbish", body(6, 2))) == [LastConfirmed(4, False)]


@pytest.mark.parametrize("kind", ["missing", "damaged", "other", "error", "failure"])
def test_the_next_bookie_is_asked(kind: str) -> None:
    """That one bookie does not have an entry is no proof that there is none."""
    example = Example()
    example.read(0, 0)
    match kind:
        case "missing":
            assert example.entry(A, 0, code=Code.NO_ENTRY) == []
        case "damaged":
            assert example.entry(A, 0, body(0)[:-1] + b"?") == []
        case "other":
            assert example.entry(A, 0, body(1)) == []
        case "error":
            assert example.entry(A, 0, code=Code.IO_ERROR) == []
        case _:
            assert example.fail(A) == []
            assert example.bookies.quarantined(A, 1.0)
    assert example.asked() == [(B, 0)]
    assert example.entry(B, 0) == [EntriesRead(1, 0, (b"payload 0",), (9,), True)]


def test_a_bookie_that_failed_is_asked_last() -> None:
    example = Example()
    example.bookies.failed(A, 0.0)
    example.read(0, 0)
    assert example.asked() == [(B, 0)]


def test_another_bookie_is_asked_after_a_while() -> None:
    example = Example()
    example.read(0, 0)
    assert example.machine.wake_at == 0.5
    assert example.machine.tick(0.4) == []
    example.take(example.machine.tick(0.5))
    assert example.asked() == [(A, 0), (B, 0)]
    assert example.entry(B, 0) == [EntriesRead(1, 0, (b"payload 0",), (9,), True)]
    assert example.entry(A, 0) == []  # late


@pytest.mark.parametrize(("codes", "problem"), [
    ((Code.NO_ENTRY, Code.NO_ENTRY, Code.NO_LEDGER), ReadProblem.MISSING),
    ((Code.NO_ENTRY, Code.UNKNOWN_LEDGER_STATE, Code.NO_ENTRY), ReadProblem.UNAVAILABLE),
    ((Code.NO_ENTRY, Code.OK, Code.NO_ENTRY), ReadProblem.DAMAGED),
    ((Code.OK, Code.OK, Code.OK), ReadProblem.DAMAGED),
    ((Code.NO_ENTRY, Code.OK, Code.IO_ERROR), ReadProblem.UNAVAILABLE),
])  # fmt: skip
def test_an_entry_that_no_bookie_has_is_looked_for_in_newer_metadata(
    codes: tuple[Code, ...], problem: ReadProblem
) -> None:
    example = Example()
    example.read(0, 0)
    effects: list[object] = []
    for bookie, code in zip((A, B, C), codes, strict=True):
        effects = example.entry(bookie, 0, b"rubbish" if code is Code.OK else None, code)
    assert effects == [ReadMetadata()]
    repaired = replace(CLOSED, segments=(Segment(0, (A, D, C)),))
    assert example.take(example.machine.metadata_read(Versioned(repaired, 5), 0.0)) == []
    for bookie, code in zip((A, D, C), codes, strict=True):
        effects = example.entry(bookie, 0, b"rubbish" if code is Code.OK else None, code)
    assert effects == [ReadFailed(1, 0, problem)]
    assert not example.machine.reading


def test_what_comes_before_a_problem_is_delivered() -> None:
    example = Example(entries_max=2)
    example.read(0, 1)
    for _ in range(2):
        for bookie in (B, C, A):
            example.entry(bookie, 1, code=Code.NO_ENTRY)
        example.take(example.machine.metadata_read(Versioned(CLOSED, 4), 0.0))
    assert example.entry(A, 0) == [
        EntriesRead(1, 0, (b"payload 0",), (9,), False),
        ReadFailed(1, 1, ReadProblem.MISSING),
    ]


def test_a_cancelled_read_makes_room() -> None:
    example = Example(entries_max=2)
    example.read(0, 9)
    example.machine.cancel(1)
    example.take(example.machine.read(2, 5, 5, 0.0))
    assert (C, 5) in example.asked()
    assert example.entry(A, 0) == []


def test_batches_where_each_bookie_has_all_entries() -> None:
    example = Example(batches=True)
    example.read(0, 5)
    number, request = example.pop(A)
    assert request == ReadBatch(LEDGER, 0, 6, 1 << 20)
    effects = example.machine.answered(A, number, BatchRead(LEDGER, 0, Code.OK, (body(0), body(1))), 0.0)
    assert example.take(effects) == [EntriesRead(1, 0, (b"payload 0", b"payload 1"), (9, 18), False)]
    # The rest is asked for again, at the same bookie.
    number, request = example.pop(A)
    assert request == ReadBatch(LEDGER, 2, 4, 1 << 20)
    # Without an answer each entry is asked for by itself.
    assert example.take(example.machine.failed(A, number, 0.0)) == []
    assert {entry for _, entry in example.asked()} == {2, 3, 4, 5}


def test_a_damaged_entry_of_a_batch_comes_from_another_bookie() -> None:
    example = Example(batches=True)
    example.read(0, 2)
    effects = example.answer(A, BatchRead(LEDGER, 0, Code.OK, (body(0), b"rubbish", body(2))))
    assert effects == [EntriesRead(1, 0, (b"payload 0",), (9,), False)]
    assert example.asked() == [(B, 1)]
    assert example.entry(B, 1) == [EntriesRead(1, 1, (b"payload 1", b"payload 2"), (18, 27), True)]


def test_no_batches_over_stripes_or_segments_or_where_they_are_refused() -> None:
    striped = Example(STRIPED, batches=True)
    striped.read(0, 1)
    assert striped.asked() == [(A, 0), (B, 1)]
    segments = (Segment(0, (A, B, C)), Segment(2, (A, B, D)))
    moved = Example(replace(CLOSED, segments=segments), batches=True)
    moved.read(0, 4)
    assert [getattr(request, "entries_max", 1) for _, _, request in moved.waiting] == [2, 3]
    refused = Example(batches=True)
    refused.read(0, 1)
    refused.answer(A, BatchRead(LEDGER, 0, Code.BAD_REQUEST, ()))
    assert {entry for _, entry in refused.asked()} == {0, 1}


def poll(example: Example, bookie: BookieId, lac: int, data: bytes | None = None) -> list[object]:
    return example.answer(bookie, EntryRead(LEDGER, LAST_ENTRY, Code.OK, data, lac), LAST_ENTRY)


def test_following_an_open_ledger() -> None:
    example = Example(OPEN)
    example.take(example.machine.follow(0.0))
    (asked,) = example.waiting
    assert asked[2] == ReadEntry(LEDGER, LAST_ENTRY, previous_lac=-1, timeout_ms=5000, piggyback=True)
    # The answer brings the entry, so that it need not be asked for.
    assert poll(example, A, 0, body(0)) == [LastConfirmed(0, False)]
    assert example.read(0, 0) == [EntriesRead(1, 0, (b"payload 0",), (9,), True)]
    # Without news the next bookie is asked, a little later, and the metadata are read.
    assert poll(example, B, 0) == [ReadMetadata()]
    assert example.machine.wake_at == 0.2
    example.take(example.machine.tick(0.2))
    assert example.asked() == [(C, LAST_ENTRY)]
    assert example.fail(C) == [ReadMetadata()]
    closed = Versioned(quorums.closed(OPEN, 3, 40), 5)
    assert example.take(example.machine.metadata_read(closed, 0.3)) == [LastConfirmed(3, True)]
    assert example.machine.wake_at is None


def test_an_entry_that_came_early_waits_until_it_is_confirmed() -> None:
    example = Example(OPEN)
    example.take(example.machine.follow(0.0))
    assert poll(example, A, -1, body(0)) == [ReadMetadata()]
    with pytest.raises(NotReadable):
        example.read(0, 0)


def test_older_metadata_are_ignored() -> None:
    example = Example()
    assert example.machine.metadata_read(Versioned(OPEN, 3), 0.0) == []
    assert example.machine.closed
