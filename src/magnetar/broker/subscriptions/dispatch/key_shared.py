"""Key_Shared: all messages of a key go to one consumer at a time, in order.

Each key falls into one of 65,536 slots, each slot is owned by one consumer (automatic split, or sticky ranges).

    an entry of slot s goes to the owner of s at once, if
        the owner can receive,
        no entry of s is pending on another consumer       (the former owner of s finishes first)
        and no earlier entry of s waits                    (order)
    else it waits, and other entries are sent, up to `look_ahead_entries_max` waiting entries

When the last pending entry of a slot is acknowledged, or its consumer leaves, the slot is free for its owner. Pulsar
calls this draining hashes (PIP-379). Entries without a key have no order; each counts as a key of its own, except that
chunks of one message count as one.
"""

import sys
from bisect import bisect_right, insort
from collections.abc import Iterator
from heapq import heappop, heappush, merge
from typing import Any, ClassVar

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.base import NOTHING_DRAINS, KeySharedPolicy
from magnetar.broker.subscriptions.dispatch.context import DispatchContext
from magnetar.broker.subscriptions.dispatch.draining_hashes import DrainingHashes
from magnetar.broker.subscriptions.dispatch.hashing import Ring, StickyRanges, shown_ranges, slot_of_entry
from magnetar.broker.subscriptions.dispatch.multiple import MultipleConsumers
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry

ROUND_ENTRIES_MAX = 100
"""New entries looked at in one go: they go to several consumers, so more than one consumer's turn."""

MISSES_MAX = 100
"""Waiting entries of one consumer that one call finds unread before it leaves the rest to the call that follows the read:
there may be thousands, and each look costs microseconds."""


class KeyShared(MultipleConsumers):
    """The policy of Key_Shared subscriptions.

    Attributes:
        waiting: slot -> its entries that have to be sent (again), in order; no empty ones.
        holders: slot -> the consumer that has pending entries of it, and how many. Not kept if order is not needed.

    For each consumer, `_ready` has the first waiting entry of each slot that can be sent to it, and `_heads` has them
    as a heap. Entries in the heap that are no longer in `_ready` are outdated and ignored.
    """

    sub_type: ClassVar = SubType.KEY_SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.waiting: dict[int, list[Position]] = {}
        self.holders: dict[int, tuple[Consumer, int]] = {}
        self._policy = KeySharedPolicy()
        self._ring: Ring | StickyRanges = Ring()
        self._slots: dict[Position, int] = {}
        self._waiting_count = 0
        self._ready: dict[Consumer, dict[int, Position]] = {}
        self._heads: dict[Consumer, list[tuple[Position, int]]] = {}
        self._freed = False
        self._draining = DrainingHashes()

    # ---------------------------------------------------------------------------------------------------- consumers

    def check(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """All must want the same kind of split; sticky ranges must be free."""
        if self.consumers and (policy.sticky, policy.out_of_order) != (self._policy.sticky, self._policy.out_of_order):
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY,
                f"{self.context} has consumers with another Key_Shared policy ({_shown(self._policy)})",
            )
        if policy.sticky:
            ranges = self._ring if isinstance(self._ring, StickyRanges) and self.consumers else StickyRanges()
            problem = ranges.overlap(policy.ranges)
            if problem:
                raise BrokerError(ErrorCode.CONSUMER_ASSIGN, f"{self.context}: consumer {consumer.name}: {problem}")

    def in_the_way(self, consumer: Consumer, policy: KeySharedPolicy) -> Consumer | None:
        """With sticky ranges, a consumer that has some of them."""
        if not self.consumers or not policy.sticky or not isinstance(self._ring, StickyRanges):
            return None
        return self._ring.holder(policy.ranges)

    def add(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """Some slots become the newcomer's; those that others still work on, later."""
        if not self.consumers:
            self._policy = policy
            self._ring = StickyRanges() if policy.sticky else Ring()
        if isinstance(self._ring, StickyRanges):
            self._ring.add(consumer, policy.ranges)
        super().add(consumer, policy)

    def remove(self, consumer: Consumer) -> None:
        """Its slots go to others."""
        if isinstance(self._ring, StickyRanges):
            self._ring.remove(consumer)
        super().remove(consumer)

    def close(self) -> None:
        """Nothing more is sent or read; no slot has an owner."""
        super().close()
        self._ring = Ring()
        self.consumers_changed()

    def consumers_changed(self) -> None:
        """Slots have other owners now."""
        if isinstance(self._ring, Ring):
            self._ring.rebuild(self.consumers)
        self._draining.split_anew(self.consumers, self._ring.owner, self._ring.ranges, self.holders)
        self._none_ready()
        for slot in self.waiting:
            self._make_ready(slot)

    def _none_ready(self) -> None:
        self._ready = {consumer: {} for consumer in self.consumers}
        self._heads = {consumer: [] for consumer in self.consumers}

    # ------------------------------------------------------------------------------------------------------- waiting

    def is_waiting(self, position: Position) -> bool:
        """Whether an entry has to be sent (again)."""
        slot = self._slots.get(position)
        if slot is None or slot not in self.waiting:
            return False
        queue = self.waiting[slot]
        index = bisect_right(queue, position)
        return index > 0 and queue[index - 1] == position

    def waiting_count(self) -> int:
        """The number of entries that have to be sent (again)."""
        return self._waiting_count

    def to_send_again(self, positions: list[Position]) -> None:
        """These entries have to be sent (again); their slots are known."""
        for position in positions:
            self._wait(position, self._slots[position])

    def _wait(self, position: Position, slot: int) -> None:
        self._slots[position] = slot
        insort(self.waiting.setdefault(slot, []), position)
        self._waiting_count += 1
        if self._draining and slot in self.holders:
            self._draining.held_back(self.holders[slot][0], slot)
        self._make_ready(slot)

    def _make_ready(self, slot: int) -> None:
        """A slot with waiting entries can be sent to its owner, if no other consumer has pending entries of it."""
        owner = self._ring.owner(slot)
        if owner is not None and self._free_for(slot, owner):
            self._set_head(owner, slot)

    def _set_head(self, owner: Consumer, slot: int) -> None:
        """A slot that can be sent has this first entry now."""
        ready, head = self._ready[owner], self.waiting[slot][0]
        if ready.get(slot) == head:
            return
        ready[slot] = head
        heads = self._heads[owner]
        heappush(heads, (head, slot))
        if len(heads) > 2 * len(ready) + 64:
            heads[:] = sorted((each, number) for number, each in ready.items())

    def _free_for(self, slot: int, owner: Consumer) -> bool:
        holder = self.holders.get(slot)
        return holder is None or holder[0] is owner

    def not_to_send(self, position: Position) -> None:
        """An entry is not to be sent."""
        slot = self._slots.pop(position)
        self._unwait(slot, self.waiting[slot].index(position))

    def _unwait(self, slot: int, index: int) -> None:
        queue = self.waiting[slot]
        del queue[index]
        self._waiting_count -= 1
        owner = self._ring.owner(slot)
        if not queue:
            del self.waiting[slot]
            if owner is not None:
                self._ready[owner].pop(slot, None)
        elif owner is not None and slot in self._ready[owner]:
            self._set_head(owner, slot)

    def not_pending(self, position: Position) -> None:
        """Its slot may be free for its owner now."""
        slot = self._slots[position]
        if self.context.cursor.is_acked(position):
            del self._slots[position]
        if self._policy.out_of_order:
            return
        holder, count = self.holders[slot]
        if count > 1:
            self.holders[slot] = (holder, count - 1)
            return
        del self.holders[slot]
        if self._draining:
            self._draining.free(holder, slot)
        if slot in self.waiting:
            self._make_ready(slot)
            self._freed = True

    def forget_up_to(self, mark_delete: Position) -> None:
        """Forget entries at or below mark-delete."""
        for slot in list(self.waiting):
            while slot in self.waiting and self.waiting[slot][0] <= mark_delete:
                position = self.waiting[slot][0]
                del self._slots[position]
                self._unwait(slot, 0)
                self.refetch.drop(position)

    def due_waiting_max(self) -> int:
        """The most waiting entries: entries that wait for a slow consumer must not delay the others' entries."""
        return self.context.limits.look_ahead_entries_max

    def came_due(self, position: Position, tag: int) -> None:
        """A delayed entry has to be sent; its slot was kept with it."""
        self._slots[position] = tag

    def forget_all(self) -> None:
        """Nothing is to be sent."""
        self.waiting.clear()
        self.holders.clear()
        self._draining.clear()
        self._slots.clear()
        self._none_ready()
        self._waiting_count = 0

    def _check_blocked(self) -> bool:
        freed, self._freed = self._freed, False
        return super()._check_blocked() or freed

    # ------------------------------------------------------------------------------------------------------- sending

    def send_ready(self) -> None:
        """First what waits and can go, in order of the log; then what is new."""
        budget = self.context.limits.dispatch_bytes_max
        for consumer in self.consumers:
            if self._ready[consumer] and consumer.can_receive and not self.enough(budget):
                budget -= self._send_waiting(consumer, budget)
        while not self.blocked and any(consumer.can_receive for consumer in self.consumers):
            if self.enough(budget):
                return
            if self.throttled():
                return
            room = min(
                self.context.limits.look_ahead_entries_max - self._waiting_count, self.context.messages_by_rate()
            )
            if room <= 0:
                return
            entries = self.take_new(min(room, ROUND_ENTRIES_MAX), sys.maxsize, budget)
            if not entries:
                return
            budget -= self._share_out(entries)

    def _send_waiting(self, consumer: Consumer, budget: int) -> int:
        """Send waiting entries of a consumer's slots, lowest position first; their bytes."""
        heads, ready = self._heads[consumer], self._ready[consumer]
        missing: list[tuple[Position, int]] = []
        size = misses = 0
        while heads and consumer.can_receive and not self.blocked and misses < MISSES_MAX:
            position, slot = heads[0]
            if ready.get(slot) != position:
                heappop(heads)
                continue
            if self.throttled() or self.enough(budget - size):
                break
            entry = self.refetch.get(position, self._upcoming())
            head = heappop(heads)
            if entry is None:
                missing.append(head)  # it is being read; other slots continue
                misses += position not in self.refetch.damaged
                continue
            self.refetch.drop(position)
            self._unwait(slot, 0)
            size += self._give_one(consumer, entry, slot)
        for each in missing:
            heappush(heads, each)
        return size

    def _upcoming(self) -> Iterator[Position]:
        """Waiting entries that can be sent now to any consumer, lowest position first."""
        return merge(*(self._in_order(consumer) for consumer in self.consumers if consumer.can_receive))

    def _in_order(self, consumer: Consumer) -> Iterator[Position]:
        """The waiting entries of one consumer. The heap is traversed, not emptied: only the used part costs time."""
        heads, ready = self._heads[consumer], self._ready[consumer]
        front = [(*heads[0], 0, 0)] if heads else []  # position, slot, its index in the slot's queue, in the heap or -1
        while front:
            position, slot, at, node = heappop(front)
            if node >= 0:
                for below in (2 * node + 1, 2 * node + 2):
                    if below < len(heads):
                        heappush(front, (*heads[below], 0, below))
                if ready.get(slot) != position:
                    continue
            yield position
            queue = self.waiting[slot]
            if at + 1 < len(queue):
                heappush(front, (queue[at + 1], slot, at + 1, -1))

    def _share_out(self, entries: list[StoredEntry]) -> int:
        """Send new entries to the owners of their slots, or let them wait; the bytes sent."""
        size = 0
        in_order = not self._policy.out_of_order
        for entry in entries:
            slot = slot_of_entry(entry)
            owner = self._ring.owner(slot)
            if (
                owner is not None
                and owner.can_receive
                and not self.blocked
                and not (in_order and slot in self.waiting)
                and self._free_for(slot, owner)
            ):
                self._slots[entry.position] = slot
                size += self._give_one(owner, entry, slot)
            else:
                self._wait(entry.position, slot)
                self.refetch.keep(entry)
        return size

    def _give_one(self, consumer: Consumer, entry: StoredEntry, slot: int) -> int:
        if not self._policy.out_of_order:
            holder = self.holders.get(slot)
            self.holders[slot] = (consumer, holder[1] + 1 if holder is not None else 1)
        return self.give(consumer, [entry])

    def hold_back(self, entry: StoredEntry) -> bool:
        """Whether a delayed entry has to wait; its slot is remembered with it."""
        return self.delayed.hold_back(entry, slot_of_entry)

    # ------------------------------------------------------------------------------------------------------ watching

    def stats(self) -> dict[str, Any]:
        """Statistics with Pulsar's keys."""
        each = [self._draining.stats(consumer, self.holders) for consumer in self.consumers]
        return super().stats() | {
            "keySharedMode": self._policy.mode,
            "allowOutOfOrderDelivery": self._policy.out_of_order,
            **{key: sum(one[key] for one in each) for key in NOTHING_DRAINS},
        }

    def consumer_stats(self, consumer: Consumer) -> dict[str, Any]:
        """Statistics of a consumer with Pulsar's keys."""
        return self._draining.stats(consumer, self.holders) | shown_ranges(self._ring.ranges().get(consumer, []))

    def validate(self) -> None:
        """Check what must hold after every step."""
        super().validate()
        cursor = self.context.cursor
        assert self._waiting_count == sum(map(len, self.waiting.values())), "waiting entries are miscounted"
        for slot, queue in self.waiting.items():
            assert queue, f"slot {slot} waits for nothing"
            assert queue == sorted(set(queue)), f"slot {slot} waits out of order"
            for position in queue:
                assert self._slots[position] == slot, f"{position} waits in the wrong slot"
                assert not cursor.is_acked(position), f"{position} waits and is acknowledged"
            owner = self._ring.owner(slot)
            ready = owner is not None and self._free_for(slot, owner)
            head = queue[0] if ready else None
            assert owner is None or self._ready[owner].get(slot) == head, f"slot {slot} is forgotten"
        for consumer, heads in self._heads.items():
            assert {(head, slot) for slot, head in self._ready[consumer].items()} <= set(heads), "a head is forgotten"
        if not self._policy.out_of_order:
            pending: dict[int, list[Consumer]] = {}
            for consumer in self.holding():
                for position in consumer.pending:
                    pending.setdefault(self._slots[position], []).append(consumer)
            assert {slot: (each[0], len(each)) for slot, each in pending.items()} == self.holders, "holders are wrong"
            assert all(len(set(each)) == 1 for each in pending.values()), "a slot is pending at two consumers"
        self._draining.validate(self.consumers, self._ring.owner, self.holders)


def _shown(policy: KeySharedPolicy) -> str:
    return f"{'sticky' if policy.sticky else 'automatic'} split{', any order' if policy.out_of_order else ''}"
