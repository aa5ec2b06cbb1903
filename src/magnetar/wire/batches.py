"""Batches: many messages in the payload of one entry (docs/design/pulsar.md#messages).

    repeated [ metadata size (4) | SingleMessageMetadata | payload_size bytes ]

The broker opens a batch only where messages have idempotency keys; tools do (`verify`, the Spark source of messages,
tests). A batch is compressed as a whole: `encode_batch`, `walk_batch` and `decode_batch` work on the uncompressed bytes.

A payload may be compressed, that of a single message too, and may become larger than its message says. A broker and a Spark
worker find that out with `inflate` and `snappy_size`, before they allocate memory for it.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.core.errors import ProtocolError
from magnetar.wire.metadata import MESSAGES_PER_BATCH_MAX
from magnetar.wire.pulsar_pb2 import SingleMessageMetadata

_SIZE_BYTES: Final = 4

SNAPPY_RATIO_MAX: Final = 22
"""The most bytes that one byte of a Snappy payload can decompress to: it copies 64 with 3."""


def encode_batch(messages: Sequence[tuple[SingleMessageMetadata, bytes]]) -> bytes:
    """The payload of a batch entry; `payload_size` is filled in, in a copy of the metadata.

    Raises:
        ValueError: no messages, or more than `MESSAGES_PER_BATCH_MAX`.
    """
    if not 1 <= len(messages) <= MESSAGES_PER_BATCH_MAX:
        raise ValueError(f"a batch of {len(messages)} messages; 1 to {MESSAGES_PER_BATCH_MAX} are possible")
    parts: list[bytes] = []
    for metadata, payload in messages:
        own = SingleMessageMetadata()
        own.CopyFrom(metadata)
        own.payload_size = len(payload)
        body = own.SerializeToString()
        parts += (len(body).to_bytes(_SIZE_BYTES, "big"), body, payload)
    return b"".join(parts)


def walk_batch(payload: bytes | memoryview, count: int) -> Iterator[tuple[SingleMessageMetadata, int, int, int]]:
    """The messages of a batch without a copy of their bytes: metadata; where in `payload` it starts, its bytes start, it ends.

    Args:
        payload: uncompressed.
        count: `num_messages_in_batch`.

    Raises:
        ProtocolError: not exactly `count` messages, or a size that does not fit.
    """
    if not 1 <= count <= MESSAGES_PER_BATCH_MAX:
        raise ProtocolError(f"a batch of {count} messages; 1 to {MESSAGES_PER_BATCH_MAX} are possible")
    view, at = memoryview(payload), 0
    for number in range(count):
        start = at
        size = int.from_bytes(view[at : at + _SIZE_BYTES], "big")
        body = at + _SIZE_BYTES
        end = body + size
        if end > len(view):
            raise ProtocolError(f"message {number} of a batch of {count} ends behind its {len(view)} bytes")
        try:
            metadata = SingleMessageMetadata.FromString(bytes(view[body:end]))
        except DecodeError:
            raise ProtocolError(f"message {number} of a batch of {count} has metadata that is not protobuf") from None
        at = end + metadata.payload_size
        # A negative size is refused too: reading would never end.
        if not metadata.IsInitialized() or metadata.payload_size < 0 or at > len(view):
            raise ProtocolError(f"message {number} of a batch of {count} has no payload size that fits")
        yield metadata, start, end, at
    if at != len(view):
        raise ProtocolError(f"{len(view) - at} bytes are left behind a batch of {count} messages")


def decode_batch(payload: bytes, count: int) -> list[tuple[SingleMessageMetadata, bytes]]:
    """The messages of a batch.

    Args:
        payload: uncompressed.
        count: `num_messages_in_batch`.

    Raises:
        ProtocolError: not exactly `count` messages, or a size that does not fit.
    """
    return [(metadata, payload[start:end]) for metadata, _, start, end in walk_batch(payload, count)]


def inflate(payload: bytes | memoryview, size: int) -> bytes:
    """Decompress a zlib payload. If the result would be longer than `size` bytes, return `size + 1` bytes, so that the
    caller sees it.

    Raises:
        zlib.error: damaged, or its end is cut off.
    """
    engine = zlib.decompressobj()
    plain = engine.decompress(payload, size + 1)
    if len(plain) == size and not engine.eof:
        raise zlib.error("its end is cut off")
    return plain


def snappy_size(payload: bytes | memoryview) -> int:
    """The decompressed size that a Snappy payload states in its head; -1 if it does not begin with a number.

    Decompressing with a larger buffer would return the uninitialised rest of pyarrow's buffer.
    """
    size = 0
    for number, byte in enumerate(payload[:5]):
        size |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return size
    return -1
