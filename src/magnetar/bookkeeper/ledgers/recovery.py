"""The recovery of a ledger: refuses its writer, finds the last entry, makes sure that enough bookies have it, closes the ledger.

Any number of clients may recover a ledger at once, and each may die at any step: the next one starts from the beginning.

Source: docs/design/bookkeeper.md#recovery; `LedgerRecoveryOp` and `ReadLastConfirmedOp` of Apache BookKeeper 4.17.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.adds import Adds
from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import Effect, Ending, Finished, ReadMetadata, Send, UpdateMetadata
from magnetar.bookkeeper.ledgers.metadata import NO_ENTRY, BookieId, LedgerMetadata, LedgerState, Versioned
from magnetar.bookkeeper.ledgers.postponed import Postponed
from magnetar.bookkeeper.protocol.entries import DamagedEntry, EntryCodec, Stored
from magnetar.bookkeeper.protocol.messages import (
    ABSENT,
    LAST_ENTRY,
    Code,
    EntryAdded,
    EntryRead,
    ForceLedger,
    LedgerForced,
    ReadEntry,
    Request,
    Response,
)


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Limits of a recovery.

    Attributes:
        entries_max: entries that are read or added again at once. A writer has thousands under way, each of up to 1 MiB, and two
            copies of each are read.
        bytes_max: of the entries that are added again at once; no more are read while there are as many.
        changes_max: of the ensemble. When this many bookies have failed, one after the other, the next ones will fail, too.
        busy_s: seconds until a request is sent again to a bookie that has too many.
        speculative_s: seconds until another bookie is asked for the same entry.
    """

    entries_max: int = 64
    bytes_max: int = 16 << 20
    changes_max: int = 100
    busy_s: float = 0.05
    speculative_s: float = 0.5


DEFAULT_LIMITS: Final = RecoveryLimits()


class _Phase(Enum):
    MARKING = auto()
    FENCING = auto()
    COPYING = auto()
    MEASURING = auto()
    CLOSING = auto()


@dataclass(slots=True)
class _Asked:
    """A request that is not an add.

    Attributes:
        kind: the phase in which its answer counts; FENCING for `ForceLedger`, too.
        entry: that is read; `LAST_ENTRY` with a fencing one.
        request: to send again.
        open: bookies that have not answered.
    """

    kind: _Phase
    entry: int
    request: Request
    open: int


@dataclass(slots=True)
class _Wanted:
    """An entry after the last confirmed one that may exist.

    Attributes:
        asked_at: seconds; when a bookie was last asked.
        left: indexes that were not asked, the next one first.
        waiting: indexes that were asked and have not answered.
        unproven: index -> session of an answer that it does not have the entry, which counts as soon as its fence is on disk.
        absent: indexes that do not have the entry and will not get it from the writer.
        found: the entry.
    """

    asked_at: float
    left: list[int]
    waiting: set[int] = field(default_factory=set)
    unproven: dict[int, int] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    found: Stored | None = None


class LedgerRecovery:
    """Recovers one ledger, once.

    The numbers of its requests other than adds are negative.

    Args:
        ledger: its id.
        versioned: its metadata as read just now.
        codec: for its entries.
        bookies: to replace those that fail.
        limits: see `RecoveryLimits`.

    Attributes:
        ending: why it has finished; None: it has not. Unless it is `Ending.CLOSED`, recover again later.
    """

    def __init__(
        self,
        ledger: int,
        versioned: Versioned,
        codec: EntryCodec,
        bookies: Bookies,
        limits: RecoveryLimits = DEFAULT_LIMITS,
    ) -> None:
        self.ending: Ending | None = None
        self._ledger = ledger
        self._versioned = versioned
        self._codec = codec
        self._bookies = bookies
        self._limits = limits
        self._phase = _Phase.MARKING
        self._proposed: LedgerMetadata | None = None
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._postponed = Postponed(limits.busy_s)
        # Indexes in the last segment: bookies whose fence is on disk; those without an answer to the first fencing read;
        # those that were asked to bring their fence to disk, with the session.
        self._fenced: set[int] = set()
        self._silent: set[int] = set()
        self._forcing: dict[int, int] = {}
        self._changes = 0
        self._lac = NO_ENTRY
        self._wanted: dict[int, _Wanted] = {}
        self._next = 0
        self._end_found = False
        self._begin()

    def _begin(self) -> None:
        metadata = self._versioned.metadata
        # Entries are read from what is stored now; changes of the bookies stay in memory until the ledger is closed.
        self._changed = metadata
        self._ensemble = metadata.segments[-1].ensemble
        self._adds = Adds(self._ledger, self._codec, metadata, recovery=True)

    @property
    def metadata(self) -> Versioned:
        """As last written or read."""
        return self._versioned

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do; None: nothing."""
        if self.ending is not None:
            return None
        times = [one.asked_at + self._limits.speculative_s for one in self._wanted.values() if one.left]
        if (due := self._postponed.wake_at) is not None:
            times.append(due)
        return min(times, default=None)

    def start(self, now: float) -> list[Effect]:
        """Begin: mark the ledger as in recovery, so that its writer cannot change the metadata any longer."""
        metadata = self._versioned.metadata
        if metadata.state is LedgerState.CLOSED:
            return self._finish(Ending.CLOSED)
        if metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()
        self._proposed = replace(metadata, state=LedgerState.IN_RECOVERY)
        return [UpdateMetadata(self._proposed, self._versioned.version)]

    def metadata_written(self, version: int, now: float) -> list[Effect]:
        """The proposal is stored, with this version."""
        if self.ending is not None or self._proposed is None:
            return []
        self._versioned = Versioned(self._proposed, version)
        self._proposed = None
        if self._phase is _Phase.CLOSING:
            return self._finish(Ending.CLOSED)
        self._begin()
        return self._fence()

    def metadata_read(self, versioned: Versioned | None, now: float) -> list[Effect]:
        """The metadata as stored, after a proposal that was refused or whose fate is unknown. None: the ledger was deleted."""
        proposed = self._proposed
        if self.ending is not None or proposed is None:
            return []
        if versioned is None:
            return self._finish(Ending.NO_SUCH_LEDGER)
        if versioned.version < self._versioned.version:
            # A server that lags has answered.
            return [ReadMetadata()]
        self._proposed = None
        former, self._versioned = self._versioned, versioned
        if self._phase is _Phase.MARKING:
            # The writer may have changed the ensemble meanwhile, so everything is decided again.
            self._begin()
            return self.start(now)
        stored = versioned.metadata
        if stored.state is LedgerState.CLOSED:
            return self._finish(Ending.CLOSED)
        at = len(former.metadata.segments) - 1
        if stored.state is not LedgerState.IN_RECOVERY or stored.segments[at:] != former.metadata.segments[at:]:
            return self._finish(Ending.CONFLICT)
        # Bookies of older segments were replaced by another client.
        self._changed = replace(stored, segments=(*stored.segments[:at], *self._changed.segments[at:]))
        return self._close(proposed.last_entry, proposed.length)

    def answered(self, bookie: BookieId, number: int, response: Response, now: float, session: int) -> Sequence[Effect]:
        """A bookie has answered a request.

        Args:
            bookie: as in the `Send`.
            number: as in the `Send`.
            response: of the bookie.
            now: seconds.
            session: names the connection, with a number that no other connection to this bookie had or will have. A bookie that
                restarts between two answers gives them over different connections.
        """
        if self.ending is not None:
            return ()
        if isinstance(response, EntryAdded):
            return self._added(bookie, number, response.code, now)
        asked = self._asked.get(number)
        if asked is None:
            return ()
        if isinstance(response, EntryRead) and response.code is Code.TOO_MANY:
            self._postponed.add(bookie, number, now)
            return ()
        self._settle(number, asked)
        if isinstance(response, LedgerForced):
            return self._forced(bookie, response.code, now, session)
        if not isinstance(response, EntryRead):
            return ()
        if response.code is Code.UNAUTHORISED:
            return self._finish(Ending.UNAUTHORISED)
        if asked.kind is _Phase.FENCING:
            return self._answered_fence(bookie, response, now, session)
        if asked.kind is _Phase.COPYING:
            return self._answered_read(bookie, asked.entry, response, now, session)
        return self._answered_measure(asked, response)

    def failed(self, bookie: BookieId, number: int, now: float) -> Sequence[Effect]:
        """A request was not answered in time, or its connection was lost."""
        if self.ending is not None:
            return ()
        self._bookies.failed(bookie, now)
        if number >= 0:
            return self._lost(bookie, now)
        asked = self._asked.get(number)
        if asked is None:
            return ()
        self._settle(number, asked)
        if isinstance(asked.request, ForceLedger):
            return self._not_forced(bookie, now)
        if asked.kind is _Phase.FENCING:
            self._silent.discard(self._ensemble.index(bookie))
            return self._check_fence(now)
        if asked.kind is _Phase.COPYING:
            return self._no_answer(bookie, asked.entry, now)
        return self._not_measured(asked)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        if self.ending is not None:
            return []
        effects: list[Effect] = []
        for bookie, number in self._postponed.take(now):
            if number >= 0:
                effects += self._adds.again(bookie, number)
            elif number in self._asked:
                effects.append(Send((bookie,), number, self._asked[number].request))
        for entry, wanted in self._wanted.items():
            if wanted.left and wanted.asked_at + self._limits.speculative_s <= now:
                effects += self._read(entry, wanted, 1, now)
        return effects

    # --------------------------------------------------------------------------------------------------------- fencing

    def _fence(self) -> list[Effect]:
        """Ask all bookies of the last segment to refuse the writer, and for their last entries."""
        self._phase = _Phase.FENCING
        self._lac = self._versioned.metadata.segments[-1].first - 1
        self._silent = set(range(len(self._ensemble)))
        request = ReadEntry(self._ledger, LAST_ENTRY, fence=True, master_key=self._codec.master_key, high_priority=True)
        return [self._ask(self._ensemble, _Phase.FENCING, LAST_ENTRY, request)]

    def _answered_fence(self, bookie: BookieId, response: EntryRead, now: float, session: int) -> Sequence[Effect]:
        index = self._ensemble.index(bookie)
        if response.code is Code.OK:
            self._silent.discard(index)
            try:
                # A damaged entry says nothing about the last confirmed one, but the bookie has fenced the ledger.
                stored = self._codec.unpack(LAST_ENTRY, response.body or b"")
            except DamagedEntry:
                pass
            else:
                # Entries before the last segment are confirmed: its first change of bookies waited for them (issue 2615).
                self._lac = max(self._lac, stored.lac)
            return self._proven(index, now, session)
        if response.code in ABSENT:
            return self._force(index, session)
        self._silent.discard(index)
        return self._check_fence(now)

    def _force(self, index: int, session: int) -> list[Effect]:
        """A negative answer to a fencing read does not wait for the fence to be on disk: ask for that.

        The bookie may restart, and forget the fence, until it has answered `ForceLedger` over the same connection.
        """
        if index in self._forcing:
            return []
        self._forcing[index] = session
        return [self._ask((self._ensemble[index],), _Phase.FENCING, LAST_ENTRY, ForceLedger(self._ledger))]

    def _forced(self, bookie: BookieId, code: Code, now: float, session: int) -> Sequence[Effect]:
        index = self._ensemble.index(bookie)
        if code is not Code.OK or self._forcing.get(index) != session:
            return self._not_forced(bookie, now)
        self._silent.discard(index)
        return self._proven(index, now, session)

    def _not_forced(self, bookie: BookieId, now: float) -> Sequence[Effect]:
        """Whether the bookie refuses the writer is unknown: as if it had not answered."""
        index = self._ensemble.index(bookie)
        self._forcing.pop(index, None)
        self._silent.discard(index)
        effects = list(self._check_fence(now))
        for entry, wanted in list(self._wanted.items()):
            if wanted.unproven.pop(index, None) is not None:
                effects += self._read(entry, wanted, 1, now)
        return effects + self._advance(now)

    def _proven(self, index: int, now: float, session: int) -> Sequence[Effect]:
        """The fence of a bookie is on disk: it will not take entries of the writer, whatever happens to it."""
        self._forcing.pop(index, None)
        if index in self._fenced:
            return ()
        self._fenced.add(index)
        effects: list[Effect] = []
        for entry, wanted in self._wanted.items():
            said = wanted.unproven.pop(index, None)
            if said == session:
                wanted.absent.add(index)
            elif said is not None:
                # The bookie may have got the entry between the two sessions: ask again.
                wanted.left.insert(0, index)
                effects += self._read(entry, wanted, 1, now)
        effects += self._check_fence(now)
        return effects + self._advance(now)

    def _check_fence(self, now: float) -> list[Effect]:
        if self._phase is not _Phase.FENCING:
            return []
        # Begin when enough bookies have answered: a hung one does not delay the recovery (issue 1067).
        if quorums.covered(self._versioned.metadata, self._fenced):
            self._phase = _Phase.COPYING
            self._next = self._lac + 1
            self._adds = Adds(self._ledger, self._codec, self._versioned.metadata, lac=self._lac, recovery=True)
            return self._advance(now)
        return [] if self._silent else self._finish(Ending.NO_BOOKIES)

    # --------------------------------------------------------------------------------------------------------- copying

    def _advance(self, now: float) -> list[Effect]:
        """Ask for entries, add those again that were found, in order, and close after the last one."""
        if self._phase is not _Phase.COPYING or self.ending is not None:
            return []
        effects: list[Effect] = []
        metadata, limits, adds = self._versioned.metadata, self._limits, self._adds
        needed = quorums.absences_needed(metadata)
        while not self._end_found:
            head = self._wanted.get(self._next)
            if head is not None and head.found is not None:
                del self._wanted[self._next]
                self._next += 1
                effects += adds.add(head.found.payload, head.found.length)
            elif head is not None and len(head.absent) >= needed:
                self._end_found = True
                self._wanted.clear()
            elif head is not None and not head.left and not head.waiting and not head.unproven:
                # It may exist on a bookie that did not answer. Never guess.
                return self._finish(Ending.UNDECIDABLE)
            elif len(self._wanted) + len(adds) < limits.entries_max and adds.bytes < limits.bytes_max:
                entry = self._next + len(self._wanted)
                # Those that have not answered come last.
                order = sorted(metadata.write_set(entry), key=lambda index: index not in self._fenced)
                wanted = self._wanted[entry] = _Wanted(now, order)
                # This number of negative answers decides, so ask for all of them at once.
                effects += self._read(entry, wanted, needed, now)
            else:
                break
        effects += self._replace(now)
        if self._end_found and not adds and self.ending is None:
            effects += self._copied()
        return effects

    def _read(self, entry: int, wanted: _Wanted, count: int, now: float) -> list[Send]:
        """Ask the next bookies for an entry. Each read fences: its bookie may not have got the first one (issue 2614)."""
        asked, wanted.left = wanted.left[:count], wanted.left[count:]
        wanted.asked_at = now
        wanted.waiting.update(asked)
        if not asked:
            return []
        request = ReadEntry(self._ledger, entry, fence=True, master_key=self._codec.master_key, high_priority=True)
        return [self._ask(tuple(self._ensemble[index] for index in asked), _Phase.COPYING, entry, request)]

    def _answered_read(
        self, bookie: BookieId, entry: int, response: EntryRead, now: float, session: int
    ) -> Sequence[Effect]:
        index = self._ensemble.index(bookie)
        wanted = self._wanted.get(entry)
        effects: list[Effect] = []
        if wanted is not None and response.code in ABSENT:
            wanted.waiting.discard(index)
            if index in self._fenced:
                wanted.absent.add(index)
            else:
                wanted.unproven[index] = session
                effects += self._force(index, session)
            effects += self._read(entry, wanted, 1, now)
            return effects + self._advance(now)
        if response.code is not Code.OK:
            return self._no_answer(bookie, entry, now)
        if wanted is not None:
            wanted.waiting.discard(index)
            try:
                wanted.found = self._codec.unpack(entry, response.body or b"")
            except DamagedEntry:
                effects += self._read(entry, wanted, 1, now)
        # A positive answer has waited for the fence.
        effects += self._proven(index, now, session)
        return effects + self._advance(now)

    def _no_answer(self, bookie: BookieId, entry: int, now: float) -> list[Effect]:
        wanted = self._wanted.get(entry)
        if wanted is None:
            return []
        wanted.waiting.discard(self._ensemble.index(bookie))
        return [*self._read(entry, wanted, 1, now), *self._advance(now)]

    def _added(self, bookie: BookieId, entry: int, code: Code, now: float) -> Sequence[Effect]:
        if code is Code.OK:
            return self._advance(now) if self._adds.stored(bookie, entry) and self._adds.confirm() else ()
        if code is Code.UNAUTHORISED:
            return self._finish(Ending.UNAUTHORISED)
        if code is Code.TOO_MANY:
            self._postponed.add(bookie, entry, now)
            return ()
        self._bookies.failed(bookie, now)
        return self._lost(bookie, now)

    def _lost(self, bookie: BookieId, now: float) -> list[Effect]:
        return self._replace(now) if self._adds.lose(bookie) else []

    def _replace(self, now: float) -> list[Effect]:
        """Replace bookies that do not take entries, in memory only: the close writes it."""
        adds = self._adds
        # Without an entry that needs it the metadata would get a segment without entries.
        if not adds.missing or not adds or self.ending is not None:
            return []
        chosen = self._bookies.replacements(adds.ensemble, adds.missing, now)
        ensemble = [chosen.get(index, bookie) for index, bookie in enumerate(adds.ensemble)]
        effects: list[Effect] = []
        if chosen:
            self._changes += 1
            if self._changes > self._limits.changes_max:
                return self._finish(Ending.NO_BOOKIES)
            self._changed = quorums.with_ensemble(self._changed, adds.lac + 1, ensemble)
            effects += adds.move(ensemble)
        return effects if adds.writable() else self._finish(Ending.NO_BOOKIES)

    # --------------------------------------------------------------------------------------------------------- closing

    def _copied(self) -> list[Effect]:
        """All entries are on enough bookies."""
        adds = self._adds
        if adds.lac == self._lac and self._lac > NO_ENTRY:
            # Nothing was added again. The length of the last entry is exact only in that entry itself.
            self._phase = _Phase.MEASURING
            request = ReadEntry(self._ledger, self._lac, high_priority=True)
            return [
                self._ask(tuple(self._versioned.metadata.bookies_of(adds.lac)), _Phase.MEASURING, adds.lac, request)
            ]
        return self._close(adds.lac, adds.length)

    def _answered_measure(self, asked: _Asked, response: EntryRead) -> list[Effect]:
        if response.code is Code.OK and self._phase is _Phase.MEASURING:
            try:
                stored = self._codec.unpack(self._lac, response.body or b"")
            except DamagedEntry:
                return self._not_measured(asked)
            return self._close(self._lac, stored.length)
        return self._not_measured(asked)

    def _not_measured(self, asked: _Asked) -> list[Effect]:
        return self._finish(Ending.UNDECIDABLE) if self._phase is _Phase.MEASURING and not asked.open else []

    def _close(self, last_entry: int, length: int) -> list[Effect]:
        """Write the end of the ledger and the bookies that were changed, in one update."""
        self._phase = _Phase.CLOSING
        self._proposed = quorums.closed(self._changed, last_entry, length)
        return [UpdateMetadata(self._proposed, self._versioned.version)]

    def _ask(self, bookies: tuple[BookieId, ...], kind: _Phase, entry: int, request: Request) -> Send:
        self._number -= 1
        self._asked[self._number] = _Asked(kind, entry, request, len(bookies))
        return Send(bookies, self._number, request)

    def _settle(self, number: int, asked: _Asked) -> None:
        asked.open -= 1
        if not asked.open:
            del self._asked[number]

    def _finish(self, ending: Ending) -> list[Effect]:
        self.ending = ending
        self._wanted.clear()
        self._asked.clear()
        self._postponed.clear()
        return [Finished(ending, self._versioned)]
