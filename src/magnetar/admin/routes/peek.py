"""One stored entry as an answer of HTTP: the payload, decompressed, as the body, the metadata as Pulsar's headers."""

import base64
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, quote_from_bytes

from aiohttp import web

from magnetar.admin.http.answers import Answers, Held, Large
from magnetar.admin.http.call import Call
from magnetar.admin.http.replies import one_line
from magnetar.admin.routes.decompression import NAMES, Undecompressible, claimed, decompress
from magnetar.broker.admin.messages import DonePeek
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.core.times import iso_time
from magnetar.metadata.errors import NotFound
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import parse_metadata, readable, split

HEADER_BYTES_MAX: Final = 4096
"""A ceiling on one header, or on all of one name: clients refuse answers whose headers together are over 8 to 64 KiB. Longer ones
are left out and named in `X-Magnetar-Left-Out`."""

PEEK_TRIES: Final = 3
"""The tries of reading a message after memory became free: meanwhile another one may be at its position."""

PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def peek_bytes(entry: StoredEntry) -> int:
    """The memory that making an answer with this entry takes.

    Raises:
        BrokerError: what is stored cannot be read.
    """
    metadata, payload = _parsed(entry)
    size = len(entry.data)
    if metadata.compression and not metadata.encryption_keys:
        with contextlib.suppress(Undecompressible):
            size += claimed(metadata.compression, metadata.uncompressed_size, len(payload))
    return size


def _parsed(entry: StoredEntry) -> tuple[pb.MessageMetadata, memoryview]:
    try:
        return parse_metadata(entry.data), memoryview(entry.data)[split(entry.data) :]
    except ProtocolError as error:
        raise BrokerError(ErrorCode.CHECKSUM, f"the entry at {entry.position} cannot be read: {error}") from error


async def peek_reply(
    entry: StoredEntry, answers: Answers | None = None, held: Held | None = None
) -> web.StreamResponse:
    """An entry with its headers.

    An encrypted payload is returned as it is stored, for clients that have the key. So is one that cannot be
    decompressed, without the header by which clients would take it for a batch.

    Args:
        entry: as stored.
        answers: runs the work on another thread; None: it is done here.
        held: the memory for it (`peek_bytes`), which becomes the answer's.

    Raises:
        BrokerError: what is stored cannot be read. PreconditionFailed: a package has to be installed to decompress it.
    """
    metadata, stored = _parsed(entry)
    payload: bytes | memoryview = stored
    described = _described(entry, metadata)
    trouble = ""
    if metadata.compression and not metadata.encryption_keys:
        wanted = (metadata.compression, metadata.uncompressed_size, stored)
        try:
            payload = await answers.beside(decompress, *wanted) if answers is not None else decompress(*wanted)
        except Undecompressible as error:
            trouble = one_line(str(error))
            described = [(name, value) for name, value in described if name != "num-batch-message"]
    if held is not None:
        held.resize(len(payload))
    sizes: Counter[str] = Counter()
    for name, value in described:
        sizes[name] += len(value)
    long = sorted(f"X-Pulsar-{name}" for name, size in sizes.items() if size > HEADER_BYTES_MAX)
    answer = Large(payload, content_type="application/octet-stream", held=held)
    answer.headers.extend((f"X-Pulsar-{name}", value) for name, value in described if sizes[name] <= HEADER_BYTES_MAX)
    if long:
        answer.headers["X-Magnetar-Left-Out"] = ", ".join(long)
    if trouble:
        answer.headers["X-Magnetar-Still-Compressed"] = _text(trouble)
    return answer


async def peeked(call: Call, read: Callable[[DonePeek], None], none: str) -> web.StreamResponse:
    """The answer to a request for one message.

    Args:
        call: the request.
        read: reads the entry.
        none: the reason if there is none.

    Raises:
        NotFound. BrokerError: TOO_MANY_REQUESTS, or as `peek_reply`. PreconditionFailed: as `peek_reply`.
    """
    answers = call.services.answers
    size = call.services.entry_bytes_max
    for _ in range(PEEK_TRIES):
        held = await answers.hold(size)
        try:
            entry: StoredEntry | None = await call.value(read)
            if entry is None:
                raise NotFound(none)
            size = peek_bytes(entry)
            if size <= held.size or held.size == answers.bytes_max:
                held.resize(min(size, held.size))
                return await peek_reply(entry, answers, held)
        except BaseException:
            held.release()
            raise
        # It is read again when there is memory: an entry that waits for memory must not be kept.
        del entry
        held.release()
    raise BrokerError(ErrorCode.TOO_MANY_REQUESTS, "the message at this number changed during each attempt; try again")


def _described(entry: StoredEntry, metadata: pb.MessageMetadata) -> list[tuple[str, str]]:
    described = [
        ("Message-ID", f"{entry.ledger}:{entry.entry}"),
        ("publish-time", iso_time(metadata.publish_time)),
        ("producer-name", _text(metadata.producer_name)),
        ("sequence-id", str(metadata.sequence_id)),
        ("Is-Encrypted", _flag(bool(metadata.encryption_keys))),
        ("PROPERTY", json.dumps({readable(pair.key): readable(pair.value) for pair in metadata.properties})),
    ]
    if metadata.HasField("num_messages_in_batch"):
        described.append(("num-batch-message", str(metadata.num_messages_in_batch)))
        described.append(("batch-size", str(len(entry.data) - split(entry.data))))
    if metadata.event_time:
        described.append(("event-time", iso_time(metadata.event_time)))
    described += [("replicated-to", _text(cluster)) for cluster in metadata.replicate_to]
    if metadata.compression:
        described.append(("compression", NAMES.get(metadata.compression, str(metadata.compression))))
        described.append(("uncompressed-size", str(metadata.uncompressed_size)))
    if metadata.HasField("num_chunks_from_msg"):
        # Pulsar shows these as properties of a chunk, in addition to the fields.
        described.append(("PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)))
        described.append(("PROPERTY-CHUNK-ID", str(metadata.chunk_id)))
    if metadata.schema_version:
        # The name that Pulsar's brokers give it, and the one that its Java client reads.
        described += [(f"Base64-schema-version{end}", _base64(metadata.schema_version)) for end in ("", "-b64encoded")]
    described += [("Base64-encryption-keys", _base64(key.SerializeToString())) for key in metadata.encryption_keys]
    return described + [
        (name, write(getattr(metadata, field))) for field, name, write in _FIELDS if metadata.HasField(field)
    ]


def _text(text: str | bytes) -> str:
    """A client's text as a header's value: all but printable ASCII is percent-encoded, so nothing can end the line."""
    if isinstance(text, bytes):
        return quote_from_bytes(text, safe=PRINTABLE)
    return quote(text, safe=PRINTABLE, errors="replace")


def _flag(value: bool) -> str:
    return str(value).lower()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_FIELDS: Final[tuple[tuple[Any, str, Callable[[Any], str]], ...]] = (
    ("replicated_from", "replicated-from", _text),
    ("partition_key", "partition-key", _text),
    ("partition_key_b64_encoded", "partition-key-b64-encoded", _flag),
    ("ordering_key", "Base64-ordering-key", _base64),
    ("null_partition_key", "null-partition-key", _flag),
    ("null_value", "null-value", _flag),
    ("deliver_at_time", "deliver-at-time", iso_time),
    ("marker_type", "marker-type", str),
    ("highest_sequence_id", "highest-sequence-id", str),
    ("encryption_algo", "encryption-algo", _text),
    ("encryption_param", "Base64-encryption-param", _base64),
    ("uuid", "uuid", _text),
    ("num_chunks_from_msg", "num-chunks-from-msg", str),
    ("total_chunk_msg_size", "total-chunk-msg-size", str),
    ("chunk_id", "chunk-id", str),
)
"""Fields of the metadata that are returned unchanged, if a message has them: their header, and the format of the
value.
"""
