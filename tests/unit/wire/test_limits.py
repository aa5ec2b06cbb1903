"""Every field of every command has a limit, and a command that breaks one is never decoded: it is told why, others go on."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from magnetar.wire import limits
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.connection import CLIENT_COMMANDS, CONNECT, GEO_REQUESTS
from magnetar.wire.frame import Refused
from magnetar.wire.frames import FrameDecoder, FrameError, encode
from magnetar.wire.limits import (
    COMMAND,
    COMMAND_BYTES_MAX,
    FIELDS_MAX,
    FREE_BYTES,
    FREE_IDS_BYTES,
    LIMITS,
    METADATA,
    METADATA_FREE_BYTES,
    NESTING_MAX,
    REQUESTS,
    UNKNOWN_BYTES_MAX,
    Plan,
)
from magnetar.wire.varint import varint

PING = encode(pb.BaseCommand(type=18, ping=pb.CommandPing()))
COMMAND_FIELDS = {field.number: field for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None}


def messages(descriptor: Descriptor, seen: set[str]) -> Iterator[Descriptor]:
    """It and what can be in it."""
    if descriptor.name not in seen:
        seen.add(descriptor.name)
        yield descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                yield from messages(field.message_type, seen)


def everything() -> list[Descriptor]:
    """All that a broker decodes of what comes from outside."""
    seen: set[str] = set()
    found = [one for kind in sorted(REQUESTS) for one in messages(COMMAND_FIELDS[kind].message_type, seen)]
    return [*found, *messages(pb.MessageMetadata.DESCRIPTOR, seen)]


def limited(field: FieldDescriptor) -> bool:
    """Whether it may hold any amount."""
    return field.is_repeated or field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}


def test_every_field_of_every_command_has_a_limit() -> None:
    wanted = {(one.name, field.name) for one in everything() for field in one.fields if limited(field)}
    declared = {(message, field) for message, fields in LIMITS.items() for field in fields}
    assert wanted == declared, f"without a limit, or without a field: {sorted(wanted ^ declared)}"


def test_every_request_is_known() -> None:
    assert CLIENT_COMMANDS | GEO_REQUESTS | {CONNECT} == REQUESTS


def test_what_is_not_walked_cannot_break_a_limit() -> None:
    assert COMMAND.free >= FREE_BYTES
    for kind in (10, 20):
        assert Plan(COMMAND_FIELDS[kind].message_type, {}).free >= FREE_IDS_BYTES
    assert METADATA.free >= METADATA_FREE_BYTES
    assert FREE_IDS_BYTES // 2 <= FIELDS_MAX and FREE_IDS_BYTES <= UNKNOWN_BYTES_MAX


def decoder(command_bytes_max: int = COMMAND_BYTES_MAX) -> FrameDecoder:
    """As a broker's connection has it."""
    made = FrameDecoder(1 << 23)
    made.limit(command_bytes_max)
    return made


def part(field: int, data: bytes) -> bytes:
    """A field of a length."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def framed(kind: int, body: bytes) -> bytes:
    """A command with that in its part."""
    raw = b"\x08" + varint(kind) + part(kind, body)
    return struct.pack(">II", len(raw) + 4, len(raw)) + raw


HEADS = {5: b"\x0a\x01t\x10\x07\x18\x09", 4: b"\x0a\x01t\x12\x01s\x18\x00\x20\x07\x28\x09", 23: b"\x0a\x01t\x10\x09"}
"""The required fields: id 7, request 9."""


def cases() -> Iterator[Any]:
    """A command, and the limit that it breaks."""
    pair = part(1, b"k") + part(2, b"v")
    yield pytest.param(5, part(6, pair) * 1_001, "CommandProducer.metadata has more than 1000 items", id="pairs")
    large = part(1, b"k") + part(2, b"v" * 70_000)
    yield pytest.param(5, part(6, large), "KeyValue.value has 70000 bytes, over 65536", id="value")
    yield pytest.param(4, part(6, b"n" * 513), "CommandSubscribe.consumer_name has 513 bytes, over 512", id="name")
    yield pytest.param(4, part(10, pair) * 1_001, "CommandSubscribe.metadata has more than", id="consumer")
    ranges = part(17, b"\x08\x01" + part(3, b"\x08\x01\x10\x02") * 5_000)
    yield pytest.param(4, ranges, "KeySharedMeta.hashRanges has more than 4096 items", id="ranges")
    yield pytest.param(23, part(8, pair) * 1_001, "CommandLookupTopic.properties has more than", id="lookup")
    yield pytest.param(5, b"\xa0\x06\x01" * 6_000, f"more than {UNKNOWN_BYTES_MAX} bytes in fields that", id="unknown")
    yield pytest.param(5, b"\x40\x01" * 11_000, f"more than {FIELDS_MAX} fields", id="many")
    yield pytest.param(5, part(900, b"x" * 20_000), f"more than {UNKNOWN_BYTES_MAX} bytes in", id="unknown text")
    yield pytest.param(5, part(7, part(3, b"x" * 600_000)), f"over {COMMAND_BYTES_MAX} (command_bytes_max)", id="bytes")
    nested = b"\x08\x01\x10\x01" + part(5, b"\x01" * 16_384)
    for _ in range(NESTING_MAX + 1):
        nested = b"\x08\x01\x10\x01" + part(7, nested)
    yield pytest.param(4, part(9, nested), f"parts nested deeper than {NESTING_MAX}", id="nested")
    words = b"\x08\x01\x10\x01" + part(5, b"\x01" * 20_000)
    yield pytest.param(4, part(9, words), "MessageIdData.ack_set has more than 16384 items", id="packed words")


@pytest.mark.parametrize(("kind", "body", "reason"), list(cases()))
def test_what_breaks_a_limit_comes_out_refused_and_the_rest_goes_on(kind: int, body: bytes, reason: str) -> None:
    refused, ping = decoder().feed(framed(kind, HEADS[kind] + body) + PING)
    assert isinstance(refused, Refused) and reason in refused.reason
    assert refused.command.type == kind and ping.command.type == 18
    part_ = getattr(refused.command, COMMAND_FIELDS[kind].name)
    assert part_.request_id == 9 and not part_.ListFields()[0][0].is_repeated


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (6, b"\x08\x01\x10\x01" + b"\x18\x01" * 20_000),
        (11, b"\x08\x01\x10\x01" * 9_000),
        (37, part(2, part(2, b"x" * 600_000))),
    ],
    ids=["SEND", "FLOW", "AUTH_RESPONSE"],
)
def test_what_nobody_waits_for_ends_the_connection(kind: int, body: bytes) -> None:
    with pytest.raises(FrameError, match=f"command of type {kind} that is refused: it has"):
        decoder().feed(framed(kind, body))


def test_parts_of_other_commands_count_as_unknown() -> None:
    raw = b"\x08\x05" + part(5, HEADS[5]) + part(3, b"\x0a\x01v" + part(4, b"")) * 3_000
    (refused,) = decoder().feed(struct.pack(">II", len(raw) + 4, len(raw)) + raw)
    assert isinstance(refused, Refused) and "not known here" in refused.reason


def test_the_largest_that_clients_send_is_taken() -> None:
    schema = pb.Schema(
        name="t", type=4, schema_data=b"x" * 262_144, properties=[pb.KeyValue(key="k", value="v" * 16_000)]
    )
    producer = pb.CommandProducer(topic="t" * 500, producer_id=1, request_id=2, schema=schema)
    producer.metadata.extend(pb.KeyValue(key=f"key-{number}", value="v" * 100) for number in range(100))
    (frame,) = decoder().feed(encode(pb.BaseCommand(type=5, producer=producer)))
    assert frame.command.producer == producer


def test_a_handshake_of_a_thousand_topics_is_taken_from_a_link() -> None:
    asked = pb.CommandGeoWatermarks(request_id=1, source="us-west", uuid="u" * 36, counter=0)
    for number in range(1_000):
        query = asked.topics.add(topic=f"persistent://public/default/{number}", incarnation=1 << 60, partitions=0)
        query.last.ledger = query.last.entry = query.start.ledger = query.start.entry = 1 << 40
        for cluster in range(30):
            query.retained.add(cluster=f"cluster-{cluster}", incarnation=1 << 60, index=1 << 40)
    made = decoder()
    made.limit(limits.LINK_COMMAND_BYTES_MAX, limits.LINK_FIELDS_MAX)
    (frame,) = made.feed(encode(pb.BaseCommand(type=1008, geo_watermarks=asked)))
    assert frame.command.geo_watermarks == asked


def test_what_lacks_required_fields_a_million_times_is_named_three_times() -> None:
    """Protobuf's own list of them takes seconds."""
    command = pb.BaseCommand(type=10)
    command.ack.MergeFromString(b"\x08\x01\x10\x00" + b"\x1a\x00" * 1_000_000)
    with pytest.raises(FrameError) as caught:
        FrameDecoder(1 << 23).feed(framed(10, command.ack.SerializePartialToString()))
    assert str(caught.value) == (
        "command of type 10 lacks the required ack.message_id[0].ledgerId, ack.message_id[0].entryId, ack.message_id[1].ledgerId"
    )
