"""The one place of a pipeline process that talks to brokers outside batches, and that plans the batches.

Threads, all asleep unless something happens:

- a *poller* for each source cluster: GEO_TOPICS of all its links on one connection, long polls;
- a *teller* for each source cluster: GEO_COMMIT with everything owed, commits before what was learned;
- a *greeter* for each destination cluster: handshakes, the idle comparison, probes of a broken cluster;
- a *listener* for each destination cluster: while it refuses topics, a long poll for the end of that.

Spark's workers call `wait`, `plan` and `committed` through the socket of `rpc`. One lock guards the book; nobody holds it
while talking to a broker.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from magnetar.pipeline import messages as m
from magnetar.pipeline.commit_sender import Teller
from magnetar.pipeline.handshakes import Greeter
from magnetar.pipeline.poller import Poller
from magnetar.pipeline.query_listener import Listener
from magnetar.pipeline.rpc import Server
from magnetar.pipeline.shared_state import Desk, Pipeline, wall_ms
from magnetar.pipeline.state import Book


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
        self._clock = clock_ms
        self._limits = pipeline.limits
        self._desk = Desk(pipeline, on_line, rng or random.Random(), clock_ms)  # noqa: S311 - for jitter
        self._changed = self._desk.changed
        self.book = self._desk.book
        self._draining = False
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
        jobs: list[tuple[str, Callable[[], None]]] = [
            *((f"poll-{name}", Poller(self._desk, name).run) for name in sources),
            *((f"tell-{name}", Teller(self._desk, name).run) for name in sources),
            *((f"greet-{name}", Greeter(self._desk, name).run) for name in targets),
            *((f"listen-{name}", Listener(self._desk, name).run) for name in targets),
        ]
        for name, job in jobs:
            thread = threading.Thread(target=job, name=f"magnetar-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        """End the threads; what is owed is told first, if its source answers."""
        self.settle(self._limits.answer_ms)
        self._desk.stop()
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
        self._desk.present(token)

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
            while not (self._desk.stopping or self._draining):
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
            if self._desk.stopping or self._draining:
                return []
            planned = self.book.plan(lane, self._routes, self._clock())
            if not planned and lane in self._cold:
                return [m.Task((), ())]
            return planned

    def committed(self, lane: str, reports: Sequence[m.TaskReport]) -> None:
        """Take what the tasks of a lane's batch confirmed."""
        with self._desk.changing() as book:
            book.batch_reported(lane, reports, self._clock())
            self.batches[lane] = self.batches.get(lane, 0) + 1
            self._cold.discard(lane)

    def query_ended(self, lane: str) -> None:
        """Take a lane's last batch as over: what it did not report by now is not waited for, and not believed later.

        Else it would be in flight until the lane's next plan, which may wait for what cannot happen while it is: a handshake.
        """
        with self._desk.changing() as book:
            book.batch_over(lane)

    def _plan_packed(self, lane: str) -> list[bytes]:
        return [m.encode(task) for task in self.plan(lane)]

    def _committed_packed(self, lane: str, reports: list[bytes]) -> None:
        self.committed(lane, [m.decode_report(report) for report in reports])

    def _token(self) -> str:
        return self._desk.presented

    @contextmanager
    def reading(self) -> Iterator[Book]:
        """The book, held still."""
        with self._changed:
            yield self.book

    def troubles(self) -> dict[str, str]:
        """Every trouble there is, in words."""
        return self._desk.troubles()

    def status(self) -> dict[str, Any]:
        """The pipeline in figures: plain values, for `status`, metrics and tests."""
        now, troubles = self._clock(), self.troubles()
        with self._changed:
            return {
                "pipeline": self.pipeline.name,
                "batches": dict(self.batches),
                "clusters": {
                    name: {"state": breaker.state.value, "reason": breaker.reason, "since_ms": breaker.since_ms}
                    for name, breaker in self.book.breakers.items()
                },
                "links": {str(state.link): state.figures(now) for state in self.book.links.values()},
                "troubles": troubles,
            }
