"""Figures of one broker: start, memory, throughput beside the disk, latency at light load.

    python -m bench.broker [--quick]

Every figure comes from one run on one machine, the disk measured in the same minute: compare ratios, not milliseconds.
"""

import argparse
import json
import os
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


def disk(folder: Path, block: int, total: int) -> dict[str, float]:
    """Plain appends of `block` bytes, each group synced as a broker would: MB/s and the sync's p50 in ms."""
    path = folder / "disk.probe"
    data = os.urandom(block)
    group = max(1, 1024 * KIB // block)
    syncs = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    started = time.perf_counter()
    written = 0
    while written < total:
        written += os.writev(descriptor, [data] * group)
        before = time.perf_counter()
        os.fdatasync(descriptor)
        syncs.append(time.perf_counter() - before)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    path.unlink()
    return {
        "mb_s": written / seconds / 1e6,
        "sync_p50_ms": sorted(syncs)[len(syncs) // 2] * 1000,
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

            beside = disk(folder, 128 * KIB, (400 << 20) // scale)
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
            large = load(
                address,
                "large",
                "--messages",
                str(4000 // scale),
                "--size",
                str(128 * KIB),
                "--window",
                "64",
            )
            again = disk(folder, 128 * KIB, (400 << 20) // scale)
            bare = (beside["mb_s"] + again["mb_s"]) / 2
            figures.append(Figure("128 KB entries, durable", large["mb_per_s"], "MB/s", "", large))
            figures.append(
                Figure(
                    "128 KB entries / the disk",
                    large["mb_per_s"] / bare,
                    "ratio",
                    ">= 0.7",
                    {"disk_mb_s": bare},
                )
            )
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
