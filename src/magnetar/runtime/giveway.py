"""The event loop's thread, and those of readers, let the log's thread have the interpreter.

Python's threads take turns at one interpreter. Whoever waits for it is woken when the other one makes a call of the system,
and finds, some 50 us later, that the call is over and the interpreter taken again; and because it was woken, the five
milliseconds after which it may insist (`sys.setswitchinterval`) begin anew. A broker that sends thousands of messages makes
such a call every few microseconds: the log's thread, with somebody's publish in its hands, waited 2 to 5 ms for its turn,
twice for each publish. A shorter interval did not help, for that reason.

So the event loop's thread looks, between events, whether the log has work and has come on; if it has not for a while,
the thread sleeps for the shortest time there is. What the log waits for may be the disk, then each such pause is
in vain: they become rarer until it comes on. Readers look in front of each access to the disk (`runtime.readers`).
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

PATIENCE_S: Final = 0.0002
"""After the log's last step; about what a fast disk's sync takes."""

PATIENCE_GROWTH: Final = 1.5
"""Each pause after which the log has not come on makes the next one so many times later: with a disk that takes 10 ms they are
eight, half a millisecond."""

PAUSE_S: Final = 1e-6
"""Becomes some 60 us by what the kernel adds: enough for a thread to wake up."""


def pause() -> None:
    """Let another thread have the interpreter."""
    time.sleep(PAUSE_S)


class Working(Protocol):
    """A thread that works for this one (`runtime.logthread.LogThread`)."""

    steps: int
    """Changes whenever it has had the interpreter."""

    @property
    def busy(self) -> bool:
        """Whether it has work."""


class GiveWay:
    """Decides when to pause.

    Args:
        other: the thread that is let by.
        clock: seconds, with a resolution of microseconds.
        pause: lets it have the interpreter.
    """

    def __init__(
        self,
        other: Working,
        clock: Callable[[], float] = time.perf_counter,
        pause: Callable[[], None] = pause,
    ) -> None:
        self._other = other
        self._clock = clock
        self._pause = pause
        self._steps = -1
        self._at_s = 0.0
        self._patience_s = PATIENCE_S

    def look(self) -> None:
        """Pause if it is time to. Called between events."""
        other = self._other
        if not other.busy:
            return
        now_s = self._clock()
        if other.steps != self._steps:
            self._steps = other.steps
            self._patience_s = PATIENCE_S
            self._at_s = now_s + PATIENCE_S
        elif now_s >= self._at_s:
            self._pause()
            self._patience_s *= PATIENCE_GROWTH
            self._at_s = self._clock() + self._patience_s
