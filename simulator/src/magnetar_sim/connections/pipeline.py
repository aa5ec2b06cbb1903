"""The pipeline between clusters as Spark runs it, with everything that Spark does to it.

One `Link` speaks the link commands of both brokers, as `magnetar.spark` does: it polls the source, shakes hands with the
destination, plans ranges behind the cursor (a second one while the first is still under way), and lets tasks carry them.
A task reads its range, filters it, chains it and sends it in pieces. It may die, be slow, run twice, or go on
when no part waits for it any more, with what it read then. Nothing here is needed for safety: that is what is tested.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.core.ids import NONE, Position
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame
from magnetar.wire.positions import position_from_proto, position_to_proto
from magnetar_sim.cluster import Clusters
from magnetar_sim.connections.link_peer import LinkEvents, Peer
from magnetar_sim.connections.net import Network
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.records import FILTERED_1, FILTERED_2, PLAIN, RESTRICTED, Published, uid_of
from magnetar_sim.memory.truth import Truth

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

WORKER_ENDS = 0.2
"""How often a task is the last of its worker: the next one opens a connection of its own."""

SLOW_MS = 100
"""A range that waits longer counts as delayed."""

SCHEMA_PATIENCE_MS = 2_000
"""How long a destination's question for schemas waits for the source."""

TASKS_MAX = 5
"""Tasks of a link at a time, zombies included."""


WINDOW = 3
"""Pieces under way of one task."""


@dataclass(slots=True)
class Range:
    """What one task has to carry.

    Attributes:
        topic, incarnation, uuid, gen: of what life of which topic.
        c, s: the cursor that it goes on from; not confirmed yet when it was planned behind another range.
        before: that range, until it is confirmed.
        done: an attempt carried all of it, and every entry is confirmed.
        frames: what is sent, in pieces: what each comes after, and its entries.
        end: everything at or below is settled when all is confirmed.
        read, response, data: what the source answered.
    """

    topic: str
    incarnation: int
    uuid: str
    gen: int
    c: Position
    s: Position
    frames: list[tuple[Position, list[int]]] = field(default_factory=list)
    end: Position = NONE
    read: bool = False
    response: pb.CommandGeoReadResponse = field(default_factory=pb.CommandGeoReadResponse)
    data: list[bytes] = field(default_factory=list)
    before: "Range | None" = None
    done: bool = False

    @property
    def founded(self) -> bool:
        """Whether all in front of it is confirmed. The chain shows that of whatever is sent; nothing shows it of a range of
        which nothing is, and its commit would settle what the destination may never have got.
        """
        return bool(self.frames) or self.before is None or self.before.done

    @property
    def sent_last(self) -> Position:
        """S when all of it is confirmed."""
        return self.position(self.frames[-1][1][-1]) if self.frames else self.s

    def position(self, number: int) -> Position:
        """Of an entry that was read."""
        return Position(self.response.ledgers[number], self.response.entries[number])


class Task:
    """One attempt to carry a range.

    Args:
        link: whose.
        work: the range; shared by all attempts once it is read.
        zombie: no part waits for this attempt.
    """

    def __init__(self, link: "Link", work: Range, *, zombie: bool = False) -> None:
        self._link, self.work, self.zombie = link, work, zombie
        self._at = 0
        self._flying: list[Position] = []
        self._confirmed: Position | None = None
        self.over = False
        self._peer: Peer | None = None

    def start(self) -> None:
        """Begin to send."""
        link = self._link
        if self.over:
            return
        if self.zombie and self.work.frames:
            link.context.count("range sent twice")
        if self.work.frames:
            self._peer = link.lend(lambda: self._end("connection lost"))
            if not self._peer.open:
                self._end("destination down")
                return
        self._step()

    def _step(self) -> None:
        if self.over:
            return
        link = self._link
        if link.rng.random() < link.task_dies:
            link.context.count("task died")
            self._end("died")
            return
        while self._at < len(self.work.frames) and len(self._flying) < WINDOW and not self.over:
            self._send()
        if self._at == len(self.work.frames) and not self._flying:
            self._end("")

    def _send(self) -> None:
        assert self._peer is not None
        work, response = self.work, self.work.response
        p, numbers = work.frames[self._at]
        self._at += 1
        last = work.position(numbers[-1])
        self._flying.append(last)

        def fill(request_id: int) -> pb.CommandGeoAppend:
            return pb.CommandGeoAppend(
                request_id=request_id, topic=work.topic, source=self._link.source, uuid=work.uuid,
                incarnation=work.incarnation, gen=work.gen, p=position_to_proto(p),
                ledgers=[response.ledgers[n] for n in numbers], entries=[response.entries[n] for n in numbers],
                first_indexes=[response.first_indexes[n] for n in numbers],
                counts=[response.counts[n] for n in numbers], sizes=[len(work.data[n]) for n in numbers],
                schema_numbering=response.schema_numbering,
            )  # fmt: skip

        self._peer.ask(
            pb.GEO_APPEND,
            "geo_append",
            fill,
            lambda frame: self._answered(last, frame),
            b"".join(work.data[n] for n in numbers),
        )

    def _answered(self, last: Position, frame: Frame) -> None:
        if self.over:
            return
        answer = frame.command.geo_append_response
        persisted = position_from_proto(answer.persisted)
        if frame.command.type != pb.GEO_APPEND_RESPONSE or answer.blocked or answer.retry:
            self._end(f"{answer.blocked or 'retry'} {answer.reason}")
        elif answer.refused:
            self._end("refused")
            self._link.refused(self.work, persisted)
        elif persisted < last:
            self._end("not stored")
        else:
            self._flying.remove(last)
            self._confirmed = last
            self._link.context.clock.after(self._link.pause_ms(), self._step)

    def _end(self, trouble: str) -> None:
        """It ends; what was confirmed without a hole before it is committed."""
        if self.over:
            return
        self.over = True
        if self._peer is not None:
            self._link.give_back(self._peer, used_up=bool(trouble))
        work = self.work
        whole = not trouble and self._at == len(work.frames) and not self._flying
        c = work.end if whole else self._confirmed
        s = work.sent_last if whole else self._confirmed
        if whole and not work.founded:
            whole, trouble, c = False, "nothing to send, and what is in front of it is not confirmed", None
        if whole:
            work.done, work.before = True, None
        self._link.ended(self, trouble)
        if (
            trouble != "died"
            and c is not None
            and s is not None
            and (whole or not self._flying or c < min(self._flying))
        ):
            self._link.commit(work, c, s)


class Link:
    """One link of the pipeline.

    Args:
        context: of the world.
        net: what connections are made over.
        clusters: by their names.
        truth: what was published.
        events: what brokers answer is reported to it.
        source, target: clusters.
    """

    def __init__(
        self,
        context: WorldContext,
        net: Network,
        clusters: Clusters,
        truth: Truth,
        events: LinkEvents,
        source: str,
        target: str,
    ) -> None:
        rng = context.rng
        self.context, self._net, self._clusters, self._truth, self._events = context, net, clusters, truth, events
        self.source, self.target = source, target
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
        self._settled: dict[str, pb.GeoTopicState] = {}
        """States with nothing left to plan: only the next one, which the source sends, has something."""
        self.tasks: list[Task] = []
        self._spare: list[Peer] = []
        context.clock.after(int(rng.random() * TICK_MS), self._tick)

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
        self.filters.append((self._truth.next_uid, kinds))

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
            self._from = self._peer(self.source, self._lost_source)
        if self._to is None or not self._to.open:
            self._lost_target()
            self._to = self._peer(self.target, self._lost_target)
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

        def fill(request_id: int) -> pb.CommandGeoWatermarks:
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

        self._to.ask(pb.GEO_WATERMARKS, "geo_watermarks", fill, answered)

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

        def fill(request_id: int) -> pb.CommandGeoCommit:
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

        self._commit(fill, answered)

    def _commit(self, fill: Callable[[int], object], then: Callable[[Frame], None]) -> None:
        """GEO_COMMIT, now or late, over whatever connection there is then."""

        def go() -> None:
            if self._from is not None and self._from.open:
                self._from.ask(pb.GEO_COMMIT, "geo_commit", fill, then)

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
        size = self.rng.choice((1, 200, 600, 1 << 20))
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
            self.context.clock.after(int(self.rng.random() * self.rng.choice((100, 3_000, 60_000))), zombie.start)
        pause_ms = self.pause_ms()
        if pause_ms >= SLOW_MS:
            self.context.count("range delayed")
        self.context.clock.after(pause_ms, task.start)

    def other_incarnation(self, work: Range, response: pb.CommandGeoReadResponse) -> bool:
        """The topic was created again since the plan, perhaps by a slow clock (as `pipeline.tasks.task_read` sees it)."""
        return bool(set(response.incarnations) - {work.incarnation})

    def _chain(self, work: Range) -> None:
        """Filter, chain, and cut into pieces: within a piece each entry comes after the one before it."""
        kinds = self.filters[-1][1]
        p, room = work.s, 0
        for number, data in enumerate(work.data):
            marker = work.response.flags[number] & EntryFlags.MARKER
            sent = marker or self._truth.published[uid_of(data)].kind in kinds
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
                peer.take(lost)
                return peer
        return self._peer(self.target, lost)

    def _peer(self, cluster: str, lost: Callable[[], None]) -> Peer:
        return Peer(self._net, self._events, self.source, self._clusters[cluster], self.site, lost, self.wanted)

    def wanted(self, peer: Peer, wanted: pb.CommandGeoSchemasWanted) -> None:
        """A destination asks for schemas: ask the source. After a while without an answer, answer with a reason."""
        answered = False

        def bring(brought: pb.CommandGeoSchemasBrought) -> None:
            nonlocal answered
            if not answered:
                answered = True
                peer.bring(brought)

        def found(frame: Frame) -> None:
            answer = frame.command.geo_schemas_response
            bring(pb.CommandGeoSchemasBrought(ticket=wanted.ticket, found=answer.found, missing=answer.missing))

        self.context.count("schema wanted")
        self.context.clock.after(
            SCHEMA_PATIENCE_MS, lambda: bring(pb.CommandGeoSchemasBrought(ticket=wanted.ticket, reason="no answer"))
        )
        if self._from is not None and self._from.open:
            self._from.ask(
                pb.GEO_SCHEMAS,
                "geo_schemas",
                lambda request_id: pb.CommandGeoSchemas(
                    request_id=request_id,
                    topic=wanted.topic,
                    schema_numbering=wanted.schema_numbering,
                    versions=wanted.versions,
                ),
                found,
            )

    def give_back(self, peer: Peer, *, used_up: bool) -> None:
        """A task is over."""
        if used_up or not peer.open or self.rng.random() < WORKER_ENDS:
            peer.close()
        else:
            peer.take(_unused)
            self._spare.append(peer)

    def ended(self, task: Task, trouble: str) -> None:
        """A task is over."""
        if task in self.tasks:
            self.tasks.remove(task)
        if trouble and not task.zombie:
            self._planned.pop(task.work.topic, None)
        if trouble:
            self.context.say(f"{self.source}>{self.target}: task ends: {trouble}")

    def commit(self, work: Range, c: Position, s: Position) -> None:
        """Report to the source how far a task came."""

        def fill(request_id: int) -> pb.CommandGeoCommit:
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

        self._commit(fill, answered)

    @property
    def idle(self) -> bool:
        """Nothing is under way or to be done."""
        return not self.tasks and all(
            position_from_proto(one.cursor.c) >= position_from_proto(one.last) for one in self._topics.values()
        )


def _unused() -> None:
    """A connection that no task uses may end."""


def _incarnation_and_gen(state: pb.GeoTopicState) -> tuple[int, int]:
    return state.incarnation, state.cursor.gen
