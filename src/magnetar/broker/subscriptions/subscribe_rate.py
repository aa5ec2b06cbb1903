"""Limiting how often a consumer may subscribe: policy `subscribe-rate`, a token bucket for each recent consumer.

A consumer is an address, its name and its id, as in Pulsar. A consumer that subscribes too often gets TooManyRequests.
Official clients try again after a growing pause, so a broker is spared a storm of reconnecting consumers, and none of
them is lost.
"""

from typing import Final

from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.rates import TokenBucket
from magnetar.metadata.policies.types import SubscribeRate

CONSUMERS_MAX: Final = 10_000
"""A ceiling on remembered consumers of a topic: as many as may be connected by default. Beyond it the oldest are forgotten."""


class Subscribing:
    """The consumers of one topic and how often they came.

    Args:
        rate: the policy, with a limit.
    """

    def __init__(self, rate: SubscribeRate) -> None:
        self.rate = rate
        self._buckets: dict[tuple[str, str, int], TokenBucket] = {}

    def check(self, topic: str, consumer: tuple[str, str, int], now_ms: int) -> None:
        """A consumer subscribes.

        Args:
            topic: its full name, for the error.
            consumer: address, name, id.
            now_ms: the clock.

        Raises:
            BrokerError: TOO_MANY_REQUESTS.
        """
        bucket = self._buckets.pop(consumer, None)
        if bucket is None:
            if len(self._buckets) >= CONSUMERS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = TokenBucket(self.rate.per_consumer, self.rate.period_s * 1000, now_ms)
        self._buckets[consumer] = bucket
        if bucket.room(now_ms) <= 0:
            raise BrokerError(
                ErrorCode.TOO_MANY_REQUESTS,
                f"this consumer subscribed to {topic} {self.rate.per_consumer} times in {self.rate.period_s} s, the most "
                "allowed (policy subscribe-rate): try again later",
            )
        bucket.take(1)

    def __len__(self) -> int:
        return len(self._buckets)


def subscribing_of(rate: SubscribeRate, before: Subscribing | None) -> Subscribing | None:
    """The machine of a policy: None without a limit, `before` where nothing changed."""
    if rate.per_consumer <= 0:
        return None
    return before if before is not None and before.rate == rate else Subscribing(rate)
