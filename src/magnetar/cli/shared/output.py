"""Standard output and error that never prevent a command from finishing its work.

A command that moves a subscription, or reports whether a cluster may be switched off, must reach its end and its own
exit code, whether its output is read or not: `magnetar failover ... | head -1` reads one line and exits. So a closed
output is not an error. A full disk is one, reported at the end. Characters that cannot be encoded (names of files may
be any bytes) are shown as escapes.
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
"""The errors of a pipe whose reader is gone, and of a terminal that is gone."""


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
                # Another process that has it open made it non-blocking: it is enough to wait for it.
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
        """Replace the program's output; text that was written before is flushed first."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        sys.stdout, sys.stderr = self._streams

    @property
    def unread(self) -> bool:
        """Whether the reader of standard output is gone."""
        return self._out.failure is not None and self._out.failure.errno in _NOBODY

    def end(self, code: int) -> int:
        """Write the rest of the output.

        Args:
            code: exit code of the command.

        Returns:
            The exit code: 1 instead of 0 if output could not be written although its reader is there.
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
    """Whether the reader of this process's standard output is gone."""
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
