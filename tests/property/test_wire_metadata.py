"""Entries: what is built can be read, what is damaged is refused, what a link adds changes nothing else."""

import pytest
from crc32c import crc32c
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.property.wire_strategies import METADATA, NAMES, only_documented_errors

LIMIT = 1 << 20
BODIES = st.binary(max_size=50)


def twin(payload: bytes) -> tuple[pb.MessageMetadata, bytes]:
    """The dumb twin: take an entry apart step by step."""
    assert payload[:2] == b"\x0e\x01"
    assert int.from_bytes(payload[2:6], "big") == crc32c(payload[6:])
    size = int.from_bytes(payload[6:10], "big")
    return pb.MessageMetadata.FromString(payload[10 : 10 + size]), payload[10 + size :]


@given(METADATA, BODIES)
def test_built_entries_are_read_back(seen, body):
    entry = metadata.build(seen, body)
    got = metadata.inspect(entry, message_bytes_max=LIMIT)
    assert twin(entry) == (seen, body)
    assert (got.payload, got.metadata, entry[got.metadata_end :]) == (entry, seen, body)
    assert got.publish_time == seen.publish_time
    flags = EntryFlags(got.flags)
    assert (EntryFlags.REPLICATED in flags) == seen.HasField("replicated_from")
    assert (EntryFlags.RESTRICTED in flags) == bool(seen.replicate_to)
    assert (EntryFlags.MARKER in flags) == seen.HasField("marker_type")
    assert (EntryFlags.BATCH in flags) == seen.HasField("num_messages_in_batch")
    assert (EntryFlags.CHUNK in flags) == seen.HasField("chunk_id")
    assert (EntryFlags.KEYED in flags) == (seen.HasField("partition_key") or seen.HasField("ordering_key"))
    assert (EntryFlags.DELAYED in flags) == seen.HasField("deliver_at_time")
    assert got.count == (0 if seen.HasField("marker_type") else seen.num_messages_in_batch)


@given(METADATA, BODIES)
def test_a_checksum_is_added_where_there_was_none(seen, body):
    entry = metadata.build(seen, body)
    assert metadata.inspect(entry[6:], message_bytes_max=LIMIT).payload == entry
    assert metadata.normalise(entry[6:]) == metadata.normalise(entry) == entry


@given(METADATA, BODIES, NAMES)
def test_a_link_adds_one_field_and_nothing_else(seen, body, cluster):
    entry = metadata.build(seen, body)
    marked = metadata.with_replicated_from(entry, cluster)
    seen.replicated_from = cluster
    assert twin(marked) == (seen, body)
    assert metadata.inspect(marked, message_bytes_max=LIMIT).flags & EntryFlags.REPLICATED


@given(METADATA, BODIES, NAMES, st.binary(max_size=8))
def test_what_replication_changes_does_not_count(seen, body, cluster, version):
    entry = metadata.build(seen, body)
    translated = metadata.with_appended(entry, metadata.field_bytes(16, version))
    marked = metadata.with_replicated_from(translated, cluster)
    assert metadata.without_replication(marked) == metadata.without_replication(entry)


@given(METADATA, BODIES, st.binary(min_size=1, max_size=4))
def test_everything_else_counts(seen, body, more):
    entry = metadata.build(seen, body)
    assert metadata.without_replication(metadata.build(seen, body + more)) != metadata.without_replication(entry)
    other = pb.MessageMetadata()
    other.CopyFrom(seen)
    other.sequence_id ^= 1
    assert metadata.without_replication(metadata.build(other, body)) != metadata.without_replication(entry)


@given(METADATA, BODIES, st.data())
def test_one_flipped_bit_is_always_found(seen, body, data):
    entry = bytearray(metadata.build(seen, body))
    at = data.draw(st.integers(0, len(entry) - 1))
    entry[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((ProtocolError, BrokerError)):
        metadata.inspect(bytes(entry), message_bytes_max=LIMIT)


@given(st.binary(max_size=120), st.booleans(), st.booleans())
def test_any_bytes_give_only_documented_errors(junk, sealed, sized):
    """Also behind a right checksum and a right size: then the metadata itself is junk."""
    if sized:
        junk = len(junk).to_bytes(4, "big") + junk
    if sealed:
        junk = b"\x0e\x01" + crc32c(junk).to_bytes(4, "big") + junk
    for act in (
        lambda: metadata.inspect(junk, message_bytes_max=LIMIT),
        lambda: metadata.normalise(junk),
        lambda: metadata.with_replicated_from(junk, "us"),
        lambda: metadata.without_replication(junk),
        lambda: metadata.sticky_key(junk),
    ):
        only_documented_errors(act)


@given(st.integers(-(2**31), 2**31 - 1))
def test_counts_have_a_ceiling(count):
    entry = metadata.build(
        pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=count), b""
    )
    if 1 <= count <= metadata.MESSAGES_PER_BATCH_MAX:
        assert metadata.inspect(entry, message_bytes_max=LIMIT).count == count
        return
    with pytest.raises(BrokerError) as caught:
        metadata.inspect(entry, message_bytes_max=LIMIT)
    assert caught.value.code is ErrorCode.NOT_ALLOWED


@given(st.binary(max_size=60))
def test_metadata_that_is_read_has_what_is_required(junk):
    body = len(junk).to_bytes(4, "big") + junk
    entry = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    try:
        complete = pb.MessageMetadata.FromString(junk).IsInitialized()
    except DecodeError:
        complete = False
    try:
        metadata.inspect(entry, message_bytes_max=LIMIT)
    except ProtocolError:
        assert not complete
    except BrokerError:
        assert complete
    else:
        assert complete
