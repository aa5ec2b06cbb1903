"""The state that the threads of a coordinator share: the pipeline's state, one lock, and the clusters they may talk to."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.addresses import BrokerAddresses
from magnetar.core.settings import ReplicationLimits
from magnetar.pipeline import messages as m
from magnetar.pipeline.breaker import BreakerState
from magnetar.pipeline.link_state import Link
from magnetar.pipeline.pipeline_state import PipelineState
from magnetar.pipeline.tasks.link_channel import LinkChannel

TICK_MS: Final = 250
"""How often a sleeping thread checks its breaker."""

_GRANT_SHIFT: Final = 20
"""A million grants per millisecond of a run, before its numbers could meet those of the next one."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The setup of a pipeline.

    Attributes:
        links: numbered from 0.
        addresses: of each cluster, for the driver and for the executors alike (`BrokerAddresses.parse`).
        token: of the links, at the start.
        cores: tasks that can run at once.
        name: identifies this pipeline in leases.
        limits: `[replication.limits]`.
        long: whether long batches carry topics at their end.
    """

    links: tuple[Link, ...]
    addresses: dict[str, str]
    token: str = field(repr=False)
    cores: int
    name: str
    limits: ReplicationLimits = m.DEFAULTS
    long: bool = False


class SharedState:
    """The state of a pipeline, and the lock that guards it. No thread holds the lock while it talks to a broker.

    Attributes:
        pipeline: its setup.
        state: the state of all links.
        changed: the lock; notified after each change.
        stopping: whether the threads are to end.
        presented: the token of the links that is presented now.
        clock_ms: the wall clock.

    Args:
        on_line: takes each line that says that a trouble came or went.
        rng: for jitter.
    """

    def __init__(
        self, pipeline: Pipeline, on_line: Callable[[str], None], rng: random.Random, clock_ms: Callable[[], int]
    ) -> None:
        self.pipeline = pipeline
        first_grant = clock_ms() << _GRANT_SHIFT if pipeline.long else 0
        self.state = PipelineState(pipeline.links, rng, pipeline.cores, pipeline.limits, first_grant=first_grant)
        self.changed = threading.Condition()
        self.stopping = False
        self.presented = pipeline.token
        self._clusters = {name: BrokerAddresses.parse(text) for name, text in pipeline.addresses.items()}
        self.clock_ms = clock_ms
        self._rng = rng
        self._say = on_line

    @contextmanager
    def changing(self) -> Iterator[PipelineState]:
        """The state, to be changed. Troubles that come or go by the change are reported, and waiting threads look again."""
        with self.changed:
            before = self._troubles()
            yield self.state
            self._announce(before)
            self.changed.notify_all()

    def stop(self) -> None:
        """Let the threads end."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def await_probe(self, cluster: str) -> None:
        """Sleep until a broken cluster may be probed, or something changes."""
        with self.changed:
            breaker = self.state.breakers[cluster]
            # Half-open: another thread's probe is under way.
            left_ms = breaker.retry_at_ms - self.clock_ms() if breaker.state is BreakerState.OPEN else TICK_MS
            if not self.stopping:
                self.changed.wait(min(max(left_ms, 1), TICK_MS) / 1000)

    def pause(self, ms: int) -> None:
        """Sleep for this time, whatever changes, unless the pipeline stops."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopping, ms / 1000)

    # ------------------------------------------------------------------------------------------------------- talking

    def present(self, token: str) -> None:
        """Present another token from now on; connections that presented the one before are given up."""
        with self.changed:
            self.presented = token
            self.changed.notify_all()

    def connection(self, cluster: str, kept: LinkChannel | None = None) -> LinkChannel:
        """The kept connection, or a new one when there is none or its token is outdated. Raises LinkDown."""
        if kept is not None:
            if kept.presented == self.presented:
                return kept
            kept.close()
        return LinkChannel(self._clusters[cluster], self.presented)

    def failed(self, cluster: str, reason: str) -> None:
        """A cluster did not answer as it should."""
        with self.changing() as pipeline_state:
            pipeline_state.breakers[cluster].failed(self.clock_ms(), self._rng, reason)

    def worked(self, cluster: str) -> None:
        """A cluster answered."""
        with self.changed:
            if self.state.breakers[cluster].state is BreakerState.CLOSED:
                return
            with self.changing() as pipeline_state:
                pipeline_state.breakers[cluster].worked()

    @contextmanager
    def trying(self, cluster: str) -> Iterator[bool]:
        """Whether a cluster may be talked to outside batches; while it is broken, one probe at a time.

        A probe that ends without a word has failed: else there would never be another one.
        """
        with self.changed:
            breaker = self.state.breakers[cluster]
            closed, probe = breaker.closed, breaker.probe(self.clock_ms())
        try:
            yield closed or probe > 0
        finally:
            with self.changed:
                if breaker.under_way(probe):
                    self.failed(cluster, breaker.reason)

    # ------------------------------------------------------------------------------------------------------ troubles

    def troubles(self) -> dict[str, str]:
        """Every trouble there is, in words, by what it is about."""
        with self.changed:
            return self._troubles()

    def _troubles(self) -> dict[str, str]:
        """Every trouble there is, by what it is about; the lock is held."""
        pipeline_state = self.state
        troubles = {
            f"cluster {name}": f"down: {breaker.reason}"
            for name, breaker in pipeline_state.breakers.items()
            if breaker.state is not BreakerState.CLOSED
        }
        for state in pipeline_state.links.values():
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
