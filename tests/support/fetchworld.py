"""A seeded world around the real machines of one link that long batches carry (docs/design/pipeline.md#long-batches).

Disks, clusters and the memory of what was published are those of `tests.support.linkworld`. What differs is the messenger:

driver    revokes the topic's grant, compares, tells the source what it learnt, grants. It compares when the destination's counter
          moved or the source has no grant of it, and at no other time, so that what a comparison misses stays lost.
readers   ask with GEO_FETCH and send what they get in order. They die, are superseded and go on all the same, lose their
          connection with answers that are on their way, confirm late or never, or give the grant back.

The destination can also come back with an older disk, so that it lacks some of what it had confirmed.

Laws, in addition to those of `linkworld`: nothing counts as sent that the destination did not persist since the comparison that
the present grant rests on; a reader is handed out no more than its window; every machine's `validate` after each step.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto, position_to_proto
from tests.support.linkworld import TOPIC, Node, Task, Violation, World, uid_kind

READERS_MAX = 4
IN_FLIGHT_MAX = 3
LEASE_OVER_MS = 11_000


@dataclass
class Carried(Task):
    """A part of an answer, on its way through a reader's hands."""

    grant: int = 0
    reader: "Reader | None" = None


@dataclass
class Reader:
    """A task that runs: the half that asks, and the half that sends."""

    pipeline: str
    epoch: int
    number: int
    window: int
    connection: int
    source: object
    asks: bool = True
    waiting: int = 0
    inbox: list[tuple[pb.CommandGeoFetchResponse, list[bytes]]] = field(default_factory=list)
    handed: list[tuple[int, Position, int]] = field(default_factory=list)
    """(grant, end, bytes) of what came over this connection."""
    parts: deque[Carried] = field(default_factory=deque)
    p: dict[int, Position] = field(default_factory=dict)
    given_back: set[int] = field(default_factory=set)
    session: int = 0


class FetchWorld(World):
    """One link a -> b of one topic, and a pipeline whose batches last."""

    warm: ClassVar[float] = 0
    revokes = True
    """Whether the driver revokes before it compares."""

    def __init__(self, rng: random.Random, trace: list[str] | None = None) -> None:
        self.readers: list[Reader] = []
        self.pipeline, self.pipelines = "p1", 1
        self.epoch = self.connections = self.numbers = self.number = self.asked = 0
        self.compared: tuple[int, str] | None = None
        self.said: deque[pb.CommandGeoCommit] = deque()
        self.stuck: list[pb.CommandGeoCommit] = []
        """Grants that were sent, and are on their way a second time in a connection that does not get on."""
        self.high: dict[int, Position] = {}
        """By grant: what the destination has persisted at most since the comparison."""
        super().__init__(rng, trace)
        for _ in range(rng.randint(0, 3)):
            self.publish()
            self.a.sync()
        self.greet()
        self.take_said()
        self.new_reader()

    def greet(self) -> None:
        self.drive()
        self.b.store()

    # ------------------------------------------------------------------------------------------------------------ driver

    def told(self) -> pb.GeoTopicState | None:
        """What A tells this pipeline of the topic; nothing while another one has the lease."""
        got: list[pb.CommandGeoTopicsResponse] = []
        self.source.poll(1, pb.CommandGeoTopics(request_id=1, to="b", counter=0, pipeline=self.pipeline), got.append)
        self.a.pump()
        return got[0].topics[0] if got and got[0].lease and got[0].topics else None

    def drive(self) -> None:
        """Compare and grant, if that has to be."""
        told = self.told()
        if told is None or self.said:
            return
        there = (self.destination.counter, self.b.uuid)
        if told.grant and told.grant == self.number and self.compared == there:
            return
        if self.revokes and told.grant:
            revoke = pb.CommandGeoCommit(request_id=1, to="b", pipeline=self.pipeline, revoked=[TOPIC])
            self.source.commit(revoke, lambda _response: None)
            self.a.pump()
        self.compare(told)

    def compare(self, told: pb.GeoTopicState) -> None:
        told = self.told() or told  # what was committed before the grant was revoked counts
        request = pb.CommandGeoWatermarks(request_id=1, source="a", uuid=self.a.uuid, counter=0)
        request.topics.add(topic=TOPIC, incarnation=told.incarnation, partitions=0, last=told.last, start=told.cursor.c)
        session = self.session
        self.asked += 1
        asked = self.asked

        def reply(response: pb.CommandGeoWatermarksResponse) -> None:
            if session != self.session or asked != self.asked:
                return
            (answer,) = response.topics
            if response.blocked and not answer.foreign:
                return
            w = position_from_proto(answer.persisted)
            say = pb.CommandGeoCommit(request_id=1, to="b", pipeline=self.pipeline)
            say.learned.add(
                topic=TOPIC, incarnation=told.incarnation, watermark=answer.persisted, counter=response.counter,
                gen=told.cursor.gen, foreign=answer.foreign,
            )  # fmt: skip
            self.said.append(say)
            if response.blocked:
                return
            self.compared = (response.counter, response.uuid)
            self.numbers += 1
            self.number = self.numbers
            self.high[self.number] = w
            grant = pb.GeoGrant(topic=TOPIC, incarnation=told.incarnation, gen=told.cursor.gen, number=self.number)
            if self.rng.random() < 0.5:
                say.grants.append(grant)
            else:
                self.said.append(pb.CommandGeoCommit(request_id=1, to="b", pipeline=self.pipeline, grants=[grant]))
            self.say(f"compared, W {w}, grant {self.number}")

        self.destination.watermarks(request, reply)
        self.b.pump()

    def commit_answered(self, request: pb.CommandGeoCommit, response: pb.CommandGeoCommitResponse) -> None:
        if request.learned and response.HasField("error"):
            self.said.clear()  # the rewind is not durable: the grant may not follow
            self.compared = None

    def take_said(self) -> None:
        """What the driver says comes in order; a grant waits until what was learnt before it is answered."""
        if not self.said or (not self.said[0].learned and self.state.rewinding is not None):
            return
        request = self.said.popleft()
        if request.grants and self.rng.random() < 0.3:
            again = pb.CommandGeoCommit(request_id=1, to="b", pipeline=request.pipeline)
            again.grants.extend(request.grants)
            self.stuck.append(again)
        self.commits.append(request)
        self.take_commit(len(self.commits) - 1)

    def take_stuck(self) -> None:
        if self.stuck:
            self.commits.append(self.stuck.pop(self.rng.randrange(len(self.stuck))))
            self.take_commit(len(self.commits) - 1)

    def new_driver(self) -> None:
        """The driver starts again, or another pipeline's driver takes the lease; tasks of the former one run on."""
        self.said.clear()
        self.asked += 1
        self.compared, self.number = None, 0
        if self.rng.random() < 0.5:
            self.pipelines += 1
            self.pipeline = f"p{self.pipelines}"
            self.now_ms += LEASE_OVER_MS
        self.say(f"driver {self.pipeline}")
        self.drive()

    # ----------------------------------------------------------------------------------------------------------- readers

    def new_reader(self) -> None:
        """The next batch begins, or a task runs again; the former one does not know it yet."""
        if len(self.readers) >= READERS_MAX:
            self.readers.pop(0)
        self.epoch += self.rng.random() < 0.5
        self.connections += 1
        window = self.rng.choice((200, 600, 10**6))
        self.readers.append(
            Reader(self.pipeline, self.epoch, self.rng.getrandbits(30), window, self.connections, self.source)
        )

    def reader(self) -> Reader | None:
        return self.rng.choice(self.readers) if self.readers else None

    def connect(self, reader: Reader) -> None:
        """Another connection; answers on their way are lost from some point on."""
        self.connections += 1
        reader.connection, reader.source, reader.waiting = self.connections, self.source, 0
        del reader.inbox[self.rng.randint(0, len(reader.inbox)) :]
        reader.handed.clear()

    def reconnect(self) -> None:
        reader = self.reader()
        if reader is not None and reader.source is self.source:
            if self.rng.random() < 0.5:
                self.source.disconnected(reader.connection)
            self.say(f"reader {reader.number} loses its connection, {len(reader.inbox)} answers on their way")
            self.connect(reader)

    def ask(self, reader: Reader | None = None, bytes_max: int = 0) -> None:
        reader = reader or self.reader()
        if reader is None or not reader.asks or reader.waiting > 1:
            return
        if reader.source is not self.source:
            self.connect(reader)
        self.request += 1
        request = pb.CommandGeoFetch(
            request_id=self.request, to="b", pipeline=reader.pipeline, epoch=reader.epoch, reader=reader.number,
            wait_ms=5_000, bytes_max=bytes_max or self.rng.randint(1, 300), window_bytes=reader.window,
        )  # fmt: skip
        asker, connection = reader, reader.connection
        reader.waiting += 1

        def reply(response: pb.CommandGeoFetchResponse, buffers: Sequence[bytes]) -> None:
            if (asker.connection, asker.source) == (connection, self.source):
                asker.waiting -= 1
                self.handed_out(asker, response, buffers)
                asker.inbox.append((response, list(buffers)))

        self.source.fetch(connection, request, reply)
        self.a.pump()

    def handed_out(self, reader: Reader, response: pb.CommandGeoFetchResponse, buffers: Sequence[bytes]) -> None:
        """The window bounds what is handed out and neither settled nor of a grant that is over."""
        for part in response.parts:
            outstanding = sum(
                size for grant, end, size in reader.handed if grant == part.grant and end > self.state.cursor.c
            )
            if outstanding >= reader.window:
                raise Violation(f"{outstanding} bytes are under way in a window of {reader.window}")
            reader.handed.append((part.grant, position_from_proto(part.read.end), sum(map(len, buffers))))

    def receive(self, reader: Reader | None = None) -> None:
        reader = reader or self.reader()
        if reader is None or not reader.inbox:
            return
        response, data = reader.inbox.pop(0)
        if response.superseded or response.refused:
            reader.asks = False
            return
        for part in response.parts:
            if part.grant not in reader.given_back and not part.read.blocked:
                self.take_part(reader, response.uuid, part, data)

    def take_part(self, reader: Reader, uuid: str, part: pb.GeoFetched, data: list[bytes]) -> None:
        p = position_from_proto(part.p) if part.HasField("p") else reader.p.get(part.grant, NONE)
        told = pb.GeoTopicState(incarnation=part.incarnation)
        told.cursor.s.CopyFrom(position_to_proto(p))
        told.cursor.gen = part.gen
        made = self.task(told, part.read, data)
        carried = Carried(made.incarnation, made.gen, uuid, p, made.end, made.frames, grant=part.grant, reader=reader)
        reader.p[part.grant] = made.frames[-1][1][-1].position if made.frames else p
        reader.parts.append(carried)
        frames = [(str(p), [str(e.position) for e in entries]) for p, entries in made.frames]
        self.say(f"reader {reader.number} got {frames} up to {made.end}, gen {part.gen}, grant {part.grant}")

    def work(self, reader: Reader | None = None) -> bool:
        """One step of the half that sends; whether there was one."""
        reader = reader or self.reader()
        if reader is None or not reader.parts:
            return False
        in_flight = sum(len(part.sent) for part in reader.parts)
        if in_flight and reader.session != self.session:
            self.destination_restarted(reader)
            return True
        head = reader.parts[0]
        if head.at == len(head.frames) and not head.sent:
            reader.parts.popleft()
            last = head.frames[-1][1][-1].position if head.frames else head.s
            self.confirm(head, head.end, last)
            return True
        if head.confirmed is not None and self.rng.random() < 0.2:
            self.confirm(head, head.confirmed, head.confirmed)
        left = next((part for part in reader.parts if part.at < len(part.frames)), None)
        if left is None or in_flight >= IN_FLIGHT_MAX:
            return False
        reader.session = self.session
        self.send(left)
        return True

    def flow(self) -> None:
        """A reader gets on for a while."""
        reader = self.reader()
        if reader is None:
            return
        self.ask(reader)
        self.now_ms += 8
        self.a.due()
        for _ in range(self.rng.randint(1, 6)):
            self.receive(reader)
            self.work(reader)
        if self.rng.random() < 0.5:
            self.b.sync()
            self.work(reader)

    def destination_restarted(self, reader: Reader) -> None:
        """Its answers are lost: send everything again, or give the grant back."""
        if self.rng.random() < 0.5:
            for part in reader.parts:
                part.at, part.sent, part.confirmed = 0, [], None
        else:
            self.give_back(reader.parts[0], "restarted")

    def send(self, task: Task) -> None:
        try:
            super().send(task)
        except ProtocolError as error:
            raise Violation(f"what a reader got makes no chain: {error}") from None

    def answered(self, task: Task, last: Position, response: pb.CommandGeoAppendResponse) -> None:
        assert isinstance(task, Carried)
        if task.over or last not in task.sent:
            return
        persisted = position_from_proto(response.persisted)
        if response.refused or response.blocked or response.retry or persisted < last:
            self.say(f"no luck with {last}: {response.blocked or response.reason or 'refused'}, W {persisted}")
            self.give_back(task, "refused" if response.refused else "retry")
        else:
            task.sent.remove(last)
            task.confirmed = last

    def give_back(self, task: Carried, kind: str) -> None:
        reader = task.reader
        assert reader is not None
        head = next(part for part in reader.parts if part.grant == task.grant)
        c = head.confirmed or NONE
        self.confirm(head, c, c, ended=kind)
        reader.given_back.add(task.grant)
        for part in reader.parts:
            part.over = part.over or part.grant == task.grant
        reader.parts = deque(part for part in reader.parts if not part.over)

    def confirm(self, part: Carried, c: Position, s: Position, **fields: Any) -> None:
        commit = pb.CommandGeoCommit(request_id=1, to="b")
        cursor = pb.GeoCursor(c=position_to_proto(c), s=position_to_proto(s), gen=part.gen)
        commit.commits.add(topic=TOPIC, incarnation=part.incarnation, cursor=cursor, grant=part.grant, **fields)
        self.commits.append(commit)

    # ------------------------------------------------------------------------------------------------------- destination

    def old_disk_b(self) -> None:
        """B comes back with an older state of its disk: the last entries that it had persisted are gone.

        As old as the last deletion at most, which stored the watermark somewhere else.
        """
        if self.b.topic is None:
            return
        saved = Position(*self.b.record.watermarks.get("a", NONE))
        entries = [
            (ledger, entry)
            for ledger in sorted(self.b.ledgers)
            for entry in self.b.ledgers[ledger]
            if entry.source > saved
        ]
        for ledger, entry in entries[self.rng.randint(0, len(entries)) :]:
            self.b.ledgers[ledger].remove(entry)
            if entry.origin:
                self.have.discard(uid_kind(entry.data)[0])
        self.exempt |= {m.uid for m in self.alive if m.deleted}
        self.forgot = True
        self.b.boot()
        self.boot_b()
        self.last_source, self.last_index = self.b.log.watermark("a"), {}
        for message in map(self.messages.__getitem__, self.have):
            self.last_index[message.life] = max(message.index, self.last_index.get(message.life, -1))
        self.say(f"B comes back with an older disk, W {self.last_source}")

    # -------------------------------------------------------------------------------------------------------------- laws

    def boot_b(self) -> None:
        super().boot_b()
        self.persisted()

    def confirmed(self, node: Node) -> None:
        super().confirmed(node)
        if node is self.b:
            self.persisted()

    def persisted(self) -> None:
        w = self.b.log.watermark("a") if self.b.topic is not None else NONE
        for grant, high in self.high.items():
            self.high[grant] = max(high, w)

    def check(self) -> None:
        super().check()
        granted = self.source._sessions.whole.grants.get(TOPIC)
        if granted is not None and self.state.cursor.s > self.high[granted.number]:
            raise Violation(
                f"{self.state.cursor.s} counts as sent under grant {granted.number}, but the destination had "
                f"{self.high[granted.number]} at most since the comparison"
            )

    # -------------------------------------------------------------------------------------------------------------- a run

    def actions(self) -> list[tuple[float, Callable[[], Any]]]:
        r = self.rng
        rare, lost, late = r.choice((0, 0.3, 1, 3)), r.choice((0.3, 1, 3)), r.choice((0.2, 1))
        table: dict[str, tuple[float, Callable[[], Any]]] = {
            "publish": (r.choice((1, 6)), self.publish),
            "sync_a": (4, lambda: self.a.sync(r.choice((1, 1000)))),
            "sync_b": (6 * late, lambda: self.b.sync(r.choice((1, 2, 1000)))),
            "drive": (4, self.drive),
            "take_said": (5, self.take_said),
            "take_stuck": (0.5, self.take_stuck),
            "new_driver": (0.2 * rare, self.new_driver),
            "new_reader": (1.5, self.new_reader),
            "reconnect": (0.7, self.reconnect),
            "flow": (12, self.flow),
            "ask": (6, self.ask),
            "receive": (8, self.receive),
            "work": (12, self.work),
            "take_commit": (4, self.take_commit),
            "lose_commit": (0.5, lambda: self.commits and self.commits.pop()),
            "lose_reader": (0.3, lambda: self.readers and self.readers.pop()),
            "clock": (4, self.clock),
            "store_a": (3, lambda: self.a.store(r.choice((1, 1000)))),
            "store_b": (3, lambda: self.b.store(r.choice((1, 1000)))),
            "store_fails": (0.2, lambda: self.a.store(1, "store failed")),
            "trim_a": (0.7 * lost, self.trim_a),
            "trim_b": (0.5, self.trim_b),
            "quota": (0.3 * rare, lambda: self.trim_a(quota=True)),
            "crash_a": (0.3, self.crash_a),
            "crash_b": (0.5 * lost, self.crash_b),
            "fail_b": (0.5 * lost, self.fail_b),
            "change_filter": (0.3 * rare, self.change_filter),
            "recreate_a": (0.2 * rare, self.recreate_a),
            "forget_b": (0.3 * rare * lost, self.forget_b),
            "old_disk_b": (0.5 * lost, self.old_disk_b),
        }
        return [
            (weight * self.boost.get(name, 1) * r.choice((0.2, 1, 1, 6)), action)
            for name, (weight, action) in table.items()
        ]

    def heal(self) -> None:
        """Faults end, a new batch begins; everything must come together."""
        self.readers.clear()
        quiet = 0
        for _ in range(4 * len(self.alive) + 60):
            self.now_ms += 12_000
            self.a.due()
            self.b.due()
            before = (self.state.cursor, len(self.have))
            self.settle()
            self.take_all()
            self.drive()
            self.settle()
            self.take_all()
            self.epoch += 1
            self.new_reader()
            self.carry(self.readers.pop())
            self.check()
            quiet = quiet + 1 if before == (self.state.cursor, len(self.have)) else 0
            if quiet >= 4:
                break
        self.verdict()

    def carry(self, reader: Reader) -> None:
        """Everything that one reader gets, without a fault."""
        while True:
            self.ask(reader, 10**6)
            self.now_ms += 10
            self.a.due()
            if not reader.inbox:
                return
            while reader.inbox:
                self.receive(reader)
            while self.work(reader) or any(part.sent for part in reader.parts):
                self.settle()
            self.take_all()

    def take_all(self) -> None:
        while self.commits or self.said:
            if self.commits:
                self.take_commit(0)
            else:
                self.take_said()
            self.settle()
