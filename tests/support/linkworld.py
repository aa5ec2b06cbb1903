"""A seeded world around the real machines of one link: two clusters, their disks, and messengers that misbehave.

What is real: LinkSource, LinkDestination, TopicLog, the stored records, the wire messages, the entries' bytes. What is the
world's: a disk that loses what was not synced, a metadata store that answers late, messengers (Spark tasks) that die, run
twice, hang, or arrive late, and the world's own memory of what was published and what is where.

The same seed makes the same world. A violation says what happened; the trace says how it came to it.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Outbox, Read, Store, Write
from magnetar.metadata.topic_records import TOPIC_PREFIX, TopicRecord
from magnetar.replication.link.destination import LinkDestination
from magnetar.replication.link.link_topic import LinkTopic
from magnetar.replication.link.source import LinkSource
from magnetar.storage.entries import Append, EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.ledger import Ledger
from magnetar.storage.topiclog import EntryCache, LedgerIds, RecoveredTopic, Retention, TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build, with_replicated_from
from magnetar.wire.positions import position_from_proto, position_to_proto
from magnetar_sim.host.host import HeldLog, Host, find
from tests.support.linkhost import PlainLinkHost

TOPIC = "persistent://public/default/t"
KEY = TOPIC_PREFIX + TOPIC
NOTHING_KEPT = Retention(0, 0)

FOREIGN, FILTERED_1, FILTERED_2, PLAIN, ONLY_B, NOT_B = range(6)
"""Kinds of entries: came from elsewhere; may be filtered by the messenger; always for B; named for B; named for another."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Message:
    """What the world remembers of one published entry."""

    uid: int
    kind: int
    life: int
    position: Position = NONE
    index: int = -1
    count: int = 1
    always: bool = True
    ever: bool = True
    deleted: bool = False


_BASES: dict[tuple[int, int], bytes] = {}


def entry_bytes(uid: int, kind: int, count: int) -> tuple[bytes, int]:
    """Real bytes of an entry, and its flags."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=uid, publish_time=1)
    flags = 0
    if count > 1:
        metadata.num_messages_in_batch = count
        flags |= EntryFlags.BATCH
    if kind in (ONLY_B, NOT_B):
        metadata.replicate_to.append("b" if kind == ONLY_B else "__local__")
        flags |= EntryFlags.RESTRICTED
    data = build(metadata, b"%d %d" % (uid, kind))
    if kind == FOREIGN:
        data = with_replicated_from(data, "c")
        flags |= EntryFlags.REPLICATED
    return data, int(flags)


def uid_kind(data: bytes) -> tuple[int, int]:
    """What the payload says: no protobuf needed, the payload is behind the metadata."""
    text = data[10 + int.from_bytes(data[6:10], "big") :].split()
    return int(text[0]), int(text[1])


class Node(PlainLinkHost):
    """One cluster's broker as far as links see it, with a disk."""

    terminated = False
    idempotency = None

    def __init__(self, world: "World", cluster: str) -> None:
        self.world, self.cluster = world, cluster
        self.lives = 0
        self.meta: dict[str, bytes] = {}
        self.ledgers: dict[int, list[StoredEntry]] = {}
        self.uuid = ""
        super().__init__()
        self.skew = 0
        self.boots = 0
        self.log: TopicLog
        self.new_uuid()

    # -- life and death

    def new_uuid(self) -> None:
        self.lives += 1
        self.uuid = f"{self.cluster}-{self.lives}"
        self.meta, self.ledgers = {}, {}

    @property
    def now_ms(self) -> int:
        return self.world.now_ms + self.skew

    def boot(self) -> None:
        """Start with what the disk has."""
        self.boots += 1
        self.outbox = Outbox(now_ms=self.now_ms)
        self.writes = HeldLog(self.reached_disk, lambda _append: self.log.fail(), self.answer)
        self.confirmed_early: set[Append] = set()
        """Those of `writes` that were confirmed before the disk had them: a planted bug."""
        self.host = Host(self.outbox, {Write: self.write, Read: self.read}, self.meta, before=self.set_time)
        self.stores = self.host.store
        self.creating: list[Callable[[str], None]] = []
        last = max([-1, *self.ledgers])
        self.ids = self.world.make_ids(self, last)
        self.topic: Node | None = None
        if KEY in self.meta:
            self.open(self.ids)

    def open(self, ids: LedgerIds, *, fresh: bool = False) -> None:
        record = TopicRecord.decode(TOPIC, self.meta[KEY])
        recovered = RecoveredTopic()
        for ledger_id in sorted(self.ledgers):
            ledger = recovered.ledgers[ledger_id] = Ledger(ledger_id, 0)
            for e in self.ledgers[ledger_id]:
                ledger.add(0, len(e.data), e.flags, e.count, e.publish_time, e.broker_time, marker=False)
                if e.origin:
                    recovered.watermarks[e.origin] = max(e.source, recovered.watermarks.get(e.origin, NONE))
                else:
                    recovered.next_index = max(recovered.next_index, e.first_index + e.count)
        saved = self.world.saved(record)
        self.log = TopicLog(
            TOPIC, record.incarnation, ids, EntryCache(0), ledger_entries_max=self.world.ledger_entries,
            recovered=recovered, saved=saved, fresh=fresh,
        )  # fmt: skip
        self.record = record
        self.topic = self

    def crash(self) -> None:
        """Lose what is not on disk. What was on its way may or may not have reached it."""
        rng = self.world.rng
        whole = rng.randint(0, len(self.writes.waiting)) if rng.random() < 0.5 else 0
        for append in self.writes.take(whole):
            self.to_disk(append.entries)
        for _ in range(rng.randint(0, len(self.stores.waiting))):
            self.stores.commit()
        self.boot()

    # -- effects

    def set_time(self) -> None:
        self.outbox.now_ms = self.now_ms

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        self.host.run(event, *arguments)

    def pump(self) -> None:
        """Carry out effects: reads at once, writes and stores later."""
        self.host.pump()

    def write(self, effect: Write) -> None:
        self.writes.hold(effect)
        self.world.written(self, effect.append)

    def read(self, effect: Read) -> None:
        self.run(
            effect.then, *find(effect, chain.from_iterable(self.ledgers[ledger] for ledger in sorted(self.ledgers)))
        )

    def due(self) -> None:
        """Timers whose time has come."""
        self.host.due(self.now_ms)

    def to_disk(self, entries: Iterable[StoredEntry]) -> None:
        for entry in entries:
            self.ledgers.setdefault(entry.ledger, []).append(entry)
        self.world.durable(self, entries)

    def reached_disk(self, append: Append) -> None:
        self.to_disk(append.entries)
        if append not in self.confirmed_early:
            self.log.confirm(append, Location(0, 0))

    def answer(self, append: Append, error: str) -> None:
        if append not in self.confirmed_early:
            append.token(append, error)
        self.confirmed_early.discard(append)

    def sync(self, most: int = 1000) -> None:
        """The disk has the oldest appends."""
        if self.writes.sync(most):
            self.world.confirmed(self)
        self.pump()

    def store(self, most: int = 1000, error: str = "") -> None:
        """The metadata store answers the oldest requests."""
        for _ in range(min(most, len(self.stores.waiting))):
            self.stores.answer(error)

    def fail_writes(self) -> None:
        """A write failed: nothing in flight was stored."""
        self.writes.fail("disk failed")
        self.pump()

    # -- what machines ask of a topic and of a broker

    def append(
        self,
        entries: list[NewEntry],
        token: Callable[[Append, str], None],
        *,
        durable: bool | None = None,
        marker: bool = False,
    ) -> Append:
        if self.world.refusing:
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, "waits for its storage")
        append = self.log.stage(entries, self.now_ms, token=token)
        self.outbox.put(Write(append))
        return append

    def find(self, topic: str) -> "Node | None":
        return self.topic if topic == TOPIC else None

    def refuses_entries(
        self, topic: TopicName, source: str, incarnation: int | None = None, partitions: int = 0
    ) -> str:
        return ""

    def reconcile(self, topic: TopicName, source: str, partitions: int) -> str:
        return "make them the same"

    def partitions(self, topic: TopicName) -> int | None:
        return 0 if self.topic is not None else None

    def create(self, topic: TopicName, partitions: int, then: Callable[[str], None]) -> None:
        # As the broker's catalog does: handshakes overlap, and a second record must not be stored over a topic in use.
        self.creating.append(then)
        if len(self.creating) > 1:
            return
        record = TopicRecord(incarnation=self.ids.allocate(self.now_ms), created_ms=0)

        def stored(error: str) -> None:
            if not error and self.topic is None:
                self.open(self.ids, fresh=True)
            waiting, self.creating = self.creating, []
            for then in waiting:
                then(error)

        self.outbox.put(Store({KEY: record.encode()}, (), stored))

    def trim(self, keep_after: Position | None, retention: Retention = NOTHING_KEPT) -> list[int]:
        """Delete ledgers, what only they knew being stored first; as the broker does it, but without waiting."""
        trim = self.log.trim(keep_after, self.now_ms + 1, retention)
        if trim is None:
            return []
        self.record.first_ledger, self.record.next_index = trim.first_ledger, trim.next_index
        for source, position in trim.watermarks.items():
            self.record.watermarks = {**self.record.watermarks, source: tuple(position)}
        self.meta[KEY] = self.record.encode()
        self.log.forget(trim)
        for ledger in trim.ledgers:
            self.ledgers.pop(ledger, None)
        return trim.ledgers


@dataclass
class Task:
    """A task of the pipeline: what it read, what it sent, what was answered."""

    incarnation: int
    gen: int
    uuid: str
    s: Position
    end: Position
    frames: list[tuple[Position, list[StoredEntry]]]
    at: int = 0
    session: int = -1
    sent: list[Position] = field(default_factory=list)
    confirmed: Position | None = None
    over: bool = False

    def again(self) -> "Task":
        """The same task, run twice."""
        return Task(self.incarnation, self.gen, self.uuid, self.s, self.end, self.frames)


class World:
    """One link a -> b of one topic.

    Args:
        rng: the only source of chance.
        trace: what happened, if wanted.
    """

    source_class: type[LinkSource] = LinkSource
    destination_class: type[LinkDestination] = LinkDestination
    sync_before_read = True
    reuse_ledgers = False
    slow_clocks = True
    warm: ClassVar[float] = 0.3
    """Share of worlds that begin with a link that has worked for a while."""
    ledger_sizes: ClassVar[tuple[int, ...]] = (1, 2, 3, 5)
    straggling: ClassVar[float] = 0.5
    """Share of tasks that run twice, the second time late."""
    boost: ClassVar[dict[str, float]] = {}
    """What a world does more (or less) often than others."""

    def __init__(self, rng: random.Random, trace: list[str] | None = None) -> None:
        self.rng, self.trace = rng, trace
        self.now_ms = 1_000_000
        self.ledger_entries = rng.choice(self.ledger_sizes)
        self.refusing = False
        self.filter = {FILTERED_1, FILTERED_2, PLAIN, ONLY_B}
        self.messages: dict[int, Message] = {}
        self.alive: list[Message] = []
        self.tasks: list[Task] = []
        self.commits: list[pb.CommandGeoCommit] = []
        self.identities: dict[tuple[str, int, int], int] = {}
        self.have: set[int] = set()
        self.stored_ever: set[int] = set()
        self.exempt: set[int] = set()
        self.session = 0
        self.forgot = False
        self.last_source = NONE
        self.last_index: dict[int, int] = {}
        self.floor = NONE
        self.request = 0
        self.a = Node(self, "a")
        self.b = Node(self, "b")
        self.b.boot()
        self.boot_b()
        self.new_topic_a()
        if rng.random() < 0.8:
            self.greet()
        if rng.random() < self.warm:
            self.warm_up()

    def greet(self) -> None:
        """The link begins properly."""
        self.handshake()
        self.b.store()

    def warm_up(self) -> None:
        """A link that has worked for a while, whose destination then may lose what it has, with stragglers about."""
        for _ in range(self.rng.randint(2, 6)):
            self.publish()
            self.a.sync()
        self.greet()
        while self.commits:
            self.take_commit(0)
        stragglers: list[Task] = []
        for _ in range(self.rng.randint(1, 3)):
            self.plan(self.rng.choice((100, 300, 10**6)))
            stragglers += [task.again() for task in self.tasks if self.rng.random() < self.straggling]
            for _ in range(20):
                self.run_task()
                self.b.sync()
            if self.commits and self.rng.random() < 0.8:
                self.take_commit()
            self.now_ms += 120
            self.a.due()
            self.a.store()
        self.tasks += stragglers
        if self.rng.random() < 0.6:
            self.forget_b()
            self.greet()
        self.check()

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(text)

    # ---------------------------------------------------------------------------------------------- seams for planted bugs

    def make_ids(self, node: Node, last: int) -> LedgerIds:
        if not self.reuse_ledgers:
            return LedgerIds(last)

        class Reused(LedgerIds):
            def allocate(self, now_ms: int) -> int:
                self.last += 1
                return self.last

        return Reused(last)

    def saved(self, record: TopicRecord) -> TopicRecord:
        return record

    def keep_after(self) -> Position | None:
        return self.source.durable_low(TOPIC)

    def first_p(self, state: pb.GeoTopicState) -> Position:
        return position_from_proto(state.cursor.s)

    def next_p(self, entry: StoredEntry, sent: bool, p: Position) -> Position:
        return entry.position if sent else p

    # ------------------------------------------------------------------------------------------------------------ source

    def boot_a(self) -> None:
        self.source = self.source_class(
            self.a.outbox, cluster="a", uuid=self.a.uuid, to="b", boot=self.now_ms * 100 + self.a.boots, host=self.a
        )
        self.source.load(self.a.meta)
        if self.a.topic is not None:
            self.source.added(TOPIC, self.a.log, wanted=True)
        self.a.pump()

    def new_topic_a(self, *, wiped: bool = True) -> None:
        """The topic is made (again): its record and the link's cursor in one transaction."""
        a = self.a
        used = -1 if wiped else a.ids.last
        self.now_ms += 1000  # the clock runs faster than ledgers are opened
        a.boot()
        if not self.reuse_ledgers:
            a.ids.raise_to(used)
        self.source = self.source_class(
            a.outbox, cluster="a", uuid=a.uuid, to="b", boot=self.now_ms * 100 + a.boots, host=a
        )
        record = TopicRecord(incarnation=a.ids.allocate(a.now_ms), created_ms=0)
        a.ledgers = {}
        a.meta[KEY] = record.encode()
        a.meta |= self.source.creation(TOPIC, record.incarnation)
        a.open(a.ids, fresh=True)
        self.source.added(TOPIC, a.log, wanted=True, created=True)
        a.pump()
        self.alive = []
        self.floor = NONE
        self.gen = self.state.cursor.gen

    @property
    def state(self) -> LinkTopic:
        return self.source.topics[TOPIC]

    def publish(self) -> None:
        entries, made = [], []
        for _ in range(self.rng.choice((1, 1, 2))):
            kind = self.rng.choice((FOREIGN, FILTERED_1, FILTERED_2, PLAIN, PLAIN, PLAIN, ONLY_B, NOT_B))
            uid, count = len(self.messages), self.rng.choice((1, 1, 3))
            data, flags = entry_bytes(uid, kind, count)
            wanted = kind in self.filter
            message = Message(uid, kind, self.a.log.incarnation, count=count, always=wanted, ever=wanted)
            self.messages[uid] = message
            made.append(message)
            if kind == FOREIGN:
                entries.append(NewEntry(data, flags, count, 1, "c", 7, uid, Position(7, uid)))
            else:
                entries.append(NewEntry(data, flags, count, 1))
        append = self.a.append(entries, lambda _append, _error: None)
        for message, entry in zip(made, append.entries, strict=True):
            message.position, message.index = entry.position, entry.first_index
        self.say(f"A publishes {[(m.uid, str(m.position), m.kind, m.index) for m in made]}")
        self.a.pump()

    def written(self, node: Node, append: Append) -> None:
        if node is self.a and not self.sync_before_read:
            node.confirmed_early.add(append)
            node.log.confirm(append, Location(0, 0))
            append.token(append, "")
            self.source.confirmed(TOPIC)

    def confirmed(self, node: Node) -> None:
        if node is self.a:
            self.source.confirmed(TOPIC)

    def durable(self, node: Node, entries: Iterable[StoredEntry]) -> None:
        """Entries are on a disk: what they are called must be theirs alone, and at B each comes once and in order."""
        for entry in entries:
            uid, kind = uid_kind(entry.data)
            if node is self.a:
                if kind != FOREIGN:
                    self.bind(node.log.incarnation, entry.first_index, uid)
                self.alive.append(self.messages[uid])
            elif entry.origin:
                self.arrived(entry, uid, kind)

    def bind(self, incarnation: int, index: int, uid: int) -> None:
        if self.identities.setdefault(("a", incarnation, index), uid) != uid:
            raise Violation(
                f"identity {incarnation}/{index} names messages {self.identities['a', incarnation, index]} and {uid}"
            )

    def arrived(self, entry: StoredEntry, uid: int, kind: int) -> None:
        message = self.messages[uid]
        name = f"message {uid} ({entry.incarnation}/{entry.first_index} at {entry.source})"
        self.bind(entry.incarnation, entry.first_index, uid)
        if uid in self.have:
            raise Violation(f"duplicate: {name}")
        if entry.first_index <= self.last_index.get(entry.incarnation, -1) or entry.source <= self.last_source:
            raise Violation(f"order: {name} after {self.last_source}")
        if not message.ever:
            raise Violation(f"never for B: {name}")
        if (entry.origin, entry.count) != ("a", message.count) or not entry.flags & EntryFlags.REPLICATED:
            raise Violation(f"not stored as what it is: {name}")
        self.last_index[entry.incarnation] = entry.first_index
        self.last_source = entry.source
        self.have.add(uid)
        self.stored_ever.add(uid)

    def crash_a(self) -> None:
        self.a.crash()
        self.boot_a()
        known = {m.uid for m in self.alive}
        self.say(f"A crashes: cursor {self.state.cursor}, last {self.a.log.last}, {len(known)} on disk")

    def deleted(self, ledgers: list[int]) -> list[Message]:
        gone = [m for m in self.alive if m.position.ledger in ledgers]
        for message in gone:
            message.deleted = True
        return gone

    def trim_a(self, *, quota: bool = False) -> None:
        gone = self.deleted(self.a.trim(None if quota else self.keep_after()))
        if quota:
            self.exempt |= {m.uid for m in gone} - self.have
        if gone:
            self.say(f"A deletes {[m.uid for m in gone]}{' by quota' if quota else ''}")
            self.source.trimmed(TOPIC)
            self.a.pump()

    def recreate_a(self) -> None:
        """Deleted and made again, or the disk was lost (then with another uuid, and perhaps a slow clock)."""
        wiped = self.rng.random() < 0.5
        if wiped:
            self.a.new_uuid()
            if self.slow_clocks and self.rng.random() < 0.3:
                self.a.skew = -500_000 - 13 * self.a.lives
        self.new_topic_a(wiped=wiped)
        self.say(f"A: {'disk lost, now ' + self.a.uuid if wiped else 'topic made again'}: {self.a.log.incarnation}")

    def change_filter(self) -> None:
        self.filter ^= {self.rng.choice((FILTERED_1, FILTERED_2))}
        for message in self.messages.values():
            wanted = message.kind in self.filter
            message.always, message.ever = message.always and wanted, message.ever or wanted
        self.say(f"filter {sorted(self.filter)}")

    # ------------------------------------------------------------------------------------------------------- destination

    def boot_b(self) -> None:
        self.destination = self.destination_class(
            self.b.outbox, cluster="b", uuid=self.b.uuid, host=self.b, boot=self.now_ms * 100 + self.b.boots,
        )  # fmt: skip
        self.destination.load(self.b.meta)
        self.session += 1

    def crash_b(self) -> None:
        self.b.crash()
        self.boot_b()
        self.say(f"B crashes, W {self.b.log.watermark('a') if self.b.topic else 'gone'}")

    def fail_b(self) -> None:
        if self.b.writes.waiting:
            self.b.fail_writes()
            self.say(f"B's append fails, W {self.b.log.watermark('a')}")

    def publish_b(self) -> None:
        """Somebody publishes in B: its ledgers hold more than what came over the link."""
        if self.b.topic is not None:
            data, flags = entry_bytes(0, PLAIN, 1)
            self.b.append([NewEntry(data, flags, 1, 1)], lambda _append, _error: None)
            self.b.pump()

    def trim_b(self) -> None:
        if self.b.topic is not None:
            gone = self.b.trim(None)
            if gone:
                self.say(f"B deletes ledgers {gone}")

    def forget_b(self) -> None:
        """B's topic is deleted, or its disk is lost: what A deleted is nowhere any more."""
        wiped = self.rng.random() < 0.5
        self.exempt |= {m.uid for m in self.alive if m.deleted}
        if wiped:
            self.b.new_uuid()
        else:
            self.b.meta.pop(KEY, None)
            self.b.ledgers = {}
        self.b.boot()
        self.boot_b()
        self.have, self.last_index, self.last_source = set(), {}, NONE
        self.forgot = True
        if self.rng.random() < 0.5:
            self.greet()
        self.say(f"B: {'disk lost' if wiped else 'topic deleted'}")

    # --------------------------------------------------------------------------------------------------------- messengers

    def topic_state(self) -> pb.GeoTopicState | None:
        """What A reports of the topic to a pipeline."""
        got: list[pb.CommandGeoTopicsResponse] = []
        self.source.poll(1, pb.CommandGeoTopics(request_id=1, to="b", counter=0), got.append)
        return got[0].topics[0] if got and got[0].topics else None

    def plan(self, bytes_max: int = 0) -> bool:
        state = self.topic_state()
        if state is None or position_from_proto(state.cursor.c) >= position_from_proto(state.last):
            return False
        got: list[tuple[pb.CommandGeoReadResponse, list[bytes]]] = []
        read = pb.CommandGeoRead(request_id=1, topic=TOPIC, to="b", after=state.cursor.c)
        read.bytes_max = bytes_max or self.rng.randint(1, 300)
        self.source.read(read, lambda response, data: got.append((response, list(data))))
        self.a.pump()
        if not got:
            return False
        response, data = got[0]
        task = self.task(state, response, data)
        self.tasks.append(task)
        frames = [(str(p), [str(e.position) for e in entries]) for p, entries in task.frames]
        self.say(f"plan {frames} up to {task.end}, gen {task.gen}")
        return True

    def task(self, state: pb.GeoTopicState, response: pb.CommandGeoReadResponse, data: list[bytes]) -> Task:
        """Filter, chain, and cut into frames."""
        p = self.first_p(state)
        frames: list[tuple[Position, list[StoredEntry]]] = []
        room = 0
        for at, payload in enumerate(data):
            position = Position(response.ledgers[at], response.entries[at])
            entry = StoredEntry(
                position.ledger, position.entry, response.flags[at], response.counts[at], 1, 0,
                "", response.incarnations[at], response.first_indexes[at], NONE, payload,
            )  # fmt: skip
            sent = uid_kind(payload)[1] in self.filter
            if sent:
                if not room:
                    frames.append((p, []))
                    room = self.rng.choice((1, 1, 2, 3))
                frames[-1][1].append(entry)
                room -= 1
            p = self.next_p(entry, sent, p)
            if not sent:
                room = 0 if p == position else room
        end = position_from_proto(response.end)
        return Task(state.incarnation, state.cursor.gen, self.a.uuid, position_from_proto(state.cursor.s), end, frames)

    def send(self, task: Task) -> None:
        p, entries = task.frames[task.at]
        task.at += 1
        self.request += 1
        request = pb.CommandGeoAppend(
            request_id=self.request, topic=TOPIC, source="a", uuid=task.uuid, incarnation=task.incarnation, gen=task.gen,
            p=position_to_proto(p), ledgers=[e.ledger for e in entries], entries=[e.entry for e in entries],
            first_indexes=[e.first_index for e in entries], counts=[e.count for e in entries],
            sizes=[len(e.data) for e in entries], schema_numbering=self.schema_numbering(task),
        )  # fmt: skip
        last = entries[-1].position
        task.sent.append(last)
        session = self.session

        def reply(response: pb.CommandGeoAppendResponse) -> None:
            if session == self.session:
                self.answered(task, last, response)

        self.destination.append(session, request, b"".join(e.data for e in entries), reply, self.ask_schemas)
        self.b.pump()

    def schema_numbering(self, task: Task) -> int:
        return 0

    def ask_schemas(self, wanted: pb.CommandGeoSchemasWanted) -> None:
        raise Violation("nothing here carries a schema")

    def answered(self, task: Task, last: Position, response: pb.CommandGeoAppendResponse) -> None:
        if task.over:
            return
        persisted = position_from_proto(response.persisted)
        if response.refused:
            self.say(f"refused {last}, W {persisted}")
            self.finish(task)
            self.learn(task.incarnation, task.gen, persisted, self.destination.counter)
        elif response.blocked or response.retry or persisted < last:
            self.say(f"no luck with {last}: {response.blocked or 'retry'} {response.reason}")
            self.finish(task)
        else:
            task.sent.remove(last)
            task.confirmed = last

    def learn(self, incarnation: int, gen: int, watermark: Position, counter: int, *, foreign: bool = False) -> None:
        request = pb.CommandGeoCommit(request_id=1, to="b")
        mark = request.learned.add(
            topic=TOPIC, incarnation=incarnation, watermark=position_to_proto(watermark), counter=counter
        )
        mark.foreign = foreign
        if self.rng.random() < 0.3:
            mark.gen = gen
        self.commits.append(request)

    def finish(self, task: Task) -> None:
        """The task ends; what was confirmed without a hole before it is committed."""
        task.over = True
        if task in self.tasks:
            self.tasks.remove(task)
        whole = task.at == len(task.frames) and not task.sent
        c = task.end if whole else task.confirmed
        s = task.frames[-1][1][-1].position if whole and task.frames else task.confirmed or task.s
        if c is not None and not (task.sent and min(task.sent) <= c and not whole):
            commit = pb.CommandGeoCommit(request_id=1, to="b")
            cursor = pb.GeoCursor(c=position_to_proto(c), s=position_to_proto(s), gen=task.gen)
            commit.commits.add(topic=TOPIC, incarnation=task.incarnation, cursor=cursor)
            self.commits.append(commit)

    def run_task(self, task: Task | None = None) -> None:
        """One step of one task."""
        if not self.tasks:
            return
        task = task or self.rng.choice(self.tasks)
        if task.session < 0:
            task.session = self.session
        if task.sent and task.session != self.session:
            task.over = True
            self.tasks.remove(task)
        elif task.at < len(task.frames) and len(task.sent) < 3:
            task.session = self.session
            self.send(task)
        elif task.at == len(task.frames) and not task.sent:
            self.finish(task)

    def duplicate_task(self) -> None:
        if self.tasks and len(self.tasks) < 6:
            self.tasks.append(self.rng.choice(self.tasks).again())

    def take_commit(self, at: int | None = None) -> None:
        if not self.commits:
            return
        request = self.commits.pop(self.rng.randrange(len(self.commits)) if at is None else at)
        before = self.state.cursor
        was = self.state.rewinding
        self.source.commit(request, lambda response: self.commit_answered(request, response))
        if request.learned:
            watermark = position_from_proto(request.learned[0].watermark)
            if self.state.rewinding is not None and self.state.rewinding.c == watermark > before.c:
                self.floor = max(self.floor, watermark)
                self.say(f"A meets a foreign watermark {watermark}")
            elif self.state.rewinding is not None and self.state.rewinding != was:
                self.say(f"A is going to rewind to {self.state.rewinding}")
        if self.state.cursor != before:
            self.say(f"cursor {self.state.cursor}")
        self.a.pump()

    def commit_answered(self, request: pb.CommandGeoCommit, response: pb.CommandGeoCommitResponse) -> None:
        pass

    def shakes_hands(self, state: pb.GeoTopicState) -> bool:
        return True

    def handshake(self) -> None:
        """GEO_WATERMARKS; its answer travels like any commit."""
        state = self.topic_state()
        if state is None or not self.shakes_hands(state):
            return
        request = pb.CommandGeoWatermarks(request_id=1, source="a", uuid=self.a.uuid, counter=0)
        request.topics.add(
            topic=TOPIC, incarnation=state.incarnation, partitions=0, last=state.last, start=state.cursor.c
        )
        session, incarnation, gen = self.session, state.incarnation, state.cursor.gen

        def reply(response: pb.CommandGeoWatermarksResponse) -> None:
            if session != self.session:
                return
            answer = response.topics[0]
            if response.blocked and not answer.foreign:
                return
            self.learn(
                incarnation, gen, position_from_proto(answer.persisted), response.counter, foreign=answer.foreign
            )

        self.destination.watermarks(request, reply)
        self.b.pump()

    # --------------------------------------------------------------------------------------------------------------- a run

    def clock(self) -> None:
        self.now_ms += self.rng.choice((1, 5, 120, 120, 6_000))
        self.a.due()
        self.b.due()

    def actions(self) -> list[tuple[float, Callable[[], Any]]]:
        r = self.rng
        rare, lost, late = r.choice((0, 0.3, 1, 3)), r.choice((0.3, 1, 3)), r.choice((0.2, 1))
        table: dict[str, tuple[float, Callable[[], Any]]] = {
            "publish": (r.choice((1, 6)), self.publish),
            "sync_a": (4, lambda: self.a.sync(r.choice((1, 1000)))),
            "run_task": (16, self.run_task),
            "sync_b": (6 * late, lambda: self.b.sync(r.choice((1, 2, 1000)))),
            "take_commit": (4, self.take_commit),
            "plan": (4, lambda: len(self.tasks) < 4 and self.plan()),
            "handshake": (2 * late, self.handshake),
            "duplicate_task": (1, self.duplicate_task),
            "clock": (2, self.clock),
            "store_a": (3, lambda: self.a.store(r.choice((1, 1000)))),
            "store_b": (3, lambda: self.b.store(r.choice((1, 1000)))),
            "store_fails": (0.2, lambda: self.a.store(1, "store failed")),
            "trim_a": (0.7 * lost, self.trim_a),
            "trim_b": (0.7, self.trim_b),
            "publish_b": (0.7, self.publish_b),
            "quota": (0.4 * rare, lambda: self.trim_a(quota=True)),
            "crash_a": (0.5, self.crash_a),
            "crash_b": (0.5 * lost, self.crash_b),
            "fail_b": (0.5 * lost, self.fail_b),
            "fail_a": (0.2, lambda: self.sync_before_read and self.a.fail_writes()),
            "change_filter": (0.4 * rare, self.change_filter),
            "recreate_a": (0.2 * rare, self.recreate_a),
            "forget_b": (0.3 * rare * lost, self.forget_b),
            "lose_commit": (0.5, lambda: self.commits and self.commits.pop()),
            "lose_task": (0.5, lambda: self.tasks and self.tasks.pop()),
        }
        # Swarm: each world does some things far more and some far less often than the others do.
        return [
            (weight * self.boost.get(name, 1) * r.choice((0.2, 1, 1, 6)), action)
            for name, (weight, action) in table.items()
        ]

    def run(self, steps: int) -> None:
        actions = self.actions()
        weights = [weight for weight, _ in actions]
        for _, action in self.rng.choices(actions, weights, k=steps):
            action()
            self.check()
        self.heal()

    def note_rewind(self) -> None:
        """A rewind is in use: what B once had and A has deleted is a declared gap from now on."""
        if self.forgot and self.state.cursor.gen > self.gen:
            self.exempt |= {m.uid for m in self.alive if m.deleted and m.uid in self.stored_ever}
            self.forgot = False
        if self.state.cursor.gen < self.gen:
            raise Violation(f"generation {self.gen} is left for {self.state.cursor.gen}")
        self.gen = self.state.cursor.gen

    def check(self) -> None:
        self.note_rewind()
        self.source.validate()
        if self.b.topic is not None:
            self.destination.validate()

    def heal(self) -> None:
        """Faults end; everything must come together."""
        quiet = 0
        for _ in range(4 * len(self.alive) + 60):
            self.now_ms += 12_000
            self.a.due()
            self.b.due()
            self.settle()
            self.handshake()
            self.settle()
            while self.commits:
                self.take_commit(0)
                self.settle()
            before = (self.state.cursor, len(self.have))
            if self.plan(10**6):
                while self.tasks:
                    self.run_task(self.tasks[0])
                    self.settle()
            else:
                self.tasks.clear()
            while self.commits:
                self.take_commit(0)
                self.settle()
            quiet = quiet + 1 if before == (self.state.cursor, len(self.have)) else 0
            if quiet >= 4:
                break
        self.check()
        self.verdict()

    def settle(self) -> None:
        for _ in range(3):
            self.a.sync()
            self.b.sync()
            self.a.store()
            self.b.store()
        self.note_rewind()

    def verdict(self) -> None:
        """Every message that is for B is there, or its absence was declared."""
        w = self.b.log.watermark("a") if self.b.topic is not None else NONE
        missing = [m for m in self.alive if m.always and m.uid not in self.have]
        undeclared = [m for m in missing if m.uid not in self.exempt and m.position > self.floor]
        if undeclared:
            m = undeclared[0]
            raise Violation(
                f"lost or stuck: message {m.uid} at {m.position} is not in B; cursor {self.state.cursor}, W {w}"
            )
        lost = sum(m.count for m in missing)
        if lost > self.state.gap:
            raise Violation(f"{lost} messages are missing in B, but only {self.state.gap} are declared")
