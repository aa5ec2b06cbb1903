"""Processor time of a broker for each single message: one connection, 1 KB, 1,000 without a receipt at most.

    python -m bench.singles [--tree DIR ...] [--rounds 5] [--messages 50000] [--size 1024] [--topics 10]
    python -m bench.singles --beside [--tree DIR ...] [--rounds 5]

With `--beside` another connection publishes 200 messages a second to another topic during the flood, and the time until its
receipts is measured.

With `--topics` the official client is the generator (`bench.peers_client`): one connection, a message to each topic in turn.

`--tree` names checkouts to compare, each with its sources in `src`; without it, this one. The trees take turns, in the other
order in every second round, and the least of a tree's rounds counts: on shared cores other work only adds to it. The rate is the
best of the rounds; it means something on a quiet machine alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from tests.support.brokers import free_ports

from bench.broker import load
from bench.measuring import TREE, add_tree
from bench.peers import Running, client, result
from bench.results import Figure, store

WARM: Final = 5_000
"""Messages to another topic before the time is taken."""

BESIDE_RATE: Final = 200
"""Messages a second of the other publisher."""

BESIDE: Final = 600
"""Its messages in one round: p99 leaves out the slowest six."""


FLOODED_S: Final = 0.3
"""Processor time of the broker after which a flood is under way."""


def publish(broker: Running, name: str, messages: int, size: int, topics: int) -> dict[str, Any]:
    """Publish to a topic, or to some in turn if `topics` is not 0; what the generator reports."""
    if not topics:
        return load(f"127.0.0.1:{broker.port}", name, "--messages", str(messages), "--size", str(size))
    return result(client("produce", broker, [f"{name}-{n}" for n in range(topics)], messages, "--size", str(size)))


@contextmanager
def started(tree: Path) -> Iterator[Running]:
    """The broker of a checkout, ended at the end of the block."""
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
            yield Running("singles", pulsar, psutil.Process(broker.pid))
        finally:
            broker.kill()
            broker.wait()
            broker.stdout.close()


def measured(tree: Path, messages: int, size: int, topics: int) -> tuple[float, float]:
    """Start the broker of a checkout and publish; microseconds of its processor for a message, and messages per second."""
    with started(tree) as broker:
        publish(broker, "warm", WARM, size, topics)
        before = broker.cpu_s()
        found = publish(broker, "measured", messages, size, topics)
        spent = broker.cpu_s() - before
    return spent / messages * 1e6, float(found["messages_per_s"])


def beside(tree: Path, size: int) -> tuple[float, float, float]:
    """Flood the broker of a checkout over one connection, and publish over another; p50 and p99 of the receipts of the other one
    in ms, and the flood's messages per second.
    """
    with started(tree) as broker:
        url, other = f"127.0.0.1:{broker.port}", ("--messages", str(BESIDE), "--rate", str(BESIDE_RATE))
        found = load(url, "warm", "--messages", str(WARM), "--size", str(size))
        # Twice as long as the other publisher, by the rate that was just seen.
        flood = int(float(found["messages_per_s"]) * 2 * BESIDE / BESIDE_RATE)
        with ThreadPoolExecutor(1) as pool:
            began = broker.cpu_s()
            flooding = pool.submit(load, url, "flood", "--messages", str(flood), "--size", str(size))
            while broker.cpu_s() < began + FLOODED_S and not flooding.done():
                time.sleep(0.01)  # the generator prepares its messages first
            answers = load(url, "other", *other, "--size", str(size))
            if flooding.done():
                sys.exit("bench.singles: the flood was over before the other publisher: its figures would be too good")
            rate = float(flooding.result()["messages_per_s"])
    return answers["latency_ms"]["p50"], answers["latency_ms"]["p99"], rate


def measure_beside(trees: list[Path], rounds: int, size: int) -> list[Figure]:
    """Rounds of `beside`, in turns; medians."""
    seen: dict[Path, list[tuple[float, float, float]]] = {tree: [] for tree in trees}
    for number in range(rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            seen[tree].append(beside(tree, size))
    figures = []
    for tree, each in seen.items():
        name = "another publisher beside the flood" + ("" if len(trees) == 1 else f", {tree.name}")
        units = {"p50": "ms", "p99": "ms", "rate of the flood": "messages/s"}
        for (what, unit), values in zip(units.items(), zip(*each, strict=True), strict=True):
            detail = {"tree": str(tree), "rounds": [round(value, 2) for value in values]}
            figures.append(Figure(f"{name}: {what}", round(median(values), 2), unit, "", detail))
    return figures


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tree(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of one message")
    parser.add_argument("--topics", type=int, default=0, help="by the official client, to so many topics in turn")
    parser.add_argument("--beside", action="store_true", help="the receipts of another publisher during a flood")
    options = parser.parse_args()
    if options.beside:
        store("singles_beside", measure_beside(options.tree or [TREE], options.rounds, options.size), sys.argv)
        return
    what = f"{options.size} B single" + (f", official client, {options.topics} topics" if options.topics else "")
    trees = options.tree or [TREE]
    rounds: dict[Path, list[tuple[float, float]]] = {tree: [] for tree in trees}
    for number in range(options.rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            rounds[tree].append(measured(tree, options.messages, options.size, options.topics))
    figures = []
    for tree, seen in rounds.items():
        name = what if len(trees) == 1 else f"{what}, {tree.name}"
        times = sorted(us for us, _ in seen)
        detail = {"tree": str(tree), "rounds": [round(us, 2) for us, _ in seen]}
        figures.append(
            Figure(name, round(times[0], 2), "us of processor/message", "" if options.topics else "< 15", detail)
        )
        figures.append(Figure(f"{name}, rate", round(max(rate for _, rate in seen)), "messages/s"))
    store(f"singles_{options.topics}_topics" if options.topics else "singles", figures, sys.argv)


if __name__ == "__main__":
    main()
