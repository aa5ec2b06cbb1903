"""Run as a program, `orphans.py PARENT SIGNAL COMMAND ...`: become that command, which gets the signal when the parent dies.

A `preexec_fn` would do the same in a process with one thread. In a process with other threads, such as those of
official clients, the code that CPython runs between fork and exec for it may wait for ever for a lock that one of them
held.
"""

import signal
import sys
from pathlib import Path


def with_parent(command: list[str], parent: int, number: signal.Signals = signal.SIGTERM) -> list[str]:
    """The command to start instead of the given one; on systems other than Linux the command itself.

    Args:
        command: the program by its path, and its arguments.
        parent: the process that starts it. The kernel watches the starting *thread*: it must run as long as the command
            shall.
        number: the signal that the command gets when its parent dies.
    """
    if not sys.platform.startswith("linux"):
        return command
    return [sys.executable, "-I", "-S", str(Path(__file__)), str(parent), str(int(number)), *command]


if __name__ == "__main__":
    import contextlib
    import ctypes
    import os

    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).prctl(1, int(sys.argv[2]))  # PR_SET_PDEATHSIG; exec keeps it
    if os.getppid() != int(sys.argv[1]):  # it died in between
        sys.exit(f"process {sys.argv[1]} is gone")
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - a shell would be one process more
