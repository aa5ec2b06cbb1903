"""Two clusters took messages with one idempotency key while apart: which of them stays.

The rule: docs/design/deduplication.md#conflicts.

    smaller (publish time, cluster name)      stays
    the other one                             is withdrawn

Each cluster finds the pair by itself, when the second of the two is stored there, and every cluster judges by what the messages
bring along, so that all come to the same verdict without a word. What a cluster accepted twice by itself (the window was over, or
too many keys came in between) is its own decision: messages of one origin never drive each other out. Nor do messages that were
published a window or more apart.

A message loses to any smaller one, also to one that has lost itself: so a verdict is final, whatever comes later and in whatever
order. The smallest of them all loses to nobody, so that one always stays.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from magnetar.broker.publish.idempotency.block import KEPT, ORIGINS_MAX, About
from magnetar.broker.publish.idempotency.withdrawals import Loser

if TYPE_CHECKING:
    from magnetar.broker.publish.idempotency.table import KeyTable

_MASK_32: Final = 2**32 - 1
_HALF: Final = 2**31


class Conflicts:
    """Judges the copies of a key in one topic.

    Args:
        cluster: this one.
        table: the topic's keys.
        origins: clusters by number, as stored; the first is this one.

    Attributes:
        origins: clusters by number.
    """

    def __init__(self, cluster: str, table: "KeyTable", origins: list[str] | None = None) -> None:
        self.origins = origins or [cluster]
        self._table = table

    def number(self, origin: str) -> int:
        """Of an origin; "" is this cluster. ORIGINS_MAX: there are too many."""
        if not origin:
            return 0
        try:
            return self.origins.index(origin)
        except ValueError:
            if len(self.origins) >= ORIGINS_MAX:
                return ORIGINS_MAX
            self.origins.append(origin)
            return len(self.origins) - 1

    def losers(self, key: bytes, number: int, time_ms: int) -> Iterator[tuple[Loser, bool]]:
        """What is withdrawn because of a message that is being stored, and whether it can be: chunks cannot.

        Args:
            key, number: of the message, which has its position.
            time_ms: when it is stored, this broker's clock.
        """
        table = self._table
        new = table.about(number)
        lost = False
        for other in table.copies(key, time_ms):
            old = table.about(other)
            smaller = self._smaller(old, new) if other != number else None
            if smaller is None:
                continue
            if not smaller:
                yield self._loser(other, old)
            elif not lost:
                lost = True
                yield self._loser(number, new)

    def _loser(self, number: int, about: About) -> tuple[Loser, bool]:
        return Loser(self._table.position(number), about.part - 1), about.part != KEPT

    def _smaller(self, one: About, other: About) -> bool | None:
        """Whether `one` stays of two messages; None: both do."""
        if one.origin == other.origin or ORIGINS_MAX in (one.origin, other.origin):
            return None
        apart = (one.published_ms - other.published_ms) & _MASK_32
        if apart >= _HALF:
            apart -= _MASK_32 + 1
        if abs(apart) >= self._table.window_ms:
            return None
        return (apart, self.origins[one.origin]) < (0, self.origins[other.origin])
