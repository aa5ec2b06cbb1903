"""Standard output and error that never keep a command from what it does.

A command that moves a subscription, or says whether a cluster may be switched off, must come to its end and to its own exit
code whoever reads it: `magnetar failover ... | head -1` takes one line and goes. So a reader that is gone is no error, a disk
that is full is one, told at the end; and what cannot be encoded (names of files may be any bytes) is shown as escapes.
"""

import contextlib
import errno
import io
import os
import select
import sys
from typing import Any, Final, TextIO

_INPUT, _OUTPUT, _ERROR = range(3)

_NOBODY: Final = {errno.EPIPE, errno.EIO}
"""A pipe that nobody reads, and a terminal that is gone."""


class _Patient(io.RawIOBase):
    """A descriptor to write to; the first failure is kept, and what comes afterwards goes nowhere."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        while self.failure is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                # Whoever else has it open made it non-blocking: it only has to be waited for.
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.failure = error
        return len(data)


class Output:
    """Standard output and error of the process from `install` on."""

    def __init__(self) -> None:
        self._out = _Patient(_OUTPUT)
        self._streams = _text(self._out, sys.stdout, lines=self._out.isatty()), _text(_Patient(_ERROR), sys.stderr)

    def install(self) -> None:
        """Be what the program writes to; what is written already goes first."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        sys.stdout, sys.stderr = self._streams

    @property
    def unread(self) -> bool:
        """Whether whoever read standard output is gone."""
        return self._out.failure is not None and self._out.failure.errno in _NOBODY

    def end(self, code: int) -> int:
        """Write what is left.

        Args:
            code: how the command ended.

        Returns:
            The exit code: 1 instead of 0 when something could not be written that somebody waits for.
        """
        out, err = self._streams
        out.flush()
        failure = self._out.failure
        if failure is not None and not self.unread and not code:
            err.write(f"magnetar: the output could not be written: {failure.strerror}\n")
            code = 1
        err.flush()
        return code


def _text(raw: _Patient, like: TextIO, *, lines: bool = True) -> io.TextIOWrapper:
    """Text for a descriptor, in the encoding that Python chose for it."""
    return io.TextIOWrapper(io.BufferedWriter(raw), like.encoding, "backslashreplace", line_buffering=lines)


class Installed:
    """The output of this process; None in tests, which have their own."""

    output: Output | None = None


def install() -> Output:
    """Take over standard output and error, and open what the process was started without."""
    _open_all()
    Installed.output = Output()
    Installed.output.install()
    return Installed.output


def unread() -> bool:
    """Whether whoever read this process's standard output is gone."""
    return Installed.output is not None and Installed.output.unread


def _open_all() -> None:
    """A descriptor that is closed would be the next file's or socket's, and get what is meant for the user."""
    for descriptor, name in ((_INPUT, "stdin"), (_OUTPUT, "stdout"), (_ERROR, "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))
