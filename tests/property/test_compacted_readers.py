"""Who reads compacted and comes back sees what a table holds that never went away.

Keys are put and deleted, alone, in batches, without a key in between; the topic is compacted and unloaded, the broker is killed.
Readers, readers that are made at the last id that they have, and durable subscriptions come and go. Each keeps a table of what it
was given. At the end each of them has read everything, and has the same table as a dictionary that saw every message.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pytest

from magnetar.broker.publish.idempotency.withdrawals import Loser, Withdrawals
from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName, TopicName
from magnetar.storage.entries import EntryFlags, NewEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch
from tests.support.geoworld import TOPIC, Client, Node, World

KEYS: Final = "abcdef"
Change = tuple[str, bytes | None]
"""A key, "" for none, and its new value, None for a deletion."""


class Table:
    """A topic, and what it should amount to."""

    def __init__(self, **limits: Any) -> None:
        self.world = World("a", limits={"retention_interval_ms": 1_000, "ledger_entries_max": 5, **limits})
        self.node: Node = self.world["a"]
        self.node.create()
        self.world.settle()
        self.now: dict[str, bytes] = {}
        self.sent: dict[Position, list[Change]] = {}
        self._number = 0

    def keep_everything(self, threshold: int = 1 << 40) -> None:
        """Retention deletes nothing that compaction has not passed: the topic is one that is going to be compacted."""
        resources = self.node.broker.resources
        self.node.apply(resources.change_policies(NamespaceName("public", "default"), compaction_threshold=threshold))

    def retention(self, seconds: int | None, *, topic: bool = False) -> None:
        """For how long deletions are kept."""
        resources: Any = self.node.broker.resources
        value = {"compaction_delete_retention_seconds": seconds}
        if topic:
            self.node.apply(resources.change_topic_policies(TopicName.parse(TOPIC), **value))
        else:
            self.node.apply(resources.change_policies(NamespaceName("public", "default"), **value))

    def publish(self, *changes: Change, batch: bool = False, encrypted: bool = False) -> None:
        """One message each, or all of them as one batch."""
        entries = [list(changes)] if batch else [[change] for change in changes]
        made = [self._entry(each, batch, encrypted) for each in entries]
        positions: list[Position] = []

        def told(append: Any, error: str) -> None:
            assert not error
            positions.extend(entry.position for entry in append.entries)

        self.node.run(lambda: self.node.topic.append(made, told))
        self.world.settle()
        self.sent.update(zip(positions, entries, strict=True))
        for key, value in changes:
            if value is None:
                self.now.pop(key, None)
            elif key:
                self.now[key] = value

    def _entry(self, changes: list[Change], batch: bool, encrypted: bool) -> NewEntry:
        self._number += 1
        now_ms = self.world.now_ms
        meta = pb.MessageMetadata(producer_name="p", sequence_id=self._number, publish_time=now_ms)
        if encrypted:
            meta.encryption_keys.add(key="k", value=b"v")
        if batch:
            meta.num_messages_in_batch = len(changes)
            singles = [
                (pb.SingleMessageMetadata(partition_key=key or None, null_value=value is None), value or b"")
                for key, value in changes
            ]
            return NewEntry(metadata.build(meta, encode_batch(singles)), int(EntryFlags.BATCH), len(changes), now_ms)
        ((key, value),) = changes
        if key:
            meta.partition_key = key
        meta.null_value = value is None
        meta.uncompressed_size = len(value or b"")
        return NewEntry(metadata.build(meta, value or b""), int(EntryFlags.KEYED) if key else 0, 1, now_ms)

    def compact(self) -> None:
        self.node.control.topics.compact(TOPIC)
        self.world.settle()
        status = self.node.control.topics.compaction_status(TOPIC)
        assert status == {"status": "SUCCESS", "lastError": ""}


@dataclass
class View:
    """A client with a table: a reader, one that is made anew at the last id that it has, or a durable subscription."""

    table: Table
    kind: str
    name: str
    rows: dict[str, bytes] = field(default_factory=dict)
    seen: tuple[Position, int] | None = None
    deletions: int = 0
    client: Client | None = None
    consumer: int = 0
    lives: int = 0
    boot: int = 0

    @property
    def connected(self) -> bool:
        node = self.table.node
        return self.client is not None and self.boot == node.boots and self.client.number in node.clients

    def connect(self) -> None:
        """Come, or come back."""
        node, more = self.table.node, {}
        self.lives += 1
        name = f"{self.name}-{self.lives}" if self.kind == "anew" else self.name
        if self.kind != "durable":
            start = pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)
            if self.seen is not None:
                (ledger, entry), index = self.seen
                start = pb.MessageIdData(ledgerId=ledger, entryId=entry, batch_index=index)
            more = {"durable": False, "start_message_id": start}
        self.client, self.boot = node.client(), node.boots
        self.consumer = self.client.subscribe(name, replicated=False, read_compacted=True, **more)
        self.table.world.settle()
        answer = self.client.answered(1000 + self.consumer)
        assert answer is not None
        assert answer.type == 13, answer

    def disconnect(self) -> None:
        """The connection is cut."""
        if self.connected:
            assert self.client is not None
            self.table.node.clients.pop(self.client.number)
            self.table.node.run(self.table.node.broker.disconnected, self.client.number)
        self.client = None

    def read(self, messages: int, *, acknowledge: bool = True) -> None:
        """Ask for so many messages more, and enter what comes into the table."""
        if not self.connected or (self.client is not None and self.consumer in self.client.closed_consumers):
            self.disconnect()
            self.connect()
        assert self.client is not None
        self.client.flow(self.consumer, messages)
        self.table.world.settle()
        for message in self.client.take(self.consumer):
            self._enter(message.position, message.ack_set)
            if self.kind == "durable" and acknowledge:
                self.client.ack(self.consumer, message, cumulative=True)

    def _enter(self, position: Position, ack_set: tuple[int, ...]) -> None:
        changes = self.table.sent[position]
        for index, (key, value) in enumerate(changes):
            if ack_set and not ack_set[0] >> index & 1:
                continue
            if self.kind != "durable" and self.seen is not None and (position, index) <= self.seen:
                continue  # as clients do with what is at or below the id that they start at
            self.seen = position, index
            if not key:
                continue
            self.deletions += value is None
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


KINDS = ["reader", "anew", "durable"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("away", ["cut", "unloaded", "killed"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_deletion_that_compaction_has_passed_is_told_to_who_comes_back(kind: str, away: str, batch: bool) -> None:
    table = Table()
    table.publish(*[(key, b"1") for key in KEYS], batch=batch)
    view = View(table, kind, "view")
    view.read(100)
    table.world.advance(100)
    if away == "cut":
        view.disconnect()
    elif away == "unloaded":
        table.node.control_call(lambda done: table.node.control.topics.unload(TOPIC, done))
    else:
        table.node.restart()
    table.publish(("b", None), ("a", b"3"), ("", b"free"), batch=batch)
    table.compact()
    table.compact()
    view.read(100)
    assert view.rows == table.now
    assert "b" not in view.rows
    fresh = View(table, kind, "fresh")
    fresh.read(100)
    assert fresh.rows == table.now
    assert fresh.deletions == 0, "who begins has nothing to delete"


@pytest.mark.parametrize("seed", range(60))
def test_random_histories(seed: int) -> None:
    rng = random.Random(seed)
    table = Table()
    table.keep_everything()
    views = [View(table, kind, f"{kind}-{number}") for kind in KINDS for number in range(2)]
    for _ in range(60):
        match rng.choice(
            ("put", "put", "delete", "batch", "free", "compact", "cut", "read", "read", "calm", "restart")
        ):
            case "put":
                table.publish((rng.choice(KEYS), b"%d" % rng.randrange(100)), encrypted=rng.random() < 0.3)
            case "delete":
                table.publish((rng.choice(KEYS), None), encrypted=rng.random() < 0.3)
            case "batch":
                size = rng.randrange(1, 6)
                changes = [(rng.choice(KEYS), rng.choice((None, b"%d" % rng.randrange(100)))) for _ in range(size)]
                table.publish(*changes, batch=True, encrypted=rng.random() < 0.1)
            case "free":
                table.publish(("", b"free"))
            case "compact":
                table.compact()
            case "cut":
                rng.choice(views).disconnect()
            case "read":
                rng.choice(views).read(rng.choice((1, 2, 5, 100)), acknowledge=rng.random() < 0.8)
            case "calm":
                table.world.advance(rng.choice((10, 2_000)))
            case _ if rng.random() < 0.3:
                table.node.restart()
            case _:
                table.node.control_call(lambda done: table.node.control.topics.unload(TOPIC, done))
    for view in views:
        for _ in range(2):
            view.read(1_000)
        assert view.rows == table.now, f"{view.name} after {view.lives} lives"


@pytest.mark.parametrize("kind", KINDS)
def test_deletions_are_told_for_a_time(kind: str) -> None:
    """For `compaction-delete-retention` after the compaction that passed them, over restarts and more compactions."""
    table, views = Table(), []
    table.retention(60)
    table.publish(*[(key, b"1") for key in KEYS])
    for number in range(3):
        views.append(View(table, kind, f"view-{number}"))
        views[-1].read(100)
        views[-1].disconnect()
    table.publish(("b", None), ("a", b"2"))
    table.compact()
    table.world.advance(40_000)
    table.node.restart()
    table.compact()
    views[0].read(100)
    assert views[0].rows == table.now
    table.world.advance(15_000)
    views[1].read(100)
    assert views[1].rows == table.now
    table.world.advance(15_000)
    views[2].read(100)
    assert views[2].rows == table.now | {"b": b"1"}, "it was away for too long"
    assert not table.node.topic.compacted.deletions
    table.compact()
    table.node.restart()
    fresh = View(table, kind, "fresh")
    fresh.read(100)
    assert fresh.rows == table.now


@pytest.mark.parametrize(("seconds", "told"), [(0, False), (-1, True), (None, True)])
@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_the_policy_of_a_topic_goes_before_its_namespaces(seconds: int | None, told: bool, level: str) -> None:
    table = Table()
    table.retention(3_600 if level == "topic" else seconds)
    if level == "topic":
        table.retention(seconds, topic=True)
    table.publish(("a", b"1"), ("b", b"1"))
    view = View(table, "reader", "view")
    view.read(100)
    view.disconnect()
    table.publish(("b", None), ("a", b"2"))
    table.compact()
    table.world.advance(3_000_000)  # less than an hour
    view.read(100)
    assert view.rows == (table.now if told else table.now | {"b": b"1"})


def test_a_shorter_time_holds_for_deletions_that_are_there() -> None:
    table = Table()
    table.publish(("a", b"1"), ("b", b"1"), ("c", None), ("c", b"1"), ("b", None))
    table.compact()
    assert table.node.topic.compacted.deletions
    table.retention(0)
    table.world.advance(2_000)
    assert not table.node.topic.compacted.deletions
    stats = table.node.control.statistics.internal(TOPIC)
    assert stats["compactedLedger"]["entries"] == 2


def test_deletions_hold_ledgers_back_as_long_as_they_are_told() -> None:
    table = Table()
    table.retention(60)
    table.node.client().subscribe("all", replicated=False)
    table.publish(("a", b"1"), ("b", b"1"), ("b", None), ("a", None), ("", b"free"))
    table.publish(("c", b"1"))
    table.node.run(table.node.topic.subscriptions["all"].skip_all)
    table.compact()
    table.world.advance(30_000)
    assert len(table.node.topic.log.ledger_ids()) == 2, "who comes back has to be told"
    table.world.advance(40_000)
    assert len(table.node.topic.log.ledger_ids()) == 2, "a message without a key stays"
    table = Table()
    table.retention(60)
    table.node.client().subscribe("all", replicated=False)
    table.publish(("a", b"1"), ("b", b"1"), ("b", None), ("a", b"2"), ("a", None))
    table.publish(("c", b"1"))
    table.node.run(table.node.topic.subscriptions["all"].skip_all)
    table.compact()
    table.world.advance(30_000)
    assert len(table.node.topic.log.ledger_ids()) == 2
    table.world.advance(40_000)
    assert len(table.node.topic.log.ledger_ids()) == 1


def test_a_deletion_stays_behind_what_cannot_be_opened() -> None:
    """An encrypted batch may hold what it deletes, and everybody is given that."""
    table = Table()
    table.retention(0)
    table.publish(("a", b"1"), ("b", b"1"), batch=True, encrypted=True)
    table.publish(("b", None), ("c", b"1"), ("c", None))
    for _ in range(2):
        table.compact()
        table.world.advance(10_000)
        fresh = View(table, "reader", "fresh")
        fresh.read(100)
        assert fresh.rows == table.now
        fresh.disconnect()


def test_the_end_of_the_topic_as_somebody_sees_it() -> None:
    """Who is told of a deletion has it in front of the end, who is not has not: clients read on until they are there."""
    table = Table()
    table.publish(("a", b"1"), ("b", b"1"))
    back = View(table, "reader", "back")
    back.read(100)
    back.disconnect()
    table.publish(("b", None))
    table.compact()
    last = table.node.topic.log.last
    for view, end in ((View(table, "reader", "fresh"), Position(last.ledger, 0)), (back, last)):
        view.connect()
        assert view.client is not None
        command = pb.CommandGetLastMessageId(consumer_id=view.consumer, request_id=77)
        view.client.send(pb.BaseCommand(type=29, getLastMessageId=command))
        table.world.settle()
        answer = view.client.answered(77)
        assert answer is not None
        item = answer.getLastMessageIdResponse.last_message_id
        assert (item.ledgerId, item.entryId) == end
        view.read(100)
        assert view.seen == (end, 0)


def test_what_was_compacted_before_deletions_were_kept_is_still_read() -> None:
    table = Table()
    table.publish(("a", b"1"), ("b", b"1"), ("b", None))
    table.compact()
    key = "compacted/" + TOPIC
    record = msgspec.msgpack.decode(table.node.meta[key])
    gone = Withdrawals(table.node.topic.log)
    last = table.node.topic.log.last
    gone.add([Loser(Position(last.ledger, entry), -1) for entry in (1, 2)])
    table.node.meta[key] = msgspec.msgpack.encode({"horizon": record["horizon"], "gone": gone.encode()})
    table.node.restart()
    assert table.node.topic.compacted.horizon == last
    assert not table.node.topic.compacted.deletions
    fresh = View(table, "reader", "fresh")
    fresh.read(100)
    assert (fresh.rows, fresh.deletions) == ({"a": b"1"}, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_is_compacted_by_its_threshold(kind: str) -> None:
    table = Table()
    table.keep_everything(threshold=100)
    table.publish(*[(key, b"1") for key in KEYS])
    view = View(table, kind, "view")
    view.read(100)
    view.disconnect()
    table.publish(("b", None), ("a", b"3" * 200))
    table.world.advance(3_000)
    assert table.node.topic.compacted.horizon == table.node.topic.log.last
    view.read(100)
    assert view.rows == table.now
