"""Counters as rates: what each look shows."""

from magnetar.core.meter import Meter


def test_the_first_interval_counts() -> None:
    meter = Meter(2, began_ms=10_000)
    assert meter.per_s == (0.0, 0.0)
    meter.update(12_000, (10, 400))
    assert meter.per_s == (5.0, 200.0)
    meter.update(16_000, (10, 800))
    assert meter.per_s == (0.0, 100.0)


def test_without_a_beginning_the_first_look_begins() -> None:
    meter = Meter(1)
    meter.update(12_000, (1_000,))
    assert meter.per_s == (0.0,)
    meter.update(13_000, (1_003,))
    assert meter.per_s == (3.0,)


def test_what_has_just_begun_is_no_rate_and_is_not_forgotten() -> None:
    meter = Meter(1, began_ms=10_000)
    meter.update(10_001, (1,))
    assert meter.per_s == (0.0,), "not a thousand a second"
    meter.update(12_000, (1,))
    assert meter.per_s == (0.5,)


def test_a_clock_that_goes_back_gives_no_rate() -> None:
    meter = Meter(1, began_ms=10_000)
    meter.update(8_000, (5,))
    assert meter.per_s == (0.0,)
    meter.update(9_000, (7,))
    assert meter.per_s == (2.0,)


def test_counters_that_stay_keep_no_new_objects() -> None:
    idle, other = Meter(2, began_ms=10_000), Meter(2, began_ms=10_000)
    idle.update(12_000, (0, 0))
    assert idle.per_s is other.per_s, "one for all meters"
    idle.update(13_000, (7, 7))
    assert idle.per_s == (7.0, 7.0)
    idle.update(14_000, (7, 7))
    assert idle.per_s is other.per_s
    assert idle.since_ms == 14_000
