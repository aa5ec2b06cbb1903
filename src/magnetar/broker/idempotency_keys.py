"""Which idempotency keys an entry brings, and what is left of a batch of which some were seen before.

    one message     the key is a property of its metadata
    a batch         every message has its own; the ones that were seen are taken out, the others are stored as a smaller batch
    a chunk         all chunks of a message carry its key; it counts as stored with the last one, so that a message whose
                    sending broke off can be sent again

A batch has to be opened for that, which is possible when it is not compressed, or with zlib, and not encrypted.
"""

import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnetar.broker.deduplication import span
from magnetar.broker.idempotency import fingerprint
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.storage.entries import EntryFlags
from magnetar.wire.batches import walk_batch
from magnetar.wire.metadata import build
from magnetar.wire.pulsar_pb2 import KeyValue, MessageMetadata

KEY_BYTES_MAX: Final = 1024
"""A ceiling on one key: an identifier of a request is far shorter; whoever puts a document there has mixed something up."""

BATCH_BYTES_MAX: Final = 16 << 20
"""A ceiling on a batch that is decompressed in the broker: three times the largest message that clients may send."""

_BATCH: Final = int(EntryFlags.BATCH)
_CHUNK: Final = int(EntryFlags.CHUNK)
_MARKER: Final = int(EntryFlags.MARKER)
_NONE, _ZLIB = 0, 2
_COMPRESSIONS: Final = {1: "LZ4", 3: "ZSTD", 4: "Snappy"}


class Message(NamedTuple):
    """One message of an entry.

    Attributes:
        key: None: it has none.
        start, end: where it is in the opened batch.
    """

    key: int | None
    start: int = 0
    end: int = 0


class Opened(NamedTuple):
    """An entry's messages.

    Attributes:
        messages: in order.
        batch: the uncompressed payload of a batch; None: it is none.
        complete: false for a chunk after which others follow.
    """

    messages: list[Message]
    batch: memoryview | None
    complete: bool = True


def key_in(properties: Iterable[KeyValue], name: str) -> int | None:
    """The fingerprint of the key among a message's properties; None: it has none.

    Raises:
        BrokerError: NOT_ALLOWED: it is too long.
    """
    found: str | bytes = ""
    for pair in properties:
        if pair.key == name:
            found = pair.value
    if not found:
        return None
    key = found if isinstance(found, bytes) else found.encode("utf-8", "surrogatepass")
    if len(key) > KEY_BYTES_MAX:
        raise BrokerError(
            ErrorCode.NOT_ALLOWED,
            f"an idempotency key of {len(key)} bytes (property {name!r}) is over the limit of {KEY_BYTES_MAX} bytes",
        )
    return fingerprint(key)


def key_of(data: bytes, metadata_end: int, metadata: MessageMetadata, name: str) -> int | None:
    """The fingerprint of a single message's key; None: it has none.

    Raises:
        BrokerError: NOT_ALLOWED: it is too long.
    """
    return key_in(metadata.properties, name) if metadata.properties else None


def uncompressed(metadata: MessageMetadata, payload: memoryview) -> memoryview:
    """The payload of a batch.

    Raises:
        BrokerError: NOT_ALLOWED: it cannot be opened here.
    """
    reason = ""
    if metadata.encryption_keys:
        reason = "is encrypted"
    elif metadata.compression == _NONE:
        return payload
    elif metadata.compression == _ZLIB:
        engine = zlib.decompressobj()
        try:
            plain = engine.decompress(payload, BATCH_BYTES_MAX)
        except zlib.error:
            reason = "is no zlib stream"
        else:
            if engine.eof:
                return memoryview(plain)
            reason = f"is cut off or has over {BATCH_BYTES_MAX} bytes uncompressed"
    else:
        reason = f"is compressed with {_COMPRESSIONS.get(metadata.compression, str(metadata.compression))}"
    raise BrokerError(
        ErrorCode.NOT_ALLOWED,
        f"a batch that {reason} cannot be searched for idempotency keys: compress with zlib or not at all, or do not batch",
    )


def open_entry(name: str, flags: int, metadata: MessageMetadata, data: bytes, metadata_end: int) -> Opened | None:
    """The messages of an entry with their keys; None when none has one.

    Args:
        name: of the property.
        flags, metadata: of the entry.
        data: its bytes.
        metadata_end: where the metadata ends in them.

    Raises:
        BrokerError: NOT_ALLOWED: a key is too long, or a batch cannot be opened.
    """
    if flags & _MARKER:
        return None
    if not flags & _BATCH:
        key = key_in(metadata.properties, name) if metadata.properties else None
        if key is None:
            return None
        complete = not flags & _CHUNK or metadata.chunk_id >= metadata.num_chunks_from_msg - 1
        return Opened([Message(key)], None, complete)
    batch = uncompressed(metadata, memoryview(data)[metadata_end:])
    try:
        messages = [
            Message(key_in(one.properties, name) if one.properties else None, start, end)
            for one, start, _, end in walk_batch(batch, metadata.num_messages_in_batch)
        ]
    except ProtocolError as error:
        raise BrokerError(ErrorCode.NOT_ALLOWED, f"a batch cannot be searched for idempotency keys: {error}") from None
    return Opened(messages, batch) if any(one.key is not None for one in messages) else None


def smaller(metadata: MessageMetadata, batch: memoryview, kept: list[Message]) -> bytes:
    """An entry with some messages of a batch.

    Its sequence ids still span what the producer sent, so that deduplication by number sees the same as in the whole one.
    """
    payload = b"".join(batch[one.start : one.end] for one in kept)
    own = MessageMetadata()
    own.CopyFrom(metadata)
    own.num_messages_in_batch = len(kept)
    own.highest_sequence_id = span(metadata)[1]
    own.ClearField("compression")
    own.uncompressed_size = len(payload)
    return build(own, payload)
