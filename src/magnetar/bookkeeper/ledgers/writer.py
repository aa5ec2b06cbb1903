"""The writer of a ledger: adds entries, replaces bookies that fail, closes.

Source: docs/design/bookkeeper.md#writing; `LedgerHandle` and `PendingAddOp` of Apache BookKeeper 4.17.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.adds import Adds
from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import (
    Confirmed,
    Effect,
    Ending,
    Finished,
    ReadMetadata,
    Send,
    UpdateMetadata,
)
from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata, LedgerState, Versioned
from magnetar.bookkeeper.ledgers.postponed import Postponed
from magnetar.bookkeeper.protocol.entries import EntryCodec
from magnetar.bookkeeper.protocol.messages import Code, EntryAdded, Response, WriteLac

EXPLICIT_LAC: Final = -1
"""The number of every `WriteLac`."""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Limits of a writer.

    Attributes:
        entries_max: entries that are not confirmed. At 100,000 entries a second that is a tenth of a second.
        bytes_max: of the stored entries that are not confirmed: the memory that a writer may need.
        segments_max: of a ledger. Each change of bookies adds one to the metadata, which ZooKeeper refuses above 1 MiB.
        busy_s: seconds until an entry is sent again to a bookie that has too many requests.
        retry_s: seconds until bookies are looked for again when there was none to replace a failed one, or only such that have
            failed lately.
        patience_s: seconds for which a ledger that no ack quorum can confirm waits for bookies.
        explicit_lac_s: seconds without an entry after which readers get the last confirmed entry explicitly.
    """

    entries_max: int = 10_000
    bytes_max: int = 64 << 20
    segments_max: int = 1_000
    busy_s: float = 0.05
    retry_s: float = 1.0
    patience_s: float = 30.0
    explicit_lac_s: float = 0.5


DEFAULT_LIMITS: Final = WriterLimits()


class NotWritable(Exception):
    """The ledger takes no entries: it is closed, it is being closed, or the writer was fenced."""


class TooMuchUnconfirmed(Exception):
    """`LedgerWriter.room` was not heeded."""


class LedgerWriter:
    """Writes a new ledger.

    Args:
        ledger: its id.
        versioned: the metadata with which it was created.
        codec: makes stored entries of payloads.
        bookies: to replace those that fail.
        limits: see `WriterLimits`.

    Attributes:
        ending: why it has finished; None: it has not.
    """

    def __init__(
        self,
        ledger: int,
        versioned: Versioned,
        codec: EntryCodec,
        bookies: Bookies,
        limits: WriterLimits = DEFAULT_LIMITS,
    ) -> None:
        self.ending: Ending | None = None
        self._ledger = ledger
        self._versioned = versioned
        self._codec = codec
        self._bookies = bookies
        self._limits = limits
        self._adds = Adds(ledger, codec, versioned.metadata)
        self._closing = False
        # While the metadata is being changed nothing is confirmed, so that what is proposed stays true.
        self._proposed: LedgerMetadata | None = None
        self._stalled_since: float | None = None
        self._retry_at: float | None = None
        self._next_suspect = -inf
        self._postponed = Postponed(limits.busy_s)
        self._lac_sent = -1
        self._lac_at: float | None = None

    @property
    def last_confirmed(self) -> int:
        """The last confirmed entry; -1: none."""
        return self._adds.lac

    @property
    def unconfirmed(self) -> int:
        """Entries that are not confirmed."""
        return len(self._adds)

    @property
    def room(self) -> bool:
        """Whether one more entry may be appended."""
        return len(self._adds) < self._limits.entries_max and self._adds.bytes < self._limits.bytes_max

    @property
    def metadata(self) -> Versioned:
        """As last written or read."""
        return self._versioned

    @property
    def wake_at(self) -> float | None:
        """When `tick` has something to do; None: nothing."""
        if self.ending is not None:
            return None
        times = [time for time in (self._retry_at, self._lac_at, self._postponed.wake_at) if time is not None]
        return min(times, default=None)

    def append(self, payload: bytes) -> list[Send]:
        """Add an entry. Its id is one more than that of the entry before; the first one is 0.

        Raises:
            NotWritable: the ledger takes no entries.
            TooMuchUnconfirmed: there is no room.
        """
        if self.ending is not None or self._closing:
            raise NotWritable(f"ledger {self._ledger}: {(self.ending or Ending.CLOSED).value}")
        if not self.room:
            raise TooMuchUnconfirmed(f"ledger {self._ledger}: {len(self._adds)} entries wait: the limit is reached")
        # The entry's header brings the last confirmed entry to the bookies.
        self._lac_sent = self._adds.lac
        self._lac_at = None
        return self._adds.add(payload)

    def close(self, now: float) -> list[Effect]:
        """Close the ledger as soon as all entries are confirmed.

        A writer that has finished cannot close it: that would cut off entries. Recover the ledger instead.
        """
        if self.ending is not None or self._closing:
            return []
        self._closing = True
        return self._confirm(now)

    def answered(
        self, bookie: BookieId, number: int, response: Response, now: float, session: int = 0
    ) -> Sequence[Effect]:
        """A bookie has answered a request."""
        if self.ending is not None or not isinstance(response, EntryAdded):
            return ()
        code = response.code
        if code is Code.OK:
            return self._confirm(now) if self._adds.stored(bookie, number) else ()
        if code is Code.FENCED:
            return self._finish(Ending.FENCED)
        if code is Code.UNAUTHORISED:
            return self._finish(Ending.UNAUTHORISED)
        if code is Code.TOO_MANY:
            # The bookie is well, and replacing it would move the load to others: docs/design/bookkeeper.md#too-many.
            if number in self._adds:
                self._postponed.add(bookie, number, now)
            return ()
        return self._failed(bookie, now)

    def failed(self, bookie: BookieId, number: int, now: float) -> Sequence[Effect]:
        """A request was not answered in time, or its connection was lost."""
        if self.ending is not None:
            return ()
        if number == EXPLICIT_LAC:
            # Readers would not learn of the last entry until another one follows.
            self._lac_at = now + self._limits.explicit_lac_s if not self._adds else None
            return ()
        return self._failed(bookie, now)

    def metadata_written(self, version: int, now: float) -> list[Effect]:
        """The proposal is stored, with this version."""
        if self.ending is not None or self._proposed is None:
            return []
        self._versioned = Versioned(self._proposed, version)
        return self._accept(now)

    def metadata_read(self, versioned: Versioned | None, now: float) -> list[Effect]:
        """The metadata as stored, after a proposal that was refused or whose fate is unknown. None: the ledger was deleted."""
        proposed = self._proposed
        if self.ending is not None or proposed is None:
            return []
        if versioned is None:
            return self._finish(Ending.NO_SUCH_LEDGER)
        if versioned.version < self._versioned.version:
            # A server that lags has answered. What it says may look like the proposal.
            return [ReadMetadata()]
        own, stored = self._versioned.metadata, versioned.metadata
        if stored.state is not LedgerState.OPEN:
            self._versioned = versioned
            same = (stored.state, stored.last_entry, stored.length)
            if same == (proposed.state, proposed.last_entry, proposed.length):
                return self._finish(Ending.CLOSED)
            return self._finish(Ending.FENCED)
        if stored.segments[-1] == own.segments[-1]:
            # Another client has changed older segments, or the proposal was lost. Propose it again even if it is not needed any
            # longer: a proposal that is still under way is refused then.
            self._versioned = versioned
            self._proposed = self._rebased(proposed, stored)
            return [UpdateMetadata(self._proposed, versioned.version)]
        if stored.segments[-1] == proposed.segments[-1]:
            self._versioned = versioned
            return self._accept(now)
        return self._finish(Ending.CONFLICT)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        if self.ending is not None:
            return []
        effects: list[Effect] = []
        for bookie, entry in self._postponed.take(now):
            effects += self._adds.again(bookie, entry)
        if self._retry_at is not None and self._retry_at <= now:
            effects += self._retry(now)
        if self._lac_at is not None and self._lac_at <= now and self.ending is None:
            effects += self._explicit_lac()
        return effects

    def _confirm(self, now: float) -> list[Effect]:
        if self._proposed is not None:
            return []
        adds = self._adds
        effects: list[Effect] = []
        if adds.confirm():
            self._stalled_since = None
            effects.append(Confirmed(adds.lac))
            if not adds and adds.lac > self._lac_sent:
                self._lac_at = now + self._limits.explicit_lac_s
        if self._closing and not adds:
            self._proposed = quorums.closed(self._versioned.metadata, adds.lac, adds.length)
            effects.append(UpdateMetadata(self._proposed, self._versioned.version))
        return effects

    def _failed(self, bookie: BookieId, now: float) -> list[Effect]:
        self._bookies.failed(bookie, now)
        # Each pending entry reports the same dead bookie: only the first report counts (issue 4261).
        return self._change(now) if self._adds.lose(bookie) else []

    def _change(self, now: float) -> list[Effect]:
        """Propose other bookies for those that are missing, unless a proposal is under way: then its end calls again."""
        adds = self._adds
        if self._proposed is not None:
            return []
        chosen = self._bookies.replacements(adds.ensemble, adds.missing, now)
        # Where no bookie can be reached, changes to bookies that have failed lately would follow each other without a pause.
        suspect = any(self._bookies.quarantined(bookie, now) for bookie in chosen.values())
        if not chosen or (suspect and now < self._next_suspect):
            return self._wait(now)
        if suspect:
            self._next_suspect = now + self._limits.retry_s
        ensemble = [chosen.get(index, bookie) for index, bookie in enumerate(adds.ensemble)]
        proposed = quorums.with_ensemble(self._versioned.metadata, adds.lac + 1, ensemble)
        if len(proposed.segments) > self._limits.segments_max:
            return self._finish(Ending.TOO_MANY_SEGMENTS)
        self._proposed = proposed
        return [UpdateMetadata(proposed, self._versioned.version)]

    def _rebased(self, proposed: LedgerMetadata, stored: LedgerMetadata) -> LedgerMetadata:
        """The same proposal for what is stored now. The last confirmed entry has not changed meanwhile."""
        if proposed.state is LedgerState.CLOSED:
            return quorums.closed(stored, proposed.last_entry, proposed.length)
        segment = proposed.segments[-1]
        return quorums.with_ensemble(stored, segment.first, segment.ensemble)

    def _accept(self, now: float) -> list[Effect]:
        """The proposal is stored."""
        self._proposed = None
        if self._versioned.metadata.state is LedgerState.CLOSED:
            return self._finish(Ending.CLOSED)
        effects: list[Effect] = list(self._adds.move(self._versioned.metadata.segments[-1].ensemble))
        if not self._adds and self._adds.lac >= 0:
            # The new bookie has not heard of the last confirmed entry, and no entry will bring it.
            self._lac_at = now + self._limits.explicit_lac_s
        return effects + self._resume(now)

    def _resume(self, now: float) -> list[Effect]:
        """Continue after a change of the ensemble: with the next one if more bookies are missing."""
        if self._adds.missing:
            return self._change(now)
        self._retry_at = None
        return self._confirm(now)

    def _wait(self, now: float) -> list[Effect]:
        """There is no bookie to choose. Continue with fewer replicas if an ack quorum is left."""
        self._retry_at = now + self._limits.retry_s
        # Entries that were stored while the metadata were being written have not been confirmed, and no other answer may come.
        effects = self._confirm(now)
        if self._adds.writable() or self._proposed is not None:
            return effects
        if self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since >= self._limits.patience_s:
            effects += self._finish(Ending.NO_BOOKIES)
        return effects

    def _retry(self, now: float) -> list[Effect]:
        self._retry_at = None
        if self._proposed is not None:
            return []
        effects = self._change(now)
        if self._proposed is not None or self.ending is not None:
            return effects
        # None can replace them, but they may have come back: then the metadata are still right.
        for index, bookie in sorted(self._adds.missing.items()):
            if self._bookies.writable(bookie):
                effects += self._adds.readopt(index)
        if not self._adds.missing:
            self._retry_at = None
        return effects

    def _explicit_lac(self) -> list[Effect]:
        self._lac_at = None
        lac = self._lac_sent = self._adds.lac
        request = WriteLac(self._ledger, lac, self._codec.master_key, self._codec.pack_lac(lac))
        missing = self._adds.missing.values()
        bookies = tuple(bookie for bookie in self._adds.ensemble if bookie not in missing)
        return [Send(bookies, EXPLICIT_LAC, request)] if bookies else []

    def _finish(self, ending: Ending) -> list[Effect]:
        self.ending = ending
        self._proposed = None
        self._postponed.clear()
        return [Finished(ending, self._versioned)]
