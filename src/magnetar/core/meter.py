"""Counters as rates, for statistics."""

from collections.abc import Sequence
from typing import Final

INTERVAL_S_MIN: Final = 0.1
"""The shortest interval. A shorter one continues until the next look; no configuration looks that often."""


COUNTERS_MAX: Final = 8
"""Counters of one meter, more than any has."""

_ZEROS: Final = tuple((0.0,) * counters for counters in range(COUNTERS_MAX + 1))
_NONE_SO_FAR: Final = tuple((0,) * counters for counters in range(COUNTERS_MAX + 1))
"""Shared by all meters: most of a hundred thousand topics are idle."""


class Meter:
    """The growth of some counters per second, over the last interval between two looks.

    As Pulsar's rates, it is zero until the first look. The first look ends the interval that began with the counters
    themselves.

    Args:
        counters: number of counters.
        began_ms: when they were zero; 0 if that is not known: then the first look only begins an interval.

    Attributes:
        per_s: in the order of the counters.
        since_ms: start of the current interval.
    """

    __slots__ = ("_before", "per_s", "since_ms")

    def __init__(self, counters: int, began_ms: int = 0) -> None:
        self.per_s: tuple[float, ...] = _ZEROS[counters]
        self._before: Sequence[int] = _NONE_SO_FAR[counters]
        self.since_ms = began_ms

    def update(self, now_ms: int, counters: Sequence[int]) -> None:
        """The counters as they are now; an interval ends, another begins."""
        elapsed_s = (now_ms - self.since_ms) / 1000
        if self.since_ms and 0 <= elapsed_s < INTERVAL_S_MIN:
            return  # a message in a moment is not a rate; it counts in the next interval
        if counters == self._before:
            if self.since_ms and elapsed_s > 0:
                self.per_s = _ZEROS[len(counters)]
            self.since_ms = now_ms
            return
        if self.since_ms and elapsed_s > 0:
            self.per_s = tuple((new - old) / elapsed_s for new, old in zip(counters, self._before, strict=True))
        self.since_ms, self._before = now_ms, counters
