"""The state of exact mode for one topic in this cluster. The machine owns it; the writer and reader of markers work on it.

It holds the states of the subscriptions, the low-water marks, the links, and the clock of seeks. Nothing here writes a marker
or changes a cursor.
"""

from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.acked_sets.log_index import LogIndex
from magnetar.replication.acked_sets.low_water import LowWaterMarks, Routing
from magnetar.replication.acked_sets.message_set import Marks, MessageSet
from magnetar.replication.acked_sets.seek_clock import SeekClock
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.replication.marker_host import MarkerHost
from magnetar.replication.notices import Notices
from magnetar.wire.acksets import ORIGINS_MAX

COUNTERS: Final = (
    "markers_written", "markers_read", "full_states_written", "deltas_written", "bytes_written", "write_failures",
    "relayed", "adopted_epochs", "came_back", "mode_changes", "malformed", "unknown_cluster", "unknown_subscription", "older",
    "never_assigned", "over_limit", "damaged_states", "clock_ahead",
)  # fmt: skip
"""Counters of one topic since the broker's start. From `malformed` on they count events that should never happen."""


class TopicState:
    """The state of one topic.

    Args:
        host: the topic.

    Attributes:
        states: by subscription.
        gone: subscriptions that were deleted here; markers do not bring them back.
        paused: subscriptions that are no longer replicated, in the state that they had when that ended. Later acknowledgements
            are written when they are replicated again. Markers of others are not merged meanwhile; they are requested then.
        missed: subscriptions of which markers were ignored. Full states are requested when one of them is created.
        covered: by subscription, up to which marker its stored state has taken in all markers.
        loading: stored states are loaded and markers are replayed: nothing is written, and no cursor is changed.
        log_index: this cluster's log as sets of messages.
        low_water: the low-water marks that are known here.
        clock: of seeks.
        routing: reachability between clusters, from the links of this topic.
        notices: counters, and lines for the log.
    """

    def __init__(self, host: MarkerHost) -> None:
        self.host = host
        self.states: dict[str, SubscriptionState] = {}
        self.gone: set[str] = set()
        self.paused: dict[str, SubscriptionState] = {}
        self.missed: set[str] = set()
        self.covered: dict[str, Position] = {}
        self.loading = True
        self.log_index = LogIndex(host.log, host.cluster)
        self.low_water = LowWaterMarks()
        self.clock = SeekClock()
        self.routing = Routing(host.cluster, host.routes)
        self.notices = Notices(host, COUNTERS)

    # ---------------------------------------------------------------------------------------------------- subscriptions

    def is_covered(self, subscription: str, position: Position) -> bool:
        """Whether the stored state of a subscription has taken in this marker already, which is read again after a start."""
        return self.loading and position <= self.covered.get(subscription, NONE)

    def note_not_replicated(self, subscription: str) -> None:
        """A subscription of that name is here and is local. Should it be replicated one day, full states are requested."""
        self.missed.add(subscription)
        self.notices.note_once(
            "unknown_subscription",
            subscription,
            f"subscription {subscription} is not replicated here: acknowledgements of other clusters are ignored",
        )

    def note_left_out(self, subscription: str, state: SubscriptionState) -> None:
        """Say which origins a set had no room for, if there were any."""
        if state.left_out:
            state.left_out = 0
            self.notices.note_once(
                "over_limit",
                f"origins {subscription}",
                f"{subscription} has acknowledgements of more than {ORIGINS_MAX} incarnations of this topic: the oldest are left "
                "out, and their messages may be delivered again",
            )

    # ------------------------------------------------------------------------------------------------------- forgetting

    def low_marks(self) -> dict[str, tuple[int, int]]:
        """This cluster's own low-water marks, as of now."""
        log = self.host.log
        self._void_former_marks()
        self.low_water.raise_next(self.host.cluster, (log.incarnation, log.next_index))
        return self.low_water.here(self.routing, self.log_index.lowest())

    def _void_former_marks(self) -> None:
        """A peer's marks of a former incarnation are void from the first handshake of the present one on, also when a third
        cluster passes them on (docs/design/acknowledged-sets.md#forgetting).
        """
        for cluster in self.routing.peers - {self.host.cluster}:
            self.low_water.begin_incarnation(cluster, self.host.latest_incarnation_of(cluster))

    def floor(self) -> dict[str, tuple[int, int]]:
        """Per cluster, below which no bit about its messages is needed (docs/design/acknowledged-sets.md#forgetting)."""
        return self.capped_at_present(self.low_water.floor(self.routing, self.low_marks()))

    def capped_at_present(self, marks: Marks) -> dict[str, tuple[int, int]]:
        """Marks, but never above the beginning of a present incarnation.

        A cluster that lost its disk while its clock was slow has a present incarnation with a lower number than a former one.
        Marks of the former one would delete all bits about acknowledged messages of the present one.
        """
        below = {}
        for cluster, mark in marks.items():
            present = self._present_incarnation(cluster) if mark[0] else 0
            below[cluster] = (present, 0) if 0 < present < mark[0] else mark
        return below

    def _present_incarnation(self, cluster: str) -> int:
        """The incarnation of this topic in a cluster: as its link reported it, or else of its newest entry here; 0: unknown."""
        if cluster == self.host.cluster:
            return self.host.log.incarnation
        if cluster not in self.routing.into[self.host.cluster]:
            return 0
        return self.host.incarnation_of(cluster) or self.log_index.newest_incarnation(cluster)

    def cap_marks(self, state: SubscriptionState) -> None:
        """Nothing of a present incarnation counts as forgotten, and the base states something about all its messages.

        Otherwise the base of another creation is taken for them alone (docs/design/acknowledged-sets.md#base-floor).
        """
        if state.forgot:
            state.forgot = self.capped_at_present(state.forgot)
        if state.floor:
            state.floor = self.capped_at_present(state.floor)

    def needed(self, messages: MessageSet) -> MessageSet:
        """Messages whose bits were forgotten once: those that are here, and those that a newly linked cluster may hold.

        When the bits were forgotten, a policy may have named fewer clusters. A cluster that was named again since then holds the
        messages still, and may hear of them from this cluster only (docs/design/acknowledged-sets.md#forgetting).
        """
        needed = self.log_index.held_of(messages)
        needed |= messages - messages.below(self.floor())
        return needed

    def tidy(self) -> None:
        """Forget the bits that no cluster can need from now on, of subscriptions with nothing to write
        (docs/design/acknowledged-sets.md#forgetting).
        """
        if not self.states or self.loading:
            return
        floor = self.floor()
        for subscription, state in self.states.items():
            self.cap_marks(state)
            if not state.waiting and state.forget(floor, self.log_index.held_of):
                self.host.dirty(subscription)

    def leave_behind(self, messages: MessageSet) -> None:
        """Messages published here from now on belong to none of the incarnations of this cluster's topic that a set names."""
        for key in messages.origins:
            if key.cluster == self.host.cluster:
                self.host.log.incarnation_used(key.incarnation)
