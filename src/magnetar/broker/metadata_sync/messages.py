"""Events of synchronisation as entries of its topic: normal messages, so that every client can read them."""

import zlib
from collections.abc import Iterator
from typing import Final

from magnetar.metadata.sync.records import Malformed
from magnetar.storage.entries import EntryFlags, NewEntry, StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.batches import decode_batch
from magnetar.wire.metadata import build, parse_metadata, readable
from magnetar.wire.metadata import split as metadata_end

PRODUCER_PREFIX: Final = "magnetar.metadata-sync."
"""The beginning of the name under which the broker publishes; the cluster follows."""

ZLIB: Final = 2
"""CompressionType of the protocol."""

PLAIN_BYTES: Final = 4096
"""Smaller events are not worth compressing."""

EVENT_BYTES_MAX: Final = 64 << 20
"""A ceiling on what one event may become when it is unpacked."""

_MARKER: Final = int(EntryFlags.MARKER)


def encode_entry(message: bytes, cluster: str, now_ms: int) -> NewEntry:
    """An event as an entry to be appended."""
    metadata = pb.MessageMetadata(producer_name=PRODUCER_PREFIX + cluster, sequence_id=0, publish_time=now_ms)
    payload = message
    if len(message) > PLAIN_BYTES:
        metadata.compression = ZLIB
        metadata.uncompressed_size = len(message)
        payload = zlib.compress(message, 1)
    return NewEntry(build(metadata, payload), 0, 1, now_ms)


def decode_entry(entry: StoredEntry) -> Iterator[tuple[bytes, bool]]:
    """The events of an entry, and whether a broker of ours published them.

    Raises:
        Malformed: nothing can be read of it. ProtocolError: it is damaged.
    """
    if entry.flags & _MARKER:
        return
    metadata = parse_metadata(entry.data)
    payload = entry.data[metadata_end(entry.data) :]
    if metadata.HasField("num_chunks_from_msg") and metadata.num_chunks_from_msg > 1:
        raise Malformed("a chunk of a larger message")
    if metadata.encryption_keys:
        raise Malformed("encrypted")
    if metadata.compression == ZLIB:
        payload = _unpacked(payload)
    elif metadata.compression:
        raise Malformed("compressed in another way than ZLIB")
    own = readable(metadata.producer_name).startswith(PRODUCER_PREFIX)
    if metadata.HasField("num_messages_in_batch"):
        for _single, message in decode_batch(payload, metadata.num_messages_in_batch):
            yield bytes(message), own
    else:
        yield payload, own


def _unpacked(payload: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(payload, EVENT_BYTES_MAX)
    except zlib.error as error:
        raise Malformed(f"cannot be unpacked: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise Malformed(f"larger than {EVENT_BYTES_MAX} bytes, or cut off")
    return data
