"""The coordinator of a pipeline process: it talks to brokers outside batches, and plans the batches.

Its threads sleep unless something happens:

- a `Poller` for each source cluster: GEO_TOPICS of all its links on one connection, long polls;
- a `CommitSender` for each source cluster: GEO_COMMIT with everything owed, commits before watermarks;
- a `HandshakeWorker` for each destination cluster: handshakes, the idle comparison, probes of a broken cluster;
- a `RefusalWatcher` for each destination cluster: while it refuses topics, a long poll for the end of the refusal.

With long batches (docs/design/pipeline.md#long-batches) topics without a large backlog are not planned. Two queries take turns,
their batches fetch from the sources, and the coordinator grants topics.

Spark's workers call `wait`, `plan` and `committed` through the socket of `rpc`. One lock guards the pipeline's state; no thread
holds it while it talks to a broker.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from magnetar.pipeline import messages as m
from magnetar.pipeline.commit_sender import CommitSender
from magnetar.pipeline.handshake_worker import HandshakeWorker
from magnetar.pipeline.long.turns import Turns
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.pipeline.planner import LONG
from magnetar.pipeline.poller import Poller
from magnetar.pipeline.refusal_watcher import RefusalWatcher
from magnetar.pipeline.rpc import Server
from magnetar.pipeline.shared_state import Pipeline, SharedState
from magnetar.pipeline.tasks.link_channel import call
from magnetar.runtime.clock import wall_ms
from magnetar.runtime.network.link_connection import LinkDown
from magnetar.wire import pulsar_pb2 as pb


class PipelineCoordinator:
    """Runs the threads, owns the state."""

    def __init__(
        self,
        pipeline: Pipeline,
        on_line: Callable[[str], None] = lambda line: None,
        *,
        rng: random.Random | None = None,
        clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.pipeline = pipeline
        self._clock = clock_ms
        self._limits = pipeline.limits
        self._shared = SharedState(pipeline, on_line, rng or random.Random(), clock_ms)  # noqa: S311 - for jitter
        self._changed = self._shared.changed
        self.state = self._shared.state
        self._draining = False
        self._threads: list[threading.Thread] = []
        self._server: Server | None = None
        self.batches: dict[str, int] = {}
        self._cold: set[str] = set()
        self._turns = Turns(LONG, pipeline.limits.long_batch_ms, clock_ms())
        self._routes = {
            link.number: (pipeline.addresses[link.source], pipeline.addresses[link.target]) for link in pipeline.links
        }

    @property
    def socket_path(self) -> str:
        """Where Spark's workers reach this coordinator."""
        assert self._server is not None, "the coordinator was not started"
        return self._server.path

    def start(self) -> "PipelineCoordinator":
        """Open the socket and start the threads."""
        self._server = Server(
            {"wait": self.wait, "plan": self._plan_packed, "committed": self._committed_packed, "token": self._token}
        )
        sources = sorted({link.source for link in self.pipeline.links})
        targets = sorted({link.target for link in self.pipeline.links})
        jobs: list[tuple[str, Callable[[], None]]] = [
            *((f"poll-{name}", Poller(self._shared, name).run) for name in sources),
            *((f"tell-{name}", CommitSender(self._shared, name).run) for name in sources),
            *((f"greet-{name}", HandshakeWorker(self._shared, name).run) for name in targets),
            *((f"listen-{name}", RefusalWatcher(self._shared, name).run) for name in targets),
        ]
        for name, job in jobs:
            thread = threading.Thread(target=job, name=f"magnetar-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        """End the threads; reports that are owed to sources are sent first, if they answer."""
        self.settle(self._limits.answer_ms)
        self._shared.stop()
        for thread in self._threads:
            thread.join(self._limits.answer_ms / 1000 + 1)
        if self._server is not None:
            self._server.close()

    def settle(self, timeout_ms: int) -> bool:
        """Wait until nothing is owed to any source; returns whether that came true."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(state.owed or state.learned for state in self.state.links.values()), timeout_ms / 1000
            )

    def drain(self, timeout_ms: int) -> bool:
        """Plan nothing more and wait until no batch is under way; returns whether that came true."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            running = self._turns.running
        if running:
            self._supersede(timeout_ms)
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._turns.running or any(state.flying for state in self.state.links.values())),
                timeout_ms / 1000,
            )

    def _supersede(self, timeout_ms: int) -> None:
        """End the long batch that runs: a question of a later epoch supersedes its readers.

        The batch ends with the first answer that says so. All sources are asked, because the batch may have lost some of them.
        """
        with self._changed:
            self._turns.epoch += 1
            epoch = self._turns.epoch
        for link in self.pipeline.links:
            command = pb.BaseCommand(type=pb.GEO_FETCH)
            fetch = command.geo_fetch
            fetch.to, fetch.pipeline, fetch.epoch, fetch.reader = link.target, self.pipeline.name, epoch, epoch
            fetch.bytes_max = 0
            try:
                channel = self._shared.connection(link.source)
            except LinkDown:
                continue
            try:
                call(channel, command, min(timeout_ms, self._limits.progress_ms) / 1000)
            except LinkDown:
                continue  # its readers cannot be reached by it either
            finally:
                channel.close()

    def resume(self) -> None:
        """Plan again after `drain`."""
        with self._changed:
            self._draining = False
            self._changed.notify_all()

    def present(self, token: str) -> None:
        """Present another token from now on; connections that presented the one before are given up."""
        self._shared.present(token)

    # ------------------------------------------------------------------------------------ requests of Spark's workers

    def warm(self, queries: Iterable[str]) -> None:
        """Let each query's first batch be an empty one, at once.

        Spark starts its Python workers with the first batch, which takes seconds: no message should wait for that.
        """
        with self._changed:
            self._cold = set(queries)
            self._changed.notify_all()

    def warmed(self) -> bool:
        """Whether every query's first batch is over."""
        with self._changed:
            return not self._cold

    def wait(self, query: str, timeout_ms: int) -> bool:
        """Wait until a query has something to plan; returns whether it has."""
        until = self._clock() + timeout_ms
        with self._changed:
            if query in self._cold:
                return True
            if query in LONG:
                return self._wait_for_turn(query, until)
            while not (self._shared.stopping or self._draining):
                now = self._clock()
                works, wake = self.state.available(query, now)
                if works:
                    return True
                if now >= until:
                    return False
                self._changed.wait((min(wake or until, until) - now + 1) / 1000)
        return False

    def _wait_for_turn(self, query: str, until: int) -> bool:
        while not (self._shared.stopping or self._draining):
            now, at_ms = self._clock(), self._turns.at_ms(query)
            if at_ms <= now:
                self._turns.take(query, now)
                return True
            if now >= until:
                return False
            self._changed.wait((min(at_ms, until) - now + 1) / 1000)
        return False

    def plan(self, query: str) -> list[m.Task]:
        """Plan the next batch of a query."""
        with self._changed:
            if self._shared.stopping or self._draining:
                if query in LONG:
                    self._turns.over(query)
                return []
            if query in LONG:
                return [self._long_task(query)]
            planned = self.state.plan(query, self._routes, self._clock())
            if not planned and query in self._cold:
                return [m.Task((), ())]
            return planned

    def _long_task(self, query: str) -> m.Task:
        """The task of a long batch; of an empty one while the query is cold."""
        if query in self._cold:
            return m.Task((), ())
        limits = self._limits
        epoch = self._turns.begin(query, self._clock())
        long = m.LongBatch(epoch, limits.long_batch_ms, self.pipeline.name, limits.link_window_bytes_max)
        return m.Task(
            tuple(self.state.route(number, addresses) for number, addresses in self._routes.items()), (), long
        )

    def committed(self, query: str, reports: Sequence[m.TaskReport]) -> None:
        """Take the confirmations of the tasks of a query's batch."""
        with self._shared.changing() as pipeline_state:
            if query in LONG:
                self._turns.over(query)
            else:
                pipeline_state.batch_reported(query, reports, self._clock())
            self.batches[query] = self.batches.get(query, 0) + 1
            self._cold.discard(query)

    def query_ended(self, query: str) -> None:
        """Treat a query's last batch as over: its missing reports are not waited for, and are ignored if they come later.

        Else it would be in flight until the query's next plan. That plan may wait for a handshake, which cannot happen meanwhile.
        """
        with self._shared.changing() as pipeline_state:
            if query in LONG:
                self._turns.over(query)
            else:
                pipeline_state.batch_over(query)

    def _plan_packed(self, query: str) -> list[bytes]:
        return [m.encode(task) for task in self.plan(query)]

    def _committed_packed(self, query: str, reports: list[bytes]) -> None:
        self.committed(query, [m.decode_report(report) for report in reports])

    def _token(self) -> str:
        return self._shared.presented

    @contextmanager
    def reading(self) -> Iterator[PipelineState]:
        """The pipeline's state, which does not change meanwhile."""
        with self._changed:
            yield self.state

    def troubles(self) -> dict[str, str]:
        """All present troubles, in words."""
        return self._shared.troubles()

    def status(self) -> dict[str, Any]:
        """The pipeline in figures: plain values, for `status`, metrics and tests."""
        now, troubles = self._clock(), self.troubles()
        with self._changed:
            return {
                "pipeline": self.pipeline.name,
                "batches": dict(self.batches),
                "clusters": {
                    name: {"state": breaker.state.value, "reason": breaker.reason, "since_ms": breaker.since_ms}
                    for name, breaker in self.state.breakers.items()
                },
                "links": {str(state.link): state.figures(now) for state in self.state.links.values()},
                "troubles": troubles,
            }
