"""What limits a broker in each cell of `bench.peers`: where its processor's time goes, sampled from outside by py-spy.

    python -m bench.profile [--only TEXT] [--rate 400] [--keep]

Each cell runs at full size at a fresh broker. A sample counts for a thread that is running (py-spy's idle detection: neither
waiting for sockets nor for the disk); processor time per message is the operating system's. With --keep the tables go to
`bench/results/profile-peers.txt`.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from bench.peers import Running, cells, magnetar
from bench.results import RESULTS
from magnetar.runtime.interpreter.compiled import VARIABLE

FRAME: Final = re.compile(r"(?P<function>[^();]+) \((?P<file>[^():]+)(?::\d+)?\)")
WAITS: Final = frozenset({"wait", "acquire", "get", "select", "poll", "sync", "_run", "_worker"})
"""Functions that block: py-spy takes a thread for running now and then that has just fallen asleep there."""

SHOWN: Final = 9
"""Rows of each table."""


class Stack(NamedTuple):
    """One kind of sample.

    Attributes:
        thread: its name.
        frames: (file, function), outermost first.
        seen: how often.
    """

    thread: str
    frames: list[tuple[str, str]]
    seen: int


def parsed(lines: Iterable[str]) -> list[Stack]:
    """Py-spy's raw format, with threads."""
    found = []
    for line in lines:
        text, _, count = line.rpartition(" ")
        thread, *frames = text.split(";")
        pairs = [(match["file"], match["function"]) for match in map(FRAME.fullmatch, frames) if match]
        if pairs and pairs[-1][1].rpartition(".")[2] not in WAITS:
            found.append(Stack(re.sub(r"thread \([^)]*\):? ?", "", thread).strip() or "main", pairs, int(count)))
    return found


def module(frame: tuple[str, str]) -> str:
    """`broker/producers`, for a frame of ours; the library's name for others."""
    path = frame[0].removesuffix(".py")
    if "magnetar/" in path:
        return path.rpartition("magnetar/")[2]
    if path == "runners":  # uvloop has no frames of its own below asyncio's
        return "uvloop"
    return path.rpartition("site-packages/")[2].partition("/")[0] if "site-packages/" in path else Path(path).name


def on_behalf_of(stack: Stack) -> str:
    """The module of ours that is nearest to the leaf: what libraries do is done for it."""
    ours = [frame for frame in stack.frames if "magnetar/" in frame[0]]
    return "event loop" if not ours or module(ours[-1]) == "app" else module(ours[-1])


def table(title: str, counts: Counter[str], samples: int) -> list[str]:
    """The largest shares, per cent."""
    rows = [f"  {100 * count / samples:5.1f}  {name}" for name, count in counts.most_common(SHOWN)]
    return [f"  {title}", *rows]


def report(name: str, stacks: list[Stack], figures: str) -> str:
    """A cell's tables."""
    samples = sum(stack.seen for stack in stacks)
    threads: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for stack in stacks:
        threads[stack.thread] += stack.seen
        modules[on_behalf_of(stack)] += stack.seen
        functions[f"{module(stack.frames[-1])}.{stack.frames[-1][1]}"] += stack.seen
    lines = [name, f"  {figures}; {samples} samples"]
    lines += table("threads", threads, samples)
    lines += table("on behalf of", modules, samples)
    lines += table("itself", functions, samples)
    return "\n".join(lines) + "\n"


def py_spy() -> str:
    """The program.

    Raises:
        SystemExit: it is not installed.
    """
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise SystemExit("py-spy is needed: pip install py-spy")
    return program


def keep(name: str, command: str, reports: list[str]) -> None:
    """Write tables to a file of `bench/results`, with the command that made them."""
    text = f"{command}\n\nShares in per cent of the samples of running threads.\n\n" + "\n".join(reports)
    (RESULTS / name).write_text(text)


def sampled(program: str, broker: Running, rate: int, out: Path) -> subprocess.Popen[str]:
    """Py-spy at work, once it says so."""
    command = [program, "record", "--pid", str(broker.process.pid), "--rate", str(rate), "--threads", "--format", "raw"]
    command += ["--nolineno", "--duration", "unlimited", "--output", str(out)]
    spying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert spying.stdout is not None
    if "Sampling" not in (line := spying.stdout.readline()):
        raise SystemExit(f"py-spy does not work here: {line.strip() or 'no word'}")
    return spying


def began(
    spying: list[subprocess.Popen[str]], program: str, broker: Running, rate: int, out: Path
) -> Callable[[], None]:
    """What a cell calls when its measured part begins."""
    return lambda: spying.append(sampled(program, broker, rate, out))


def main() -> None:
    """Sample, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cells whose name has this text")
    parser.add_argument("--rate", type=int, default=400, help="samples a second")
    parser.add_argument("--keep", action="store_true", help="write bench/results/profile-peers.txt")
    options = parser.parse_args()
    os.environ[VARIABLE] = "no"  # py-spy does not see compiled functions
    program = py_spy()
    reports = []
    with tempfile.TemporaryDirectory() as name:
        for number, (cell_name, unit, cell) in enumerate(cells(1)):
            if options.only not in cell_name:
                continue
            with magnetar(Path(name) / str(number)) as broker:
                cells(10)[number][2](broker, "warm")
                out = Path(name) / f"{number}.raw"
                spying: list[subprocess.Popen[str]] = []
                seen = cell(replace(broker, began=began(spying, program, broker, options.rate, out)), "measured")
                spying[0].send_signal(signal.SIGINT)
                spying[0].wait()
            cpu = f", {seen['cpu_us']:.1f} us of processor a message" if "cpu_us" in seen else ""
            reports.append(report(cell_name, parsed(out.read_text().splitlines()), f"{seen['value']:,.3g} {unit}{cpu}"))
            print(reports[-1], flush=True)
    if options.keep:
        keep("profile-peers.txt", f"python -m bench.profile --rate {options.rate} --keep", reports)


if __name__ == "__main__":
    main()
