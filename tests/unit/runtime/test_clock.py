"""The wall clock of a broker."""

from magnetar.runtime.clock import BELIEVED_MS, SystemClock

SECOND = 1_000_000_000
BELIEVED_S = BELIEVED_MS // 1000
YEAR = 365 * 24 * 3600


class Hands:
    """Two clocks in the test's hands: seconds of the wall, and seconds that nobody can set."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1000, 50
        self.said: list[str] = []
        self.clock = SystemClock(lambda: self.wall * SECOND, lambda: self.monotonic * SECOND, self.said.append)

    def after(self, seconds: int) -> int:
        self.wall += seconds
        self.monotonic += seconds
        return self.clock.now_ms()

    def day(self, seconds: int = 0) -> int:
        """The time of day that is believed, seconds."""
        return (self.after(seconds) - self.clock.ahead_ms) // 1000


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


def test_the_time_of_day_follows_the_clock_back_at_once() -> None:
    """Also when that was ahead for long, and was believed: nobody waits for a restart."""
    hands = Hands()
    hands.wall += YEAR
    assert hands.day(BELIEVED_S + 1) < 2000 < hands.day(BELIEVED_S), "it is asked often"
    assert hands.day(10) == hands.wall
    hands.wall -= YEAR
    shown = hands.after(0)
    assert hands.day() == hands.wall == 1000 + 2 * BELIEVED_S + 11
    assert hands.after(10) == shown + 5_000, "timers go on"
    assert hands.day(10) == hands.wall
    assert "was set back by" in hands.said[-1]


def test_a_jump_ahead_is_believed_when_it_has_stood_for_a_while() -> None:
    hands = Hands()
    hands.wall += 3600
    assert hands.after(0) == 4_600_000, "timers follow"
    assert [hands.day(BELIEVED_S // 4) for _ in range(3)] == [1075, 1150, 1225]
    hands.wall -= 3600
    assert hands.day(1) == 1226
    assert [text.partition(":")[0] for text in hands.said] == [
        "the system's clock jumped ahead by 3600 s",
        "the system's clock is back from where it had jumped to",
    ]
    hands.wall += 3600
    hands.day()
    assert hands.day(BELIEVED_S - 1) == hands.wall - 3600
    assert hands.day(1) == hands.wall


def test_what_a_clock_is_corrected_by_is_followed_at_once() -> None:
    hands = Hands()
    for step in (30, -30, -45, 60):
        hands.wall += step
        assert hands.day(1) == hands.wall
    assert hands.said == []
