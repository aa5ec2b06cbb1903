"""The log on its own, beside a bare loop of write and fdatasync on the same disk in the same run.

    python -m bench.storage [--folder PATH]

The log thread is fed with appends that are packed already, as the broker's loop does in its own thread; what packing
costs is measured by itself. Every figure of the disk is taken right beside the one it is compared with.
"""

import argparse
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.results import Figure, store
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.log.files import OsFiles
from magnetar.runtime.log.thread import LogThread
from magnetar.storage.entries import Append, Location, NewEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog

WAIT_S = 120
IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""As much as a broker lets its publishers have on the way (`pending_publish_bytes_max`)."""

ROUNDS = 3
"""Of each figure that depends on the disk; the median by the ratio to the bare disk is kept."""


def bare(folder: Path, size: int, per_write: int, writes: int) -> tuple[float, float]:
    """Bytes per second and the median sync (ms) of a loop that writes and syncs."""
    data = [os.urandom(size)] * per_write
    path = folder / "bare"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    syncs = []
    started = time.perf_counter()
    for _ in range(writes):
        os.writev(file, data)
        before = time.perf_counter()
        os.fdatasync(file)
        syncs.append(time.perf_counter() - before)
    elapsed = time.perf_counter() - started
    os.close(file)
    path.unlink()
    return writes * per_write * size / elapsed, sorted(syncs)[len(syncs) // 2] * 1000


class Feeder:
    """A log thread, and appends that wait for it."""

    def __init__(self, folder: Path) -> None:
        self.done = threading.Semaphore(0)
        self.answered: list[list[tuple[Append, Location]]] = []
        self.thread = LogThread(
            OsFiles(),
            folder / "log",
            BrokerConfig(),
            on_appended=self._appended,
            on_failed=lambda batch, error: sys.exit(error),
            on_healed=lambda: None,
        )
        self.thread.start()

    def _appended(self, batch: list[tuple[Append, Location]]) -> None:
        self.answered.append(batch)
        self.done.release(len(batch))

    def run(self, appends: list[Append]) -> float:
        """Seconds until all are durable."""
        window = max(1, IN_FLIGHT_BYTES // appends[0].bytes_total)
        started = time.perf_counter()
        for number, append in enumerate(appends):
            if number >= window:
                self.done.acquire(timeout=WAIT_S)
            self.thread.submit(append)
        for _ in range(min(window, len(appends))):
            self.done.acquire(timeout=WAIT_S)
        return time.perf_counter() - started


def staged(size: int, per_append: int, appends: int) -> tuple[TopicLog, list[Append], float]:
    """Packed appends of one topic, and the seconds of processor that packing one entry took."""
    log = TopicLog(
        "persistent://public/default/bench", 1, LedgerIds(1), EntryCache(1 << 20), ledger_entries_max=1 << 30
    )
    data = os.urandom(size)
    entry = NewEntry(data, 0, 1, 1)
    before = time.process_time()
    packed = [log.stage([entry] * per_append, 1) for _ in range(appends)]
    return log, packed, (time.process_time() - before) / (appends * per_append)


def measure(
    folder: Path, size: int, packed: list[Append], answered: list[list[tuple[Append, Location]]] | None = None
) -> tuple[float, float, dict[str, float]]:
    """Bytes per second of the log thread and of the bare disk right behind it, and what explains them."""
    entries = sum(len(append.entries) for append in packed)
    feeder = Feeder(folder)
    cycles = feeder.thread.cycles
    processor = time.process_time()
    elapsed = feeder.run(packed)
    processor = time.process_time() - processor
    cycles = feeder.thread.cycles - cycles
    feeder.thread.stop()
    shutil.rmtree(folder / "log")
    if answered is not None:
        answered += feeder.answered
    # The bare loop writes as much at a time as a cycle did: more would flatter the one, less the other.
    per_write = min(1024, max(1, entries // max(1, cycles)))
    disk, sync_ms = bare(folder, size, per_write, max(1, entries // per_write))
    detail = {
        "disk_MB_s": round(disk / 1e6),
        "disk_write_bytes": per_write * size,
        "sync_ms_p50": round(sync_ms, 3),
        "cycles": cycles,
        "processor_us_per_entry": round(processor / entries * 1e6, 2),
    }
    return entries * size / elapsed, disk, detail


def throughput(folder: Path, figures: list[Figure]) -> None:
    """Appending, large and small."""
    for label, size, per_append, appends, aim in (
        ("1 KiB", 1024, 16, 8000, ">= 80,000 /s"),
        ("128 KiB", 128 * 1024, 1, 3000, "near the disk"),
    ):
        log, packed, pack_s = staged(size, per_append, appends)
        rounds = [measure(folder, size, packed) for _ in range(ROUNDS - 1)]
        answered: list[list[tuple[Append, Location]]] = []
        rounds.append(measure(folder, size, packed, answered))
        rate, disk, detail = sorted(rounds, key=lambda each: each[0] / each[1])[ROUNDS // 2]
        entries = appends * per_append
        figures.extend(
            (
                Figure(f"log thread, {label}", rate / size, "entries/s", aim, detail),
                Figure(f"log thread, {label}", rate / 1e6, "MB/s"),
                Figure(f"log thread, {label}: of the bare disk", rate / disk, "x"),
                Figure(f"packing, {label}", pack_s * 1e6, "us processor"),
            )
        )
        before = time.process_time()
        for batch in answered:
            for append, location in batch:
                log.confirm(append, location)
        figures.append(Figure(f"confirming, {label}", (time.process_time() - before) / entries * 1e6, "us processor"))


def recovery(folder: Path, figures: list[Figure], topics: int = 10_000, entries: int = 100) -> None:
    """Ten thousand topics with a hundred entries each, after a kill and after a quiet stop."""
    feeder = Feeder(folder)
    ids, cache = LedgerIds(0), EntryCache(1)
    logs = [TopicLog(f"persistent://public/default/topic-{n}", ids.allocate(1), ids, cache) for n in range(topics)]
    entry = NewEntry(os.urandom(100), 0, 1, 1)
    feeder.run([log.stage([entry] * (entries // 5), 1) for _ in range(5) for log in logs])
    feeder.thread.stop()
    for label, sidecars in (("scanning all of it", False), ("from sidecars", True)):
        if not sidecars:
            for path in (folder / "log").glob("*.idx"):
                path.unlink()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, processor = time.perf_counter(), time.process_time()
        thread = LogThread(
            OsFiles(),
            folder / "log",
            BrokerConfig(),
            on_appended=lambda batch: None,
            on_failed=lambda batch, error: sys.exit(error),
            on_healed=lambda: None,
        )
        recovered = thread.start()
        ids = LedgerIds(recovered.last_ledger)
        loaded = [
            TopicLog(name, incarnation, ids, cache, recovered=found)
            for (name, incarnation), found in recovered.topics.items()
        ]
        elapsed = time.perf_counter() - started
        thread.stop()
        assert sum(ledger.entries for log in loaded for ledger in log.ledger_infos()) == topics * entries
        detail = {
            "processor_s": round(time.process_time() - processor, 2),
            "peak_memory_grew_MB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) // 1024,
        }
        figures.append(Figure(f"recovery of {topics:,} topics x {entries}, {label}", elapsed, "s", "< 10 s", detail))
    shutil.rmtree(folder / "log")


def main() -> None:
    """Run all and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on the disk to be measured")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=arguments.folder) as folder:
        throughput(Path(folder), figures)
        recovery(Path(folder), figures)
    store("storage", figures, sys.argv)


if __name__ == "__main__":
    main()
