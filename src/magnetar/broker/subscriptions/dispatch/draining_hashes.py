"""Draining hashes of a Key_Shared subscription (PIP-379): slots that now belong to one consumer and have entries
pending on another.

    consumers come or go: slots are split again -> those with entries pending on their former owners begin to drain
    the last pending entry of a slot is acknowledged, or its consumer leaves -> it has drained

This is only for statistics: dispatch does not depend on it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyroaring import BitMap

from magnetar.broker.subscriptions.consumer import Consumer

SHOWN_MAX: Final = 1_000
"""Slots of one consumer that statistics list; their number is exact, and there may be tens of thousands."""

ONE_BY_ONE_MAX: Final = 1_000
"""Up to this many slots are looked up one by one, some 0.5 ms; computing the owners of all slots is more work, a
hundred ranges for each consumer.
"""

Holders = Mapping[int, tuple[Consumer, int]]
"""Slot -> the consumer that has pending entries of it, and how many."""

Ranges = Mapping[Consumer, Sequence[tuple[int, int]]]
"""Consumer -> its ranges of slots, both ends inclusive."""


class DrainingHashes:
    """The draining hashes of one subscription, by the consumer that they are pending on."""

    def __init__(self) -> None:
        self._held_back: dict[Consumer, dict[int, int]] = {}
        """Consumer -> slot -> how many entries had to wait for it."""
        self._drained: dict[Consumer, int] = {}

    def __bool__(self) -> bool:
        return bool(self._held_back)

    def split_anew(
        self,
        consumers: Sequence[Consumer],
        owner: Callable[[int], Consumer | None],
        ranges: Callable[[], Ranges],
        holders: Holders,
    ) -> None:
        """Slots may have other owners now: those from `owner`, or from `ranges`."""
        self._drained = {consumer: self._drained.get(consumer, 0) for consumer in consumers}
        before, self._held_back = self._held_back, {}
        if len(holders) <= ONE_BY_ONE_MAX:
            for slot, (consumer, _) in holders.items():
                if owner(slot) is not consumer:
                    known = before.get(consumer, {})
                    self._held_back.setdefault(consumer, {})[slot] = known.get(slot, 0)
            return
        held: dict[Consumer, list[int]] = {}
        for slot, (consumer, _) in holders.items():
            held.setdefault(consumer, []).append(slot)
        whose = ranges()
        for consumer, slots in held.items():
            # With bitmaps: there may be tens of thousands, and all consumers wait for the new one.
            draining = BitMap(slots)
            for first, last in whose.get(consumer, ()):
                draining.remove_range(first, last + 1)
            if draining:
                known = before.get(consumer, {})
                self._held_back[consumer] = {slot: known.get(slot, 0) for slot in draining}

    def held_back(self, consumer: Consumer, slot: int) -> None:
        """An entry has to wait; if that is because its slot drains, it is counted."""
        draining = self._held_back.get(consumer)
        if draining is not None and slot in draining:
            draining[slot] += 1

    def free(self, consumer: Consumer, slot: int) -> None:
        """A slot has no pending entries now; if it was draining, it has drained."""
        draining = self._held_back.get(consumer)
        if draining is not None and draining.pop(slot, None) is not None:
            if consumer in self._drained:  # or it is gone, and its count is not needed
                self._drained[consumer] += 1
            if not draining:
                del self._held_back[consumer]

    def clear(self) -> None:
        """Nothing is pending, and no consumer is there."""
        self._held_back.clear()
        self._drained.clear()

    def stats(self, consumer: Consumer, holders: Holders) -> dict[str, Any]:
        """A consumer's, with Pulsar's keys (ConsumerStats). As in Pulsar, what is counted as unacknowledged is entries."""
        draining = self._held_back.get(consumer, {})
        shown = [
            {"hash": slot, "unackMsgs": holders[slot][1], "blockedAttempts": times}
            for slot, times in sorted(draining.items())[:SHOWN_MAX]
        ]
        return {
            "drainingHashesCount": len(draining),
            "drainingHashesClearedTotal": self._drained.get(consumer, 0),
            "drainingHashesUnackedMessages": sum(holders[slot][1] for slot in draining),
            "drainingHashes": shown,
        }

    def validate(
        self, consumers: Sequence[Consumer], owner: Callable[[int], Consumer | None], holders: Holders
    ) -> None:
        """Check what must hold after every step."""
        expected: dict[Consumer, set[int]] = {}
        for slot, (consumer, _) in holders.items():
            if owner(slot) is not consumer:
                expected.setdefault(consumer, set()).add(slot)
        assert {consumer: set(slots) for consumer, slots in self._held_back.items()} == expected, "wrong slots drain"
        assert set(self._drained) <= set(consumers), "it is counted what drained of a consumer that is gone"
