"""The pace of a connection, and the window that follows from it: as much under way as bandwidth times round trip. A pure machine.

With a fixed window a link is either slow over a long way, or holds too much in memory over a short one. The pace is counted as in
BBR, Google's congestion control for TCP: each answer says how much was answered between its request and itself. The window is
twice the best such rate of the last seconds, times the round trip. While the way alone delays the answers, the window doubles
with each round trip. When the peer or the bandwidth is the limit, the rate no longer rises, and the window stays where it is.

The round trip is measured once for a connection (`LinkChannel`), and not by the requests: a request waits for earlier ones, so a
window that follows their times would grow without end.
"""

from typing import Final, NamedTuple

GAIN: Final = 2
"""The window in multiples of bandwidth times round trip: answers do not come evenly, and a window has to find more to grow."""

PERIOD_S: Final = 2.0
"""The best rate of this period and the one before it counts, so a window shrinks within 4 s when less is to be carried."""


class Mark(NamedTuple):
    """The count at the time of a request."""

    at_s: float
    answered: int


class Pace:
    """Counts what a peer answers, in any unit.

    Args:
        now_s: the clock, in seconds.
    """

    def __init__(self, now_s: float) -> None:
        self._answered = 0
        self._best = self._former = 0.0
        self._period_s = now_s

    def asked(self, now_s: float) -> Mark:
        """Take the mark that goes with a request."""
        return Mark(now_s, self._answered)

    def answered(self, mark: Mark, size: int, now_s: float) -> None:
        """Count an answer.

        Args:
            mark: of its request.
            size: of the answer.
            now_s: the clock.
        """
        self._answered += size
        self._turn(now_s)
        took = now_s - mark.at_s
        if took > 0:
            self._best = max(self._best, (self._answered - mark.answered) / took)

    def window(self, round_trip_s: float, now_s: float, least: int, most: int) -> int:
        """How much should be under way.

        Args:
            round_trip_s: of the connection.
            now_s: the clock.
            least, most: bounds of the result; `most` counts where they contradict each other.
        """
        self._turn(now_s)
        return min(most, max(least, int(GAIN * max(self._best, self._former) * round_trip_s)))

    def _turn(self, now_s: float) -> None:
        periods = int((now_s - self._period_s) / PERIOD_S)
        if periods > 0:
            self._former = self._best if periods == 1 else 0.0
            self._best = 0.0
            self._period_s += periods * PERIOD_S
