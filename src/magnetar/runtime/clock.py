"""The wall clock, behind an interface that tests replace."""

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, never going back within a process."""


class SystemClock:
    """The system's clock, held still while the system sets it back."""

    def __init__(self) -> None:
        self._last = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last
