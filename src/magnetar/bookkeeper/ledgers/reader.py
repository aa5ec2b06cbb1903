"""The reader of a ledger: of a closed one all entries, of an open one those up to the last confirmed entry that it has learned.

Source: docs/design/bookkeeper.md#reading; `PendingReadOp` and `ReadLastConfirmedAndEntryOp` of Apache BookKeeper 4.17.3.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import (
    Effect,
    EntriesRead,
    LastConfirmed,
    ReadFailed,
    ReadMetadata,
    ReadProblem,
    Send,
)
from magnetar.bookkeeper.ledgers.metadata import NO_ENTRY, BookieId, LedgerState, Versioned
from magnetar.bookkeeper.protocol.entries import DamagedEntry, EntryCodec
from magnetar.bookkeeper.protocol.messages import (
    ABSENT,
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


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of a reader.

    Attributes:
        entries_max: entries that were asked for and are not delivered. Each may have 1 MiB.
        reads_max: reads at once.
        batch_bytes: of one batch. The answer is one frame, and a bookie's frames have 5 MiB at most.
        speculative_s: seconds until another bookie is asked for the same entry.
        poll_ms: milliseconds that a bookie waits for a new last confirmed entry before it answers a long poll.
        retry_s: seconds until the next long poll when one was answered at once without news.
    """

    entries_max: int = 64
    reads_max: int = 1_000
    batch_bytes: int = 1 << 20
    speculative_s: float = 0.5
    poll_ms: int = 5_000
    retry_s: float = 0.2


DEFAULT_LIMITS: Final = ReaderLimits()


class NotReadable(Exception):
    """An entry after the last confirmed one was asked for, or there are too many reads."""


@dataclass(slots=True)
class _Entry:
    """An entry that was asked for.

    Attributes:
        left: bookies that were not asked, the next one first.
        asked_at: seconds; when a bookie was last asked.
        waiting: bookies that were asked and have not answered.
        absent, damaged: how many bookies said so, or sent such a copy.
        renewed: the metadata were read again because no bookie had it.
        payload, length: of the entry, once a whole copy was read; see `EntriesRead`.
        problem: why it cannot be read.
    """

    left: list[BookieId]
    asked_at: float
    waiting: set[BookieId] = field(default_factory=set)
    absent: int = 0
    damaged: int = 0
    renewed: bool = False
    payload: bytes | None = None
    length: int = 0
    problem: ReadProblem | None = None


@dataclass(slots=True)
class _Read:
    """Successive entries that a caller wants.

    Attributes:
        deliver: the next entry to deliver.
        ask: the next entry to ask for.
        last: the last entry.
        entries: those that were asked for and are not delivered.
    """

    deliver: int
    ask: int
    last: int
    entries: dict[int, _Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request to one bookie.

    Attributes:
        read: whose entries it asks for.
        first, count: of the entries.
    """

    read: int
    first: int
    count: int


class LedgerReader:
    """Reads one ledger. Nothing is delivered after `last_readable`.

    Args:
        ledger: its id.
        versioned: its metadata. Bring newer ones by `metadata_read` whenever they change.
        codec: for its entries.
        bookies: those in quarantine are asked last.
        limits: see `ReaderLimits`.
        batches: entries may be read in batches, which only v2 has.

    Attributes:
        last_readable: the last entry that can be read; -1: none.
    """

    def __init__(
        self,
        ledger: int,
        versioned: Versioned,
        codec: EntryCodec,
        bookies: Bookies,
        limits: ReaderLimits = DEFAULT_LIMITS,
        *,
        batches: bool = False,
    ) -> None:
        self.last_readable = NO_ENTRY
        self._ledger = ledger
        self._versioned = versioned
        self._codec = codec
        self._bookies = bookies
        self._limits = limits
        self._batches = batches
        self._number = 0
        self._reads: dict[int, _Read] = {}
        self._asked: dict[int, _Asked] = {}
        self._under_way = 0
        # Questions for the last confirmed entry that are not answered, by number.
        self._learning: dict[int, int] = {}
        self._following = False
        self._poll: int | None = None
        self._poll_lac = NO_ENTRY
        self._poll_turn = 0
        self._poll_at: float | None = None
        # The entry that came with a long poll; it waits here until it is confirmed and asked for.
        self._ahead: tuple[int, bytes, int] | None = None
        if self.closed:
            self.last_readable = versioned.metadata.last_entry

    @property
    def closed(self) -> bool:
        """Whether `last_readable` is the ledger's last entry."""
        return self._versioned.metadata.state is LedgerState.CLOSED

    @property
    def reading(self) -> bool:
        """Whether a read is under way."""
        return bool(self._reads)

    @property
    def metadata(self) -> Versioned:
        """As last read."""
        return self._versioned

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do; None: nothing."""
        times = [one.asked_at + self._limits.speculative_s for one in self._open_entries() if one.left and one.waiting]
        if self._poll_at is not None:
            times.append(self._poll_at)
        return min(times, default=None)

    def read(self, read: int, first: int, last: int, now: float) -> list[Effect]:
        """Read successive entries; they are delivered in order, as they come.

        Args:
            read: names the read in `EntriesRead` and `ReadFailed`; the caller chooses a new number.
            first, last: entry ids.
            now: seconds.

        Raises:
            NotReadable: the last entry is not known to be confirmed, or there are too many reads.
        """
        if not 0 <= first <= last <= self.last_readable:
            raise NotReadable(f"entries {first} to {last}: entries up to {self.last_readable} can be read")
        if len(self._reads) >= self._limits.reads_max:
            raise NotReadable(f"{len(self._reads)} reads are under way: the limit is reached")
        self._reads[read] = _Read(first, first, last)
        return self._fill(now)

    def cancel(self, read: int) -> None:
        """Forget a read; answers for it are ignored."""
        cancelled = self._reads.pop(read, None)
        if cancelled is not None:
            self._under_way -= len(cancelled.entries)

    def learn(self, now: float) -> list[Effect]:
        """Ask the bookies of the last segment for the last confirmed entry.

        `LastConfirmed` comes whenever it rises, and once more when all have answered.
        """
        if self.closed:
            return [LastConfirmed(self.last_readable, closed=True)]
        bookies = self._versioned.metadata.segments[-1].ensemble
        self._number += 1
        self._learning[self._number] = len(bookies)
        return [Send(bookies, self._number, ReadLac(self._ledger))]

    def confirmed(self, last: int) -> list[Effect]:
        """The writer has confirmed entries up to this one; bookies learn it only with its next entry."""
        return self._learned(last)

    def follow(self, now: float) -> list[Effect]:
        """Report each rise of the last confirmed entry from now on, until the ledger is closed."""
        self._following = True
        return self._ask_poll(now)

    def unfollow(self) -> None:
        """Report no more rises."""
        self._following = False
        self._poll = self._poll_at = None

    def answered(
        self, bookie: BookieId, number: int, response: Response, now: float, session: int = 0
    ) -> Sequence[Effect]:
        """A bookie has answered a request."""
        if isinstance(response, LacRead):
            return self._answered_learn(number, response)
        if number == self._poll and isinstance(response, EntryRead):
            return self._answered_poll(response, now)
        asked = self._asked.pop(number, None)
        if asked is None:
            return ()
        bodies: tuple[bytes, ...]
        if isinstance(response, EntryRead):
            bodies = () if response.code is not Code.OK or response.body is None else (response.body,)
            effects = self._learned(response.max_lac)
        elif isinstance(response, BatchRead):
            if response.code is Code.BAD_REQUEST:
                self._batches = False
            bodies = response.bodies if response.code is Code.OK else ()
            effects = []
        else:
            return ()
        # A batch may have more than was asked for.
        bodies = bodies[: asked.count]
        for offset, body in enumerate(bodies):
            effects += self._answered_entry(asked.read, asked.first + offset, bookie, response.code, body)
        rest = range(asked.first + len(bodies), asked.first + asked.count)
        if bodies and rest:
            # The batch was too small for all of them, which says nothing about the others.
            effects += self._ask_again(asked.read, rest, bookie, now)
        else:
            for entry in rest:
                effects += self._answered_entry(asked.read, entry, bookie, response.code, None)
        return effects + self._progress(asked.read, now)

    def failed(self, bookie: BookieId, number: int, now: float) -> Sequence[Effect]:
        """A request was not answered in time, or its connection was lost."""
        self._bookies.failed(bookie, now)
        if number in self._learning:
            return self._count_learn(number)
        if number == self._poll:
            return self._poll_later(now)
        asked = self._asked.pop(number, None)
        if asked is None:
            return ()
        effects: list[Effect] = []
        for entry in range(asked.first, asked.first + asked.count):
            effects += self._answered_entry(asked.read, entry, bookie, Code.IO_ERROR, None)
        return effects + self._progress(asked.read, now)

    def metadata_read(self, versioned: Versioned | None, now: float) -> list[Effect]:
        """The metadata as stored now. None: the ledger was deleted."""
        effects: list[Effect] = []
        if versioned is not None and versioned.version >= self._versioned.version:
            was_closed = self.closed
            self._versioned = versioned
            if self.closed and not was_closed:
                self.last_readable = versioned.metadata.last_entry
                self.unfollow()
                effects.append(LastConfirmed(self.last_readable, closed=True))
        for number, read in list(self._reads.items()):
            for entry, one in read.entries.items():
                if one.renewed and one.payload is None and not one.left and not one.waiting:
                    # Another client may have copied the entry to other bookies: ask all of them once more.
                    one.absent = one.damaged = 0
                    one.left = self._order(entry, now)
                    effects += self._ask_entry(number, entry, one, now)
            effects += self._progress(number, now)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for number, read in self._reads.items():
            for entry, one in read.entries.items():
                if one.left and one.waiting and one.asked_at + self._limits.speculative_s <= now:
                    effects += self._ask_entry(number, entry, one, now)
        if self._poll_at is not None and self._poll_at <= now:
            effects += self._ask_poll(now)
        return effects

    # ---------------------------------------------------------------------------------------------------------- entries

    def _open_entries(self) -> list[_Entry]:
        return [one for read in self._reads.values() for one in read.entries.values() if one.payload is None]

    def _order(self, entry: int, now: float) -> list[BookieId]:
        """The bookies of an entry, those last that have failed lately."""
        bookies = self._bookies
        return sorted(self._versioned.metadata.bookies_of(entry), key=lambda bookie: bookies.quarantined(bookie, now))

    def _fill(self, now: float) -> list[Effect]:
        """Ask for as many entries as may be under way, for older reads first."""
        effects: list[Effect] = []
        for number, read in list(self._reads.items()):
            while read.ask <= read.last and self._under_way < self._limits.entries_max:
                if self._ahead is not None and self._ahead[0] == read.ask:
                    read.entries[read.ask] = _Entry([], now, payload=self._ahead[1], length=self._ahead[2])
                    read.ask += 1
                    self._under_way += 1
                    effects += self._deliver(number)
                    continue
                count = self._batch(read)
                for entry in range(read.ask, read.ask + count):
                    read.entries[entry] = _Entry(self._order(entry, now), now)
                effects += self._ask(number, read.ask, count, read.entries[read.ask].left[0], now)
                read.ask += count
                self._under_way += count
        return effects

    def _batch(self, read: _Read) -> int:
        """How many entries to ask for at once: more than one only where each bookie of the segment has all of them."""
        metadata = self._versioned.metadata
        if not self._batches or metadata.ensemble_size != metadata.write_quorum:
            return 1
        end = min([read.last + 1, *(segment.first for segment in metadata.segments if segment.first > read.ask)])
        return min(end - read.ask, self._limits.entries_max - self._under_way)

    def _ask(self, number: int, first: int, count: int, bookie: BookieId, now: float) -> list[Send]:
        """Ask one bookie for some entries of a read."""
        entries = self._reads[number].entries
        for entry in range(first, first + count):
            one = entries[entry]
            one.left.remove(bookie)
            one.waiting.add(bookie)
            one.asked_at = now
        request: Request = (
            ReadBatch(self._ledger, first, count, self._limits.batch_bytes)
            if count > 1
            else ReadEntry(self._ledger, first)
        )
        self._number += 1
        self._asked[self._number] = _Asked(number, first, count)
        return [Send((bookie,), self._number, request)]

    def _ask_entry(self, number: int, entry: int, one: _Entry, now: float) -> list[Send]:
        return self._ask(number, entry, 1, one.left[0], now) if one.left else []

    def _ask_again(self, number: int, entries: range, bookie: BookieId, now: float) -> list[Send]:
        """Ask the same bookie for the rest of a batch."""
        read = self._reads.get(number)
        if read is None:
            return []
        wanted = [entry for entry in entries if entry in read.entries and bookie in read.entries[entry].waiting]
        for entry in wanted:
            read.entries[entry].waiting.discard(bookie)
            read.entries[entry].left.insert(0, bookie)
        return self._ask(number, wanted[0], len(wanted), bookie, now) if wanted else []

    def _answered_entry(
        self, number: int, entry: int, bookie: BookieId, code: Code, body: bytes | None
    ) -> list[Effect]:
        """A bookie has sent an entry, or has said that it cannot."""
        read = self._reads.get(number)
        one = read.entries.get(entry) if read is not None else None
        if one is not None:
            one.waiting.discard(bookie)
        if body is None:
            if one is not None and code in ABSENT:
                one.absent += 1
            return []
        try:
            stored = self._codec.unpack(entry, body)
        except DamagedEntry:
            if one is not None:
                one.damaged += 1
            return []
        if one is not None:
            one.payload, one.length = stored.payload, stored.length
        return self._learned(stored.lac)

    def _progress(self, number: int, now: float) -> list[Effect]:
        """Ask other bookies where one could not help, deliver what is complete."""
        read = self._reads.get(number)
        if read is None:
            return []
        effects: list[Effect] = []
        for entry, one in read.entries.items():
            if one.payload is not None or one.waiting:
                continue
            if one.left:
                # That one bookie does not have it is no proof that there is no such entry.
                effects += self._ask_entry(number, entry, one, now)
            elif not one.renewed:
                one.renewed = True
                effects.append(ReadMetadata())
            elif one.problem is None:
                one.problem = self._problem(entry, one)
        return effects + self._deliver(number) + self._fill(now)

    def _problem(self, entry: int, one: _Entry) -> ReadProblem:
        quorum = self._versioned.metadata.write_quorum
        if one.absent == quorum:
            return ReadProblem.MISSING
        # A bookie that has not answered may have a whole copy.
        return ReadProblem.DAMAGED if one.absent + one.damaged == quorum else ReadProblem.UNAVAILABLE

    def _deliver(self, number: int) -> list[Effect]:
        read = self._reads[number]
        first, payloads, lengths = read.deliver, [], []
        while (one := read.entries.get(read.deliver)) is not None and one.payload is not None:
            payloads.append(one.payload)
            lengths.append(one.length)
            del read.entries[read.deliver]
            self._under_way -= 1
            read.deliver += 1
        effects: list[Effect] = []
        done = read.deliver > read.last
        if payloads:
            effects.append(EntriesRead(number, first, tuple(payloads), tuple(lengths), done))
        if done:
            del self._reads[number]
        elif one is not None and one.problem is not None:
            effects.append(ReadFailed(number, read.deliver, one.problem))
            self.cancel(number)
        return effects

    # -------------------------------------------------------------------------------------------- the last confirmed entry

    def _learned(self, lac: int | None) -> list[Effect]:
        """Any bookie's last confirmed entry is confirmed: it can only be too small."""
        if lac is None or lac <= self.last_readable or self.closed:
            return []
        self.last_readable = lac
        return [LastConfirmed(lac, closed=False)]

    def _answered_learn(self, number: int, response: LacRead) -> list[Effect]:
        if number not in self._learning:
            return []
        best = NO_ENTRY
        if response.code is Code.OK:
            if response.lac_body is not None:
                with suppress(DamagedEntry):
                    best = self._codec.unpack_lac(response.lac_body)
            if response.last_entry_body is not None:
                with suppress(DamagedEntry):
                    best = max(best, self._codec.unpack(LAST_ENTRY, response.last_entry_body).lac)
        return self._learned(best) + self._count_learn(number)

    def _count_learn(self, number: int) -> list[Effect]:
        self._learning[number] -= 1
        if self._learning[number]:
            return []
        del self._learning[number]
        return [LastConfirmed(self.last_readable, closed=self.closed)]

    def _ask_poll(self, now: float) -> list[Effect]:
        """Let one bookie wait for the last confirmed entry to rise; the next poll goes to the next bookie."""
        self._poll_at = None
        if not self._following or self.closed or self._poll is not None:
            return []
        ensemble = self._versioned.metadata.segments[-1].ensemble
        # First the bookies of the entry that comes next, since the answer may bring it; but any bookie may be the only one that
        # has heard of the last entry's confirmation.
        bookie = ensemble[(self.last_readable + 1 + self._poll_turn) % len(ensemble)]
        self._poll_turn += 1
        self._poll_lac = self.last_readable
        self._number += 1
        self._poll = self._number
        request = ReadEntry(
            self._ledger,
            LAST_ENTRY,
            previous_lac=self._poll_lac,
            timeout_ms=self._limits.poll_ms,
            piggyback=True,
        )
        return [Send((bookie,), self._number, request)]

    def _answered_poll(self, response: EntryRead, now: float) -> list[Effect]:
        if response.code is Code.OK:
            lac = response.max_lac
            if response.body is not None:
                try:
                    stored = self._codec.unpack(self._poll_lac + 1, response.body)
                except DamagedEntry:
                    pass
                else:
                    self._ahead = (self._poll_lac + 1, stored.payload, stored.length)
                    lac = max(stored.lac, lac if lac is not None else NO_ENTRY)
            if effects := self._learned(lac):
                self._poll = None
                self._poll_turn = 0
                return effects + self._ask_poll(now)
        return self._poll_later(now)

    def _poll_later(self, now: float) -> list[Effect]:
        """No news. The bookie may have been replaced, or the ledger closed, so read the metadata as well."""
        self._poll = None
        self._poll_at = now + self._limits.retry_s
        return [ReadMetadata()]
