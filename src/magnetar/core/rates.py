"""Rates as token buckets: pure machines, the clock is passed in.

    one token is one message, or one byte
    a bucket is filled evenly and holds one period's tokens at most: that is the burst after a pause
    a caller that finds a token may take as many as it needs: an entry is sent whole, and later callers wait for the debt

So the rate is kept in the long run for any size of batches, and no entry is too large for its bucket.

A relative rate grows by what was published: the tokens of the last whole period's publishes are added to each period.
Levels are integers in units of a token per millisecond of the period, so that no rate drifts by rounding.
"""

from collections.abc import Callable
from typing import Final

UNLIMITED: Final = 1 << 62


class TokenBucket:
    """One rate.

    Args:
        tokens: per period, above 0.
        period_ms: length of the period.
        now_ms: the clock; it never goes back.
    """

    __slots__ = ("_at_ms", "_capacity", "_level", "_period_ms", "_tokens", "tokens")

    def __init__(self, tokens: int, period_ms: int, now_ms: int) -> None:
        self.tokens = self._tokens = tokens
        self._period_ms = period_ms
        self._capacity = tokens * period_ms
        self._level = self._capacity
        self._at_ms = now_ms

    def room(self, now_ms: int) -> int:
        """Whole tokens there now; 0 or below: wait."""
        if now_ms > self._at_ms:
            self._level = min(self._capacity, self._level + (now_ms - self._at_ms) * self._tokens)
            self._at_ms = now_ms
        return self._level // self._period_ms

    def add(self, more: int, now_ms: int) -> None:
        """Raise the rate to `tokens` plus `more` per period from now on. The periods before keep their rate."""
        self.room(now_ms)
        before, self._tokens = self._tokens, self.tokens + more
        # Tokens of the period that ended may still be taken in this one.
        self._capacity = max(before, self._tokens) * self._period_ms
        self._level = min(self._level, self._capacity)

    def take(self, tokens: int) -> None:
        """Take this number of tokens, also more than there are."""
        self._level -= tokens * self._period_ms

    def wait_ms(self, now_ms: int) -> int:
        """The time until there is a whole token; 0: there is one now."""
        if self.room(now_ms) > 0:
            return 0
        return -((self._level - self._period_ms) // self._tokens)

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._level <= self._capacity, "more tokens than a period has"


Published = Callable[[], tuple[int, int]]
"""Messages and bytes that were published to a topic since it was loaded."""


class Rate:
    """A limit on messages, on bytes, or on both, per period.

    Args:
        messages, bytes_: per period; 0 or below: no limit of that kind.
        period_ms, now_ms: see `TokenBucket`.
        published: for a relative rate, what was published to the topic so far; None: the rate is absolute.
    """

    __slots__ = ("_bytes", "_counted", "_messages", "_period_ms", "_published", "_since_ms", "key")

    def __init__(
        self, messages: int, bytes_: int, period_ms: int, now_ms: int, published: Published | None = None
    ) -> None:
        self.key = (messages, bytes_, period_ms, published is not None)
        self._period_ms, self._published = period_ms, published
        self._since_ms, self._counted = now_ms, published() if published is not None else (0, 0)
        self._messages = TokenBucket(messages, period_ms, now_ms) if messages > 0 else None
        self._bytes = TokenBucket(bytes_, period_ms, now_ms) if bytes_ > 0 else None

    def _follow(self, now_ms: int) -> None:
        """Add what was published in the periods that ended to the rate of the next one."""
        elapsed_ms = now_ms - self._since_ms
        if self._published is None or elapsed_ms < self._period_ms:
            return
        counted = self._published()
        for bucket, now, before in zip((self._messages, self._bytes), counted, self._counted, strict=True):
            if bucket is not None:
                bucket.add((now - before) * self._period_ms // elapsed_ms, now_ms)
        self._since_ms, self._counted = now_ms, counted

    def messages(self, now_ms: int) -> int:
        """The number of messages that may be sent now; the last of them may be large."""
        self._follow(now_ms)
        if self._bytes is not None and self._bytes.room(now_ms) <= 0:
            return 0
        return UNLIMITED if self._messages is None else self._messages.room(now_ms)

    def bytes(self, now_ms: int) -> int:
        """The number of bytes that may be sent now."""
        self._follow(now_ms)
        return UNLIMITED if self._bytes is None else self._bytes.room(now_ms)

    def used_up(self, now_ms: int) -> tuple[bool, bool]:
        """Whether the messages, and whether the bytes, are used up now."""
        return (
            self._messages is not None and self._messages.room(now_ms) <= 0,
            self._bytes is not None and self._bytes.room(now_ms) <= 0,
        )

    def take(self, messages: int, size: int) -> None:
        """Messages of this number and size were sent."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(size)

    def wait_ms(self, now_ms: int) -> int:
        """The time until an entry may be sent; 0: now."""
        return max((one.wait_ms(now_ms) for one in (self._messages, self._bytes) if one is not None), default=0)


def rate_of(
    messages: int, bytes_: int, period_ms: int, now_ms: int, before: Rate | None, published: Published | None = None
) -> Rate | None:
    """The `Rate` of a policy: None without a limit, and `before` if nothing changed, because its debts stay.

    Args:
        messages, bytes_, period_ms, now_ms, published: see `Rate`.
        before: the rate until now.
    """
    if messages <= 0 and bytes_ <= 0:
        return None
    made = Rate(max(messages, 0), max(bytes_, 0), period_ms, now_ms, published)
    return before if before is not None and before.key == made.key else made
