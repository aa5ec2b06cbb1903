"""Between events the event loop's thread lets the log's thread by: when it waits, for as long as it waits, and rarely in vain."""

from itertools import pairwise

from magnetar.runtime.giveway import PATIENCE_GROWTH, PATIENCE_S, GiveWay


class Other:
    """A thread that works, and the time."""

    def __init__(self) -> None:
        self.busy = False
        self.steps = 0
        self.now_s = 100.0
        self.pauses: list[float] = []
        self.way = GiveWay(self, lambda: self.now_s, self.pause)

    def pause(self) -> None:
        self.pauses.append(self.now_s)

    def events(self, seconds: float, every_s: float = 1e-5) -> None:
        """This thread has events to handle."""
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += every_s
            self.way.look()


def test_nobody_waits() -> None:
    other = Other()
    other.events(0.1)
    assert other.pauses == []


def test_whoever_waits_is_let_by_soon() -> None:
    other = Other()
    other.events(0.01)
    other.busy = True
    other.events(0.0005)
    assert len(other.pauses) == 1
    assert PATIENCE_S <= other.pauses[0] - 100.01 < 1.2 * PATIENCE_S


def test_whoever_comes_on_by_itself_needs_no_pause() -> None:
    other = Other()
    other.busy = True
    for _ in range(100):
        other.events(PATIENCE_S / 2)
        other.steps += 1
    assert other.pauses == []


def test_pauses_in_vain_become_rarer_until_it_comes_on() -> None:
    other = Other()
    other.busy = True
    other.events(0.1)
    gaps = [later - before for before, later in pairwise(other.pauses)]
    assert len(gaps) > 5
    assert all(later > 1.2 * before for before, later in pairwise(gaps[1:]))
    assert len(other.pauses) * 60e-6 < 0.02 * 0.1 + 10 * 60e-6, "with a disk that hangs they cost next to nothing"
    other.steps += 1
    before = len(other.pauses)
    other.events(PATIENCE_S * (1 + PATIENCE_GROWTH) + 1e-4)
    assert len(other.pauses) == before + 2
