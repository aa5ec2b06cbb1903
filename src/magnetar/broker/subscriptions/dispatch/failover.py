"""Failover: one of several consumers gets everything, and the next takes over when it leaves.

Candidates are the consumers of the highest priority, ordered by name. For partition p, the candidate p modulo their
number is active, so that partitions are spread over consumers; for a topic without partitions it is the first.

    none is active                             -> the candidate starts
    a better candidate comes, the active stays -> nothing is sent for `failover_delay_ms`, so that the last
                                                  acknowledgements arrive; then the candidate starts
    the active leaves                          -> the next candidate starts at once

A starting consumer begins after mark-delete. All consumers are informed which one is active.
"""

from typing import ClassVar

from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.dispatch.base import KeySharedPolicy
from magnetar.broker.subscriptions.dispatch.exclusive import Exclusive
from magnetar.effects.outbox import Timer


class Failover(Exclusive):
    """The policy of Failover subscriptions."""

    sub_type: ClassVar = SubType.FAILOVER

    _switch = 0

    def check(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """Any number may join."""

    def add(self, consumer: Consumer, policy: KeySharedPolicy) -> None:
        """It may be a better candidate than the active one."""
        self.consumers.append(consumer)
        candidate = self._candidate()
        if candidate is self._active:
            self.tell_active(consumer, False)
        else:
            self._switch_to(candidate)

    def remove(self, consumer: Consumer) -> None:
        """If it was the active one, the next takes over."""
        self.consumers.remove(consumer)
        if consumer is self._active:
            self.stop()
        if not self.consumers:
            return
        # Another one's going can change the candidate too: on a partition it counts how many there are.
        candidate = self._candidate()
        if candidate is not self._active:
            self._switch_to(candidate)

    def start(self) -> None:
        """Start the active consumer, and inform all of them which one it is: only here, as in Pulsar; an Exclusive
        consumer knows it.
        """
        for consumer in self.consumers:
            self.tell_active(consumer, consumer is self._active)
        super().start()

    def stop(self) -> None:
        """No consumer is active, nor waits to be."""
        self._switch += 1
        super().stop()

    def _candidate(self) -> Consumer:
        ordered = sorted(self.consumers, key=lambda consumer: (consumer.priority, consumer.name))
        best = [consumer for consumer in ordered if consumer.priority == ordered[0].priority]
        return best[self.context.partition % len(best) if self.context.partition >= 0 else 0]

    def _switch_to(self, candidate: Consumer) -> None:
        previous = self._active
        delay_ms = self.context.limits.failover_delay_ms
        self._switch += 1
        self._active = candidate
        self._started = False
        if previous is None or delay_ms <= 0:
            self.start()
            return
        switch = self._switch
        self.context.outbox.put(Timer(self.context.outbox.now_ms + delay_ms, lambda now_ms: self._start_late(switch)))

    def _start_late(self, switch: int) -> None:
        # Any later change of the active consumer has a timer of its own, or needed none.
        if switch == self._switch and not self.closed and self._active is not None:
            self.start()
