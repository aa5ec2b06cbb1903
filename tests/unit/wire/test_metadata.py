"""Entries by hand: limits, keys, what is refused and how it is called."""

import pytest
from crc32c import crc32c

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb


def meta(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=9, **fields)


def sealed(body: bytes) -> bytes:
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body


def test_the_size_limit_counts_metadata_and_payload():
    entry = metadata.build(meta(), bytes(100))
    size = len(entry) - 10
    assert metadata.inspect(entry, message_bytes_max=size).count == 1
    with pytest.raises(metadata.MessageTooLargeError) as caught:
        metadata.inspect(entry, message_bytes_max=size - 1)
    assert caught.value.code is ErrorCode.NOT_ALLOWED
    assert caught.value.message == f"a message of {size} bytes is over the limit of {size - 1} bytes"


def test_a_wrong_checksum_is_an_answer_not_the_end():
    entry = metadata.build(meta(), b"abc")
    with pytest.raises(metadata.ChecksumError) as caught:
        metadata.inspect(entry[:-1] + b"d", message_bytes_max=1000)
    assert isinstance(caught.value, BrokerError)
    assert caught.value.code is ErrorCode.CHECKSUM


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0e",
        b"\x0e\x01",
        b"\x0e\x01\0\0\0\0",
        sealed(b"\0\0\0\x09abc"),
        sealed(b"\0\0\0\x01\x08"),
        sealed(b"\0\0\0\0"),
    ],
)
def test_what_is_no_entry_ends_the_connection(entry):
    with pytest.raises(ProtocolError):
        metadata.inspect(entry, message_bytes_max=1000)


def test_required_fields_are_required():
    body = pb.MessageMetadata(producer_name="p", sequence_id=1).SerializePartialToString()
    with pytest.raises(ProtocolError, match="lacks the required publish_time"):
        metadata.inspect(sealed(len(body).to_bytes(4, "big") + body), message_bytes_max=1000)


def test_a_batch_of_one_is_a_batch():
    assert metadata.inspect(metadata.build(meta(num_messages_in_batch=1), b""), message_bytes_max=99).flags == 8


def test_a_wild_clock_does_not_break_storage():
    seen = pb.MessageMetadata(producer_name="p", sequence_id=2**64 - 1, publish_time=2**64 - 1)
    assert metadata.inspect(metadata.build(seen, b""), message_bytes_max=99).publish_time == 2**63 - 1


def test_text_that_is_not_utf8_passes():
    entry = metadata.build(meta(partition_key="QQ"), b"")
    broken = entry[10:].replace(b"QQ", b"\xff\xfe")
    entry = sealed(len(broken).to_bytes(4, "big") + broken)
    assert metadata.inspect(entry, message_bytes_max=99).payload == entry
    assert metadata.sticky_key(entry) == b"\xff\xfe"


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, None),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": ""}, b""),
        ({"partition_key": "ä"}, "ä".encode()),
        ({"partition_key": "AAE=", "partition_key_b64_encoded": True}, b"\0\1"),
        ({"partition_key": "not base64!", "partition_key_b64_encoded": True}, b"not base64!"),
        ({"partition_key": "k", "ordering_key": b"\xff"}, b"\xff"),
    ],
)
def test_sticky_keys(fields, key):
    assert metadata.sticky_key(metadata.build(meta(**fields), b"")) == key


def test_the_last_origin_wins():
    entry = metadata.with_replicated_from(metadata.build(meta(replicated_from="forged"), b"x"), "us-west")
    assert metadata.parse_metadata(entry).replicated_from == "us-west"


def test_a_field_of_more_than_127_bytes():
    cluster = "c" * 128
    assert (
        metadata.parse_metadata(metadata.with_replicated_from(metadata.build(meta(), b"x"), cluster)).replicated_from
        == cluster
    )


def test_unknown_fields_are_kept():
    raw = meta().SerializeToString() + b"\xfa\x3f\x02hi"  # field 1023
    entry = sealed(len(raw).to_bytes(4, "big") + raw + b"body")
    marked = metadata.with_replicated_from(entry, "eu")
    assert b"\xfa\x3f\x02hi" in marked
    assert metadata.without_replication(marked) == metadata.without_replication(entry)


def refused(marker: bool = False, **fields: object) -> bool:
    seen = metadata.inspect(metadata.build(meta(**fields), b""), message_bytes_max=1000)
    try:
        metadata.check_client_entry(seen, marker=marker)
    except BrokerError as error:
        assert error.code is ErrorCode.NOT_ALLOWED
        return True
    return False


@pytest.mark.parametrize(
    "fields", [{"replicated_from": "us"}, {"replicated_from": ""}, {"marker_type": 10}, {"marker_type": 0}]
)
def test_markers_and_origins_are_not_for_clients(fields):
    assert refused(**fields)


def test_the_marker_of_a_send_is_not_for_clients():
    assert refused(marker=True)
    assert not refused(replicate_to=["us"])
