"""Instructions that a broker takes for each message, exact to a percent whatever else the machine does.

    python -m bench.instructions [--tree DIR ...] [--messages 10000]

Time on shared cores moves by a tenth between two runs of one and the same commit. Instructions under `valgrind
--tool=cachegrind` move by half a percent, so a change of one percent shows. What the kernel does is not in them: judge a change
of system calls by `bench.broker`. `--tree` names checkouts to compare, each with its sources in `src`; without it, this one.

The cost of a message is the difference of two runs that differ in the count of messages alone, so the start is not in it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.brokers import free_ports

from bench.measuring import TREE, add_tree
from bench.results import Figure, store

BEFORE: Final = 2_000
"""Messages of the shorter run: enough that caches and the topic are warm in both."""

CASES: Final = {"pipelined": 1_000, "one by one": 1}
"""Name of a case -> entries without a receipt at a time."""

_INSTRUCTIONS: Final = re.compile(r"I\s+refs:\s+([\d,]+)")


class NotCountedError(Exception):
    """A run gave no figure; the text says why."""


def count(tree: Path, messages: int, window: int) -> int:
    """Start the broker of a checkout under valgrind, publish, stop it; the instructions of its whole life.

    Raises:
        NotCountedError: valgrind is missing, the broker did not start, or the load generator failed.
    """
    pulsar, http = free_ports(2)
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            "valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={folder / 'counts'}",
            sys.executable, "-m", "magnetar", "broker", "counted", "--data-dir", str(folder / "data"),
            "--pulsar-port", str(pulsar), "--http-port", str(http),
        ]  # fmt: skip
        with (folder / "errors").open("w") as errors:
            try:
                broker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, cwd=folder)
            except FileNotFoundError:
                raise NotCountedError(
                    "valgrind is not installed: install it (Debian, Ubuntu: apt install valgrind)"
                ) from None
            assert broker.stdout is not None
            try:
                started = bool(broker.stdout.readline())
                load = [
                    sys.executable, str(TREE / "bench" / "loadgen.py"), "--url", f"127.0.0.1:{pulsar}", "--topic", "counted",
                    "--messages", str(messages), "--size", "1024", "--window", str(window),
                ]  # fmt: skip
                done = (
                    subprocess.run(load, capture_output=True, text=True, timeout=600, check=False) if started else None
                )
            finally:
                broker.terminate()
                broker.wait(60)
                broker.stdout.close()
        said = (folder / "errors").read_text()
    if done is None or done.returncode:
        raise NotCountedError(f"{tree}: {(done.stderr if done else said).strip()[-300:]}")
    found = _INSTRUCTIONS.search(said)
    if found is None:
        raise NotCountedError(f"{tree}: valgrind printed no count: {said.strip()[-300:]}")
    return int(found[1].replace(",", ""))


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tree(parser)
    parser.add_argument("--messages", type=int, default=10_000, help="messages of a case; of those one by one a fifth")
    options = parser.parse_args()
    trees = options.tree or [TREE]
    figures = []
    try:
        for case, window in CASES.items():
            messages = options.messages if window > 1 else max(1, options.messages // 5)
            first = 0.0
            for tree in trees:
                less, more = (count(tree, number, window) for number in (BEFORE, BEFORE + messages))
                each = (more - less) / messages
                first = first or each
                detail = {
                    "tree": str(tree),
                    "messages": messages,
                    "start": less,
                    "to the first tree": round(each / first, 4),
                }
                name = f"{case}, 1 KB" if len(trees) == 1 else f"{case}, 1 KB, {tree.name}"
                figures.append(Figure(name, round(each), "instructions/message", detail=detail))
    except NotCountedError as error:
        sys.exit(f"bench.instructions: {error}")
    store("instructions", figures, sys.argv)


if __name__ == "__main__":
    main()
