"""The desk: who may talk to a cluster, and what becomes of a probe that nobody ends."""

import random

import pytest

from magnetar.pipeline.breaker import BreakerState
from magnetar.pipeline.shared_state import Desk, Pipeline

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
def desk(clock: Clock) -> Desk:
    addresses = {"a": "127.0.0.1:1", "b": "127.0.0.1:1"}
    return Desk(Pipeline(LINKS[:1], addresses, "t", 2, "test"), lambda _line: None, random.Random(1), clock)


def broken(desk: Desk, clock: Clock) -> None:
    """The cluster a is down and may be probed."""
    desk.failed("a", "refused")
    clock.now = desk.book.breakers["a"].retry_at_ms


def test_a_probe_that_is_left_without_a_word_has_failed(desk: Desk, clock: Clock) -> None:
    broken(desk, clock)
    with desk.trying("a") as may_try:
        assert may_try
        with desk.trying("a") as another:
            assert not another, "one probe at a time"
        assert desk.book.breakers["a"].state is BreakerState.HALF_OPEN
    breaker = desk.book.breakers["a"]
    assert (breaker.state, breaker.failures, breaker.reason) == (BreakerState.OPEN, 2, "refused")
    clock.now = breaker.retry_at_ms
    with pytest.raises(KeyError), desk.trying("a"):
        raise KeyError("a fault of ours")
    assert breaker.state is BreakerState.OPEN


def test_a_probe_that_ended_is_not_ended_again(desk: Desk, clock: Clock) -> None:
    broken(desk, clock)
    breaker = desk.book.breakers["a"]
    with desk.trying("a"):
        desk.failed("a", "silent")
    assert (breaker.failures, breaker.reason) == (2, "silent")
    clock.now = breaker.retry_at_ms
    with desk.trying("a"):
        desk.worked("a")
    assert breaker.closed


def test_the_probe_of_another_thread_is_left_alone(desk: Desk, clock: Clock) -> None:
    broken(desk, clock)
    with desk.trying("a"):
        desk.worked("a")  # a poller stays connected after its probe
        broken(desk, clock)
        other = desk.trying("a")
        assert other.__enter__()
    breaker = desk.book.breakers["a"]
    assert breaker.state is BreakerState.HALF_OPEN
    desk.worked("a")
    other.__exit__(None, None, None)
    assert breaker.closed
