"""Writes markers: collected changes become markers when the interval is over and the broker's pacer has a free moment.

nothing to write                      no timer
something new                         a timer, after the interval
the timer                             a moment from the pacer; then everything that waits, in as few markers as hold it
a creation, a seek, a failover        at once
no writing now (storage, deletion)    kept; tried again at the next event
a failed write                        a full state is due: the lost changes are not known by then
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.acked_sets.marker_parts import ROOM_MIN, pack, sets_of
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.pacer import MarkerPacer
from magnetar.replication.acked_sets.state import SubscriptionState
from magnetar.replication.acked_sets.topic_state import TopicState
from magnetar.wire.acksets import AckedSet, AckedSetsMarker, StateRequest, low_message
from magnetar.wire.markers import build_marker

REQUEST_MAX: Final = 1000
"""Subscriptions in one request: a marker of them stays well below the limit on messages that links meet."""

FULL_EVERY: Final = 100
FULL_MS: Final = 10_000
"""A full state is due after this many deltas, and not before this time: what a lost marker could hide is written again after 10 s
of steady traffic. A fast link gets ten times as many deltas, each a tenth as large, and no more full states."""

Written = Callable[[Position, str], None]
"""Called with the position of the last marker of a full state, or with NONE and what went wrong."""


class MarkerWriter:
    """Writes the markers of one topic.

    Args:
        topic: what is known of the topic.
        interval_ms: how long to collect from now.
        pacer: of the broker.
        writes: see `machine.AckedSets`.
        marker_bytes_max: above this a marker is split.

    Attributes:
        writes: whether anything is written. In snapshot mode it is not, but for final states of failovers.
        sent_ms: when a marker with this subscription was last written durably.
        pending: the timer is set: what is acknowledged now is written when it is due.
        blocked: the storage takes no markers now; tried again at the next event (`unblock`).
    """

    def __init__(
        self,
        topic: TopicState,
        *,
        interval_ms: Callable[[], int],
        pacer: MarkerPacer,
        writes: bool,
        marker_bytes_max: int,
    ) -> None:
        self._topic, self._host, self._count = topic, topic.host, topic.notices.count
        self._interval_ms, self._pacer, self._marker_bytes_max = interval_ms, pacer, marker_bytes_max
        self.writes = writes
        self.sent_ms: dict[str, int] = {}
        self.pending = False
        self._answers: dict[str, list[Written]] = {}
        self.blocked = self._reserved = False
        self._to_request: set[str] = set()

    # ---------------------------------------------------------------------------------------------------------- when

    def schedule(self) -> None:
        """See to it that what waits is written."""
        if not (self._topic.loading or self.pending or self.blocked) and self.waiting():
            self.pending = True
            self._host.timer(self._host.now_ms + self._interval_ms(), self._due)

    def waiting(self) -> list[str]:
        """The subscriptions to write; in snapshot mode only final states of failovers, for which a caller waits."""
        if not self.writes:
            return [subscription for subscription in self._answers if subscription in self._topic.states]
        return [subscription for subscription, state in self._topic.states.items() if state.full or state.dirty]

    def _due(self, now_ms: int) -> None:
        self.pending = False
        waiting = self.waiting()
        if not waiting:
            self._reserved = False
            return
        if not self._reserved:
            at_ms = self._pacer.reserve(now_ms)
            if at_ms > now_ms:
                self.pending = self._reserved = True
                self._host.timer(at_ms, self._due)
                return
        self._reserved = False
        self.write(waiting)

    def unblock(self) -> None:
        """The storage may take markers again."""
        self.blocked = False
        self.send_requests()
        self.schedule()

    def all_full(self, reason: str) -> None:
        """A full state of every subscription is due."""
        if self.writes:
            for state in self._topic.states.values():
                state.full = state.full or reason
            self.schedule()

    def start(self, reason: str) -> None:
        """This mode writes from now on: a full state of every subscription is due."""
        self.writes = True
        self.all_full(reason)

    def stop(self) -> None:
        """Discard everything that waits: the other mode writes from now on."""
        self.writes = False
        for state in self._topic.states.values():
            state.dirty, state.full = MessageSet(), ""

    # ---------------------------------------------------------------------------------------------------------- what

    def _is_full(self, state: SubscriptionState) -> bool:
        """Whether a full state is due: for a reason, as the first in its epoch, every so often.

        See docs/design/acknowledged-sets.md#full-states.
        """
        if state.full or state.opened != state.epoch:
            return True
        return state.deltas >= FULL_EVERY and self._host.now_ms - state.full_ms >= FULL_MS

    def _marker(self) -> AckedSetsMarker:
        """A marker without sets."""
        topic, log = self._topic, self._host.log
        own = topic.low_marks()
        return AckedSetsMarker(
            self._host.cluster,
            log.incarnation,
            log.next_index,
            topic.low_water.all_marks(topic.routing, own, log.incarnation, log.last),
            topic.low_water.retained_marks(topic.routing, own),
            (),
        )

    def write(self, subscriptions: Iterable[str]) -> None:
        """Append markers with everything that waits of these subscriptions. What cannot be appended keeps waiting."""
        empty = self._marker()
        room = max(ROOM_MIN, self._marker_bytes_max - sum(mark.ByteSize() for mark in low_message(empty.low)) - 1024)
        sets: list[AckedSet] = []
        for subscription in subscriptions:
            state = self._topic.states[subscription]
            sets += sets_of(subscription, state, full=self._is_full(state), bytes_max=room)
        for part in pack(sets, room):
            if not self._append(empty._replace(sets=part.sets)):
                break

    def write_full(self, subscription: str, reason: str, then: Written) -> None:
        """Write a full state at once; `then` is called when it is durable."""
        self._topic.states[subscription].full = reason
        self._answers.setdefault(subscription, []).append(then)
        self.write([subscription])

    def _append(self, marker: AckedSetsMarker) -> bool:
        written = [(one, self._topic.states[one.subscription]) for one in marker.sets]
        answers = [
            answer
            for one, _ in written
            if one.full and one.part == one.parts
            for answer in self._answers.pop(one.subscription, ())
        ]
        data = build_marker(marker, self._host.now_ms)
        if not self._host.append_marker(
            data, (), lambda position, error: self._appended(written, answers, position, error)
        ):
            self.blocked = True
            for one, _ in written:
                if answers and one.full and one.part == one.parts:
                    self._answers[one.subscription] = answers
            return False
        self._count("markers_written")
        self._count("bytes_written", len(data))
        for one, state in written:
            state.in_flight += 1
            self._count("full_states_written" if one.full else "deltas_written")
            if one.part == one.parts:
                state.deltas = 0 if one.full else state.deltas + 1
                state.dirty = MessageSet()
                if one.full:
                    state.opened, state.full, state.full_ms = state.epoch, "", self._host.now_ms
        return True

    def _appended(
        self,
        written: Sequence[tuple[AckedSet, SubscriptionState]],
        answers: Iterable[Written],
        position: Position,
        error: str,
    ) -> None:
        if error:
            self._count("write_failures")
        for one, state in written:
            state.in_flight -= 1
            if error:
                state.full = f"a marker was not written: {error}"
            else:
                self.sent_ms[one.subscription] = self._host.now_ms
        for answer in answers:
            answer(position, error)
        self._topic.tidy()
        self.schedule()

    # ------------------------------------------------------------------------------------------------------- answers

    def give_up(self, subscription: str, error: str) -> None:
        """No full state of a subscription will be written: answer those who wait for one."""
        for answer in self._answers.pop(subscription, ()):
            answer(NONE, error)

    def close(self, error: str) -> None:
        """The topic is gone and no marker will be written: answer all callers that wait for a seek or a failover."""
        for subscription in list(self._answers):
            self.give_up(subscription, error)

    # ------------------------------------------------------------------------------------------------------ requests

    def request(self, subscriptions: Iterable[str]) -> None:
        """Ask the clusters that have these subscriptions for their full states."""
        self._to_request.update(subscriptions)
        self.send_requests()

    def send_requests(self) -> None:
        """Write the requests that could not be written before."""
        if self._topic.loading or not self.writes:
            return
        while self._to_request:
            names = tuple(sorted(self._to_request)[:REQUEST_MAX])
            self._to_request -= set(names)
            request = build_marker(StateRequest(self._host.cluster, names), self._host.now_ms)
            if not self._host.append_marker(
                request,
                (),
                lambda _, error, names=names: self._requested(names, error),  # type: ignore[misc]
            ):
                self._to_request |= set(names)
                self.blocked = True
                return
            self._count("markers_written")

    def _requested(self, names: Iterable[str], error: str) -> None:
        if error:
            self._to_request |= self._topic.states.keys() & set(names)

    def validate(self) -> None:
        """Check what must hold after every step."""
        if self.writes and not self._topic.loading:
            assert self.pending or self.blocked or not self.waiting(), (
                f"{self.waiting()} wait, and nothing will write them"
            )
