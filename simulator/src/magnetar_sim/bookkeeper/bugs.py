"""Planted bugs of the ledger client: each leaves out one rule of the real code; a world has to notice.

docs/design/bookkeeper.md says of each rule which bug leaves it out. Three bugs are in counterparts: `recovery_by_v2` and
`bytes_not_bounded` in that of the connections, and `wiped_under_its_name` in the bookie, because an operator has to keep that
rule.

Two more rules cannot be broken visibly here. A recovery asks another bookie after a while. But it asks the next one after each
negative answer, too, and with as many hung bookies as it can bear that is enough. A ledger that another client has closed with
other values was not closed by its writer. But a writer closes when it has confirmed everything, so the values are the same.
`tests/unit/bookkeeper/ledgers` has both.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from magnetar.bookkeeper.ledgers import quorums
from magnetar.bookkeeper.ledgers.adds import Adds
from magnetar.bookkeeper.ledgers.bookies import Bookies
from magnetar.bookkeeper.ledgers.effects import Effect, LastConfirmed, Send, UpdateMetadata
from magnetar.bookkeeper.ledgers.metadata import BookieId, LedgerMetadata, LedgerState, Versioned
from magnetar.bookkeeper.ledgers.reader import LedgerReader
from magnetar.bookkeeper.ledgers.recovery import LedgerRecovery
from magnetar.bookkeeper.ledgers.writer import LedgerWriter
from magnetar.bookkeeper.protocol.entries import EntryCodec, Stored
from magnetar.bookkeeper.protocol.messages import (
    ABSENT,
    LAST_ENTRY,
    AddEntry,
    Code,
    EntryAdded,
    EntryRead,
    ReadEntry,
    Response,
)
from magnetar_sim.bookkeeper.bookie import Bookie
from magnetar_sim.bookkeeper.clients import Client
from magnetar_sim.host.patches import Patches, patched

L: Final = "magnetar.bookkeeper.ledgers."
W: Final = L + "writer.LedgerWriter."
A: Final = L + "adds.Adds."
R: Final = L + "recovery.LedgerRecovery."
O: Final = L + "reader.LedgerReader."  # noqa: E741 - O as in open

_confirm = LedgerWriter._confirm
_change = LedgerWriter._change
_written = LedgerWriter.metadata_written
_writer_answered = LedgerWriter.answered
_lose = Adds.lose
_route = Adds._route
_resend = Adds._resend
_adds_confirm = Adds.confirm
_add = Adds.add
_fence = LedgerRecovery._fence
_forced = LedgerRecovery._forced
_answered_fence = LedgerRecovery._answered_fence
_copied = LedgerRecovery._copied
_replace = LedgerRecovery._replace
_wipe = Bookie.wipe
_answered_poll = LedgerReader._answered_poll


# ------------------------------------------------------------------------------------------------------------- writing


def _first_acked(self: Adds) -> bool:
    """An entry is confirmed when enough bookies have it, whatever became of smaller ones."""
    acked = [entry for entry, one in self._pending.items() if one.acks.bit_count() >= self._metadata.ack_quorum]
    if not acked:
        return False
    self.lac = max(acked)
    self.length = self._pending[self.lac].length
    for entry in [entry for entry in self._pending if entry <= self.lac]:
        self.bytes -= len(self._pending.pop(entry).request.body)
    return True


def _early_change(self: LedgerWriter, now: float) -> list[Effect]:
    """The replacement gets entries, and they are confirmed, before the metadata name it."""
    effects = _change(self, now)
    if self._proposed is None:
        return effects
    effects += self._adds.move(self._proposed.segments[-1].ensemble)
    return effects


def _never_replaced(self: LedgerWriter, now: float) -> list[Effect]:
    """A writer that has an ack quorum without a bookie that failed does not replace it."""
    return self._wait(now) if self._adds.writable() else _change(self, now)


def _confirm_always(self: LedgerWriter, now: float) -> list[Effect]:
    """Confirm although a change of the metadata is under way."""
    proposed, self._proposed = self._proposed, None
    if proposed is not None and proposed.state is LedgerState.CLOSED:
        self._proposed = proposed
        return []
    closing, self._closing = self._closing, self._closing and proposed is None
    effects = _confirm(self, now)
    self._closing = closing
    self._proposed = self._proposed or proposed
    return effects


def _acks_kept(self: Adds, indexes: Sequence[int]) -> list[Send]:
    """Acks of the replaced bookie count for its successor."""
    acks = {entry: one.acks for entry, one in self._pending.items()}
    sends = _resend(self, indexes)
    for entry, one in self._pending.items():
        one.acks = acks[entry]
    return sends


def _failed_again(self: LedgerWriter, bookie: BookieId, now: float) -> list[Effect]:
    """Each report of the same dead bookie begins a change."""
    self._bookies.failed(bookie, now)
    if not self._adds.lose(bookie) and bookie not in self._adds.missing.values():
        return []
    proposed = self._proposed
    if proposed is not None and proposed.state is LedgerState.CLOSED:
        return []
    self._proposed = None
    effects = _change(self, now)
    self._proposed = self._proposed or proposed
    return effects


def _not_resent(self: Adds, indexes: Sequence[int]) -> list[Send]:
    """The replacement gets only entries that are new."""
    _resend(self, indexes)
    return []


def _first_of_ensemble(self: Adds) -> None:
    """All entries go to the same bookies, the first ones of the ensemble."""
    _route(self)
    self._targets = [self._targets[0]] * len(self._targets)


def _names_kept(self: Adds) -> None:
    """A bookie that was replaced still stands for its index."""
    before = dict(self._indexes)
    _route(self)
    self._indexes = {**before, **self._indexes}


def _close_at_once(self: LedgerWriter, now: float) -> list[Effect]:
    """Close with what was appended, confirmed or not."""
    if self.ending is not None or self._closing:
        return []
    self._closing = True
    adds = self._adds
    self._proposed = quorums.closed(self._versioned.metadata, adds._next - 1, adds._next_length)
    return [UpdateMetadata(self._proposed, self._versioned.version)]


def _close_after_error(
    self: LedgerWriter, bookie: BookieId, number: int, response: Response, now: float, session: int = 0
) -> Sequence[Effect]:
    """A writer that is refused closes the ledger with what it has appended, instead of leaving that to a recovery."""
    if isinstance(response, EntryAdded) and response.code is Code.FENCED and self.ending is None and not self._closing:
        effects = _close_at_once(self, now)
        self._closing = False
        return effects
    return _writer_answered(self, bookie, number, response, now, session)


def _fence_ignored(
    self: LedgerWriter, bookie: BookieId, number: int, response: Response, now: float, session: int = 0
) -> Sequence[Effect]:
    """A refusal counts as an answer that was lost."""
    if isinstance(response, EntryAdded) and response.code is Code.FENCED:
        return ()
    return _writer_answered(self, bookie, number, response, now, session)


def _key_ignored(
    self: LedgerWriter, bookie: BookieId, number: int, response: Response, now: float, session: int = 0
) -> Sequence[Effect]:
    """A bookie that has another key for the ledger is replaced, like one that fails."""
    if isinstance(response, EntryAdded) and response.code is Code.UNAUTHORISED and self.ending is None:
        return self._failed(bookie, now)
    return _writer_answered(self, bookie, number, response, now, session)


def _busy_is_dead(
    self: LedgerWriter, bookie: BookieId, number: int, response: Response, now: float, session: int = 0
) -> Sequence[Effect]:
    """A bookie with too many requests is replaced."""
    if isinstance(response, EntryAdded) and response.code is Code.TOO_MANY and self.ending is None:
        return self._failed(bookie, now)
    return _writer_answered(self, bookie, number, response, now, session)


def _not_reread(self: LedgerWriter, versioned: Versioned | None, now: float) -> list[Effect]:
    """After a conflict the same is proposed again, for the new version."""
    proposed = self._proposed
    if self.ending is not None or proposed is None or versioned is None:
        return []
    self._versioned = Versioned(self._versioned.metadata, versioned.version)
    return [UpdateMetadata(proposed, versioned.version)]


def _lagging_server(self: LedgerWriter, versioned: Versioned | None, now: float) -> list[Effect]:
    """The answer of a server that lags is taken for what is stored."""
    if versioned is not None and self.ending is None and versioned.version < self._versioned.version:
        self._versioned = Versioned(self._versioned.metadata, versioned.version)
    return _read(self, versioned, now)


_read = LedgerWriter.metadata_read


def _header_ahead(self: Adds, payload: bytes, length: int | None = None) -> list[Send]:
    """The header says that all entries before are confirmed, although they are only under way."""
    lac, self.lac = self.lac, self._next - 1
    try:
        return _add(self, payload, length)
    finally:
        self.lac = lac


def _no_explicit_lac(self: LedgerWriter) -> list[Effect]:
    self._lac_at = None
    return []


def _any_bookie(
    self: Bookies, ensemble: Sequence[BookieId], missing: Collection[int], now: float
) -> dict[int, BookieId]:
    """A bookie of the ensemble may be chosen once more."""
    gone = [ensemble[index] for index in missing]
    return dict(zip(sorted(missing), self.choose(len(missing), now, gone), strict=False))


# ------------------------------------------------------------------------------------------------------------ recovery


def _only_first_fences(
    ledger: int, entry: int, fence: bool = False, master_key: bytes = b"", high_priority: bool = False
) -> ReadEntry:
    """Only the question for the last entry fences."""
    return ReadEntry(ledger, entry, fence and entry == LAST_ENTRY, master_key, high_priority)


def _from_the_answers(self: LedgerRecovery) -> list[Effect]:
    """Begin after the largest LAC in the answers, even if that is before the last segment."""
    effects = _fence(self)
    self._lac = -1
    return effects


def _no_force(self: LedgerRecovery, index: int, session: int, now: float = 0) -> list[Effect]:
    """A negative answer proves that the bookie has fenced the ledger for good."""
    return list(self._proven(index, 0.0, session))


def _any_session(self: LedgerRecovery, bookie: BookieId, code: Code, now: float, session: int) -> Sequence[Effect]:
    """The answer to FORCE counts over whatever connection it comes."""
    index = self._ensemble.index(bookie)
    return _forced(self, bookie, code, now, self._forcing.get(index, session))


def _all_answers(metadata: LedgerMetadata, fenced: Collection[int]) -> bool:
    return len(fenced) == metadata.ensemble_size


def _unmarked_segments(self: LedgerRecovery, last_entry: int, length: int) -> list[Effect]:
    """The close forgets the bookies that were replaced in memory."""
    self._changed = self._versioned.metadata
    return _close(self, last_entry, length)


_close = LedgerRecovery._close


def _reads_what_it_changed(self: LedgerRecovery, now: float) -> list[Effect]:
    """Entries are looked for on the bookies that were chosen just now."""
    effects = _replace(self, now)
    self._ensemble = self._adds.ensemble
    return effects


def _mark_blindly(self: LedgerRecovery, versioned: Versioned | None, now: float) -> list[Effect]:
    """After a conflict the ledger is marked with what was read before it."""
    proposed = self._proposed
    if proposed is not None and proposed.state is LedgerState.IN_RECOVERY and versioned is not None:
        self._versioned = Versioned(self._versioned.metadata, versioned.version)
        return [UpdateMetadata(proposed, versioned.version)]
    return _recovery_read(self, versioned, now)


_recovery_read = LedgerRecovery.metadata_read


def _not_awaited(self: Adds) -> bool:
    """A recovery does not wait for the entries that it adds again."""
    if not self._recovery:
        return _adds_confirm(self)
    risen = bool(self._pending)
    for entry, one in self._pending.items():
        self.lac, self.length = entry, one.length
    self._pending.clear()
    return risen


def _lac_rises(self: Adds, payload: bytes, length: int | None = None) -> list[Send]:
    """The entries of a recovery say how far it is."""
    self._header_lac = None
    return _add(self, payload, length)


def _unmarked_copies(self: Adds, payload: bytes, length: int | None = None) -> list[Send]:
    """The entries that a recovery adds again do not say that they are a recovery's."""
    self._recovery = False
    return _add(self, payload, length)


def _closes_again(self: LedgerRecovery, versioned: Versioned | None, now: float) -> list[Effect]:
    """A ledger that another client has closed meanwhile is closed once more."""
    proposed = self._proposed
    if (
        proposed is not None
        and proposed.state is LedgerState.CLOSED
        and versioned is not None
        and versioned.version > self._versioned.version
        and versioned.metadata.state is LedgerState.CLOSED
    ):
        self._versioned = versioned
        return [UpdateMetadata(proposed, versioned.version)]
    return _recovery_read(self, versioned, now)


def _length_of_carrier(self: LedgerRecovery) -> list[Effect]:
    """The length is that of the entry that carried the last confirmed one."""
    adds = self._adds
    if adds.lac == self._lac:
        return self._close(adds.lac, getattr(self, "carried", 0))
    return _copied(self)


def _keep_length(
    self: LedgerRecovery, bookie: BookieId, response: EntryRead, now: float, session: int
) -> Sequence[Effect]:
    if response.code is Code.OK and response.body:
        stored = EntryCodec.unpack(self._codec, LAST_ENTRY, response.body) if _whole(self, response.body) else None
        if stored is not None and stored.lac >= self._lac:
            self.carried = stored.length  # type: ignore[attr-defined]
    return _answered_fence(self, bookie, response, now, session)


def _whole(self: LedgerRecovery, body: bytes) -> bool:
    try:
        self._codec.unpack(LAST_ENTRY, body)
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return False
    return True


# ------------------------------------------------------------------------------------------------------------- reading


def _first_bookie_only(self: LedgerReader, entry: int, now: float) -> list[BookieId]:
    """That the first bookie does not have an entry proves that there is none."""
    return list(self._versioned.metadata.bookies_of(entry))[:1]


def _poll_is_confirmed(self: LedgerReader, response: EntryRead, now: float) -> list[Effect]:
    """What was stored last can be read."""
    effects = _answered_poll(self, response, now)
    if not self.closed and response.code is Code.OK and response.max_lac is not None:
        self.last_readable = max(self.last_readable, response.max_lac + 1)
        effects.append(LastConfirmed(self.last_readable, closed=False))
    return effects


def _unverified(self: EntryCodec, entry: int, body: bytes) -> Stored:
    """The digest is not compared."""
    lac, length = (int.from_bytes(body[at : at + 8], "big", signed=True) for at in (16, 24))
    return Stored(lac, length, body[self.overhead :])


# -------------------------------------------------------------------------------------------------------- what is outside


def _always_room(_client: Client, _bookies: Iterable[BookieId]) -> bool:
    """A writer waits only for its ack quorum, however much another bookie has not answered."""
    return True


def _innocent(self: Bookie, *, knows: bool) -> None:
    """A bookie that has lost its disk comes back under its old name, as if it had never had an entry."""
    _wipe(self, knows=False)


class Bug(NamedTuple):
    """A rule that is left out.

    Attributes:
        kind: of the worlds that notice it best; "": all.
        patches: what is replaced with what.
    """

    kind: str
    patches: Patches


BUGS: Final[dict[str, Bug]] = {
    "out_of_order": Bug("", {A + "confirm": _first_acked}),
    "before_metadata": Bug("changes", {W + "_change": _early_change, W + "_confirm": _confirm_always}),
    "lac_moves": Bug("changes", {W + "_confirm": _confirm_always}),
    "old_acks_kept": Bug("changes", {A + "_resend": _acks_kept}),
    "dead_twice": Bug("changes", {W + "_failed": _failed_again}),
    "never_replaced": Bug("changes", {W + "_change": _never_replaced}),
    "not_resent": Bug("changes", {A + "_resend": _not_resent}),
    "always_the_first": Bug("", {A + "_route": _first_of_ensemble}),
    "replaced_counts": Bug("changes", {A + "_route": _names_kept}),
    "bookie_twice": Bug("changes", {L + "bookies.Bookies.replacements": _any_bookie}),
    "conflict_not_reread": Bug("", {W + "metadata_read": _not_reread}),
    "lagging_server": Bug("changes", {W + "metadata_read": _lagging_server}),
    "close_unconfirmed": Bug("", {W + "close": _close_at_once}),
    "close_after_error": Bug("", {W + "answered": _close_after_error}),
    "fence_ignored": Bug("", {W + "answered": _fence_ignored}),
    "key_ignored": Bug("keys", {W + "answered": _key_ignored}),
    "busy_is_dead": Bug("quiet", {W + "answered": _busy_is_dead}),
    "busy_not_again": Bug("quiet", {A + "again": lambda self, bookie, entry: []}),
    "bytes_not_bounded": Bug("quiet", {"magnetar_sim.bookkeeper.world.has_room": _always_room}),
    "header_ahead": Bug("", {A + "add": _header_ahead}),
    "no_explicit_lac": Bug("quiet", {W + "_explicit_lac": _no_explicit_lac}),
    "unfenced_reads": Bug("fences", {L + "recovery.ReadEntry": _only_first_fences}),
    "below_last_segment": Bug("changes", {R + "_fence": _from_the_answers}),
    "no_force": Bug("fences", {R + "_force": _no_force}),
    "force_over_any_connection": Bug("fences", {R + "_forced": _any_session}),
    "one_fence": Bug("fences", {L + "quorums.covered": lambda metadata, fenced: bool(fenced)}),
    "waits_for_all": Bug("", {L + "quorums.covered": _all_answers}),
    "one_absence": Bug("", {L + "quorums.absences_needed": lambda metadata: 1}),
    "limbo_is_absence": Bug("recoveries", {L + "recovery.ABSENT": ABSENT | {Code.UNKNOWN_LEDGER_STATE}}),
    "changed_in_memory": Bug("recoveries", {R + "_close": _unmarked_segments}),
    "reads_what_it_changed": Bug("recoveries", {R + "_replace": _reads_what_it_changed}),
    "mark_not_reread": Bug("changes", {R + "metadata_read": _mark_blindly}),
    "copies_not_awaited": Bug("", {A + "confirm": _not_awaited}),
    "recovery_lac_rises": Bug("recoveries", {A + "add": _lac_rises}),
    "copies_not_marked": Bug("", {A + "add": _unmarked_copies}),
    "closes_again": Bug("recoveries", {R + "metadata_read": _closes_again}),
    "recovery_by_v2": Bug(
        "one process", {"magnetar_sim.bookkeeper.clients.numbered": lambda request: not isinstance(request, AddEntry)}
    ),
    "length_of_carrier": Bug("", {R + "_copied": _length_of_carrier, R + "_answered_fence": _keep_length}),
    "first_bookie_only": Bug("", {O + "_order": _first_bookie_only, O + "_batch": lambda self, read: 1}),
    "beyond_confirmed": Bug("", {O + "_answered_poll": _poll_is_confirmed}),
    "wiped_under_its_name": Bug("recoveries", {"magnetar_sim.bookkeeper.bookie.Bookie.wipe": _innocent}),
    "digest_not_compared": Bug("", {"magnetar.bookkeeper.protocol.entries.EntryCodec.unpack": _unverified}),
}  # fmt: skip
"""By name."""


def planted(bug: str) -> AbstractContextManager[None]:
    """A world in which a rule is left out, for as long as the block runs; "" for the honest one."""
    return patched(BUGS[bug].patches if bug else {})
