"""Resource usage of the broker's process and machine, for `/metrics` and load reports.

The figures of the process have the names of prometheus_client. The shares are those that Pulsar's load managers report.
If the system does not report something (it is not Linux, a network card does not report its speed), the figure is left
out or 0.
"""

import contextlib
import os
import resource
import time
from pathlib import Path
from typing import Final, NamedTuple

INTERVAL_S_MIN: Final = 5.0
"""Shares are of the time since the last look, but of no shorter one: two who ask in turn must not see the noise of a moment."""

NO_LIMIT_BYTES: Final = 1 << 60
"""A limit of memory above this means no limit, as version 1 of control groups writes it."""

_MEGABIT_BYTES: Final = 125_000


class Process(NamedTuple):
    """Figures of this process; None: the system does not report it.

    Attributes:
        cpu_s: seconds of processor time, user and system together.
        resident_bytes, virtual_bytes: memory.
        start_s: when it started, seconds since 1970.
        open_fds, max_fds: open file descriptors, and their limit.
    """

    cpu_s: float
    resident_bytes: int | None = None
    virtual_bytes: int | None = None
    start_s: float | None = None
    open_fds: int | None = None
    max_fds: int | None = None


class Usage(NamedTuple):
    """Shares in percent.

    Attributes:
        cpu: share of the processors that this process may use.
        memory: share of the memory that it may use.
        bandwidth_in, bandwidth_out: share of the capacity of the machine's network cards, used by all processes; 0: no
            card reports its speed.
        cpu_limit: processors, times 100.
        memory_bytes, memory_limit_bytes: resident memory, and its limit.
        in_bytes_per_s, out_bytes_per_s, network_bytes_per_s: throughput of the cards, and their capacity.
    """

    cpu: float = 0.0
    memory: float = 0.0
    bandwidth_in: float = 0.0
    bandwidth_out: float = 0.0
    cpu_limit: float = 100.0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    in_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0
    network_bytes_per_s: float = 0.0


class _Look(NamedTuple):
    at_s: float
    cpu_s: float
    received: int
    sent: int


class Host:
    """The machine, as this process sees it.

    Args:
        root: where `proc` and `sys` are; another folder for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._sys = root / "sys"
        self._looked = _Look(time.monotonic() - time.process_time(), 0.0, *self._carried())
        self._usage = Usage()
        self._fresh = True

    def process(self) -> Process:
        """Figures of the process as they are now."""
        times = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = times.ru_utime + times.ru_stime
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        max_fds = None if most == resource.RLIM_INFINITY else most
        try:
            # The name, in brackets, may have spaces in it.
            fields = (self._proc / "self/stat").read_text().rpartition(")")[2].split()
            booted = next(line for line in (self._proc / "stat").read_text().splitlines() if line.startswith("btime"))
            return Process(
                cpu_s,
                int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
                int(fields[20]),
                int(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK"),
                sum(1 for _ in (self._proc / "self/fd").iterdir()),
                max_fds,
            )
        except (OSError, ValueError, IndexError, StopIteration):
            return Process(cpu_s, max_fds=max_fds)

    def usage(self, process: Process) -> Usage:
        """Shares since the last look; at first those since the process started (of the network: none)."""
        now = _Look(time.monotonic(), process.cpu_s, *self._carried())
        before = self._looked
        elapsed_s = now.at_s - before.at_s
        if not self._fresh and elapsed_s < INTERVAL_S_MIN:
            return self._usage
        if self._fresh and process.start_s is not None:
            elapsed_s = time.time() - process.start_s
        self._fresh = False
        self._looked = now
        elapsed_s = max(elapsed_s, 0.001)
        processors, memory, network = self._processors(), self._memory(), self._network()
        resident = process.resident_bytes or 0
        received, sent = (
            max(0, new - old) / elapsed_s for new, old in ((now.received, before.received), (now.sent, before.sent))
        )
        self._usage = Usage(
            min(100.0, 100 * (now.cpu_s - before.cpu_s) / elapsed_s / processors),
            100 * resident / memory if memory else 0.0,
            100 * received / network if network else 0.0,
            100 * sent / network if network else 0.0,
            100 * processors,
            resident,
            memory,
            received,
            sent,
            network,
        )
        return self._usage

    # ------------------------------------------------------------------------------------------------- what there may be

    def _processors(self) -> float:
        try:
            allowed = float(len(os.sched_getaffinity(0)))
        except AttributeError:  # no Linux
            allowed = float(os.cpu_count() or 1)
        try:
            quota, period = (self._sys / "fs/cgroup/cpu.max").read_text().split()
            return allowed if quota == "max" else min(allowed, int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            return allowed

    def _memory(self) -> int:
        found = []
        for file in ("fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes"):
            try:
                found.append(int((self._sys / file).read_text()))
            except (OSError, ValueError):  # another version, or "max"
                continue
        with contextlib.suppress(OSError, ValueError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return min((size for size in found if 0 < size < NO_LIMIT_BYTES), default=0)

    def _cards(self) -> list[Path]:
        """Network cards: bridges, tunnels and the loopback have no device."""
        try:
            return [card for card in (self._sys / "class/net").iterdir() if (card / "device").exists()]
        except OSError:
            return []

    def _network(self) -> float:
        """The capacity of the cards, bytes per second."""
        total = 0
        for card in self._cards():
            try:
                total += max(0, int((card / "speed").read_text()))  # -1: it does not know
            except (OSError, ValueError):
                continue
        return float(total * _MEGABIT_BYTES)

    def _carried(self) -> tuple[int, int]:
        """Bytes that the cards received and sent since the machine started."""
        received = sent = 0
        for card in self._cards():
            try:
                received += int((card / "statistics/rx_bytes").read_text())
                sent += int((card / "statistics/tx_bytes").read_text())
            except (OSError, ValueError):
                continue
        return received, sent


HOST: Final = Host()
"""The figures of this process."""
