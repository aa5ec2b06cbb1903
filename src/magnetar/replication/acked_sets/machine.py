"""Exact mode of one topic: acknowledged messages are collected, written as markers, merged, applied. The rules, in order:

    acknowledged   the messages *held* are bits of the set; after the interval a marker with the delta   #only-what-is-held
    created        base: what is held before the start; full state, at once                              #base-and-acks
    sought         a new epoch; full state, at once; the seek is answered when that is durable           #seek
    expired        nothing: a local position below which nothing is dispatched, never a bit              #expiry-is-local
    marker stored  merged into the state of each subscription it names (`state`)                         #epochs
                   -> acknowledged on the cursor, or the cursor rebuilt when consumed messages came back #coming-back
                   -> written again, if a cluster linked from here has no link from its writer           #relay
    message stored acknowledged at once if its bit is there already, before any consumer sees it         #bits-before-messages
    restart        the persisted state, markers stored since, then a full state                          #recovery
    link begins again, links change: full states of all                                                  #full-states
    trimmed, low-water marks: bits that no cluster can need are forgotten                                #forgetting
    deleted        a record of the deletion makes later markers without effect                           #unsubscribe

The anchors are those of docs/design/acknowledged-sets.md. When there is nothing to write, there is no timer and no marker.
Nothing is re-entered: the host does not report the effects of requests that this machine makes.

Data flows one way: entry -> `MarkerReader` (checks it, merges it into `TopicState`) -> this machine (changes the cursor, decides
what has to be written) -> `MarkerWriter` (decides when, and in which markers) -> the topic.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.acked_sets import codec
from magnetar.replication.acked_sets.claims import KNOWN_MAX, LEARNT_MAX, learn
from magnetar.replication.acked_sets.low_water import Routing
from magnetar.replication.acked_sets.marker_parts import MARKER_BYTES_MAX
from magnetar.replication.acked_sets.marker_reader import MarkerReader, Outcome
from magnetar.replication.acked_sets.marker_writer import MarkerWriter, Written
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.pacer import MarkerPacer
from magnetar.replication.acked_sets.state import Change, Merged, Reported, SubscriptionState
from magnetar.replication.acked_sets.topic_state import TopicState
from magnetar.replication.marker_host import Acked, MarkerHost, Messages
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.acksets import CREATION, AckedSetsMarker, Epoch, FenceToken, Mark, StateRequest

SET_BYTES_MAX: Final = 16 << 20
"""A warning, never a cut: 16 MiB are millions of single runs, many times what a cursor stores (Pulsar's limit on
individually deleted ranges)."""

_MARKER: Final = int(EntryFlags.MARKER)
_origin_of = attrgetter("origin")


class AckedSets:
    """Exact mode of one topic; a `replication.marker_host.Machine`.

    Args:
        host: the topic.
        interval_ms: how long to collect from now, see `broker.replicated_subscriptions.ack_interval.AckInterval`.
        pacer: of the broker.
        writes: False in snapshot mode: everything is followed, nothing is written.
        marker_bytes_max: above this a marker is split.
        set_bytes_max: above this a subscription's stored set is warned of.

    Attributes:
        topic: what is known of the topic.
        reader: of markers.
        writer: of markers.
        received_ms: see `MarkerReader`.
    """

    def __init__(
        self,
        host: MarkerHost,
        *,
        interval_ms: Callable[[], int],
        pacer: MarkerPacer,
        writes: bool = True,
        marker_bytes_max: int = MARKER_BYTES_MAX,
        set_bytes_max: int = SET_BYTES_MAX,
    ) -> None:
        self.host = host
        self.topic = TopicState(host)
        self.reader = MarkerReader(self.topic)
        self.writer = MarkerWriter(
            self.topic, interval_ms=interval_ms, pacer=pacer, writes=writes, marker_bytes_max=marker_bytes_max
        )
        self.received_ms = self.reader.received_ms
        self._notices = self.topic.notices
        self._set_bytes_max = set_bytes_max
        self._seen = NONE
        self._loaded: set[str] = set()
        self._rebuilds: set[str] = set()

    # -------------------------------------------------------------------------------------------------------- start

    def load(self, subscription: str, state: bytes | None) -> Position:
        """A subscription found at start; up to where its state covers markers. A damaged state is noted and not used."""
        self.topic.covered[subscription] = NONE
        if state is None:
            return NONE
        try:
            stored = codec.decode(subscription, state)
        except StorageError as error:
            self._notices.count("damaged_states")
            self._notices.note("error", f"{error}: it is built again from the cursor and the markers that are retained")
            return NONE
        self.topic.covered[subscription] = stored.covered
        if stored.state is None:
            self.topic.gone.add(subscription)
        else:
            self._loaded.add(subscription)
            replicated = self.host.cursor(subscription) is None or subscription in self.host.subscriptions()
            (self.topic.states if replicated else self.topic.paused)[subscription] = stored.state
            self.topic.clock.see(stored.state.epoch.time_ms)
            self.topic.leave_behind(stored.state.consumed())
        self.topic.clock.see(stored.clock_ms)
        for low in stored.low:
            self.topic.low_water.learn_low(low, self.host.latest_incarnation_of(low.cluster))
        self.topic.low_water.learn_retained(Mark(cluster, *mark) for cluster, mark in stored.own.items())
        for cluster, mark in stored.next.items():
            self.topic.low_water.raise_next(cluster, mark)
        return stored.covered

    def started(self) -> None:
        """Loading and replay are over: cursors get what they lack, a full state is due for every subscription."""
        self.topic.loading = False
        self._seen = self.host.log.last
        for cluster, mark in self.topic.log_index.highest().items():
            self.topic.low_water.raise_next(cluster, mark)
        here = set(self.host.subscriptions())
        for subscription in self.topic.states.keys() - here:
            if self.host.cursor(subscription) is not None:
                self.topic.note_not_replicated(subscription)
                state = self.topic.states.pop(subscription)
                if subscription in self._loaded:
                    self.topic.paused[subscription] = state  # it was switched off during the replay
        self.topic.missed |= self.topic.paused.keys() - here
        for subscription, state in list(self.topic.states.items()):
            if subscription not in here:
                self.host.create(subscription)
                if self.host.cursor(subscription) is None:
                    self._not_made(subscription)
                    continue
            state.begin_again("restart" if self.writer.writes else "")
            self._reconcile(subscription, state)
        for subscription in sorted(here - self.topic.states.keys() - self.topic.paused.keys()):
            self.topic.gone.discard(subscription)
            self._begin(subscription)
            self.host.dirty(subscription)
        self._rebuilds.clear()
        self._loaded.clear()
        self.topic.tidy()
        self.writer.send_requests()
        self.writer.schedule()

    def _reconcile(self, subscription: str, state: SubscriptionState) -> None:
        """The cursor gets what markers said since it was stored."""
        if subscription in self._rebuilds:
            self._rebuild(subscription, state)
            return
        missing = self.topic.log_index.held_of(state.consumed())
        cursor = self.host.cursor(subscription)
        if cursor is not None:
            missing -= self.topic.log_index.of_cursor(cursor)
        self._apply(subscription, missing)

    # -------------------------------------------------------------------------------------------------------- events

    def stored(self, entries: Sequence[StoredEntry]) -> None:
        """Entries are durable: messages whose bits are here already are acknowledged, markers are merged."""
        if not entries:
            return
        if self.topic.loading:
            for entry in entries:
                if entry.flags & _MARKER:
                    self._read(entry)
            return
        self._seen = entries[-1].position
        if self.writer.blocked:
            self.writer.unblock()
        if not any(map(_origin_of, entries)):
            return  # all of this cluster: its messages are new to every cluster, its markers say what is known here
        self._arrived(entries)
        read = False
        for entry in entries:
            if entry.flags & _MARKER and entry.origin:
                read = self._read(entry) or read
        if read:
            self.topic.tidy()
            self.writer.schedule()

    def _arrived(self, entries: Sequence[StoredEntry]) -> None:
        """Messages of other clusters: acknowledged in the moment they are stored if their bits are here.

        See docs/design/acknowledged-sets.md#bits-before-messages.
        """
        first = entries[0].position
        hits: dict[str, MessageSet] = {}
        for origin, index, end in self.topic.log_index.spans(
            Position(first.ledger, first.entry - 1), entries[-1].position
        ):
            self.topic.low_water.raise_next(origin.cluster, (origin.incarnation, end))
            for subscription, state in self.topic.states.items():
                if state.acks.count_in(origin, index, end) or (state.base and state.base.count_in(origin, index, end)):
                    hits.setdefault(subscription, MessageSet()).add_range(origin, index, end)
        for subscription, messages in hits.items():
            self._apply(subscription, self.topic.states[subscription].consumed_of(messages))

    def acknowledged(self, subscription: str, acked: Acked) -> None:
        """Acknowledged (or skipped) here: collected until the interval is over."""
        state = self.topic.states.get(subscription)
        if state is None:
            return
        if state.acknowledge(self.topic.log_index.of_acked(acked), write=self.writer.writes):
            self.host.dirty(subscription)
            self.writer.schedule()
        if state.left_out:
            self.topic.note_left_out(subscription, state)

    def created(self, subscription: str) -> None:
        """Created here: what is held before its start is its base; a full state is written at once.

        See docs/design/acknowledged-sets.md#base-and-acks.
        """
        missed = subscription in self.topic.gone or subscription in self.topic.missed
        self.topic.gone.discard(subscription)
        self.topic.missed.discard(subscription)
        if subscription in self.topic.states:
            return  # known from a marker: no base of its own (docs/design/acknowledged-sets.md#base-and-acks)
        paused = self.topic.paused.pop(subscription, None)
        if paused is None:
            self._begin(subscription)
        else:
            self._resume(subscription, paused)
        self.host.dirty(subscription)
        if self.writer.writes:
            if missed or paused is not None:
                self.writer.request((subscription,))
            self.writer.write([subscription])

    def _resume(self, subscription: str, state: SubscriptionState) -> None:
        """It is replicated again: messages that were acknowledged here meanwhile count as acknowledged, not as a starting point.

        A starting point would be intersected with those of other clusters, and its messages delivered again here. Expiry is not
        an acknowledgement (docs/design/acknowledged-sets.md#expiry-is-local).
        """
        self.topic.states[subscription] = state
        state.begin_again("replicated again" if self.writer.writes else "")
        cursor = self.host.cursor(subscription)
        if cursor is not None:
            since = self.topic.log_index.of_cursor(cursor) - self.topic.log_index.held(NONE, cursor.expired)
            state.acknowledge(since, write=self.writer.writes)
            self.topic.note_left_out(subscription, state)
        self._reconcile(subscription, state)

    def _begin(self, subscription: str) -> None:
        """A starting point here. It makes a statement about every message that can be received here, from the first one on.

        The base is the messages that the cursor has acknowledged, without those that expired here before: no consumer
        acknowledged those (docs/design/acknowledged-sets.md#expiry-is-local).
        """
        topic, cursor = self.topic, self.host.cursor(subscription)
        base = MessageSet()
        if cursor is not None:
            base = topic.log_index.of_cursor(cursor) - topic.log_index.held(NONE, cursor.expired)
        state = topic.states[subscription] = SubscriptionState(
            epoch=CREATION,
            base=base,
            floor=dict.fromkeys(topic.routing.sources[self.host.cluster], (0, 0)),
            full="created" if self.writer.writes else "",
        )
        state.bound_base()
        topic.note_left_out(subscription, state)

    def sought(self, subscription: str, then: Callable[[str], None]) -> None:
        """The cursor was moved by a seek: a new epoch, answered when its full state is durable.

        See docs/design/acknowledged-sets.md#seek.
        """
        state, cursor = self.topic.states.get(subscription), self.host.cursor(subscription)
        if state is None or cursor is None:
            then("")
            return
        self.topic.cap_marks(state)
        log_index = self.topic.log_index
        epoch = self.topic.clock.next_epoch(self.host.now_ms, self.host.cluster, self.host.log.incarnation)
        state.seek(epoch, log_index.of_cursor(cursor), log_index.held_of, self._seek_floor(state))
        self.topic.note_left_out(subscription, state)
        self.host.dirty(subscription)
        if not self.writer.writes:
            then("")
            return
        self.writer.write_full(subscription, "seek", lambda _position, error: then(error))

    def _seek_floor(self, state: SubscriptionState) -> dict[str, tuple[int, int]]:
        """About what was forgotten here the new base states nothing."""
        low, floor = self.topic.low_marks(), {}
        for origin in self.topic.routing.sources[self.host.cluster]:
            mark = state.forgot.get(origin, (0, 0))
            floor[origin] = min(mark, low[origin]) if origin in low else mark
        return floor

    def final(self, subscription: str, token: FenceToken, then: Written) -> None:
        """Write the full state with a stage of a failover now; `then` with its last position when it is durable.

        The token stays in all later full states until a later one comes, here or from elsewhere. In snapshot mode too, where
        nothing else is written: the sets are kept in both modes, and every cluster understands both.
        """
        state = self.topic.states.get(subscription)
        if state is None:
            then(NONE, f"the state of subscription {subscription} is not known here")
            return
        if state.fence is None or token > state.fence:
            state.fence = token
        self.host.dirty(subscription)
        self.writer.write_full(subscription, "failover", then)

    def unreplicated(self, subscription: str) -> None:
        """The subscription is no longer replicated but still here: its state stays as it is (`_resume`)."""
        state = self.topic.states.pop(subscription, None)
        if state is not None:
            self.topic.paused[subscription] = state
        self.writer.give_up(subscription, f"subscription {subscription} is no longer replicated")

    def unsubscribed(self, subscription: str) -> bool:
        """Whether it was deleted here, and no consumer subscribed since."""
        return subscription in self.topic.gone

    def pauses(self, subscription: str) -> bool:
        """Whether it may be replicated again, with the acknowledgements made meanwhile."""
        return subscription in self.topic.paused

    def deleted(self, subscription: str) -> None:
        """Deleted here: the record of that makes later markers without effect (docs/design/acknowledged-sets.md#unsubscribe)."""
        self.topic.states.pop(subscription, None)
        self.topic.paused.pop(subscription, None)
        self.topic.gone.add(subscription)
        self.writer.give_up(subscription, f"subscription {subscription} was deleted")

    def adopted(self, subscription: str) -> None:
        """Snapshot mode made it here, because another cluster has it: known from now on, with no base of its own.

        See docs/design/acknowledged-sets.md#base-and-acks.
        """
        if subscription not in self.topic.states and subscription not in self.topic.gone:
            self.topic.states[subscription] = SubscriptionState(epoch=CREATION)
            self.host.dirty(subscription)

    def moved_back(self, subscription: str) -> None:
        """Snapshot mode took acknowledged messages back on the cursor (a smaller base of another cluster).

        The mode that writes decides: in exact mode the cursor gets back what the set has, in snapshot mode the set follows.
        """
        state, cursor = self.topic.states.get(subscription), self.host.cursor(subscription)
        if state is None or cursor is None:
            return
        missing = self.topic.log_index.held_of(state.consumed()) - self.topic.log_index.of_cursor(cursor)
        if not missing:
            return
        if self.writer.writes:
            self._apply(subscription, missing)
            return
        state.acks -= missing
        if state.base is not None:
            state.base -= missing
        self.host.dirty(subscription)

    def epoch(self, subscription: str) -> Epoch | None:
        """The latest seek that its cursor here has taken in; None: none."""
        state = self.topic.states.get(subscription)
        return state.epoch if state is not None and state.epoch.kind else None

    def learnt(
        self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None, *, made: bool
    ) -> None:
        """Snapshot mode has applied an update, see `replication.marker_host.MarkerHost`.

        Without this call, acknowledgements that only an update reported are lost when a cursor is built from the set, and when
        the mode changes: since then the writer may have lost its disk, or it may not know a seek that this cluster knows. A base
        that is not intersected with those of updates would skip messages that another creation wants.
        """
        if self.topic.is_covered(subscription, at):
            return
        if subscription not in self.topic.covered:
            self.adopted(subscription)
        state = self.topic.states.get(subscription)
        if state is None:
            return
        self.topic.cap_marks(state)
        learnt = learn(acked, state.acks, max(0, min(LEARNT_MAX, KNOWN_MAX - len(state.acks))))
        if learnt.cut:
            self._notices.note_once(
                "over_limit",
                f"{writer}/{subscription}",
                f"{writer} reports more than {LEARNT_MAX} acknowledgements of {subscription} that were not known here, or more "
                f"than {KNOWN_MAX} are known: the oldest are ignored",
            )
        merged = state.merge(Reported(state.epoch, learnt.messages, None, {}), self.topic.needed)
        # Where another cluster brought it without its base, nothing of it is consumed, and a later creation elsewhere does not
        # change that: no cluster writes a full state that would correct it.
        if base is not None and not state.epoch.kind and (made or state.base is not None):
            # In snapshot mode a starting point covers all that its writer holds; about omitted messages nothing is stated, as
            # a base with holes says that they are not consumed.
            began = learn(base, MessageSet())
            floor = {cluster: began.cut.get(cluster, (0, 0)) for cluster in self.topic.routing.clusters}
            also = state.merge(Reported(CREATION, MessageSet(), began.messages, floor), self.topic.needed)
            merged = Merged(merged.change | also.change, merged.acks)
        self.topic.note_left_out(subscription, state)
        if merged.change:
            self._take_effect(Outcome(subscription, writer, state, merged, fresh=False))
            self.writer.schedule()

    def consumed_runs(self, subscription: str) -> Iterator[tuple[OriginKey, int, int]]:
        """Everything that no consumer needs to be given: runs (origin, first, end)."""
        state = self.topic.states.get(subscription)
        return state.consumed().runs() if state is not None else iter(())

    def acknowledged_runs(self, subscription: str) -> Iterator[tuple[OriginKey, int, int]]:
        """Messages known to be acknowledged, in whichever cluster: runs (origin, first, end)."""
        state = self.topic.states.get(subscription)
        return state.acks.runs() if state is not None else iter(())

    def fence(self, subscription: str) -> FenceToken | None:
        """The latest stage of a failover that is known here."""
        state = self.topic.states.get(subscription)
        return None if state is None else state.fence

    def collects(self, subscription: str) -> bool:
        """Whether what is acknowledged now is written when the timer, which is pending, is due: it may be reported as late."""
        return self.writer.pending and subscription in self.topic.states

    def owes(self, subscription: str) -> bool:
        """Whether something of it has to be written; what a marker on its way to the disk carries is written already."""
        state = self.topic.states.get(subscription)
        return state is not None and bool(state.dirty or state.full)

    def closed(self, error: str) -> None:
        """The topic is gone: who waits for a seek or a failover gets this answer."""
        self.writer.close(error)

    def own_marks(self) -> tuple[Mark, ...]:
        """The report of a link to the destination of this topic: per origin the first own index that it retains."""
        return self.topic.low_water.retained_marks(self.topic.routing, self.topic.low_marks())

    def learn_own(self, marks: tuple[Mark, ...]) -> None:
        """A link's source has reported its `own_marks`."""
        if self.topic.low_water.learn_retained(mark for mark in marks if mark.cluster != self.host.cluster):
            self.topic.tidy()

    def trimmed(self) -> None:
        """Retention deleted ledgers: the low-water marks rose."""
        self.topic.tidy()

    def rebased(self, cluster: str) -> None:
        """A peer lost something, or is new: full states are written for it, and what it retains is unknown.

        See docs/design/acknowledged-sets.md#full-states.
        """
        self.topic.low_water.forget_peer(cluster, self.host.latest_incarnation_of(cluster))
        self.writer.all_full(f"link with {cluster} rebased")

    def routes_changed(self) -> None:
        """Links came or went. When a cluster is removed, its last deltas may have reached some clusters only: full states of all.

        Markers of a cluster that is linked to this one now and was not before may have been ignored: its full states are
        requested. See docs/design/acknowledged-sets.md#full-states.
        """
        here, before, routing = self.host.cluster, self.topic.routing, Routing(self.host.cluster, self.host.routes)
        if (routing.into, routing.out) != (before.into, before.out):
            self.topic.routing = routing
            self.writer.all_full("links changed")
            if routing.into[here] - before.into[here]:
                self.writer.request(self.topic.states)

    def healed(self) -> None:
        """The storage takes writes again."""
        self.writer.unblock()

    def set_writes(self, writes: bool) -> None:
        """The namespace's mode changed."""
        if writes != self.writer.writes:
            self._notices.count("mode_changes")
            if writes:
                self.writer.start("mode changed")
            else:
                self.writer.stop()

    # -------------------------------------------------------------------------------------------------------- markers

    def _read(self, entry: StoredEntry) -> bool:
        """One marker; whether it may have changed anything."""
        marker = self.reader.parse(entry)
        if marker is None:
            return False
        if isinstance(marker, StateRequest):
            self._requested(marker)
        else:
            self._merge(marker, entry.position)
        return True

    def _requested(self, request: StateRequest) -> None:
        if request.writer == self.host.cluster or self.topic.loading or not self.writer.writes:
            return
        for subscription in request.subscriptions:
            state = self.topic.states.get(subscription)
            if state is not None:
                state.full = state.full or f"{request.writer} asks for it"

    def _merge(self, marker: AckedSetsMarker, position: Position) -> None:
        self.reader.learn_marks(marker)
        for part in marker.sets:
            if self.topic.is_covered(part.subscription, position):
                continue
            outcome = self.reader.merge(marker, part)
            if outcome is not None and (outcome.merged.change or outcome.fresh):
                self._take_effect(outcome)

    def _take_effect(self, outcome: Outcome) -> None:
        """A merge changed a state: that is written again where it has to be, and the cursor follows."""
        subscription, _, state, merged, fresh = outcome
        change = merged.change
        back = bool(change & (Change.ADOPTED | Change.BACK)) and not fresh
        if self.writer.writes:
            self._write_again(outcome)
        if Change.ADOPTED in change:
            self._notices.count("adopted_epochs")
        if back:
            self._notices.count("came_back")
        if self.topic.loading:
            if back:
                self._rebuilds.add(subscription)
            # Stored soon: the stored state covers the marker then, and no later replay reads it.
            self.host.dirty(subscription)
            return
        if fresh and self.host.cursor(subscription) is None and not self._create(subscription):
            return
        if back:
            self._rebuild(subscription, state)
        else:
            self._apply(subscription, state.consumed() if fresh or Change.BASE in change else merged.acks)
        self.host.dirty(subscription)

    def _write_again(self, outcome: Outcome) -> None:
        """A cluster linked from here that has no link from the marker's writer gets from this one what the marker changed.

        See docs/design/acknowledged-sets.md#relay. Bits of a lower epoch that stayed must reach the clusters that ignored them.
        """
        _, writer, state, merged, fresh = outcome
        if self.topic.routing.must_relay(writer) and not self.topic.loading:
            if fresh or merged.change & (Change.ADOPTED | Change.BASE | Change.FENCE):
                state.full = state.full or "relay"
            if merged.acks:
                state.dirty |= merged.acks
            self._notices.count("relayed")
        if Change.KEPT in merged.change:
            state.full = state.full or "bits kept over a seek"

    def _create(self, subscription: str) -> bool:
        """A marker brought a subscription that is not here; false when it cannot be made."""
        self.host.create(subscription)
        if self.host.cursor(subscription) is None:
            self._not_made(subscription)
            return False
        if self.writer.writes and subscription in self.topic.missed:
            # Acknowledgements that came while it could not be made were not kept, and a delta has only the new ones.
            self.topic.missed.discard(subscription)
            self.writer.request((subscription,))
        return True

    def _not_made(self, subscription: str) -> None:
        """The topic is being deleted, or has too many. Should it be made one day, full states are requested."""
        del self.topic.states[subscription]
        self.topic.missed.add(subscription)

    def _apply(self, subscription: str, messages: MessageSet) -> None:
        """Messages are consumed: those that are here are acknowledged on the cursor."""
        located = self.topic.log_index.locate(messages)
        if located:
            self.host.apply(subscription, located.entries, located.partial)

    def _rebuild(self, subscription: str, state: SubscriptionState) -> None:
        """Consumed messages came back: a seek for the consumers (docs/design/acknowledged-sets.md#coming-back)."""
        located = self.topic.log_index.locate(state.consumed())
        self.host.rebuild(subscription, located.entries, located.partial)

    # ------------------------------------------------------------------------------------------------------- storing

    def encode(self, subscription: str) -> bytes:
        """The state to be persisted; a mark for a subscription that was deleted here, b"" for one that never was."""
        state = self.topic.states.get(subscription, self.topic.paused.get(subscription))
        if state is None and subscription not in self.topic.gone:
            return b""
        stored = codec.Stored(
            state,
            self._seen,
            tuple(self.topic.low_water.low[cluster] for cluster in sorted(self.topic.low_water.low)),
            self.topic.low_water.own,
            self.topic.low_water.next,
            self.topic.clock.time_ms,
        )
        data = codec.encode(subscription, stored)
        self.topic.covered[subscription] = self._seen
        if len(data) > self._set_bytes_max:
            self._notices.note_once(
                "over_limit",
                subscription,
                f"the acknowledged set of {subscription} has {len(data)} bytes, more than {self._set_bytes_max}: something "
                "acknowledges nearly every second message, or a cluster that is down holds it",
            )
        return data

    def covered(self, subscription: str) -> Position:
        """Up to where the last `encode` (or `load`) covers markers: later ones may not be deleted.

        See docs/design/acknowledged-sets.md#recovery.
        """
        return self.topic.covered.get(subscription, NONE)

    def describe(self, subscription: str) -> dict[str, Any]:
        """For `/geo/v1` and internalStats."""
        state = self.topic.states.get(subscription)
        if state is None:
            return {"mode": "exact", "unsubscribed": subscription in self.topic.gone}
        consumed = state.consumed()
        pending = consumed - self.topic.log_index.held_of(consumed)
        pending -= pending.below(self.topic.low_marks())
        received = {writer: ms for (name, writer), ms in sorted(self.received_ms.items()) if name == subscription}
        return {
            "mode": "exact",
            "epoch": str(state.epoch),
            "acknowledged": len(state.acks),
            "base": None if state.base is None else len(state.base),
            "setBytes": consumed.bytes(),
            "runs": consumed.count_runs(),
            "pending": len(pending),
            **self.to_tell(subscription),
            "lastSentMs": self.writer.sent_ms.get(subscription, 0),
            "lastReceivedMs": received,
            "fence": None if state.fence is None else state.fence._asdict(),
            "coveredUpTo": str(self.covered(subscription)),
            "forgottenBelow": {cluster: f"{mark[0]}:{mark[1]}" for cluster, mark in sorted(state.forgot.items())},
            "heldBy": sorted(self._held_by(consumed)),
        }

    def to_tell(self, subscription: str) -> dict[str, Any]:
        """The part of `describe` about changes that are not written yet."""
        state = self.topic.states.get(subscription)
        if state is None:
            return {}
        return {"unsent": len(state.dirty), "fullStateDue": state.full, "inFlight": state.in_flight}

    def _held_by(self, consumed: MessageSet) -> set[str]:
        """Clusters for which bits are kept that are not needed here: they are down, or have yet to report that they need none."""
        here, floor = self.topic.low_marks(), self.topic.floor()
        found: set[str] = set()
        for origin, clusters in self.topic.low_water.holding(self.topic.routing, here).items():
            if not clusters <= found:
                kept = consumed.below({origin: here[origin]})
                if kept and kept - consumed.below({origin: floor[origin]}):
                    found |= clusters
        return found

    def metrics(self) -> dict[str, int]:
        """Counters of the topic since the start, and what waits now."""
        return {
            **self._notices.counters,
            "waiting": len(self.writer.waiting()),
            "subscriptions": len(self.topic.states),
        }

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert not self.topic.gone & self.topic.states.keys(), "unsubscribed and there"
        assert not self.topic.paused.keys() & (self.topic.states.keys() | self.topic.gone), (
            "not replicated, and replicated or unsubscribed"
        )
        for subscription, state in self.topic.states.items():
            state.validate()
            cursor = self.host.cursor(subscription)
            assert cursor is not None or self.topic.loading, f"{subscription} has a state and no cursor"
            if cursor is not None and not self.topic.loading:
                missing = self.topic.log_index.held_of(state.consumed()) - self.topic.log_index.of_cursor(cursor)
                assert not missing, f"{subscription}: consumed and not on the cursor: {missing}"
        self.writer.validate()
