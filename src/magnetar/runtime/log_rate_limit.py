"""A limit on warnings that strangers can cause: a flood of bad connections or messages must not fill the disk with lines.

Lines are of one kind if they begin with the same words. Some lines of each kind are written per interval. The rest are counted,
and their number is written when the interval is over.
"""

from collections.abc import Callable
from typing import Final

LINES_MAX: Final = 50
"""Lines of one kind per interval: enough for an operator to see the problem."""

INTERVAL_S: Final = 10.0

KIND_WORDS: Final = 3
"""Words that make the kind: what follows are names and numbers, which a stranger chooses."""

KINDS_MAX: Final = 1_000
"""A ceiling: further kinds share one."""


class Quiet:
    """Decides which lines are written.

    Args:
        later: calls a function after a number of seconds.
        write: writes a line.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object], write: Callable[[str], None]) -> None:
        self._later = later
        self._write = write
        self._counts: dict[str, int] = {}

    def allows(self, text: str) -> bool:
        """Whether a line is written; it counts."""
        kind = " ".join(text.split(" ", KIND_WORDS)[:KIND_WORDS])[:80]
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = "other lines"
        count = self._counts.get(kind, 0)
        if not count:
            self._later(INTERVAL_S, lambda: self._over(kind))
        self._counts[kind] = count + 1
        return count < LINES_MAX

    def warn(self, line: str) -> None:
        """Write a line, unless there are too many of its kind."""
        if self.allows(line):
            self._write(line)

    def _over(self, kind: str) -> None:
        left_out = self._counts.pop(kind) - LINES_MAX
        if left_out > 0:
            self._write(f"{left_out} more lines like '{kind} ...' were left out within {INTERVAL_S:.0f} s")
