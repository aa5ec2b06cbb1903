"""The pipeline between clusters as Spark runs it, with everything that Spark does to it.

One `Link` speaks the link commands of both brokers, as `magnetar.spark` does: it polls the source, shakes hands with the
destination, plans ranges behind the cursor (a second one while the first is still under way), and lets tasks carry them.
A task reads its range, filters it, chains it and sends it in pieces. It may die, be slow, run twice, or go on
when no part waits for it any more, with what it read then. Nothing here is needed for safety: that is what is tested.
"""

import random
from collections.abc import Callable

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.positions import position_from_proto, position_to_proto
from magnetar_sim.connections.link_filter import LinkFilter
from magnetar_sim.connections.link_peer import Peer
from magnetar_sim.connections.ranges import READ_BYTES, SLOW_MS, Range, Task, chain, fill, second_attempt_ms
from magnetar_sim.connections.workers import LinkSurroundings, Workers

TICK_MS = 400
"""Between two looks of an idle pipeline for something to do, while things go wrong."""

CALM_TICK_MS = 2_000
"""The same when all is well: news comes by itself, and worlds are calm for longer than they are not."""

HANDSHAKE_MS = 6_000
"""Between two handshakes of an idle link: well below `identity_silence_ms`."""

CALM_HANDSHAKE_MS = 11_000
"""The same when all is well and no other cluster uses the name of one: once in each look of `World.calm`."""

AGAIN_MS = 300
"""Between two handshakes of a link that waits for one."""

TASKS_MAX = 5
"""Tasks of a link at a time, zombies included."""


class Link:
    """One link of the pipeline.

    Args:
        around: the world.
        source, target: clusters.
    """

    def __init__(self, around: LinkSurroundings, source: str, target: str) -> None:
        self.context = context = around.context
        rng = context.rng
        self.source, self.target = source, target
        self.rng: random.Random = rng
        self.filter = LinkFilter(rng, around.truth, target)
        self.workers = Workers(around, rng, source, target, lambda: self._from)
        self.task_dies = rng.choice((0.0, 0.02, 0.1))
        self.twice = rng.choice((0.0, 0.1, 0.5))
        self.loses = rng.choice((0.0, 0.05, 0.3))
        self.slow_ms = rng.choice((5, 50, 500))
        self.stopped = False
        self._from: Peer | None = None
        self._to: Peer | None = None
        self._polling = False
        self._counter = self._boot = 0
        self._uuid = ""
        self._topics: dict[str, pb.GeoTopicState] = {}
        self._shaken: dict[str, tuple[int, int]] = {}
        self._shook_ms = -HANDSHAKE_MS
        self._planned: dict[str, Range] = {}
        self._settled: dict[str, pb.GeoTopicState] = {}
        """States with nothing left to plan: only the next one, which the source sends, has something."""
        self.tasks: list[Task] = []
        context.clock.after(int(rng.random() * TICK_MS), self._tick)

    # ------------------------------------------------------------------------------------------------- its own clockwork

    def pause_ms(self) -> int:
        """How long a task takes for nothing."""
        return int(self.rng.random() * self.slow_ms)

    def calm(self) -> None:
        """Nothing goes wrong in the pipeline any more."""
        self.task_dies = self.loses = self.twice = 0.0
        self.slow_ms = 5
        self.stopped = False

    def _tick(self) -> None:
        self.context.clock.after(TICK_MS if self.context.storm else CALM_TICK_MS, self._tick)
        if not self.stopped:
            self.work()

    def _lost_source(self) -> None:
        if self._from is not None and self._from.open:
            return  # the news is old: there is another connection already
        self._from = None
        self._polling = False
        self._counter = 0
        self._topics.clear()
        for task in [task for task in self.tasks if not task.work.read]:
            task.over = True
            self.ended(task, m.SOURCE_DOWN, "the source is gone")

    def _lost_target(self) -> None:
        if self._to is not None and self._to.open:
            return
        self._to = None
        self._shaken.clear()

    def work(self) -> None:
        """Connect, poll, shake hands, plan: whatever is missing."""
        if self._from is None or not self._from.open:
            self._lost_source()
            self._from = self.workers.peer(self.source, self._lost_source)
        if self._to is None or not self._to.open:
            self._lost_target()
            self._to = self.workers.peer(self.target, self._lost_target)
        if not self._from.open:
            return
        if not self._polling:
            self._poll()
            return
        if not self._to.open:
            return
        shaken = self._shaken
        names = [name for name, state in self._topics.items() if shaken.get(name) != _incarnation_and_gen(state)]
        idle_ms = HANDSHAKE_MS if self.context.storm else CALM_HANDSHAKE_MS
        if self.context.clock.now_ms - self._shook_ms >= (AGAIN_MS if names else idle_ms):
            self._handshake()
        for name in list(self._topics):
            self._plan(name)

    def _poll(self) -> None:
        assert self._from is not None
        self._polling = True
        wait_ms = 20_000 if self._counter else 0
        peer = self._from
        peer.ask(
            pb.GEO_TOPICS,
            "geo_topics",
            lambda request_id: pb.CommandGeoTopics(
                request_id=request_id, to=self.target, counter=self._counter, wait_ms=wait_ms,
                pipeline="sim", boot=self._boot,
            ),
            lambda frame: self._polled(peer, frame),
        )  # fmt: skip

    def _polled(self, peer: Peer, frame: Frame) -> None:
        if peer is not self._from or frame.command.type != pb.GEO_TOPICS_RESPONSE:
            return
        answer = frame.command.geo_topics_response
        self._counter, self._boot, self._uuid = answer.counter, answer.boot, answer.uuid
        for state in answer.topics:
            if state.removed:
                self._topics.pop(state.topic, None)
            else:
                self._topics[state.topic] = state
        if self.stopped:
            self._polling = False
            return
        self._poll()
        self.work()

    def _handshake(self) -> None:
        assert self._to is not None
        self._shook_ms = self.context.clock.now_ms
        asked = dict(self._topics)
        uuid = self._uuid
        if not uuid:
            return

        def body(request_id: int) -> pb.CommandGeoWatermarks:
            query = pb.CommandGeoWatermarks(request_id=request_id, source=self.source, uuid=uuid, counter=0)
            for name, state in asked.items():
                query.topics.add(
                    topic=name, incarnation=state.incarnation, partitions=state.partitions, last=state.last,
                    start=state.cursor.c,
                )  # fmt: skip
            return query

        def answered(frame: Frame) -> None:
            if frame.command.type != pb.GEO_WATERMARKS_RESPONSE:
                return
            answer = frame.command.geo_watermarks_response
            for mark in answer.topics:
                state = asked[mark.topic]
                if answer.blocked and not mark.foreign:
                    continue
                self._report(
                    mark.topic, state.incarnation, state.cursor.gen, position_from_proto(mark.persisted), answer.counter,
                    foreign=mark.foreign, blocked=mark.blocked, reason=mark.reason, there=mark.incarnation,
                )  # fmt: skip

        self._to.ask(pb.GEO_WATERMARKS, "geo_watermarks", body, answered)

    def refused(self, work: Range, watermark: Position) -> None:
        """A destination refused a piece, and named its watermark."""
        self._shaken.pop(work.topic, None)
        gen = work.gen if self.rng.random() < 0.5 else 0
        self._report(work.topic, work.incarnation, gen, watermark, 0)

    def _report(
        self, topic: str, incarnation: int, gen: int, watermark: Position, counter: int, *, foreign: bool = False,
        blocked: str = "", reason: str = "", there: int = 0,
    ) -> None:  # fmt: skip
        if self.rng.random() < self.loses:
            self.context.count("handshake lost")
            return

        def body(request_id: int) -> pb.CommandGeoCommit:
            report = pb.CommandGeoCommit(request_id=request_id, to=self.target)
            mark = report.learned.add(
                topic=topic,
                incarnation=incarnation,
                watermark=position_to_proto(watermark),
                counter=counter,
                gen=gen,
                foreign=foreign,
                there=there,
            )
            if blocked:
                mark.blocked, mark.reason = blocked, reason
            return report

        def answered(frame: Frame) -> None:
            if (
                frame.command.type == pb.GEO_COMMIT_RESPONSE
                and not frame.command.geo_commit_response.error
                and not blocked
                and not foreign
            ):
                self._shaken[topic] = (incarnation, gen)
                self.work()

        self._commit(body, answered)

    def _commit(self, body: Callable[[int], object], then: Callable[[Frame], None]) -> None:
        """GEO_COMMIT, now or late, over whatever connection there is then."""

        def go() -> None:
            if self._from is not None and self._from.open:
                self._from.ask(pb.GEO_COMMIT, "geo_commit", body, then)

        late = self.rng.random() < self.loses
        if late:
            self.context.count("commit late")
        self.context.clock.after(int(self.rng.random() * 20_000) if late else 0, go)

    # ----------------------------------------------------------------------------------------------------------- ranges

    def _plan(self, name: str) -> None:
        state = self._topics[name]
        if (
            self._shaken.get(name) != _incarnation_and_gen(state)
            or state.paused
            or (state.blocked and self.rng.random() < 0.7)
        ):
            return
        before = self._planned.get(name)
        alive = [task for task in self.tasks if task.work.topic == name and not task.zombie]
        if before is not None and (not alive or (before.incarnation, before.gen) != _incarnation_and_gen(state)):
            before = None
        if len(alive) >= 2 or len(self.tasks) >= TASKS_MAX or (before is not None and not before.read):
            return
        if self._from is None or (before is None and self._settled.get(name) is state):
            return
        if before is not None:
            c, s = before.end, before.sent_last
        else:
            c, s = position_from_proto(state.cursor.c), position_from_proto(state.cursor.s)
        if c >= position_from_proto(state.last):
            if before is None:
                self._settled[name] = state
            return
        work = Range(name, state.incarnation, self._uuid, state.cursor.gen, c, s, before=before)
        task = Task(self, work)
        self.tasks.append(task)
        self._planned[name] = work
        size = self.rng.choice(READ_BYTES)
        self._from.ask(
            pb.GEO_READ,
            "geo_read",
            lambda request_id: pb.CommandGeoRead(
                request_id=request_id, topic=name, to=self.target, after=position_to_proto(c), bytes_max=size
            ),
            lambda frame: self._read(task, frame),
        )

    def _read(self, task: Task, frame: Frame) -> None:
        work = task.work
        if task.over:
            return
        response = frame.command.geo_read_response
        nothing = (
            frame.command.type != pb.GEO_READ_RESPONSE
            or response.error
            or response.blocked
            or position_from_proto(response.end) <= work.c
        )
        if nothing or work.other_incarnation(response):
            task.over = True
            self.ended(task, m.RETRY, "nothing read")
            return
        fill(work, response, frame.payload)
        chain(work, self)
        if self.rng.random() < self.twice:
            zombie = Task(self, work, zombie=True)
            self.tasks.append(zombie)
            self.context.clock.after(second_attempt_ms(self.rng), zombie.start)
        pause_ms = self.pause_ms()
        if pause_ms >= SLOW_MS:
            self.context.count("range delayed")
        self.context.clock.after(pause_ms, task.start)

    def ended(self, task: Task, trouble: str, reason: str) -> None:
        """A task is over."""
        if task in self.tasks:
            self.tasks.remove(task)
        if trouble and not task.zombie:
            self._planned.pop(task.work.topic, None)
        if trouble:
            self.context.say(f"{self.source}>{self.target}: task ends: {reason or trouble}")

    def commit(self, work: Range, c: Position, s: Position) -> None:
        """Report to the source how far a task came."""

        def body(request_id: int) -> pb.CommandGeoCommit:
            report = pb.CommandGeoCommit(request_id=request_id, to=self.target)
            cursor = pb.GeoCursor(c=position_to_proto(c), s=position_to_proto(s), gen=work.gen)
            report.commits.add(topic=work.topic, incarnation=work.incarnation, cursor=cursor)
            return report

        self.context.say(f"{self.source}>{self.target}: done up to {c}, sent {s}, gen {work.gen}")

        def answered(frame: Frame) -> None:
            state = self._topics.get(work.topic)
            if (
                frame.command.type != pb.GEO_COMMIT_RESPONSE
                or state is None
                or _incarnation_and_gen(state) != (work.incarnation, work.gen)
            ):
                return
            if work.topic in frame.command.geo_commit_response.ignored:
                self._counter = 0  # it knows better: ask for everything
            elif c > position_from_proto(state.cursor.c):
                # Used at once: the source does not report what it knows already.
                state.cursor.c.CopyFrom(position_to_proto(c))
                state.cursor.s.CopyFrom(position_to_proto(max(s, position_from_proto(state.cursor.s))))

        self._commit(body, answered)


def _incarnation_and_gen(state: pb.GeoTopicState) -> tuple[int, int]:
    return state.incarnation, state.cursor.gen
