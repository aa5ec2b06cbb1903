"""Conflicts: two clusters accepted messages with the same idempotency key while they were not connected, and one
message wins.

The rule: docs/design/deduplication.md#conflicts.

    smaller (publish time, cluster name)      stays
    the other one                             is withdrawn

Each cluster finds the pair on its own when the second of the two is stored there. The decision depends only on the
messages themselves, so all clusters decide the same without communication. If one cluster accepted a key twice (the
window was over, or too many keys came in between), both messages stay: messages of the same origin never withdraw each
other. Nor do messages that were published a window or more apart.

A message loses to any smaller one, also to one that has lost itself. So a decision is final, whatever arrives later and
in any order. The smallest of all never loses, so one always stays.
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
        """The number of an origin; "" is this cluster. ORIGINS_MAX: there are too many."""
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
        """The messages that are withdrawn because of a message that is being stored, and whether each can be: chunks
        cannot.

        Args:
            key, number: key and number of the message, which has its position.
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
