"""Clients that send the same keys, again and again, against the real topic: one message a key within a window, none lost.

The world: three clients, each with messages (single and batches) whose keys the others send, too; each sends everything
unanswered again whenever its connection breaks. The real `Publishing` and `Topic`, with keys, and in half of the worlds
with deduplication by number, too; a log that lands appends late, fails them, crashes with a part of them on the disk; a
link that brings messages with the same keys; keys switched off and on again.
"""

import os
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from magnetar.broker.publish.deduplication import Counters as DeduplicationCounters
from magnetar.broker.publish.deduplication import Status, TopicDeduplication
from magnetar.broker.publish.idempotency import saving as idempotency_saving
from magnetar.broker.publish.idempotency import snapshot as idempotency_snapshot
from magnetar.broker.publish.idempotency import table as idempotency_table
from magnetar.broker.publish.idempotency.judging import Counters
from magnetar.broker.publish.idempotency.snapshot import Stored, record_key
from magnetar.broker.publish.idempotency.topic import TopicIdempotency
from magnetar.broker.publish.opening import Elsewhere, InOrder, Openings
from magnetar.broker.publish.producers import AccessMode, Producer
from magnetar.broker.publish.publishing import Publishing
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.topics.limits import limits_of
from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.core.settings import BrokerConfig, DeduplicationConfig
from magnetar.effects.outbox import Compute, Note, Outbox, Read, Send, Write
from magnetar.metadata.policies.idempotency import IdempotencyPolicy
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.topic import NO_POLICIES
from magnetar.metadata.topic_records import TopicRecord
from magnetar.storage.cache import EntryCache
from magnetar.storage.entries import Append, EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.ledger import Ledger
from magnetar.storage.ledgerids import LedgerIds
from magnetar.storage.topiclog import RecoveredTopic, TopicLog
from magnetar.wire import commands, idempotency_keys
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import decode_batch, encode_batch
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder
from magnetar.wire.idempotency_keys import Found
from magnetar.wire.metadata import build, parse_metadata, split
from magnetar_sim.host.host import HeldLog, Host

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "200"))
NAME = TopicName.parse("persistent://public/default/t")
WINDOW_MS = 4_000
LIMITS = limits_of(NO_POLICIES, Policies(), BrokerConfig())
POLICY = IdempotencyPolicy(property="k", window_seconds=WINDOW_MS // 1000)


def keys_of(data: bytes) -> list[str]:
    metadata = parse_metadata(data)
    if metadata.HasField("num_messages_in_batch"):
        messages = decode_batch(data[split(data) :], metadata.num_messages_in_batch)
        return [pair.value for one, _ in messages for pair in one.properties]
    return [pair.value for pair in metadata.properties]


@dataclass
class Client:
    """One producer's program; also the `session` that the broker knows of it."""

    world: "World"
    number: int
    unanswered: deque[Frame] = field(default_factory=deque)
    wire: deque[Frame] = field(default_factory=deque)
    producer: Producer | None = None
    next: int = 0
    address: str = "here"
    waiting: int = 0

    @property
    def outbox(self) -> Outbox:
        return self.world.outbox

    @property
    def broker(self) -> "Client":
        return self

    def publishing(self, *_: object) -> None:
        """Back-pressure: none here."""

    def send(self, _buffer: bytes) -> None:
        """Errors: every one of them is followed by the producer's end, or by the world's."""

    def evict_producer(self, producer: Producer) -> None:
        assert producer is self.producer
        self.lose()

    def lose(self) -> None:
        if self.producer is not None:
            self.in_order.forget(self.producer)
            assert not self.in_order and not self.waiting, "something waits of nobody"
            self.world.topic.producers.remove(self.producer)
            self.producer = None
            self.wire.clear()

    def connect(self) -> None:
        topic = self.world.topic
        if self.producer is not None or topic.write_failed or self.world.recovering():
            return
        self.producer = Producer(self.number, 0, 0, f"p{self.number}", AccessMode.SHARED, 0, True)
        topic.producers.add(self.producer)
        self.in_order = InOrder(self.world.openings, self.number)
        if topic.deduplication is not None:
            self.producer.numbers = topic.deduplication.numbers.attach(self.producer.name, self.outbox.now_ms)
        self.wire = deque(self.unanswered)

    def publish(self) -> None:
        rng = self.world.rng
        metadata = pb.MessageMetadata(producer_name=f"p{self.number}", sequence_id=self.next, publish_time=1)
        payload, count = b"", 1
        if rng.random() < 0.4:
            count = rng.randint(1, 4)
            metadata.num_messages_in_batch = count
            messages = []
            for _ in range(count):
                one = pb.SingleMessageMetadata(payload_size=0)
                one.properties.add(key="k", value=self.world.some_key())
                messages.append((one, b""))
            payload = encode_batch(messages)
        else:
            metadata.properties.add(key="k", value=self.world.some_key())
        command = pb.BaseCommand(type=6)
        command.send.producer_id, command.send.sequence_id = 0, self.next
        frame = Frame(command, build(metadata, payload))
        self.next += count
        self.unanswered.append(frame)
        if self.producer is not None:
            self.wire.append(frame)

    def read(self) -> None:
        """The broker reads some of what was sent."""
        if self.producer is None or not self.wire:
            return
        frames = [self.wire.popleft() for _ in range(self.world.rng.randint(1, len(self.wire)))]
        if self.world.broken == "overtaking":
            self.in_order = InOrder(self.world.openings, self.number)
        self.in_order.publish(self, self.producer, frames)

    def take(self, producer: Producer, frames: list[Frame], found: Found | None) -> Elsewhere | None:
        return Publishing(self, producer, self.world.topic).take(frames, 1 << 20, found)  # type: ignore[arg-type]

    def throttled(self, size: int) -> None:
        self.waiting += size
        assert self.waiting >= 0, "more bytes went on than waited"

    def receipt(self, sequence: int, position: Position) -> None:
        assert self.unanswered[0].command.send.sequence_id == sequence, "receipts out of order"
        frame = self.unanswered.popleft()
        # Nobody sends anything that is older than half a window: what is answered must be there.
        for key in keys_of(frame.payload):
            assert any(key in keys_of(entry.data) for entry in self.world.disk), f"{key} was answered and is not stored"
        if position.ledger >= 0:
            entry = next(one for one in self.world.disk if one.position == position)
            assert set(keys_of(entry.data)) & set(keys_of(frame.payload)), "answered with the id of another message"


class AnswersAtOnce(Topic):
    """What the broker must not do: vouch for a message that is not in the log yet."""

    def answer(self, producer: Producer, receipt: tuple[int, int], stored: Position) -> None:
        """At once."""
        buffer = commands.receipts(producer.producer_id, [(*receipt, *stored)])
        self.outbox.put(Send(producer.connection, [buffer]))


class World:
    def __init__(self, seed: int, *, broken: str = "") -> None:
        self.rng = random.Random(seed)
        self.outbox = Outbox()
        self.outbox.now_ms = 2**32 - 3_000
        self.ids = LedgerIds(7)
        self.disk: list[StoredEntry] = []
        self.opened = 0
        self.store: dict[str, bytes] = {}
        self.loads = 0
        self.numbers = self.rng.random() < 0.5
        self.broken = broken
        self.keys = 0
        self.foreign = 0
        self.clients = [Client(self, n) for n in range(3)]
        self.start()

    # ------------------------------------------------------------------------------------------------------ the broker

    def start(self) -> None:
        """From what the disk holds."""
        self.flying = HeldLog(self.stored, lambda _append: self.topic.fail(), self.answer)
        self.reads: deque[Read] = deque()
        self.computes: deque[Compute] = deque()
        self.host = Host(
            self.outbox,
            {
                Write: self.flying.hold,
                Read: self.reads.append,
                Compute: self.computes.append,
                Note: self.noted,
                Send: lambda effect: self.receipts(self.clients[effect.connection], effect.buffers),
            },
            self.store,
        )
        self.openings = Openings(self.outbox)
        recovered = RecoveredTopic()
        for entry in self.disk:
            ledger = recovered.ledgers.setdefault(entry.ledger, Ledger(entry.ledger, entry.broker_time))
            ledger.add(0, len(entry.data), entry.flags, entry.count, 1, entry.broker_time, marker=False)
        log = TopicLog("t", 7, self.ids, EntryCache(0), ledger_entries_max=9, recovered=recovered, fresh=False)
        self.topic = (AnswersAtOnce if self.broken == "no wait" else Topic)(
            NAME,
            TopicRecord(incarnation=7, created_ms=1),
            log,
            self.outbox,
            limits=LIMITS,
            on_confirmed=lambda _topic: None,
        )
        if self.numbers:
            self.topic.deduplication = TopicDeduplication(
                self.outbox,
                "t",
                log,
                flusher=CursorFlusher(self.outbox, 1_000, lambda _keys: ()),
                settings=DeduplicationConfig(),
                counters=DeduplicationCounters(),
                when_drained=self.topic.when_drained,
            )
            self.topic.deduplication.start(None)
        self.switch_on(starting=True)

    def stored_keys(self, keys: TopicIdempotency) -> Stored | None:
        if record_key("t") not in self.store:
            return None
        stored = Stored("t", self.store)
        if not keys.fits(stored.record):
            return None
        self.loads += 1
        return stored

    def switch_on(self, *, starting: bool = False) -> None:
        topic = self.topic
        if topic.idempotency is not None:
            topic.idempotency.stop()
        topic.idempotency = TopicIdempotency(
            self.outbox,
            "t",
            topic.log,
            policy=POLICY,
            counters=Counters(),
            when_drained=topic.when_drained,
            cluster="a",
            withdrawals=topic.withdrawals,
            withdraw=topic.withdraw,
            openings=self.openings,
        )
        for client in self.clients:
            client.lose()
        if self.broken == "no replay":
            topic.idempotency.status = Status.ENABLED
        else:
            topic.idempotency.start(self.stored_keys(topic.idempotency) if starting else None)
        self.host.pump()

    def recovering(self) -> bool:
        keys, numbers = self.topic.idempotency, self.topic.deduplication
        assert keys is not None and keys.status is not Status.FAILED
        return keys.status is Status.RECOVERING or (numbers is not None and numbers.status is Status.RECOVERING)

    def noted(self, note: Note) -> None:
        assert "damaged" not in note.text, note.text

    def receipts(self, client: Client, buffers: list[Any]) -> None:
        decoder = FrameDecoder(1 << 20)
        for frame in decoder.feed(b"".join(bytes(one) for one in buffers)):
            if frame.command.HasField("send_receipt") and client.producer is not None:
                told = frame.command.send_receipt
                ledger, entry = (
                    value if value < 2**63 else -1 for value in (told.message_id.ledgerId, told.message_id.entryId)
                )
                client.receipt(told.sequence_id, Position(ledger, entry))

    def apply(self) -> None:
        """A transaction of the metadata store is done; now and then one fails."""
        stores = self.host.store
        if stores.waiting:
            failed = self.rng.random() < 0.1 and bool(stores.waiting[0].puts)
            stores.answer("the store failed" if failed else "")

    def save(self) -> None:
        assert self.topic.idempotency is not None
        if self.broken == "saves what is in flight":
            self.topic.idempotency._durable = self.topic.idempotency.table.tail
        self.topic.idempotency.save()

    def tick(self) -> None:
        if self.host.timers.waiting:
            self.host.timers.pop()(self.outbox.now_ms)

    def compute(self) -> None:
        assert len(self.computes) <= 1, "more than one is opened at a time"
        if self.computes:
            effect = self.computes.popleft()
            self.opened += 1
            effect.then(effect.work())

    def answer_read(self) -> None:
        if self.reads:
            read = self.reads.popleft()
            found = [one for one in self.disk if one.position >= read.start][: self.rng.randint(1, 9)]
            read.then(found, "")

    def stored(self, append: Append) -> None:
        self.topic.confirm(append, Location(0, 0))
        self.disk += append.entries

    def answer(self, append: Append, error: str) -> None:
        append.token(append, error)
        if not error:
            self.topic.answer_behind(append)
            self.topic.dispatch()

    def land(self) -> None:
        self.flying.sync(1)

    def fail(self) -> None:
        """An append fails, and with it all that are in flight."""
        if not self.flying.waiting:
            return
        keys = self.topic.idempotency
        assert keys is not None
        if self.broken == "keys stay":
            keys.fail = lambda: None  # type: ignore[method-assign]
        self.flying.fail("the disk failed")
        for client in self.clients:
            client.lose()
        self.topic.failed_all()
        self.topic.healed()

    def crash(self) -> None:
        """What was in flight may or may not have reached the disk: a prefix of it has."""
        for client in self.clients:
            client.lose()
        for append in self.flying.take(self.rng.randint(0, len(self.flying.waiting))):
            self.disk += append.entries
        for _ in range(self.rng.randint(0, len(self.host.store.waiting))):
            self.apply()
        self.outbox.drain()
        self.start()

    def link(self) -> None:
        """A message comes from another cluster, with a key that may be in use here, too."""
        metadata = pb.MessageMetadata(producer_name="far", sequence_id=self.foreign, publish_time=1)
        metadata.replicated_from = "b"
        metadata.properties.add(key="k", value=self.some_key())
        self.foreign += 1
        flags = int(EntryFlags.REPLICATED)
        entry = NewEntry(build(metadata, b""), flags, 1, 1, "b", 1, self.foreign, Position(3, self.foreign))
        if not self.topic.write_failed:
            self.topic.append([entry], lambda *_: None)

    # ------------------------------------------------------------------------------------------------------------ runs

    def some_key(self) -> str:
        if self.rng.random() < 0.4:
            self.keys += 1
        return f"k{max(0, self.keys - self.rng.randint(0, 5))}"

    def check(self) -> None:
        assert self.topic.idempotency is not None
        self.topic.validate()
        self.topic.idempotency.validate()
        self.openings.validate()
        seen: dict[str, int] = {}
        for entry in self.disk:
            for key in keys_of(entry.data):
                if not entry.origin and key in seen:
                    assert entry.broker_time - seen[key] >= WINDOW_MS, f"{key} is stored twice"
                seen[key] = entry.broker_time

    def step(self, action: Any) -> None:
        action()
        self.host.pump()

    def run(self, steps: int) -> None:
        actions = [
            (5, lambda: self.rng.choice(self.clients).publish()),
            (6, lambda: self.rng.choice(self.clients).read()),
            (7, self.land),
            (0.5, self.fail),
            (0.6, self.crash),
            (0.5, lambda: self.rng.choice(self.clients).lose()),
            (5, lambda: self.rng.choice(self.clients).connect()),
            (1, self.link),
            (3, self.answer_read),
            (4, self.compute),
            (2, self.save),
            (5, self.apply),
            (3, self.tick),
            (0.3, self.switch_on),
            (2, self.later),
        ]
        for _ in range(steps):
            self.step(self.rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0])
            self.check()
        for _ in range(400):
            for client in self.clients:
                self.step(client.connect)
                self.step(client.read)
            for action in (self.answer_read, self.compute, self.land, self.apply, self.tick):
                self.step(action)
            if not any(client.unanswered for client in self.clients):
                break
        self.check()
        assert not any(client.unanswered for client in self.clients), "a message is never answered"

    def later(self) -> None:
        self.outbox.now_ms += self.rng.choice((1, 10, 100, 1_000, 3_000))
        assert self.topic.idempotency is not None
        self.topic.idempotency.tick(self.outbox.now_ms)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few keys fill some."""
    for module in (idempotency_table, idempotency_snapshot, idempotency_saving):
        monkeypatch.setattr(module, "BLOCK_SHIFT", 2)
    monkeypatch.setattr(idempotency_saving, "SAVE_BLOCKS_MAX", 1)


@pytest.fixture(autouse=True)
def _large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that half of the batches are opened off the event loop."""
    monkeypatch.setattr(idempotency_keys, "OPEN_MESSAGES_MAX", 2)


def test_one_message_a_key() -> None:
    opened = 0
    for seed in range(SEEDS):
        world = World(seed)
        try:
            world.run(150)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        opened += world.opened
    assert opened > SEEDS, "batches are opened off the event loop"


@pytest.mark.parametrize("broken", ["keys stay", "no replay", "no wait", "saves what is in flight", "overtaking"])
def test_the_check_can_fail(broken: str) -> None:
    """Keys that stay after a failed append; keys that a start forgets; answers that do not wait for what is in flight; messages
    that do not wait for a batch before them.
    """
    for seed in range(400):
        try:
            World(seed, broken=broken).run(150)
        except AssertionError:
            return
    raise AssertionError(f"{broken}: not seen")
