"""Sharing the event loop between the HTTP connections of a broker.

A request takes some tenths of a millisecond of the event loop, and one read of a socket may return hundreds of them. So
received bytes wait, and between two polls of all sockets, those of publishers included, the loop takes a few steps
only: each is the start of one request, or a piece of a head or body. The connections take turns.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

STEPS_A_TURN: Final = 4
"""Steps between two looks at the sockets: a request takes 0.2 to 0.5 ms, and a publish may have come meanwhile."""


class Stepping(Protocol):
    """A connection with bytes that wait."""

    waiting: bool
    """Whether it waits for its turn; kept by `Turns`."""

    def step(self) -> None:
        """Handle a piece; the connection asks again for the next one."""


class Turns:
    """Gives the connections of all HTTP ports their turns."""

    def __init__(self) -> None:
        self._waiting: deque[Stepping] = deque()
        self._left = STEPS_A_TURN
        self._stepping = False

    def ask(self, connection: Stepping) -> None:
        """Let a connection take a step when its turn comes: now, if this turn has one left."""
        if connection.waiting:
            return
        connection.waiting = True
        self._waiting.append(connection)
        if not self._stepping:
            self._go()

    def _go(self) -> None:
        self._stepping = True
        try:
            while self._waiting and self._left:
                if self._left == STEPS_A_TURN:
                    asyncio.get_running_loop().call_soon(self._renew)
                self._left -= 1
                connection = self._waiting.popleft()
                connection.waiting = False
                connection.step()
        finally:
            self._stepping = False

    def _renew(self) -> None:
        self._left = STEPS_A_TURN
        self._go()
