"""The clock that orders seeks, and the broker's pace of markers."""

from magnetar.replication.acked_sets.pacer import MarkerPacer
from magnetar.replication.acked_sets.seek_clock import AHEAD_MS_MAX, SeekClock
from magnetar.wire.acksets import Epoch


def test_times_grow_whatever_the_wall_clock_does():
    clock = SeekClock()
    assert [clock.next_epoch(now, "a", 1).time_ms for now in (100, 100, 50, 200)] == [100, 101, 102, 200]
    clock.see(1000)
    assert clock.next_epoch(201, "a", 1).time_ms == 1001


def test_a_clock_that_is_ahead_is_followed_with_a_warning():
    clock = SeekClock()
    assert clock.see_epoch(Epoch(1, 1000 + AHEAD_MS_MAX, "b", 1), 1000) == ""
    warning = clock.see_epoch(Epoch(1, 1001 + AHEAD_MS_MAX, "b", 1), 1000)
    assert "b is 60 s ahead" in warning
    assert clock.next_epoch(1000, "a", 1).time_ms == 1002 + AHEAD_MS_MAX


def test_the_pacer_spreads_markers_above_its_rate():
    pacer = MarkerPacer(10)
    assert [pacer.reserve(1000) for _ in range(4)] == [1000, 1100, 1200, 1300]
    assert pacer.reserve(5000) == 5000
    assert MarkerPacer(0).reserve(7) == 7


def test_the_pacer_keeps_to_its_rate_over_a_second():
    pacer = MarkerPacer(500)
    given = [pacer.reserve(10_000) for _ in range(600)]
    assert sum(at < 11_000 for at in given) <= 550
    assert given == sorted(given)


def test_moments_before_a_time_are_given_while_there_are_some():
    pacer = MarkerPacer(100)
    given = [pacer.reserve_between(1010, 1100) for _ in range(25)]
    assert given[:10] == [1010] * 10  # saved up
    assert given[10:19] == [*range(1020, 1100, 10), 1100]
    assert given[19:] == [1100] * 6  # none is left before it, and none is taken
    assert pacer.reserve_between(1110, 1200) == 1110
