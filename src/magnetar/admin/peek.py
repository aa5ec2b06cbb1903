"""One stored entry as an answer of HTTP: the payload, decompressed, as the body, the metadata as Pulsar's headers."""

import asyncio
import base64
import json
from typing import Final
from urllib.parse import quote

from aiohttp import web

from magnetar.admin.decompressing import NAMES, Undecompressible, decompress
from magnetar.admin.replies import one_line
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.core.times import iso_time
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import parse_metadata, split

HEADER_BYTES_MAX: Final = 4096
"""A ceiling on one header: clients refuse answers whose headers together are over 8 to 64 KiB. Longer ones are left out
and named in `X-Magnetar-Left-Out`."""

PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


async def peek_reply(entry: StoredEntry) -> web.Response:
    """An entry with its headers.

    An encrypted payload comes as it is stored, for whoever has the key; so does one that cannot be decompressed, without the
    header by which clients would take it for a batch.

    Raises:
        BrokerError: what is stored cannot be read. PreconditionFailed: to decompress it something has to be installed.
    """
    try:
        metadata = parse_metadata(entry.data)
        payload = entry.data[split(entry.data) :]
    except ProtocolError as error:
        raise BrokerError(ErrorCode.CHECKSUM, f"the entry at {entry.position} cannot be read: {error}") from error
    described = _described(entry, metadata)
    trouble = ""
    if metadata.compression and not metadata.encryption_keys:
        try:
            payload = await asyncio.to_thread(decompress, metadata.compression, metadata.uncompressed_size, payload)
        except Undecompressible as error:
            trouble = one_line(str(error))
            described.pop("num-batch-message", None)
    headers = {f"X-Pulsar-{name}": value for name, value in described.items()}
    long = sorted(name for name, value in headers.items() if len(value) > HEADER_BYTES_MAX)
    kept = {name: value for name, value in headers.items() if name not in long}
    if long:
        kept["X-Magnetar-Left-Out"] = ", ".join(long)
    if trouble:
        kept["X-Magnetar-Still-Compressed"] = _text(trouble)
    return web.Response(body=payload, headers=kept, content_type="application/octet-stream")


def _described(entry: StoredEntry, metadata: pb.MessageMetadata) -> dict[str, str]:
    described = {
        "Message-ID": f"{entry.ledger}:{entry.entry}",
        "publish-time": iso_time(metadata.publish_time),
        "producer-name": _text(metadata.producer_name),
        "sequence-id": str(metadata.sequence_id),
        "Is-Encrypted": str(bool(metadata.encryption_keys)).lower(),
        "PROPERTY": json.dumps({pair.key: pair.value for pair in metadata.properties}),
    }
    if metadata.HasField("num_messages_in_batch"):
        described["num-batch-message"] = str(metadata.num_messages_in_batch)
        described["batch-size"] = str(len(entry.data) - split(entry.data))
    if metadata.event_time:
        described["event-time"] = iso_time(metadata.event_time)
    if metadata.HasField("replicated_from"):
        described["replicated-from"] = _text(metadata.replicated_from)
    if metadata.replicate_to:
        described["replicated-to"] = _text(",".join(metadata.replicate_to))
    if metadata.HasField("partition_key"):
        described["partition-key"] = _text(metadata.partition_key)
        described["partition-key-b64-encoded"] = str(metadata.partition_key_b64_encoded).lower()
    if metadata.compression:
        described["compression"] = NAMES.get(metadata.compression, str(metadata.compression))
        described["uncompressed-size"] = str(metadata.uncompressed_size)
    if metadata.HasField("marker_type"):
        described["marker-type"] = str(metadata.marker_type)
    if metadata.HasField("deliver_at_time"):
        described["deliver-at-time"] = str(metadata.deliver_at_time)
    if metadata.schema_version:
        described["Base64-schema-version"] = base64.b64encode(metadata.schema_version).decode()
    if metadata.null_value:
        described["null-value"] = "true"
    return described


def _text(text: str) -> str:
    """A client's text as a header's value: all but printable ASCII is percent-encoded, so nothing can end the line."""
    return quote(text, safe=PRINTABLE, errors="replace")
