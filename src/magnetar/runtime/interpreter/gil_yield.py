"""Gives Python's global interpreter lock (GIL) to the log's thread: the event loop's thread and the readers' threads yield it.

Only one Python thread at a time holds the GIL. A thread that waits for it is woken when the holder makes a system call. It finds,
some 50 us later, that the call is over and the GIL is taken again. Because it was woken, the five milliseconds after which it may
demand the GIL (`sys.setswitchinterval`) begin again. A broker that sends thousands of messages makes such a call every few
microseconds: the log's thread, which had a publish to write, waited 2 to 5 ms for the GIL, twice per publish. For the same
reason a shorter interval did not help.

So the event loop's thread checks, between events, whether the log has work and what it waits for:

    for the GIL     this thread sleeps for the shortest possible time, until the log has made progress
    for the disk    such a sleep still gives the processor to the kernel's own threads, one of which may have to end the sync and
                    would otherwise wait for milliseconds. It may be useless, so that such sleeps become rarer
    unknown         the same

Linux reports it (`ThreadState`). Readers check before each access to the disk (`runtime.log.readers`).

A thread that copies megabytes into the kernel does the opposite: when it is woken it takes no processor from a running thread
(`stand_back`).
"""

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Final, Protocol

PATIENCE_S: Final = 0.0003
"""Time after the log's last step; about as long as a fast disk's sync."""

PATIENCE_GROWTH: Final = 1.1
"""Factor by which each pause without progress of the log delays the next one: with a disk that takes 10 ms they are sixteen, a
millisecond."""

PAUSE_S: Final = 1e-6
"""With the kernel's own delay it becomes some 60 us: enough for a thread to wake up."""

PAUSES_MAX: Final = 8
"""Pauses for the interpreter, one after the other: half a millisecond."""

PAUSES_PER_S: Final = 1_000.0
"""The same in the long run, 6 % of the time. A log with as much work as it can take always waits for something: yielding to it
each time makes its batches smaller, and no wait shorter."""

FUTEX: Final = {"x86_64": b"202 ", "aarch64": b"98 "}
"""How the number of the call in which a thread waits for another one is written in `/proc`, by machine."""

RUNNING: Final = b"running"


def pause() -> None:
    """Let another thread have the interpreter.

    A system that refuses the clock of a sleep (a sandbox, a virtual machine that was moved) costs the courtesy, not the broker:
    the interpreter was given away by the attempt.
    """
    with contextlib.suppress(OSError):
        time.sleep(PAUSE_S)


def stand_back() -> None:
    """The calling thread takes no processor from another one when it wakes; it gets one when that one waits, or another is free.

    Nothing changes where it cannot have that (other systems than Linux, or one that forbids it), and where an operator gave the
    process another class than the usual one.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class ThreadState:
    """The state of the thread that creates this object, for other threads: Linux reports the system call in which it is.

    A thread that waits for the interpreter is in a futex. The question itself releases the interpreter for a moment, which wakes
    that thread. So a running thread counts as waiting, too: it cannot execute Python code while another thread asks.

    Args:
        machine: as `platform.machine` has it.
        path: of the file.
    """

    def __init__(self, machine: str | None = None, path: str = "/proc/thread-self/syscall") -> None:
        futex = FUTEX.get(platform.machine() if machine is None else machine)
        self._waiting = (RUNNING, futex) if futex else ()
        self._descriptor = -1
        if futex:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def waits(self) -> bool:
        """Whether it waits for the interpreter, or a processor; False: for something else, or it is unknown."""
        if self._descriptor < 0:
            return False
        try:
            status = os.pread(self._descriptor, len(RUNNING), 0)
        except OSError:  # a system that hides it
            self.close()
            return False
        return status.startswith(self._waiting)

    def close(self) -> None:
        """Close the file; the state is unknown from then on."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Working(Protocol):
    """A thread that works for this one (`runtime.log.thread.LogThread`)."""

    @property
    def steps(self) -> int:
        """Changes whenever it has had the interpreter."""

    @property
    def busy(self) -> bool:
        """Whether it has work."""

    def waits(self) -> bool:
        """Whether it waits for the interpreter; see `ThreadState.waits`."""


class GiveWay:
    """Decides when to pause.

    Args:
        other: the thread that gets the interpreter.
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
        self._pauses = float(PAUSES_MAX)
        self._counted_s = 0.0

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
        self._pauses = min(PAUSES_MAX, self._pauses + (now_s - self._counted_s) * PAUSES_PER_S)
        self._counted_s = now_s
        while self._pauses >= 1 and other.waits():
            self._pauses -= 1
            self._pause()
            if not other.busy or other.steps != self._steps:
                return
        if self._clock() >= self._at_s:
            self._pause()
            self._patience_s *= PATIENCE_GROWTH
            self._at_s = self._clock() + self._patience_s
