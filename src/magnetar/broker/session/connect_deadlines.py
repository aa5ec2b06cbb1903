"""The time that connections have until their CONNECT is accepted."""

from collections import deque
from collections.abc import Callable

from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.statistics.latency import Connections


class ConnectDeadlines:
    """Closes connections whose CONNECT is not accepted within `handshake_ms_max`.

    Args:
        context: the broker's context.
        counters: counts those that are closed.
        connection: finds an open connection by its number; None: it is gone.
    """

    def __init__(
        self, context: BrokerContext, counters: Connections, connection: Callable[[int], Connection | None]
    ) -> None:
        self._context = context
        self._counters = counters
        self._connection = connection
        self._waiting: deque[tuple[int, int]] = deque()

    def began(self, connection: int) -> None:
        """A client connected."""
        # One timer for all: thousands may come and go in the time that each has.
        self._waiting.append((self._context.outbox.now_ms + self._context.config.handshake_ms_max, connection))
        if len(self._waiting) == 1:
            self._context.timer(self._waiting[0][0], self._due)

    def _due(self, now_ms: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ms:
            client = self._connection(waiting.popleft()[1])
            if client is not None and not client.handshake.connected and not client.closed:
                self._counters.failed += 1
                client.close(f"no CONNECT within {self._context.config.handshake_ms_max} ms")
        if waiting:
            self._context.timer(waiting[0][0], self._due)
