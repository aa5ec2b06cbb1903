"""What is put together by hand against what protobuf makes; batches and markers there and back, and against junk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import ProtocolError
from magnetar.core.ids import OriginKey, Position
from magnetar.wire import batches, commands, frames, markers, metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.varint import U64 as MASK
from tests.property.wire_strategies import NAMES, PAIRS, SIGNED, TEXT, U64, only_documented_errors

IDS = st.integers(-1, 2**63 - 1)
POSITIONS = st.builds(Position, IDS, IDS)


@given(U64, st.lists(st.tuples(U64, U64, IDS, IDS), max_size=6))
def test_receipts_are_what_protobuf_makes(producer, items):
    want = b"".join(
        frames.encode(
            pb.BaseCommand(
                type=7,
                send_receipt=pb.CommandSendReceipt(
                    producer_id=producer,
                    sequence_id=sequence,
                    message_id=pb.MessageIdData(ledgerId=ledger & MASK, entryId=entry & MASK),
                    highest_sequence_id=highest or None,
                ),
            )
        )
        for sequence, highest, ledger, entry in items
    )
    assert commands.receipts(producer, items) == want


@given(
    consumer=U64,
    ledger=IDS,
    entry=IDS,
    partition=st.integers(-1, 2**31 - 1),
    redelivery=st.integers(0, 2**32 - 1),
    ack_set=st.one_of(st.none(), st.lists(SIGNED, max_size=4)),
    epoch=st.one_of(st.none(), U64),
    payload=st.binary(max_size=30),
)
def test_message_headers_are_what_protobuf_makes(
    consumer, ledger, entry, partition, redelivery, ack_set, epoch, payload
):
    message = pb.CommandMessage(
        consumer_id=consumer,
        message_id=pb.MessageIdData(ledgerId=ledger & MASK, entryId=entry & MASK),
        redelivery_count=redelivery or None,
        ack_set=ack_set or [],
        consumer_epoch=epoch,
    )
    if partition >= 0:
        message.message_id.partition = partition
    want = b"".join(frames.encode_with_payload(pb.BaseCommand(type=9, message=message), [payload]))
    header = commands.message_header(consumer, ledger, entry, partition, redelivery, ack_set, epoch, len(payload))
    assert header + payload == want


SINGLE = st.builds(
    pb.SingleMessageMetadata,
    payload_size=st.just(0),
    properties=st.lists(PAIRS, max_size=2),
    partition_key=st.one_of(st.none(), TEXT),
    sequence_id=st.one_of(st.none(), U64),
)


@given(st.lists(st.tuples(SINGLE, st.binary(max_size=20)), min_size=1, max_size=6))
def test_batches_there_and_back(messages):
    raw = batches.encode_batch(messages)
    got = batches.decode_batch(raw, len(messages))
    assert [body for _, body in got] == [body for _, body in messages]
    for (seen, body), (want, _) in zip(got, messages, strict=True):
        want.payload_size = len(body)
        assert seen == want
    for wrong in (len(messages) - 1, len(messages) + 1):
        with pytest.raises(ProtocolError):
            batches.decode_batch(raw, wrong)
    with pytest.raises(ProtocolError):
        batches.decode_batch(raw[:-1], len(messages))
    with pytest.raises(ProtocolError):
        batches.decode_batch(raw + b"\0", len(messages))


@given(st.binary(max_size=60), st.integers(-2, 70_000))
def test_batches_of_junk(junk, count):
    only_documented_errors(lambda: batches.decode_batch(junk, count))


CLUSTERS = st.dictionaries(NAMES, POSITIONS, max_size=4)
RUNS = st.sets(st.integers(0, markers.INDEX_MAX), min_size=2, max_size=6).map(
    lambda bounds: list(zip(*[iter(sorted(bounds)[: len(bounds) & ~1])] * 2, strict=True))
)
CLUSTER_NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
HELD = st.dictionaries(st.builds(OriginKey, CLUSTER_NAMES, st.integers(0, markers.INDEX_MAX)), RUNS, max_size=3)
SEEKS = st.lists(
    st.builds(
        markers.Epoch, st.just(1), st.integers(1, markers.TIME_MS_MAX), CLUSTER_NAMES, st.integers(0, markers.INDEX_MAX)
    ),
    max_size=3,
    unique_by=lambda seek: seek.cluster,
).map(lambda seeks: tuple(sorted(seeks, key=lambda seek: seek.cluster)))
CLAIMS = st.none() | st.builds(markers.Claim, HELD, st.none() | HELD, SEEKS, st.booleans())
MARKERS = st.one_of(
    st.builds(markers.SnapshotRequest, NAMES, NAMES, st.integers(0, 2)),
    st.builds(markers.SnapshotResponse, NAMES, NAMES, POSITIONS, st.integers(0, 2)),
    st.builds(markers.Snapshot, NAMES, POSITIONS, CLUSTERS, HELD),
    st.builds(markers.Update, TEXT, CLUSTERS, CLAIMS),
)


@given(MARKERS, st.integers(0, 2**62), st.lists(NAMES, max_size=2))
def test_markers_there_and_back(marker, now, replicate_to):
    entry = markers.build_marker(marker, now, replicate_to)
    assert markers.parse_marker(entry) == marker
    seen = metadata.inspect(entry, message_bytes_max=1 << 20)
    assert (seen.count, seen.publish_time, list(seen.metadata.replicate_to)) == (0, now, replicate_to)
    assert not seen.metadata.HasField("num_messages_in_batch")
    assert markers.parse_marker(metadata.with_replicated_from(entry, "eu")) == marker


@given(st.integers(-5, 30), st.binary(max_size=40))
def test_markers_of_junk(kind, junk):
    only_documented_errors(lambda: markers.parse_body(kind, junk))
