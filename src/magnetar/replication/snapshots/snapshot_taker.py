"""Takes snapshots, and answers those that other clusters take.

    nothing -> REQUEST written, `pending` -> answers (pending_snapshot.py) -> SNAPSHOT written, `completing` -> read back: nothing

The next one begins `interval_ms` after the beginning of the last, if there is still a reason (`wanted`, asked of the
machine); without a reason there is no timer, and an idle topic writes nothing. A snapshot that was dropped because no cluster
answered is tried again when there are new messages or when any entry of a peer comes. The request is still in the log: the peer
answers it as soon as the link is back, and that answer is such an entry.
"""

from collections.abc import Callable
from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.marker_host import MarkerHost
from magnetar.replication.notices import Notices
from magnetar.replication.snapshots.marker_appender import MarkerAppender
from magnetar.replication.snapshots.message_runs import MessageRuns
from magnetar.replication.snapshots.pending_snapshot import PendingSnapshot, Step
from magnetar.wire.markers import Snapshot, SnapshotRequest, SnapshotResponse

ID_BYTES_MAX: Final = 256
"""Length of a snapshot's id that an answer repeats; a uuid has 36 characters."""


class SnapshotTaker:
    """Snapshots of one topic.

    Args:
        host: the topic.
        appender: of its markers.
        notices: counters, and lines for the log.
        held: what the log holds now, `RANGES_MAX` runs at most.
        wanted: whether there is a reason to take a snapshot.
        partners: clusters that can answer.
        new_id: gives a fresh text per snapshot.
        interval_ms, timeout_ms: see `machine.Snapshots`.

    Attributes:
        pending: the snapshot in progress.
        completing: a SNAPSHOT is being written.
        newest: local position of the newest snapshot.
        missing: clusters that let a snapshot time out -> since when.
        knowing: peers that are known to read claims.
        dropped_ms: when the last snapshot was dropped; 0 for never, or when one succeeded since.
        dropped: how many were dropped since the last one that succeeded.
    """

    def __init__(
        self,
        host: MarkerHost,
        appender: MarkerAppender,
        notices: Notices,
        *,
        held: Callable[[], MessageRuns],
        wanted: Callable[[], bool],
        partners: Callable[[], frozenset[str]],
        new_id: Callable[[], str],
        interval_ms: int,
        timeout_ms: int,
    ) -> None:
        self._host = host
        self._appender, self._notices = appender, notices
        self._held = held
        self._wanted = wanted
        self._partners = partners
        self._new_id = new_id
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self.pending: PendingSnapshot | None = None
        self.completing = False
        self.newest = NONE
        self.missing: dict[str, int] = {}
        self.knowing: set[str] = set()
        self.dropped_ms = 0
        self.dropped = 0
        self._started_ms: int | None = None
        self._stalled = False
        self._timer_ms: int | None = None
        self._asked: dict[str, SnapshotRequest] = {}

    # ---------------------------------------------------------------------------------------------------------- taking

    def tick(self) -> None:
        """Take the steps that are due, and ask for a timer for the next one."""
        now_ms = self._host.now_ms
        if self.pending is not None and now_ms >= self.pending.deadline_ms:
            self._timed_out(self.pending)
        if self._appender.blocked:
            return
        if self.pending is None and not self.completing and not self._stalled and self._wanted():
            due_ms = now_ms if self._started_ms is None else self._started_ms + self._interval_ms
            # A due time further off than that: the clock was set back meanwhile.
            if now_ms < due_ms <= now_ms + self._interval_ms:
                self._arm(due_ms)
            else:
                self._begin(now_ms)
        if self.pending is not None:
            self._arm(self.pending.deadline_ms)

    def _arm(self, at_ms: int) -> None:
        if self._timer_ms is None or at_ms < self._timer_ms:
            self._timer_ms = at_ms
            self._host.timer(at_ms, self._fired)

    def _fired(self, now_ms: int) -> None:
        if self._timer_ms is not None and now_ms >= self._timer_ms:
            self._timer_ms = None
        self.tick()

    def _begin(self, now_ms: int) -> None:
        partners = self._partners()
        if not partners:
            return
        expected = partners - self.missing.keys() or partners
        pending = PendingSnapshot(self._new_id(), partners, expected, now_ms, now_ms + self._timeout_ms)
        if self._ask(pending):
            self.pending = pending
            self._started_ms = now_ms

    def _ask(self, pending: PendingSnapshot) -> bool:
        def done(position: Position, error: str) -> None:
            if error and self.pending is pending:
                self.pending = None

        self._notices.count("requests")
        return self._appender.write(pending.request(self._host.cluster), pending.peers, done)

    def answered(self, response: SnapshotResponse, position: Position) -> None:
        """A RESPONSE of another cluster is stored here."""
        if response.round:
            self.knowing.add(response.cluster)
        else:
            self.knowing.discard(response.cluster)
        if self.pending is not None:
            self._step(self.pending, self.pending.answered(response), position)

    def _step(self, pending: PendingSnapshot, step: Step, position: Position) -> None:
        if step is Step.SECOND_ROUND:
            if not self._ask(pending):
                self.pending = None
        elif step is Step.COMPLETE:
            self._complete(pending, position)
        elif step is Step.DROP:
            self._drop(pending)
        elif step is Step.IGNORED:
            self._notices.count("late_responses")

    def _timed_out(self, pending: PendingSnapshot) -> None:
        self._notices.count("timed_out")
        for cluster in sorted(pending.waiting):
            if cluster not in self.missing:
                self.missing[cluster] = pending.started_ms
                self._host.note(
                    "warning",
                    f"{self._host.log.name}: {cluster} did not answer a snapshot within {self._timeout_ms} ms",
                )
        # All stored entries were seen, so the newest entry is as good a local position as a response's.
        self._step(pending, pending.timed_out(self.knowing), self._host.log.last)

    def _drop(self, pending: PendingSnapshot) -> None:
        self.pending = None
        self._stalled = True
        self.dropped_ms = max(1, self._host.now_ms)
        self.dropped += 1
        self._notices.count("dropped")

    def _complete(self, pending: PendingSnapshot, local: Position) -> None:
        self.pending = None
        snapshot = Snapshot(pending.snapshot_id, local, pending.usable(), self._held().origins)

        def done(position: Position, error: str) -> None:
            self.completing = False
            if not error:
                self.dropped_ms = self.dropped = 0
                self._notices.count("snapshots")

        self.completing = self._appender.write(snapshot, (self._host.cluster,), done)

    # ------------------------------------------------------------------------------------------------------- answering

    def asked(self, request: SnapshotRequest) -> None:
        """A REQUEST of another cluster is stored here; only its newest one is answered."""
        if request.round:
            self.knowing.add(request.source_cluster)
        self._asked[request.source_cluster] = request

    def answered_here(self, response: SnapshotResponse) -> None:
        """Our own RESPONSE is in the log (at start)."""
        self._asked = {
            asker: request for asker, request in self._asked.items() if request.snapshot_id != response.snapshot_id
        }

    def answer(self) -> None:
        """Answer the requests that are not answered yet, with the newest position as it is now."""
        for asker, request in list(self._asked.items()):
            here = self._host.cluster
            response = SnapshotResponse(request.snapshot_id, here, self._host.log.last, request.round)

            def done(position: Position, error: str, asker: str = asker, request: SnapshotRequest = request) -> None:
                if error:
                    self._asked.setdefault(asker, request)

            if not self._appender.write(response, (asker,), done):
                return
            self._notices.count("responses")
            self._asked.pop(asker, None)

    # ------------------------------------------------------------------------------------------------- reports of the log

    def taken(self, local: Position) -> None:
        """Our own SNAPSHOT is in the log."""
        self.newest = max(self.newest, local)

    def moved(self) -> None:
        """There are new messages, or something else that may make a new attempt worth while."""
        self._stalled = False

    def received_from(self, cluster: str) -> None:
        """An entry of a cluster came."""
        self._stalled = False
        if self.missing.pop(cluster, None) is not None:
            self._host.note("info", f"{self._host.log.name}: {cluster} is back")

    def rebased(self, cluster: str) -> None:
        """A cluster may have forgotten a request that it got, or an answer that it gave."""
        self.pending = None
        self.missing.pop(cluster, None)
        self.knowing.discard(cluster)
        self._stalled = False

    def routes_changed(self) -> None:
        """Partners came or went."""
        partners = self._partners()
        for cluster in self.missing.keys() - partners:
            del self.missing[cluster]
        self._asked = {asker: request for asker, request in self._asked.items() if asker in partners}
        self._stalled = False
        pending = self.pending
        if pending is not None and not pending.peers <= partners:
            self._notices.count("went_on_without")
            left = ", ".join(sorted(pending.peers - partners))
            self._host.note(
                "info",
                f"{self._host.log.name}: the present snapshot continues without {left}: no links in both directions",
            )
            self._step(pending, pending.without(partners), self._host.log.last)

    def describe(self) -> dict[str, object]:
        """Plain values."""
        pending = self.pending
        return {
            "newestSnapshot": str(self.newest),
            "pendingSince": pending.started_ms if pending else 0,
            "waitingFor": sorted(pending.waiting) if pending else [],
            "droppedAt": self.dropped_ms,
            "dropped": self.dropped,
            "missing": dict(sorted(self.missing.items())),
        }

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self.pending is None or not self.completing, "a snapshot is asked for and written"
        assert self.pending is None or self.pending.waiting, "a snapshot waits for no cluster"
        assert self.newest <= self._host.log.last or self._host.log.last == NONE, "a snapshot of what is not there"
