"""The circuit breaker, the pauses and the token bucket."""

import random
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.breaker import PAUSE_MS_MAX, PAUSE_MS_MIN, PROBE_MS, Breaker, BreakerState, backoff_ms
from magnetar.pipeline.link_state import Throttle


def test_one_failure_opens_it_and_one_probe_at_a_time_closes_it() -> None:
    breaker, rng = Breaker(), random.Random(1)
    assert breaker.closed
    assert not breaker.probe(0)
    breaker.failed(1000, rng, "refused")
    assert breaker.state is BreakerState.OPEN
    assert breaker.reason == "refused"
    assert breaker.since_ms == 1000
    assert not breaker.probe(1000)
    assert breaker.probe(breaker.retry_at_ms)
    assert not breaker.closed
    assert not breaker.probe(breaker.retry_at_ms), "the second probe waits for the first"
    assert breaker.worked()
    assert breaker.closed
    assert not breaker.worked(), "it was not down any more"


def test_the_pause_grows_while_batches_fail_though_probes_work() -> None:
    breaker, rng, now, pauses = Breaker(), random.Random(2), 0, []
    for _ in range(8):
        breaker.failed(now, rng, "silent")
        pauses.append(breaker.retry_at_ms - now)
        now = breaker.retry_at_ms
        assert breaker.probe(now)
        breaker.worked()
    assert pauses[-1] > 8 * pauses[0]
    assert max(pauses) <= PAUSE_MS_MAX * 1.25
    breaker.confirmed()
    breaker.failed(now, rng, "silent")
    assert breaker.retry_at_ms - now <= PAUSE_MS_MIN * 1.25, "a batch that went through starts the count anew"


def test_a_cluster_that_is_back_is_noticed_soon_however_long_it_was_down() -> None:
    breaker, rng, now = Breaker(), random.Random(5), 0
    breaker.failed(now, rng, "refused")
    for _ in range(50):
        now = breaker.retry_at_ms
        assert breaker.probe(now)
        breaker.failed(now, rng, "refused")
        assert breaker.retry_at_ms - now <= PROBE_MS * 1.25
    assert breaker.probe(breaker.retry_at_ms)
    breaker.worked()
    breaker.failed(now, rng, "stalled")
    assert breaker.failures == 2, "failed probes are not failures of batches"


def test_a_late_report_does_not_stretch_the_pause() -> None:
    breaker, rng = Breaker(), random.Random(3)
    breaker.failed(0, rng, "first")
    until = breaker.retry_at_ms
    breaker.failed(50, rng, "late")
    assert breaker.retry_at_ms == until
    assert breaker.reason == "first"


def test_down_since_the_first_failure_of_a_row() -> None:
    breaker, rng = Breaker(), random.Random(4)
    breaker.failed(100, rng, "x")
    assert breaker.probe(breaker.retry_at_ms)
    breaker.failed(5000, rng, "y")
    assert breaker.since_ms == 100
    assert breaker.reason == "y"


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_pauses_are_bounded_and_jittered(failures: int, seed: int) -> None:
    assert PAUSE_MS_MIN * 0.75 - 1 <= backoff_ms(failures, random.Random(seed)) <= PAUSE_MS_MAX * 1.25 + 1


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 20_000)), max_size=60))
def test_a_bucket_never_lets_more_through_than_its_rate_and_one_overdraft(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    bucket = Throttle()
    bucket.set_rate(rate, 0)
    now = spent = largest = 0
    for wait, size in steps:
        now += wait
        if bucket.allowance(now):
            bucket.spend(size)
            spent += size
            largest = max(largest, size)
        else:
            ready = bucket.ready_at_ms(now)
            assert ready > now
            assert deepcopy(bucket).allowance(ready), "when it says it is ready, it is"
    assert spent <= rate + rate * now / 1000 + largest


def test_no_rate_no_bound() -> None:
    assert Throttle().allowance(5) is None
    assert Throttle().ready_at_ms(5) == 5
