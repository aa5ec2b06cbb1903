"""Whole brokers in one process, in the test's hands: clients, links between them, time, disks and power cuts.

Real are the broker with all its machines, the log's records and its recovery. The test's are the clock, the disk (memory that
forgets what was not synced), the store, and a messenger that carries what a link has to carry when it is told to.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from magnetar.broker.admin.controller import Controller
from magnetar.broker.broker import Broker
from magnetar.broker.security.access import Access
from magnetar.broker.security.credentials import Keys
from magnetar.broker.topics.topic import Topic
from magnetar.core.config import Config, parse
from magnetar.core.errors import StorageError
from magnetar.core.ids import Position
from magnetar.core.security import Security
from magnetar.core.settings import BrokerConfig, SubscriptionsConfig
from magnetar.effects.outbox import (
    Close,
    Compute,
    Drop,
    Outbox,
    Read,
    Send,
    Store,
    Sync,
    Timer,
    Write,
)
from magnetar.metadata.resources import Resources
from magnetar.metadata.topic_records import LAST_LEDGER_KEY
from magnetar.runtime.log.thread import LogThread
from magnetar.storage.recovery import recover
from magnetar.storage.topiclog import EntryCache, LedgerIds
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder
from magnetar_sim.host.host import Host, Timers
from magnetar_sim.host.memory_files import MemoryFiles

TOPIC = "persistent://public/default/t"
FOLDER = Path("/log")


class Log(LogThread):
    """The log thread without its thread: a cycle is one call."""

    def start(self) -> Any:
        recovered = recover(self._files, FOLDER)
        self._log.begin(recovered)
        return recovered

    def cycle(self) -> bool:
        """Write and sync what waits; whether there was anything."""
        if not self._queue and not self._dropped and not self._barriers:
            return False
        self._cycle()
        return True

    def _work(self, *, idle: bool) -> None:
        return


class Message:
    """What a client got."""

    def __init__(self, command: pb.CommandMessage, payload: bytes) -> None:
        item = command.message_id
        self.position = Position(item.ledgerId, item.entryId)
        self.ack_set = tuple(command.ack_set)
        self.redelivery = command.redelivery_count
        self.data = payload[metadata.split(payload) :]


class Client:
    """One connection of a client."""

    def __init__(self, node: "Node", number: int) -> None:
        self.node, self.number = node, number
        self.decoder = FrameDecoder(1 << 26)
        self.received: dict[int, list[Message]] = {}
        self.answers: list[pb.BaseCommand] = []
        self.closed_consumers: list[int] = []
        self._ids = count(1)

    def connect(self, **fields: Any) -> None:
        self.node.run(self.node.broker.connected, self.number, "test:1")
        self.send(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="t", protocol_version=20, **fields)))

    def send(self, command: pb.BaseCommand, payload: bytes = b"") -> None:
        self.node.run(self.node.broker.frames, self.number, [Frame(command, payload)])

    def got(self, buffers: Iterable[bytes | memoryview]) -> None:
        for frame in self.decoder.feed(b"".join(buffers)):
            command = frame.command
            if command.type == 9:
                got = Message(command.message, frame.payload)
                self.received.setdefault(command.message.consumer_id, []).append(got)
            elif command.type == 16:
                self.closed_consumers.append(command.close_consumer.consumer_id)
            else:
                self.answers.append(command)

    def answered(self, request: int) -> pb.BaseCommand | None:
        """The answer to a request, if it came."""
        for command in self.answers:
            body = command.ListFields()[1][1] if len(command.ListFields()) > 1 else None
            if body is not None and getattr(body, "request_id", None) == request:
                return command
        return None

    def subscribe(
        self,
        name: str,
        kind: int = 0,
        *,
        topic: str = TOPIC,
        replicated: bool = True,
        earliest: bool = True,
        **more: Any,
    ) -> int:
        """Open a consumer with many permits; its id. The answer is not waited for."""
        consumer = next(self._ids)
        command = pb.CommandSubscribe(
            topic=topic, subscription=name, subType=kind, consumer_id=consumer, request_id=1000 + consumer,
            initialPosition=1 if earliest else 0, replicate_subscription_state=replicated, **{"durable": True, **more},
        )  # fmt: skip
        self.send(pb.BaseCommand(type=4, subscribe=command))
        return consumer

    def flow(self, consumer: int, permits: int = 1000) -> None:
        self.send(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=consumer, messagePermits=permits)))

    def ack(
        self, consumer: int, *ids: Message | Position, cumulative: bool = False, ack_set: Iterable[int] = ()
    ) -> None:
        command = pb.CommandAck(consumer_id=consumer, ack_type=int(cumulative))
        for each in ids:
            ledger, entry = each.position if isinstance(each, Message) else each
            command.message_id.add(ledgerId=ledger, entryId=entry, ack_set=ack_set)
        self.send(pb.BaseCommand(type=10, ack=command))

    def seek(self, consumer: int, position: Position) -> int:
        request = 5000 + next(self._ids)
        command = pb.CommandSeek(consumer_id=consumer, request_id=request)
        command.message_id.ledgerId, command.message_id.entryId = (number % (1 << 64) for number in position)
        self.send(pb.BaseCommand(type=28, seek=command))
        return request

    def unsubscribe(self, consumer: int, *, force: bool = False) -> None:
        command = pb.CommandUnsubscribe(consumer_id=consumer, request_id=9000 + consumer, force=force)
        self.send(pb.BaseCommand(type=12, unsubscribe=command))

    def take(self, consumer: int) -> list[Message]:
        """What came since the last time."""
        return self.received.pop(consumer, [])


class Node:
    """One cluster."""

    def __init__(self, world: "World", name: str, routes: frozenset[tuple[str, str]], limits: dict[str, Any]) -> None:
        self.world, self.name, self.routes = world, name, routes
        self.files = MemoryFiles(random.Random(name))
        self.meta: dict[str, bytes] = {}
        self.limits = BrokerConfig(**{"disk_free_bytes_min": 0, **limits})
        self.link_token = b"t"
        self.up = False
        self.boots = 0
        self.hold_stores = False
        self.hold_log = False
        self.hold_computes = False
        self.start()

    @property
    def topic(self) -> Topic:
        return self.broker.topics[TOPIC]

    def secure(self, security: Security, keys: Keys) -> None:
        """Let clients in by these rules from now on, as if the broker had been started with them."""
        broker = self.broker
        broker.access = Access(self.outbox, security, keys, broker.resources, broker.sessions)
        self.serve_anew()

    def serve_anew(self) -> None:
        """Let new connections work with the broker's parts as they are now: a test has exchanged one."""
        self.broker._services = self.broker._session_services()

    def start(self) -> None:
        self.boots += 1
        self.up = True
        self.outbox = Outbox(now_ms=self.world.now_ms)
        self.clients: dict[int, Client] = {}
        self.computes: deque[Compute] = deque()
        self.reads: deque[Read] = deque()
        self._connections = count(1)
        self.log = Log(
            self.files, FOLDER, self.limits,
            on_appended=lambda batch: self.run(self.broker.appended, batch),
            on_failed=lambda batch, error: self.run(self.broker.append_failed, batch, error),
            on_healed=lambda: self.run(self.broker.healed),
            salt=lambda: b"saltsalt",
        )  # fmt: skip
        carry_out = {
            Send: self._send,
            Close: self._close,
            Write: lambda effect: self.log.submit(effect.append),
            Sync: lambda effect: self.log.sync(lambda error: self.run(effect.then, error)),
            Timer: self._timer,
            Compute: self._compute,
            Read: self.reads.append,
            Drop: lambda _: None,
        }
        self.host = Host(self.outbox, carry_out, self.meta, before=self._set_time, after=self.check)
        self.store, self.notes = self.host.store, self.host.notes
        recovered = self.log.start()
        resources = Resources.load(self.meta)
        first = resources.first_start(self.world.config, self.name, f"uuid-{self.name}")
        from_file = frozenset(first.puts) - self.meta.keys()
        self.meta.update(first.puts)
        resources.apply(first)
        self.broker = Broker(
            self.outbox, self.limits, cluster=self.name, uuid=f"uuid-{self.name}", service_url=f"pulsar://{self.name}:1",
            link_token=self.link_token, resources=resources, stored=dict(self.meta), recovered=recovered.topics,
            ledger_ids=LedgerIds(max(recovered.last_ledger, int(self.meta.get(LAST_LEDGER_KEY, b"-1")))),
            cache=EntryCache(self.world.cache_bytes), link_targets=tuple(sorted(b for a, b in self.routes if a == self.name)),
            routes=self.routes, subscriptions=self.world.settings, boot=self.world.now_ms + self.boots,
            machines=self.world.machines, metadata=self.world.config.metadata, from_file=from_file,
            admin_url=self.world.config.cluster(self.name).admin_url,
            admin_urls={name: cluster.admin_url for name, cluster in self.world.config.clusters.items()},
            web_url=self.world.config.cluster(self.name).web_url,
        )  # fmt: skip
        self.control = Controller(self.broker, self.run)
        self.host.pump()

    @property
    def stores(self) -> deque[Store]:
        """Transactions that are not answered yet."""
        return self.store.waiting

    def kill(self) -> None:
        """Power cut: what was not durable is gone."""
        self.up = False
        self.files = self.files.crash()

    def restart(self) -> "Node":
        self.kill()
        self.start()
        return self

    def client(self, **connect: Any) -> Client:
        """A new connection; `connect`: fields of its CONNECT."""
        made = Client(self, next(self._connections))
        self.clients[made.number] = made
        made.connect(**connect)
        return made

    def run(self, event: Callable[..., None], *arguments: Any) -> None:
        if self.up:
            self.host.run(self.handle, event, arguments)

    def handle(self, event: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """One event; what it asks for is done afterwards."""
        event(*arguments)

    def check(self) -> None:
        """What must hold after every event."""
        self.broker.validate()

    def _set_time(self) -> None:
        self.outbox.now_ms, self.outbox.ahead_ms = self.world.now_ms, self.world.ahead_ms

    def _send(self, effect: Send) -> None:
        client = self.clients.get(effect.connection)
        if client is not None:
            client.got(effect.buffers)

    def _close(self, effect: Close) -> None:
        if self.clients.pop(effect.connection, None) is not None:
            self._timer(Timer(self.world.now_ms, lambda _: self.broker.disconnected(effect.connection)))

    def _timer(self, effect: Timer) -> None:
        boot = self.boots
        self.world.timers.set(
            effect._replace(then=lambda now_ms: self.run(effect.then, now_ms) if boot == self.boots else None)
        )

    def _compute(self, effect: Compute) -> None:
        if self.hold_computes:
            self.computes.append(effect)
        else:
            self.run(effect.then, effect.work())

    def _read(self, effect: Read) -> None:
        log = self.broker.log_of(effect.topic)
        entries, spans = effect.find(log) if log is not None else ([], [])
        error = ""
        if spans:
            try:
                entries = self.log.read(spans)
            except StorageError as problem:
                error = str(problem)
        self.run(effect.then, entries, error)

    def work(self) -> bool:
        """Disk, store and reads answer; whether anything happened."""
        if not self.up:
            return False
        did = False
        if not self.hold_log:
            did = self.log.cycle()
        while not self.hold_stores and self.store.answer():
            did = True
        while self.reads:
            self._read(self.reads.popleft())
            did = True
        return did

    def publish(
        self, *payloads: bytes, batch: int = 1, replicate_to: Iterable[str] = (), topic: str = TOPIC
    ) -> list[Position]:
        """Publish entries; they are durable when this returns."""
        from magnetar.storage.entries import EntryFlags, NewEntry

        found: list[Position] = []
        entries = []
        for payload in payloads:
            meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=self.world.now_ms)
            flags = 0
            if batch > 1:
                meta.num_messages_in_batch = batch
                flags |= EntryFlags.BATCH
            if replicate_to:
                meta.replicate_to.extend(replicate_to)
                flags |= EntryFlags.RESTRICTED
            entries.append(NewEntry(metadata.build(meta, payload), int(flags), batch, self.world.now_ms))

        def told(append: Any, error: str) -> None:
            assert not error
            found.extend(entry.position for entry in append.entries)

        self.run(lambda: self.broker.topics[topic].append(entries, told))
        self.world.work()
        return found

    def create(self, topic: str = TOPIC) -> None:
        from magnetar.core.names import TopicName

        self.run(lambda: self.broker.catalog.create(TopicName.parse(topic), then=lambda _t, _e: None))
        self.world.work()

    def apply(self, change: Any) -> None:
        """A change of policies, in force when this returns."""
        assert self.control_call(lambda done: self.control.policies.apply(change, done)) is None

    def control_call(self, call: Callable[[Callable[[Any], None]], None]) -> Any:
        """A change through administration; what it was answered."""
        answers: list[Any] = []
        call(answers.append)
        self.world.advance(100)
        assert answers, "no answer"
        return answers[0]


class World:
    """Some clusters.

    Args:
        names: of the clusters.
        routes: links; None for a full mesh.
        settings: of `[subscriptions]`.
        extra: more lines of clusters.toml.
        machines: see `Broker`.
    """

    def __init__(
        self,
        names: str = "ab",
        routes: Iterable[tuple[str, str]] | None = None,
        *,
        machines: Any = None,
        cache_bytes: int = 1 << 22,
        limits: dict[str, Any] | None = None,
        extra: str = "",
        **settings: Any,
    ) -> None:
        self.now_ms = 1_700_000_000_000
        self.ahead_ms = 0
        self.settings = SubscriptionsConfig(**settings)
        self.machines, self.cache_bytes = machines, cache_bytes
        self.timers = Timers()
        links = frozenset(routes if routes is not None else ((a, b) for a in names for b in names if a != b))
        self.config = self._config(names, links, extra)
        self.cut: set[tuple[str, str]] = set()
        self.nodes = {name: Node(self, name, links, limits or {}) for name in names}
        self.links = links
        self._requests = count(1)

    @staticmethod
    def _config(names: str, links: frozenset[tuple[str, str]], extra: str) -> Config:
        lines = ["[replication]", extra]
        for number, name in enumerate(names):
            lines.append(f'[clusters.{name}]\npulsar = "127.0.0.1:{6650 + number}"\nhttp = "127.0.0.1:{8080 + number}"')
        lines += [f'[[links]]\nfrom = "{a}"\nto = "{b}"' for a, b in sorted(links)]
        return parse("\n".join(lines), Path("/clusters.toml"))

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def work(self) -> bool:
        """Everything that needs no time happens; whether anything did."""
        did = False
        while any(node.work() for node in self.nodes.values()):
            did = True
        return did

    def pump(self) -> bool:
        """Every link carries once what there is; whether anything moved."""
        return any(self._carry(a, b) for a, b in sorted(self.links) if (a, b) not in self.cut)

    def settle(self, rounds: int = 500) -> None:
        """Disks and links until nothing moves. Time stands still."""
        for _ in range(rounds):
            if not (self.work() | self.pump()):
                return
        raise AssertionError("it does not come to rest")

    def advance(self, ms: int, *, links: bool = True) -> None:
        """Time passes, timer by timer; links carry all the while."""
        end = self.now_ms + ms
        while True:
            self.settle() if links else self.work()
            at_ms = self.timers.next_by(end)
            if at_ms is None:
                break
            self.now_ms = max(self.now_ms, at_ms)
            self.timers.pop()(self.now_ms)
        self.now_ms = end
        self.settle() if links else self.work()

    def _carry(self, source: str, target: str) -> bool:
        a, b = self.nodes[source], self.nodes[target]
        if not (a.up and b.up):
            return False
        link = a.broker.links.sources.get(target)
        moved = False
        for text, state in list(link.topics.items()) if link is not None else ():
            if state.wanted and (state.cursor.c < state.log.last or text not in b.broker.topics):
                moved = self._carry_topic(a, b, text) or moved
        return moved

    def _ask(self, node: Node, call: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []

        def event() -> None:
            call(lambda *answer: answers.append(answer))

        node.run(event)
        for _ in range(20):
            if answers:
                break
            self.work()
        return answers[0] if answers else None

    def _answer_schemas(self, a: Node, b: Node) -> Callable[[pb.CommandGeoSchemasWanted], None]:
        """Asks the source at once, and tells the destination as its next event."""

        def ask(wanted: pb.CommandGeoSchemasWanted) -> None:
            told = a.broker.links.schemas.answer(
                pb.CommandGeoSchemas(
                    request_id=1, topic=wanted.topic, schema_numbering=wanted.schema_numbering, versions=wanted.versions
                )
            )
            brought = pb.CommandGeoSchemasBrought(ticket=wanted.ticket, found=told.found, missing=told.missing)
            b.run(b.broker.links.destination.schemas.brought, 1, brought)

        return ask

    def _blocked(self, a: Node, b: Node, append: pb.CommandGeoAppend, answer: pb.CommandGeoAppendResponse) -> bool:
        """An entry cannot be stored there: settle what came before it, and tell the source why."""
        state = a.broker.links.sources[b.name].topics[append.topic]
        commit = pb.CommandGeoCommit(request_id=5, to=b.name)
        one = commit.commits.add(topic=append.topic, incarnation=append.incarnation)
        one.blocked, one.reason = answer.blocked, answer.reason
        if answer.HasField("position"):
            one.position.CopyFrom(answer.position)
        if answer.HasField("conflict"):
            one.conflict.CopyFrom(answer.conflict)
        c, s = state.cursor.c, state.cursor.s
        persisted = Position(answer.persisted.ledger, answer.persisted.entry)
        if persisted in map(Position, append.ledgers, append.entries):
            c = s = persisted
        one.cursor.c.ledger, one.cursor.c.entry = c
        one.cursor.s.ledger, one.cursor.s.entry = s
        one.cursor.gen = state.cursor.gen
        before = state.cursor
        self._ask(a, lambda reply: a.broker.links.commit(commit, reply))
        return state.cursor != before

    def _carry_topic(self, a: Node, b: Node, text: str) -> bool:
        source = a.broker.links.sources[b.name]
        state = source.topics[text]
        incarnation = state.log.incarnation
        destination = b.broker.links.destination
        partitions = source._host.partitions_of(text)
        query = pb.GeoWatermarkQuery(topic=text, incarnation=incarnation, partitions=partitions)
        for field, value in (("start", state.start),):
            if query.DESCRIPTOR.fields_by_name.get(field) is not None:
                getattr(query, field).ledger, getattr(query, field).entry = value
        hello = pb.CommandGeoWatermarks(request_id=1, source=a.name, uuid=f"uuid-{a.name}", counter=0, topics=[query])
        told = self._ask(b, lambda reply: destination.watermarks(hello, reply))
        if told is None:
            return False
        answer = told[0].topics[0]
        learn = pb.CommandGeoCommit(request_id=2, to=b.name)
        learn.learned.add(
            topic=text, incarnation=incarnation, watermark=answer.persisted, counter=told[0].counter, gen=state.cursor.gen,
            foreign=answer.foreign, blocked=answer.blocked or None, reason=answer.reason or None, there=answer.incarnation,
        )  # fmt: skip
        self._ask(a, lambda reply: a.broker.links.commit(learn, reply))
        if answer.blocked:
            return False
        request = pb.CommandGeoRead(request_id=3, to=b.name, topic=text, bytes_max=1 << 20)
        request.after.ledger, request.after.entry = state.cursor.c
        got = self._ask(a, lambda reply: source.read(request, reply))
        if got is None:
            return False
        response, buffers = got
        sent = state.cursor.s
        if response.sizes:
            append = pb.CommandGeoAppend(
                request_id=4, topic=text, source=a.name, uuid=f"uuid-{a.name}", incarnation=incarnation,
                gen=state.cursor.gen, ledgers=response.ledgers, entries=response.entries,
                first_indexes=response.first_indexes, counts=response.counts, sizes=response.sizes,
                schema_numbering=response.schema_numbering,
            )  # fmt: skip
            append.p.ledger, append.p.entry = sent
            ask = self._answer_schemas(a, b)
            stored = self._ask(b, lambda reply: destination.append(1, append, b"".join(buffers), reply, ask))
            if stored is not None and stored[0].blocked:
                return self._blocked(a, b, append, stored[0])
            if stored is None or stored[0].refused or stored[0].retry:
                return False
            sent = Position(response.ledgers[-1], response.entries[-1])
        commit = pb.CommandGeoCommit(request_id=5, to=b.name)
        one = commit.commits.add(topic=text, incarnation=incarnation)
        one.cursor.c.ledger, one.cursor.c.entry = response.end.ledger, response.end.entry
        one.cursor.s.ledger, one.cursor.s.entry = sent
        one.cursor.gen = state.cursor.gen
        before = state.cursor
        self._ask(a, lambda reply: a.broker.links.commit(commit, reply))
        return state.cursor != before
