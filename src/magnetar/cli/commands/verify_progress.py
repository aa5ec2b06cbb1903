"""The progress of `magnetar verify`: a bar on a terminal, plain lines elsewhere; on stderr, because stdout has the
report.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.cli.shared.common import size

if TYPE_CHECKING:
    from magnetar.jobs.verify import VerifyProgress

PLAIN_EVERY_S: Final = 2.0
"""Between two lines when there is no terminal."""

UNITS: Final = {"reading": "entries", "comparing": "stretches of 65,536 indexes"}


class Shown(Protocol):
    """An output of the progress."""

    def start(self) -> None:
        """Spark starts, which takes seconds."""

    def tell(self, progress: "VerifyProgress") -> None:
        """The job is so far."""

    def close(self) -> None:
        """It is over."""


class Quiet:
    """Reports nothing."""

    def start(self) -> None:
        """Nothing."""

    def tell(self, progress: "VerifyProgress") -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def pace(progress: "VerifyProgress", seconds: float) -> str:
    """The amount read, and the speed."""
    rate = f", {progress.messages / seconds:,.0f} messages/s" if seconds > 0 and progress.messages else ""
    return f"{progress.messages:,} messages, {size(progress.bytes)}{rate}"


class Plain:
    """A line for each step, and one every two seconds while something moves."""

    def __init__(self, write: Callable[[str], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write or sys.stderr.write, clock
        self._began = self._printed = self._since = clock()
        self._step = ""
        self._done = -1

    def start(self) -> None:
        """A line, because what follows takes seconds."""
        self._line("starting Spark")

    def tell(self, progress: "VerifyProgress") -> None:
        """A line if the last one is old, or if this is the first or the last of its step."""
        now = self._clock()
        fresh = progress.step != self._step
        if fresh:
            self._step, self._done, self._since = progress.step, -1, now
        over = progress.done == progress.total
        if progress.done == self._done or not (fresh or over or now - self._printed >= PLAIN_EVERY_S):
            return
        self._printed, self._done = now, progress.done
        total = f" of {progress.total:,}" if progress.total is not None else ""
        text = f"{progress.step}: {progress.done:,}{total} {UNITS[progress.step]}"
        self._line(f"{text}; {pace(progress, now - self._since)}" if progress.step == "reading" else text)

    def close(self) -> None:
        """Nothing is held open."""

    def _line(self, text: str) -> None:
        self._write(f"{self._clock() - self._began:6.1f} s  {text}\n")


class Bar:
    """One Rich bar a step."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[pace]}"), console=console or Console(stderr=True), transient=True,
        )  # fmt: skip
        self._tasks: dict[str, Any] = {}
        self._began = time.monotonic()
        self._bars.start()

    def start(self) -> None:
        """A bar that runs to and fro."""
        self._tasks["start"] = self._bars.add_task("starting Spark", total=None, pace="")

    def tell(self, progress: "VerifyProgress") -> None:
        """Move the step's bar; the bars of earlier steps are full then."""
        task = self._tasks.get(progress.step)
        if task is None:
            for earlier in self._tasks.values():
                self._bars.update(earlier, total=self._bars.tasks[0].total or 1, visible=False)
            task = self._tasks[progress.step] = self._bars.add_task(progress.step, total=progress.total, pace="")
            if progress.step == "reading":
                self._began = time.monotonic()
        speed = pace(progress, time.monotonic() - self._began) if progress.step == "reading" else ""
        self._bars.update(task, completed=progress.done, total=progress.total, pace=speed)

    def close(self) -> None:
        """The bars go; the report comes."""
        self._bars.stop()


def shown(*, quiet: bool) -> Shown:
    """The output that suits the kind of stderr."""
    if sys.stderr.isatty():
        return Bar()
    return Quiet() if quiet else Plain()
