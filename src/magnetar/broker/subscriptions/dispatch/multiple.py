r"""The common part of Shared and Key_Shared: several consumers at once, each with its own pending entries.

    new entry ----------------------> sent: pending on one consumer ---- acknowledged ----> forgotten
              \                        |            ^
               > delayed --(due)--+     | redeliver,  | sent again
                                  v     v its end     |
                               to be sent again ------+

A consumer that gives back all its entries, or leaves, may have tens of thousands of them. Some are returned at once,
the next ones in later events, lowest first. Until all are returned, nothing is sent to the consumer, and the others get
no entries that must come after them: the rest counts as pending on it, also after it has left.

An entry is in at most one of the states delayed, pending (on one consumer), to be sent again. All of this is in memory
only: it is forgotten with the last consumer, and for the next one reading starts again after mark-delete. Only the
number of redeliveries of an entry is kept until it is acknowledged.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.dispatch.base import (
    CHUNK,
    MARKER,
    Dispatcher,
    KeySharedPolicy,
    append_message,
    count_sent,
)
from magnetar.broker.subscriptions.dispatch.context import DispatchContext
from magnetar.broker.subscriptions.dispatch.delayed import DELAYED, EVER_MS, Delayed
from magnetar.broker.subscriptions.dispatch.log_reader import do_nothing
from magnetar.broker.subscriptions.dispatch.refetch import Refetch
from magnetar.core.ids import Position
from magnetar.effects.outbox import Note, Send, Timer
from magnetar.storage.entries import StoredEntry
from magnetar.storage.positions import PositionSet

DELAYED_OR_MARKER = DELAYED | MARKER

DUE_WAITING_MAX = 500
"""The most due entries that are taken out of the delayed ones, in order of their times: the rest stays packed until
consumers can receive them.
"""

DUE_TAKEN_MAX = 60
"""The most of them in one event, some 0.2 ms; the next event continues. All five hundred took 2 ms before anything was
sent.
"""

PASSED_OVER_MAX = 200
"""The most new entries that one event skips because they are delayed, acknowledged or markers, some 1 ms for delayed
ones; the next event continues.
"""

RETURNED_MAX = 200
"""Entries of one consumer that come back in one event, some 0.7 ms with Key_Shared."""


class Returning:
    """The entries that are still to be returned from one consumer, lowest first, if they are still pending then.

    Attributes:
        everything: whether all entries pending on it are returned.
    """

    __slots__ = ("_known", "_queue", "everything")

    def __init__(self, positions: list[Position], *, everything: bool) -> None:
        self._queue = deque(positions)
        self._known = set(positions)
        self.everything = everything

    def __bool__(self) -> bool:
        return bool(self._queue)

    def __contains__(self, position: Position) -> bool:
        return position in self._known

    def add(self, positions: Iterable[Position]) -> None:
        """Add entries. They come last, which has no visible effect: nothing is sent to the consumer until all are
        returned.
        """
        for position in positions:
            if position not in self._known:
                self._known.add(position)
                self._queue.append(position)

    def take(self) -> list[Position]:
        """The next ones."""
        queue = self._queue
        taken = [queue.popleft() for _ in range(min(len(queue), RETURNED_MAX))]
        self._known.difference_update(taken)
        return taken


class MultipleConsumers(Dispatcher):
    """The base of the policies with several active consumers."""

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.redeliveries: dict[Position, int] = {}
        self.delayed = Delayed(context.outbox, self.dispatch)
        # In an event of its own: accepting read entries, sending them and requesting the next ones took 1 ms in one.
        self.refetch = Refetch(context, self.is_waiting, self.lost, self.dispatch_again)
        self.unacked = 0
        self.blocked = False
        self._groups: dict[int, list[Consumer]] = {}
        self._turns: dict[int, int] = {}
        self._buffers: dict[Consumer, list[bytes]] = {}
        self._given = 0
        """Entries that this event gave to consumers, or took out of the delayed ones for them."""
        self._warned_of: set[str] = set()
        self._returning: dict[Consumer, Returning] = {}
        """By consumer, which may have left."""
        self._return_due = False

    def close(self) -> None:
        """Nothing more is sent or read; entries that wait for a read or a time are forgotten."""
        super().close()
        # They call this dispatcher: circles, which would wait for Python's collector to look completely (decision 22).
        self.delayed = Delayed(self.context.outbox, do_nothing)
        self.refetch = Refetch(self.context, lambda _position: False, do_nothing, do_nothing)

    # -------------------------------------------------------------------------------------------------- to implement

    @abstractmethod
    def is_waiting(self, position: Position) -> bool:
        """Whether an entry has to be sent again."""

    @abstractmethod
    def waiting_count(self) -> int:
        """The number of entries that have to be sent again."""

    @abstractmethod
    def to_send_again(self, positions: list[Position]) -> None:
        """These entries have to be sent again; they are not pending."""

    @abstractmethod
    def not_to_send(self, position: Position) -> None:
        """An entry is acknowledged: if it was to be sent again, it is not."""

    @abstractmethod
    def forget_up_to(self, mark_delete: Position) -> None:
        """Forget entries at or below mark-delete."""

    @abstractmethod
    def forget_all(self) -> None:
        """Nothing is to be sent again."""

    @abstractmethod
    def send_ready(self) -> None:
        """Put what can be sent into the buffers (`give`)."""

    def not_pending(self, position: Position) -> None:
        """An entry is no longer pending on the consumer it was pending on."""

    def consumers_changed(self) -> None:
        """Consumers came or went."""

    def came_due(self, position: Position, tag: int) -> None:
        """A delayed entry has to be sent; `tag` is what `hold_back` kept with it."""

    # ---------------------------------------------------------------------------------------------------- consumers

    def add(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """One more shares in; the first one makes the reading start."""
        if not self.consumers:
            self.reading.rewind(self.context.cursor.mark_delete)
        self.consumers.append(consumer)
        self._regroup()
        self.consumers_changed()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; its pending entries go to the others, in order."""
        self.consumers.remove(consumer)
        self._regroup()
        if not self.consumers:
            self._let_go(consumer)
            self._forget()
            return
        positions = sorted(consumer.pending)
        freed = self._take_pending(consumer, positions[:RETURNED_MAX])
        self._returning.pop(consumer, None)
        if consumer.pending:
            self._return_later(consumer, positions[RETURNED_MAX:], everything=True)
        self.consumers_changed()
        self.to_send_again(freed)
        self._check_blocked()
        self.dispatch()

    def remove_all(self) -> None:
        """Remove all consumers; pending entries are forgotten, and for the next consumer reading starts again."""
        for consumer in self.consumers:
            self._let_go(consumer)
        self.consumers.clear()
        self._regroup()
        self._forget()

    def _regroup(self) -> None:
        priorities = sorted({consumer.priority for consumer in self.consumers})
        self._groups = {
            priority: [each for each in self.consumers if each.priority == priority] for priority in priorities
        }
        self._turns = dict.fromkeys(priorities, 0)

    def whose_turn(self) -> Consumer | None:
        """The next consumer of the highest priority in which any can receive; it keeps its turn until `turn_taken`."""
        for priority, group in self._groups.items():
            turn = self._turns[priority]
            for step in range(len(group)):
                consumer = group[(turn + step) % len(group)]
                if consumer.can_receive:
                    self._turns[priority] = (turn + step) % len(group)
                    return consumer
        return None

    def turn_taken(self, consumer: Consumer) -> None:
        """The consumer got its entries: the next one of its priority has its turn."""
        self._turns[consumer.priority] = (self._turns[consumer.priority] + 1) % len(self._groups[consumer.priority])

    def room(self, consumer: Consumer) -> int:
        """Messages that a consumer which can receive may be sent now; the last batch may go over."""
        limits = self.context.limits
        return min(
            consumer.permits,
            self.context.messages_by_rate(),
            limits.unacked_per_consumer_max - consumer.unacked,
            limits.unacked_per_subscription_max - self.unacked,
        )

    def restart(self) -> None:
        """Read from the cursor's new position, and count redeliveries from 0."""
        self.redeliveries.clear()
        self._forget()

    def holding(self) -> list[Consumer]:
        """Consumers on which entries may be pending: the present ones, and those that left and whose entries are not
        all returned yet.
        """
        if not self._returning:
            return self.consumers
        return [*self.consumers, *(consumer for consumer in self._returning if consumer not in self.consumers)]

    def _let_go(self, consumer: Consumer) -> None:
        """Nothing is pending on it; the owners of slots are forgotten next (`_forget`)."""
        consumer.pending.clear()
        consumer.unacked = 0
        consumer.returning = False

    def _forget(self) -> None:
        for consumer in self._returning:
            self._let_go(consumer)
        self._returning.clear()
        self.unacked = 0
        self.blocked = False
        self.delayed.clear()
        self.refetch.clear()
        self.forget_all()
        self.reading.rewind(self.context.cursor.mark_delete)

    # ------------------------------------------------------------------------------------------------------- sending

    def dispatch(self) -> bool:
        """Send what can be sent now, in one effect per consumer; whether anything was sent."""
        if self.closed or self.context.held or not self.consumers or self.blocked or self.throttled():
            return False
        self._given = 0
        more = bool(self.delayed) and self._admit_due()
        self.send_ready()
        buffers, self._buffers = self._buffers, {}
        for consumer, parts in buffers.items():
            self.context.outbox.put(Send(consumer.connection, parts))
        if more and self.due_room() > 0:
            self.dispatch_again()
        return bool(buffers)

    def enough(self, budget: int) -> bool:
        """Whether one event has read and sent as much as it may, also in bytes (`budget`); then the next one
        continues.
        """
        if budget > 0 and self._given < self.context.limits.dispatch_entries_max:
            return False
        self.dispatch_again()
        return True

    def due_room(self) -> int:
        """The number of due entries that may be added to those that wait to be sent.

        It is 0 until half of the waiting ones are sent: they are read many at a time, and a few more would cost a read
        of their own.
        """
        most = self.due_waiting_max()
        room = min(most - self.waiting_count(), DUE_WAITING_MAX)
        return room if room * 2 >= min(most, DUE_WAITING_MAX) else 0

    def due_waiting_max(self) -> int:
        """Entries to be sent again above which no due ones are added."""
        return DUE_WAITING_MAX

    def _admit_due(self) -> bool:
        """Take some of the delayed entries whose time has come, as far as there is room; whether more are due."""
        up_to_ms = self.context.outbox.day_ms if self.context.delays else EVER_MS
        room = min(self.due_room(), DUE_TAKEN_MAX)
        if room > 0 and self.delayed.is_due(up_to_ms):
            due = []
            for position, tag in self.delayed.take(up_to_ms, room):
                if not self.context.cursor.is_acked(position):
                    self.came_due(position, tag)
                    due.append(position)
            self.to_send_again(due)
            self._given = len(due)
        return self.delayed.is_due(up_to_ms)

    def take_new(self, entries_max: int, messages_max: int, bytes_max: int) -> list[StoredEntry]:
        """The next new entries that are not acknowledged, no markers and not delayed; they count as taken.

        The last one may go over `messages_max`. None: nothing is at hand, or as much is delayed as may be remembered.
        """
        passed_over = 0
        while len(self.delayed) < self.context.limits.delayed_entries_max:
            peeked = self.reading.peek(entries_max, bytes_max)
            if not peeked:
                return []
            entries = first_messages(peeked, messages_max)
            self.reading.take(peeked, len(entries))
            passed_over += len(entries)
            acked = self.context.cursor.acked
            if acked:
                entries = [entry for entry in entries if (entry.ledger, entry.entry) not in acked]
            flags = 0
            for entry in entries:
                flags |= entry.flags
            if flags & DELAYED_OR_MARKER:
                entries = [entry for entry in entries if not self._left_out(entry)]
            if entries:
                return entries
            if passed_over >= PASSED_OVER_MAX:
                self.dispatch_again()
                return []
        self._tell_once(
            "delayed_messages_max",
            lambda: (
                f"{self.context} has {len(self.delayed)} delayed messages in memory (delayed_messages_max): later "
                "messages are read when some of them are due"
            ),
        )
        return []

    def _tell_once(self, limit: str, text: Callable[[], str]) -> None:
        """Warn once that a limit was reached; this may be called for every message."""
        if limit not in self._warned_of:
            self._warned_of.add(limit)
            self.context.outbox.put(Note("warning", text()))

    def _left_out(self, entry: StoredEntry) -> bool:
        if entry.flags & MARKER:
            return True
        return bool(entry.flags & DELAYED) and self.context.delays and self.hold_back(entry)

    def hold_back(self, entry: StoredEntry) -> bool:
        """Whether a delayed entry has to wait; if so it is remembered."""
        return self.delayed.hold_back(entry)

    def give(self, consumer: Consumer, entries: list[StoredEntry]) -> int:
        """Put entries into a consumer's buffers; they are pending on it. Their bytes."""
        partials = self.context.cursor.partial
        redeliveries = self.redeliveries
        partition = self.context.partition
        pending = consumer.pending
        buffers = self._buffers.setdefault(consumer, [])
        messages = size = chunks = 0
        for entry in entries:
            position = Position(entry.ledger, entry.entry)
            count = entry.count
            bits = 0
            if partials and position in partials:
                bits = partials[position].bits
                count = bits.bit_count()
            again = redeliveries.get(position, 0) if redeliveries else 0
            if again:
                consumer.messages_redelivered += count
            append_message(buffers, consumer, partition, entry, again, bits)
            pending[position] = count
            chunks += entry.flags & CHUNK
            messages += count
            size += len(entry.data)
        self._given += len(entries)
        consumer.chunks_out += chunks // CHUNK
        count_sent(consumer, len(entries), messages, size, self.context.outbox.now_ms)
        if self.context.rates:
            self.context.sent(messages, size)
        consumer.unacked += messages
        self.unacked += messages
        limits = self.context.limits
        if consumer.unacked >= limits.unacked_per_consumer_max:
            consumer.blocked = True
        if self.unacked >= limits.unacked_per_subscription_max:
            self.blocked = True
        return size

    # ----------------------------------------------------------------------------------------------- acknowledgements

    def settled(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        """Acknowledged entries, by any consumer, are not pending and not sent again."""
        room = False
        for position in positions:
            if not self.context.cursor.is_acked(position) and self.context.log.valid(position):
                continue
            # Entries that retention deleted are not acknowledged or sent again.
            holder = consumer if position in consumer.pending else self._holder(position)
            if holder is not None:
                holder.messages_acked += self._release(holder, position)
            elif self.is_waiting(position):
                self.not_to_send(position)
                self.refetch.drop(position)
                room = True  # what waits holds back what is new
            if self.redeliveries:
                self.redeliveries.pop(position, None)
        if self._check_blocked() or room:
            self.dispatch()

    def settled_part(self, consumer: Consumer, position: Position, messages: int) -> None:
        """A batch stays pending with fewer messages.

        This sends nothing: the cursor may already contain entries of the same ACK for which `settled` is still to be
        called, and those must not be sent again.
        """
        holder = consumer if position in consumer.pending else self._holder(position)
        if holder is not None:
            holder.pending[position] -= messages
            holder.unacked -= messages
            holder.messages_acked += messages
            self.unacked -= messages

    def acknowledged_elsewhere(self, entries: PositionSet, parts: Mapping[Position, int]) -> None:
        """Like `settled`, but no consumer here is counted as having acknowledged anything."""
        for position in self._concerned(entries):
            holder = self._holder(position)
            if holder is not None:
                self._release(holder, position)
            elif self.is_waiting(position):
                self.not_to_send(position)
                self.refetch.drop(position)
            if self.redeliveries:
                self.redeliveries.pop(position, None)
        for position, messages in parts.items():
            holder = self._holder(position)
            if holder is not None:
                holder.pending[position] -= messages
                holder.unacked -= messages
                self.unacked -= messages
        self._forget_below()

    def _concerned(self, entries: PositionSet) -> Iterable[Position]:
        """The entries that may be pending or waiting: a long run costs no more than these."""
        if not self.consumers:
            return ()
        holding = self.holding()
        pending = sum(len(consumer.pending) for consumer in holding)
        if len(entries) <= 64 + pending or self.waiting_count() or self.redeliveries:
            return entries
        return [position for consumer in holding for position in consumer.pending if position in entries]

    def mark_delete_moved(self) -> bool:
        """Entries at or below it are not pending and not sent again."""
        self._forget_below()
        return self.dispatch()

    def _forget_below(self) -> None:
        mark_delete = self.context.cursor.mark_delete
        if mark_delete >= self.reading.after:
            self.delayed.clear()  # nothing that was read is left
        for consumer in self.holding():
            for position in [position for position in consumer.pending if position <= mark_delete]:
                self._release(consumer, position)
        self.forget_up_to(mark_delete)
        for position in [position for position in self.redeliveries if position <= mark_delete]:
            del self.redeliveries[position]
        self._check_blocked()

    def _holder(self, position: Position) -> Consumer | None:
        return next((consumer for consumer in self.holding() if position in consumer.pending), None)

    def _release(self, consumer: Consumer, position: Position) -> int:
        messages = consumer.pending.pop(position)
        consumer.unacked -= messages
        self.unacked -= messages
        self.not_pending(position)
        return messages

    def _check_blocked(self) -> bool:
        """Unblock consumers that acknowledged half of the most they may hold; returns whether any can receive now that
        could not.
        """
        limits = self.context.limits
        freed = False
        for consumer in self.consumers:
            if consumer.blocked and consumer.unacked <= limits.unacked_per_consumer_max // 2:
                consumer.blocked = False
                freed = True
        if self.blocked and self.unacked <= limits.unacked_per_subscription_max // 2:
            self.blocked = False
            freed = True
        return freed

    def limits_changed(self) -> None:
        """Others may be blocked now, and delayed entries free."""
        limits = self.context.limits
        for consumer in self.consumers:
            consumer.blocked = consumer.unacked >= limits.unacked_per_consumer_max
        self.blocked = self.unacked >= limits.unacked_per_subscription_max
        super().limits_changed()

    # ---------------------------------------------------------------------------------------------------- redelivery

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None) -> None:
        """Send pending entries of this consumer again, all or some, to it or to others.

        A consumer that held the most it may can receive again at once, as in Pulsar, not only when it holds half of
        that: its application may acknowledge the rest only after these.
        """
        everything = positions is None
        returning = self._returning.get(consumer)
        if returning is not None:
            # However often it asks meanwhile: that must not cost as much again.
            if not returning.everything:
                wanted = consumer.pending if positions is None else positions
                returning.add(position for position in wanted if position in consumer.pending)
                returning.everything = everything
            return
        wanted = consumer.pending if positions is None else {each for each in positions if each in consumer.pending}
        again = sorted(wanted)
        self._return_now(consumer, again[:RETURNED_MAX])
        if len(again) > RETURNED_MAX:
            self._return_later(consumer, again[RETURNED_MAX:], everything=everything)
        elif again:
            self._returned(consumer)
        self._check_blocked()
        self.dispatch()

    def _return_now(self, consumer: Consumer, positions: list[Position]) -> None:
        """These are pending on a consumer, and have to be sent again."""
        if consumer in self.consumers:
            for position in positions:
                self._count_redelivery(position)
        self.to_send_again(self._take_pending(consumer, positions))

    def _returned(self, consumer: Consumer) -> None:
        """All came back that it gave back."""
        consumer.returning = False
        consumer.blocked = consumer.unacked >= self.context.limits.unacked_per_consumer_max

    def _return_later(self, consumer: Consumer, positions: list[Position], *, everything: bool) -> None:
        """Return these in later events; those acknowledged until then are not sent again."""
        consumer.returning = True
        self._returning[consumer] = Returning(positions, everything=everything)
        self._return_again()

    def _return_again(self) -> None:
        if self._returning and not self._return_due:
            self._return_due = True
            self.context.outbox.put(Timer(self.context.outbox.now_ms, self._return_some))

    def _return_some(self, _now_ms: int) -> None:
        """Return the next ones, of the consumer that began first."""
        self._return_due = False
        if self.closed or not self._returning:
            return
        consumer, returning = next(iter(self._returning.items()))
        self._return_now(consumer, [position for position in returning.take() if position in consumer.pending])
        if not returning:
            del self._returning[consumer]
            self._returned(consumer)
        self._return_again()
        self._check_blocked()
        self.dispatch()

    def _take_pending(self, consumer: Consumer, positions: list[Position]) -> list[Position]:
        for position in positions:
            self._release(consumer, position)
        return positions

    def _count_redelivery(self, position: Position) -> None:
        known = self.redeliveries.get(position, 0)
        if known or len(self.redeliveries) < self.context.limits.redeliveries_max:
            self.redeliveries[position] = known + 1
        else:
            self._tell_once(
                "redeliveries_max",
                lambda: (
                    f"{self.context}: redeliveries of {len(self.redeliveries)} entries are counted, those of more are not "
                    "(redeliveries_max); their consumers see a redelivery count of 0"
                ),
            )

    def lost(self, position: Position) -> None:
        """An entry that was to be sent again exists no more."""
        self.not_to_send(position)
        self.redeliveries.pop(position, None)

    # ------------------------------------------------------------------------------------------------------ watching

    def in_flight(self) -> int:
        """The number of messages pending on consumers."""
        return self.unacked

    @property
    def reads_again(self) -> int:
        """Reads under way of entries that are to be sent again."""
        return self.refetch.reads

    def stats(self) -> dict[str, Any]:
        """Statistics with Pulsar's keys."""
        return {
            "msgDelayed": len(self.delayed),
            "delayedMessageIndexSizeInBytes": self.delayed.bytes,
            "msgInReplay": self.waiting_count(),
            "blockedSubscriptionOnUnackedMsgs": self.blocked,
        }

    def validate(self) -> None:
        """Check what must hold after every step."""
        super().validate()
        self.delayed.validate()
        self.refetch.validate()
        cursor = self.context.cursor
        seen: set[Position] = set()
        holding = self.holding()
        for consumer in holding:
            assert consumer.returning == (consumer in self._returning), f"{consumer.name} is not sent anything for ever"
            returning = self._returning.get(consumer)
            if returning is not None and (returning.everything or consumer not in self.consumers):
                assert all(position in returning for position in consumer.pending), "what is to come back is forgotten"
            assert consumer.unacked == sum(consumer.pending.values()), f"{consumer.name}: unacked is miscounted"
            for position, count in consumer.pending.items():
                assert position not in seen, f"{position} is pending at two consumers"
                assert not cursor.is_acked(position), f"{position} is pending and acknowledged"
                assert not self.is_waiting(position), f"{position} is pending and to be sent again"
                assert position <= self.reading.after, f"{position} is pending and not yet read"
                partial = cursor.partial.get(position)
                expected = partial.bits.bit_count() if partial is not None else self.context.log.count_at(position)
                assert count == expected, f"{position} has {expected} messages left, not {count}"
                seen.add(position)
        assert self.unacked == sum(consumer.unacked for consumer in holding), "unacked is miscounted"
        assert not self._buffers, "something was put into buffers and not sent"


def first_messages(entries: list[StoredEntry], messages_max: int) -> list[StoredEntry]:
    """The first entries, until they hold `messages_max` messages or more."""
    messages = 0
    for number, entry in enumerate(entries):
        if messages >= messages_max:
            return entries[:number]
        messages += entry.count
    return entries
