"""The driver of a pipeline with long batches: one run of its process, from its start to its death.

The decisions are the real ones: `PipelineState` with its grants says what is compared, granted, revoked, planned and owed, and
`Turns` when batches begin. What is modelled is the rest of the coordinator: connections to both brokers, commands that are stuck
in one, answers that never come, batches that Spark runs twice or again. A topic with a backlog is handed over to planned batches
and back, as the real coordinator does it, if the link has both kinds.
"""

from typing import Final, Protocol

from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline import messages as m
from magnetar.pipeline.breaker import Breaker, BreakerState
from magnetar.pipeline.handshake_worker import watermarks
from magnetar.pipeline.link_state import Handshake, Owed
from magnetar.pipeline.link_state import Link as PipelineLink
from magnetar.pipeline.long.turns import Turns
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.pipeline.planner import BULK, LONG
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar_sim.connections.link_peer import Peer
from magnetar_sim.connections.long_task import PATIENCE_MS, LongHost, LongTask
from magnetar_sim.connections.planned_batch import PlannedBatch
from magnetar_sim.connections.ranges import second_attempt_ms
from magnetar_sim.connections.workers import unheard, unused

POLL_MS: Final = 10_000
"""A long poll's length."""

POLL_PAUSE_MS: Final = 25
"""Between two polls."""

HANDSHAKE_IDLE_MS: Final = 6_000
"""Between two comparisons of an idle link: well below `identity_silence_ms`."""

BLOCKED_MS_MAX: Final = 5_000
"""The longest pause of a blocked topic: worlds are not calm for long."""

LEASE_MS: Final = 5_000

ATTEMPTS_MAX: Final = 4
"""So often Spark runs a task whose attempts fail; then the query ends, and begins again."""

START_MS: Final = 1_500
"""The longest that Spark takes to start a batch."""

_GRANT_SHIFT: Final = 20


class DriverHost(LongHost, Protocol):
    """What a driver needs of its link."""

    stopped: bool

    def begin(self, task: LongTask) -> None:
        """An attempt to carry a long batch exists from now on; it starts later."""

    def carry(self, batch: PlannedBatch) -> None:
        """A planned batch exists from now on."""


class Driver:
    """One run of the driver.

    Args:
        host: its link.
        name: of the pipeline, for leases.

    Attributes:
        dead: its process is gone; what it began may go on.
        polls: its connection for polls.
    """

    def __init__(self, host: DriverHost, name: str) -> None:
        self._host, self.name = host, name
        self._clock, self._rng = host.context.clock, host.faults.rng
        now_ms = self._clock.now_ms
        limits = ReplicationLimits(
            handshake_idle_ms=HANDSHAKE_IDLE_MS, blocked_retry_ms_max=BLOCKED_MS_MAX, lease_ms=LEASE_MS,
            long_batch_ms=host.faults.length_ms,
        )  # fmt: skip
        link = PipelineLink(0, host.source, host.target)
        self.state = PipelineState([link], self._rng, 4, limits, first_grant=now_ms << _GRANT_SHIFT)
        self._turns = Turns(LONG, host.faults.length_ms, now_ms)
        self._running: set[str] = set()
        self._planned: PlannedBatch | None = None
        self.dead = False
        self.polls: Peer | None = None
        self._polling = False
        self._poll_due_ms = 0
        self._counter = self._boot = 0
        self._commits: Peer | None = None
        self._committing = 0
        self._handshakes: Peer | None = None
        self._comparing = 0
        self._commands = 0

    def die(self) -> None:
        """The process is gone."""
        self.dead = True
        for peer in (self.polls, self._commits, self._handshakes):
            if peer is not None:
                peer.close()

    def work(self) -> None:
        """Poll, compare, grant and revoke, begin batches: whatever is missing."""
        if self.dead or self._host.stopped:
            return
        self._poll()
        self._commit()
        self._handshake()
        for query in LONG:
            self._turn(query)
        self._plan()

    def _breaker(self, cluster: str) -> Breaker:
        return self.state.breakers[cluster]

    def _failed(self, cluster: str, reason: str) -> None:
        self._breaker(cluster).failed(self._clock.now_ms, self._rng, reason)

    def _worked(self, cluster: str) -> None:
        if not self._breaker(cluster).closed:
            self._breaker(cluster).worked()

    # ------------------------------------------------------------------------------------------------- news of the source

    def _poll(self) -> None:
        source, breaker = self._host.source, self._breaker(self._host.source)
        if self.polls is not None and self.polls.open and breaker.state is BreakerState.OPEN:
            self.polls.close()  # a task could not reach it: connect again, as the probe
            self._lost_source()
        if self.polls is None or not self.polls.open:
            self.state.source_lost(source)
            if not (breaker.closed or breaker.probe(self._clock.now_ms)):
                return
            self._counter, self._polling, self._poll_due_ms = 0, False, 0
            self.polls = self._host.workers.peer(source, self._lost_source)
            if not self.polls.open:
                self._lost_source()
                return
        if not self._polling and self._clock.now_ms >= self._poll_due_ms:
            self._ask(self.polls)

    def _lost_source(self) -> None:
        if self.dead or (self.polls is not None and self.polls.open):
            return
        self.polls, self._polling = None, False
        self.state.source_lost(self._host.source)
        self._failed(self._host.source, "the connection is lost")

    def _ask(self, peer: Peer) -> None:
        self._polling = True
        state = self.state.links[0]
        if state.doubtful:
            state.doubtful, self._counter = False, 0
        wait_ms = POLL_MS if self._counter else 0
        answered = False

        def body(request_id: int) -> pb.CommandGeoTopics:
            return pb.CommandGeoTopics(
                request_id=request_id, to=self._host.target, counter=self._counter, boot=self._boot, wait_ms=wait_ms,
                pipeline=self.name, lease_ms=LEASE_MS,
            )  # fmt: skip

        def then(frame: Frame) -> None:
            nonlocal answered
            answered = True
            if peer is self.polls and not self.dead:
                self._news(frame)

        def overdue() -> None:
            if not answered and peer is self.polls and not self.dead:
                peer.close()
                self._lost_source()

        peer.ask(pb.GEO_TOPICS, "geo_topics", body, then)
        self._clock.after(wait_ms + PATIENCE_MS, overdue)

    def _news(self, frame: Frame) -> None:
        self._polling = False
        if frame.command.type != pb.GEO_TOPICS_RESPONSE:
            assert self.polls is not None
            self.polls.close()
            self._lost_source()
            return
        answer = frame.command.geo_topics_response
        for topic in answer.topics:
            topic.pending_bytes *= self._host.faults.scale
        everything = not self._counter or answer.boot != self._boot
        self._counter, self._boot = answer.counter, answer.boot
        self.state.source_reported(0, answer, self._clock.now_ms, everything=everything)
        self._worked(self._host.source)
        self._poll_due_ms = self._clock.now_ms + POLL_PAUSE_MS
        self._clock.after(POLL_PAUSE_MS, self.work)

    # ---------------------------------------------------------------------------------------- what the source has to learn

    def _commit(self) -> None:
        now_ms, source = self._clock.now_ms, self._host.source
        if self._committing or not self._breaker(source).closed:
            return
        owed = self.state.owed(source, now_ms)
        troubles = self.state.troubles(source)
        if not owed and not troubles:
            return
        if self._commits is None or not self._commits.open:
            self._commits = self._host.workers.peer(source, unused)
            if not self._commits.open:
                self._failed(source, "it is down")
                return
        self._commands += 1
        self._committing = self._commands
        sent = owed[0] if owed else Owed(self.state.links[0].link, [], [], [], [])
        self._count(sent)

        def body(request_id: int) -> pb.CommandGeoCommit:
            command = pb.CommandGeoCommit(
                request_id=request_id, to=self._host.target, pipeline=self.name, commits=sent.commits,
                learned=sent.learned, grants=sent.grants, revoked=sent.revoked,
            )  # fmt: skip
            for _, trouble in troubles:
                command.trouble, command.reason, command.throttled = trouble
            return command

        number, peer, faults = self._committing, self._commits, self._host.faults
        self._clock.after(PATIENCE_MS, self._commit_overdue, number)
        if faults.chance(faults.loses):
            # It arrives all the same, when the driver said more in another connection long ago; or only its answer is lost.
            self._host.context.count("handshake lost" if sent.learned else "commit late")
            late_ms = int(faults.rng.random() * faults.rng.choice((0, 20_000)))

            def arrive() -> None:
                # In the connection itself: the source distinguishes grants of an old connection from those of a newer one.
                peer.ask(pb.GEO_COMMIT, "geo_commit", body, unheard)
                peer.close()

            self._clock.after(late_ms, arrive)
            return

        def then(frame: Frame) -> None:
            if self._committing != number or self.dead:
                return
            self._committing = 0
            answer = frame.command.geo_commit_response
            if frame.command.type != pb.GEO_COMMIT_RESPONSE or answer.HasField("error"):
                self._failed(source, "an error")
                return
            self.state.commit_answered(sent, list(answer.ignored), answer.counter, self._clock.now_ms)
            for link, trouble in troubles:
                self.state.trouble_reported(link, trouble)
            self.work()

        peer.ask(pb.GEO_COMMIT, "geo_commit", body, then)

    def _count(self, sent: Owed) -> None:
        if sent.revoked:
            self._host.context.count("grant revoked")
        if sent.grants:
            self._host.context.count("grant given")

    def _commit_overdue(self, number: int) -> None:
        """No answer: the connection is given up, and what is on its way in it may still arrive."""
        if number == self._committing and not self.dead:
            self._committing, self._commits = 0, None
            self._failed(self._host.source, "no answer")

    # ------------------------------------------------------------------------------------------------------- comparisons

    def _handshake(self) -> None:
        target, now_ms = self._host.target, self._clock.now_ms
        breaker = self._breaker(target)
        if self._comparing:
            return
        broken = not breaker.closed
        if broken and not breaker.probe(now_ms):
            return
        asked = self.state.handshakes(target, now_ms) or (self.state.probes(target) if broken else [])
        if not asked and not broken:
            return
        if self._handshakes is None or not self._handshakes.open:
            self._handshakes = self._host.workers.peer(target, unused)
            if not self._handshakes.open:
                self._failed(target, "it is down")
                return
        if asked:
            self._compare(self._handshakes, asked[0])
        else:
            self._worked(target)

    def _compare(self, peer: Peer, asked: Handshake) -> None:
        self._commands += 1
        number = self._comparing = self._commands
        faults = self._host.faults
        lost = faults.chance(faults.loses)

        def body(request_id: int) -> pb.CommandGeoWatermarks:
            command = watermarks(asked).geo_watermarks
            command.request_id = request_id
            return command

        def then(frame: Frame) -> None:
            if self._comparing != number or self.dead or lost:
                return
            self._comparing = 0
            if frame.command.type != pb.GEO_WATERMARKS_RESPONSE:
                self._failed(self._host.target, "an error")
                return
            self.state.handshake_answered(asked, frame.command.geo_watermarks_response, self._clock.now_ms)
            self._worked(self._host.target)
            self.work()

        if lost:
            self._host.context.count("handshake lost")
        peer.ask(pb.GEO_WATERMARKS, "geo_watermarks", body, then)
        self._clock.after(PATIENCE_MS, self._handshake_overdue, number)

    def _handshake_overdue(self, number: int) -> None:
        if number == self._comparing and not self.dead:
            self._comparing = 0
            if self._handshakes is not None:
                self._handshakes.close()
            self._failed(self._host.target, "no answer")

    # ------------------------------------------------------------------------------------------------------- long batches

    def _turn(self, query: str) -> None:
        if query in self._running or self._turns.at_ms(query) > self._clock.now_ms:
            return
        self._turns.take(query, self._clock.now_ms)
        self._running.add(query)
        self._clock.after(int(self._rng.random() * START_MS), self._begin, query)

    def _begin(self, query: str) -> None:
        if self.dead:
            return
        host, faults = self._host, self._host.faults
        epoch = self._turns.begin(query, self._clock.now_ms)
        batch = m.LongBatch(epoch, faults.length_ms, self.name, faults.window_bytes)
        host.context.count("long batch")
        self._attempt(query, batch, 1)
        if faults.chance(faults.twice):
            host.context.count("range sent twice")
            again = LongTask(host, batch, self._route(), lambda _task, _why: None)
            host.begin(again)
            self._clock.after(second_attempt_ms(self._rng), again.start)

    def _route(self) -> m.Route:
        return self.state.route(0, ("", ""))

    def _attempt(self, query: str, batch: m.LongBatch, attempt: int) -> None:
        if self.dead:
            return

        def ended(_task: LongTask, why: str) -> None:
            if self.dead:
                return
            if why and attempt < ATTEMPTS_MAX:
                self._clock.after(int(self._rng.random() * START_MS), self._attempt, query, batch, attempt + 1)
                return
            self._turns.over(query)
            self._running.discard(query)
            self._clock.after(0, self.work)

        task = LongTask(self._host, batch, self._route(), ended)
        self._host.begin(task)
        task.start()

    # ---------------------------------------------------------------------------------------------------- planned batches

    def _plan(self) -> None:
        now_ms = self._clock.now_ms
        if self._planned is not None or not self.state.available(BULK, now_ms)[0]:
            return
        tasks = self.state.plan(BULK, {0: ("", "")}, now_ms)
        if not tasks:
            return
        self._host.context.count("backlog planned")
        ranges = [one for task in tasks for one in task.ranges]
        batch = self._planned = PlannedBatch(self._host, ranges, self._route().uuid, self._batch_ended)
        self._host.carry(batch)
        batch.start()
        if self._host.faults.chance(self._host.faults.task_dies):
            self._clock.after(int(self._rng.random() * 2_000), self._query_ended, batch)

    def _query_ended(self, batch: PlannedBatch) -> None:
        """The query ends: its batch counts as over, and its tasks go on."""
        if batch is self._planned and not self.dead:
            self._host.context.count("query ended")
            self._planned = None
            self.state.batch_over(BULK)
            self.work()

    def _batch_ended(self, batch: PlannedBatch, reports: list[m.RangeReport]) -> None:
        if self.dead:
            return
        self.state.batch_reported(BULK, [m.TaskReport(tuple(reports), 0)], self._clock.now_ms)
        if batch is self._planned:
            self._planned = None
        self.work()
