"""Activity of one subscription since it was loaded: times, sums and rates, for statistics."""

from collections.abc import Iterable

from magnetar.broker.subscriptions.consumer import Consumer, Counters
from magnetar.core.meter import Meter


class Activity:
    """Times, sums and rates of one subscription.

    Args:
        now_ms: the clock.

    Attributes:
        flow_ms, acked_ms, mark_delete_moved_ms, expired_ms: when consumers last asked for messages and acknowledged some, when
            mark-delete last moved, when messages last expired; wall clock ms, 0 for never.
        expired_entries: given up because of their age or an administrator's word; entries that a quota on bytes took are not
            among them, as in Pulsar.
        meter: rates of `Counters`.
        expired_meter: rate of `expired_entries`.
    """

    __slots__ = (
        "_left",
        "acked_ms",
        "expired_entries",
        "expired_meter",
        "expired_ms",
        "flow_ms",
        "mark_delete_moved_ms",
        "meter",
    )

    def __init__(self, now_ms: int) -> None:
        self.flow_ms = self.acked_ms = self.mark_delete_moved_ms = self.expired_ms = 0
        self.expired_entries = 0
        self.meter = Meter(len(Counters._fields), now_ms)
        self.expired_meter = Meter(1, now_ms)
        self._left = Counters()

    def consumer_left(self, consumer: Consumer) -> None:
        """A consumer left; its counters stay in the sums."""
        self._left += Counters.of(consumer)

    def counters(self, consumers: Iterable[Consumer]) -> Counters:
        """Sums over these consumers and all that have left."""
        return sum(map(Counters.of, consumers), self._left)

    def update_rates(self, now_ms: int, consumers: Iterable[Consumer]) -> None:
        """Take the counters for the rates; to be called at regular times."""
        for consumer in consumers:
            consumer.meter.update(now_ms, Counters.of(consumer))
        self.meter.update(now_ms, self.counters(consumers))
        self.expired_meter.update(now_ms, (self.expired_entries,))
