"""One attempt to carry a long batch, as a Spark task does it: one half asks the source, the other one sends and confirms.

The halves are those of `magnetar.pipeline.long` without sockets and rows; the progress of topics is the real one
(`fetched_topics`). An attempt may die at any step, be stuck with answers in its hands, lose its connections, run while another
attempt of the same batch runs, and go on when it was superseded long ago.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from magnetar.pipeline import messages as m
from magnetar.pipeline.long.fetched_topics import FetchedTopic, LinkProgress
from magnetar.pipeline.tasks.append_request import AppendRequest
from magnetar.storage.entries import EntryFlags
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.positions import position_from_proto
from magnetar_sim.connections.link_filter import LinkFilter
from magnetar_sim.connections.link_peer import Peer
from magnetar_sim.connections.long_faults import LongFaults
from magnetar_sim.connections.ranges import PIECES, SLOW_MS
from magnetar_sim.connections.workers import Workers
from magnetar_sim.context import WorldContext

WAIT_MS: Final = 15_000
"""How long a source holds a question."""

GRACE_MS: Final = 5_000
"""How long an attempt continues after its batch's time if nothing supersedes it."""

PATIENCE_MS: Final = 4_000
"""A broker that does not answer for so long is given up: longer than the slowest disk and network of a world take."""

PAUSE_MS: Final = 200
"""Before a source that is gone is tried again, and how long confirmations are collected at most."""

REFUSED_MS: Final = 1_000
"""Before a source that refused is asked again."""

END_MS: Final = 2_000
"""How long the last confirmations may take at the end of an attempt."""


class LongHost(Protocol):
    """What an attempt needs of its link."""

    context: WorldContext
    faults: LongFaults
    filter: LinkFilter
    workers: Workers
    source: str
    target: str


class LongTask:
    """One attempt.

    Args:
        host: the link.
        batch: what the driver planned.
        route: likewise.
        ended: called once, with what ended it; "" when it ended by itself.

    Attributes:
        over: it ended.
    """

    def __init__(
        self, host: LongHost, batch: m.LongBatch, route: m.Route, ended: "Callable[[LongTask, str], None]"
    ) -> None:
        self._host, self._batch, self._ended = host, batch, ended
        self._clock, faults = host.context.clock, host.faults
        self.over = False
        self._until_ms = 0
        self._reading = False
        self._from: Peer | None = None
        self._reader = self._asked = 0
        self._rests = False
        self._inbox: deque[tuple[pb.CommandGeoFetchResponse, bytes]] = deque()
        self._passing = False
        totals = pb.GeoFetchTotals(task=faults.rng.getrandbits(63) | 1, messages=0, bytes=0, duplicates=0)
        self._progress = LinkProgress(route, totals, lambda: self._clock.now_ms)
        self._to: Peer | None = None
        self._down = ""
        self._queue: deque[AppendRequest] = deque()
        self._flying: list[AppendRequest] = []
        self._commits: Peer | None = None
        self._owed: dict[str, pb.GeoCommitTopic] = {}
        self._sent: dict[int, dict[str, pb.GeoCommitTopic]] = {}
        self._commands = 0
        self._commit_due = False

    @property
    def busy(self) -> bool:
        """Whether it has something to carry or to confirm."""
        return not self.over and bool(
            self._inbox
            or self._passing
            or self._queue
            or self._flying
            or self._progress.dirty
            or self._owed
            or self._sent
        )

    def start(self) -> None:
        """Begin to ask."""
        if self.over:
            return
        self._reading = True
        self._until_ms = self._clock.now_ms + self._batch.length_ms + GRACE_MS
        self._clock.after(self._batch.length_ms + GRACE_MS, self._read_over)
        self._ask()

    # ------------------------------------------------------------------------------------------------ the half that asks

    def _ask(self) -> None:
        if self.over or not self._reading or self._rests:
            return
        if self._from is None or not self._from.open:
            # Answers may have been lost with the connection: another reader begins at the cursors.
            self._reader, self._asked = self._host.faults.rng.getrandbits(63) | 1, 0
            reader = self._reader
            self._from = self._host.workers.peer(self._host.source, lambda: self._lost_source(reader))
            if not self._from.open:
                self._clock.after(PAUSE_MS, self._ask)
                return
        while self._asked < self._host.faults.ahead:
            self._fetch(self._from, self._reader)

    def _fetch(self, peer: Peer, reader: int) -> None:
        batch, size = self._batch, self._host.faults.answer_bytes
        self._asked += 1
        answered = False

        def body(request_id: int) -> pb.CommandGeoFetch:
            return pb.CommandGeoFetch(
                request_id=request_id, to=self._host.target, pipeline=batch.pipeline, epoch=batch.epoch, reader=reader,
                wait_ms=WAIT_MS, bytes_max=size, window_bytes=batch.window_bytes,
            )  # fmt: skip

        def then(frame: Frame) -> None:
            nonlocal answered
            answered = True
            self._fetched(reader, frame)

        def overdue() -> None:
            if not answered and reader == self._reader and not self.over and self._reading:
                peer.close()
                self._lost_source(reader)

        peer.ask(pb.GEO_FETCH, "geo_fetch", body, then)
        self._clock.after(WAIT_MS + PATIENCE_MS, overdue)

    def _lost_source(self, reader: int) -> None:
        if reader == self._reader and not self.over:
            self._from = None
            self._reader = 0
            self._clock.after(PAUSE_MS, self._ask)

    def _fetched(self, reader: int, frame: Frame) -> None:
        if self.over or reader != self._reader or not self._reading:
            return
        self._asked -= 1
        response = frame.command.geo_fetch_response
        if frame.command.type != pb.GEO_FETCH_RESPONSE or response.HasField("refused"):
            self._rest()
            return
        if response.superseded:
            self._host.context.count("reader superseded")
            self._read_over()
            return
        if response.parts:
            self._inbox.append((response, frame.payload))
            self._pass_on()
        self._ask()

    def _rest(self) -> None:
        if not self._rests:
            self._rests = True

            def go_on() -> None:
                self._rests = False
                self._ask()

            self._clock.after(REFUSED_MS, go_on)

    def _read_over(self) -> None:
        """No more questions: it was superseded, or its time is over."""
        if self.over or not self._reading:
            return
        self._reading = False
        if self._from is not None:
            self._from.close()
        self._clock.after(END_MS + PATIENCE_MS, self._end, "")
        self._look()

    def _pass_on(self) -> None:
        """Spark brings answers from one half to the other, in their order, when it gets to it."""
        if self._passing or not self._inbox or self.over:
            return
        self._passing = True
        faults, context = self._host.faults, self._host.context
        pause_ms = faults.pause_ms()
        if faults.chance(faults.stuck):
            context.count("long batch stuck")
            pause_ms = int(faults.rng.random() * 60_000)
        if pause_ms >= SLOW_MS:
            context.count("range delayed")
        self._clock.after(pause_ms, self._take)

    # ----------------------------------------------------------------------------------------------- the half that sends

    def _take(self) -> None:
        self._passing = False
        if self.over or self._dies():
            return
        response, payload = self._inbox.popleft()
        at = 0
        for part in response.parts:
            read, size = part.read, sum(part.read.sizes)
            p = position_from_proto(part.p) if part.HasField("p") else None
            topic, begins = self._progress.topic(
                part.topic, part.incarnation, part.grant, part.gen, read.schema_numbering, p, response.uuid
            )
            if begins:
                self._host.context.count("grant carried")
                self._down = ""
            if not topic.trouble and not self._reach():
                topic.fail(m.TARGET_DOWN, self._down)
            if not topic.trouble:
                self._pieces(topic, read, payload[at : at + size])
            topic.looked_to(position_from_proto(read.end), timed=read.timed)
            at += size
        self._pass_on()
        self._send()
        self._commit_soon()

    def _pieces(self, topic: FetchedTopic, read: pb.CommandGeoReadResponse, data: bytes) -> None:
        """Filter the entries, and queue what is left in pieces."""
        sent: list[tuple[int, bytes]] = []
        at = 0
        for number, size in enumerate(read.sizes):
            entry = data[at : at + size]
            at += size
            if read.flags[number] & EntryFlags.MARKER or self._host.filter.passes(entry):
                sent.append((number, entry))
        while sent:
            size = self._host.faults.rng.choice(PIECES)
            piece, sent = sent[:size], sent[size:]
            numbers = [number for number, _ in piece]
            self._queue.append(
                topic.append(
                    [read.ledgers[n] for n in numbers], [read.entries[n] for n in numbers],
                    [read.first_indexes[n] for n in numbers], [read.counts[n] for n in numbers],
                    [read.sizes[n] for n in numbers], min(read.publish_times[n] for n in numbers),
                    memoryview(b"".join(entry for _, entry in piece)),
                )
            )  # fmt: skip

    def _reach(self) -> bool:
        """Whether the destination can be reached; it is not tried again before another grant comes."""
        if not self._down and (self._to is None or not self._to.open):
            self._to = self._host.workers.lend(self._lost_target)
            if not self._to.open:
                self._down = "the destination is down"
        return not self._down

    def _send(self) -> None:
        while self._queue and len(self._flying) < self._host.faults.window and not self.over:
            append = self._queue.popleft()
            if append.progress.trouble or self._to is None:
                append.progress.left()
                continue
            self._flying.append(append)

            def body(request_id: int, append: AppendRequest = append) -> pb.CommandGeoAppend:
                command = append.command().geo_append
                command.request_id = request_id
                return command

            self._to.ask(pb.GEO_APPEND, "geo_append", body, partial(self._answered, append), bytes(append.data))
            self._clock.after(PATIENCE_MS, self._silent, append)

    def _silent(self, append: AppendRequest) -> None:
        if append in self._flying and not self.over:
            self._give_up("no progress")

    def _answered(self, append: AppendRequest, frame: Frame) -> None:
        if self.over or append not in self._flying:
            return
        if frame.command.type != pb.GEO_APPEND_RESPONSE:
            self._give_up("an error")
            return
        self._flying.remove(append)
        append.progress.left()
        append.answered(frame.command.geo_append_response)
        self._clock.after(self._host.faults.pause_ms(), self._go_on)

    def _go_on(self) -> None:
        if not self.over and not self._dies():
            self._commit_soon()
            self._send()
            self._look()

    def _lost_target(self) -> None:
        if not self.over:
            self._give_up("connection lost")

    def _give_up(self, reason: str) -> None:
        """The destination is given up: everything on its way there is given back."""
        self._down = reason
        for append in (*self._flying, *self._queue):
            append.progress.fail(m.TARGET_DOWN, reason)
        self._flying.clear()
        self._queue.clear()
        if self._to is not None:
            self._to.close()
            self._to = None
        self._commit_soon()

    # ------------------------------------------------------------------------------------------------------ confirmations

    def _commit_soon(self) -> None:
        if not self._commit_due and (self._progress.dirty or self._owed):
            self._commit_due = True
            self._clock.after(self._host.faults.pause_ms(), self._commit)

    def _commit(self) -> None:
        self._commit_due = False
        if self.over:
            return
        self._owed.update(self._progress.take_commits())
        if not self._owed:
            return
        if self._commits is None or not self._commits.open:
            self._commits = self._host.workers.peer(self._host.source, self._lost_commits)
            if not self._commits.open:
                self._again()
                return
        commits, self._owed = self._owed, {}
        self._commands += 1
        number, peer, faults = self._commands, self._commits, self._host.faults
        self._sent[number] = commits

        def body(request_id: int) -> pb.CommandGeoCommit:
            return pb.CommandGeoCommit(
                request_id=request_id,
                to=self._host.target,
                commits=list(commits.values()),
                totals=self._progress.totals,
            )

        def then(frame: Frame) -> None:
            self._committed(number, frame)

        self._clock.after(PATIENCE_MS, self._overdue, number)
        if faults.chance(faults.loses):
            # Stuck in a connection that the task gives up: it arrives when the same was said again long ago.
            self._host.context.count("commit late")
            late_ms = int(faults.rng.random() * 20_000)
            self._host.workers.arrives_late(self._host.source, late_ms, pb.GEO_COMMIT, "geo_commit", body)
            return
        peer.ask(pb.GEO_COMMIT, "geo_commit", body, then)

    def _committed(self, number: int, frame: Frame) -> None:
        commits = self._sent.pop(number, None)
        if self.over or commits is None:
            return
        if frame.command.type != pb.GEO_COMMIT_RESPONSE:
            self._owed = commits | self._owed
            self._again()
            return
        for topic in frame.command.geo_commit_response.ignored:
            if topic in commits:
                self._host.context.count("confirmation ignored")
                self._progress.ignored(commits[topic])
        self._commit_soon()
        self._look()

    def _overdue(self, number: int) -> None:
        if number in self._sent and not self.over:
            self._commits = None  # and what is on its way in it may still arrive
            self._lost_commits()

    def _lost_commits(self) -> None:
        """Owe again what was not answered, unless there is something later."""
        if self.over or (self._commits is not None and self._commits.open):
            return
        for commits in reversed(self._sent.values()):
            self._owed = commits | self._owed
        self._sent.clear()
        self._again()

    def _again(self) -> None:
        if not self._commit_due:
            self._commit_due = True
            self._clock.after(PAUSE_MS, self._commit)

    # -------------------------------------------------------------------------------------------------------- its end

    def _dies(self) -> bool:
        if self._host.faults.chance(self._host.faults.task_dies):
            self._host.context.count("task died")
            self._end("died")
        return self.over

    def _look(self) -> None:
        """It ends when nothing is left."""
        if not self._reading and not self.busy:
            self._end("")

    def kill(self) -> None:
        """The process is gone."""
        self._end("died")

    def _end(self, why: str) -> None:
        if self.over:
            return
        self.over = True
        for peer in (self._from, self._commits):
            if peer is not None:
                peer.close()
        if self._to is not None:
            self._host.workers.give_back(self._to, used_up=bool(why or self._flying))
        self._ended(self, why)
