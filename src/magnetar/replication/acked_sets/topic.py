"""What the machine of one topic is made of: states, marks, clock, counters, and what it asks of its host."""

from collections.abc import Callable
from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.acked_sets.index_set import IndexSet, Marks
from magnetar.replication.acked_sets.log_index import Translator
from magnetar.replication.acked_sets.low_water import Routing, Waters
from magnetar.replication.acked_sets.seek_clock import HybridClock
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.replication.host import MarkerHost
from magnetar.wire.acksets import FenceToken, Mark

COUNTERS: Final = (
    "markers_written", "markers_read", "full_states_written", "deltas_written", "bytes_written", "write_failures",
    "relayed", "adopted_epochs", "came_back", "mode_changes", "malformed", "unknown_cluster", "unknown_subscription", "older",
    "never_assigned", "over_limit", "damaged_states", "clock_ahead",
)  # fmt: skip
"""Of one topic, since the broker's start. From `malformed` on they count what should not be."""


class AckedTopic:
    """See `machine.AckedSets`, which this is the ground floor of.

    Attributes:
        states: by subscription.
        gone: subscriptions that were deleted here; markers do not bring them back.
        paused: subscriptions that are not replicated any more, as they were when they still were: what is acknowledged since is
            told when they are replicated again. Nothing that others tell meanwhile is merged; it is asked for then.
        counters: see `COUNTERS`.
        writes: whether anything is written.
    """

    def __init__(self, host: MarkerHost, *, writes: bool, on_fence: Callable[[str, FenceToken], None] | None) -> None:
        self.host = host
        self.writes = writes
        self.states: dict[str, SubscriptionState] = {}
        self.gone: set[str] = set()
        self.paused: dict[str, SubscriptionState] = {}
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.translator = Translator(host.log, host.cluster)
        self.waters = Waters()
        self.clock = HybridClock()
        self.routing = Routing(host.cluster, host.routes)
        self._on_fence = on_fence
        self._loading = True
        self._seen = NONE
        self._covered: dict[str, Position] = {}
        self._noted: set[tuple[str, str]] = set()

    def _count(self, counter: str, number: int = 1) -> None:
        self.counters[counter] += number

    def _note(self, level: str, text: str) -> None:
        """One line for the broker's log, with the topic's name."""
        self.host.note(level, f"{self.host.log.name}: {text}")

    def _note_once(self, counter: str, about: str, text: str, level: str = "warning") -> None:
        """Count it every time, tell of it once for each thing that it is about (ten a second would fill a log)."""
        self._count(counter)
        if (counter, about) not in self._noted and len(self._noted) < NOTES_MAX:
            self._noted.add((counter, about))
            self._note(level, text)

    # ---------------------------------------------------------------------------------------------- asked of the host

    def _apply(self, subscription: str, messages: IndexSet) -> None:
        """Messages are consumed: those that are here are acknowledged on the cursor."""
        located = self.translator.locate(messages)
        if located:
            self.host.apply(subscription, located.entries, located.partial)

    def _rebuild(self, subscription: str, state: SubscriptionState) -> None:
        """Consumed messages came back: a seek for the consumers (docs/design/acknowledged-sets.md#coming-back)."""
        located = self.translator.locate(state.consumed())
        self.host.rebuild(subscription, located.entries, located.partial)

    def _tell_fence(self, subscription: str) -> None:
        state = self.states.get(subscription)
        if self._on_fence is not None and state is not None and state.fence is not None:
            self._on_fence(subscription, state.fence)

    # ------------------------------------------------------------------------------------------------------ forgetting

    def _here(self) -> dict[str, tuple[int, int]]:
        """This cluster's own low-water marks, as of now."""
        log = self.host.log
        self._notice_lives()
        self.waters.raise_next(self.host.cluster, (log.incarnation, log.next_index))
        return self.waters.here(self.routing, self.translator.lowest())

    def _notice_lives(self) -> None:
        """What peers told in a former life is void from the first handshake of the present one on, whoever repeats it.

        See docs/design/acknowledged-sets.md#forgetting.
        """
        for cluster in self.routing.peers - {self.host.cluster}:
            self.waters.begin_life(cluster, self.host.latest_life_of(cluster))

    def _floor(self) -> dict[str, tuple[int, int]]:
        return self._of_past_lives(self.waters.floor(self.routing, self._here()))

    def _of_past_lives(self, marks: Marks) -> dict[str, tuple[int, int]]:
        """Marks, but never above the beginning of a life that is lived now.

        A cluster that lost its disk while its clock was behind has a present life with a lower number than a former one, and
        marks of that one would have everything forgotten that is acknowledged of the present one.
        """
        below = {}
        for cluster, mark in marks.items():
            life = self._life(cluster) if mark[0] else 0
            below[cluster] = (life, 0) if 0 < life < mark[0] else mark
        return below

    def _life(self, cluster: str) -> int:
        """The present incarnation of this topic in a cluster, as its link told, or else its newest entry here; 0: unknown."""
        if cluster == self.host.cluster:
            return self.host.log.incarnation
        if cluster not in self.routing.into[self.host.cluster]:
            return 0
        return self.host.incarnation_of(cluster) or self.translator.newest_life(cluster)

    def _remember(self, state: SubscriptionState) -> None:
        """Nothing of a life that is lived now counts as forgotten."""
        if state.forgot:
            state.forgot = self._of_past_lives(state.forgot)

    def _tidy(self) -> None:
        """Forget what nobody can need any more, where nothing waits to be written.

        See docs/design/acknowledged-sets.md#forgetting.
        """
        if not self.states or self._loading:
            return
        floor = self._floor()
        for subscription, state in self.states.items():
            self._remember(state)
            if self._may_forget(state) and state.forget(floor, self.translator.held_of):
                self.host.dirty(subscription)

    def _may_forget(self, state: SubscriptionState) -> bool:
        return not state.waiting

    # ----------------------------------------------------------------------------------------------------- with links

    def own_marks(self) -> tuple[Mark, ...]:
        """What a link tells the destination of this topic: per origin the first own index that it retains."""
        return self.waters.told_own(self.routing, self._here())

    def learn_own(self, marks: tuple[Mark, ...]) -> None:
        """What a link's source told (`own_marks` there)."""
        if self.waters.learn_own(mark for mark in marks if mark.cluster != self.host.cluster):
            self._tidy()


NOTES_MAX: Final = 1000
"""A ceiling on the kinds of trouble that are remembered as told."""
