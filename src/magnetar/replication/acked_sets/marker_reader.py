"""Reading: markers of other clusters, and after a restart those of this one, are merged and applied.

Whatever a marker says, the states stay whole; what should not be is counted, and told once.
"""

from collections.abc import Callable, Mapping
from typing import Final

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import LEDGER_BELIEVED_MAX, LEDGER_MAX, NONE, OriginKey, Position
from magnetar.replication.acked_sets.index_set import IndexSet
from magnetar.replication.acked_sets.marker_writer import TellingTopic
from magnetar.replication.acked_sets.pacer import MarkerPacer
from magnetar.replication.acked_sets.state import Change, Merged, SubscriptionState, Told, marks_of
from magnetar.replication.host import MarkerHost
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.acksets import (
    INDEX_MAX,
    ORIGINS_MAX,
    AckedSet,
    AckedSetsMarker,
    Epoch,
    FenceToken,
    Indexes,
    LowWater,
    StateRequest,
    believable,
)
from magnetar.wire.markers import SNAPSHOT_KINDS, parse_marker

_MARKER: Final = int(EntryFlags.MARKER)


class HearingTopic(TellingTopic):
    """The reading half, see `machine.AckedSets`.

    Attributes:
        received_ms: when a marker of a cluster with this subscription last came: (subscription, cluster) -> time.
    """

    def __init__(
        self,
        host: MarkerHost,
        *,
        interval_ms: Callable[[], int],
        pacer: MarkerPacer,
        writes: bool,
        marker_bytes_max: int,
        on_fence: Callable[[str, FenceToken], None] | None,
    ) -> None:
        super().__init__(
            host,
            interval_ms=interval_ms,
            pacer=pacer,
            writes=writes,
            marker_bytes_max=marker_bytes_max,
            on_fence=on_fence,
        )
        self.received_ms: dict[tuple[str, str], int] = {}
        self._rebuilds: set[str] = set()
        self._fenced: set[str] = set()
        self._missed: set[str] = set()

    def _read(self, entry: StoredEntry) -> bool:
        """One marker; whether it changed anything, perhaps."""
        writer = entry.origin or self.host.cluster
        try:
            marker = parse_marker(entry.data, SNAPSHOT_KINDS)
            if not isinstance(marker, AckedSetsMarker | StateRequest):
                return False
            if marker.writer != writer:
                raise ProtocolError(f"it says that {marker.writer} wrote it")
            if isinstance(marker, AckedSetsMarker) and entry.origin:
                self._check_times(marker)
        except ProtocolError as error:
            self._note_once("malformed", writer, f"marker {entry.position} from {writer} is passed over: {error}")
            return False
        if not self._loading and writer not in self.routing.clusters:
            self._note_once(
                "unknown_cluster", writer, f"markers of {writer} are passed over: no link of this topic names it"
            )
            return False
        self._count("markers_read")
        if isinstance(marker, StateRequest):
            self._requested(marker)
        else:
            self._merge(marker, entry.position)
        return True

    def _check_times(self, marker: AckedSetsMarker) -> None:
        """See to it that seeks and failovers here can be later than what it names.

        Raises:
            ProtocolError: they could not.
        """
        for told in marker.sets:
            if not believable(told.epoch.time_ms, self.clock.time_ms):
                raise ProtocolError(f"the epoch {told.epoch} leaves no room for later ones")
            if told.fence is not None:
                known = self.fence(told.subscription)
                if not believable(told.fence.time_ms, 0 if known is None else known.time_ms):
                    raise ProtocolError(
                        f"the failover {told.fence.time_ms}@{told.fence.cluster} leaves no room for later ones"
                    )

    def fence(self, subscription: str) -> FenceToken | None:
        """The latest stage of a failover that is known here."""
        state = self.states.get(subscription)
        return None if state is None else state.fence

    def _requested(self, request: StateRequest) -> None:
        if request.writer == self.host.cluster or self._loading or not self.writes:
            return
        for subscription in request.subscriptions:
            state = self.states.get(subscription)
            if state is not None:
                state.full = state.full or f"{request.writer} asks for it"

    def _merge(self, marker: AckedSetsMarker, position: Position) -> None:
        # Inline: what is to come here of the writer's messages below its next index has come.
        self.waters.raise_next(marker.writer, (marker.incarnation, marker.next_index))
        for low in marker.low:
            self._learn_low(low, marker.writer)
        self.waters.learn_own(mark for mark in marker.own if mark.cluster != self.host.cluster)
        for told in marker.sets:
            if self._loading and position <= self._covered.get(told.subscription, NONE):
                continue
            self._merge_set(marker, told)

    def _learn_low(self, low: LowWater, writer: str) -> None:
        if low.cluster != self.host.cluster:
            self.waters.learn_low(low, self.host.latest_life_of(low.cluster))

    # --------------------------------------------------------------------------------------------------- one subscription

    def _merge_set(self, marker: AckedSetsMarker, part: AckedSet) -> None:
        subscription, writer = part.subscription, marker.writer
        if not self._wanted(subscription):
            return
        self.received_ms[subscription, writer] = self.host.now_ms
        self._watch_clock(part.epoch, writer)
        told = Told(
            part.epoch,
            self._assigned(marker, part.acks, subscription),
            None if part.base is None else self._assigned(marker, part.base, subscription),
            marks_of(part.floor),
            part.fence,
        )
        state, fresh = self.states.get(subscription), False
        if state is None:
            state, fresh = SubscriptionState(epoch=part.epoch), True
            self.states[subscription] = state
        elif part.epoch < state.epoch:
            self._passed_over(
                "older",
                f"{writer}/{subscription}",
                f"what {writer} acknowledged of {subscription} in epoch {part.epoch} is passed over: {state.epoch} came since",
            )
        self._remember(state)
        merged = self._merged(state, told, full=part.full)
        self._note_left_out(subscription, state)
        if self._relays(writer) and not self._loading:
            self._relay(state, merged, fresh=fresh)
        if Change.KEPT in merged.change and self.writes:
            state.full = state.full or "bits kept over a seek"
        if merged.change or fresh:
            self._take_effect(subscription, state, merged, fresh=fresh)

    def _note_left_out(self, subscription: str, state: SubscriptionState) -> None:
        if state.left_out:
            state.left_out = 0
            self._note_once(
                "over_limit",
                f"origins {subscription}",
                f"more than {ORIGINS_MAX} lives of this topic are told of in which {subscription} acknowledged something: the "
                "oldest are left out, and their messages may be delivered again",
            )

    def _merged(self, state: SubscriptionState, told: Told, *, full: bool) -> Merged:
        return state.merge(told, self._needed)

    def _needed(self, messages: IndexSet) -> IndexSet:
        """Of messages whose bits were forgotten once: what is here, and what somebody may hold who hears this cluster now.

        When they were forgotten a policy may have named fewer clusters. Who was named again since holds them still, and may
        hear of them by this cluster only (docs/design/acknowledged-sets.md#forgetting).
        """
        needed = self.translator.held_of(messages)
        needed |= messages - messages.below(self._floor())
        return needed

    def _wanted(self, subscription: str) -> bool:
        if subscription in self.gone:
            self._passed_over(
                "unknown_subscription",
                f"deleted {subscription}",
                f"subscription {subscription} was deleted here: what other clusters acknowledge is passed over until somebody "
                "subscribes again",
            )
            return False
        if subscription in self.paused:
            self._not_replicated(subscription)
            return False
        if subscription in self.states or self._loading:
            return True
        if self.host.cursor(subscription) is None or subscription in self.host.subscriptions():
            return True
        self._not_replicated(subscription)
        return False

    def _passed_over(self, counter: str, about: str, text: str) -> None:
        """As `_note_once`, of what may well be; not of what is only read again after a start."""
        if self._loading:
            self._count(counter)
        else:
            self._note_once(counter, about, text, "info")

    def _not_replicated(self, subscription: str) -> None:
        """One of that name is here for itself. Should it be replicated one day, full states are asked for."""
        self._missed.add(subscription)
        self._note_once(
            "unknown_subscription",
            subscription,
            f"subscription {subscription} is not replicated here: what other clusters acknowledged is passed over",
        )

    def _watch_clock(self, epoch: Epoch, writer: str) -> None:
        warning = self.clock.see_epoch(epoch, self.host.now_ms)
        if warning and epoch.cluster != self.host.cluster:
            self._note_once("clock_ahead", writer, warning)

    def _assigned(self, marker: AckedSetsMarker, indexes: Indexes, subscription: str) -> IndexSet:
        """Without indexes that nobody gave yet: a message to come would be born acknowledged."""
        messages, here = IndexSet(indexes), self.host.log
        lives = {
            OriginKey(marker.writer, marker.incarnation): marker.next_index,
            OriginKey(self.host.cluster, here.incarnation): here.next_index,
        }
        for key in list(messages.origins):
            first = self._first_to_come(key, lives)
            forged = messages.count_in(key, first, INDEX_MAX + 1)
            if forged:
                messages.remove_from(key, first)
                self._note_once(
                    "never_assigned",
                    marker.writer,
                    f"{marker.writer} claims {forged} acknowledgements of {subscription} for messages that {key.cluster} never "
                    f"published (index {first} and above): passed over",
                )
        self._lived(messages)
        return messages

    def _first_to_come(self, key: OriginKey, lives: Mapping[OriginKey, int]) -> int:
        """From which index on messages of a topic's life cannot have been published.

        A life with a higher number than the present one may be over: of a cluster that lost its disk, and whose clock is
        behind. Nobody may know of it any more but by these bits (the messages may be trimmed everywhere else, and whoever
        tells may never have had them). To pass them over would not only lose bits: a base that misses them says that they
        are not consumed, and all others would believe it (docs/design/acknowledged-sets.md#base-and-acks).
        """
        # A life of this cluster's own topic is left behind (`_lived`): that must leave room for ids of all its topics.
        own = key.cluster == self.host.cluster and key.incarnation != self.host.log.incarnation
        return 0 if key.incarnation > (LEDGER_BELIEVED_MAX if own else LEDGER_MAX) else lives.get(key, INDEX_MAX + 1)

    def _lived(self, messages: IndexSet) -> None:
        """Lives of this cluster's topic, whether it knows of them or not: what is published from now on is of none of them."""
        for key in messages.origins:
            if key.cluster == self.host.cluster:
                self.host.log.lived(key.incarnation)

    # ----------------------------------------------------------------------------------------------------------- effects

    def _relays(self, writer: str) -> bool:
        """Whether somebody linked from here will not get this marker from its writer.

        See docs/design/acknowledged-sets.md#relay.
        """
        return self.writes and not self.routing.told_by(writer)

    def _relay(self, state: SubscriptionState, merged: Merged, *, fresh: bool) -> None:
        change = merged.change
        if fresh or change & (Change.ADOPTED | Change.BASE | Change.FENCE):
            state.full = state.full or "relay"
        if merged.acks:
            state.dirty |= merged.acks
        if fresh or change:
            self._count("relayed")

    def _not_made(self, subscription: str) -> None:
        """The topic is being deleted, or has too many. Should it be made one day, full states are asked for."""
        del self.states[subscription]
        self._missed.add(subscription)

    def _take_effect(self, subscription: str, state: SubscriptionState, merged: Merged, *, fresh: bool) -> None:
        change = merged.change
        back = bool(change & (Change.ADOPTED | Change.BACK)) and not fresh
        if Change.ADOPTED in change:
            self._count("adopted_epochs")
        if back:
            self._count("came_back")
        if self._loading:
            if back:
                self._rebuilds.add(subscription)
            if Change.FENCE in change:
                self._fenced.add(subscription)
            # Stored soon: the cover moves over the marker then, and no later replay reads it.
            self.host.dirty(subscription)
            return
        if fresh and self.host.cursor(subscription) is None:
            self.host.create(subscription)
            if self.host.cursor(subscription) is None:
                self._not_made(subscription)
                return
            if self.writes and subscription in self._missed:
                # What was told while it could not be made was not kept, and a delta says only what is new.
                self._missed.discard(subscription)
                self._request((subscription,))
        if back:
            self._rebuild(subscription, state)
        else:
            self._apply(subscription, state.consumed() if fresh or Change.BASE in change else merged.acks)
        self.host.dirty(subscription)
        if Change.FENCE in change:
            self._tell_fence(subscription)
