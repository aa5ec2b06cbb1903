"""A circuit breaker for each cluster: a dead cluster must not stall the links between the others.

    closed --failure--> open --after the pause--> half-open --probe works--> closed
                         ^                            |
                         +------- probe fails --------+   (the same short pause each time; the pause after failures of
                            or gets no answer    batches doubles, up to a bound; both with jitter)

Nothing is planned from or to a cluster whose breaker is not closed. The coordinator's own threads make the probes, never a
batch. A successful probe closes the breaker but does not reset the count of failures: a cluster that answers probes and stalls
batches is tried less and less often. Only a batch that went through (`confirmed`) resets the count. One failure opens the
breaker: a task has already waited for its deadline when it reports one, and every further attempt would cost every other link
the same wait again. A failed probe costs only the thread that makes it. It is not counted, and the next one follows soon, however
long the cluster was down: so a cluster that is back is used again within a second.
"""

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from magnetar.core.backoff import pause

PAUSE_MS_MIN: Final = 200
"""First pause after a failure: about one micro-batch, so that a broker's restart costs little."""

PAUSE_MS_MAX: Final = 10_000
"""Longest pause after failures of batches: how long a cluster that answers probes and stalls batches is left alone."""

PROBE_MS: Final = 400
"""Pause between two probes: how long a cluster that is back may stay unnoticed. A probe is a connection and one question."""

JITTER: Final = 0.25
"""Pauses vary by this share, so that many pipelines do not probe a restarted broker in step."""


class BreakerState(Enum):
    """Closed: in use. Open: left alone. Half-open: one probe is under way."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


def backoff_ms(failures: int, rng: random.Random, least_ms: int = PAUSE_MS_MIN, most_ms: int = PAUSE_MS_MAX) -> int:
    """The pause after a number of failures in a row (>= 1): doubling, bounded, jittered; never under half of `least_ms`."""
    return max(1, round(pause(failures, least_ms, most_ms) * rng.uniform(1 - JITTER, 1 + JITTER)))


@dataclass(slots=True)
class Breaker:
    """One cluster's breaker. Time and chance come in as arguments."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    retry_at_ms: int = 0
    since_ms: int = 0
    reason: str = ""
    probes: int = 0

    @property
    def closed(self) -> bool:
        """Whether work may be planned."""
        return self.state is BreakerState.CLOSED

    def failed(self, now_ms: int, rng: random.Random, reason: str) -> None:
        """A task or a probe could not reach the cluster."""
        if self.state is BreakerState.OPEN:
            return  # a late task reports a known failure: it must not stretch the pause
        if self.since_ms == 0:
            self.since_ms = now_ms
        if self.state is BreakerState.HALF_OPEN:
            pause_ms = backoff_ms(1, rng, PROBE_MS)
        else:
            self.failures += 1
            pause_ms = backoff_ms(self.failures, rng)
        self.reason = reason
        self.state = BreakerState.OPEN
        self.retry_at_ms = now_ms + pause_ms

    def probe(self, now_ms: int) -> int:
        """Start a probe if one may start now: its number, at most one until it has failed or worked; 0: not now."""
        if self.state is not BreakerState.OPEN or now_ms < self.retry_at_ms:
            return 0
        self.state = BreakerState.HALF_OPEN
        self.probes += 1
        return self.probes

    def under_way(self, probe: int) -> bool:
        """Whether the probe of this number has neither failed nor worked yet."""
        return self.state is BreakerState.HALF_OPEN and self.probes == probe

    def worked(self) -> bool:
        """A probe got its answer. Returns whether the cluster was down until now."""
        was_down = self.state is not BreakerState.CLOSED
        self.state, self.retry_at_ms, self.since_ms, self.reason = BreakerState.CLOSED, 0, 0, ""
        return was_down

    def confirmed(self) -> None:
        """A batch went through."""
        if self.state is BreakerState.CLOSED:
            self.failures = 0
