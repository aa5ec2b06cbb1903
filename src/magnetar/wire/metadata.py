"""The bytes after a SEND or MESSAGE command: checksum, message metadata, payload (docs/design/pulsar.md#frames).

    0x0e01 (2) | crc32c (4) | metadata size (4) | MessageMetadata | payload

The checksum covers everything after it. The producer's bytes are stored and served as they came; only a link's
destination rewrites metadata, by appending fields (in protobuf the last value of a field wins) and recomputing the
checksum.
"""

import base64
import struct
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from google.protobuf.message import DecodeError

from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.storage.entries import EntryFlags
from magnetar.wire.frames import FRAME_PADDING_BYTES
from magnetar.wire.limits import METADATA_FIELDS_MAX, METADATA_FREE_BYTES, why_metadata_refused
from magnetar.wire.pulsar_pb2 import MessageMetadata
from magnetar.wire.text import missing_fields
from magnetar.wire.varint import varint

MAGIC: Final = b"\x0e\x01"

MESSAGES_PER_BATCH_MAX: Final = 65_536
"""A ceiling on what one entry may claim to hold: a forged count must not use up origin indexes or permits."""

_HEADER: Final = struct.Struct(">HII")
_HEADER_BYTES: Final = 10
_TIME_MAX: Final = 2**63 - 1
_FLAGS_REPLICATED: Final = int(EntryFlags.REPLICATED)
_FLAGS_RESTRICTED: Final = int(EntryFlags.RESTRICTED)
_FLAGS_MARKER: Final = int(EntryFlags.MARKER)
_FLAGS_BATCH: Final = int(EntryFlags.BATCH)
_FLAGS_CHUNK: Final = int(EntryFlags.CHUNK)
_FLAGS_KEYED: Final = int(EntryFlags.KEYED)
_FLAGS_DELAYED: Final = int(EntryFlags.DELAYED)


class Inspected(NamedTuple):
    """An entry with the facts that the broker needs.

    Attributes:
        payload: the entry's bytes from the magic on, with a checksum in any case.
        flags: an `EntryFlags` value as int.
        count: messages, 1..65,536; 0 for a marker.
        publish_time: the client's clock, ms.
        metadata: parsed.
        metadata_end: the offset in `payload` at which the metadata ends.
    """

    payload: bytes
    flags: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    publish_time: int
    metadata: MessageMetadata
    metadata_end: int


class ChecksumError(BrokerError):
    """The checksum does not match the bytes: the entry is refused, the connection stays open."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CHECKSUM, message)


class MessageTooLargeError(BrokerError):
    """Metadata and payload are over the limit of this cluster."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(ErrorCode.NOT_ALLOWED, f"a message of {size} bytes is over the limit of {limit} bytes")


class MetadataError(MessageTooLargeError):
    """Its metadata breaks a limit of `wire.limits`."""

    def __init__(self, reason: str) -> None:
        BrokerError.__init__(self, ErrorCode.NOT_ALLOWED, f"the message's metadata is refused: {reason}")


class BatchCountError(BrokerError):
    """A batch says that it has more messages than are possible, or none."""

    def __init__(self, count: int) -> None:
        super().__init__(
            ErrorCode.NOT_ALLOWED, f"a batch of {count} messages; 1 to {MESSAGES_PER_BATCH_MAX} are possible"
        )


def normalise(payload: bytes) -> bytes:
    """The entry's bytes with the checksum part, which very old clients leave out.

    Raises:
        ProtocolError: too short for anything.
    """
    if payload[:2] == MAGIC:
        return payload
    if len(payload) < 4:
        raise ProtocolError(f"a message of {len(payload)} bytes has no metadata")
    return MAGIC + crc32c(payload).to_bytes(4, "big") + payload


def split(payload: bytes) -> int:
    """The offset at which the metadata ends, for bytes that start with the magic. The checksum is not checked.

    Raises:
        ProtocolError: the sizes do not fit.
    """
    if len(payload) < _HEADER_BYTES or payload[:2] != MAGIC:
        raise ProtocolError(f"an entry of {len(payload)} bytes does not start with a checksum and metadata")
    end = _HEADER_BYTES + int.from_bytes(payload[6:10], "big")
    if end > len(payload):
        raise ProtocolError(
            f"metadata of {end - _HEADER_BYTES} bytes does not fit into an entry of {len(payload)} bytes"
        )
    return end


def _decode(data: memoryview) -> MessageMetadata:
    try:
        seen = MessageMetadata.FromString(data)  # type: ignore[arg-type]  # any buffer will do
    except DecodeError:
        raise ProtocolError("message metadata cannot be decoded") from None
    # The protobuf runtime checks required fields when it writes, not when it reads.
    if not seen.IsInitialized():
        raise ProtocolError(f"message metadata lacks {missing_fields(seen)}")
    return seen


def sender(payload: bytes) -> tuple[bytes, int] | None:
    """Producer name (UTF-8) and sequence id of an entry that was inspected before, without decoding all of its metadata.

    Every client writes the required fields first and in order, so that a replay of a million entries need look at a few
    bytes of each.

    Returns:
        None if the fields are not there, or if there may be a `highest_sequence_id`: then the metadata has to be
        decoded.
    """
    end = _HEADER_BYTES + int.from_bytes(payload[6:10], "big")
    if payload[10] != 0x0A or payload[11] > 0x7F or payload.find(b"\xc0\x01", 12, end) >= 0:
        return None
    at = 12 + payload[11]
    if payload[at] != 0x10:
        return None
    name = payload[12:at]
    sequence = shift = 0
    while True:
        at += 1
        byte = payload[at]
        sequence |= (byte & 0x7F) << shift
        if byte < 0x80:
            return name, sequence
        shift += 7


def parse_metadata(payload: bytes) -> MessageMetadata:
    """The metadata of an entry that was inspected before.

    Raises:
        ProtocolError: it cannot be decoded, or lacks a required field.
    """
    return _decode(memoryview(payload)[_HEADER_BYTES : split(payload)])


def inspect(payload: bytes, *, message_bytes_max: int, fields_max: int = METADATA_FIELDS_MAX) -> Inspected:
    """Check an entry and read what the broker needs.

    Text in the metadata is not checked: the bytes are the client's, and are passed on as they came.

    Args:
        payload: as it came, from the magic (or, without a checksum, from the metadata size) on.
        message_bytes_max: a ceiling on metadata and payload together, as Pulsar counts.
        fields_max: a ceiling on the fields of its metadata.

    Raises:
        ChecksumError: the checksum does not fit.
        MessageTooLargeError: over `message_bytes_max`, or (`MetadataError`) over `fields_max`.
        BatchCountError: a count out of range.
        ProtocolError: no complete metadata where it should be.
    """
    if payload[:2] != MAGIC:
        payload = normalise(payload)
    if len(payload) < _HEADER_BYTES:
        raise ProtocolError(f"a message of {len(payload)} bytes has no metadata")
    _, checksum, size = _HEADER.unpack_from(payload)
    view = memoryview(payload)
    if crc32c(view[6:]) != checksum:
        raise ChecksumError("the message's checksum does not fit its bytes")
    end = _HEADER_BYTES + size
    if end > len(payload):
        raise ProtocolError(f"metadata of {size} bytes does not fit into a message of {len(payload)} bytes")
    if size > METADATA_FREE_BYTES and (reason := why_metadata_refused(view[_HEADER_BYTES:end], fields_max)):
        raise MetadataError(reason)
    seen = _decode(view[_HEADER_BYTES:end])
    # Clients cut a large message into chunks by the payload alone: a chunk's metadata comes on top of the limit.
    limit = message_bytes_max + (FRAME_PADDING_BYTES if seen.HasField("chunk_id") else 0)
    if len(payload) - _HEADER_BYTES > limit:
        raise MessageTooLargeError(len(payload) - _HEADER_BYTES, message_bytes_max)
    has = seen.HasField
    flags = 0
    count = 1
    if has("num_messages_in_batch"):
        flags = _FLAGS_BATCH
        count = seen.num_messages_in_batch
        if not 1 <= count <= MESSAGES_PER_BATCH_MAX:
            raise BatchCountError(count)
    if has("replicated_from"):
        flags |= _FLAGS_REPLICATED
    if seen.replicate_to:
        flags |= _FLAGS_RESTRICTED
    if has("marker_type"):
        flags |= _FLAGS_MARKER
        count = 0
    if has("chunk_id"):
        flags |= _FLAGS_CHUNK
    if has("partition_key") or has("ordering_key"):
        flags |= _FLAGS_KEYED
    if has("deliver_at_time"):
        flags |= _FLAGS_DELAYED
    # Storage keeps the time in a signed word; a client's wrong clock must not overflow it.
    return Inspected(payload, flags, count, min(seen.publish_time, _TIME_MAX), seen, end)


def check_client_entry(seen: Inspected, *, marker: bool) -> None:
    """Refuse entries that only brokers may write. Links send such entries by commands of their own.

    Args:
        seen: the entry.
        marker: `CommandSend.marker`.

    Raises:
        BrokerError: a client forges a marker or an origin.
    """
    if marker or seen.flags & _FLAGS_MARKER:
        raise BrokerError(ErrorCode.NOT_ALLOWED, "a client may not publish markers")
    if seen.flags & _FLAGS_REPLICATED:
        raise BrokerError(ErrorCode.NOT_ALLOWED, "a client may not set replicated_from")


def _sealed(metadata: bytes | memoryview, payload: bytes | memoryview) -> bytes:
    """Magic, checksum, size, metadata, payload."""
    body = b"".join((len(metadata).to_bytes(4, "big"), metadata, payload))
    return b"".join((MAGIC, crc32c(body).to_bytes(4, "big"), body))


def build(metadata: MessageMetadata, payload: bytes) -> bytes:
    """An entry's bytes from its parts."""
    return _sealed(metadata.SerializeToString(), payload)


def field_bytes(number: int, value: bytes) -> bytes:
    """One length-delimited protobuf field, as appended to metadata."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def with_appended(payload: bytes, suffix: bytes) -> bytes:
    """An entry whose metadata got `suffix` (whole fields) appended, with a new checksum."""
    end = split(payload)
    view = memoryview(payload)
    size = (end - _HEADER_BYTES + len(suffix)).to_bytes(4, "big")
    checksum = crc32c(view[end:], crc32c(suffix, crc32c(view[_HEADER_BYTES:end], crc32c(size))))
    return b"".join(
        (
            MAGIC,
            checksum.to_bytes(4, "big"),
            size,
            view[_HEADER_BYTES:end],
            suffix,
            view[end:],
        )
    )


def with_metadata_cut(payload: bytes, count: int) -> bytes:
    """The reverse of `with_appended`: an entry whose metadata lost its last `count` bytes (whole fields)."""
    end = split(payload)
    view = memoryview(payload)
    return _sealed(view[_HEADER_BYTES : end - count], view[end:])


def with_replicated_from(payload: bytes, cluster: str) -> bytes:
    """An entry that says where it came from (field 5, `replicated_from`).

    Raises:
        ProtocolError: the sizes do not fit.
    """
    return with_appended(payload, field_bytes(5, cluster.encode()))


def without_replication(payload: bytes) -> bytes:
    """Metadata and payload without what replication changes, canonically: equal in every cluster for one message.

    Raises:
        ProtocolError: the metadata cannot be decoded.
    """
    seen = parse_metadata(payload)
    seen.ClearField("replicated_from")
    seen.ClearField("schema_version")
    return seen.SerializeToString(deterministic=True) + payload[split(payload) :]


def readable(text: str | bytes) -> str:
    """A text field that a client filled, for display: bytes that are not UTF-8 become U+FFFD."""
    return text if isinstance(text, str) else text.decode(errors="replace")


def text_bytes(text: str | bytes) -> bytes:
    """The bytes of a text field that a client filled: protobuf hands over bytes where they are not UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def sticky_key(payload: bytes) -> bytes | None:
    """The key by which Key_Shared chooses a consumer: the ordering key, else the partition key (decoded, if it is sent
    as base64), else None.

    Raises:
        ProtocolError: the metadata cannot be decoded.
    """
    seen: Any = parse_metadata(payload)  # not its class, which promises text: the key may be bytes that are not UTF-8
    if seen.HasField("ordering_key"):
        key: bytes = seen.ordering_key
        return key
    if not seen.HasField("partition_key"):
        return None
    raw = text_bytes(seen.partition_key)
    if seen.partition_key_b64_encoded:
        try:
            return base64.b64decode(raw, validate=True)
        except ValueError:
            return raw  # it claims to be base64 and is not: any stable answer will do
    return raw


def span(metadata: MessageMetadata) -> tuple[int, int]:
    """Lowest and highest sequence id of an entry.

    The C++ clients do not send the highest id of a batch; ids grow by at least one per message, so first + count - 1 is
    at most the true one. A client that asks for its last sequence id gets the end of its last batch, not the start. With
    batching by key, ids in between may be those of other batches.
    """
    low = metadata.sequence_id
    return low, max(metadata.highest_sequence_id, low + metadata.num_messages_in_batch - 1)
