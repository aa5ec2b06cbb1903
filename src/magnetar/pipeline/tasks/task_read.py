"""The source's half of a task: reads ranges from their source brokers and yields rows.

All sources are read at the same time, several ranges of each at once. One read of a range follows the other. A source that is
far gets the next reads of a range before it has answered the first (`GEO_READ.follows`): as much is asked for as bandwidth times
round trip (`pipeline.tasks.pace`). A source that makes no progress for half a second is given up for this task: its ranges are
closed where they are, with the reason. No behaviour of a broker makes this module raise an exception, which would fail the task,
and with it the other links.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import CLOSE, OPEN
from magnetar.pipeline.rows import Assembler
from magnetar.pipeline.tasks.channel_poll import ChannelPoll, Poll, Pollable
from magnetar.pipeline.tasks.link_channel import LinkChannel, keep_channel, new_channel, open_channel
from magnetar.pipeline.tasks.pace import Mark
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Response

READ_BYTES_MAX: Final = 4 << 20
"""One GEO_READ: large enough that its fixed cost vanishes, small enough to overlap reading and sending."""

READS_AHEAD: Final = 8
"""Ranges that are read at one source at a time, if it is near: enough to hide the broker's answer time where ranges are small."""

Connect = Callable[[str, str], LinkChannel]


@dataclass(slots=True)
class RangeReading:
    """How far one range was read."""

    part: m.Range
    route: m.Route
    after: Position
    left: int
    trouble: str = ""
    kind: str = ""
    reason: str = ""
    opened: bool = False
    over: bool = False
    schema_numbering: int | None = None
    asked: dict[int, int] = field(default_factory=dict)
    """Request id and size of the reads under way, in order: each follows the one before it."""
    stopped: bool = False
    """Whether enough was read, or there is no more: no further read is asked for, and what is under way is taken."""

    @property
    def to_ask(self) -> int:
        """Bytes of the range that are neither read nor asked for."""
        return 0 if self.stopped or self.over else self.left - sum(self.asked.values())

    def same_numbering(self, read: pb.CommandGeoReadResponse) -> bool:
        """Whether the versions in an answer's entries mean what those of the answers before did."""
        if self.schema_numbering is None:
            self.schema_numbering = read.schema_numbering
        return self.schema_numbering == read.schema_numbering

    def answered(self, read: pb.CommandGeoReadResponse, size: int) -> bool:
        """Take one answer's bookkeeping, whose request is in `asked` no more; returns whether the range is over."""
        if read.blocked or read.HasField("error"):
            self.trouble = m.BLOCKED if read.blocked else m.RETRY
            self.kind, self.reason = read.blocked, read.message
        end = Position(read.end.ledger, read.end.entry)
        moved = end > self.after
        if moved:
            self.after = end
        self.left -= size
        if not moved or self.left <= 0 or self.after >= m.position(self.part.up_to):
            self.stopped = True
        return bool(self.trouble) or (self.stopped and not self.asked)

    def closing(self) -> bytes:
        """The bytes of the closing control row."""
        return m.encode(m.Closing(m.pair(self.after), self.trouble, self.kind, self.reason))


Answer = tuple[RangeReading, pb.CommandGeoReadResponse, memoryview]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A read under way."""

    progress: RangeReading
    size: int
    mark: Mark


class SourceReader:
    """One source broker's share of a task.

    Args:
        address, token: of the broker.
        ranges: its share; those that ended are in `over`.
        connect: opens or takes a kept connection.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        address: str,
        token: str,
        ranges: Sequence[RangeReading],
        connect: Connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._token, self._connect, self._clock = address, token, connect, clock
        self._waiting = deque(ranges)
        self._window_bytes_max = max((progress.route.window_bytes for progress in ranges), default=0)
        self._open: dict[int, RangeReading] = {}
        """By number; the oldest first."""
        self._asked: dict[int, _Asked] = {}
        self._asked_bytes = 0
        self.channel: LinkChannel | None = None
        self.silent_s = 0.0
        self.over: list[RangeReading] = []
        try:
            self.channel = connect(address, token)
        except LinkDown as down:
            self.give_up(str(down))
        else:
            self._fill(self.channel)

    @property
    def busy(self) -> bool:
        """Whether answers are awaited."""
        return bool(self._asked)

    def _fill(self, channel: LinkChannel) -> None:
        """Ask as much as the source's window allows: at least one read of each open range, and some ranges at a time."""
        now = self._clock()
        for progress in self._open.values():
            if not progress.asked:
                self._ask(channel, progress, now)
        window = channel.pace.window(channel.round_trip_s, now, 0, self._window_bytes_max)
        while self._waiting and (len(self._open) < READS_AHEAD or self._asked_bytes < window):
            progress = self._waiting.popleft()
            self._open[progress.part.number] = progress
            self._ask(channel, progress, now)
        if channel.hello is None or not channel.hello.reads_follow:
            return  # of the last version
        for progress in self._open.values():
            while self._asked_bytes < window and progress.to_ask > 0:
                self._ask(channel, progress, now)

    def _ask(self, channel: LinkChannel, progress: RangeReading, now: float) -> None:
        command = pb.BaseCommand(type=pb.GEO_READ)
        read = command.geo_read
        read.topic, read.to = progress.part.topic, progress.route.target
        read.after.ledger, read.after.entry = progress.after
        if progress.asked:
            read.follows = next(reversed(progress.asked))
        size = read.bytes_max = max(1, min(READ_BYTES_MAX, progress.to_ask))
        number = channel.request(command)
        progress.asked[number] = size
        self._asked[number] = _Asked(progress, size, channel.pace.asked(now))
        self._asked_bytes += size

    def pump(self, readable: bool, writable: bool) -> list[Answer]:
        """Continue; returns answers with entries. Ranges that ended are in `over`, after the answer that ended them."""
        channel = self.channel
        assert channel is not None
        answers: list[Answer] = []
        try:
            events = channel.pump(readable, writable)
        except LinkDown as down:
            if self._reconnect():
                return []
            self.give_up(str(down))
            return []
        for event in events:
            if event.command.type == pb.ERROR:
                self.give_up(event.command.error.message)
                return answers
            if not isinstance(event, Response) or (asked := self._asked.pop(event.request_id, None)) is None:
                continue
            self._asked_bytes -= asked.size
            channel.pace.answered(asked.mark, asked.size, self._clock())
            progress = asked.progress
            del progress.asked[event.request_id]
            if progress.over:
                continue  # it followed a read with a trouble
            read, payload = event.command.geo_read_response, event.payload
            if not fits(read, payload):
                self.give_up(
                    f"GEO_READ of {progress.part.topic}: the answer's lists do not fit its {len(payload)} bytes"
                )
                return answers
            if set(read.incarnations) - {progress.part.incarnation}:
                # Created again since the plan, by a clock that may be slow: these are other messages at old positions.
                progress.trouble, progress.reason = m.RETRY, f"{progress.part.topic} was created again in its source"
                self._close(progress)
                continue
            if read.sizes and not progress.same_numbering(read):
                # The topic got its first schema, or its schemas were forgotten: another range distinguishes the numbers.
                progress.trouble, progress.reason = m.RETRY, f"the schemas of {progress.part.topic} began again"
                self._close(progress)
                continue
            answers.append((progress, read, payload))
            if progress.answered(read, len(payload)):
                self._close(progress)
        self._fill(channel)
        return answers

    def _close(self, progress: RangeReading) -> None:
        progress.over = True
        self._open.pop(progress.part.number, None)
        self.over.append(progress)

    def _reconnect(self) -> bool:
        """A kept connection may have died between two tasks, unseen: it is worth one new one."""
        assert self.channel is not None
        if self.channel.fresh or self.channel.frames_received:
            return False
        self.channel.close()
        try:
            self.channel = new_channel(self._address, self._token)
        except LinkDown:
            return False
        self._forget()
        self._fill(self.channel)
        return True

    def _forget(self) -> None:
        """No answer will come to what was asked."""
        self._asked.clear()
        self._asked_bytes = 0
        for progress in self._open.values():
            progress.asked.clear()

    def give_up(self, reason: str) -> None:
        """Close every range that is not over where it is."""
        self._forget()
        for progress in [*self._open.values(), *self._waiting]:
            progress.trouble, progress.reason = m.SOURCE_DOWN, f"{progress.route.source}: {reason}"
            self._close(progress)
        self._waiting.clear()
        if self.channel is not None:
            self.channel.close()
            self.channel = None


def fits(read: pb.CommandGeoReadResponse, payload: memoryview) -> bool:
    """Whether the lists of an answer agree with each other and with the bytes that follow it."""
    return lists_agree(read) and sum(read.sizes) == len(payload)


def lists_agree(read: pb.CommandGeoReadResponse) -> bool:
    """Whether each entry of an answer is in all of its lists."""
    rows = len(read.sizes)
    lists = (read.ledgers, read.entries, read.first_indexes, read.counts, read.flags, read.publish_times)
    return all(len(values) == rows for values in lists)


def read_task(
    task: m.Task,
    token: str,
    decoded: Sequence[str] = (),
    *,
    connect: Connect = open_channel,
    progress_ms: int | None = None,
    poll: Poll | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the ranges of one task.

    Args:
        task: which.
        token: of the links.
        decoded: further columns, see `rows.DECODED`.
        connect: opens or takes a kept connection to an address.
        progress_ms: a source without a byte for this time is given up; None: as the routes say.
        poll: waits for the sources; None: one of its own.

    Yields:
        Batches of rows: each range opens and closes with a control row, whatever happens.
    """
    routes = {route.link: route for route in task.routes}
    by_address: dict[str, list[RangeReading]] = {}
    for part in task.ranges:
        route = routes[part.link]
        progress = RangeReading(part, route, m.position(part.after), part.bytes_max)
        by_address.setdefault(route.source_address, []).append(progress)
    if progress_ms is None:
        progress_ms = max((route.progress_ms for route in task.routes), default=0)
    assembler = Assembler(decoded)
    sources = [SourceReader(address, token, ranges, connect) for address, ranges in by_address.items()]
    for source in sources:
        _close_ranges(source, assembler)
    with closing(poll or ChannelPoll()) as waiting:
        while busy := [source for source in sources if source.busy]:
            for progress, read, payload in _step(busy, progress_ms, waiting):
                _open_range(progress, assembler)
                yield from assembler.entries(progress.part, read, payload)
            for source in busy:
                _close_ranges(source, assembler)
        yield from assembler.flush()
    for source in sources:
        if source.channel is not None:
            keep_channel(source.channel, token)


def _step(busy: Sequence[SourceReader], progress_ms: int, poll: Poll) -> list[Answer]:
    """Wait for one of the sources, take what came, and give up those that were silent for too long.

    Only time spent waiting here counts as silence: Spark may hold this generator back for long.
    """
    began = time.monotonic()
    waiting = [(source.channel, source) for source in busy if source.channel is not None]
    channels: dict[Pollable, SourceReader] = dict(waiting)
    answers: list[Answer] = []
    for channel, readable, writable in poll.wait(channels, progress_ms / 1000):
        answers += channels[channel].pump(readable, writable)
    waited = time.monotonic() - began
    for channel, source in waiting:
        source.silent_s = 0.0 if channel.progress_at >= began else source.silent_s + waited
        if source.silent_s * 1000 >= progress_ms and source.busy:
            source.give_up(f"no progress within {progress_ms} ms")
    return answers


def _open_range(progress: RangeReading, assembler: Assembler) -> None:
    if not progress.opened:
        progress.opened = True
        assembler.control(
            OPEN, progress.part, m.encode(m.Opening(progress.route, progress.part, progress.schema_numbering or 0))
        )


def _close_ranges(source: SourceReader, assembler: Assembler) -> None:
    for progress in source.over:
        _open_range(progress, assembler)
        assembler.control(CLOSE, progress.part, progress.closing())
    source.over.clear()
