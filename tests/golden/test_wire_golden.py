"""Bytes that the official client sent once (record.py): they are understood, and come out again the same."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire.batches import decode_batch
from magnetar.wire.connection import ServerHandshake
from magnetar.wire.frame import Frame
from magnetar.wire.frames import FrameDecoder, encode_with_payload

CONTENT = b"payload " * 40


class Recording(NamedTuple):
    """One connection of one scenario."""

    name: str
    data: bytes
    sha256: str
    commands: list[int]

    @property
    def frames(self) -> list[Frame]:
        return FrameDecoder().feed(self.data)

    def of(self, kind: int) -> list[Frame]:
        return [frame for frame in self.frames if frame.command.type == kind]

    def entries(self) -> list[metadata.Inspected]:
        return [metadata.inspect(frame.payload, message_bytes_max=5 << 20) for frame in self.of(6)]


def recordings() -> Iterator[Recording]:
    for index in sorted(Path(__file__).parent.glob("wire/*/index.json")):
        for item in json.loads(index.read_text())["recordings"]:
            for link in item["connections"]:
                data = (index.parent / link["file"]).read_bytes()
                yield Recording(f"{index.parent.name}/{link['file']}", data, link["sha256"], link["commands"])


ALL = list(recordings())


def scenario(name: str) -> list[Recording]:
    """The recording of this scenario by each client version."""
    found = [item for item in ALL if item.name.endswith(f"/{name}.bin")]
    assert found, name
    return found


def unknown(message: Message) -> list[str]:
    """Fields that our .proto does not have, at any depth."""
    found = [f"{message.DESCRIPTOR.name}.{field.field_number}" for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in value if field.is_repeated else (value,):
                found += unknown(item)
    return found


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
class TestEveryRecording:
    def test_it_was_not_touched(self, item):
        assert hashlib.sha256(item.data).hexdigest() == item.sha256

    def test_it_is_understood(self, item):
        assert [frame.command.type for frame in item.frames] == item.commands
        assert [name for frame in item.frames for name in unknown(frame.command)] == []
        assert [name for seen in item.entries() for name in unknown(seen.metadata)] == []

    def test_it_comes_out_again_byte_for_byte(self, item):
        again = [b"".join(encode_with_payload(frame.command, [frame.payload])) for frame in item.frames]
        assert b"".join(again) == item.data

    def test_byte_by_byte_is_the_same(self, item):
        decoder = FrameDecoder()
        frames = [frame for at in range(len(item.data)) for frame in decoder.feed(item.data[at : at + 1])]
        assert frames == item.frames

    def test_it_is_legal(self, item):
        handshake = ServerHandshake(b"token")
        first, *rest = item.frames
        assert handshake.connect(first.command).link is False
        for frame in rest:
            handshake.check(frame.command)
        for seen in item.entries():
            metadata.check_client_entry(seen, marker=False)

    def test_entries_are_kept_as_they_came(self, item):
        for frame, seen in zip(item.of(6), item.entries(), strict=True):
            assert seen.payload == frame.payload
            assert metadata.build(seen.metadata, seen.payload[seen.metadata_end :]) == frame.payload
            marked = metadata.with_replicated_from(frame.payload, "us-west")
            assert metadata.without_replication(marked) == metadata.without_replication(frame.payload)


@pytest.mark.parametrize("item", scenario("send-plain"), ids=lambda item: item.name)
def test_what_a_single_message_carries(item):
    seen = [entry.metadata for entry in item.entries()]
    flags = [EntryFlags(entry.flags) for entry in item.entries()]
    assert not any(one.HasField("num_messages_in_batch") for one in seen)
    assert {(pair.key, pair.value) for pair in seen[1].properties} == {("k", "v"), ("", "empty"), ("ü", "☃")}
    assert (seen[2].partition_key, flags[2]) == ("key", EntryFlags.KEYED)
    assert seen[3].ordering_key == b"order"
    assert metadata.sticky_key(item.entries()[3].payload) == b"order"
    assert seen[4].sequence_id == item.of(6)[4].command.send.sequence_id == 1000
    assert seen[5].event_time == 1_700_000_000_000
    assert (list(seen[6].replicate_to), flags[6]) == (["us-west", "us-east"], EntryFlags.RESTRICTED)
    assert (list(seen[7].replicate_to), flags[7]) == (["__local__"], EntryFlags.RESTRICTED)
    assert (seen[8].deliver_at_time, flags[8]) == (4_000_000_000_000, EntryFlags.DELAYED)
    assert item.of(5)[0].command.producer.producer_name == "golden-named"


@pytest.mark.parametrize("item", scenario("send-batched") + scenario("send-batched-by-key"), ids=lambda item: item.name)
def test_batches_hold_what_was_sent(item):
    numbers = []
    for entry in item.entries():
        assert EntryFlags(entry.flags) & EntryFlags.BATCH
        for single, body in decode_batch(entry.payload[entry.metadata_end :], entry.count):
            assert body == CONTENT
            number = int(single.properties[0].value)
            assert single.partition_key == f"key-{number % 2}"
            numbers.append(number)
    assert sorted(numbers) == list(range(6))


@pytest.mark.parametrize(
    ("name", "code"), [("send-lz4", 1), ("send-zlib", 2), ("send-zstd", 3), ("send-snappy", 4), ("send-batched-lz4", 1)]
)
def test_compressed_payloads_pass_through(name, code):
    for item in scenario(name):
        for entry in item.entries():
            body = entry.payload[entry.metadata_end :]
            assert entry.metadata.compression == code
            assert len(body) < entry.metadata.uncompressed_size
            if code == 2:
                assert zlib.decompress(body) == CONTENT


@pytest.mark.parametrize("item", scenario("send-chunked"), ids=lambda item: item.name)
def test_chunks(item):
    entries = item.entries()
    assert [entry.metadata.chunk_id for entry in entries] == [0, 1, 2]
    assert {(entry.metadata.uuid, entry.metadata.num_chunks_from_msg) for entry in entries} == {
        (entries[0].metadata.uuid, 3)
    }
    assert all(entry.flags == EntryFlags.CHUNK and entry.count == 1 for entry in entries)
    assert b"".join(entry.payload[entry.metadata_end :] for entry in entries) == bytes(range(256)) * 10


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("consume-exclusive", 0),
        ("consume-shared", 1),
        ("consume-failover", 2),
        ("consume-key-shared", 3),
        ("consume-key-shared-sticky", 3),
    ],
)
def test_subscriptions(name, kind):
    for item in scenario(name):
        (frame,) = item.of(4)
        command = frame.command.subscribe
        assert command.subType == kind
        assert command.durable
        assert command.HasField("replicate_subscription_state")
        assert command.replicate_subscription_state == (name == "consume-shared")
        assert command.read_compacted == (name == "consume-failover")
        if name.endswith("sticky"):
            ranges = [(one.start, one.end) for one in command.keySharedMeta.hashRanges]
            assert (command.keySharedMeta.keySharedMode, ranges) == (1, [(0, 32767), (32768, 65535)])


@pytest.mark.parametrize("item", scenario("consume-batch-index-partly"), ids=lambda item: item.name)
def test_acknowledged_messages_of_a_batch(item):
    """A set bit is a message that is not acknowledged: of three, first all but the second; then all but the last."""
    sets = [[(one.entryId, list(one.ack_set)) for one in frame.command.ack.message_id] for frame in item.of(10)]
    assert sets == [[(3, [0b101])], [(0, []), (3, [0b100])]]


@pytest.mark.parametrize("item", scenario("consume-seek"), ids=lambda item: item.name)
def test_seeks(item):
    by_id, by_time, earliest, latest = (frame.command.seek for frame in item.of(28))
    assert (by_id.message_id.ledgerId, by_id.message_id.entryId) == (7, 0)
    assert (by_time.HasField("message_id"), by_time.message_publish_time) == (False, 1_700_000_000_001)
    assert earliest.message_id.ledgerId == earliest.message_id.entryId == 2**64 - 1
    assert latest.message_id.ledgerId == latest.message_id.entryId == 2**63 - 1


@pytest.mark.parametrize("item", scenario("consume-redeliver"), ids=lambda item: item.name)
def test_redelivery(item):
    some, everything = (frame.command.redeliverUnacknowledgedMessages for frame in item.of(20))
    assert [one.entryId for one in some.message_ids] == [0, 1]
    assert not everything.message_ids


@pytest.mark.parametrize("item", scenario("reader"), ids=lambda item: item.name)
def test_readers_are_not_durable(item):
    first, second = (frame.command.subscribe for frame in item.of(4))
    assert (first.durable, first.start_message_id.ledgerId) == (False, 2**64 - 1)
    assert (second.durable, second.start_message_id.ledgerId, second.start_message_id.entryId) == (False, 7, 0)


@pytest.mark.parametrize("item", scenario("token"), ids=lambda item: item.name)
def test_a_token(item):
    connect = item.frames[0].command.connect
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"golden-token")


@pytest.mark.parametrize("item", scenario("schema-json"), ids=lambda item: item.name)
def test_a_schema(item):
    assert item.of(5)[0].command.producer.schema.type == 2
    assert json.loads(item.of(4)[0].command.subscribe.schema.schema_data)["type"] == "record"
