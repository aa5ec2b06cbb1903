"""A broker's inside without a broker: topics over real logs, effects carried out when a test says so."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Outbox, Read, Store, Write
from magnetar.replication.link.records import LinkTopicRecord, link_cursor_key
from magnetar.replication.link.source import LinkSource
from magnetar.storage.entries import Append, EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, Retention, TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build, with_replicated_from
from magnetar.wire.positions import position_to_proto
from magnetar_sim.host.host import HeldLog, Host, find
from tests.support.linkhost import PlainLinkHost

TOPIC = "persistent://public/default/t"


def message(text: str = "m", *, count: int = 1, to: tuple[str, ...] = (), origin: str = "") -> NewEntry:
    """An entry as a client or (with an origin) a link brings it."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=7)
    flags = 0
    if count > 1:
        metadata.num_messages_in_batch = count
        flags |= EntryFlags.BATCH
    if to:
        metadata.replicate_to.extend(to)
        flags |= EntryFlags.RESTRICTED
    data = build(metadata, text.encode())
    if origin:
        data = with_replicated_from(data, origin)
        return NewEntry(data, int(flags | EntryFlags.REPLICATED), count, 7, origin, 5, 0, Position(5, 0))
    return NewEntry(data, int(flags), count, 7)


@dataclass
class RigTopic:
    """A topic: its log, and entries that are on the disk."""

    rig: "Rig"
    log: TopicLog
    disk: dict[Position, StoredEntry] = field(default_factory=dict)
    write_failed: bool = False
    terminated: bool = False
    idempotency: None = None

    def append(
        self,
        entries: list[NewEntry],
        token: Callable[[Append, str], None],
        *,
        durable: bool | None = None,
        marker: bool = False,
    ) -> Append:
        assert marker or not self.terminated
        if self.write_failed:
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, "waits for its storage")
        append = self.log.stage(entries, self.rig.outbox.now_ms, token=token)
        self.rig.outbox.put(Write(append))
        return append

    def publish(self, *entries: NewEntry) -> list[Position]:
        """Publish and sync."""
        append = self.append(list(entries), lambda _append, _error: None)
        self.rig.pump()
        self.rig.sync()
        return [entry.position for entry in append.entries]


class Rig(PlainLinkHost):
    """Carries out effects: reads and notes at once; writes, stores and timers when asked."""

    def __init__(self, now_ms: int = 1_000) -> None:
        super().__init__()
        self.outbox = Outbox(now_ms=now_ms)
        self.topics: dict[str, RigTopic] = {}
        self.meta: dict[str, bytes] = {}
        self.writes = HeldLog(self.reached_disk, lambda append: self.topics[append.topic].log.fail(), self.answer)
        self.host = Host(self.outbox, {Write: self.writes.hold, Read: self.read}, self.meta)
        self.stores, self.notes = self.host.store, self.host.notes
        self.spoilt: set[Position] = set()
        self.counts: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.created: list[tuple[str, int]] = []
        self.on_confirmed: Callable[[str], None] = lambda _topic: None
        self.ids = LedgerIds()

    def topic(self, name: str = TOPIC, incarnation: int = 0, ledger_entries: int = 3) -> RigTopic:
        """Make a topic."""
        incarnation = incarnation or self.ids.allocate(self.outbox.now_ms)
        log = TopicLog(name, incarnation, self.ids, EntryCache(1 << 20), ledger_entries_max=ledger_entries)
        made = self.topics[name] = RigTopic(self, log)
        return made

    def run(self, event: Callable[..., object], *arguments: Any) -> None:
        self.host.run(event, *arguments)

    def pump(self) -> None:
        """Take the effects."""
        self.host.pump()

    def read(self, effect: Read) -> None:
        disk = self.topics[effect.topic].disk
        self.run(effect.then, *find(effect, (disk[position] for position in sorted(disk)), self.spoilt))

    def reached_disk(self, append: Append) -> None:
        topic = self.topics[append.topic]
        topic.disk.update((entry.position, entry) for entry in append.entries)
        topic.log.confirm(append, Location(0, 0))

    def answer(self, append: Append, error: str) -> None:
        append.token(append, error)
        if not error:
            self.on_confirmed(append.topic)

    def sync(self) -> None:
        """The disk has everything."""
        self.writes.sync()
        self.pump()

    def fail(self, error: str = "disk failed") -> None:
        """Nothing in flight was stored."""
        self.writes.fail(error)
        self.pump()

    def store(self, error: str = "") -> None:
        """The metadata store answers everything."""
        self.pump()
        while self.stores.answer(error):
            pass

    def later(self, ms: int) -> None:
        """Time passes; timers that are due run."""
        self.outbox.now_ms += ms
        self.pump()
        self.host.due(self.outbox.now_ms)

    def trim(self, name: str = TOPIC, keep_after: Position | None = None, *, whole: bool = False) -> None:
        """Delete the ledgers that nobody holds; `whole`: the last one, too."""
        topic = self.topics[name]
        trim = topic.log.trim(keep_after, self.outbox.now_ms + 1, Retention(0, 0), whole=whole)
        if trim is not None:
            topic.log.forget(trim)
            topic.disk = {p: e for p, e in topic.disk.items() if p.ledger not in trim.ledgers}

    # -- replication.link.ports.TopicHost

    def find(self, topic: str) -> RigTopic | None:
        return self.topics.get(topic)

    def refuses_entries(
        self, topic: TopicName, source: str, incarnation: int | None = None, partitions: int = 0
    ) -> str:
        return self.refused.get(str(topic), "")

    def reconcile(self, topic: TopicName, source: str, partitions: int) -> str:
        return "make them the same"

    def partitions(self, topic: TopicName) -> int | None:
        return self.counts.get(str(topic), 0 if str(topic) in self.topics else None)

    def create(self, topic: TopicName, partitions: int, then: Callable[[str], None]) -> None:
        self.created.append((str(topic), partitions))

        def stored(error: str) -> None:
            if not error:
                names = [str(topic.with_partition(n)) for n in range(partitions)] or [str(topic)]
                if partitions:
                    self.counts[str(topic)] = partitions
                for name in names:
                    if name not in self.topics:
                        self.topic(name)
            then(error)

        self.outbox.put(Store({}, (), stored))


def append_request(
    brought: list[NewEntry], positions: list[tuple[int, int]], p: Position = NONE, /, **fields: Any
) -> tuple[pb.CommandGeoAppend, bytes]:
    """GEO_APPEND of some entries."""
    defaults: dict[str, Any] = {
        "request_id": 1, "topic": TOPIC, "source": "a", "uuid": "a-1", "incarnation": 3, "gen": 1, "p": position_to_proto(p),
        "ledgers": [ledger for ledger, _ in positions], "entries": [entry for _, entry in positions],
        "first_indexes": list(range(len(brought))), "counts": [entry.count for entry in brought],
        "sizes": [len(entry.data) for entry in brought],
    }  # fmt: skip
    return pb.CommandGeoAppend(**(defaults | fields)), b"".join(entry.data for entry in brought)


KEY = link_cursor_key(TOPIC, "b")


class Link:
    """The link a -> b and one topic."""

    def __init__(
        self, *, wanted: bool = True, created: bool = True, latest: bool = False, ledger_entries: int = 3
    ) -> None:
        self.rig = Rig()
        self.topic: RigTopic = self.rig.topic(ledger_entries=ledger_entries)
        self.machine = self.make()
        if created:
            self.rig.meta |= self.machine.creation(TOPIC, self.topic.log.incarnation)
        self.machine.added(TOPIC, self.topic.log, wanted=wanted, latest=latest, created=created)
        self.rig.on_confirmed = self.machine.confirmed
        self.rig.store()

    def make(self, **more: Any) -> LinkSource:
        boot = self.rig.outbox.now_ms
        return LinkSource(self.rig.outbox, cluster="a", uuid="a-1", to="b", boot=boot, host=self.rig, **more)

    def restart(self, *, wanted: bool = True, **more: Any) -> None:
        """What was not stored is forgotten."""
        self.rig.outbox.drain()
        self.rig.stores.waiting.clear()
        self.rig.host.timers.waiting.clear()
        self.rig.outbox.now_ms += 1_000
        self.machine = self.make(**more)
        self.machine.load(self.rig.meta)
        self.machine.added(TOPIC, self.topic.log, wanted=wanted)
        self.rig.on_confirmed = self.machine.confirmed
        self.rig.pump()

    @property
    def state(self) -> Any:
        return self.machine.topics[TOPIC]

    def poll(self, counter: int = 0, **fields: Any) -> list[pb.CommandGeoTopicsResponse]:
        got: list[pb.CommandGeoTopicsResponse] = []
        connection = fields.pop("connection", 1)
        self.machine.poll(connection, pb.CommandGeoTopics(request_id=1, to="b", counter=counter, **fields), got.append)
        self.rig.pump()
        return got

    def told(self) -> pb.GeoTopicState:
        return self.poll()[0].topics[0]

    def read(
        self, after: Position = NONE, bytes_max: int = 1 << 20, **fields: Any
    ) -> tuple[list[Position], Any, list[bytes]]:
        got: list[Any] = []
        request = pb.CommandGeoRead(
            request_id=5, topic=TOPIC, to="b", after=position_to_proto(after), bytes_max=bytes_max, **fields
        )
        self.machine.read(request, lambda response, data: got.append((response, data)))
        self.rig.pump()
        response, data = got[0]
        return list(map(Position, response.ledgers, response.entries)), response, list(data)

    def commit(self, c: Position, s: Position, gen: int = 1, **fields: Any) -> pb.CommandGeoCommitResponse:
        request = pb.CommandGeoCommit(request_id=1, to="b")
        incarnation = fields.pop("incarnation", self.topic.log.incarnation)
        cursor = pb.GeoCursor(c=position_to_proto(c), s=position_to_proto(s), gen=gen)
        request.commits.add(topic=TOPIC, incarnation=incarnation, cursor=cursor, **fields)
        return self.tell(request)[0]

    def learn(self, watermark: Position, **fields: Any) -> list[pb.CommandGeoCommitResponse]:
        request = pb.CommandGeoCommit(request_id=1, to="b")
        request.learned.add(
            topic=TOPIC, incarnation=self.topic.log.incarnation, watermark=position_to_proto(watermark), **fields
        )
        return self.tell(request)

    def tell(self, request: pb.CommandGeoCommit) -> list[pb.CommandGeoCommitResponse]:
        got: list[pb.CommandGeoCommitResponse] = []
        self.machine.commit(request, got.append)
        self.rig.pump()
        return got

    def stored(self) -> LinkTopicRecord:
        return LinkTopicRecord.decode(KEY, self.rig.meta[KEY])
