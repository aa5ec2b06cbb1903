"""One virtual time for everything; nothing waits, nothing reads a real clock."""

import heapq
from collections.abc import Callable
from typing import Any, Final

START_MS: Final = 1_700_000_000_000
"""Where time begins: a plausible wall clock, far above every counter that is derived from it."""

EVENTS_MAX: Final = 400_000
"""A ceiling: a world that does more than this in its whole life turns in a circle."""


class TurnsInCircles(AssertionError):
    """A world never came to rest."""


class Clock:
    """Events in the order of their time, and of their making where the time is the same."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.done = 0
        self._made = 0
        self._events: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []

    def after(self, delay_ms: int, event: Callable[..., Any], *arguments: Any) -> None:
        """Call `event` later; a delay of 0 is later too."""
        self._made += 1
        heapq.heappush(self._events, (self.now_ms + max(0, delay_ms), self._made, event, arguments))

    def run_for(self, ms: int) -> None:
        """Let time pass; whatever falls due happens.

        Raises:
            TurnsInCircles: more happened than can have a reason.
        """
        end = self.now_ms + ms
        events = self._events
        while events and events[0][0] <= end:
            at_ms, _, event, arguments = heapq.heappop(events)
            self.now_ms = max(self.now_ms, at_ms)  # an event may have let time pass within it
            self.done += 1
            if self.done > EVENTS_MAX:
                raise TurnsInCircles(f"the world does not come to rest: {self.done} events")
            event(*arguments)
        self.now_ms = max(self.now_ms, end)
