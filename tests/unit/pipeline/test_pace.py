"""The window that follows a peer's pace: a way with a round trip and a bandwidth, in simulated time."""

from collections import deque
from itertools import pairwise

import pytest

from magnetar.pipeline.tasks.pace import GAIN, PERIOD_S, Mark, Pace

MB = 1_000_000
PIECE = 100_000


class Way:
    """A way to a peer that answers each piece when it has passed, all pieces one after the other.

    Args:
        round_trip_s: of an empty way.
        bandwidth: bytes per second.
    """

    def __init__(self, round_trip_s: float, bandwidth: float, *, least: int, most: int) -> None:
        self.round_trip_s, self.bandwidth, self.least, self.most = round_trip_s, bandwidth, least, most
        self.now = 0.0
        self.pace = Pace(0.0)
        self.under_way: deque[tuple[Mark, float]] = deque()
        self.peak = self.answered = 0
        self._free_at = 0.0

    @property
    def window(self) -> int:
        return self.pace.window(self.round_trip_s, self.now, self.least, self.most)

    def run(self, seconds: float, *, wanted: float = float("inf")) -> float:
        """Send as much as the window allows, at most `wanted` bytes per second; returns the rate of answers."""
        end, began, before, sent = self.now + seconds, self.now, self.answered, 0
        while self.now < end:
            due = (self.now - began) * wanted if wanted < float("inf") else wanted
            while len(self.under_way) * PIECE < self.window and sent <= due:
                self._free_at = max(self._free_at, self.now) + PIECE / self.bandwidth
                self.under_way.append((self.pace.asked(self.now), self._free_at + self.round_trip_s))
                sent += PIECE
            self.peak = max(self.peak, len(self.under_way) * PIECE)
            times = [end] + [at for _, at in list(self.under_way)[:1]]
            if wanted < float("inf"):
                times.append(max(self.now + 1e-6, began + sent / wanted))
            self.now = min(times)
            while self.under_way and self.under_way[0][1] <= self.now:
                mark, _ = self.under_way.popleft()
                self.pace.answered(mark, PIECE, self.now)
                self.answered += PIECE
        return (self.answered - before) / seconds


@pytest.mark.parametrize("round_trip_s", [0.02, 0.08, 0.2])
def test_a_far_peer_gets_bandwidth_times_round_trip(round_trip_s: float) -> None:
    way = Way(round_trip_s, 100 * MB, least=PIECE, most=1_000 * MB)
    way.run(20 * round_trip_s)
    assert way.run(2.0) > 95 * MB, "the bandwidth is the limit, and not the window"
    assert way.window == pytest.approx(GAIN * 100 * MB * round_trip_s, rel=0.2)
    assert way.peak < 1.3 * GAIN * 100 * MB * round_trip_s, "no more than that was ever under way"


def test_it_doubles_with_each_round_trip() -> None:
    way = Way(0.1, 1_000 * MB, least=MB, most=1_000 * MB)
    windows = []
    for _ in range(5):
        windows.append(way.window)
        way.run(0.12)
    assert all(after > 1.5 * before for before, after in pairwise(windows)), windows


def test_a_near_peer_keeps_the_least() -> None:
    way = Way(0.0005, 500 * MB, least=8 * MB, most=32 * MB)
    way.run(3.0)
    assert way.window == 8 * MB


def test_the_ceiling_holds_and_a_peer_that_stops_gets_no_more() -> None:
    way = Way(0.2, 1_000 * MB, least=8 * MB, most=32 * MB)
    way.run(3.0)
    assert way.window == way.peak == 32 * MB
    way.bandwidth = 1.0  # nothing comes back any more
    way.run(1.0)
    assert way.peak == 32 * MB


def test_it_shrinks_when_less_is_carried() -> None:
    way = Way(0.1, 1_000 * MB, least=PIECE, most=1_000 * MB)
    way.run(3.0)
    assert way.window > 100 * MB
    way.run(3 * PERIOD_S, wanted=10 * MB)
    assert way.window < 4 * GAIN * 10 * MB * 0.1
    way.now += 3 * PERIOD_S
    assert way.window == PIECE, "nothing was carried for a while"


def test_the_ceiling_counts_where_it_is_below_the_least() -> None:
    assert Pace(0.0).window(1.0, 0.0, 8 * MB, MB) == MB
