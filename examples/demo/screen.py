"""What the demo shows while it runs: bars on a terminal, plain lines anywhere else."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

Count = Callable[[], tuple[int, int]]
"""How many of how many."""

PLAIN_EVERY_S: Final = 5.0
"""Between two lines about the counts when there is no terminal."""


class Screen(Protocol):
    """Where the progress of the demo is shown."""

    def step(self, text: str) -> None:
        """Show that a new step begins."""

    def bars(self, counts: Mapping[str, Count]) -> None:
        """Show these counts from now on."""

    def look(self) -> None:
        """Redraw if it is time to."""

    def close(self) -> None:
        """Stop drawing."""


class Quiet:
    """Tells nothing (`--json`)."""

    def step(self, text: str) -> None:
        """Nothing."""

    def bars(self, counts: Mapping[str, Count]) -> None:
        """Nothing."""

    def look(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Plain:
    """Lines with the seconds since the start; the counts every few seconds."""

    def __init__(self) -> None:
        self._began = self._printed = time.monotonic()
        self._counts: dict[str, Count] = {}
        self._last = ""

    def step(self, text: str) -> None:
        """A line."""
        self._write(text)

    def bars(self, counts: Mapping[str, Count]) -> None:
        """Shown by `look`."""
        self._counts = dict(counts)

    def look(self) -> None:
        """A line with all counts, if the last one is old and anything changed."""
        if time.monotonic() - self._printed < PLAIN_EVERY_S:
            return
        self._printed = time.monotonic()
        now = ", ".join(f"{name} {done:,}" for name, count in self._counts.items() for done, _ in [count()])
        if now and now != self._last:
            self._last = now
            self._write(now)

    def close(self) -> None:
        """Nothing is held open."""

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:6.1f} s  {text}\n")
        sys.stdout.flush()


class Bars:
    """Rich progress bars, with the steps as lines above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=Console(), transient=False,
        )  # fmt: skip
        self._counts: list[tuple[Any, Count]] = []
        self._progress.start()

    def step(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", markup=False, highlight=False)

    def bars(self, counts: Mapping[str, Count]) -> None:
        """One bar each."""
        for task, _ in self._counts:
            self._progress.remove_task(task)
        self._counts = [(self._progress.add_task(name, total=count()[1]), count) for name, count in counts.items()]

    def look(self) -> None:
        """Move the bars; Rich redraws them by itself."""
        for task, count in self._counts:
            self._progress.update(task, completed=count()[0])

    def close(self) -> None:
        """Leave the bars as they are."""
        self.look()
        self._progress.stop()


def screen(*, as_json: bool) -> Screen:
    """What fits where stdout goes."""
    if as_json:
        return Quiet()
    return Bars() if sys.stdout.isatty() else Plain()
