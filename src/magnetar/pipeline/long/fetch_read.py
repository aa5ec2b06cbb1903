"""The source's half of a long batch: fetches from all sources and yields each answer at once.

The first questions wait until the writer is ready (`pipeline.long.hand_over`). Each source has several questions (GEO_FETCH)
under way, so that its answers do not wait for a round trip. A source that cannot be reached is tried again for as long as the
batch lasts, and the others continue. The batch ends when a later one supersedes it.

Spark delays rows at four points (PySpark 4.3, docs/decisions/0051-long-batches.md). Each has a remedy:

    the worker's output buffer             it is flushed after each Arrow batch (`flush_each_batch`)
    the JVM waits for the following row    a filler row ends each Arrow batch
    the JVM's Arrow batches are large      a setting of the query (`replicate.LONG_SETTINGS`)
    the JVM's buffer to the writing worker likewise

On a link without a filter each answer is one row, and the reader runs in the process of the writer: its rows do not go through
Spark (`pipeline.tasks.direct`). With a filter each entry of the answer is a row, between control rows.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from types import FrameType
from typing import Final, NamedTuple

import pyarrow as pa

from magnetar.core.backoff import pause
from magnetar.pipeline import messages as m
from magnetar.pipeline.columns import ANSWER, FETCHED, FILLER, LOOKED, READY, ROUTE
from magnetar.pipeline.long.hand_over import READY_S, ReadyPort
from magnetar.pipeline.long.plain_rows import ROWS_MAX, PlainRows
from magnetar.pipeline.rows import Assembler
from magnetar.pipeline.tasks.channel_poll import ChannelPoll, Poll, Pollable
from magnetar.pipeline.tasks.link_channel import LinkChannel, open_channel
from magnetar.pipeline.tasks.pace import Mark, Pace
from magnetar.pipeline.tasks.task_read import Connect, lists_agree
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.client import Push, Response
from magnetar.wire.positions import position_from_proto

FETCHES_AHEAD: Final = 16
"""Questions under way for one link at least: answers come 1 to 4 ms apart under load, so that they need not wait for a question
when the link is busy again after a rest."""

FETCHES_AHEAD_MAX: Final = 64
"""Questions under way for one link at most: sources hold no more (`replication.link.fetching.HELD_MAX`). With `FETCH_BYTES_MAX`,
16 MiB are under way in a round trip: 80 MB/s over 200 ms."""

FETCHES_AT_ONCE: Final = 8
FETCHES_AT_ONCE_FAR: Final = 4
"""Questions that are sent together to a source that is near, and to one that is far: a question alone costs a system call, and
wakes its source. The others last until these have arrived: 8 ms at least. Over a long way they are three quarters of at least
twice what is answered in a round trip."""

NEAR_S: Final = 0.008
"""A round trip below this is near."""

FETCH_BYTES_MAX: Final = 256 << 10
"""Size of one answer, unless a single entry is larger. It was chosen when an answer was a row of the JVM, whose collector larger
rows cost more than was saved; no other size has been tried since."""

WAIT_MS: Final = 15_000
"""How long a source holds a question: below a minute, so that a lost answer is noticed."""

GRACE_MS: Final = 15_000
"""How long a batch continues after its time if no other one supersedes it: Spark may be slow to start the next."""

PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 0.5
"""Pause between two tries to reach a source: within a second of its return it is read again."""

GREETING_S: Final = 2.0
"""How long a source may take to accept a connection. One that stands still, or whose host is gone, is tried again soon."""

PARTS_BEGUN_MAX: Final = 200_000
"""First parts of topics under a grant that one batch passes on; then it ends early and the next one begins. The writer remembers
each of these topics until the batch ends: some 100 MB at most."""

REFUSED_S: Final = 1.0
"""Pause before a source that refused is asked again: another pipeline holds the lease, or the link does not exist yet."""


@dataclass(slots=True)
class FetchedPart:
    """One topic under one grant on a link with a filter; `number` marks its rows."""

    link: int
    number: int
    topic: str


class Question(NamedTuple):
    """A question about a link; `until`: when an answer must have come; `mark`: of the link's pace."""

    link: int
    until: float
    mark: Mark


@dataclass(slots=True)
class SourceFetcher:
    """One source broker, and the links that it is asked about.

    Attributes:
        reader: named in each question; another one for each connection, because answers may have been lost with the last.
        greeting_by: when the source must have accepted the connection.
        asked: by request id the question.
        paces: of each link, in answers: how many questions are under way follows them (`pipeline.tasks.pace`).
        failures: in a row; the next try is at `again_at`.
        resting: links that the source refused, and when it is asked about them again.
    """

    address: str
    routes: dict[int, m.Route]
    channel: LinkChannel | None = None
    reader: int = 0
    greeting_by: float = 0.0
    asked: dict[int, Question] = field(default_factory=dict)
    paces: dict[int, Pace] = field(default_factory=dict)
    again_at: float = 0.0
    failures: int = 0
    resting: dict[int, float] = field(default_factory=dict)

    @property
    def answer_by(self) -> float:
        """When the source must have accepted the connection, or answered the oldest question (all wait equally long)."""
        if self.channel is not None and self.channel.hello is None:
            return self.greeting_by
        return next((question.until for question in self.asked.values()), inf)


class FetchReader:
    """Reads one long batch.

    Args:
        task: with `long` set.
        token: of the links.
        decoded: further columns, see `rows.DECODED`.
        single: whether each entry is a row of its own, as filters need.
        connect: opens or takes a kept connection to an address.
        clock: seconds, monotonic.
        ready: where the writer says that it is ready, closed at the end; None: there is no writer to wait for.
        poll: waits for the sources, closed at the end; None: one of its own.
    """

    def __init__(
        self,
        task: m.Task,
        token: str,
        decoded: Sequence[str] = (),
        single: bool = False,
        *,
        connect: Connect = open_channel,
        clock: Callable[[], float] = time.monotonic,
        ready: ReadyPort | None = None,
        poll: Poll | None = None,
    ) -> None:
        assert task.long is not None
        self._long, self._token, self._single = task.long, token, single
        self._connect, self._clock = connect, clock
        self._ready, self._poll = ready, poll
        self._ready_by = clock() + READY_S
        self._heard = False
        self._assembler = Assembler(decoded)
        self._plain = PlainRows(narrow=not single)
        self._decoded = bool(decoded)
        self._routes = {route.link: route for route in task.routes}
        self._sources: dict[str, SourceFetcher] = {}
        for route in task.routes:
            source = self._sources.setdefault(route.source_address, SourceFetcher(route.source_address, {}))
            source.routes[route.link], source.paces[route.link] = route, Pace(clock())
        self._numbers: dict[tuple[int, str, int, int], FetchedPart] = {}
        self._rng = random.SystemRandom()
        self._full: list[pa.RecordBatch] = []
        self._begun = 0
        self.over = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield an Arrow batch for each set of answers, until the batch is superseded or its time is over."""
        until = self._clock() + (self._long.length_ms + GRACE_MS) / 1000
        for link, route in self._routes.items():
            self._put(ROUTE, link, m.encode(route))
        if self._ready is not None:
            self._put(READY, 0, str(self._ready.number).encode())
        yield from self._flush()
        poll: Poll = self._poll or ChannelPoll()
        try:
            while not self.over and (now := self._clock()) < until:
                for source in self._sources.values():
                    self._open(source, now)
                if self._ready is not None:
                    self._begin(self._ready, now)
                if self._ready is None:
                    for source in self._sources.values():
                        self._ask(source, now)
                channels: dict[Pollable, SourceFetcher] = {
                    source.channel: source for source in self._sources.values() if source.channel is not None
                }
                waiting: list[Pollable] = [] if self._ready is None else [self._ready]
                for one, readable, writable in poll.wait([*channels, *waiting], self._wait_s(now)):
                    asked = channels.get(one)
                    if asked is not None and asked.channel is not None:
                        self._pump(asked, asked.channel, readable, writable)
                yield from self._flush()  # before the next questions: the rows are on their way first
        finally:
            poll.close()
            if self._ready is not None:
                self._ready.close()
            for source in self._sources.values():
                if source.channel is not None:
                    source.channel.close()

    def _flush(self) -> list[pa.RecordBatch]:
        """Take the rows that were gathered, each batch with a filler at its end."""
        full, self._full = self._full, []
        if full or self._assembler.rows:
            self._assembler.row(FILLER, 0, 0, b"")
            full += self._assembler.flush()
        if len(self._plain):
            self._plain.add(FILLER, 0, b"")
            full.append(self._plain.flush())
        return full

    def _put(self, kind: int, link: int, data: bytes | memoryview, lists: bytes = b"") -> None:
        """Gather a row that is not an entry."""
        if self._decoded:  # all rows have the further columns
            self._assembler.row(kind, link, 0, data, lists)
            return
        if len(self._plain) == ROWS_MAX - 1:
            self._full.append(self._plain.flush())
        self._plain.add(kind, link, data, lists)

    def _wait_s(self, now: float) -> float:
        """Time until the next event of the clock."""
        times = [now + 1.0 if self._ready is None else self._ready_by]
        for source in self._sources.values():
            if source.channel is None:
                times.append(source.again_at)
            else:
                times += [source.answer_by, *source.resting.values()]
        return max(0.0, min(times) - now)

    # --------------------------------------------------------------------------------------------------------- questions

    def _begin(self, ready: ReadyPort, now: float) -> None:
        """Let the questions begin if the writer is ready and all sources can be asked, or if that takes too long.

        The sources begin together: the former batch ends when one of them has a question of this one.
        """
        self._heard = self._heard or ready.heard()
        greeting = any(source.channel is not None and source.channel.hello is None for source in self._sources.values())
        if (self._heard and not greeting) or now >= self._ready_by:
            ready.close()
            self._ready = None

    def _open(self, source: SourceFetcher, now: float) -> None:
        """Connect to a source if it is time, and give up one that does not answer."""
        if source.channel is None:
            if source.again_at > now:
                return
            source.reader, source.greeting_by = self._rng.getrandbits(63) | 1, now + GREETING_S
            try:
                source.channel = self._connect(source.address, self._token)
            except LinkDown:
                self._lost(source, now)
        elif source.answer_by <= now:
            self._lost(source, now)

    def _ask(self, source: SourceFetcher, now: float) -> None:
        """Ask until each link has its number of questions under way; see `FETCHES_AT_ONCE`."""
        if source.channel is None:
            return
        for link in [link for link, at in source.resting.items() if at <= now]:
            del source.resting[link]
        counts = dict.fromkeys(source.routes, 0)
        for question in source.asked.values():
            counts[question.link] += 1
        asked = False
        for link, count in counts.items():
            if link not in source.resting:
                round_trip_s = source.channel.round_trip_s
                missing = source.paces[link].window(round_trip_s, now, FETCHES_AHEAD, FETCHES_AHEAD_MAX) - count
                if missing < (FETCHES_AT_ONCE if round_trip_s < NEAR_S else FETCHES_AT_ONCE_FAR):
                    continue
                asked = True
                for _ in range(missing):
                    self._fetch(source, source.channel, link, now)
        if asked and source.channel.connected:  # at once, and not when the selector has said that there is room
            self._pump(source, source.channel, False, True)

    def _fetch(self, source: SourceFetcher, channel: LinkChannel, link: int, now: float) -> None:
        route, long = source.routes[link], self._long
        command = pb.BaseCommand(type=pb.GEO_FETCH)
        fetch = command.geo_fetch
        fetch.to, fetch.pipeline, fetch.epoch, fetch.reader = route.target, long.pipeline, long.epoch, source.reader
        fetch.wait_ms, fetch.bytes_max, fetch.window_bytes = WAIT_MS, FETCH_BYTES_MAX, long.window_bytes
        until = now + (WAIT_MS + route.progress_ms) / 1000
        source.asked[channel.request(command)] = Question(link, until, source.paces[link].asked(now))

    def _lost(self, source: SourceFetcher, now: float) -> None:
        """A source cannot be reached: its questions are asked again, by another reader."""
        if source.channel is not None:
            source.channel.close()
            source.channel = None
        source.asked.clear()
        source.failures += 1
        source.again_at = now + pause(source.failures, PAUSE_S_MIN, PAUSE_S_MAX)

    # ----------------------------------------------------------------------------------------------------------- answers

    def _pump(self, source: SourceFetcher, channel: LinkChannel, readable: bool, writable: bool) -> None:
        try:
            events = channel.pump(readable, writable)
        except LinkDown:
            self._lost(source, self._clock())
            return
        for event in events:
            if not self._answered(source, event):
                self._lost(source, self._clock())
                return
        if events:
            source.failures = 0

    def _answered(self, source: SourceFetcher, event: Response | Push) -> bool:
        """Take one answer; returns whether the connection is of use."""
        if not isinstance(event, Response):
            return True
        question = source.asked.pop(event.request_id, None)
        if question is None:
            return True
        link = question.link
        source.paces[link].answered(question.mark, 1, self._clock())
        if event.command.type == pb.ERROR:
            source.resting[link] = self._clock() + REFUSED_S
            return True
        response, payload = event.command.geo_fetch_response, event.payload
        if response.superseded:
            self.over = True
        elif response.HasField("refused"):
            source.resting[link] = self._clock() + REFUSED_S
        elif response.parts:
            reads = [part.read for part in response.parts]
            self._begun += sum(part.HasField("p") for part in response.parts)
            self.over = self.over or self._begun >= PARTS_BEGUN_MAX
            if not all(map(lists_agree, reads)) or sum(sum(read.sizes) for read in reads) != len(payload):
                return False
            if self._single:
                self._entries(link, response, payload)
            else:
                self._put(ANSWER, link, payload, response.SerializeToString())
        return True

    def _entries(self, link: int, response: pb.CommandGeoFetchResponse, payload: memoryview) -> None:
        """Rows for single entries: a filter has to see each of them."""
        at = 0
        for part in response.parts:
            read, size = part.read, sum(part.read.sizes)
            key = (link, part.topic, part.grant, read.schema_numbering)
            known = self._numbers.get(key)
            p: m.Pair | None = (part.p.ledger, part.p.entry) if part.HasField("p") else None
            if known is None:
                # A number identifies one topic under one grant with one meaning of its schemas' versions.
                known = self._numbers[key] = FetchedPart(link, len(self._numbers), part.topic)
            head = m.Fetched(part.topic, part.incarnation, part.grant, part.gen, read.schema_numbering, p)
            self._assembler.row(FETCHED, link, known.number, m.encode(head), response.uuid.encode())
            self._full += self._assembler.entries(known, read, payload[at : at + size])
            timed = b"timed" if read.timed else b""
            self._assembler.row(LOOKED, link, known.number, timed, at=position_from_proto(read.end))
            at += size


def flush_each_batch() -> None:
    """Let the worker that runs this write out each Arrow batch at once.

    Its serializer looks at an attribute for that before each batch; PySpark has no setting for it. Without the attribute rows
    would wait until the worker's buffer is full: `session.flush_missing` looks for it before long batches are used.
    """
    frame: FrameType | None = sys._getframe(1)  # the serializer is one of our callers
    while frame is not None:
        if frame.f_code.co_name == "dump_stream" and (serializer := frame.f_locals.get("self")) is not None:
            serializer._flush_per_batch = True
            return
        frame = frame.f_back


def fetch_task(task: m.Task, token: str, decoded: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the links with a filter of one long batch in a Spark worker; nothing in the first batch of a query, which only starts
    the workers.
    """
    if task.long is None:
        return
    flush_each_batch()
    yield from FetchReader(task, token, decoded, single=True, ready=ReadyPort()).batches()
