"""Which messages compaction finds superfluous, and what is told of the last run: its figures, not what else happened."""

import zlib
from typing import Any

import pytest
from crc32c import crc32c

from magnetar.broker.topics import compaction
from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.errors import PreconditionFailed
from magnetar.storage.entries import EntryFlags, NewEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import encode_batch
from tests.support.geoworld import TOPIC, Node, World


def publish(node: Node, *keys: str) -> None:
    """One message a key, one entry each."""
    entries = []
    for number, key in enumerate(keys):
        meta = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=node.world.now_ms)
        meta.partition_key = key
        entries.append(NewEntry(metadata.build(meta, b"x"), int(EntryFlags(0)), 1, node.world.now_ms))
    node.run(lambda: node.topic.append(entries, lambda _append, error: None))
    node.world.settle()


def last_compaction(node: Node) -> dict[str, Any]:
    compaction: dict[str, Any] = node.control.statistics.topic(TOPIC)["compaction"]
    return {key.removeprefix("lastCompaction"): value for key, value in compaction.items()}


NEVER = {"RemovedEventCount": 0, "SucceedTimestamp": 0, "FailedTimestamp": 0, "DurationTimeInMills": 0}


def test_figures_are_of_the_last_run(node: Node) -> None:
    assert last_compaction(node) == NEVER
    publish(node, *"abcaab")
    node.hold_stores = True
    began_ms = node.world.now_ms
    node.control.topics.compact(TOPIC)
    node.world.advance(250)
    assert last_compaction(node) == NEVER, "it is over when it is on disk"
    node.hold_stores = False
    node.world.settle()
    ended_ms = began_ms + 250
    assert last_compaction(node) == NEVER | {
        "RemovedEventCount": 3,
        "SucceedTimestamp": ended_ms,
        "DurationTimeInMills": 250,
    }
    publish(node, "c")
    node.control.topics.compact(TOPIC)
    node.world.settle()
    assert last_compaction(node)["RemovedEventCount"] == 1, "not all there ever were"


def test_a_failure_leaves_the_time_of_the_last_success(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(node, *"ab")
    node.control.topics.compact(TOPIC)
    node.world.advance(10)
    success_ms = last_compaction(node)["SucceedTimestamp"]
    assert success_ms
    monkeypatch.setattr("magnetar.broker.topics.compaction.KEYS_MAX", 2)
    publish(node, *"abc")
    node.world.advance(1_000)
    node.control.topics.compact(TOPIC)
    node.world.settle()
    assert node.control.topics.compaction_status(TOPIC)["status"] == "ERROR"
    assert last_compaction(node)["SucceedTimestamp"] == success_ms
    assert last_compaction(node)["FailedTimestamp"] == node.world.now_ms > success_ms
    # Found superfluous all the same, and readers pass over it.
    assert last_compaction(node)["RemovedEventCount"] == 2


def test_a_topic_made_anew_was_never_compacted(node: Node) -> None:
    publish(node, *"aa")
    node.control.topics.compact(TOPIC)
    node.world.settle()
    assert node.control_call(lambda done: node.control.topics.delete(TOPIC, True, done)) is None
    node.create()
    node.world.settle()
    assert last_compaction(node) == NEVER


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_consumer_that_reads_compacted_and_is_refused_takes_nothing_from_others(node: Node, kind: int) -> None:
    publish(node, *"aab")
    node.control.topics.compact(TOPIC)
    node.world.settle()
    client, other = node.client(), node.client()
    plain = client.subscribe("s", kind=kind, replicated=False)
    node.world.settle()
    refused = other.subscribe("s", kind=kind & 2, replicated=False, read_compacted=True)
    node.world.settle()
    answer = other.answered(1000 + refused)
    assert answer is not None and "all or none read compacted" in answer.error.message
    client.flow(plain)
    node.world.settle()
    assert len(client.take(plain)) == 3


def test_who_comes_after_one_that_read_compacted_and_seeks_is_given_everything(node: Node) -> None:
    publish(node, *"aab")
    node.control.topics.compact(TOPIC)
    node.world.settle()
    client = node.client()
    first = client.subscribe("s", replicated=False, read_compacted=True)
    node.world.settle()
    client.flow(first)
    node.world.settle()
    assert len(client.take(first)) == 2
    other = node.client()
    assert other.subscribe("s", kind=1, replicated=False) and node.topic.subscriptions["s"].compacted is not None
    node.run(node.broker.disconnected, client.number)
    plain = other.subscribe("s", replicated=False)
    node.world.settle()
    other.seek(plain, EARLIEST)
    node.world.advance(1_000)
    again = other.subscribe("s", replicated=False)
    node.world.advance(1_000)
    other.flow(again)
    node.world.advance(1_000)
    assert len(other.take(again)) == 3


def test_a_subscription_that_reads_compacted_is_not_replicated() -> None:
    """What compaction leaves out is acknowledged by nobody: elsewhere it stood in the backlog for ever."""
    world = World("ab")
    node = world["a"]
    node.create()
    world.settle()
    client = node.client()
    client.subscribe("s", kind=1)
    world.advance(1_000)
    assert node.topic.subscriptions["s"].replicated
    node.run(node.broker.disconnected, client.number)
    client = node.client()
    for name in ("s", "t"):
        client.subscribe(name, kind=2, read_compacted=True)
    world.advance(1_000)
    assert [one.replicated for one in node.topic.subscriptions.values()] == [False, False]
    notes = [note.text for note in node.notes]
    with pytest.raises(PreconditionFailed, match="reads compacted"):
        node.control.replicated.set_replicated(TOPIC, "s", True, lambda _error: None)
    assert any("s of" in text and "no longer replicated" in text for text in notes)
    assert any("subscription t of" in text and "reads compacted" in text for text in notes)


def reads(node: Node) -> list[Position]:
    """What somebody who comes now and reads compacted is given."""
    client = node.client()
    consumer = client.subscribe("compacted", replicated=False, read_compacted=True)
    node.world.settle()
    client.flow(consumer)
    node.world.settle()
    return [message.position for message in client.take(consumer)]


def with_key_bytes(entry: bytes) -> bytes:
    """An entry whose key KEY is no UTF-8 any more, as only clients can make it that are not Python."""
    body = entry[6:].replace(b"KEY", b"\xff\xfeY")
    return metadata.MAGIC + crc32c(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("batch", [False, True])
def test_a_key_may_be_any_bytes(node: Node, batch: bool) -> None:
    entries = []
    for number in range(2):
        meta = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        body = b"x"
        if batch:
            meta.num_messages_in_batch = 1
            body = encode_batch([(pb.SingleMessageMetadata(partition_key="KEY"), b"x")])
        else:
            meta.partition_key = "KEY"
        flags = EntryFlags.BATCH if batch else EntryFlags.KEYED
        entries.append(NewEntry(with_key_bytes(metadata.build(meta, body)), int(flags), 1, 1))
    node.run(lambda: node.topic.append(entries, lambda _append, error: None))
    node.world.settle()
    publish(node, "KEY")
    node.control.topics.compact(TOPIC)
    node.world.settle()
    assert node.control.topics.compaction_status(TOPIC)["status"] == "SUCCESS"
    ledger = node.topic.log.last.ledger
    assert reads(node) == [Position(ledger, 1), Position(ledger, 2)]


@pytest.mark.parametrize(
    ("compression", "empty", "full", "encrypted"),
    [
        (1, b"\x00", b"\x10x", False),
        (2, zlib.compress(b""), zlib.compress(b"x"), False),
        (0, b"t" * 16, b"xt" * 16, True),
        (2, b"zt" * 16, b"xzt" * 16, True),
    ],
    ids=["lz4", "zlib", "encrypted", "encrypted-zlib"],
)
def test_an_empty_message_is_a_deletion_however_it_is_packed(
    node: Node, compression: int, empty: bytes, full: bytes, encrypted: bool
) -> None:
    """Java's and Go's clients say how large it is in any case; of the C++ client's encrypted ones nobody can tell."""
    entries = []
    for number, (key, body, size) in enumerate([("a", full, 1), ("b", full, 1), ("a", empty, 0)]):
        meta = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=key)
        meta.compression, meta.uncompressed_size = compression, size
        if encrypted:
            meta.encryption_keys.add(key="k", value=b"v")
        entries.append(NewEntry(metadata.build(meta, body), int(EntryFlags.KEYED), 1, 1))
    node.run(lambda: node.topic.append(entries, lambda _append, error: None))
    node.world.settle()
    node.control.topics.compact(TOPIC)
    node.world.settle()
    assert reads(node) == [Position(node.topic.log.last.ledger, 1)]


def batch_of(node: Node, keys: list[str], compression: int) -> NewEntry:
    """An entry with a message a key."""
    payload = encode_batch([(pb.SingleMessageMetadata(partition_key=key), b"x") for key in keys])
    meta = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=node.world.now_ms)
    meta.num_messages_in_batch = len(keys)
    if compression:
        meta.compression, meta.uncompressed_size = compression, len(payload)
        payload = zlib.compress(payload)
    return NewEntry(metadata.build(meta, payload), int(EntryFlags.BATCH), len(keys), node.world.now_ms)


@pytest.mark.parametrize(("compression", "count"), [(2, 3), (0, 10_000), (2, 10_000)], ids=["zlib", "long", "both"])
def test_batches_are_opened_beside_the_others_work_and_looked_at_in_steps(
    node: Node, monkeypatch: pytest.MonkeyPatch, compression: int, count: int
) -> None:
    entries = [batch_of(node, [f"k{number}" for number in range(count)], compression) for _ in range(2)]
    node.run(lambda: node.topic.append(entries, lambda _append, error: None))
    node.world.settle()
    at_work = False
    inside = 0
    events: list[int] = []
    real_walk, real_handle = compaction.walk_batch, node.handle

    def handle(event: Any, arguments: Any) -> None:
        nonlocal at_work
        at_work = True
        before = node.topic.compacted.gone.messages
        try:
            real_handle(event, arguments)
        finally:
            at_work = False
        events.append(node.topic.compacted.gone.messages - before)

    def walk(*arguments: Any) -> Any:
        nonlocal inside
        inside += at_work
        return real_walk(*arguments)

    monkeypatch.setattr(node, "handle", handle)
    monkeypatch.setattr(compaction, "walk_batch", walk)
    node.control.topics.compact(TOPIC)
    node.world.advance(1_000)
    assert last_compaction(node)["RemovedEventCount"] == count
    assert inside == 0, "a batch was opened within an event"
    assert max(events) <= compaction.MESSAGES_PER_STEP
