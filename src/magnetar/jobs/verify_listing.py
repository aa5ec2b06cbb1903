"""The first half of `verify`: it lists parts of topics in a cluster, with every entry's identity, position and
checksum.

One task reads one part of one topic of one cluster, so that a big topic is read by many tasks and progress has steps.
The result is packed: one row for each origin and each 65,536 origin indexes, with 37 bytes per entry in one binary
column. Spark then moves some thousand rows, not millions, and the comparing half works on arrays.

The checksum is over an entry's metadata and payload without what replication changes, so that the copies of a message
have the same one everywhere. It is computed here, so that the bytes themselves need not go through Spark.
"""

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from magnetar.core.errors import MagnetarError, ProtocolError
from magnetar.core.ids import Position
from magnetar.pipeline.tasks.link_channel import LinkChannel, wait
from magnetar.pipeline.tasks.task_read import READ_BYTES_MAX, fits
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.runtime.security.tls import shown
from magnetar.spark_session.worker import settle
from magnetar.storage.entries import EntryFlags
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

ANSWER_S: Final = 10.0
"""The timeout of one read: verifying is not urgent, and a broker may be busy with its links."""

BUCKET_BITS: Final = 16
"""Origin indexes compared at once, as a power of two: 65,536 entries of three clusters are 7 MB, more buckets are more rows."""

ENTRY: Final = np.dtype(
    [
        ("index", "<i8"),
        ("ledger", "<i8"),
        ("entry", "<i8"),
        ("count", "<u4"),
        ("sum", "<u4"),
        ("only", "<i4"),
        ("behind", "?"),
    ]
)
"""The packed form of an entry. `only`: number of its restriction in `Packed.limits`, -1 if it may go to all clusters.
`behind`: a higher index of its origin comes before it in this part.
"""

_REPLICATED: Final = int(EntryFlags.REPLICATED)
_RESTRICTED: Final = int(EntryFlags.RESTRICTED)
REPLICATED_FROM: Final = 5
"""Number of the field."""

_HEADER: Final = 10
"""Bytes before an entry's metadata: magic, checksum, size."""

_SCHEMA_VERSION: Final = b"\x82\x01"
"""The tag of the field `schema_version` (16, bytes)."""

_size_at: Final = struct.Struct(">I").unpack_from


class ReadFailed(MagnetarError):
    """A broker could not or would not give the entries of a topic."""


@dataclass(frozen=True)
class Part:
    """The part of a topic that one task reads.

    Attributes:
        number: number of the part; the numbers of one topic and cluster ascend in the order of the log.
        cluster, topic: numbers of both in the job.
        address: `host:port` of the cluster's broker.
        name: name of the topic (one partition).
        after: entries after this one are read...
        up_to: ...up to this one; None: up to the last one.
        entries: expected, for progress; 0: not known.
    """

    number: int
    cluster: int
    topic: int
    address: str
    name: str
    after: Position
    up_to: Position | None
    entries: int


def read_entries(
    address: str, topic: str, token: str, after: Position, up_to: Position | None
) -> Iterator[tuple[pb.CommandGeoReadResponse, memoryview]]:
    """Entries in after < p <= up_to, whatever their kind, in pieces; the next piece is on its way while one is looked at.

    Raises:
        ReadFailed: the broker does not answer, or answers with an error.
    """
    try:
        channel = LinkChannel(address, token)
        try:
            _ask(channel, topic, after, up_to)
            while True:
                answer = _answer(channel)
                read, payload = answer.command.geo_read_response, answer.payload
                if read.HasField("error") or read.blocked:
                    raise ReadFailed(f"{topic} at {shown(address)}: {read.message or read.blocked}")
                if not fits(read, payload):
                    raise ReadFailed(
                        f"{topic} at {shown(address)}: the answer's lists do not fit its {len(payload)} bytes"
                    )
                end = Position(read.end.ledger, read.end.entry)
                more = end > after and (up_to is None or end < up_to)
                if more:
                    _ask(channel, topic, end, up_to)
                if read.sizes:
                    yield read, payload
                if not more:
                    return
                after = end
        finally:
            channel.close()
    except LinkDown as down:
        raise ReadFailed(f"{topic}: {down}") from None


def _ask(channel: LinkChannel, topic: str, after: Position, up_to: Position | None) -> None:
    command = pb.BaseCommand(type=pb.GEO_READ)
    ask = command.geo_read
    ask.topic, ask.bytes_max = topic, READ_BYTES_MAX
    ask.after.ledger, ask.after.entry = after
    if up_to is not None:
        ask.up_to.ledger, ask.up_to.entry = up_to
    channel.request(command)
    if channel.hello is not None:
        channel.pump(False, True)


def _answer(channel: LinkChannel) -> Response:
    until = time.monotonic() + ANSWER_S
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise LinkDown(f"{channel.address}: no answer within {ANSWER_S:.0f} s")
        for _, readable, writable in wait([channel], left):
            for event in channel.pump(readable, writable):
                if event.command.type == pb.ERROR:
                    raise LinkDown(f"{channel.address}: {event.command.error.message}")
                if isinstance(event, Response):
                    return event


def suffix_of(origin: str) -> bytes:
    """The field that a destination appends to the metadata of an entry from a cluster: `replicated_from`."""
    return metadata.field_bytes(REPLICATED_FROM, origin.encode())


def checksum(piece: memoryview, suffix: bytes) -> int:
    """The checksum of an entry without the fields that replication changes; the same for all copies of a message.

    Args:
        piece: the entry's bytes.
        suffix: suffix of its origin if it came over a link, else empty.
    """
    begin = _HEADER + _size_at(piece, 6)[0]
    head = bytes(piece[_HEADER:begin])
    if _SCHEMA_VERSION not in head:  # it may be part of something else: then the long way gives the same
        if not suffix:
            return int(crc32c(piece[_HEADER:]))
        if head.endswith(suffix):
            return int(crc32c(piece[begin:], crc32c(head[: -len(suffix)])))
    return _plain_checksum(piece)


def _plain_checksum(piece: memoryview) -> int:
    """The checksum by decoding the metadata and encoding it again."""
    try:
        return int(crc32c(metadata.without_replication(bytes(piece))))
    except ProtocolError:
        return int(crc32c(piece))  # no other copy is like this one


def restricted_to(piece: memoryview) -> str:
    """The clusters that an entry's metadata names in `replicate_to`, comma-separated."""
    begin = _HEADER + _size_at(piece, 6)[0]
    names = pb.MessageMetadata.FromString(bytes(piece[_HEADER:begin])).replicate_to
    return ",".join(sorted(names))


Key = tuple[str, int]
"""Origin cluster and incarnation of its topic."""


Stretch = tuple[int, str, int, int]
"""Topic, origin, incarnation, bucket."""


class Packed(NamedTuple):
    """The entries of one origin in one bucket of a part.

    Attributes:
        cluster, topic, part: numbers in the job.
        origin, incarnation, bucket: the origin, and the number of the bucket of 65,536 indexes.
        first, last: lowest and highest index.
        messages: number of messages.
        limits: the different lists of clusters to which publishers restricted messages, comma-separated.
        entries: packed, `ENTRY` each, in the order of the log.
    """

    cluster: int
    topic: int
    part: int
    origin: str
    incarnation: int
    bucket: int
    first: int
    last: int
    messages: int
    limits: tuple[str, ...]
    entries: bytes

    @property
    def stretch(self) -> Stretch:
        """The key of entries that are compared with each other."""
        return self.topic, self.origin, self.incarnation, self.bucket


class _Held:
    """The entries of a part with one key, piece after piece."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.limits: dict[str, int] = {}
        self.highest = -1


class Packer:
    """Collects a part's entries by origin and bucket."""

    def __init__(self) -> None:
        self._held: dict[Key, _Held] = {}
        self.entries = self.messages = self.bytes = 0

    def add(self, read: pb.CommandGeoReadResponse, payload: memoryview) -> None:
        """The entries of one answer, in the order of the log. Markers have no identity and are only counted as entries."""
        sizes, flags = list(read.sizes), list(read.flags)
        suffixes = [suffix_of(origin) for origin in read.origins]
        table = np.empty(len(sizes), ENTRY)
        table["index"], table["ledger"] = read.first_indexes, read.ledgers
        table["entry"], table["count"] = read.entries, read.counts
        table["only"], table["behind"] = -1, False
        sums, limited, at = [], [], 0
        for row, (size, flag, origin) in enumerate(zip(sizes, flags, read.origin_ids, strict=True)):
            piece = payload[at : at + size]
            at += size
            sums.append(checksum(piece, suffixes[origin] if flag & _REPLICATED else b""))
            if flag & _RESTRICTED:
                limited.append((row, restricted_to(piece)))
        table["sum"] = sums
        self.entries += len(sizes)
        self.bytes += at
        origins, incarnations = np.array(read.origin_ids, np.int64), np.array(read.incarnations, np.int64)
        real = table["index"] >= 0
        self.messages += int(table["count"][real].sum())
        for origin, incarnation in set(zip(origins.tolist(), incarnations.tolist(), strict=True)):
            mine = real & (origins == origin) & (incarnations == incarnation)
            held = self._held.setdefault((read.origins[origin], incarnation), _Held())
            for row, names in limited:
                if mine[row]:
                    table["only"][row] = held.limits.setdefault(names, len(held.limits))
            rows = table[mine]
            if len(rows):
                self._keep(held, rows)

    @staticmethod
    def _keep(held: _Held, rows: Any) -> None:
        before = np.maximum.accumulate(np.concatenate(([held.highest], rows["index"])))
        rows["behind"] = rows["index"] < before[:-1]
        held.highest = int(before[-1])
        held.pieces.append(rows)

    def rows(self, part: Part) -> Iterator[Packed]:
        """Everything, packed."""
        for (origin, incarnation), held in self._held.items():
            if not held.pieces:
                continue
            table = np.concatenate(held.pieces)
            limits = tuple(held.limits)
            buckets = table["index"] >> BUCKET_BITS
            for bucket in np.unique(buckets).tolist():
                mine = table[buckets == bucket]
                yield Packed(
                    part.cluster, part.topic, part.number, origin, incarnation, bucket,
                    int(mine["index"].min()), int(mine["index"].max()), int(mine["count"].sum()), limits, mine.tobytes(),
                )  # fmt: skip


Report = Callable[[int, int, int], None]
"""Called after a part was read, with its number of entries, messages and bytes."""


def list_parts(parts: Sequence[Part], token: str, report: Report) -> Callable[[Iterable[int]], Iterable[Packed]]:
    """The work of a task: it takes numbers of parts and gives packed entries."""

    def task(numbers: Iterable[int]) -> Iterator[Packed]:
        settle()
        for number in numbers:
            part, packer = parts[number], Packer()
            for read, payload in read_entries(part.address, part.name, token, part.after, part.up_to):
                packer.add(read, payload)
            yield from packer.rows(part)
            report(packer.entries, packer.messages, packer.bytes)

    return task
