"""What the machine's host takes away: a virtual machine's processors are not always its own."""

from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
_STEAL: Final = 7
"""Of the numbers of the line "cpu" (proc(5)): time in which a processor was wanted, and the host ran something else."""


class Taken:
    """How much processor time the host took since this was made."""

    def __init__(self) -> None:
        self._before = _times()

    def share(self) -> float:
        """Of the time in which the processors were wanted: 0 (nothing, or unknown: no Linux) to 1."""
        (taken, wanted), (taken_before, wanted_before) = _times(), self._before
        return (taken - taken_before) / max(1, wanted - wanted_before)


def _times() -> tuple[int, int]:
    """Taken by the host, and wanted at all (neither idle nor waiting for a disk), in ticks since the machine's start."""
    if not _STAT.exists():
        return 0, 0
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already
    told = [int(each) for each in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    if len(told) <= _STEAL:
        return 0, 0
    user, nice, system, _idle, _iowait, irq, softirq, steal = told
    return steal, user + nice + system + irq + softirq + steal
