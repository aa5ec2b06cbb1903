"""Limits the markers that a broker writes per second, all topics together: at the limit the topics' intervals become longer."""

import sys
from typing import Final

MARKERS_PER_S_MAX: Final = 500
"""Backpressure: at 10 topics it is never met; with 1,000 busy topics each writes every 2 s instead of every 100 ms."""

BURST_MS: Final = 100
"""How long markers may have been saved up: one interval."""


class MarkerPacer:
    """Gives out the moments at which markers may be written. One for all topics of a broker.

    Args:
        markers_per_s_max: 0 for no limit.
    """

    def __init__(self, markers_per_s_max: int = MARKERS_PER_S_MAX) -> None:
        self._step_us = 1_000_000 // markers_per_s_max if markers_per_s_max else 0
        self._free_us = 0

    def reserve_between(self, at_ms: int, latest_ms: int) -> int:
        """Take the first free moment at or after `at_ms`, or none if there is no free one before `latest_ms`.

        Returns:
            When, ms; `latest_ms`: none was free before it.
        """
        free_us = max(self._free_us, (at_ms - BURST_MS) * 1000) + self._step_us
        found_ms = max(at_ms, free_us // 1000)
        if found_ms >= latest_ms:
            return latest_ms
        self._free_us = free_us
        return found_ms

    def reserve(self, now_ms: int) -> int:
        """Take the next free moment; the caller writes one batch of markers then, and asks no more for it.

        Returns:
            When, ms; `now_ms` or later.
        """
        return self.reserve_between(now_ms, sys.maxsize)
