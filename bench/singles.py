"""Processor time of a broker for each single message: one connection, 1 KB, 1,000 without a receipt at most.

    python -m bench.singles [--tree DIR ...] [--rounds 5] [--messages 50000] [--size 1024]

`--tree` names checkouts to compare, each with its sources in `src`; without it, this one. The trees take turns, in the other
order in every second round, and the least of a tree's rounds counts: on shared cores other work only adds to it. The rate is the
best of the rounds; it means something on a quiet machine alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import psutil
from tests.support.brokers import free_ports

from bench.broker import load
from bench.measuring import TREE, add_tree, cpu_s
from bench.results import Figure, store

WARM: Final = 5_000
"""Messages to another topic before the time is taken."""


def measured(tree: Path, messages: int, size: int) -> tuple[float, float]:
    """Start the broker of a checkout and publish; microseconds of its processor for a message, and messages per second."""
    pulsar, http = free_ports(2)
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "magnetar", "broker", "singles", "--data-dir", str(Path(folder) / "data"),
            "--pulsar-port", str(pulsar), "--http-port", str(http),
        ]  # fmt: skip
        broker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=folder)
        assert broker.stdout is not None
        try:
            if not broker.stdout.readline():
                sys.exit(f"bench.singles: the broker of {tree} did not start")
            address, process = f"127.0.0.1:{pulsar}", psutil.Process(broker.pid)
            load(address, "warm", "--messages", str(WARM), "--size", str(size))
            before = cpu_s(process)
            found: dict[str, Any] = load(address, "measured", "--messages", str(messages), "--size", str(size))
            spent = cpu_s(process) - before
        finally:
            broker.kill()
            broker.wait()
            broker.stdout.close()
    return spent / messages * 1e6, float(found["messages_per_s"])


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tree(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of one message")
    options = parser.parse_args()
    trees = options.tree or [TREE]
    rounds: dict[Path, list[tuple[float, float]]] = {tree: [] for tree in trees}
    for number in range(options.rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            rounds[tree].append(measured(tree, options.messages, options.size))
    figures = []
    for tree, seen in rounds.items():
        name = f"{options.size} B single" if len(trees) == 1 else f"{options.size} B single, {tree.name}"
        times = sorted(us for us, _ in seen)
        detail = {"tree": str(tree), "rounds": [round(us, 2) for us, _ in seen]}
        figures.append(Figure(name, round(times[0], 2), "us of processor/message", "< 15", detail))
        figures.append(Figure(f"{name}, rate", round(max(rate for _, rate in seen)), "messages/s"))
    store("singles", figures, sys.argv)


if __name__ == "__main__":
    main()
