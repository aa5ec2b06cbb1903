"""Rates as token buckets: pure machines, the clock is passed in.

    one token is one message, or one byte
    a bucket is filled evenly and holds one period's tokens at most: that is the burst after a pause
    whoever finds a token may take as many as it needs: an entry goes whole, and the debt is waited for

So the rate holds in the long run whatever the size of batches, and nothing waits for a bucket that could never hold it.
Levels are integers in units of a token per millisecond of the period, so that no rate drifts by rounding.
"""

from typing import Final

UNLIMITED: Final = 1 << 62


class TokenBucket:
    """One rate.

    Args:
        tokens: per period, above 0.
        period_ms: of time.
        now_ms: the clock; it never goes back.
    """

    __slots__ = ("_at_ms", "_capacity", "_level", "_period_ms", "_tokens")

    def __init__(self, tokens: int, period_ms: int, now_ms: int) -> None:
        self._tokens = tokens
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

    def take(self, tokens: int) -> None:
        """Take so many, also more than there are."""
        self._level -= tokens * self._period_ms

    def wait_ms(self, now_ms: int) -> int:
        """Until there is a whole token; 0: now."""
        if self.room(now_ms) > 0:
            return 0
        return -((self._level - self._period_ms) // self._tokens)

    def validate(self) -> None:
        """Check what must hold after every step."""
        assert self._level <= self._capacity, "more tokens than a period has"


class Rate:
    """A limit on messages, on bytes, or on both, per period.

    Args:
        messages, bytes_: per period; 0 or below: no limit of that kind.
        period_ms, now_ms: see `TokenBucket`.
    """

    __slots__ = ("_bytes", "_messages", "key")

    def __init__(self, messages: int, bytes_: int, period_ms: int, now_ms: int) -> None:
        self.key = (messages, bytes_, period_ms)
        self._messages = TokenBucket(messages, period_ms, now_ms) if messages > 0 else None
        self._bytes = TokenBucket(bytes_, period_ms, now_ms) if bytes_ > 0 else None

    def messages(self, now_ms: int) -> int:
        """Messages that may go now; the last of them may be large."""
        if self._bytes is not None and self._bytes.room(now_ms) <= 0:
            return 0
        return UNLIMITED if self._messages is None else self._messages.room(now_ms)

    def bytes(self, now_ms: int) -> int:
        """Bytes that may go now."""
        return UNLIMITED if self._bytes is None else self._bytes.room(now_ms)

    def used_up(self, now_ms: int) -> tuple[bool, bool]:
        """Whether it is the messages, and whether it is the bytes, of which none may go now."""
        return (
            self._messages is not None and self._messages.room(now_ms) <= 0,
            self._bytes is not None and self._bytes.room(now_ms) <= 0,
        )

    def take(self, messages: int, size: int) -> None:
        """So much went."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(size)

    def wait_ms(self, now_ms: int) -> int:
        """Until something may go; 0: now."""
        return max((one.wait_ms(now_ms) for one in (self._messages, self._bytes) if one is not None), default=0)


def rate_of(messages: int, bytes_: int, period_ms: int, now_ms: int, before: Rate | None) -> Rate | None:
    """The machine of a policy: None without a limit, `before` where nothing changed, for its debts stay."""
    if messages <= 0 and bytes_ <= 0:
        return None
    key = (max(messages, 0), max(bytes_, 0), period_ms)
    if before is not None and before.key == key:
        return before
    return Rate(*key, now_ms)
