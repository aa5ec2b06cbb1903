"""Acknowledgements of replicated subscriptions, collected between two events of their machines.

A machine writes acknowledgements when its interval is over; until then it does not matter when it gets them. One
acknowledgement costs a machine as much as a hundred that are given to it together, and a client may send them one by
one. So as long as a machine has a timer after which it writes, acknowledgements are only collected. The machine gets
them before anything else happens to it: entries stored, a timer, a seek, a query, the transaction with the cursor.
"""

from collections.abc import Callable
from typing import Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.marker_host import Acked

ENTRIES_MAX: Final = 10_000
"""The most entries (and frames) that are collected for a topic: 1 MB, and a few milliseconds to pass them on."""


class _Noted:
    """The collected acknowledgements of one subscription."""

    __slots__ = ("entries", "partial", "ranges")

    def __init__(self) -> None:
        self.entries: list[Position] = []
        self.partial: dict[Position, int] = {}
        self.ranges: list[tuple[Position, Position]] = []

    def add(self, acked: Acked) -> None:
        """All are unions: their order means nothing."""
        if acked.entries:
            self.entries += acked.entries
        for position, bits in acked.partial.items():
            self.partial[position] = self.partial.get(position, 0) | bits
        if acked.up_to > acked.after:
            after, up_to = acked.after, acked.up_to
            if self.ranges and self.ranges[-1][0] <= after <= self.ranges[-1][1]:
                after, up_to = self.ranges[-1][0], max(up_to, self.ranges[-1][1])
                self.ranges.pop()
            self.ranges.append((after, up_to))

    def all(self) -> list[Acked]:
        """The acknowledgements, combined into as few as possible."""
        if len(self.ranges) == 1:
            return [Acked(*self.ranges[0], self.entries, self.partial)]
        combined = [Acked(after, up_to) for after, up_to in self.ranges]
        if self.entries or self.partial:
            combined.append(Acked(NONE, NONE, self.entries, self.partial))
        return combined


class AckCollector:
    """Collects the acknowledgements of one topic.

    Args:
        tell: passes an acknowledgement of a subscription to the machines.
    """

    def __init__(self, tell: Callable[[str, Acked], None]) -> None:
        self._tell = tell
        self._noted: dict[str, _Noted] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._noted)

    def add(self, subscription: str, acked: Acked) -> bool:
        """Note it, if some of this subscription was begun to be noted; whether that is so."""
        if subscription not in self._noted:
            return False
        noted = self._noted[subscription]
        if acked.partial or acked.up_to != NONE:
            noted.add(acked)
        else:
            noted.entries += acked.entries
        self._count += 1 + len(acked.entries)
        if self._count >= ENTRIES_MAX:
            self.flush()
        return True

    def begin(self, subscription: str, acked: Acked) -> None:
        """Collect the first one. The caller guarantees that `flush` will be called."""
        self._noted[subscription] = noted = _Noted()
        noted.add(acked)

    def flush(self) -> None:
        """Pass all on."""
        noted, self._noted, self._count = self._noted, {}, 0
        for subscription, one in noted.items():
            for acked in one.all():
                self._tell(subscription, acked)
