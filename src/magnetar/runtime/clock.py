"""The wall clock, behind an interface that tests replace."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What time it is."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, never going back within a process."""


class SystemClock:
    """The system's clock. While the system has it set back, it goes on at half speed until the system has caught up.

    Held still instead, it would hold up every timer for as long as it was set back: no cursor would be stored, no poll
    answered for an hour after an administrator corrected a clock by an hour.

    Args:
        wall_ns: nanoseconds since 1970, which somebody may set.
        monotonic_ns: nanoseconds of a clock that nobody can set.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._shown_ns = wall_ns()
        self._read_ns = monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        read_ns = self._monotonic_ns()
        self._shown_ns = max(self._wall_ns(), self._shown_ns + (read_ns - self._read_ns) // 2)
        self._read_ns = read_ns
        return self._shown_ns // 1_000_000
