"""The sink's half of a long batch: sends entries at once, and reports to the sources what the destinations have persisted.

The links without a filter are read here, too (`pipeline.tasks.direct`): Spark's rows are those of the other links. A thread takes
them (`pipeline.long.row_queue`). Everything else happens in one loop over all connections. `pipeline.long.fetched_topics` has the
progress of the topics.
"""

import random
import time
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.core.ids import Position
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import ANSWER, ENTRY, FETCHED, FILLER, LOOKED, READY, ROUTE, TASK
from magnetar.pipeline.long.commit_channel import CommitChannel
from magnetar.pipeline.long.fetch_read import FetchReader
from magnetar.pipeline.long.fetched_topics import FetchedTopic, LinkProgress
from magnetar.pipeline.long.hand_over import ReadyPort, say_ready
from magnetar.pipeline.long.plain_rows import plain_rows
from magnetar.pipeline.long.row_queue import RowQueue
from magnetar.pipeline.rows import Slices, cut
from magnetar.pipeline.tasks.append_sender import APPEND_BYTES_MAX, APPEND_ENTRIES_MAX, AppendSender
from magnetar.pipeline.tasks.channel_poll import Pollable
from magnetar.pipeline.tasks.link_channel import open_channel
from magnetar.pipeline.tasks.task_read import Connect
from magnetar.pipeline.tasks.working_poll import Ready, WorkingPoll
from magnetar.runtime.clock import wall_ms
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_from_proto

COMMIT_S: Final = 0.1
"""Confirmations are collected this long. Each commit wakes its source, and its answer wakes this task: at 50 messages a second a
tenth of the processor time of all processes, if each message has one."""

COMMIT_PROMPT_S: Final = 0.01
"""The same for those that are prompt (`LinkProgress.prompt`)."""

WAIT_S: Final = 0.5
"""The loop checks its clocks at least this often."""

END_S: Final = 2.0
"""How long the last confirmations may take to reach their sources at the end of a batch."""

_PLAIN: Final = frozenset((ANSWER, ROUTE, READY, FILLER, TASK))


class FetchSink:
    """Sends the rows of one long batch.

    Args:
        token: of the links.
        connect: opens or takes a kept connection to an address.

    Attributes:
        direct: tasks that have come, and that this process has to read itself.
    """

    def __init__(self, token: str, *, connect: Connect = open_channel) -> None:
        self.direct: list[m.Task] = []
        self._token, self._connect = token, connect
        self._sender = AppendSender(token, connect, heeds_throttles=True)
        self._links: dict[int, LinkProgress] = {}
        self._numbers: dict[int, FetchedTopic] = {}
        self._commits: dict[str, CommitChannel] = {}
        self._committed_at = 0.0
        self._ports: list[int] = []
        """Where readers wait for the word that the connections to the destinations are open."""
        self._task = random.SystemRandom().getrandbits(63) | 1

    def feed(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch and queue their entries."""
        plain = plain_rows(batch, _PLAIN)
        if plain is not None:
            for kind, link, lists, data in plain:
                self._row(kind, link, lists, data)
            return
        rows = Slices(batch)
        for begin, end in rows.runs():
            kind, link = int(rows.kind[begin]), int(rows.link[begin])
            if kind in _PLAIN:
                self._row(kind, link, rows.list_bytes(begin), rows.data(begin, end))
            elif kind == ENTRY:
                self._entries(self._numbers[int(rows.range[begin])], rows, begin, end)
            elif kind == FETCHED:
                head = m.decode_fetched(rows.data(begin, end))
                p = Position(*head.p) if head.p is not None else None
                self._numbers[int(rows.range[begin])] = self._topic(
                    self._links[link], head.topic, head.incarnation, head.grant, head.gen, head.schema_numbering, p,
                    bytes(rows.list_bytes(begin)).decode(),
                )  # fmt: skip
            elif kind == LOOKED:
                self._numbers[int(rows.range[begin])].looked_to(
                    Position(int(rows.ledger[begin]), int(rows.entry[begin])), timed=bool(rows.data(begin, end))
                )

    def _row(self, kind: int, link: int, lists: memoryview, data: memoryview) -> None:
        """Handle a row that is not an entry."""
        if kind == ANSWER:
            self._answer(self._links[link], pb.CommandGeoFetchResponse.FromString(bytes(lists)), data)
        elif kind == ROUTE:
            totals = pb.GeoFetchTotals(task=self._task, messages=0, bytes=0, duplicates=0)
            self._links[link] = LinkProgress(m.decode_route(data), totals, wall_ms)
        elif kind == TASK:
            self.direct.append(m.decode_task(data))
        elif kind == READY:
            self._ports.append(int(bytes(data)))
            for progress in self._links.values():
                self._sender.down(progress.route)  # opens the connection
            self._when_opened()

    def _answer(self, link: LinkProgress, response: pb.CommandGeoFetchResponse, data: memoryview) -> None:
        at = 0
        for part in response.parts:
            read = part.read
            size = sum(read.sizes)
            p = position_from_proto(part.p) if part.HasField("p") else None
            topic = self._topic(
                link, part.topic, part.incarnation, part.grant, part.gen, read.schema_numbering, p, response.uuid
            )
            if not topic.trouble and read.sizes:
                self._send(
                    topic, list(read.ledgers), list(read.entries), list(read.first_indexes), list(read.counts),
                    list(read.sizes), min(read.publish_times), data[at : at + size],
                )  # fmt: skip
            topic.looked_to(position_from_proto(read.end), timed=read.timed)
            at += size

    def _topic(
        self, link: LinkProgress, name: str, incarnation: int, grant: int, gen: int, numbering: int, p: Position | None,
        uuid: str,
    ) -> FetchedTopic:  # fmt: skip
        """The topic that entries are of. With a new grant, a destination that was given up is tried again."""
        topic, begins = link.topic(name, incarnation, grant, gen, numbering, p, uuid)
        if begins:
            self._sender.revive(topic.route)
        if not topic.trouble and (down := self._sender.down(topic.route)):
            topic.fail(m.TARGET_DOWN, down)
        return topic

    def _entries(self, topic: FetchedTopic, rows: Slices, begin: int, end: int) -> None:
        """Single entries that a filter let through."""
        if topic.trouble:
            return
        for first, past in rows.pieces(begin, end, APPEND_BYTES_MAX, APPEND_ENTRIES_MAX):
            ledgers, entries, indexes, counts, published, sizes = rows.lists(first, past)
            self._append(
                topic, ledgers.tolist(), entries.tolist(), indexes.tolist(), counts.tolist(), sizes.tolist(),
                int(published.min()), rows.data(first, past),
            )  # fmt: skip

    def _send(
        self, topic: FetchedTopic, ledgers: list[int], entries: list[int], indexes: list[int], counts: list[int],
        sizes: list[int], published: int, data: memoryview,
    ) -> None:  # fmt: skip
        if len(data) <= APPEND_BYTES_MAX and len(sizes) <= APPEND_ENTRIES_MAX:
            self._append(topic, ledgers, entries, indexes, counts, sizes, published, data)
            return
        offsets = np.cumsum([0, *sizes])
        for begin, end in cut(offsets, 0, len(sizes), APPEND_BYTES_MAX, APPEND_ENTRIES_MAX):
            self._append(
                topic, ledgers[begin:end], entries[begin:end], indexes[begin:end], counts[begin:end], sizes[begin:end],
                published, data[int(offsets[begin]) : int(offsets[end])],
            )  # fmt: skip

    def _append(
        self, topic: FetchedTopic, ledgers: list[int], entries: list[int], indexes: list[int], counts: list[int],
        sizes: list[int], published: int, data: memoryview,
    ) -> None:  # fmt: skip
        self._sender.put(topic.append(ledgers, entries, indexes, counts, sizes, published, data))

    # ----------------------------------------------------------------------------------------------------------- moving

    def pump(self, timeout: float, rows: RowQueue, others: Mapping[Pollable, Ready] | None = None) -> None:
        """Send, receive and commit as much as possible; wait at most `timeout` seconds.

        Args:
            timeout: seconds.
            rows: from Spark: waiting ends when some have come.
            others: to wait for, and the call for each when it is ready.
        """
        wait = min(timeout, self._commit())
        waiting: dict[Pollable, Ready] = {rows: rows.drain, **(others or {})}
        for commits in self._commits.values():
            if commits.channel is not None:
                waiting[commits.channel] = commits.pump
        self._sender.pump(wait, waiting)
        if self._ports:
            self._when_opened()

    def _when_opened(self) -> None:
        """Say to the readers that they can begin, if no destination has still to accept its connection."""
        if all(self._sender.opened(link.route) for link in self._links.values()):
            for port in self._ports:
                say_ready(port)
            self._ports.clear()

    def _commit(self) -> float:
        """Report confirmations to the sources, if it is time; returns how long to wait for the next time."""
        now = time.monotonic()
        for commits in self._commits.values():
            commits.go_on()
            for ignored, commit in commits.ignored():
                self._links[ignored].ignored(commit)
        if not any(link.dirty for link in self._links.values()):
            return WAIT_S
        collected_s = COMMIT_PROMPT_S if any(link.prompt for link in self._links.values()) else COMMIT_S
        if (left := self._committed_at + collected_s - now) > 0:
            return left
        self._committed_at = now
        for number, link in self._links.items():
            if link.dirty:
                self._channel(link.route).put(number, link.route.target, link.take_commits(), link.totals)
        return WAIT_S

    def _channel(self, route: m.Route) -> CommitChannel:
        commits = self._commits.get(route.source_address)
        if commits is None:
            commits = self._commits[route.source_address] = CommitChannel(
                route.source_address, self._token, route.progress_ms, self._connect
            )
        return commits

    @property
    def busy(self) -> bool:
        """Whether the destinations have still to answer, or the sources."""
        return (
            self._sender.busy
            or any(link.dirty for link in self._links.values())
            or any(commits.busy for commits in self._commits.values())
        )

    def finish(self, rows: RowQueue) -> m.TaskReport:
        """Wait until everything is confirmed or given up, and the sources know it."""
        while self._sender.busy:
            self.pump(self._sender.patience_s, rows)
        for link in self._links.values():
            link.prompt = True
        until = time.monotonic() + END_S
        while self.busy and time.monotonic() < until:
            self.pump(COMMIT_PROMPT_S, rows)
        for commits in self._commits.values():
            commits.close()
        self._sender.close()
        return m.TaskReport((), 0)


def fetch_write(batches: Iterable[pa.RecordBatch], token: str, *, connect: Connect = open_channel) -> m.TaskReport:
    """Send the rows of one long batch in a Spark worker, and what this process reads itself.

    Args:
        batches: they come when the reader yields them.
        token: of the links.
        connect: opens or takes a kept connection to an address.

    Raises:
        BaseException: what Spark's stream raised.
    """
    rows = RowQueue(batches)
    sink = FetchSink(token, connect=connect)

    def work(timeout: float, others: Mapping[Pollable, Ready]) -> None:
        sink.pump(min(timeout, WAIT_S), rows, others)
        for batch in rows.taken():
            sink.feed(batch)

    while not rows.over:
        work(WAIT_S, {})
        while sink.direct:
            reader = FetchReader(sink.direct.pop(), token, connect=connect, ready=ReadyPort(), poll=WorkingPoll(work))
            for batch in reader.batches():
                sink.feed(batch)
    for batch in rows.taken():
        sink.feed(batch)
    report = sink.finish(rows)
    rows.close()
    return report
