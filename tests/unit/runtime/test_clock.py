"""The wall clock of a broker."""

from magnetar.runtime.clock import SystemClock

SECOND = 1_000_000_000


class Hands:
    """Two clocks in the test's hands: seconds of the wall, and seconds that nobody can set."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1000, 50
        self.clock = SystemClock(lambda: self.wall * SECOND, lambda: self.monotonic * SECOND)

    def after(self, seconds: int) -> int:
        self.wall += seconds
        self.monotonic += seconds
        return self.clock.now_ms()


def test_follows_the_wall_clock() -> None:
    hands = Hands()
    assert hands.after(10) == 1_010_000
    hands.wall += 3600
    assert hands.after(1) == 4_611_000


def test_set_back_it_goes_on_at_half_speed_until_the_wall_has_caught_up() -> None:
    hands = Hands()
    hands.wall -= 60
    assert hands.after(0) == 1_000_000
    assert hands.after(10) == 1_005_000
    assert hands.after(110) == 1_060_000
    assert hands.after(10) == 1_070_000, "it shows the wall clock's time again"


def test_never_goes_back() -> None:
    hands = Hands()
    shown = []
    for step in (5, -300, 1, 7, 1000, -2000, 3):
        hands.wall += step
        shown.append(hands.after(1))
    assert shown == sorted(shown)
