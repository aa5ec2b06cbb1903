"""Snapshot mode: PIP-33 made safe, one machine per topic.

    a: REQUEST --link--> b: RESPONSE(position) --link--> a: SNAPSHOT(local position, positions, held)   stays in a
    a: mark-delete passes the local position -> UPDATE(subscription, positions, claim) --link--> b: cursor moves forward

    snapshot   taken when user messages came since the last one, or something was acknowledged here that no cached
               snapshot covers (snapshot_taker.py, pending_snapshot.py, cache.py)
    held       every message that this log has held, by identity; a snapshot has the set as of its local position. When there
               are too many runs, the oldest are forgotten: they are no longer reported, and excluded from later updates
    claim      the messages that an update names by identity: held at the snapshot, without those that the subscription's
               starting point took for consumed and those that expired
    news       an update is written only when something was acknowledged *here* since the last one (or a peer of ours is
               out of the writer's reach), so clusters never answer each other's updates

PIP-33 as written loses messages (docs/design/snapshots.md#what-positions-lose): a position acknowledges every message at or
below, also those that never reached the writer. Here the receiver acknowledges the messages of the claim, by identity, at
whatever position they are and also when they come later. Positions are only for peers that do not know claims (Apache Pulsar),
which are treated as PIP-33 says. So the order in which clusters exchange messages does not matter: one round, missing answers,
wiped clusters, clusters that join late, restricted and filtered messages are all the same case
(docs/design/snapshots.md#one-round).

A seek writes a marker (111). Updates name the latest seek in each cluster that their writer knows; an update that was
written before its writer knew a seek here is ignored here (docs/design/snapshots.md#seeks). No clocks are compared
across clusters. A cluster that learns of a foreign seek forgets the acknowledgements that it had not reported yet: they would
undo the seek. Its own cursor does not move back.

A subscription created at Latest has acknowledged nothing: its base is not claimed, and bases of creations that happened
at the same time in several clusters merge by intersection, as in exact mode
(docs/design/acknowledged-sets.md#base-and-acks). update_reader.py handles the updates that are received.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from magnetar.core.errors import ProtocolError, StorageError
from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.marker_host import Acked, MarkerHost
from magnetar.replication.notices import Notices
from magnetar.replication.snapshots import state as states
from magnetar.replication.snapshots.cache import Cache, CachedSnapshot
from magnetar.replication.snapshots.marker_appender import MarkerAppender
from magnetar.replication.snapshots.message_runs import (
    RANGES_MAX,
    MessageRuns,
    acked_above,
    covered_by,
    entries_of,
    held_by,
)
from magnetar.replication.snapshots.routes import partners
from magnetar.replication.snapshots.snapshot_taker import ID_BYTES_MAX, SnapshotTaker
from magnetar.replication.snapshots.state import State, Stored, later
from magnetar.replication.snapshots.unreported import Unreported
from magnetar.replication.snapshots.update_reader import UpdateReader
from magnetar.replication.snapshots.update_writer import UpdateWriter
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire import markers
from magnetar.wire.acksets import EXACT_KINDS, Epoch, SoughtEpoch
from magnetar.wire.markers import Marker, Snapshot, SnapshotRequest, SnapshotResponse, Update

SKIPPED_MAX: Final = 1_000
"""Messages that exact mode may skip before they are caught up with, by runs: retention deletes nothing that soon."""

_MARKER: Final = int(EntryFlags.MARKER)


class Snapshots:
    """The machine of one topic; a `replication.marker_host.Machine`.

    Args:
        host: the topic.
        new_id: gives a fresh text per snapshot (a uuid: the machine has no chance of its own).
        interval_ms: least time between the beginnings of two snapshots.
        timeout_ms: how long answers are waited for.
        cached_max: snapshots kept per subscription, at least 3.
        writes: False in exact mode: follows what comes in and answers requests, takes no snapshots and writes no updates.
    """

    def __init__(
        self,
        host: MarkerHost,
        *,
        new_id: Callable[[], str],
        interval_ms: int = 1000,
        timeout_ms: int = 30_000,
        cached_max: int = 30,
        writes: bool = True,
    ) -> None:
        self._host = host
        self._cached_max = cached_max
        self.writes = writes
        self._started = False
        self.states: dict[str, State] = {}
        self._deleted: set[str] = set()
        self._again: set[str] = set()
        self._unreported: dict[str, Unreported] = {}
        self._sent_ms: dict[str, int] = {}
        self.received_ms: dict[tuple[str, str], int] = {}
        self._known_held = held_by(host.log, host.cluster)
        self._forgot = MessageRuns()
        self._last_message = host.log.last_dispatchable()
        self._seen_until = host.log.last
        self._skipped = 0
        self._notices = Notices(host)
        self._appender = MarkerAppender(host, self._work)
        self._updates = UpdateWriter(host, self._appender, self._notices)
        self._taker = SnapshotTaker(
            host,
            self._appender,
            self._notices,
            held=lambda: self._held,
            wanted=self._wanted,
            partners=lambda: partners(host.routes, host.cluster),
            new_id=new_id,
            interval_ms=interval_ms,
            timeout_ms=timeout_ms,
        )
        self._reader = UpdateReader(host, self._notices, self._adopt, self._brought)

    @property
    def missing(self) -> dict[str, int]:
        """Clusters that let a snapshot time out, and since when (ms); they are not waited for until they write again."""
        return dict(self._taker.missing)

    # ------------------------------------------------------------------------------------------------------- beginning

    def load(self, subscription: str, state: bytes | None) -> Position:
        """See `replication.marker_host.Machine`. A damaged state counts as none: messages that were acknowledged before are not
        claimed.
        """
        stored = self._decode(subscription, state)
        if stored is not None and stored.deleted:
            if subscription not in self._host.subscriptions():
                self._deleted.add(subscription)
                return self._host.log.last
            # A client subscribed again during a replay that the broker did not survive: nothing was stored of that.
            stored = None
            self._again.add(subscription)
        cursor = self._host.cursor(subscription)
        if cursor is None:
            return self._host.log.last
        if stored is None:
            found = self.states[subscription] = self._found(subscription, cursor)
            if subscription in self._again:
                found.since = self._host.log.last
        else:
            found = self.states[subscription] = self._new_state()
            try:
                states.restore(found, stored, OriginKey(self._host.cluster, self._host.log.incarnation))
                self._known_held.update(states.read_held(stored.held))
                self._taker.taken(Position(*stored.newest))
            except StorageError as error:
                self._notices.note_once("damaged_states", subscription, f"{subscription}: {error}; it begins again")
                self.states[subscription] = self._found(subscription, cursor)
        # The snapshots that it may still pass, and all reports of clusters since then, are after mark-delete.
        return cursor.mark_delete

    def _decode(self, subscription: str, state: bytes | None) -> Stored | None:
        if not state:
            return None
        try:
            return states.decode(state)
        except StorageError as error:
            self._notices.note_once("damaged_states", subscription, f"{subscription}: {error}; it begins again")
            return None

    def _adopt(self, subscription: str) -> State | None:
        """A subscription that is here and was not reported to this machine: the other mode created it."""
        self.load(subscription, None)
        return self.states.pop(subscription, None)

    def _found(self, subscription: str, cursor: Cursor) -> State:
        """A subscription that is here, and of which nothing is stored."""
        state = self._new_state()
        state.base = self._starting_point(subscription, cursor)
        state.expired = self._forgotten(cursor.mark_delete)
        state.leave_to_retention(self._host, cursor)
        return state

    def _brought(self, cursor: Cursor) -> State:
        """A subscription that another cluster brings: from the first retained message on."""
        state = self._new_state()
        state.expired = self._consumed(NONE)
        state.expired.update(self._forgotten(NONE))
        state.expired.widen()
        state.leave_to_retention(self._host, cursor)
        return state

    def _new_state(self) -> State:
        return State(Cache(self._host.log, self._cached_max))

    def _starting_point(self, subscription: str, cursor: Cursor) -> MessageRuns:
        """The consumed messages of a subscription of which nothing is stored: perhaps the other mode created it.

        Messages that the other mode knows to be acknowledged are not a starting point: another cluster's smaller one would take
        them back. Those that the cursor has above mark-delete belong to it, as they do to exact mode's base: a base without them
        says that they are wanted.
        """
        acked = MessageRuns()
        for key, first, end in self._host.acknowledged(subscription):
            acked.add(key, first, end)
        consumed = self._consumed(cursor.mark_delete)
        consumed.update(acked_above(self._host.log, self._host.cluster, cursor))
        return consumed.minus(acked)

    def _consumed(self, mark_delete: Position) -> MessageRuns:
        """The messages that this log has held up to a position, as far as they are remembered."""
        return self._held.minus(held_by(self._host.log, self._host.cluster, mark_delete))

    def _forgotten(self, mark_delete: Position) -> MessageRuns:
        """Other messages that it may have held up to a position. A subscription that begins there reports none of them.

        The log may bring some of it back at the next start, when there are fewer runs.
        """
        return self._forgot.minus(held_by(self._host.log, self._host.cluster, mark_delete))

    def started(self) -> None:
        """See `replication.marker_host.Machine`."""
        self._started = True
        if self.writes:
            for subscription, state in self.states.items():
                self._find_unreported(subscription, state)
        again, self._again = self._again, set()
        for subscription in sorted(again & self.states.keys()):
            self.created(subscription)
        self._work()

    def _find_unreported(self, subscription: str, state: State) -> None:
        """Count acknowledgements from before a restart that are in no update: their time is no longer known."""
        cursor = self._host.cursor(subscription)
        if cursor is None or not state.has_news:
            return
        log = self._host.log
        up_to = min(cursor.mark_delete, state.news)
        passed = held_by(log, self._host.cluster, state.reported, up_to).minus(state.base, state.expired)
        messages = sum(end - first for runs in passed.origins.values() for first, end in runs)
        for first, last in cursor.acked.runs():
            after, end = max(state.reported, Position(first.ledger, first.entry - 1)), min(last, state.news)
            messages += log.messages_between(after, end) if after < end else 0
        self._unreported_of(subscription, state).add(state.reported, state.news, messages, self._host.now_ms)

    def _unreported_of(self, subscription: str, state: State) -> Unreported:
        found = self._unreported.get(subscription)
        if found is None or found.state is not state:
            found = self._unreported[subscription] = Unreported(self._host.log, state)
        return found

    def set_writes(self, writes: bool) -> None:
        """The mode changed."""
        if self._skipped:
            self._catch_up()
        if not writes:
            self._unreported.clear()  # what the other mode writes now has all of it
        self.writes = writes
        if writes:
            for subscription in self._host.subscriptions():
                if subscription not in self.states:
                    self.load(subscription, None)
        self._work()

    # -------------------------------------------------------------------------------------------------------- skipping

    @property
    def _held(self) -> MessageRuns:
        """Every message that this log has held, or the newest of them (`RANGES_MAX`)."""
        if self._skipped:
            self._catch_up()
        if self._known_held.count_runs() > RANGES_MAX:
            self._forget()
        return self._known_held

    def _forget(self) -> None:
        """A message that is for another cluster makes two runs of one, whatever retention deletes: the oldest go."""
        before = self._known_held
        self._known_held = before.copy().cut(RANGES_MAX)
        for key, runs in before.origins.items():
            kept = self._known_held.origins.get(key)
            if kept is None or len(kept) < len(runs):
                self._forgot.update(MessageRuns({key: [(runs[0][0], runs[-1][1] if kept is None else kept[0][0])]}))

    def _skips(self, entries: Sequence[StoredEntry]) -> bool:
        """Whether these need no look now: exact mode writes, and they are messages that nothing waits for.

        Every publish comes through here. Skipped messages are caught up with later, in a few steps for thousands.
        """
        if self.writes or not self._started or self._taker.missing or any(each.claims for each in self.states.values()):
            return False
        if self._skipped >= SKIPPED_MAX or entries[0].ledger != self._seen_until.ledger:
            return False
        for entry in entries:
            if entry.flags & _MARKER:
                return False
        self._skipped += len(entries)
        return True

    def _catch_up(self) -> None:
        """Catch up with all messages that were skipped."""
        log = self._host.log
        self._skipped = 0
        self._known_held.update(held_by(log, self._host.cluster, self._seen_until))
        self._seen_until = log.last
        self._last_message = log.last_dispatchable()
        self._taker.moved()

    # ---------------------------------------------------------------------------------------------------------- events

    def stored(self, entries: Sequence[StoredEntry]) -> None:
        """See `replication.marker_host.Machine`."""
        if self._appender.blocked:
            self._appender.unblock()
        if self._skips(entries):
            return
        if self._skipped:
            self._catch_up()
        own = OriginKey(self._host.cluster, self._host.log.incarnation)
        fresh = NONE
        received: set[str] = set()
        for entry in entries:
            if entry.origin:
                received.add(entry.origin)
            if entry.flags & _MARKER:
                self._marker(entry)
            elif entry.first_index >= 0:
                key = OriginKey(entry.origin, entry.incarnation) if entry.origin else own
                self._known_held.add(key, entry.first_index, entry.first_index + entry.count)
                fresh = entry.position
        if self._known_held.count_runs() > RANGES_MAX + RANGES_MAX // 8:  # not with each message
            self._forget()
        self._seen_until = max(self._seen_until, entries[-1].position)
        for cluster in sorted(received):
            self._taker.received_from(cluster)
        self._last_message = max(self._last_message, fresh)
        if not self._started:
            return
        if fresh != NONE:
            self._taker.moved()
            self._acknowledge_claimed(entries[0], fresh)
        self._work()

    def _acknowledge_claimed(self, first: StoredEntry, last: Position) -> None:
        """Messages came that other clusters had reported as acknowledged, or as part of the starting point."""
        after = Position(first.ledger, first.entry - 1)
        for subscription, state in self.states.items():
            for held in (state.claims, state.base):
                if found := entries_of(self._host.log, self._host.cluster, held, after, last):
                    self._host.apply(subscription, found, {})
                    self._notices.count("acknowledged_on_arrival", len(found))

    def acknowledged(self, subscription: str, acked: Acked) -> None:
        """See `replication.marker_host.Machine`."""
        state = self.states.get(subscription)
        if state is None:
            return
        highest = max(acked.up_to, max(acked.entries, default=NONE), max(acked.partial, default=NONE))
        if highest > state.news:
            state.news = highest
            self._host.dirty(subscription)
        if self.writes:
            self._unreported_of(subscription, state).acknowledged(acked, self._host.now_ms)
        if state.expired:
            # A consumer had them when they expired, or when retention decided to delete them.
            state.expired = state.expired.minus(covered_by(self._host.log, self._host.cluster, acked))
        self._write_update(subscription, state)
        self._taker.tick()

    def expired(self, subscription: str, after: Position, up_to: Position) -> None:
        """Expiry moved the cursor over after < p <= up_to: no consumer acknowledged that, and it is not reported.

        See docs/design/acknowledged-sets.md#expiry-is-local.
        """
        state = self.states.get(subscription)
        if state is not None:
            state.expired.update(held_by(self._host.log, self._host.cluster, after, up_to))
            state.expired.widen()
            self._host.dirty(subscription)

    def created(self, subscription: str) -> None:
        """See `replication.marker_host.Machine`."""
        self._deleted.discard(subscription)
        cursor = self._host.cursor(subscription)
        if cursor is None:
            return
        expired = held_by(self._host.log, self._host.cluster, NONE, cursor.expired)
        if subscription in self.states:
            # Found at start, but it was never announced. What is deleted says nothing about what others retain.
            state = self.states[subscription]
            before, state.base = (
                state.base,
                state.base.common(held_by(self._host.log, self._host.cluster)).minus(expired),
            )
            state.expired.update(before.minus(state.base))
            state.expired.widen()
            state.leave_to_retention(self._host, cursor)
            state.announce = state.based = True
            self._host.dirty(subscription)
            self._work()
            return
        state = self.states[subscription] = self._new_state()
        before = self._starting_point(subscription, cursor).minus(expired).widen()
        if any(True for _ in self._host.acknowledged(subscription)):
            # It was replicated before: that is for the others, too.
            state.news = max([cursor.mark_delete, *(last for _, last in cursor.acked.runs())])
        if held_by(self._host.log, self._host.cluster, NONE, cursor.mark_delete):
            state.base = before
        else:
            # From the first retained message on: what was deleted before says nothing about what others retain.
            state.expired = before
        state.expired.update(self._forgotten(cursor.mark_delete))
        state.expired.update(expired)
        state.leave_to_retention(self._host, cursor)
        state.based = True
        state.since = self._host.log.last
        state.seeks = self._reader.unknown_seeks.pop(subscription, {})
        state.announce = True
        self._host.dirty(subscription)
        self._work()

    def unreplicated(self, subscription: str) -> None:
        """See `replication.marker_host.Machine`. If it is replicated again, exact mode's set has the acknowledged messages
        (`created`).
        """
        self.deleted(subscription)

    def deleted(self, subscription: str) -> None:
        """See `replication.marker_host.Machine`."""
        self.states.pop(subscription, None)
        self._unreported.pop(subscription, None)
        self._sent_ms.pop(subscription, None)
        self.received_ms = {key: time_ms for key, time_ms in self.received_ms.items() if key[0] != subscription}
        self._deleted.add(subscription)

    def sought(self, subscription: str, then: Callable[[str], None]) -> None:
        """See `replication.marker_host.Machine`. Answered when the marker is durable: an update that comes before it is ignored
        from now on.
        """
        state = self.states.get(subscription)
        cursor = self._host.cursor(subscription)
        if state is None or cursor is None:
            then("")
            return
        state.restart()
        state.news = cursor.mark_delete  # a seek forward passes messages: that is for the others, too
        state.claims = MessageRuns()
        state.expired = state.expired.minus(held_by(self._host.log, self._host.cluster, cursor.mark_delete))
        state.leave_to_retention(self._host, cursor)
        here, incarnation = self._host.cluster, self._host.log.incarnation
        last = state.seeks.get(here)
        time_ms = self._host.now_ms
        if last is not None and last.incarnation == incarnation:
            time_ms = max(time_ms, last.time_ms + 1)
        # The same seek has the same name in both modes: a cluster that learns of it by either knows it.
        exact = self._host.epoch(subscription)
        same = exact is not None and exact.cluster == here and later(last, exact)
        state.epoch = exact if exact is not None and same else Epoch(1, time_ms, here, incarnation)
        state.seeks_here(state.epoch)
        self._host.dirty(subscription)
        # In exact mode the epochs are that mode's, unless some peer writes snapshots.
        state.seek_unwritten = bool(self._updates.audience) and (self.writes or bool(self._taker.knowing))
        if not state.seek_unwritten:
            then("")
        elif not self._updates.write_seek(subscription, state, then):
            then("the storage takes no writes now; try again")
        self._work()

    def moved_back(self, subscription: str, consumed: Iterable[tuple[OriginKey, int, int]]) -> None:
        """Exact mode took consumed messages back on the cursor: a seek elsewhere, or a smaller base.

        Neither what others reported nor the starting point may have them acknowledged again, nor are they reported.

        Args:
            subscription: which.
            consumed: what is consumed now: runs (origin, first, end).
        """
        state = self.states.get(subscription)
        if state is None:
            return
        left = MessageRuns()
        for key, first, end in consumed:
            left.add(key, first, end)
        state.claims = state.claims.common(left)
        state.base = state.base.common(left)
        # Messages up to mark-delete, retained or not, cannot come back here; nor may they be reported as acknowledged.
        cursor = self._host.cursor(subscription)
        passed = cursor.mark_delete if cursor is not None else NONE
        state.expired.update(self._consumed(passed).minus(left))
        state.expired.update(self._forgotten(passed).minus(left))
        state.expired.widen()
        if cursor is not None:
            state.leave_to_retention(self._host, cursor)
        epoch = self._host.epoch(subscription)
        if epoch is not None and epoch != state.epoch:
            state.epoch = epoch
            state.learn_seek(epoch)
            state.restart()
        else:
            state.reported = NONE
        self._host.dirty(subscription)

    def trimmed(self) -> None:
        """See `replication.marker_host.Machine`. What was deleted is known only from the stored state now."""
        for subscription in self.states:
            self._host.dirty(subscription)

    def rebased(self, cluster: str) -> None:
        """See `replication.marker_host.Machine`."""
        self._taker.rebased(cluster)
        self._repeat_for({cluster})

    def routes_changed(self) -> None:
        """See `replication.marker_host.Machine`."""
        self._taker.routes_changed()
        self._repeat_for(self._updates.routes_changed())

    def _repeat_for(self, clusters: Collection[str]) -> None:
        for subscription, state in self.states.items():
            forgot = {cluster for cluster in clusters if not self._remembers(state, cluster)}
            state.repeat_for = (state.repeat_for | forgot) & self._updates.audience
            state.announce = state.announce or bool(clusters)
            state.seek_unwritten = state.seek_unwritten or (bool(clusters) and state.sought is not None)
            self._host.dirty(subscription)
        self._work()

    def _remembers(self, state: State, cluster: str) -> bool:
        """Whether a cluster sought in the present incarnation of its topic: earlier acknowledgements would undo that."""
        seek = state.seeks.get(cluster)
        return seek is not None and seek.incarnation >= self._host.incarnation_of(cluster)

    def healed(self) -> None:
        """See `replication.marker_host.Machine`."""
        self._appender.healed()
        self._taker.moved()
        self._work()

    # --------------------------------------------------------------------------------------------------------- markers

    def _marker(self, entry: StoredEntry) -> None:
        """A marker is in the log: our own, or another cluster's."""
        try:
            marker = markers.parse_marker(entry.data, EXACT_KINDS)
        except ProtocolError as error:
            whom = entry.origin or self._host.cluster
            self._notices.note_once("malformed", whom, f"a marker of {whom} at {entry.position} is ignored: {error}")
            return
        if not entry.origin:
            self._own(entry, marker)
        elif self._reader.known(entry, marker):
            self._foreign(entry, marker)

    def _own(self, entry: StoredEntry, marker: Marker | None) -> None:
        match marker:
            case Snapshot(_, local, clusters, held):
                self._taker.taken(local)
                taken = CachedSnapshot(local, clusters, MessageRuns(held))
                for each in self.states.values():
                    if local > each.reported:
                        each.cache.add(taken)
            case SnapshotResponse() if not self._started:
                self._taker.answered_here(marker)
            case Update() if self._started:
                self._sent_ms[marker.subscription] = self._host.now_ms
            case SoughtEpoch(_, subscription, epoch) if not self._started:
                self._sought_before(entry.position, epoch, self.states.get(subscription))

    def _sought_before(self, position: Position, seek: Epoch, state: State | None) -> None:
        """A marker of a seek here is read again: of this subscription, or of one that was deleted before this one was created."""
        if state is None:
            return
        if position <= state.since or seek.incarnation != self._host.log.incarnation:
            state.learn_seek(seek)
            return
        if later(state.sought, seek):
            state.seeks_here(seek)
            state.cache.clear()
        state.seek_unwritten = state.sought != seek

    def _foreign(self, entry: StoredEntry, marker: Marker | None) -> None:
        match marker:
            case SnapshotRequest():
                if entry.origin not in self._updates.audience:
                    text = f"{entry.origin} asks for a snapshot, but no link leads there"
                    self._notices.note_once("unanswerable", entry.origin, text)
                elif len(marker.snapshot_id) <= ID_BYTES_MAX:
                    self._taker.asked(marker)
            case SnapshotResponse() if self._started:
                self._taker.answered(marker, entry.position)
            case Update():
                self._reader.update(entry, marker, self.states, self._deleted)
                if self._started and marker.subscription in self.states:
                    self.received_ms[marker.subscription, entry.origin] = self._host.now_ms
            case SoughtEpoch():
                self._reader.sought(marker, self.states)

    # --------------------------------------------------------------------------------------------------------- telling

    def _work(self) -> None:
        """Whatever is due now."""
        if not self._started:
            return
        self._taker.answer()
        for subscription, state in self.states.items():
            if state.announce and self.writes:
                self._updates.write_announcement(subscription, state)
            self._write_update(subscription, state)
        for subscription in self._reader.take_seeks_to_repeat() & self.states.keys():
            self.states[subscription].seek_unwritten = self.states[subscription].sought is not None
        for subscription, state in self.states.items():
            if state.seek_unwritten and not state.writing_seek:
                self._updates.write_seek(subscription, state, lambda _: None)
        self._taker.tick()

    def _write_update(self, subscription: str, state: State) -> None:
        if self.writes and self._started:
            self._updates.write_update(subscription, state)

    def _wanted(self) -> bool:
        if not self.writes or not self._started or not self.states:
            return False
        if self._last_message > self._taker.newest:
            return True
        return any(
            (state.has_news or state.repeat_for) and not state.cache and state.writing is None
            for state in self.states.values()
        )

    # ---------------------------------------------------------------------------------------------------------- shown

    def encode(self, subscription: str) -> bytes:
        """See `replication.marker_host.Machine`."""
        state = self.states.get(subscription)
        if state is None:
            return states.encode(Stored(deleted=True)) if subscription in self._deleted else b""
        return states.store(state, self._held, self._taker.newest)

    def describe(self, subscription: str) -> dict[str, object]:
        """See `replication.marker_host.Machine`."""
        state = self.states.get(subscription)
        if state is None:
            return {}
        unreported, since_ms = self._unreported_of(subscription, state).look()
        received = sorted(self.received_ms.items())
        return {
            "mode": "snapshot",
            "writes": self.writes,
            "cachedSnapshots": len(state.cache),
            "toldUpTo": str(state.reported),
            "acknowledgedHere": str(state.news),
            **self.to_tell(subscription),
            "untold": unreported,
            "untoldSinceMs": since_ms,
            "lastSentMs": self._sent_ms.get(subscription, 0),
            "lastReceivedMs": {origin: time_ms for (name, origin), time_ms in received if name == subscription},
            "seeks": {cluster: seek.time_ms for cluster, seek in sorted(state.seeks.items())},
            **self._taker.describe(),
        }

    def to_tell(self, subscription: str) -> dict[str, Any]:
        """The part of `describe` about acknowledgements that are not reported yet."""
        state = self.states.get(subscription)
        return {} if state is None else {"toTell": state.has_news}

    def metrics(self) -> dict[str, int]:
        """Counters of the topic since start."""
        return dict(self._notices.counters)

    def validate(self) -> None:
        """See `replication.marker_host.Machine`."""
        self._known_held.validate()
        self._forgot.validate()
        assert not (self._skipped and self.writes), "messages are passed over while snapshots are written"
        self._taker.validate()
        for subscription, state in self.states.items():
            state.validate()
            assert subscription not in self._deleted, f"{subscription} is deleted and there"
