"""Knows whether several connections have work: while one is alone, its messages may be taken in larger portions.

Larger portions cost less for each message: fewer events, fewer appends, fewer writes of receipts. But another connection waits
until a portion is handled. So a connection is alone only if no other one has sent anything for some time.
"""

from typing import Final

from magnetar.wire import commands

ALONE_S: Final = 1.0
"""Time without work of other connections after which a connection is alone. A publisher that sends once a second or more often
never finds large portions; acknowledgements of a consumer come every 0.1 s."""

KEEP_ALIVE_BYTES: Final = len(commands.ping())
"""Bytes of a ping or its answer, which are no work: idle connections send them. Every other command that clients send while
others wait has more."""


class Competition:
    """The connections of one server, as far as they have work."""

    def __init__(self) -> None:
        self._last = -1
        self._shared_s = -ALONE_S

    def alone(self, connection: int, received: int, now_s: float) -> bool:
        """A connection has work; returns whether it is alone.

        Args:
            connection: its number.
            received: bytes that came; 0: earlier ones are still to be handled.
            now_s: a clock that never goes back.
        """
        if connection != self._last and not 0 < received <= KEEP_ALIVE_BYTES:
            if self._last >= 0:
                self._shared_s = now_s
            self._last = connection
        return now_s - self._shared_s >= ALONE_S and connection == self._last

    def left(self, connection: int) -> None:
        """A connection is closed: the next one that has work does not compete with it."""
        if connection == self._last:
            self._last = -1
