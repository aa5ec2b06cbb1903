"""The shared: who may talk to a cluster, and what becomes of a probe that nobody ends."""

import random

import pytest

from magnetar.pipeline.breaker import BreakerState
from magnetar.pipeline.shared_state import Pipeline, SharedState

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
    assert (breaker.state, breaker.failures, breaker.reason) == (BreakerState.OPEN, 2, "refused")
    clock.now = breaker.retry_at_ms
    with pytest.raises(KeyError), shared.trying("a"):
        raise KeyError("a fault of ours")
    assert breaker.state is BreakerState.OPEN


def test_a_probe_that_ended_is_not_ended_again(shared: SharedState, clock: Clock) -> None:
    broken(shared, clock)
    breaker = shared.state.breakers["a"]
    with shared.trying("a"):
        shared.failed("a", "silent")
    assert (breaker.failures, breaker.reason) == (2, "silent")
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
