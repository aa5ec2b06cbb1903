"""What was published and what a disk holds, as data: `truth.Truth` writes it, all others read it."""

from dataclasses import dataclass, field

from magnetar.core.ids import Position
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.metadata import build

PLAIN, FILTERED_1, FILTERED_2, RESTRICTED = range(4)
"""Kinds of entries: for all clusters; for whom the link's filter lets them through; for those they name."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Published:
    """One entry that a producer sent. Its messages are `uid`, `uid + 1`, ... `uid + count - 1`.

    Attributes:
        uid, count: its messages.
        cluster, topic: where it was sent to.
        kind, to: who may get it; `to` is None for all.
        sent_ms: by the producer's clock, which is right.
        receipted: the producer has its receipt.
        incarnation, index: its identity, once it was durable.
        schema: what it was written with; b"" for none.
        due_ms: when it is to be delivered, 0 for at once.
        chunk: of which message (its first entry's uid) it is which of how many chunks.
    """

    uid: int
    count: int
    cluster: str
    topic: str
    kind: int
    to: frozenset[str] | None
    receipted: bool = False
    sent_ms: int = 0
    incarnation: int = 0
    index: int = -1
    schema: bytes = b""
    due_ms: int = 0
    chunk: tuple[int, int, int] | None = None


@dataclass(slots=True)
class Copy:
    """What one life of a topic in one cluster has on its disk.

    Attributes:
        uuid, incarnation: which life.
        at: uid of the entry by position, in the log's order; markers are not in it.
        where: where each uid was or is.
        markers: positions of markers.
        sources: per cluster the newest position of its log that came from there, messages and markers.
        deleted: uids that retention took.
        ever: all uids it had.
        retained: messages of the entries in `at`, where they were asked for since it changed; the set itself never changes.
    """

    uuid: str
    incarnation: int
    at: dict[Position, int] = field(default_factory=dict)
    where: dict[int, Position] = field(default_factory=dict)
    markers: set[Position] = field(default_factory=set)
    sources: dict[str, Position] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    retained: set[int] | None = None


def entry_bytes(published: Published, version: bytes = b"") -> bytes:
    """What a producer sends."""
    meta = pb.MessageMetadata(producer_name="p", sequence_id=published.uid, publish_time=published.sent_ms)
    if published.count > 1:
        meta.num_messages_in_batch = published.count
    if published.to is not None:
        meta.replicate_to.extend(sorted(published.to) or ["__local__"])
    meta.partition_key = f"k{published.uid % 5}"
    if version:
        meta.schema_version = version
    if published.due_ms:
        meta.deliver_at_time = published.due_ms
    if published.chunk is not None:
        meta.uuid = f"p-{published.chunk[0]}"
        meta.chunk_id, meta.num_chunks_from_msg = published.chunk[1:]
        meta.total_chunk_msg_size = 100
    return build(meta, b"%d" % published.uid)


def uid_of(data: bytes) -> int:
    """The uid in an entry: no protobuf needed, the payload is behind the metadata."""
    return int(data[10 + int.from_bytes(data[6:10], "big") :])
