"""The wall clock, with an interface that tests replace."""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

JUMP_MS: Final = 60_000
"""A clock that is set ahead by more than this at once jumps. Corrections of clocks that are kept by NTP are far smaller."""

BELIEVED_MS: Final = 300_000
"""How long a jump has to last before it is believed: time to see the line in the log, and to set the clock right, before
anything expires by it."""

_NS: Final = 1_000_000
_JUMP_NS: Final = JUMP_MS * _NS

logger = logging.getLogger("magnetar.clock")


def wall_ms() -> int:
    """The system's wall clock as it is: milliseconds since 1970, for reports. It may go back."""
    return time.time_ns() // _NS


class Clock(Protocol):
    """The interface of a wall clock.

    Attributes:
        ahead_ms: how far `now_ms`, when it was asked last, is ahead of the time of day that is believed (`Outbox.ahead_ms`).
    """

    ahead_ms: int

    def now_ms(self) -> int:
        """Milliseconds since 1970, never going back within a process."""


class SystemClock:
    """The system's clock. When the system's clock is set back, this one runs at half speed until the system has caught up.

    If it stopped instead, every timer would wait for as long as the clock was set back: no cursor would be stored and no poll
    answered for an hour after an administrator corrected a clock by an hour.

    The time of day that is believed (`now_ms` minus `ahead_ms`) follows the system's clock back at once, and forward as well,
    except for a jump: it follows a jump only after the clock has kept the new time for `BELIEVED_MS`. So a clock that was wrong
    for a moment expires nothing, and one that was wrong for longer is no longer believed when it is right again.

    Attributes:
        ahead_ms: how far `now_ms`, when it was asked last, is ahead of the time of day that is believed.

    Args:
        wall_ns: nanoseconds since 1970, of a clock that can be set.
        monotonic_ns: nanoseconds of a clock that cannot be set.
        say: takes one line about a clock that was set.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self.ahead_ms = 0
        self._say = say
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._shown_ns = self._day_ns = wall_ns()
        self._read_ns = monotonic_ns()
        self._jumped_ns: int | None = None

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        read_ns, wall_ns = self._monotonic_ns(), self._wall_ns()
        passed_ns = read_ns - self._read_ns
        self._read_ns = read_ns
        if self._shown_ns == self._day_ns and 0 <= wall_ns - self._day_ns <= passed_ns + _JUMP_NS:
            self._shown_ns = self._day_ns = wall_ns  # nearly always, and for every event
            return wall_ns // _NS
        self._shown_ns = max(wall_ns, self._shown_ns + passed_ns // 2)
        self._day_ns += passed_ns
        if wall_ns <= self._day_ns + _JUMP_NS:
            self._follow(wall_ns)
        elif self._jumped_ns is None:
            self._jumped_ns = read_ns
            jump_s = (wall_ns - self._day_ns) // (1000 * _NS)
            self._say(
                f"the system's clock jumped ahead by {jump_s} s: nothing expires by it for {BELIEVED_MS // 1000} s; "
                "set it right if it is wrong"
            )
        elif read_ns - self._jumped_ns >= BELIEVED_MS * _NS:
            self._say("the system's clock stays where it jumped to: the broker follows it now")
            self._follow(wall_ns)
        now_ms = self._shown_ns // _NS
        self.ahead_ms = max(0, now_ms - self._day_ns // _NS)
        return now_ms

    def _follow(self, wall_ns: int) -> None:
        if self._day_ns - wall_ns > _JUMP_NS:
            self._say(f"the system's clock was set back by {(self._day_ns - wall_ns) // (1000 * _NS)} s")
        elif self._jumped_ns is not None and wall_ns <= self._day_ns + _JUMP_NS:
            self._say("the system's clock is back from where it had jumped to: nothing expired by it")
        self._day_ns, self._jumped_ns = wall_ns, None
