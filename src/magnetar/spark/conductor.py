"""The one place of a pipeline process that talks to brokers outside batches, and that plans the batches.

Threads, all asleep unless something happens:

- a *poller* for each source cluster: GEO_TOPICS of all its links on one connection, long polls;
- a *teller* for each source cluster: GEO_COMMIT with everything owed, commits before what was learned;
- a *greeter* for each destination cluster: handshakes, the idle comparison, probes of a broken cluster.

Spark's workers call `wait`, `plan` and `committed` through the socket of `rpc`. One lock guards the book; nobody holds it
while talking to a broker.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.core.settings import ReplicationLimits
from magnetar.spark import link as wire
from magnetar.spark import messages as m
from magnetar.spark.book import Book
from magnetar.spark.breaker import BreakerState
from magnetar.spark.rpc import Server
from magnetar.spark.states import Handshake, Link
from magnetar.wire import pulsar_pb2 as pb

POLL_MS: Final = 10_000
"""A long poll's length; also how late a counter that was missed is noticed."""

POLL_PAUSE_MS: Final = 25
"""Between two polls of one link: a busy topic changes all the time, a batch every 160 ms."""

TICK_MS: Final = 250
"""How often a sleeping thread looks at its breaker."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a pipeline is made of.

    Attributes:
        links: numbered from 0.
        addresses: `host:port` of each cluster, for the driver and for the executors alike.
        token: of the links, at the start.
        cores: tasks that can run at once.
        name: tells this pipeline from others in leases.
        limits: `[replication.limits]`.
    """

    links: tuple[Link, ...]
    addresses: dict[str, str]
    token: str = field(repr=False)
    cores: int
    name: str
    limits: ReplicationLimits = m.DEFAULTS


@dataclass(slots=True)
class Poll:
    """The question for news of one link: always one of them under way or due.

    The first must be answered at once (`patience_ms` 0): it is the probe, and says everything.
    """

    link: Link
    counter: int = 0
    boot: int = 0
    patience_ms: int = 0
    due: float = 0.0
    until: float = 0.0
    request: int = 0


def wall_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


class Conductor:
    """Runs the threads, owns the book."""

    def __init__(
        self,
        pipeline: Pipeline,
        on_line: Callable[[str], None] = lambda line: None,
        *,
        rng: random.Random | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.pipeline = pipeline
        self._rng = rng or random.Random()  # noqa: S311 - for jitter
        self._clock = clock_ms
        self._limits = pipeline.limits
        self._presented = pipeline.token
        self.book = Book(pipeline.links, self._rng, pipeline.cores, pipeline.limits)
        self._say = on_line
        self._changed = threading.Condition()
        self._stopping = self._draining = False
        self._threads: list[threading.Thread] = []
        self._server: Server | None = None
        self.batches: dict[str, int] = {}
        self._cold: set[str] = set()
        self._routes = {
            link.number: (pipeline.addresses[link.source], pipeline.addresses[link.target]) for link in pipeline.links
        }

    @property
    def socket_path(self) -> str:
        """Where Spark's workers reach this conductor."""
        assert self._server is not None, "the conductor was not started"
        return self._server.path

    def start(self) -> "Conductor":
        """Open the socket and start the threads."""
        self._server = Server(
            {"wait": self.wait, "plan": self._plan_packed, "committed": self._committed_packed, "token": self._token}
        )
        sources = sorted({link.source for link in self.pipeline.links})
        targets = sorted({link.target for link in self.pipeline.links})
        jobs: list[tuple[str, Callable[[str], None], str]] = [
            *(("poll", self._poll, name) for name in sources),
            *(("tell", self._tell, name) for name in sources),
            *(("greet", self._greet, name) for name in targets),
        ]
        for kind, job, name in jobs:
            thread = threading.Thread(target=job, args=(name,), name=f"magnetar-{kind}-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        """End the threads; what is owed is told first, if its source answers."""
        self.settle(self._limits.answer_ms)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self._limits.answer_ms / 1000 + 1)
        if self._server is not None:
            self._server.close()

    def settle(self, timeout_ms: int) -> bool:
        """Wait until nothing is owed to any source; returns whether that came true."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(state.owed or state.learned for state in self.book.links.values()), timeout_ms / 1000
            )

    def drain(self, timeout_ms: int) -> bool:
        """Plan nothing more and wait until no batch is under way; returns whether that came true."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not any(state.flying for state in self.book.links.values()), timeout_ms / 1000
            )

    def resume(self) -> None:
        """Plan again after `drain`."""
        with self._changed:
            self._draining = False
            self._changed.notify_all()

    def present(self, token: str) -> None:
        """Present another token from now on; connections that presented the one before are given up."""
        with self._changed:
            self._presented = token
            self._changed.notify_all()

    def _connection(self, cluster: str, kept: wire.Channel | None = None) -> wire.Channel:
        """The kept connection, or a new one when there is none or what it presented is out of date. Raises LinkDown."""
        if kept is not None:
            if kept.presented == self._presented:
                return kept
            kept.close()
        return wire.Channel(self.pipeline.addresses[cluster], self._presented)

    # --------------------------------------------------------------------------------------- what Spark's workers ask

    def warm(self, lanes: Iterable[str]) -> None:
        """Let each lane's first batch be an empty one, at once.

        Spark starts its Python workers with the first batch, which takes seconds: no message should wait for that.
        """
        with self._changed:
            self._cold = set(lanes)
            self._changed.notify_all()

    def warmed(self) -> bool:
        """Whether every lane's first batch is over."""
        with self._changed:
            return not self._cold

    def wait(self, lane: str, timeout_ms: int) -> bool:
        """Wait until a lane has something to plan; returns whether it has."""
        until = self._clock() + timeout_ms
        with self._changed:
            if lane in self._cold:
                return True
            while not (self._stopping or self._draining):
                now = self._clock()
                works, wake = self.book.available(lane, now)
                if works:
                    return True
                if now >= until:
                    return False
                self._changed.wait((min(wake or until, until) - now + 1) / 1000)
        return False

    def plan(self, lane: str) -> list[m.Task]:
        """Plan the next batch of a lane."""
        with self._changed:
            if self._stopping or self._draining:
                return []
            planned = self.book.plan(lane, self._routes, self._clock())
            if not planned and lane in self._cold:
                return [m.Task((), ())]
            return planned

    def committed(self, lane: str, reports: Sequence[m.TaskReport]) -> None:
        """Take what the tasks of a lane's batch confirmed."""
        with self._changed:
            before = self._troubles()
            self.book.batch_reported(lane, reports, self._clock())
            self.batches[lane] = self.batches.get(lane, 0) + 1
            self._cold.discard(lane)
            self._announce(before)
            self._changed.notify_all()

    def _plan_packed(self, lane: str) -> list[bytes]:
        return [m.encode(task) for task in self.plan(lane)]

    def _committed_packed(self, lane: str, reports: list[bytes]) -> None:
        self.committed(lane, [m.decode_report(report) for report in reports])

    def _token(self) -> str:
        return self._presented

    # ------------------------------------------------------------------------------------------------ saying what changed

    def _troubles(self) -> dict[str, str]:
        """Every trouble there is, by what it is about; the lock is held."""
        book = self.book
        troubles = {
            f"cluster {name}": f"down: {breaker.reason}"
            for name, breaker in book.breakers.items()
            if breaker.state is not BreakerState.CLOSED
        }
        for state in book.links.values():
            if state.blocked:
                troubles[f"link {state.link}"] = f"blocked: {state.blocked}: {state.reason}"
            elif not state.lease:
                troubles[f"link {state.link}"] = f"standing by for {state.lease_holder or 'another pipeline'}"
            for name in state.troubled:
                topic = state.topics.get(name)
                if topic is not None and topic.blocked:
                    troubles[f"link {state.link}, {name}"] = f"blocked: {topic.blocked}: {topic.reason}"
        return troubles

    def _announce(self, before: dict[str, str]) -> None:
        """One line for each trouble that came or went; the lock is held."""
        after = self._troubles()
        for what, why in after.items():
            if before.get(what) != why and not (what in before and why.startswith("down")):
                self._say(f"{what}: {why}")
        for what in before.keys() - after.keys():
            self._say(f"{what}: works again")

    @contextmanager
    def reading(self) -> Iterator[Book]:
        """The book, held still."""
        with self._changed:
            yield self.book

    def troubles(self) -> dict[str, str]:
        """Every trouble there is, in words."""
        with self._changed:
            return self._troubles()

    # -------------------------------------------------------------------------------------------------------- breakers

    def _failed(self, cluster: str, reason: str) -> None:
        with self._changed:
            before = self._troubles()
            self.book.breakers[cluster].failed(self._clock(), self._rng, reason)
            self._announce(before)
            self._changed.notify_all()

    def _worked(self, cluster: str) -> None:
        with self._changed:
            if self.book.breakers[cluster].state is BreakerState.CLOSED:
                return
            before = self._troubles()
            self.book.breakers[cluster].worked()
            self._announce(before)
            self._changed.notify_all()

    def _may_try(self, cluster: str) -> bool:
        """Whether a cluster may be talked to outside batches; while it is broken, one probe at a time."""
        with self._changed:
            breaker = self.book.breakers[cluster]
            return breaker.closed or breaker.probe(self._clock())

    def _sleep(self, ms: int) -> None:
        with self._changed:
            if not self._stopping:
                self._changed.wait(ms / 1000)

    # --------------------------------------------------------------------------------------------------------- poller

    def _poll(self, source: str) -> None:
        links = [link for link in self.pipeline.links if link.source == source]
        while not self._stopping:
            if not self._may_try(source):
                self._sleep(TICK_MS)
                continue
            try:
                channel = self._connection(source)
                try:
                    self._poll_links(source, links, channel)
                finally:
                    channel.close()
            except wire.LinkDown as down:
                with self._changed:
                    self.book.source_lost(source)
                self._failed(source, str(down))

    def _poll_links(self, source: str, links: Sequence[Link], channel: wire.Channel) -> None:
        """Poll all links of a source on one connection until it fails, what it presented changes, or the pipeline stops."""
        polls = {link.number: Poll(link) for link in links}
        asked: dict[int, Poll] = {}
        request = 0
        while not self._stopping and channel.presented == self._presented:
            now = time.monotonic()
            for poll in polls.values():
                if not poll.request and poll.due <= now:
                    request += 1
                    channel.send(self._topics(request, poll))
                    poll.request, asked[request] = request, poll
                    poll.until = now + (poll.patience_ms + self._limits.answer_ms) / 1000
            waits = [poll.due - now for poll in polls.values() if not poll.request]
            ready = wire.wait([channel], max(0.0, min([TICK_MS / 1000, *waits])))
            _, readable, writable = ready[0] if ready else (channel, False, False)
            for command, _ in channel.pump(readable, writable):
                if command.type == wire.ERROR:
                    raise wire.LinkDown(f"{source}: {command.error.message}")
                answered = asked.pop(command.geo_topics_response.request_id, None)
                if answered is not None:
                    self._topics_answered(source, answered, command.geo_topics_response)
            for poll in list(asked.values()):
                if poll.until < time.monotonic():
                    self._overdue(source, poll)
                    del asked[poll.request]
                    poll.request = 0
            self._ask_everything(polls)
            if not self._trusted(source):
                raise wire.LinkDown(self.book.breakers[source].reason)

    @staticmethod
    def _overdue(source: str, poll: "Poll") -> None:
        """A long poll without answer is asked again at once; only silence to *that* means that the source is down."""
        if not poll.patience_ms:
            raise wire.LinkDown(f"{source}: no answer to GEO_TOPICS")
        poll.patience_ms, poll.due = 0, 0.0

    def _topics(self, request: int, poll: "Poll") -> pb.BaseCommand:
        command = pb.BaseCommand(type=wire.GEO_TOPICS)
        topics = command.geo_topics
        topics.request_id, topics.to, topics.counter, topics.boot = request, poll.link.target, poll.counter, poll.boot
        topics.wait_ms, topics.pipeline = poll.patience_ms, self.pipeline.name
        topics.lease_ms = self._limits.lease_ms
        return command

    def _topics_answered(self, source: str, poll: "Poll", response: pb.CommandGeoTopicsResponse) -> None:
        with self._changed:
            before = self._troubles()
            self.book.source_reported(poll.link.number, response, self._clock())
            self._announce(before)
            self._changed.notify_all()
        poll.request, poll.due = 0, time.monotonic() + POLL_PAUSE_MS / 1000
        poll.counter, poll.boot, poll.patience_ms = response.counter, response.boot, POLL_MS
        self._worked(source)

    def _ask_everything(self, polls: dict[int, "Poll"]) -> None:
        """Forget the counters of links whose commits were ignored: what we know of them is void."""
        with self._changed:
            for number, poll in polls.items():
                if self.book.links[number].doubtful:
                    self.book.links[number].doubtful = False
                    poll.counter = 0

    def _trusted(self, source: str) -> bool:
        """False when a task could not reach the source although we are connected: then connect anew, as the probe.

        Half-open is trusted: until its first answer, this connection is the probe.
        """
        with self._changed:
            return self.book.breakers[source].state is not BreakerState.OPEN

    # --------------------------------------------------------------------------------------------------------- teller

    def _has_news(self, source: str) -> bool:
        """Whether a source that can be reached has to be told something; the lock is held."""
        book = self.book
        return book.breakers[source].closed and bool(book.owed(source) or book.troubles(source))

    def _tell(self, source: str) -> None:
        channel: wire.Channel | None = None
        request = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._has_news(source))
                if self._stopping:
                    break
                owed = {link: (commits, learned) for link, commits, learned in self.book.owed(source)}
                troubles = dict(self.book.troubles(source))
            try:
                channel = self._connection(source, channel)
                for link in owed.keys() | troubles.keys():
                    commits, learned = owed.get(link, ([], []))
                    trouble = troubles.get(link)
                    request += 1
                    command = pb.BaseCommand(type=wire.GEO_COMMIT)
                    commit = command.geo_commit
                    commit.request_id, commit.to, commit.pipeline = request, link.target, self.pipeline.name
                    commit.commits.extend(commits)
                    commit.learned.extend(learned)
                    if trouble is not None:
                        commit.trouble, commit.reason, commit.throttled = trouble
                    answer = wire.call(channel, command, self._limits.answer_ms / 1000).command.geo_commit_response
                    if answer.HasField("error"):
                        raise wire.LinkDown(answer.message)
                    with self._changed:
                        self.book.told(link, commits, learned, answer.ignored)
                        if trouble is not None:
                            self.book.told_trouble(link, trouble)
                        self._changed.notify_all()
            except wire.LinkDown as down:
                if channel is not None:
                    stale, channel = not channel.fresh, None
                    if stale:
                        continue  # an idle connection may have been closed: once more on a new one
                self._failed(source, str(down))
            else:
                channel.fresh = False

    # -------------------------------------------------------------------------------------------------------- greeter

    def _greet(self, target: str) -> None:
        channel: wire.Channel | None = None
        request = 0
        while not self._stopping:
            if not self._may_try(target):
                self._sleep(TICK_MS)
                continue
            with self._changed:
                broken = not self.book.breakers[target].closed
                asked = self.book.handshakes(target, self._clock())
                if broken and not asked:
                    asked = self.book.probes(target)
                if not asked and not broken:
                    self._changed.wait(TICK_MS / 1000)
                    continue
            try:
                channel = self._connection(target, channel)
                if not asked:  # nothing is known of any source yet: reaching the broker has to do as the probe
                    self._reach(channel)
                for handshake in asked:
                    request += 1
                    command = self._watermarks(request, handshake)
                    patience = self._limits.progress_ms if broken else self._limits.answer_ms
                    answer = wire.call(channel, command, patience / 1000).command.geo_watermarks_response
                    self._handshaken(handshake, answer)
                    broken = False
                channel.fresh = False
                self._worked(target)
            except wire.LinkDown as down:
                # An idle connection may have been closed meanwhile: that is worth a new one, not an alarm.
                stale = channel is not None and not channel.fresh and not broken
                if channel is not None:
                    channel.close()
                channel = None
                if not stale:
                    self._failed(target, str(down))

    def _reach(self, channel: wire.Channel) -> None:
        """Wait for CONNECTED."""
        until = time.monotonic() + self._limits.progress_ms / 1000
        while channel.hello is None:
            left = until - time.monotonic()
            if left <= 0:
                raise wire.LinkDown(f"{channel.address}: no answer within {self._limits.progress_ms} ms")
            for _, readable, writable in wire.wait([channel], left):
                channel.pump(readable, writable)

    @staticmethod
    def _watermarks(request: int, handshake: Handshake) -> pb.BaseCommand:
        command = pb.BaseCommand(type=wire.GEO_WATERMARKS)
        asked = command.geo_watermarks
        asked.request_id, asked.source, asked.uuid = request, handshake.link.source, handshake.uuid
        asked.counter = handshake.counter
        asked.topics.extend(handshake.topics)
        return command

    def _handshaken(self, handshake: Handshake, answer: pb.CommandGeoWatermarksResponse) -> None:
        with self._changed:
            before = self._troubles()
            self.book.handshake_answered(handshake, answer, self._clock())
            self._announce(before)
            self._changed.notify_all()

    # --------------------------------------------------------------------------------------------------------- status

    def status(self) -> dict[str, Any]:
        """The pipeline in figures: plain values, for `status`, metrics and tests."""
        now = self._clock()
        with self._changed:
            return {
                "pipeline": self.pipeline.name,
                "batches": dict(self.batches),
                "clusters": {
                    name: {"state": breaker.state.value, "reason": breaker.reason, "since_ms": breaker.since_ms}
                    for name, breaker in self.book.breakers.items()
                },
                "links": {str(state.link): state.figures(now) for state in self.book.links.values()},
                "troubles": self._troubles(),
            }
