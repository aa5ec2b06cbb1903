"""Applies the updates of other clusters here.

    update                                      | effect
    of a subscription that is not here          | it is created at Earliest, replicated; messages that its starting point took
                                                | for consumed in the writer count as consumed here, too
    of one that was deleted here                | none, until a consumer subscribes again here; earlier updates have no effect
                                                | either when the log is read again
    of one that is here and not replicated      | none: it is another one of the same name
    written before its writer knew the latest   | none; an announcement is answered by writing the seek again: our own, or the
    seek of it here                             | one that exact mode brought
    with a claim                                | its messages are acknowledged, those that are here now and those to come;
                                                | not those of this cluster that it has not published yet
    without (Apache Pulsar)                     | everything up to our position is acknowledged, if the position is one of this
                                                | log: docs/design/snapshots.md#unknown-ledgers

A seek in another cluster becomes known by its own marker, or by an update of a cluster that knows it. From then on
acknowledgements that were not reported yet are not reported.

Updates move a cursor only forward, but for one case. When a subscription was created in two clusters at about the same time,
their bases merge by intersection: messages that one of them still wants delivered come back in the other.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from pyroaring import BitMap

from magnetar.core.errors import NameNotValid
from magnetar.core.ids import LEDGER_BELIEVED_MAX, LEDGER_MAX, NONE, OriginKey, Position
from magnetar.core.names import check_subscription
from magnetar.replication.marker_host import MarkerHost
from magnetar.replication.notices import Notices
from magnetar.replication.snapshots.message_runs import MessageRuns, entries_of, held_by
from magnetar.replication.snapshots.routes import audience, sources
from magnetar.replication.snapshots.state import Seeks, State, later
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet
from magnetar.wire.acksets import SoughtEpoch, believable
from magnetar.wire.markers import Claim, Marker, SnapshotRequest, SnapshotResponse, Update

UNKNOWN_SEEKS_MAX: Final = 1000
"""Subscriptions that are not here whose seeks elsewhere are remembered: a ceiling, more than a topic has."""


class UpdateReader:
    """Updates and seeks of other clusters.

    Args:
        host: the topic.
        notices: counters, and lines for the log.
        adopt: makes the state of a subscription that is here.
        create: makes the state of a subscription that an update brings.

    Attributes:
        unknown_seeks: seeks of subscriptions that are not here.
    """

    def __init__(
        self,
        host: MarkerHost,
        notices: Notices,
        adopt: Callable[[str], State | None],
        create: Callable[[Cursor], State],
    ) -> None:
        self._host = host
        self._notices = notices
        self._adopt = adopt
        self._create = create
        self.unknown_seeks: dict[str, Seeks] = {}
        self._seeks_to_repeat: set[str] = set()

    def take_seeks_to_repeat(self) -> set[str]:
        """Subscriptions whose seek here has to be written again; once."""
        stale, self._seeks_to_repeat = self._seeks_to_repeat, set()
        return stale

    def known(self, entry: StoredEntry, marker: Marker | None) -> bool:
        """Whether a marker comes from the cluster that it names, over a link of this topic."""
        match marker:
            case SnapshotRequest():
                said = marker.source_cluster
            case SnapshotResponse():
                said = marker.cluster
            case SoughtEpoch():
                said = marker.writer
            case Update():
                said = entry.origin
            case _:
                return True
        if said == entry.origin and entry.origin in sources(self._host.routes, self._host.cluster):
            return True
        why = "no link of this topic comes from there" if said == entry.origin else f"it says it is {said}'s"
        self._notices.note_once(
            "unknown_clusters", entry.origin, f"a marker of {entry.origin} at {entry.position} is ignored: {why}"
        )
        return False

    def update(self, entry: StoredEntry, update: Update, states: dict[str, State], deleted: Collection[str]) -> None:
        """An UPDATE of another cluster is stored here.

        Args:
            entry: the marker's.
            update: what it says.
            states: of the subscriptions here; one may be added.
            deleted: subscriptions that were deleted here.
        """
        name = update.subscription
        if update.claim is not None:
            if not self._leaves_room(entry, name, update.claim, states.get(name)):
                return
            update = update._replace(claim=self._assigned(entry.origin, name, update.claim))
        state = states.get(name)
        if state is None:
            state = self._unknown(entry, name, deleted)
            if state is None:
                return
            states[name] = state
            if update.claim is not None and self._host.cursor(name) is not None and state.fresh:
                state.base = MessageRuns(update.claim.base)
                state.based = update.claim.base is not None
        if entry.position <= state.since:
            return
        if update.claim is None:
            self._plain(entry, update, name)
            return
        for seek in update.claim.seeks:
            # Others may learn of a seek sooner than we do, and their updates may be here first.
            if state.learn_seek(seek) and seek.cluster != self._host.cluster:
                self._drop_unreported(state)
        if self._written_before_our_seek(name, update.claim, state):
            self._notices.note_once(
                "before_a_seek",
                f"{entry.origin}/{name}",
                f"an update of {entry.origin} for {name} is ignored: it was written before the seek here was known there",
                "info",
            )
            if update.claim.created and state.sought is not None:
                self._seeks_to_repeat.add(name)
            elif update.claim.created:
                state.announce = True
        else:
            self._claim(entry, name, state, update.claim)
        state.fresh = False
        self._host.dirty(name)

    def _leaves_room(self, entry: StoredEntry, name: str, claim: Claim, state: State | None) -> bool:
        """Whether the next seek here can be later than all that is said to have been made here."""
        here = self._host.cluster
        last = state.seeks.get(here) if state is not None else None
        known_ms = 0 if last is None else last.time_ms
        forged = [s for s in claim.seeks if s.cluster == here and not believable(s.time_ms, known_ms)]
        if forged:
            text = (
                f"an update of {entry.origin} for {name} is ignored: the seek {forged[0]} leaves no room for later ones"
            )
            self._notices.note_once("malformed", entry.origin, text)
        return not forged

    def _unknown(self, entry: StoredEntry, name: str, deleted: Collection[str]) -> State | None:
        try:
            check_subscription(name)
        except NameNotValid as error:
            self._notices.note_once("bad_names", entry.origin, f"an update of {entry.origin} is ignored: {error}")
            return None
        if name in deleted:
            self._notices.note_once(
                "deleted_here",
                name,
                f"{name} was deleted here: state of it from {entry.origin} is ignored until a consumer subscribes again",
                "info",
            )
            return None
        if self._host.cursor(name) is not None:
            if name in self._host.subscriptions():
                return self._adopt(name)
            text = (
                f"{entry.origin} reports {name}, which is not replicated here: nothing changes; replicate or rename it"
            )
            self._notices.note_once("not_replicated", name, text)
            return None
        self._host.create(name)
        cursor = self._host.cursor(name)
        if cursor is None:
            return None
        self._notices.count("created")
        state = self._create(cursor)
        state.fresh = True
        state.seeks = self.unknown_seeks.pop(name, {})
        return state

    def _written_before_our_seek(self, name: str, claim: Claim, state: State) -> bool:
        """Whether its writer did not know the newest seek here, or the one elsewhere that exact mode made this cluster follow.

        Not that of a former subscription of this name, which others may still name (docs/design/snapshots.md#former-seeks).
        """
        known = {seek.cluster: seek for seek in claim.seeks}
        ours = (state.sought, self._host.epoch(name))
        return any(seek is not None and later(known.get(seek.cluster), seek) for seek in ours)

    def _began_by_seek(self, name: str) -> bool:
        """Whether its starting point here is a seek's, made here or followed: creations have no effect on it
        (docs/design/acknowledged-sets.md#seek).
        """
        return self._host.epoch(name) is not None

    # --------------------------------------------------------------------------------------------------------- claims

    def _assigned(self, writer: str, name: str, claim: Claim) -> Claim:
        """Without indexes that this cluster gave to no message yet: one to come would be born acknowledged, and lost."""
        acked, base = (MessageRuns(runs) for runs in (claim.acked, claim.base or {}))
        log, here = self._host.log, self._host.cluster
        forged = 0
        for held in (acked, base):
            for key in list(held.origins):
                # This cluster's own topic gets an incarnation above the named one: room must remain for ids of all its topics.
                own = key.cluster == here and key.incarnation != log.incarnation
                if key.incarnation > (LEDGER_BELIEVED_MAX if own else LEDGER_MAX):
                    forged += held.remove_from(key, 0)
            forged += held.remove_from(OriginKey(here, log.incarnation), log.next_index)
            for key in held.origins:
                if key.cluster == here:
                    log.incarnation_used(
                        key.incarnation
                    )  # what is published from now on is of none of these incarnations
        if forged:
            self._notices.note_once(
                "never_assigned",
                writer,
                f"{writer} claims {forged} acknowledgements of {name} for messages that were never published "
                f"({here} gives index {log.next_index} next): ignored",
            )
        return claim._replace(acked=acked.origins, base=None if claim.base is None else base.origins)

    def _claim(self, entry: StoredEntry, name: str, state: State, claim: Claim) -> None:
        cursor = self._host.cursor(name)
        if cursor is None:
            return
        writer, acked = entry.origin, MessageRuns(claim.acked)
        if not state.fresh and claim.base is not None and state.base and not self._began_by_seek(name):
            self._merge_base(name, state, cursor, MessageRuns(claim.base), acked)
        state.claims.update(acked)
        state.claims.cut()
        if state.fresh:
            acked.update(state.base)
        found = entries_of(self._host.log, self._host.cluster, acked, cursor.mark_delete)
        self._apply(writer, name, state, cursor, found)
        self._host.learnt(name, entry.position, writer, claim.acked, claim.base, made=state.fresh)

    def _apply(self, writer: str, name: str, state: State, cursor: Cursor, found: PositionSet) -> None:
        new = PositionSet()
        for ledger, entries in found.ledgers.items():
            known = cursor.acked.ledgers.get(ledger)
            left = entries if known is None else entries - known
            if left:
                new.ledgers[ledger] = left
                new.size += len(left)
        if not new:
            return
        highest = Position(max(new.ledgers), new.ledgers[max(new.ledgers)].max())
        self._host.apply(name, new, {})
        self._notices.count("updates_applied")
        routes, here = self._host.routes, self._host.cluster
        if any(peer != writer and (writer, peer) not in routes for peer in audience(routes, here)):
            state.news = max(state.news, highest)

    def _merge_base(self, name: str, state: State, cursor: Cursor, base: MessageRuns, acked: MessageRuns) -> None:
        """Bases merge by intersection: what is only in ours is wanted there, so no cluster has consumed it."""
        wanted = state.base.minus(base)
        state.base = state.base.common(base)
        log, here = self._host.log, self._host.cluster
        known = MessageRuns()
        for key, first, end in self._host.acknowledged(name):
            known.add(key, first, end)  # by consumers here, or in front of a failover
        unconsumed = wanted.minus(acked, state.claims, known)
        # Messages that are not retained cannot come back here, but may not be reported as acknowledged either.
        state.expired.update(unconsumed.minus(held_by(log, here)))
        state.expired.widen()
        back = entries_of(log, here, unconsumed)
        kept = PositionSet()
        lost = 0
        for ledger, entries in self._acked(cursor):
            returning = back.ledgers.get(ledger, BitMap()) & entries
            lost += len(returning)
            if left := entries - returning:
                kept.ledgers[ledger] = left
                kept.size += len(left)
        if not lost:
            return
        self._notices.count("came_back", lost)
        partial = {at: ~part.bits & ((1 << part.size) - 1) for at, part in cursor.partial.items()}
        self._host.rebuild(name, kept, partial)
        # Messages in the range that has expired here do not come back, and no consumer acknowledged them.
        rebuilt = self._host.cursor(name)
        if rebuilt is not None:
            state.expired.update(held_by(log, here, NONE, rebuilt.mark_delete).common(unconsumed))
            state.expired.widen()
            state.leave_to_retention(self._host, rebuilt)
        state.reported = NONE

    def _acked(self, cursor: Cursor) -> Iterator[tuple[int, BitMap]]:
        """Acknowledged entries that are retained, by ledger, without markers."""
        for ledger in self._host.log.ledger_ids():
            entries = self._host.log.message_ids(ledger)
            if ledger < cursor.mark_delete.ledger:
                yield ledger, entries
                continue
            acked = cursor.acked.ledgers.get(ledger, BitMap())
            if ledger == cursor.mark_delete.ledger:
                acked = acked | BitMap(range(cursor.mark_delete.entry + 1))
            if found := entries & acked:
                yield ledger, found

    # ----------------------------------------------------------------------------------------------------- positions

    def _plain(self, entry: StoredEntry, update: Update, name: str) -> None:
        """Acknowledge cumulatively, as PIP-33 says, because the writer of the update does not know claims."""
        position = update.clusters.get(self._host.cluster)
        cursor = self._host.cursor(name)
        if position is None or cursor is None:
            self._notices.count("not_for_here")
            return
        if not self._host.log.valid(position):
            self._notices.note_once(
                "unknown_positions",
                entry.origin,
                f"an update of {entry.origin} for {name} is ignored: {position} is not a position of this log",
            )
            return
        found = PositionSet()
        for ledger in self._host.log.ledger_ids():
            if not cursor.mark_delete.ledger <= ledger <= position.ledger:
                continue
            entries = self._host.log.message_ids(ledger)
            if ledger == cursor.mark_delete.ledger and cursor.mark_delete.entry >= 0:
                entries.remove_range(0, cursor.mark_delete.entry + 1)
            if ledger == position.ledger:
                entries &= BitMap(range(position.entry + 1))
            if entries:
                found.ledgers[ledger] = entries
                found.size += len(entries)
        if found:
            self._host.apply(name, found, {})
            self._notices.count("updates_applied")

    # --------------------------------------------------------------------------------------------------------- seeks

    def sought(self, marker: SoughtEpoch, states: dict[str, State]) -> None:
        """A seek in another cluster."""
        if not marker.epoch.kind or marker.epoch.cluster != marker.writer:
            text = f"a seek of {marker.writer} for {marker.subscription} is ignored: it says that it is {marker.epoch}"
            self._notices.note_once("malformed", marker.writer, text)
            return
        state = states.get(marker.subscription)
        if state is None:
            if len(self.unknown_seeks) < UNKNOWN_SEEKS_MAX or marker.subscription in self.unknown_seeks:
                seeks = self.unknown_seeks.setdefault(marker.subscription, {})
                if later(seeks.get(marker.writer), marker.epoch):
                    seeks[marker.writer] = marker.epoch
            return
        if state.learn_seek(marker.epoch):
            self._drop_unreported(state)
            self._host.dirty(marker.subscription)

    def _drop_unreported(self, state: State) -> None:
        """Another cluster sought: acknowledgements that were not reported yet must not undo that."""
        state.restart()
        self._notices.count("seeks_heard")
