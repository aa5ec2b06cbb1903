"""Figures of one broker: start, memory, throughput beside the disk, latency at light load.

    python -m bench.broker [--quick]

Every figure comes from one run on one machine, the disk measured in the same minute: compare ratios, not milliseconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from tests.support.brokers import World

from bench.results import Figure, store

KIB = 1024


class Disk:
    """A bare log beside the broker's: appends of distinct blocks to a file that is kept, synced in groups.

    What it writes stays until the end, as a log does. A file that is deleted and written again gets the same pages of memory
    again: on a virtual machine, whose host has to find memory for pages never used before, that measured 5 to 8 times
    less processor time per byte than any growing log can have (docs/performance.md).

    Args:
        folder: on the disk to be measured.
        block: bytes of one append.
    """

    def __init__(self, folder: Path, block: int) -> None:
        self._descriptor = os.open(folder / "disk.probe", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._group = max(1, 1024 * KIB // block)
        self._blocks = [os.urandom(block) for _ in range(8 * self._group)]

    def write(self, total: int) -> float:
        """Append and sync at least `total` bytes; MB/s."""
        started = time.perf_counter()
        written = at = 0
        while written < total:
            written += os.writev(self._descriptor, self._blocks[at : at + self._group])
            os.fdatasync(self._descriptor)
            at = (at + self._group) % len(self._blocks)
        return written / (time.perf_counter() - started) / 1e6

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def beside_disk(folder: Path, address: str, size: int, count: int, rounds: int) -> dict[str, Any]:
    """Publish entries and append to the bare log by turns; the medians, and of the ratios of neighbours."""
    bare = Disk(folder, size)
    ratios, published = [], []
    disks = [bare.write(size * count)]
    for number in range(rounds):
        one = load(
            address, f"large-{number}", "--messages", str(count), "--size", str(size), "--window", "64"
        )  # fmt: skip
        published.append(one["mb_per_s"])
        disks.append(bare.write(size * count))
        ratios.append(one["mb_per_s"] / statistics.mean(disks[-2:]))
    bare.close()
    return {
        "mb_per_s": statistics.median(published),
        "disk_mb_s": statistics.median(disks),
        "ratio": statistics.median(ratios),
        "published": [round(value, 1) for value in published],
        "disk": [round(value, 1) for value in disks],
    }


def small_sync(folder: Path, count: int = 300) -> dict[str, float]:
    """One 1 KB append and its sync, as a publish at light load needs: p50 and p99 in ms."""
    path = folder / "sync.probe"
    data = os.urandom(KIB)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    times = []
    for _ in range(count):
        before = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        times.append((time.perf_counter() - before) * 1000)
        time.sleep(0.001)
    os.close(descriptor)
    path.unlink()
    times.sort()
    return {"p50_ms": times[count // 2], "p99_ms": times[int(count * 0.99)]}


def load(url: str, topic: str, *arguments: str) -> dict[str, Any]:
    """Run the load generator; its JSON."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("loadgen.py")),
        "--url",
        url,
        "--topic",
        topic,
        *arguments,
    ]
    done = subprocess.run(command, check=True, capture_output=True, timeout=300)
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = World(folder, ["bench"], '[namespaces."public/default"]\nclusters = ["bench"]\n')
        broker = world["bench"]
        try:
            started = time.perf_counter()
            broker.start()
            address = f"127.0.0.1:{broker.pulsar_port}"
            load(address, "first", "--messages", "1", "--size", "16")
            # The generator's own start is in it; the figure is an upper bound.
            figures.append(
                Figure(
                    "broker start to first publish",
                    (time.perf_counter() - started),
                    "s",
                    "< 1",
                )
            )
            assert broker.process is not None
            memory = psutil.Process(broker.process.pid).memory_info().rss / 1e6
            figures.append(Figure("memory of an idle broker", memory, "MB", "< 100"))

            small = load(
                address,
                "small",
                "--messages",
                str(300_000 // scale),
                "--size",
                "1024",
                "--window",
                "2000",
            )
            figures.append(
                Figure(
                    "1 KB unbatched, one connection, durable",
                    small["messages_per_s"],
                    "messages/s",
                    ">= 50000",
                    small,
                )
            )
            large = beside_disk(folder, address, 128 * KIB, 4000 // scale, 7)
            figures.append(Figure("128 KB entries, durable", large["mb_per_s"], "MB/s", "", large))
            figures.append(Figure("128 KB entries / a bare log beside it", large["ratio"], "ratio", ">= 0.7"))
            sync = small_sync(folder)
            light = load(
                address,
                "light",
                "--messages",
                str(5000 // scale),
                "--size",
                "1024",
                "--rate",
                "500",
            )
            latency = light["latency_ms"]
            figures.append(
                Figure(
                    "publish latency at light load, p99 - the disk's own sync p99",
                    latency["p99"] - sync["p99_ms"],
                    "ms",
                    "<= 1",
                    {"publish": latency, "disk": sync},
                )
            )
        finally:
            world.close()
    store("broker", figures, sys.argv)


if __name__ == "__main__":
    main()
