"""Batches by hand."""

import pytest

from magnetar.core.errors import ProtocolError
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import MESSAGES_PER_BATCH_MAX, decode_batch, encode_batch


def raw(payload_size: int | None) -> bytes:
    body = pb.SingleMessageMetadata(payload_size=payload_size).SerializePartialToString()
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("size", [None, -1, -len(raw(-15)), 1, 2**31 - 1])
def test_payload_sizes_must_fit(size):
    # -15 leads back to the start of the batch: reading on would go in circles.
    with pytest.raises(ProtocolError, match="message 0 of a batch of 2 has no payload size that fits"):
        decode_batch(raw(size), 2)


def test_metadata_must_fit():
    with pytest.raises(ProtocolError, match="message 0 of a batch of 1 ends behind its 7 bytes"):
        decode_batch(b"\0\0\0\x04abc", 1)
    with pytest.raises(ProtocolError, match="not protobuf"):
        decode_batch(b"\0\0\0\x01\x08", 1)


def test_counts_have_limits():
    with pytest.raises(ValueError, match="a batch of 0 messages"):
        encode_batch([])
    with pytest.raises(ProtocolError, match="1 to 65536"):
        decode_batch(b"", MESSAGES_PER_BATCH_MAX + 1)


def test_what_is_passed_in_is_not_changed():
    single = pb.SingleMessageMetadata(payload_size=99)
    assert decode_batch(encode_batch([(single, b"abc")]), 1)[0][0].payload_size == 3
    assert single.payload_size == 99
