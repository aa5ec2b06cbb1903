"""When and where a value was set, which of two wins, and the clock that gives the times.

The later time wins; at equal times the cluster whose name sorts first. Compared are the stamps of the *writers*,
never the time of applying or the own name: every cluster comes to the same end (docs/design/metadata.md#what-wins).
"""

from typing import Final, NamedTuple

US_PER_MS: Final = 1000

TIME_US_MAX: Final = 2**53 - 1
"""A ceiling: what every JSON reader keeps exactly; the year 2255."""


class Stamp(NamedTuple):
    """When and where.

    Attributes:
        time_us: hybrid logical clock, microseconds since 1970. 0 and 1 are for what nobody set, see `FILE_US` and `FOUND_US`.
        cluster: of the writer.
    """

    time_us: int
    cluster: str

    def __str__(self) -> str:
        return f"{self.time_us}@{self.cluster}"


FILE_US: Final = 0
"""The time of what a new cluster took from its configuration file: whatever anybody set wins over it."""

FOUND_US: Final = 1
"""The time of what was there when synchronisation was switched on, or came over a link."""


def beats(one: Stamp | None, other: Stamp | None) -> bool:
    """Whether `one` wins over `other`; nothing wins over itself."""
    if one is None or other is None:
        return one is not None
    return one.time_us > other.time_us or (one.time_us == other.time_us and one.cluster < other.cluster)


def later(one: Stamp | None, other: Stamp | None) -> Stamp | None:
    """The one that wins."""
    return other if beats(other, one) else one


class HybridClock:
    """Never behind the wall clock's reading, always above everything it was shown (Kulkarni et al., 2014).

    So a change that was made after seeing another one wins over it, however wrong a clock is. It has to be shown everything
    that is stored after a restart, deletions included (docs/design/metadata.md#clock).
    """

    def __init__(self) -> None:
        self.latest_us = 0

    def see(self, stamp: Stamp | None) -> None:
        """Be above this one from now on."""
        if stamp is not None and stamp.time_us > self.latest_us:
            self.latest_us = stamp.time_us

    def next(self, now_ms: int) -> int:
        """The time of a change that is made now, µs."""
        # Above FOUND_US also in a world whose clock begins at 0.
        self.latest_us = max(now_ms * US_PER_MS, self.latest_us + 1, FOUND_US + 1)
        return self.latest_us

    def ahead_ms(self, now_ms: int) -> int:
        """How far the newest stamp that is known is ahead of the wall clock; 0 if it is not."""
        return max(0, self.latest_us // US_PER_MS - now_ms)
