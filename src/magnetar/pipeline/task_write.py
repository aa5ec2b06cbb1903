"""The sink's half of a task: takes rows and sends them to their destination brokers.

Each destination has a window of bytes under way; several are served at once and none is waited for while another can go
on. A destination without progress for half a second is given up for this task. Data goes out as slices of the Arrow
buffers. Nothing here raises for what a broker does: the report tells it.

How far a range is settled is decided here, from answers alone: an append counts when the destination answered that it is
*persisted*. C reaches the end of what was looked at only when everything sent is confirmed; until then it stands at the
last confirmed append, and S with it. An append that is refused, blocked or unanswered ends its range: what follows it is not
sent, because the destination would have to refuse it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import BLOCK, CLOSE, ENTRY, OPEN
from magnetar.pipeline.link_channel import LinkChannel, keep_channel, open_channel, wait
from magnetar.pipeline.rows import Slices
from magnetar.pipeline.schema_fetcher import SchemaFetcher
from magnetar.pipeline.task_read import Connect
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Push, Response

APPEND_BYTES_MAX: Final = 1 << 20
"""One GEO_APPEND: below the brokers' frame limit, large enough that its fixed cost vanishes."""

APPEND_ENTRIES_MAX: Final = 4096


@dataclass(slots=True)
class RangeProgress:
    """The state of one range in this task."""

    route: m.Route
    part: m.Range
    sent: Position
    schema_numbering: int = 0
    confirmed: Position | None = None
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    under_way: int = 0
    closing: m.Closing | None = None
    trouble: str = ""
    kind: str = ""
    reason: str = ""
    at: m.Pair | None = None
    conflict: m.Packed = b""
    throttle_ms: int = 0
    oldest_publish_ms: int = 0
    confirmed_ms: int = 0

    def fail(self, trouble: str, reason: str, kind: str = "") -> None:
        """Note the first trouble; what follows from it is not news."""
        if not self.trouble:
            self.trouble, self.reason, self.kind = trouble, reason, kind

    def report(self) -> m.RangeReport:
        """How it ended; see the module's text for the rule."""
        part = self.part
        whole = not self.trouble and self.closing is not None and self.under_way == 0
        c: m.Pair | None = None
        if whole and self.closing is not None:
            c = self.closing.up_to
            if self.closing.trouble:
                self.fail(self.closing.trouble, self.closing.reason, self.closing.kind)
        elif self.confirmed is not None:
            c = m.pair(self.confirmed)
        return m.RangeReport(
            part.link, part.topic, part.incarnation, part.gen, c,
            m.pair(self.confirmed) if self.confirmed is not None else part.s,
            self.entries, self.messages, self.bytes, self.duplicates, whole and not self.trouble,
            self.trouble, self.kind, self.reason, self.throttle_ms, self.oldest_publish_ms, self.confirmed_ms, self.at,
            self.conflict, part.query_generation,
        )  # fmt: skip


@dataclass(slots=True)
class AppendRequest:
    """One GEO_APPEND on its way."""

    progress: RangeProgress
    p: Position
    last: Position
    ledgers: list[int]
    entries: list[int]
    first_indexes: list[int]
    counts: list[int]
    sizes: list[int]
    data: memoryview
    messages: int
    oldest_publish_ms: int

    def command(self) -> pb.BaseCommand:
        """The command; the data follows it in the frame."""
        route, part = self.progress.route, self.progress.part
        command = pb.BaseCommand(type=pb.GEO_APPEND)
        append = command.geo_append
        append.topic, append.source, append.uuid = part.topic, route.source, route.uuid
        append.incarnation, append.gen = part.incarnation, part.gen
        append.p.ledger, append.p.entry = self.p
        append.schema_numbering = self.progress.schema_numbering
        append.ledgers.extend(self.ledgers)
        append.entries.extend(self.entries)
        append.first_indexes.extend(self.first_indexes)
        append.counts.extend(self.counts)
        append.sizes.extend(self.sizes)
        return command


@dataclass(slots=True)
class DestinationChannel:
    """The way to one destination; its limits are those of the route that opened it."""

    route: m.Route
    channel: LinkChannel | None = None
    queue: deque[AppendRequest] = field(default_factory=deque)
    under_way: dict[int, AppendRequest] = field(default_factory=dict)
    queued_bytes: int = 0
    window_bytes: int = 0
    down: str = ""
    silent_s: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether something is to be sent or an answer is awaited."""
        return not self.down and bool(self.queue or self.under_way)

    @property
    def full(self) -> bool:
        """Whether too much is held back for it."""
        return self.busy and self.queued_bytes > self.route.buffer_bytes_max


class LinkSink:
    """Sends the rows of one task.

    Args:
        token: of the links.
        connect: opens or takes a kept connection to an address.
        clock_ms: wall clock, for the report.
        progress_ms: without a byte for so long, a destination is given up; None: as its route says.
    """

    def __init__(
        self,
        token: str,
        *,
        connect: Connect = open_channel,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        progress_ms: int | None = None,
        append_bytes_max: int = APPEND_BYTES_MAX,
    ) -> None:
        self._token, self._connect, self._clock_ms = token, connect, clock_ms
        self._progress_ms, self._append_bytes_max = progress_ms, append_bytes_max
        self._destinations: dict[str, DestinationChannel] = {}
        self._ranges: dict[int, RangeProgress] = {}
        self._schema_fetcher = SchemaFetcher(token, connect=connect)
        self._began_ms = clock_ms()

    def feed(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, send what goes, wait only if far too much is held back.

        Raises:
            ValueError: an entry comes without its range's opening row: a control row was dropped.
        """
        rows = Slices(batch)
        for begin, end in rows.runs():
            kind, number = int(rows.kind[begin]), int(rows.range[begin])
            if kind == OPEN:
                opening = m.decode_opening(rows.data(begin, end))
                self._ranges[number] = RangeProgress(
                    opening.route, opening.range, m.position(opening.range.s), opening.schema_numbering
                )
                continue
            progress = self._ranges.get(number)
            if progress is None:
                raise ValueError(f"rows of range {number} came without their opening row: a control row was dropped")
            if kind == CLOSE:
                progress.closing = m.decode_closing(rows.data(begin, end))
            elif kind in (ENTRY, BLOCK):
                self._enqueue(progress, rows, begin, end)
        self._pump(0)
        while any(destination.full for destination in self._destinations.values()):
            self._pump(self._patience_s())

    def finish(self) -> m.TaskReport:
        """Wait until everything is confirmed or given up, and report."""
        while any(destination.busy for destination in self._destinations.values()):
            self._pump(self._patience_s())
        for destination in self._destinations.values():
            if destination.channel is not None:
                keep_channel(destination.channel, self._token)
        self._schema_fetcher.close()
        ms = self._clock_ms() - self._began_ms
        return m.TaskReport(tuple(progress.report() for progress in self._ranges.values()), ms)

    # ------------------------------------------------------------------------------------------------------- internals

    def _patience_ms(self, destination: DestinationChannel) -> int:
        return destination.route.progress_ms if self._progress_ms is None else self._progress_ms

    def _patience_s(self) -> float:
        return (
            min(self._patience_ms(destination) for destination in self._destinations.values() if destination.busy)
            / 1000
        )

    def _enqueue(self, progress: RangeProgress, rows: Slices, begin: int, end: int) -> None:
        destination = self._destination(progress.route)
        if progress.trouble or destination.down:
            if destination.down:
                progress.fail(m.TARGET_DOWN, destination.down)
            return
        for first, past in rows.pieces(begin, end, self._append_bytes_max, APPEND_ENTRIES_MAX):
            last = Position(int(rows.ledger[past - 1]), int(rows.entry[past - 1]))
            ledgers, entries, indexes, counts, published, sizes = rows.lists(first, past)
            append = AppendRequest(
                progress, progress.sent, last,
                ledgers.tolist(), entries.tolist(), indexes.tolist(), counts.tolist(), sizes.tolist(),
                rows.data(first, past), int(counts.sum()), int(published.min()),
            )  # fmt: skip
            progress.sent = last
            progress.under_way += 1
            destination.queue.append(append)
            destination.queued_bytes += len(append.data)

    def _destination(self, route: m.Route) -> DestinationChannel:
        destination = self._destinations.get(route.target_address)
        if destination is None:
            destination = self._destinations[route.target_address] = DestinationChannel(route)
            try:
                destination.channel = self._connect(route.target_address, self._token)
            except LinkDown as down:
                self._give_up(destination, str(down))
        return destination

    def _pump(self, timeout: float) -> None:
        """Send and receive what goes; wait at most `timeout` seconds for any destination; give up the silent ones."""
        began = time.monotonic()
        destinations = {
            destination.channel: destination
            for destination in self._destinations.values()
            if destination.channel is not None and destination.busy
        }
        for destination in destinations.values():
            self._fill_window(destination)
        sources = self._schema_fetcher.channels
        timeout = min(timeout, self._schema_fetcher.patience_s) if sources else timeout
        for channel, readable, writable in wait([*destinations, *sources], timeout):
            if channel in sources:
                self._schema_fetcher.pump(sources[channel], readable, writable)
                continue
            destination = destinations[channel]
            try:
                for event in channel.pump(readable, writable):
                    self._answered(destination, event)
            except LinkDown as down:
                if not self._reconnect(destination):
                    self._give_up(destination, str(down))
        if sources:
            self._schema_fetcher.give_up_silent()
        waited = time.monotonic() - began
        for channel, destination in destinations.items():
            destination.silent_s = 0.0 if channel.progress_at >= began else destination.silent_s + waited
            if destination.busy and destination.silent_s * 1000 >= self._patience_ms(destination):
                self._give_up(destination, f"no progress within {self._patience_ms(destination)} ms")

    def _fill_window(self, destination: DestinationChannel) -> None:
        assert destination.channel is not None
        while destination.queue and (
            destination.window_bytes < destination.route.window_bytes or not destination.under_way
        ):
            append = destination.queue.popleft()
            destination.queued_bytes -= len(append.data)
            if append.progress.trouble:
                append.progress.under_way -= 1
                continue
            destination.window_bytes += len(append.data)
            destination.under_way[destination.channel.request(append.command(), [append.data])] = append

    def _answered(self, destination: DestinationChannel, event: Response | Push) -> None:
        command = event.command
        if command.type == pb.ERROR:
            self._give_up(destination, command.error.message)
            return
        if command.type == pb.GEO_SCHEMAS_WANTED:
            self._wanted(destination, command.geo_schemas_wanted)
            return
        answer = command.geo_append_response
        append = destination.under_way.pop(event.request_id, None) if isinstance(event, Response) else None
        if append is None:
            return
        destination.window_bytes -= len(append.data)
        progress = append.progress
        progress.under_way -= 1
        progress.throttle_ms = max(progress.throttle_ms, answer.throttle_ms)
        persisted = Position(answer.persisted.ledger, answer.persisted.entry)
        if answer.blocked:
            if not progress.trouble:
                self._partly_confirmed(append, persisted, answer)
            progress.fail(m.BLOCKED, answer.reason, answer.blocked)
        elif answer.refused:
            progress.fail(m.REFUSED, f"the destination has {persisted}")
        elif answer.retry or persisted < append.last:
            progress.fail(m.RETRY, answer.reason or f"only {persisted} is persisted")
        elif not progress.trouble:
            self._confirmed(append, answer.duplicates)

    def _wanted(self, destination: DestinationChannel, wanted: pb.CommandGeoSchemasWanted) -> None:
        """An append's schemas mean nothing there: its destination waits for what the source says they are."""
        channel = destination.channel
        routes = (append.progress.route for append in destination.under_way.values())
        address = next((route.source_address for route in routes if route.source == wanted.source), "")
        if not address:
            return  # nothing of it is under way any more

        def reply(brought: pb.CommandGeoSchemasBrought) -> None:
            if (
                destination.channel is channel and channel is not None
            ):  # else the append is given up, and so is its question
                channel.send(pb.BaseCommand(type=pb.GEO_SCHEMAS_BROUGHT, geo_schemas_brought=brought))

        self._schema_fetcher.ask(address, wanted, self._patience_ms(destination), reply)

    def _confirmed(self, append: AppendRequest, duplicates: int) -> None:
        progress = append.progress
        progress.confirmed = append.last
        progress.entries += len(append.entries)
        progress.messages += append.messages
        progress.bytes += len(append.data)
        progress.duplicates += duplicates
        progress.confirmed_ms = self._clock_ms()
        known = progress.oldest_publish_ms
        progress.oldest_publish_ms = min(known or append.oldest_publish_ms, append.oldest_publish_ms)

    def _partly_confirmed(
        self, append: AppendRequest, persisted: Position, answer: pb.CommandGeoAppendResponse
    ) -> None:
        """An entry in the middle blocks: what came before it is stored, and settled."""
        if answer.HasField("position"):
            append.progress.at = (answer.position.ledger, answer.position.entry)
        if answer.HasField("conflict"):
            append.progress.conflict = answer.conflict.SerializeToString()
        positions = list(zip(append.ledgers, append.entries, strict=True))
        if persisted in positions:
            stored = positions.index(persisted) + 1
            size = sum(append.sizes[:stored])
            done = AppendRequest(
                append.progress, append.p, persisted, append.ledgers[:stored], append.entries[:stored],
                append.first_indexes[:stored], append.counts[:stored], append.sizes[:stored], append.data[:size],
                sum(append.counts[:stored]), append.oldest_publish_ms,
            )  # fmt: skip
            self._confirmed(done, min(answer.duplicates, stored))

    def _reconnect(self, destination: DestinationChannel) -> bool:
        """A kept connection may have died between two tasks, unseen: it is worth one new one.

        RangeProgress again is harmless: what had arrived is answered as stored.
        """
        if destination.channel is None or destination.channel.fresh or destination.channel.frames_received:
            return False
        destination.channel.close()
        try:
            destination.channel = LinkChannel(destination.route.target_address, self._token)
        except LinkDown:
            return False
        appends = list(destination.under_way.values())
        destination.under_way = {
            destination.channel.request(append.command(), [append.data]): append for append in appends
        }
        return True

    def _give_up(self, destination: DestinationChannel, reason: str) -> None:
        destination.down = f"{destination.route.target}: {reason}"
        for append in [*destination.under_way.values(), *destination.queue]:
            append.progress.fail(m.TARGET_DOWN, destination.down)
        destination.queue.clear()
        destination.under_way.clear()
        destination.queued_bytes = destination.window_bytes = 0
        if destination.channel is not None:
            destination.channel.close()
            destination.channel = None


def write_task(batches: Iterable[pa.RecordBatch], token: str) -> m.TaskReport:
    """Send the rows of one task; returns how each of its ranges ended."""
    sink = LinkSink(token)
    for batch in batches:
        sink.feed(batch)
    return sink.finish()


SENT_COLUMNS: Sequence[str] = (
    "kind", "range", "ledger", "entry", "first_index", "message_count", "publish_time", "lists", "data"
)  # fmt: skip
"""What the sink needs of a row."""
