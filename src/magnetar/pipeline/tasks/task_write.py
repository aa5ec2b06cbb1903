"""The sink's half of a task: takes rows and sends them to their destination brokers.

`AppendSender` sends to several destinations at once and gives up one without progress for half a second. No behaviour of a broker
makes this module raise an exception: it is in the report.

Only answers decide how far a range is settled: an append counts when the destination answered that it is *persisted*. C reaches
the end of the examined entries only when everything sent is confirmed; until then it is at the last confirmed append, and S with
it. An append that is refused, blocked or unanswered ends its range: later entries are not sent, because the destination would
have to refuse them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import CLOSE, ENTRY, FILLER, OPEN, TASK
from magnetar.pipeline.rows import Slices
from magnetar.pipeline.tasks.append_request import AppendRequest
from magnetar.pipeline.tasks.append_sender import APPEND_BYTES_MAX, APPEND_ENTRIES_MAX, AppendSender
from magnetar.pipeline.tasks.link_channel import open_channel
from magnetar.pipeline.tasks.task_read import Connect, read_task
from magnetar.pipeline.tasks.working_poll import WorkingPoll
from magnetar.runtime.clock import wall_ms


@dataclass(slots=True)
class RangeProgress:
    """The state of one range in this task: a `Progress` (`pipeline.tasks.append_request`)."""

    route: m.Route
    part: m.Range
    sent: Position
    schema_numbering: int = 0
    settled: Position | None = None
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
    clock_ms: Callable[[], int] = wall_ms

    @property
    def topic(self) -> str:
        """Its full name."""
        return self.part.topic

    @property
    def incarnation(self) -> int:
        """Incarnation of the topic in its source."""
        return self.part.incarnation

    @property
    def gen(self) -> int:
        """Generation of the link's cursor."""
        return self.part.gen

    def left(self) -> None:
        """One append less is under way."""
        self.under_way -= 1

    def throttled(self, throttle_ms: int) -> None:
        """The destination asks for a pause of this length, which the planner makes."""
        self.throttle_ms = max(self.throttle_ms, throttle_ms)

    def confirmed(self, append: AppendRequest, duplicates: int) -> None:
        """The destination has persisted all of an append."""
        self.settled = append.last
        self.entries += len(append.entries)
        self.messages += append.messages
        self.bytes += len(append.data)
        self.duplicates += duplicates
        self.confirmed_ms = self.clock_ms()
        known = self.oldest_publish_ms
        self.oldest_publish_ms = min(known or append.oldest_publish_ms, append.oldest_publish_ms)

    def fail(
        self, trouble: str, reason: str, kind: str = "", at: m.Pair | None = None, conflict: m.Packed = b""
    ) -> None:
        """Note the first trouble; later ones follow from it."""
        if not self.trouble:
            self.trouble, self.reason, self.kind, self.at, self.conflict = trouble, reason, kind, at, conflict

    def report(self) -> m.RangeReport:
        """How it ended; see the module's text for the rule."""
        part = self.part
        whole = not self.trouble and self.closing is not None and self.under_way == 0
        c: m.Pair | None = None
        if whole and self.closing is not None:
            c = self.closing.up_to
            if self.closing.trouble:
                self.fail(self.closing.trouble, self.closing.reason, self.closing.kind)
        elif self.settled is not None:
            c = m.pair(self.settled)
        return m.RangeReport(
            part.link, part.topic, part.incarnation, part.gen, c,
            m.pair(self.settled) if self.settled is not None else part.s,
            self.entries, self.messages, self.bytes, self.duplicates, whole and not self.trouble,
            self.trouble, self.kind, self.reason, self.throttle_ms, self.oldest_publish_ms, self.confirmed_ms, self.at,
            self.conflict, part.query_generation,
        )  # fmt: skip


class LinkSink:
    """Sends the rows of one task.

    Args:
        token: of the links.
        connect: opens or takes a kept connection to an address.
        clock_ms: wall clock, for the report.
        progress_ms: a destination without a byte for this time is given up; None: as its route says.
    """

    def __init__(
        self,
        token: str,
        *,
        connect: Connect = open_channel,
        clock_ms: Callable[[], int] = wall_ms,
        progress_ms: int | None = None,
        append_bytes_max: int = APPEND_BYTES_MAX,
    ) -> None:
        self._token, self._connect, self._progress_ms = token, connect, progress_ms
        self._clock_ms, self._append_bytes_max = clock_ms, append_bytes_max
        self._sender = AppendSender(token, connect, progress_ms)
        self._ranges: dict[int, RangeProgress] = {}
        self._direct: list[m.Task] = []
        self._began_ms = clock_ms()

    def feed(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, send as much as possible, wait only if far too many bytes are held back.

        Raises:
            ValueError: an entry comes without its range's opening row: a control row was dropped.
        """
        rows = Slices(batch)
        for begin, end in rows.runs():
            kind, number = int(rows.kind[begin]), int(rows.range[begin])
            if kind == OPEN:
                opening = m.decode_opening(rows.data(begin, end))
                self._ranges[number] = RangeProgress(
                    opening.route,
                    opening.range,
                    m.position(opening.range.s),
                    opening.schema_numbering,
                    clock_ms=self._clock_ms,
                )
                continue
            if kind == TASK:
                self._direct.append(m.decode_task(rows.data(begin, end)))
                continue
            if kind == FILLER:
                continue
            progress = self._ranges.get(number)
            if progress is None:
                raise ValueError(f"rows of range {number} came without their opening row: a control row was dropped")
            if kind == CLOSE:
                progress.closing = m.decode_closing(rows.data(begin, end))
            elif kind == ENTRY:
                self._enqueue(progress, rows, begin, end)
        self._sender.pump(0)
        while self._sender.full:
            self._sender.pump(self._sender.patience_s)

    def finish(self) -> m.TaskReport:
        """Read what is ours to read, wait until everything is confirmed or given up, and report."""
        for task in self._direct:
            poll = WorkingPoll(self._sender.pump)
            for batch in read_task(task, self._token, connect=self._connect, progress_ms=self._progress_ms, poll=poll):
                self.feed(batch)
        while self._sender.busy:
            self._sender.pump(self._sender.patience_s)
        self._sender.close()
        ms = self._clock_ms() - self._began_ms
        return m.TaskReport(tuple(progress.report() for progress in self._ranges.values()), ms)

    # ------------------------------------------------------------------------------------------------------- internals

    def _enqueue(self, progress: RangeProgress, rows: Slices, begin: int, end: int) -> None:
        if down := self._sender.down(progress.route):
            progress.fail(m.TARGET_DOWN, down)
        if progress.trouble:
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
            self._sender.put(append)


def write_task(batches: Iterable[pa.RecordBatch], token: str) -> m.TaskReport:
    """Send the rows of one task; returns how each of its ranges ended."""
    sink = LinkSink(token)
    for batch in batches:
        sink.feed(batch)
    return sink.finish()


SENT_COLUMNS: Sequence[str] = (
    "kind", "range", "ledger", "entry", "first_index", "message_count", "publish_time", "lists", "data"
)  # fmt: skip
"""The columns that the sink needs."""
