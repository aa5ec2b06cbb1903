"""The messages between the parts of the pipeline: planner, tasks, sink, planner again.

Everything is a msgspec struct, encoded as MessagePack arrays: into Spark's input partitions, into the bytes of control
rows, into the commit messages of tasks, and over the coordinator's socket. Positions travel as pairs `(ledger, entry)`.
"""

from typing import Final

import msgspec

from magnetar.core.ids import Position
from magnetar.core.settings import ReplicationLimits

DEFAULTS: Final = ReplicationLimits()

Pair = tuple[int, int]
"""A position on its way through MessagePack."""


Packed = bytes
"""Bytes, in structs that have a field of that name."""


class Route(msgspec.Struct, frozen=True, array_like=True):
    """Where a link's entries come from and go to.

    Attributes:
        link: number of the link in this process.
        source: name of the source cluster.
        target: name of the destination cluster.
        source_address: that tasks connect to: `host:port`, or several separated by commas (`BrokerAddresses.parse`).
        target_address: likewise.
        uuid: of the source cluster, as its broker reported it.
        progress_ms, window_bytes, buffer_bytes_max: see `core.settings.ReplicationLimits`.
    """

    link: int
    source: str
    target: str
    source_address: str
    target_address: str
    uuid: str
    progress_ms: int = DEFAULTS.progress_ms
    window_bytes: int = DEFAULTS.window_bytes
    buffer_bytes_max: int = DEFAULTS.buffer_bytes_max


class Range(msgspec.Struct, frozen=True, array_like=True):
    """One topic's part of one batch: what one task reads and sends, in order.

    Attributes:
        number: of the range in its plan; the rows' `range` column.
        link: number of the link.
        topic: full name.
        incarnation: of the topic in its source.
        gen: generation of the cursor that was planned from.
        after: C of that cursor; the first entry read is the next one.
        s: S of that cursor; the p of the first entry sent (docs/design/links.md#sent-position).
        up_to: the newest position known when it was planned; reading may go past it, and ends once it is reached.
        bytes_max: reading ends once this many bytes were read. A bound for the length of a batch, not a ceiling: the
            read in which it is reached is used whole.
        query_generation: which run of its query planned it (`pipeline_state.PipelineState.batch_over`).
    """

    number: int
    link: int
    topic: str
    incarnation: int
    gen: int
    after: Pair
    s: Pair
    up_to: Pair
    bytes_max: int
    query_generation: int = 0


class LongBatch(msgspec.Struct, frozen=True, array_like=True):
    """The settings of a task that lasts: it fetches from the routes' sources until a later batch supersedes it.

    Attributes:
        epoch: of the batch.
        length_ms: the next batch begins a little before that; after it and `GRACE_MS` the task ends in any case.
        pipeline: its name, for the sources.
        window_bytes: ceiling of the bytes under way on one link.
    """

    epoch: int
    length_ms: int
    pipeline: str
    window_bytes: int


class Task(msgspec.Struct, frozen=True, array_like=True):
    """The ranges of one Spark task, or the settings of one that fetches, and the routes of their links."""

    routes: tuple[Route, ...]
    ranges: tuple[Range, ...]
    long: LongBatch | None = None


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of the control row before a range's first entry.

    Attributes:
        route, range: of the entries that follow.
        schema_numbering: the numbering that their versions belong to, as the source reported.
    """

    route: Route
    range: Range
    schema_numbering: int = 0


class Fetched(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of the control row in front of a fetched topic's single entries, on a link with a filter.

    Attributes:
        topic, incarnation, grant, gen, schema_numbering: as the source answered.
        p: the position sent before the first entry; None: the entry before it in this task.
    """

    topic: str
    incarnation: int
    grant: int
    gen: int
    schema_numbering: int
    p: Pair | None


class Closing(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of the control row after a range's last entry.

    Attributes:
        up_to: all entries up to here were examined; C may move there once everything sent is confirmed.
        trouble: "" or one of `SOURCE_DOWN`, `BLOCKED`, `RETRY`: why reading ended early.
        kind: of a `BLOCKED` topic, e.g. "corrupt".
        reason: one line for the operator.
    """

    up_to: Pair
    trouble: str = ""
    kind: str = ""
    reason: str = ""


SOURCE_DOWN: Final = "source down"
TARGET_DOWN: Final = "target down"
BLOCKED: Final = "blocked"
REFUSED: Final = "refused"
RETRY: Final = "retry"


class RangeReport(msgspec.Struct, frozen=True, array_like=True):
    """How a range ended.

    Attributes:
        link: number of the link.
        topic: full name.
        incarnation: as planned.
        gen: as planned.
        c: everything at or below is settled now, or None when nothing moved.
        s: the last confirmed position at or below `c`.
        entries: confirmed by the destination, duplicates included.
        messages: in those entries.
        bytes: of those entries.
        duplicates: entries that the destination had already.
        done: everything of the range is settled.
        trouble: "" or one of SOURCE_DOWN, TARGET_DOWN, BLOCKED, REFUSED, RETRY.
        kind: of a blocked topic.
        reason: one line for the operator.
        throttle_ms: how long the destination asks to be left alone.
        oldest_publish_ms: publish time of the oldest confirmed entry; 0: none.
        confirmed_ms: clock when the last confirmation came; 0: none.
        at: position of the entry that blocks, if it is one.
        conflict: a GeoSchemaConflict's bytes, if it is one of schemas.
        query_generation: as planned.
    """

    link: int
    topic: str
    incarnation: int
    gen: int
    c: Pair | None
    s: Pair
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    done: bool = False
    trouble: str = ""
    kind: str = ""
    reason: str = ""
    throttle_ms: int = 0
    oldest_publish_ms: int = 0
    confirmed_ms: int = 0
    at: Pair | None = None
    conflict: Packed = b""
    query_generation: int = 0


class TaskReport(msgspec.Struct, frozen=True, array_like=True):
    """The report of one sink task to the driver."""

    ranges: tuple[RangeReport, ...]
    ms: int


def pair(position: Position) -> Pair:
    """A position as it travels."""
    return (position.ledger, position.entry)


def position(value: Pair) -> Position:
    """A travelled position as itself."""
    return Position(value[0], value[1])


_encoder: Final = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_task: Final = msgspec.msgpack.Decoder(Task).decode
decode_opening: Final = msgspec.msgpack.Decoder(Opening).decode
decode_route: Final = msgspec.msgpack.Decoder(Route).decode
decode_fetched: Final = msgspec.msgpack.Decoder(Fetched).decode
decode_closing: Final = msgspec.msgpack.Decoder(Closing).decode
decode_report: Final = msgspec.msgpack.Decoder(TaskReport).decode
