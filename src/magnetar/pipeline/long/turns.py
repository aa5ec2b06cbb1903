"""The turns of the queries that run long batches: decides when each begins its next batch. A pure machine.

One batch runs at a time. The next one begins in another query, a little before the first one's time is over, or at once when the
first one ended early.
"""

from collections.abc import Iterable
from typing import Final

LEAD_MS: Final = 1_500
"""How long Spark takes to plan and start a batch on a busy machine; a batch costs some 50 ms of processor."""


class Turns:
    """The turns of some queries.

    Args:
        queries: at least two.
        length_ms: of a batch.
        epoch: of the first batch; later ones have higher ones.
    """

    def __init__(self, queries: Iterable[str], length_ms: int, epoch: int) -> None:
        self._ends: dict[str, int] = dict.fromkeys(queries, 0)
        self._length_ms = length_ms
        self.epoch = epoch

    def at_ms(self, query: str) -> int:
        """When a query may begin its next batch; 0: at once."""
        others = [end for other, end in self._ends.items() if other != query and end]
        return max(others) - LEAD_MS if others else 0

    def take(self, query: str, now_ms: int) -> None:
        """A query takes its turn; its batch begins soon."""
        self._ends[query] = now_ms + self._length_ms

    def begin(self, query: str, now_ms: int) -> int:
        """A query's batch begins; returns its epoch."""
        self.take(query, now_ms)
        self.epoch += 1
        return self.epoch

    def over(self, query: str) -> None:
        """A query's batch is over, for whatever reason."""
        self._ends[query] = 0

    @property
    def running(self) -> bool:
        """Whether any batch runs."""
        return any(self._ends.values())
