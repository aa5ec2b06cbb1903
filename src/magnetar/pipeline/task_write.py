"""The sink's half of a task: takes rows and sends them to their destination brokers.

Each destination has a window of bytes under way; several are served at once and none is waited for while another can go
on. A destination without progress for half a second is given up for this task. Data goes out as slices of the Arrow
buffers. Nothing here raises for what a broker does: the report tells it.

How far a range is settled is decided here, from answers alone: a piece counts when the destination answered that it is
*persisted*. C reaches the end of what was looked at only when everything sent is confirmed; until then it stands at the
last confirmed piece, and S with it. A piece that is refused, blocked or unanswered ends its range: what follows it is not
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
from magnetar.pipeline.schema_fetcher import Enquirer
from magnetar.pipeline.task_read import Connect
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Push, Response

PIECE_BYTES_MAX: Final = 1 << 20
"""One GEO_APPEND: below the brokers' frame limit, large enough that its fixed cost vanishes."""

PIECE_ENTRIES_MAX: Final = 4096


@dataclass(slots=True)
class Sending:
    """The state of one range in this task."""

    route: m.Route
    part: m.Range
    sent: Position
    schemas: int = 0
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
            self.conflict, part.life,
        )  # fmt: skip


@dataclass(slots=True)
class Piece:
    """One GEO_APPEND on its way."""

    sending: Sending
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
        route, part = self.sending.route, self.sending.part
        command = pb.BaseCommand(type=pb.GEO_APPEND)
        append = command.geo_append
        append.topic, append.source, append.uuid = part.topic, route.source, route.uuid
        append.incarnation, append.gen = part.incarnation, part.gen
        append.p.ledger, append.p.entry = self.p
        append.schemas = self.sending.schemas
        append.ledgers.extend(self.ledgers)
        append.entries.extend(self.entries)
        append.first_indexes.extend(self.first_indexes)
        append.counts.extend(self.counts)
        append.sizes.extend(self.sizes)
        return command


@dataclass(slots=True)
class Line:
    """The way to one destination; its limits are those of the route that opened it."""

    route: m.Route
    channel: LinkChannel | None = None
    queue: deque[Piece] = field(default_factory=deque)
    under_way: dict[int, Piece] = field(default_factory=dict)
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


class Courier:
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
        piece_bytes_max: int = PIECE_BYTES_MAX,
    ) -> None:
        self._token, self._connect, self._clock_ms = token, connect, clock_ms
        self._progress_ms, self._piece_max = progress_ms, piece_bytes_max
        self._lines: dict[str, Line] = {}
        self._ranges: dict[int, Sending] = {}
        self._enquirer = Enquirer(token, connect=connect)
        self._began_ms = clock_ms()

    def feed(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, send what goes, wait only if far too much is held back.

        Raises:
            ValueError: an entry comes without its range's opening row: somebody dropped a control row.
        """
        rows = Slices(batch)
        for begin, end in rows.runs():
            kind, number = int(rows.kind[begin]), int(rows.range[begin])
            if kind == OPEN:
                opening = m.decode_opening(rows.data(begin, end))
                self._ranges[number] = Sending(
                    opening.route, opening.range, m.position(opening.range.s), opening.schemas
                )
                continue
            sending = self._ranges.get(number)
            if sending is None:
                raise ValueError(f"rows of range {number} came without their opening row: a control row was dropped")
            if kind == CLOSE:
                sending.closing = m.decode_closing(rows.data(begin, end))
            elif kind in (ENTRY, BLOCK):
                self._enqueue(sending, rows, begin, end)
        self._pump(0)
        while any(line.full for line in self._lines.values()):
            self._pump(self._patience_s())

    def finish(self) -> m.TaskReport:
        """Wait until everything is confirmed or given up, and report."""
        while any(line.busy for line in self._lines.values()):
            self._pump(self._patience_s())
        for line in self._lines.values():
            if line.channel is not None:
                keep_channel(line.channel, self._token)
        self._enquirer.close()
        ms = self._clock_ms() - self._began_ms
        return m.TaskReport(tuple(sending.report() for sending in self._ranges.values()), ms)

    # ------------------------------------------------------------------------------------------------------- internals

    def _patience_ms(self, line: Line) -> int:
        return line.route.progress_ms if self._progress_ms is None else self._progress_ms

    def _patience_s(self) -> float:
        return min(self._patience_ms(line) for line in self._lines.values() if line.busy) / 1000

    def _enqueue(self, sending: Sending, rows: Slices, begin: int, end: int) -> None:
        line = self._line(sending.route)
        if sending.trouble or line.down:
            if line.down:
                sending.fail(m.TARGET_DOWN, line.down)
            return
        for first, past in rows.pieces(begin, end, self._piece_max, PIECE_ENTRIES_MAX):
            last = Position(int(rows.ledger[past - 1]), int(rows.entry[past - 1]))
            ledgers, entries, indexes, counts, published, sizes = rows.lists(first, past)
            piece = Piece(
                sending, sending.sent, last,
                ledgers.tolist(), entries.tolist(), indexes.tolist(), counts.tolist(), sizes.tolist(),
                rows.data(first, past), int(counts.sum()), int(published.min()),
            )  # fmt: skip
            sending.sent = last
            sending.under_way += 1
            line.queue.append(piece)
            line.queued_bytes += len(piece.data)

    def _line(self, route: m.Route) -> Line:
        line = self._lines.get(route.target_address)
        if line is None:
            line = self._lines[route.target_address] = Line(route)
            try:
                line.channel = self._connect(route.target_address, self._token)
            except LinkDown as down:
                self._give_up(line, str(down))
        return line

    def _pump(self, timeout: float) -> None:
        """Send and receive what goes; wait at most `timeout` seconds for any destination; give up the silent ones."""
        began = time.monotonic()
        lines = {line.channel: line for line in self._lines.values() if line.channel is not None and line.busy}
        for line in lines.values():
            self._fill_window(line)
        sources = self._enquirer.channels
        timeout = min(timeout, self._enquirer.patience_s) if sources else timeout
        for channel, readable, writable in wait([*lines, *sources], timeout):
            if channel in sources:
                self._enquirer.pump(sources[channel], readable, writable)
                continue
            line = lines[channel]
            try:
                for event in channel.pump(readable, writable):
                    self._answered(line, event)
            except LinkDown as down:
                if not self._reconnect(line):
                    self._give_up(line, str(down))
        if sources:
            self._enquirer.give_up_silent()
        waited = time.monotonic() - began
        for channel, line in lines.items():
            line.silent_s = 0.0 if channel.progress_at >= began else line.silent_s + waited
            if line.busy and line.silent_s * 1000 >= self._patience_ms(line):
                self._give_up(line, f"no progress within {self._patience_ms(line)} ms")

    def _fill_window(self, line: Line) -> None:
        assert line.channel is not None
        while line.queue and (line.window_bytes < line.route.window_bytes or not line.under_way):
            piece = line.queue.popleft()
            line.queued_bytes -= len(piece.data)
            if piece.sending.trouble:
                piece.sending.under_way -= 1
                continue
            line.window_bytes += len(piece.data)
            line.under_way[line.channel.request(piece.command(), [piece.data])] = piece

    def _answered(self, line: Line, event: Response | Push) -> None:
        command = event.command
        if command.type == pb.ERROR:
            self._give_up(line, command.error.message)
            return
        if command.type == pb.GEO_SCHEMAS_WANTED:
            self._wanted(line, command.geo_schemas_wanted)
            return
        answer = command.geo_append_response
        piece = line.under_way.pop(event.request_id, None) if isinstance(event, Response) else None
        if piece is None:
            return
        line.window_bytes -= len(piece.data)
        sending = piece.sending
        sending.under_way -= 1
        sending.throttle_ms = max(sending.throttle_ms, answer.throttle_ms)
        persisted = Position(answer.persisted.ledger, answer.persisted.entry)
        if answer.blocked:
            if not sending.trouble:
                self._partly_confirmed(piece, persisted, answer)
            sending.fail(m.BLOCKED, answer.reason, answer.blocked)
        elif answer.refused:
            sending.fail(m.REFUSED, f"the destination has {persisted}")
        elif answer.retry or persisted < piece.last:
            sending.fail(m.RETRY, answer.reason or f"only {persisted} is persisted")
        elif not sending.trouble:
            self._confirmed(piece, answer.duplicates)

    def _wanted(self, line: Line, wanted: pb.CommandGeoSchemasWanted) -> None:
        """A piece's schemas mean nothing there: its destination waits for what the source says they are."""
        channel = line.channel
        routes = (piece.sending.route for piece in line.under_way.values())
        address = next((route.source_address for route in routes if route.source == wanted.source), "")
        if not address:
            return  # nothing of it is under way any more

        def tell(brought: pb.CommandGeoSchemasBrought) -> None:
            if line.channel is channel and channel is not None:  # else the piece is given up, and so is its question
                channel.send(pb.BaseCommand(type=pb.GEO_SCHEMAS_BROUGHT, geo_schemas_brought=brought))

        self._enquirer.ask(address, wanted, self._patience_ms(line), tell)

    def _confirmed(self, piece: Piece, duplicates: int) -> None:
        sending = piece.sending
        sending.confirmed = piece.last
        sending.entries += len(piece.entries)
        sending.messages += piece.messages
        sending.bytes += len(piece.data)
        sending.duplicates += duplicates
        sending.confirmed_ms = self._clock_ms()
        known = sending.oldest_publish_ms
        sending.oldest_publish_ms = min(known or piece.oldest_publish_ms, piece.oldest_publish_ms)

    def _partly_confirmed(self, piece: Piece, persisted: Position, answer: pb.CommandGeoAppendResponse) -> None:
        """An entry in the middle blocks: what came before it is stored, and settled."""
        if answer.HasField("position"):
            piece.sending.at = (answer.position.ledger, answer.position.entry)
        if answer.HasField("conflict"):
            piece.sending.conflict = answer.conflict.SerializeToString()
        positions = list(zip(piece.ledgers, piece.entries, strict=True))
        if persisted in positions:
            stored = positions.index(persisted) + 1
            size = sum(piece.sizes[:stored])
            done = Piece(
                piece.sending, piece.p, persisted, piece.ledgers[:stored], piece.entries[:stored],
                piece.first_indexes[:stored], piece.counts[:stored], piece.sizes[:stored], piece.data[:size],
                sum(piece.counts[:stored]), piece.oldest_publish_ms,
            )  # fmt: skip
            self._confirmed(done, min(answer.duplicates, stored))

    def _reconnect(self, line: Line) -> bool:
        """A kept connection may have died between two tasks, unseen: it is worth one new one.

        Sending again is harmless: what had arrived is answered as stored.
        """
        if line.channel is None or line.channel.fresh or line.channel.frames_received:
            return False
        line.channel.close()
        try:
            line.channel = LinkChannel(line.route.target_address, self._token)
        except LinkDown:
            return False
        pieces = list(line.under_way.values())
        line.under_way = {line.channel.request(piece.command(), [piece.data]): piece for piece in pieces}
        return True

    def _give_up(self, line: Line, reason: str) -> None:
        line.down = f"{line.route.target}: {reason}"
        for piece in [*line.under_way.values(), *line.queue]:
            piece.sending.fail(m.TARGET_DOWN, line.down)
        line.queue.clear()
        line.under_way.clear()
        line.queued_bytes = line.window_bytes = 0
        if line.channel is not None:
            line.channel.close()
            line.channel = None


def write_task(batches: Iterable[pa.RecordBatch], token: str) -> m.TaskReport:
    """Send the rows of one task; returns how each of its ranges ended."""
    courier = Courier(token)
    for batch in batches:
        courier.feed(batch)
    return courier.finish()


SENT_COLUMNS: Sequence[str] = (
    "kind", "range", "ledger", "entry", "first_index", "message_count", "publish_time", "lists", "data"
)  # fmt: skip
"""What the sink needs of a row."""
