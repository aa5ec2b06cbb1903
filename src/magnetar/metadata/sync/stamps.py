"""Stamps: the time and the cluster of a change, and which of two stamps wins.

The later time wins; at equal times the cluster whose name sorts first (docs/design/metadata.md#what-wins). The stamp of
the *writer* is compared, never the time of applying or the own name, so every cluster comes to the same result.
"""

from typing import Final, NamedTuple

US_PER_MS: Final = 1000

TIME_US_MAX: Final = 2**53 - 1
"""A ceiling: the largest integer that every JSON reader keeps exactly; the year 2255."""


class Stamp(NamedTuple):
    """The time and the cluster of a change.

    Attributes:
        time_us: hybrid logical clock, microseconds since 1970. 0 and 1 mean that no administrator set the value, see
            `FILE_US` and `FOUND_US`.
        cluster: the writer's cluster.
    """

    time_us: int
    cluster: str

    def __str__(self) -> str:
        return f"{self.time_us}@{self.cluster}"


FILE_US: Final = 0
"""The time of what a new cluster took from its configuration file: every change that was made wins over it."""

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
