"""Writing: what is collected becomes markers when the interval is over and the broker's pacer has a place.

nothing to tell                       no timer
something new                         a timer, after the interval
the timer                             a moment from the pacer; then everything that waits, in as few markers as hold it
a creation, a seek, a failover        at once
no writing now (storage, deletion)    kept; tried again at the next event
a failed write                        a full state is due: what was lost is not known by then
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.acked_sets.index_set import IndexSet
from magnetar.replication.acked_sets.marker_parts import ROOM_MIN, pack, sets_of
from magnetar.replication.acked_sets.pacer import MarkerPacer
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.replication.acked_sets.topic import AckedTopic
from magnetar.replication.host import MarkerHost
from magnetar.wire.acksets import AckedSet, AckedSetsMarker, FenceToken, StateRequest, low_message
from magnetar.wire.markers import build_marker

REQUEST_MAX: Final = 1000
"""Subscriptions in one request: a marker of them stays well below the limit on messages that links meet."""

FULL_EVERY: Final = 100
"""Deltas between two full states, at most: what a lost marker could hide is told again after 10 s of steady traffic."""

Written = Callable[[Position, str], None]
"""Told of the position of the last marker of a full state, or of NONE and what went wrong."""


class TellingTopic(AckedTopic):
    """The writing half, see `machine.AckedSets`.

    Attributes:
        sent_ms: when a marker with this subscription was last written durably.
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
        super().__init__(host, writes=writes, on_fence=on_fence)
        self.sent_ms: dict[str, int] = {}
        self._interval_ms, self._pacer, self._marker_bytes_max = interval_ms, pacer, marker_bytes_max
        self._answers: dict[str, list[Written]] = {}
        self._timer = self._reserved = self._blocked = False
        self._unasked: set[str] = set()

    # ---------------------------------------------------------------------------------------------------------- when

    def collects(self, subscription: str) -> bool:
        """Whether what is acknowledged now is told when the timer, which is pending, is due; so it may also be heard of then."""
        return self._timer and subscription in self.states

    def owes(self, subscription: str) -> bool:
        """Whether something is to be told of it; what a marker that is being written carries is told already."""
        state = self.states.get(subscription)
        return state is not None and bool(state.dirty or state.full)

    def _schedule(self) -> None:
        """See to it that what waits is written."""
        if not (self._loading or self._timer or self._blocked) and self._waiting():
            self._timer = True
            self.host.timer(self.host.now_ms + self._interval_ms(), self._due)

    def _unblocked(self) -> None:
        """The storage may take markers again."""
        self._blocked = False
        self._ask()
        self._schedule()

    def _waiting(self) -> list[str]:
        """What has to be written; in snapshot mode nothing but final states of failovers, which somebody waits for."""
        if not self.writes:
            return [subscription for subscription in self._answers if subscription in self.states]
        return [subscription for subscription, state in self.states.items() if state.full or state.dirty]

    def _due(self, now_ms: int) -> None:
        self._timer = False
        waiting = self._waiting()
        if not waiting:
            self._reserved = False
            return
        if not self._reserved:
            at_ms = self._pacer.reserve(now_ms)
            if at_ms > now_ms:
                self._timer = self._reserved = True
                self.host.timer(at_ms, self._due)
                return
        self._reserved = False
        self._write(waiting)

    def _all_full(self, reason: str) -> None:
        if self.writes:
            for state in self.states.values():
                state.full = state.full or reason
            self._schedule()

    # ---------------------------------------------------------------------------------------------------------- what

    def _is_full(self, state: SubscriptionState) -> bool:
        """Whether a full state is due: for a reason, as the first in its epoch, every so often.

        See docs/design/acknowledged-sets.md#full-states.
        """
        return bool(state.full) or self._opens(state) or state.deltas >= FULL_EVERY

    def _opens(self, state: SubscriptionState) -> bool:
        return state.opened != state.epoch

    def _marker(self, sets: Iterable[AckedSet]) -> AckedSetsMarker:
        log, here = self.host.log, self._here()
        return AckedSetsMarker(
            self.host.cluster,
            log.incarnation,
            log.next_index,
            self.waters.told(self.routing, here, log.incarnation, log.last),
            self.waters.told_own(self.routing, here),
            tuple(sets),
        )

    def _write(self, subscriptions: Iterable[str]) -> None:
        """Append markers with everything that these have to tell. What cannot be appended goes on waiting."""
        empty = self._marker(())
        room = max(ROOM_MIN, self._marker_bytes_max - sum(mark.ByteSize() for mark in low_message(empty.low)) - 1024)
        sets: list[AckedSet] = []
        for subscription in subscriptions:
            state = self.states[subscription]
            sets += sets_of(subscription, state, full=self._is_full(state), bytes_max=room)
        for part in pack(sets, room):
            if not self._append(empty._replace(sets=part.sets)):
                break

    def _append(self, marker: AckedSetsMarker) -> bool:
        told = [(one, self.states[one.subscription]) for one in marker.sets]
        answers = [
            answer
            for one, _ in told
            if one.full and one.part == one.parts
            for answer in self._answers.pop(one.subscription, ())
        ]
        data = build_marker(marker, self.host.now_ms)
        if not self.host.append_marker(
            data, (), lambda position, error: self._appended(told, answers, position, error)
        ):
            self._blocked = True
            for one, _ in told:
                if answers and one.full and one.part == one.parts:
                    self._answers[one.subscription] = answers
            return False
        self._count("markers_written")
        self._count("bytes_written", len(data))
        for one, state in told:
            state.in_flight += 1
            self._count("full_states_written" if one.full else "deltas_written")
            if one.part == one.parts:
                state.deltas = 0 if one.full else state.deltas + 1
                state.dirty = IndexSet()
                if one.full:
                    state.opened, state.full = state.epoch, ""
        return True

    def _appended(
        self,
        told: Sequence[tuple[AckedSet, SubscriptionState]],
        answers: Iterable[Written],
        position: Position,
        error: str,
    ) -> None:
        if error:
            self._count("write_failures")
        for one, state in told:
            state.in_flight -= 1
            if error:
                state.full = f"a marker was not written: {error}"
            else:
                self.sent_ms[one.subscription] = self.host.now_ms
        for answer in answers:
            answer(position, error)
        self._tidy()
        self._schedule()

    def _answer(self, subscription: str, position: Position, error: str) -> None:
        for answer in self._answers.pop(subscription, ()):
            answer(position, error)

    def closed(self, error: str) -> None:
        """The topic is gone, nothing is written any more: who waits for a seek or a failover is told so."""
        for subscription in list(self._answers):
            self._answer(subscription, NONE, error)

    def _request(self, subscriptions: Iterable[str]) -> None:
        """Ask whoever has these for their full states."""
        self._unasked.update(subscriptions)
        self._ask()

    def _ask(self) -> None:
        if self._loading or not self.writes:
            return
        while self._unasked:
            names = tuple(sorted(self._unasked)[:REQUEST_MAX])
            self._unasked -= set(names)
            request = build_marker(StateRequest(self.host.cluster, names), self.host.now_ms)
            if not self.host.append_marker(request, (), lambda _, error, names=names: self._asked(names, error)):  # type: ignore[misc]
                self._unasked |= set(names)
                self._blocked = True
                return
            self._count("markers_written")

    def _asked(self, names: Iterable[str], error: str) -> None:
        if error:
            self._unasked |= self.states.keys() & set(names)

    def _stop_telling(self) -> None:
        for state in self.states.values():
            state.dirty, state.full = IndexSet(), ""
