"""The pipeline between clusters as Spark runs it, with everything that Spark does to it.

One `Link` speaks the link commands of both brokers, as `magnetar.spark` does: it polls the source, shakes hands with the
destination, plans ranges behind the cursor (a second one while the first is still under way), and lets tasks carry them.
A task reads its range, filters it, chains it and sends it in pieces. It may die, be slow, run twice, or wake up when
everybody has forgotten it, with what it read then. Nothing here is needed for safety: that is what is tested.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.core.ids import Position
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame
from magnetar.wire.positions import position_from_proto, position_to_proto
from magnetar_sim.carrying import Peer, Range, Task
from magnetar_sim.truth import FILTERED_1, FILTERED_2, PLAIN, RESTRICTED, Published, uid_of

if TYPE_CHECKING:
    from magnetar_sim.world import World

TICK_MS = 400
"""Between two looks of an idle pipeline for something to do, while things go wrong."""

CALM_TICK_MS = 2_000
"""The same when all is well: news comes by itself, and worlds are calm for longer than they are not."""

HANDSHAKE_MS = 6_000
"""Between two handshakes of an idle link: well below `identity_silence_ms`."""

CALM_HANDSHAKE_MS = 11_000
"""The same when all is well and nobody else uses a cluster's name: once in each look of `World.calm`."""

AGAIN_MS = 300
"""Between two handshakes of a link that waits for one."""

WORKER_ENDS = 0.2
"""How often a task is the last of its worker: the next one opens a connection of its own."""

SLOW_MS = 100
"""A range that waits longer counts as delayed."""

SCHEMA_PATIENCE_MS = 2_000
"""How long a destination's question for schemas waits for the source."""

TASKS_MAX = 5
"""Tasks of a link at a time, zombies included."""


class Link:
    """One link of the pipeline.

    Args:
        world: the world.
        source, target: clusters.
    """

    def __init__(self, world: "World", source: str, target: str) -> None:
        rng = world.rng
        self.world, self.source, self.target = world, source, target
        self.rng: random.Random = rng
        self.site = rng.choice((source, target))
        self.filters: list[tuple[int, frozenset[int]]] = [(0, frozenset({PLAIN, FILTERED_1, FILTERED_2, RESTRICTED}))]
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
        self.tasks: list[Task] = []
        self._spare: list[Peer] = []
        world.clock.after(int(rng.random() * TICK_MS), self._tick)

    # ---------------------------------------------------------------------------------------------------- the filter

    def _since(self, published: Published) -> list[frozenset[int]]:
        at = max(number for number, (uid, _) in enumerate(self.filters) if uid <= published.uid)
        return [kinds for _, kinds in self.filters[at:]]

    def always(self, published: Published) -> bool:
        """Every task that ever judged an entry had to let it through."""
        named = published.to is None or self.target in published.to
        return named and all(published.kind in kinds for kinds in self._since(published))

    def ever(self, published: Published) -> bool:
        """Some task may have let it through."""
        named = published.to is None or self.target in published.to
        return named and any(published.kind in kinds for kinds in self._since(published))

    def change_filter(self) -> None:
        """The operator changes the link's filter."""
        kinds = self.filters[-1][1] ^ {self.rng.choice((FILTERED_1, FILTERED_2))}
        self.filters.append((self.world.truth.next_uid, kinds))

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
        self.world.clock.after(TICK_MS if self.world.storm else CALM_TICK_MS, self._tick)
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
            self.ended(task, "the source is gone")

    def _lost_target(self) -> None:
        if self._to is not None and self._to.open:
            return
        self._to = None
        self._shaken.clear()

    def work(self) -> None:
        """Connect, poll, shake hands, plan: whatever is missing."""
        if self._from is None or not self._from.open:
            self._lost_source()
            self._from = Peer(self.world, self.source, self.source, self.site, self._lost_source)
        if self._to is None or not self._to.open:
            self._lost_target()
            self._to = Peer(self.world, self.source, self.target, self.site, self._lost_target)
        if not self._from.open:
            return
        if not self._polling:
            self._poll()
            return
        if not self._to.open:
            return
        shaken = self._shaken
        names = [name for name, told in self._topics.items() if shaken.get(name) != _incarnation_and_gen(told)]
        idle_ms = HANDSHAKE_MS if self.world.storm else CALM_HANDSHAKE_MS
        if self.world.clock.now_ms - self._shook_ms >= (AGAIN_MS if names else idle_ms):
            self._handshake()
        for name in list(self._topics):
            self._plan(name)

    def _poll(self) -> None:
        assert self._from is not None
        self._polling = True
        wait_ms = 20_000 if self._counter else 0
        peer = self._from
        peer.ask(
            1000,
            "geo_topics",
            lambda request_id: pb.CommandGeoTopics(
                request_id=request_id, to=self.target, counter=self._counter, wait_ms=wait_ms,
                pipeline="sim", boot=self._boot,
            ),
            lambda frame: self._told(peer, frame),
        )  # fmt: skip

    def _told(self, peer: Peer, frame: Frame) -> None:
        if peer is not self._from or frame.command.type != 1001:
            return
        told = frame.command.geo_topics_response
        self._counter, self._boot, self._uuid = told.counter, told.boot, told.uuid
        for state in told.topics:
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
        self._shook_ms = self.world.clock.now_ms
        asked = dict(self._topics)
        uuid = self._uuid
        if not uuid:
            return

        def fill(request_id: int) -> pb.CommandGeoWatermarks:
            query = pb.CommandGeoWatermarks(request_id=request_id, source=self.source, uuid=uuid, counter=0)
            for name, state in asked.items():
                query.topics.add(
                    topic=name, incarnation=state.incarnation, partitions=state.partitions, last=state.last,
                    start=state.cursor.c,
                )  # fmt: skip
            return query

        def answered(frame: Frame) -> None:
            if frame.command.type != 1009:
                return
            answer = frame.command.geo_watermarks_response
            for mark in answer.topics:
                state = asked[mark.topic]
                if answer.blocked and not mark.foreign:
                    continue
                self._learn(
                    mark.topic, state.incarnation, state.cursor.gen, position_from_proto(mark.persisted), answer.counter,
                    foreign=mark.foreign, blocked=mark.blocked, reason=mark.reason, there=mark.incarnation,
                )  # fmt: skip

        self._to.ask(1008, "geo_watermarks", fill, answered)

    def learn(self, work: Range, watermark: Position, counter: int) -> None:
        """A refusal told the destination's watermark."""
        self._shaken.pop(work.topic, None)
        gen = work.gen if self.rng.random() < 0.5 else 0
        self._learn(work.topic, work.incarnation, gen, watermark, counter)

    def _learn(
        self, topic: str, incarnation: int, gen: int, watermark: Position, counter: int, *, foreign: bool = False,
        blocked: str = "", reason: str = "", there: int = 0,
    ) -> None:  # fmt: skip
        if self.rng.random() < self.loses:
            self.world.count("handshake lost")
            return

        def fill(request_id: int) -> pb.CommandGeoCommit:
            told = pb.CommandGeoCommit(request_id=request_id, to=self.target)
            learnt = told.learned.add(
                topic=topic,
                incarnation=incarnation,
                watermark=position_to_proto(watermark),
                counter=counter,
                gen=gen,
                foreign=foreign,
                there=there,
            )
            if blocked:
                learnt.blocked, learnt.reason = blocked, reason
            return told

        def answered(frame: Frame) -> None:
            if (
                frame.command.type == 1007
                and not frame.command.geo_commit_response.error
                and not blocked
                and not foreign
            ):
                self._shaken[topic] = (incarnation, gen)
                self.work()

        self._tell(fill, answered)

    def _tell(self, fill: Callable[[int], object], then: Callable[[Frame], None]) -> None:
        """GEO_COMMIT, now or late, over whatever connection there is then."""

        def go() -> None:
            if self._from is not None and self._from.open:
                self._from.ask(1006, "geo_commit", fill, then)

        late = self.rng.random() < self.loses
        if late:
            self.world.count("commit late")
        self.world.clock.after(int(self.rng.random() * 20_000) if late else 0, go)

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
        c, s = position_from_proto(state.cursor.c), position_from_proto(state.cursor.s)
        if before is not None:
            c, s = before.end, before.sent_last
        if c >= position_from_proto(state.last) or self._from is None:
            return
        work = Range(name, state.incarnation, self._uuid, state.cursor.gen, c, s, before=before)
        task = Task(self, work)
        self.tasks.append(task)
        self._planned[name] = work
        size = self.rng.choice((1, 200, 600, 1 << 20))
        self._from.ask(
            1002,
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
            frame.command.type != 1003
            or response.error
            or response.blocked
            or position_from_proto(response.end) <= work.c
        )
        if nothing or self.other_incarnation(work, response):
            task.over = True
            self.ended(task, "nothing read")
            return
        work.response, work.end, work.read = response, position_from_proto(response.end), True
        at = 0
        for size in response.sizes:
            work.data.append(frame.payload[at : at + size])
            at += size
        self._chain(work)
        if self.rng.random() < self.twice:
            zombie = Task(self, work, zombie=True)
            self.tasks.append(zombie)
            self.world.clock.after(int(self.rng.random() * self.rng.choice((100, 3_000, 60_000))), zombie.start)
        pause_ms = self.pause_ms()
        if pause_ms >= SLOW_MS:
            self.world.count("range delayed")
        self.world.clock.after(pause_ms, task.start)

    def other_incarnation(self, work: Range, response: pb.CommandGeoReadResponse) -> bool:
        """The topic was made anew since the plan, perhaps by a clock that is behind (as `pipeline.task_read` sees it)."""
        return bool(set(response.incarnations) - {work.incarnation})

    def _chain(self, work: Range) -> None:
        """Filter, chain, and cut into pieces: within a piece each entry comes after the one before it."""
        kinds = self.filters[-1][1]
        p, room = work.s, 0
        for number, data in enumerate(work.data):
            marker = work.response.flags[number] & EntryFlags.MARKER
            sent = marker or self.world.truth.published[uid_of(data)].kind in kinds
            if sent:
                if not room:
                    work.frames.append((self.first_p(work, p), []))
                    room = self.rng.choice((1, 1, 2, 4))
                work.frames[-1][1].append(number)
                room -= 1
            before = p
            p = self.next_p(work.position(number), p, sent=bool(sent))
            if not sent and p != before:
                room = 0

    def first_p(self, _work: Range, p: Position) -> Position:
        """What the first entry of a piece comes after (a seam for planted bugs)."""
        return p

    def next_p(self, position: Position, p: Position, *, sent: bool) -> Position:
        """What the next entry comes after: the last that was sent, not the last that was read."""
        return position if sent else p

    def lend(self, lost: Callable[[], None]) -> Peer:
        """A connection to the destination for one task: workers keep theirs from task to task, until something goes wrong."""
        while self._spare:
            peer = self._spare.pop()
            if peer.open:
                peer.lost = lost
                return peer
        made = Peer(self.world, self.source, self.target, self.site, lost)
        made.wanted = lambda wanted: self.wanted(made, wanted)
        return made

    def wanted(self, peer: Peer, wanted: pb.CommandGeoSchemasWanted) -> None:
        """A destination asks for schemas: ask the source; after a while, or without one, say that nothing can be said."""
        answered = False

        def tell(brought: pb.CommandGeoSchemasBrought) -> None:
            nonlocal answered
            if not answered:
                answered = True
                peer.tell(brought)

        def told(frame: Frame) -> None:
            answer = frame.command.geo_schemas_response
            tell(pb.CommandGeoSchemasBrought(ticket=wanted.ticket, found=answer.found, missing=answer.missing))

        self.world.count("schema wanted")
        self.world.clock.after(
            SCHEMA_PATIENCE_MS, lambda: tell(pb.CommandGeoSchemasBrought(ticket=wanted.ticket, reason="no answer"))
        )
        if self._from is not None and self._from.open:
            self._from.ask(
                1014,
                "geo_schemas",
                lambda request_id: pb.CommandGeoSchemas(
                    request_id=request_id,
                    topic=wanted.topic,
                    schema_numbering=wanted.schema_numbering,
                    versions=wanted.versions,
                ),
                told,
            )

    def give_back(self, peer: Peer, *, used_up: bool) -> None:
        """A task is over."""
        if used_up or not peer.open or self.rng.random() < WORKER_ENDS:
            peer.close()
        else:
            peer.lost = _nobody
            self._spare.append(peer)

    def ended(self, task: Task, trouble: str) -> None:
        """A task is over."""
        if task in self.tasks:
            self.tasks.remove(task)
        if trouble and not task.zombie:
            self._planned.pop(task.work.topic, None)
        if trouble:
            self.world.say(f"{self.source}>{self.target}: task ends: {trouble}")

    def commit(self, work: Range, c: Position, s: Position) -> None:
        """Tell the source how far a task came."""

        def fill(request_id: int) -> pb.CommandGeoCommit:
            told = pb.CommandGeoCommit(request_id=request_id, to=self.target)
            cursor = pb.GeoCursor(c=position_to_proto(c), s=position_to_proto(s), gen=work.gen)
            told.commits.add(topic=work.topic, incarnation=work.incarnation, cursor=cursor)
            return told

        self.world.say(f"{self.source}>{self.target}: done up to {c}, sent {s}, gen {work.gen}")

        def answered(frame: Frame) -> None:
            state = self._topics.get(work.topic)
            if (
                frame.command.type != 1007
                or state is None
                or _incarnation_and_gen(state) != (work.incarnation, work.gen)
            ):
                return
            if work.topic in frame.command.geo_commit_response.ignored:
                self._counter = 0  # it knows better: ask for everything
            elif c > position_from_proto(state.cursor.c):
                # Known at once: the source does not tell what is no news to it.
                state.cursor.c.CopyFrom(position_to_proto(c))
                state.cursor.s.CopyFrom(position_to_proto(max(s, position_from_proto(state.cursor.s))))

        self._tell(fill, answered)

    @property
    def idle(self) -> bool:
        """Nothing is under way or to be done."""
        return not self.tasks and all(
            position_from_proto(one.cursor.c) >= position_from_proto(one.last) for one in self._topics.values()
        )


def _nobody() -> None:
    """A connection that no task uses may end."""


def _incarnation_and_gen(state: pb.GeoTopicState) -> tuple[int, int]:
    return state.incarnation, state.cursor.gen
