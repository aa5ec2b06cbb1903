"""A topic's entries as they lie in one cluster: identity, place and checksum of each, in the order of its log.

The checksum is over the entry's bytes without what replication changes (`wire.metadata.without_replication`), so that
the copies of a message have the same one in every cluster. It is computed here, in the task, for the bytes themselves
need not go through Spark.
"""

from collections.abc import Iterator
from typing import Any, Final

import crc32c
import numpy as np
import pyarrow as pa

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import NONE, Position
from magnetar.spark import link as wire
from magnetar.spark.reading import READ_BYTES_MAX, fits
from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb

ANSWER_S: Final = 10.0
"""For one read: verifying is in no hurry, and a broker may be busy with its links."""

LISTED_SCHEMA: Final = (
    "cluster string not null, topic string not null, ledger bigint not null, entry bigint not null, "
    "origin string not null, incarnation bigint not null, first_index bigint not null, message_count int not null, "
    "flags int not null, publish_time bigint not null, checksum bigint not null, disorder boolean not null, "
    "only_for string, data binary"
)
"""`disorder`: a message with a higher index of the same origin stands before it in this log. `only_for`: the clusters
that its publisher named, comma-separated; null: all. `data`: the bytes, if asked for."""

_ARROW: Final = pa.schema(
    [
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("ledger", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),
        pa.field("first_index", pa.int64(), nullable=False),
        pa.field("message_count", pa.int32(), nullable=False),
        pa.field("flags", pa.int32(), nullable=False),
        pa.field("publish_time", pa.int64(), nullable=False),
        pa.field("checksum", pa.int64(), nullable=False),
        pa.field("disorder", pa.bool_(), nullable=False),
        pa.field("only_for", pa.string()),
        pa.field("data", pa.binary()),
    ]
)


class ReadFailed(MagnetarError):
    """A broker could not or would not give the entries of a topic."""


def read_entries(
    address: str, topic: str, token: str, *, after: Position = NONE
) -> Iterator[tuple[pb.CommandGeoReadResponse, memoryview]]:
    """Read a whole topic, whatever the entries' kinds, in pieces.

    Raises:
        ReadFailed: the broker does not answer, or answers with an error.
    """
    try:
        channel = wire.Channel(address, token)
        try:
            while True:
                command = pb.BaseCommand(type=wire.GEO_READ)
                command.geo_read.request_id, command.geo_read.topic = 1, topic
                command.geo_read.after.ledger, command.geo_read.after.entry = after
                command.geo_read.bytes_max = READ_BYTES_MAX
                answer, payload = wire.call(channel, command, ANSWER_S)
                read = answer.geo_read_response
                if read.HasField("error") or read.blocked:
                    raise ReadFailed(f"{topic} at {address}: {read.message or read.blocked}")
                if not fits(read, payload):
                    raise ReadFailed(f"{topic} at {address}: the answer's lists do not fit its {len(payload)} bytes")
                if read.sizes:
                    yield read, payload
                end = Position(read.end.ledger, read.end.entry)
                if end <= after:
                    return
                after = end
        finally:
            channel.close()
    except wire.LinkDown as down:
        raise ReadFailed(str(down)) from None


class Order:
    """Finds entries that stand behind a later one of the same origin, over any number of pieces of a log."""

    def __init__(self) -> None:
        self._highest: dict[tuple[str, int], int] = {}

    def disorder(self, keys: list[tuple[str, int]], firsts: Any) -> Any:
        """For each entry whether a higher index of its key came before it; indexes below 0 (markers) never are."""
        result = np.zeros(len(keys), np.bool_)
        rows_of: dict[tuple[str, int], list[int]] = {}
        for row, key in enumerate(keys):
            rows_of.setdefault(key, []).append(row)
        for key, rows in rows_of.items():
            indexes = firsts[rows]
            highest = np.maximum.accumulate(np.concatenate(([self._highest.get(key, -1)], indexes)))
            result[rows] = (indexes < highest[:-1]) & (indexes >= 0)
            self._highest[key] = int(highest[-1])
        return result


def restricted_to(data: memoryview) -> str:
    """The clusters that an entry's metadata names in `replicate_to`, comma-separated."""
    size = int.from_bytes(data[6:10], "big")
    names = pb.MessageMetadata.FromString(bytes(data[10 : 10 + size])).replicate_to
    return ",".join(sorted(names))


def list_topic(
    cluster: str, address: str, topic: str, token: str, *, with_data: bool = False
) -> Iterator[pa.RecordBatch]:
    """List one topic of one cluster.

    Raises:
        ReadFailed: as `read_entries`.
    """
    order = Order()
    for read, payload in read_entries(address, topic, token):
        rows = len(read.sizes)
        ends = np.cumsum(np.array(read.sizes, np.int64)).tolist()
        pieces = [payload[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        flags = np.array(read.flags, np.int32)
        firsts = np.array(read.first_indexes, np.int64)
        origins = [read.origins[number] for number in read.origin_ids]
        only_for: list[str | None] = [None] * rows
        for row in np.flatnonzero(flags & EntryFlags.RESTRICTED).tolist():
            only_for[row] = restricted_to(pieces[row])
        checksums = [crc32c.crc32c(metadata.without_replication(bytes(piece))) for piece in pieces]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([cluster] * rows, pa.string()),
                pa.array([topic] * rows, pa.string()),
                pa.array(np.array(read.ledgers, np.int64)),
                pa.array(np.array(read.entries, np.int64)),
                pa.array(origins, pa.string()),
                pa.array(np.array(read.incarnations, np.int64)),
                pa.array(firsts),
                pa.array(np.array(read.counts, np.int32)),
                pa.array(flags),
                pa.array(np.array(read.publish_times, np.int64)),
                pa.array(checksums, pa.int64()),
                pa.array(order.disorder(list(zip(origins, read.incarnations, strict=True)), firsts)),
                pa.array(only_for, pa.string()),
                pa.array([bytes(piece) for piece in pieces] if with_data else [None] * rows, pa.binary()),
            ],
            schema=_ARROW,
        )
