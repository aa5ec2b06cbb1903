"""Latencies of publishes and sizes of entries, counted when appends are confirmed.

One call counts all entries of an append: they were requested together and became durable together. There is no work per
message.

    Buckets         of one topic: the number of values between two bounds over the last interval, as Pulsar reports it
    PublishLatency  of the whole broker: counters that never fall, and quantiles of the newest publishes
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from magnetar.core.meter import INTERVAL_S_MIN
from magnetar.storage.entries import StoredEntry

LATENCY_BOUNDS_MS: Final[tuple[float, ...]] = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)
"""Pulsar's bounds, as in the names of its metrics; an upper bound is part of its bucket. Above the last one:
overflow.
"""

SIZE_BOUNDS: Final[tuple[int, ...]] = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)
"""Likewise, in bytes."""

RECENT: Final = 4096
"""Appends whose latency is remembered for quantiles: the slowest one in a thousand is still four of them, in 32 KB."""

QUANTILES: Final[tuple[float, ...]] = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""The quantiles that Pulsar reports."""


class Interval(NamedTuple):
    """The contents of buckets over one interval.

    Attributes:
        counts: numbers between the bounds; the last one is above all of them.
        total: sum of the values.
        per_s: values per second.
    """

    counts: tuple[int, ...]
    total: float
    per_s: float


class Buckets:
    """Counts of values by size, over intervals.

    Args:
        bounds: ascending; a value that is one of them counts below it.

    Attributes:
        last_interval: contents of the last interval that ended.
    """

    __slots__ = ("_bounds", "_counts", "_one", "_times", "_total", "last_interval")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._one = 0
        self._times = 0
        self._counts: list[int] | None = None
        """Values of each bucket; None while there is one bucket with values, the one numbered `_one`, or none."""
        self._total = 0.0
        self.last_interval = _nothing(bounds)

    def add(self, value: float, times: int) -> None:
        """Count a value this many times."""
        self._count(bisect_left(self._bounds, value), times)
        self._total += value * times

    def _count(self, bucket: int, times: int) -> None:
        if self._counts is not None:
            self._counts[bucket] += times
        elif bucket == self._one or not self._times:
            self._one = bucket
            self._times += times
        else:
            self._counts = self._all()
            self._counts[bucket] += times

    def _all(self) -> list[int]:
        """The values of each bucket; in the first form."""
        counts = [0] * (len(self._bounds) + 1)
        counts[self._one] = self._times
        return counts

    def add_all(self, values: list[int]) -> int:
        """Several, which are in one bucket as a rule: entries of one producer resemble each other. Their sum."""
        bounds = self._bounds
        lowest = bisect_left(bounds, min(values))
        if bisect_left(bounds, max(values)) == lowest:
            self._count(lowest, len(values))
        else:
            for value in values:
                self._count(bisect_left(bounds, value), 1)
        total = sum(values)
        self._total += total
        return total

    def end(self, elapsed_s: float) -> bool:
        """An interval ends, another begins. Returns whether the last two have any values."""
        counts = self._all() if self._counts is None else self._counts
        count = sum(counts)
        if not count:
            before, self.last_interval = self.last_interval, _nothing(self._bounds)
            return before is not self.last_interval
        self.last_interval = Interval(tuple(counts), self._total, count / elapsed_s)
        self._counts = None
        self._times = 0
        self._total = 0.0
        return True


@cache
def _nothing(bounds: tuple[float, ...]) -> Interval:
    """An interval without values; one object for all topics."""
    return Interval((0,) * (len(bounds) + 1), 0.0, 0.0)


class Writes:
    """The entries written to one topic, including markers and entries of links, as in Pulsar.

    Args:
        began_ms: when the counting began.

    Attributes:
        latency: ms of each entry from its receipt until it was durable.
        size: bytes of each.
    """

    __slots__ = ("_at_ms", "latency", "size")

    def __init__(self, began_ms: int) -> None:
        self.latency = Buckets(LATENCY_BOUNDS_MS)
        self.size = Buckets(SIZE_BOUNDS)
        self._at_ms = began_ms

    def add(self, entries: Sequence[StoredEntry], took_s: float) -> int:
        """The entries of one append are durable; how many bytes they are."""
        self.latency.add(took_s * 1000, len(entries))
        if len(entries) == 1:
            size = len(entries[0].data)
            self.size.add(size, 1)
            return size
        return self.size.add_all([len(entry.data) for entry in entries])

    def end(self, now_ms: int) -> bool:
        """End the interval and begin another; one that has just begun continues (see `core.meter`).

        Returns:
            Whether something was written in the last two intervals.
        """
        elapsed_s = (now_ms - self._at_ms) / 1000
        if elapsed_s < INTERVAL_S_MIN:
            return True
        self.latency.end(elapsed_s)
        self._at_ms = now_ms
        return self.size.end(elapsed_s)


class PublishLatency:
    """Latencies of all clients' publishes since the broker's start.

    Attributes:
        counts: entries by latency, between `LATENCY_BOUNDS_MS`; they never fall, like the next two.
        entries: number of entries.
        total_ms: sum of their latencies.
    """

    __slots__ = ("_next", "_recent", "counts", "entries", "total_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.entries = 0
        self.total_ms = 0.0
        self._recent: list[float] = []
        self._next = 0

    def add(self, took_s: float, entries: int) -> None:
        """One append of this many entries is durable."""
        took_ms = took_s * 1000
        self.counts[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += entries
        self.entries += entries
        self.total_ms += took_ms * entries
        if len(self._recent) < RECENT:
            self._recent.append(took_ms)
        else:
            self._recent[self._next] = took_ms
            self._next = (self._next + 1) % RECENT

    def quantiles(self) -> dict[float, float]:
        """Quantiles of the newest appends, in ms; empty before the first."""
        ordered = sorted(self._recent)
        last = len(ordered) - 1
        return {share: ordered[round(share * last)] for share in QUANTILES} if ordered else {}


@dataclass(slots=True)
class Connections:
    """Connections since the broker's start.

    Attributes:
        made: all connections.
        let_in: those whose CONNECT was accepted.
        failed: those whose CONNECT was refused, or did not arrive in time.
        ended: those that have ended.
    """

    made: int = 0
    let_in: int = 0
    failed: int = 0
    ended: int = 0
