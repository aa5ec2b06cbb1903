"""The shared: who may talk to a cluster, and what becomes of a probe that nobody ends."""

import random

import pytest

from magnetar.pipeline.breaker import BreakerState
from magnetar.pipeline.shared_state import TICK_MS, Pipeline, SharedState

from .worlds import LINKS


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock) -> SharedState:
    addresses = {"a": "127.0.0.1:1", "b": "127.0.0.1:1"}
    return SharedState(Pipeline(LINKS[:1], addresses, "t", 2, "test"), lambda _line: None, random.Random(1), clock)


def broken(shared: SharedState, clock: Clock) -> None:
    """The cluster a is down and may be probed."""
    shared.failed("a", "refused")
    clock.now = shared.state.breakers["a"].retry_at_ms


def test_a_probe_that_is_left_without_a_word_has_failed(shared: SharedState, clock: Clock) -> None:
    broken(shared, clock)
    with shared.trying("a") as may_try:
        assert may_try
        with shared.trying("a") as another:
            assert not another, "one probe at a time"
        assert shared.state.breakers["a"].state is BreakerState.HALF_OPEN
    breaker = shared.state.breakers["a"]
    assert (breaker.state, breaker.probes, breaker.reason) == (BreakerState.OPEN, 1, "refused")
    assert breaker.retry_at_ms > shared.clock_ms(), "the next probe waits for its pause"
    clock.now = breaker.retry_at_ms
    with pytest.raises(KeyError), shared.trying("a"):
        raise KeyError("a fault of ours")
    assert breaker.state is BreakerState.OPEN


def test_a_thread_that_waits_for_a_probe_wakes_when_it_is_due(shared: SharedState, clock: Clock) -> None:
    shared.failed("a", "refused")
    waits: list[float | None] = []
    shared.changed.wait = waits.append  # type: ignore[assignment, method-assign]
    clock.now = shared.state.breakers["a"].retry_at_ms - 7
    shared.await_probe("a")
    clock.now += 100
    shared.await_probe("a")
    assert waits == [0.007, 0.001]
    with shared.trying("a"):
        shared.await_probe("a")
    assert waits[2:] == [TICK_MS / 1000], "another thread's probe is under way"
    shared.stop()
    shared.await_probe("a")
    assert len(waits) == 3


def test_a_probe_that_ended_is_not_ended_again(shared: SharedState, clock: Clock) -> None:
    broken(shared, clock)
    breaker = shared.state.breakers["a"]
    with shared.trying("a"):
        shared.failed("a", "silent")
        until = breaker.retry_at_ms
    assert (breaker.state, breaker.reason, breaker.retry_at_ms) == (BreakerState.OPEN, "silent", until)
    clock.now = breaker.retry_at_ms
    with shared.trying("a"):
        shared.worked("a")
    assert breaker.closed


def test_the_probe_of_another_thread_is_left_alone(shared: SharedState, clock: Clock) -> None:
    broken(shared, clock)
    with shared.trying("a"):
        shared.worked("a")  # a poller stays connected after its probe
        broken(shared, clock)
        other = shared.trying("a")
        assert other.__enter__()
    breaker = shared.state.breakers["a"]
    assert breaker.state is BreakerState.HALF_OPEN
    shared.worked("a")
    other.__exit__(None, None, None)
    assert breaker.closed
