"""Counters as rates, for statistics."""

from collections.abc import Sequence


class Meter:
    """What some counters grew by per second, over the last interval between two looks.

    Like Pulsar's rates, zero until the first interval is over.

    Args:
        counters: how many there are.

    Attributes:
        per_s: in the order of the counters.
    """

    __slots__ = ("_at_ms", "_before", "per_s")

    def __init__(self, counters: int) -> None:
        self.per_s = (0.0,) * counters
        self._before: Sequence[int] = (0,) * counters
        self._at_ms = 0

    def update(self, now_ms: int, counters: Sequence[int]) -> None:
        """The counters as they are now; an interval ends, another begins."""
        elapsed_s = (now_ms - self._at_ms) / 1000
        if self._at_ms and elapsed_s > 0:
            self.per_s = tuple((new - old) / elapsed_s for new, old in zip(counters, self._before, strict=True))
        self._at_ms, self._before = now_ms, counters
