"""The events of one topic in exact mode: acknowledged sets are collected, written as markers, merged, applied.

    acknowledged   -> bits of the messages held          -> dirty -> after the interval a marker with the delta
    created        -> base: held before the start        -> full state, at once
    sought         -> a new epoch                        -> full state, at once; the seek is answered when it is durable
    marker stored  -> merge -> acknowledged on the cursor, or the cursor rebuilt when consumed messages came back
                            -> written again, if somebody linked from here has no link from its writer
    message stored -> acknowledged at once if its bit is there already, before any consumer sees it
    restart        -> persisted state, markers stored since, then a full state
    trimmed, low-water marks -> bits that nobody can need are forgotten

Expiry is none of these: it is a local position below which nothing is dispatched, never a bit
(docs/design/acknowledged-sets.md#expiry-is-local). Nothing to tell: no timer, no marker. Nothing is re-entered: the
host does not tell of what is asked of it here.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from magnetar.core.errors import StorageError
from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.acked_sets import codec as storing
from magnetar.replication.acked_sets.index_set import IndexSet
from magnetar.replication.acked_sets.learning import KNOWN_MAX, LEARNT_MAX, learn
from magnetar.replication.acked_sets.low_water import Routing
from magnetar.replication.acked_sets.marker_parts import MARKER_BYTES_MAX
from magnetar.replication.acked_sets.marker_reader import HearingTopic
from magnetar.replication.acked_sets.marker_writer import Written
from magnetar.replication.acked_sets.pacer import MarkerPacer
from magnetar.replication.acked_sets.state import Merged, SubscriptionState, Told
from magnetar.replication.host import Acked, MarkerHost, Messages
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.acksets import CREATION, Epoch, FenceToken, Mark

SET_BYTES_MAX: Final = 16 << 20
"""A warning, never a cut: 16 MiB are millions of single runs, many times what a cursor stores (Pulsar's limit on
individually deleted ranges)."""

_MARKER: Final = int(EntryFlags.MARKER)
_origin_of = attrgetter("origin")


class AckedSets(HearingTopic):
    """Exact mode of one topic; a `replication.host.Machine`.

    Args:
        host: the topic.
        interval_ms: how long to collect from now: max(`ack_sync_interval_ms`, time since a link last read the topic).
        pacer: of the broker.
        writes: False in snapshot mode: everything is followed, nothing is written.
        marker_bytes_max: above this a marker is split.
        set_bytes_max: above this a subscription's stored set is warned of.
        on_fence: told of (subscription, token) when a marker has a later stage of a failover.
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
        on_fence: Callable[[str, FenceToken], None] | None = None,
    ) -> None:
        super().__init__(
            host,
            interval_ms=interval_ms,
            pacer=pacer,
            writes=writes,
            marker_bytes_max=marker_bytes_max,
            on_fence=on_fence,
        )
        self._set_bytes_max = set_bytes_max
        self._loaded: set[str] = set()

    # -------------------------------------------------------------------------------------------------------- start

    def load(self, subscription: str, state: bytes | None) -> Position:
        """A subscription found at start; up to where its state covers markers. A damaged state is told of and not used."""
        self._covered[subscription] = NONE
        if state is None:
            return NONE
        try:
            stored = storing.decode(subscription, state)
        except StorageError as error:
            self._count("damaged_states")
            self._note("error", f"{error}: it is built again from the cursor and the markers that are retained")
            return NONE
        self._covered[subscription] = stored.covered
        if stored.state is None:
            self.gone.add(subscription)
        else:
            self._loaded.add(subscription)
            replicated = self.host.cursor(subscription) is None or subscription in self.host.subscriptions()
            (self.states if replicated else self.paused)[subscription] = stored.state
            self.clock.see(stored.state.epoch.time_ms)
            self._lived(stored.state.consumed())
        self.clock.see(stored.clock_ms)
        for low in stored.low:
            self.waters.learn_low(low, self.host.latest_life_of(low.cluster))
        self.waters.learn_own(Mark(cluster, *mark) for cluster, mark in stored.own.items())
        for cluster, mark in stored.next.items():
            self.waters.raise_next(cluster, mark)
        return stored.covered

    def started(self) -> None:
        """Loading and replay are over: cursors get what they lack, a full state is due for every subscription."""
        self._loading = False
        self._seen = self.host.log.last
        for cluster, mark in self.translator.highest().items():
            self.waters.raise_next(cluster, mark)
        here = set(self.host.subscriptions())
        for subscription in self.states.keys() - here:
            if self.host.cursor(subscription) is not None:
                self._not_replicated(subscription)
                state = self.states.pop(subscription)
                if subscription in self._loaded:
                    self.paused[subscription] = state  # it was switched off during the replay
        self._missed |= self.paused.keys() - here
        for subscription, state in list(self.states.items()):
            if subscription not in here:
                self.host.create(subscription)
                if self.host.cursor(subscription) is None:
                    self._not_made(subscription)
                    continue
            self._restarted(state)
            self._reconcile(subscription, state)
        for subscription in sorted(here - self.states.keys() - self.paused.keys()):
            self.gone.discard(subscription)
            self._begin(subscription)
            self.host.dirty(subscription)
        self._rebuilds.clear()
        self._loaded.clear()
        self._tidy()
        for subscription in sorted(self._fenced):
            self._tell_fence(subscription)
        self._ask()
        self._schedule()

    def _restarted(self, state: SubscriptionState) -> None:
        """What was acknowledged, persisted and never written is told now.

        See docs/design/acknowledged-sets.md#recovery.
        """
        state.dirty, state.opened = IndexSet(), None
        state.full = "restart" if self.writes else ""

    def _reconcile(self, subscription: str, state: SubscriptionState) -> None:
        """The cursor gets what markers said since it was stored."""
        if subscription in self._rebuilds:
            self._rebuild(subscription, state)
            return
        missing = self.translator.held_of(state.consumed())
        cursor = self.host.cursor(subscription)
        if cursor is not None:
            missing -= self.translator.of_cursor(cursor)
        self._apply(subscription, missing)

    # -------------------------------------------------------------------------------------------------------- events

    def stored(self, entries: Sequence[StoredEntry]) -> None:
        """Entries are durable: messages whose bits are here already are acknowledged, markers are merged."""
        if not entries:
            return
        if self._loading:
            for entry in entries:
                if entry.flags & _MARKER:
                    self._read(entry)
            return
        self._seen = entries[-1].position
        if self._blocked:
            self._unblocked()
        if not any(map(_origin_of, entries)):
            return  # all of this cluster: its messages are new to everybody, its markers say what is known here
        self._arrived(entries)
        read = False
        for entry in entries:
            if entry.flags & _MARKER and entry.origin:
                read = self._read(entry) or read
        if read:
            self._tidy()
            self._schedule()

    def _arrived(self, entries: Sequence[StoredEntry]) -> None:
        """Messages of other clusters: acknowledged in the moment they are stored if their bits are here.

        See docs/design/acknowledged-sets.md#bits-before-messages.
        """
        first = entries[0].position
        hits: dict[str, IndexSet] = {}
        for origin, index, end in self.translator.spans(Position(first.ledger, first.entry - 1), entries[-1].position):
            self.waters.raise_next(origin.cluster, (origin.incarnation, end))
            for subscription, state in self.states.items():
                if state.acks.count_in(origin, index, end) or (state.base and state.base.count_in(origin, index, end)):
                    hits.setdefault(subscription, IndexSet()).add_range(origin, index, end)
        for subscription, messages in hits.items():
            self._apply(subscription, self.states[subscription].consumed_of(messages))

    def acknowledged(self, subscription: str, acked: Acked) -> None:
        """Acknowledged (or skipped) here: collected until the interval is over."""
        state = self.states.get(subscription)
        if state is None:
            return
        if state.acknowledge(self._bits_of(acked), tell=self.writes):
            self.host.dirty(subscription)
            self._schedule()
        self._note_left_out(subscription, state)

    def _bits_of(self, acked: Acked) -> IndexSet:
        return self.translator.of_acked(acked)

    def created(self, subscription: str) -> None:
        """Created here: what is held before its start is its base, and everybody is told at once.

        See docs/design/acknowledged-sets.md#base-and-acks.
        """
        missed = subscription in self.gone or subscription in self._missed
        self.gone.discard(subscription)
        self._missed.discard(subscription)
        if subscription in self.states:
            return  # known from a marker: no base of its own (docs/design/acknowledged-sets.md#base-and-acks)
        paused = self.paused.pop(subscription, None)
        if paused is None:
            self._begin(subscription)
        else:
            self._resume(subscription, paused)
        self.host.dirty(subscription)
        if self.writes:
            if missed or paused is not None:
                self._request((subscription,))
            self._write([subscription])

    def _resume(self, subscription: str, state: SubscriptionState) -> None:
        """It is replicated again: what was acknowledged here since it was not is no starting point, for nobody skipped it.

        Were it one, the others' would have it delivered again here, too. What expired is no acknowledgement
        (docs/design/acknowledged-sets.md#expiry-is-local).
        """
        self.states[subscription] = state
        self._restarted(state)
        state.full = "replicated again" if self.writes else ""
        cursor = self.host.cursor(subscription)
        if cursor is not None:
            since = self.translator.of_cursor(cursor) - self.translator.held(NONE, cursor.expired)
            state.acknowledge(since, tell=self.writes)
            self._note_left_out(subscription, state)
        self._reconcile(subscription, state)

    def _begin(self, subscription: str) -> None:
        state = self.states[subscription] = SubscriptionState(
            epoch=self._creation_epoch(),
            base=self._creation_base(subscription),
            floor=self._creation_floor(),
            full="created" if self.writes else "",
        )
        state.bound_base()
        self._note_left_out(subscription, state)

    def _creation_epoch(self) -> Epoch:
        return CREATION

    def _creation_base(self, subscription: str) -> IndexSet:
        """What the cursor stands behind, without what expired here before: that is nobody's acknowledgement.

        See docs/design/acknowledged-sets.md#expiry-is-local.
        """
        cursor = self.host.cursor(subscription)
        if cursor is None:
            return IndexSet()
        return self.translator.of_cursor(cursor) - self.translator.held(NONE, cursor.expired)

    def _creation_floor(self) -> dict[str, tuple[int, int]]:
        """It states something about all that can be heard here, from the first message on."""
        return dict.fromkeys(self.routing.sources[self.host.cluster], (0, 0))

    def sought(self, subscription: str, then: Callable[[str], None]) -> None:
        """The cursor was moved by a seek: a new epoch, answered when its full state is durable.

        See docs/design/acknowledged-sets.md#seek.
        """
        state, cursor = self.states.get(subscription), self.host.cursor(subscription)
        if state is None or cursor is None:
            then("")
            return
        before = self.translator.of_cursor(cursor)
        state.seek(self._seek_epoch(state), before, self._held_at_seek, self._seek_floor(state))
        self._note_left_out(subscription, state)
        self.host.dirty(subscription)
        if not self.writes:
            then("")
            return
        self._tell_now(subscription, "seek", lambda _position, error: then(error))

    def _seek_epoch(self, state: SubscriptionState) -> Epoch:
        return Epoch(1, self.clock.next(self.host.now_ms), self.host.cluster, self.host.log.incarnation)

    def _held_at_seek(self, messages: IndexSet) -> IndexSet:
        return self.translator.held_of(messages)

    def _seek_floor(self, state: SubscriptionState) -> dict[str, tuple[int, int]]:
        """About what was forgotten here the new base states nothing."""
        low, floor = self._here(), {}
        for origin in self.routing.sources[self.host.cluster]:
            mark = state.forgot.get(origin, (0, 0))
            floor[origin] = min(mark, low[origin]) if origin in low else mark
        return floor

    def final(self, subscription: str, token: FenceToken, then: Written) -> None:
        """Write the full state with a stage of a failover now; `then` with its last position when it is durable.

        The token stays in all later full states until a later one comes, here or from elsewhere. In snapshot mode too, where
        nothing else is written: the sets are kept in both modes, and every cluster understands both.
        """
        state = self.states.get(subscription)
        if state is None:
            then(NONE, f"the state of subscription {subscription} is not known here")
            return
        if state.fence is None or token > state.fence:
            state.fence = token
        self.host.dirty(subscription)
        self._tell_now(subscription, "failover", then)

    def _tell_now(self, subscription: str, reason: str, then: Written) -> None:
        self.states[subscription].full = reason
        self._answers.setdefault(subscription, []).append(then)
        self._write([subscription])

    def unreplicated(self, subscription: str) -> None:
        """Not replicated any more, and still here: its state stays as it is (`_resume`)."""
        state = self.states.pop(subscription, None)
        if state is not None:
            self.paused[subscription] = state
        self._answer(subscription, NONE, f"subscription {subscription} is not replicated any more")

    def unsubscribed(self, subscription: str) -> bool:
        """Whether it was deleted here, and nobody subscribed since."""
        return subscription in self.gone

    def pauses(self, subscription: str) -> bool:
        """Whether it may be replicated again, with what was acknowledged meanwhile."""
        return subscription in self.paused

    def deleted(self, subscription: str) -> None:
        """Deleted here: a mark stands against later markers (docs/design/acknowledged-sets.md#unsubscribe)."""
        self.states.pop(subscription, None)
        self.paused.pop(subscription, None)
        self.gone.add(subscription)
        self._answer(subscription, NONE, f"subscription {subscription} was deleted")

    def adopted(self, subscription: str) -> None:
        """Snapshot mode made it here, because another cluster has it: known from now on, with no base of its own.

        See docs/design/acknowledged-sets.md#base-and-acks.
        """
        if subscription not in self.states and subscription not in self.gone:
            self.states[subscription] = SubscriptionState(epoch=CREATION)
            self.host.dirty(subscription)

    def moved_back(self, subscription: str) -> None:
        """Snapshot mode took acknowledged messages back on the cursor (a smaller base of another cluster).

        The mode that writes decides: in exact mode the cursor gets back what the set has, in snapshot mode the set follows.
        """
        state, cursor = self.states.get(subscription), self.host.cursor(subscription)
        if state is None or cursor is None:
            return
        missing = self.translator.held_of(state.consumed()) - self.translator.of_cursor(cursor)
        if not missing:
            return
        if self.writes:
            self._apply(subscription, missing)
            return
        state.acks -= missing
        if state.base is not None:
            state.base -= missing
        self.host.dirty(subscription)

    def epoch(self, subscription: str) -> Epoch | None:
        """The seek that it stands behind here; None: none."""
        state = self.states.get(subscription)
        return state.epoch if state is not None and state.epoch.kind else None

    def learnt(self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None) -> None:
        """Snapshot mode did what an update says, see `replication.host.MarkerHost`.

        Who heard of it by an update alone would lose it to the next cursor that is built from the set, and when the mode changes:
        the writer may have lost its disk since, or stand in front of a seek that this cluster stands behind. A base that is
        known from elsewhere only, and not cut with those that updates tell, would skip what another creation wants.
        """
        if self._loading and at <= self._covered.get(subscription, NONE):
            return
        if subscription not in self._covered:
            self.adopted(subscription)
        state = self.states.get(subscription)
        if state is None:
            return
        learnt = learn(acked, state.acks, max(0, min(LEARNT_MAX, KNOWN_MAX - len(state.acks))))
        if learnt.cut:
            self._note_once(
                "over_limit",
                f"{writer}/{subscription}",
                f"{writer} tells of more than {LEARNT_MAX} acknowledgements of {subscription} that were not known here, or more "
                f"than {KNOWN_MAX} are known: the oldest are passed over",
            )
        merged = self._merged(state, Told(state.epoch, learnt.messages, None, {}), full=False)
        if base is not None and not state.epoch.kind:
            # In snapshot mode a starting point speaks of whatever its writer holds; of what is left out nothing is stated, for
            # a base with holes says that they are not consumed.
            began = learn(base, IndexSet())
            floor = {cluster: began.cut.get(cluster, (0, 0)) for cluster in self.routing.clusters}
            also = self._merged(state, Told(CREATION, IndexSet(), began.messages, floor), full=True)
            merged = Merged(merged.change | also.change, merged.acks)
        self._note_left_out(subscription, state)
        if not merged.change:
            return
        if self._relays(writer) and not self._loading:
            self._relay(state, merged, fresh=False)
        self._take_effect(subscription, state, merged, fresh=False)
        self._schedule()

    def consumed_runs(self, subscription: str) -> Iterator[tuple[OriginKey, int, int]]:
        """Everything that no consumer needs to be given: runs (origin, first, last)."""
        state = self.states.get(subscription)
        return state.consumed().runs() if state is not None else iter(())

    def acknowledged_runs(self, subscription: str) -> Iterator[tuple[OriginKey, int, int]]:
        """What is known to be acknowledged, by whomever: runs (origin, first, last)."""
        state = self.states.get(subscription)
        return state.acks.runs() if state is not None else iter(())

    def trimmed(self) -> None:
        """Retention deleted ledgers: the low-water marks rose."""
        self._tidy()

    def rebased(self, cluster: str) -> None:
        """A peer lost something, or is new: it is told everything, and what it retains is unknown.

        See docs/design/acknowledged-sets.md#full-states.
        """
        self.waters.forget_peer(cluster, self.host.latest_life_of(cluster))
        self._all_full(f"link with {cluster} rebased")

    def routes_changed(self) -> None:
        """Links came or went. When a cluster is removed, nobody else may have its last deltas: all tell all.

        See docs/design/acknowledged-sets.md#full-states.

        Of a cluster that is heard now and was not before, markers may have been passed over: it is asked for all it has.
        """
        here, before, routing = self.host.cluster, self.routing, Routing(self.host.cluster, self.host.routes)
        if (routing.into, routing.out) != (before.into, before.out):
            self.routing = routing
            self._all_full("links changed")
            if routing.into[here] - before.into[here]:
                self._request(self.states)

    def healed(self) -> None:
        """The storage takes writes again."""
        self._unblocked()

    def set_writes(self, writes: bool) -> None:
        """The namespace's mode changed."""
        if writes != self.writes:
            self._count("mode_changes")
            self.writes = writes
            if writes:
                self._all_full("mode changed")
            else:
                self._stop_telling()

    # ------------------------------------------------------------------------------------------------------- storing

    def encode(self, subscription: str) -> bytes:
        """The state to be persisted; a mark for a subscription that was deleted here, b"" for one that never was."""
        state = self.states.get(subscription, self.paused.get(subscription))
        if state is None and subscription not in self.gone:
            return b""
        stored = storing.Stored(
            state,
            self._seen,
            tuple(self.waters.low[cluster] for cluster in sorted(self.waters.low)),
            self.waters.own,
            self.waters.next,
            self.clock.time_ms,
        )
        data = storing.encode(subscription, stored)
        self._covered[subscription] = self._seen
        if len(data) > self._set_bytes_max:
            self._note_once(
                "over_limit",
                subscription,
                f"the acknowledged set of {subscription} has {len(data)} bytes, more than {self._set_bytes_max}: something "
                "acknowledges nearly every second message, or a cluster that is down holds it",
            )
        return data

    def covered(self, subscription: str) -> Position:
        """Up to where the last `encode` (or `load`) covers markers: what lies behind may not be deleted.

        See docs/design/acknowledged-sets.md#recovery.
        """
        return self._covered.get(subscription, NONE)

    def describe(self, subscription: str) -> dict[str, Any]:
        """For `/geo/v1` and internalStats."""
        state = self.states.get(subscription)
        if state is None:
            return {"mode": "exact", "unsubscribed": subscription in self.gone}
        consumed = state.consumed()
        pending = consumed - self.translator.held_of(consumed)
        pending -= pending.below(self._here())
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
            "lastSentMs": self.sent_ms.get(subscription, 0),
            "lastReceivedMs": received,
            "fence": None if state.fence is None else state.fence._asdict(),
            "coveredUpTo": str(self.covered(subscription)),
            "forgottenBelow": {cluster: f"{mark[0]}:{mark[1]}" for cluster, mark in sorted(state.forgot.items())},
            "heldBy": sorted(self._held_by(consumed)),
        }

    def to_tell(self, subscription: str) -> dict[str, Any]:
        """The part of `describe` that says what is not told yet."""
        state = self.states.get(subscription)
        if state is None:
            return {}
        return {"unsent": len(state.dirty), "fullStateDue": state.full, "inFlight": state.in_flight}

    def _held_by(self, consumed: IndexSet) -> set[str]:
        """Clusters for which bits are kept that nobody here needs: they are down, or have yet to say that they need none."""
        here, floor = self._here(), self._floor()
        found: set[str] = set()
        for origin, clusters in self.waters.holding(self.routing, here).items():
            if not clusters <= found:
                kept = consumed.below({origin: here[origin]})
                if kept and kept - consumed.below({origin: floor[origin]}):
                    found |= clusters
        return found

    def metrics(self) -> dict[str, int]:
        """Counters of the topic since the start, and what waits now."""
        return {**self.counters, "waiting": len(self._waiting()), "subscriptions": len(self.states)}

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert not self.gone & self.states.keys(), "unsubscribed and there"
        assert not self.paused.keys() & (self.states.keys() | self.gone), (
            "not replicated, and replicated or unsubscribed"
        )
        for subscription, state in self.states.items():
            state.validate()
            cursor = self.host.cursor(subscription)
            assert cursor is not None or self._loading, f"{subscription} has a state and no cursor"
            if cursor is not None and not self._loading:
                missing = self.translator.held_of(state.consumed()) - self.translator.of_cursor(cursor)
                assert not missing, f"{subscription}: consumed and not on the cursor: {missing}"
        if self.writes and not self._loading:
            assert self._timer or self._blocked or not self._waiting(), (
                f"{self._waiting()} wait, and nothing will write them"
            )
