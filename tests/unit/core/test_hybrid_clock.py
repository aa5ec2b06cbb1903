"""The hybrid logical clock."""

from magnetar.core.hybrid_clock import HybridClock


def test_the_clock_is_above_all_that_it_saw() -> None:
    clock = HybridClock(1)
    assert clock.next(0) > 1
    clock.see(5_000_000)
    assert clock.next(1_000) == 5_000_001
    assert clock.next(9_000_000) == 9_000_000
    assert clock.next(9_000_000) == 9_000_001
    assert clock.ahead(8_000_000) == 1_000_001
    assert clock.ahead(10_000_000) == 0


def test_what_is_older_does_not_move_it() -> None:
    clock = HybridClock()
    clock.see(7)
    clock.see(3)
    assert clock.latest == 7
