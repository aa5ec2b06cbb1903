"""Where the processor's time goes while one link catches up: CPU seconds per GB (or per million entries), by place.

    python -m bench.cpu [--size 131072] [--count 8000] [--rounds 3] [--label 128k] [--keep]

Two real brokers, the real pipeline with one link, a backlog; the link is paused while the backlog is published. From the
release to the last confirmation the CPU time of every process is taken from the operating system (user and system,
every thread), so that the sum over places says what the limit is: on a machine of `cpus` processors nothing can be
faster than `cpus` / sum.

Places: the two brokers; the Spark driver's JVM, its threads by kind; the Python workers of tasks (one process reads in one
batch and writes in the next, so a process tells nothing: --stacks samples them with py-spy and divides by function);
the Python processes that plan and commit batches; the Python driver.

With --keep the result goes to `bench/results/profile-<label>.json`.
"""

import argparse
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Final

import psutil
from tests.support.brokers import World, eventually
from tests.support.pipelines import Pipeline

from bench.broker import load
from bench.links import CATCH_UP_S, full_name, lag
from bench.measuring import ONE_LINK, clusters, family
from bench.results import RESULTS

SOURCE: Final = "broker, source"
DESTINATION: Final = "broker, destination"
JVM: Final = "JVM"
WORKERS: Final = "Python workers of tasks"
PLANNING: Final = "Python planning and commits"
DRIVER: Final = "Python driver"
PLACES: Final = (SOURCE, JVM, WORKERS, DESTINATION, PLANNING, DRIVER)

Times = dict[tuple[str, int], tuple[float, float]]
"""(user, system) seconds of each process, by place and process id."""


class Meter:
    """CPU seconds of every process that takes part."""

    def __init__(self, world: World, pipeline: Pipeline) -> None:
        assert pipeline.process is not None
        self._driver = psutil.Process(pipeline.process.pid)
        self._places: dict[int, str] = {self._driver.pid: DRIVER}
        self._brokers = {}
        for name, place in (("a", SOURCE), ("b", DESTINATION)):
            broker = world[name].process
            assert broker is not None
            self._brokers[place] = psutil.Process(broker.pid)

    def read(self) -> Times:
        """What was used so far."""
        found = {(place, process.pid): _times(process) for place, process in self._brokers.items()}
        for process in family(self._driver):
            try:
                found[self._place(process), process.pid] = _times(process)
            except psutil.Error:
                continue
        return found

    def workers(self) -> list[int]:
        """Process ids of the Python workers of tasks."""
        return [pid for place, pid in self.read() if place == WORKERS]

    def _place(self, process: psutil.Process) -> str:
        known = self._places.get(process.pid)
        if known is None:
            command = " ".join(process.cmdline())
            known = JVM if process.name() == "java" else WORKERS if "pyspark.worker" in command else PLANNING
            self._places[process.pid] = known
        return known

    def threads(self) -> dict[str, float]:
        """CPU seconds so far of the JVM's threads, by kind (names of numbered threads without the number)."""
        found: dict[str, float] = {}
        for place, pid in self.read():
            if place != JVM:
                continue
            try:
                threads = psutil.Process(pid).threads()
            except psutil.Error:
                continue  # a helper that it started, gone again
            for thread in threads:
                try:
                    name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text().strip()
                except OSError:
                    continue
                kind = re.sub(r"[#-]?\d+.*$", "", name).rstrip(" -#.")
                found[kind] = found.get(kind, 0.0) + thread.user_time + thread.system_time
        return found


def _times(process: psutil.Process) -> tuple[float, float]:
    times = process.cpu_times()
    return times.user, times.system


def spent(before: Times, after: Times) -> dict[str, dict[str, float]]:
    """User and system seconds of each place between two readings."""
    result = {place: {"user": 0.0, "system": 0.0} for place in PLACES}
    for key, (user, system) in after.items():
        user_before, system_before = before.get(key, (0.0, 0.0))
        result[key[0]]["user"] += user - user_before
        result[key[0]]["system"] += system - system_before
    return result


def round_of(world: World, meter: Meter, topic: str, size: int, count: int) -> dict[str, Any]:
    """One backlog: seconds, throughput, and CPU seconds by place."""
    source = world["a"]
    address = f"127.0.0.1:{source.pulsar_port}"
    load(address, topic, "--messages", "1", "--size", "16")
    eventually(lambda: lag(source, "b") == 0, within_s=60)
    source.rest("POST", f"/geo/v1/links/b/pause?topic={full_name(topic)}")
    load(address, topic, "--messages", str(count), "--size", str(size), "--window", "200")
    before, threads = meter.read(), meter.threads()
    started = time.perf_counter()
    source.rest("POST", f"/geo/v1/links/b/resume?topic={full_name(topic)}")
    eventually(lambda: lag(source, "b") == 0, within_s=CATCH_UP_S, every_s=0.02)
    seconds = time.perf_counter() - started
    cpu = spent(before, meter.read())
    jvm = {name: used - threads.get(name, 0.0) for name, used in meter.threads().items()}
    total = sum(times["user"] + times["system"] for times in cpu.values())
    gigabytes, millions = size * count / 1e9, count / 1e6
    return {
        "seconds": round(seconds, 2),
        "mb_per_s": round(size * count / seconds / 1e6, 1),
        "entries_per_s": round(count / seconds),
        "cpu_s": round(total, 2),
        "processors_busy": round(total / seconds, 2),
        "cpu_s_per_gb": round(total / gigabytes, 2),
        "cpu_s_per_million_entries": round(total / millions, 2),
        "places": {
            place: {
                "user_s_per_gb": round(times["user"] / gigabytes, 2),
                "system_s_per_gb": round(times["system"] / gigabytes, 2),
                "share": round((times["user"] + times["system"]) / total, 3),
            }
            for place, times in cpu.items()
        },
        "jvm_threads_s_per_gb": _largest(jvm, gigabytes),
    }


def _largest(seconds: dict[str, float], gigabytes: float) -> dict[str, float]:
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {name: round(used / gigabytes, 2) for name, used in ordered if used / gigabytes >= 0.02}


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=128 << 10)
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--label", default="128k")
    parser.add_argument("--keep", action="store_true", help="write bench/results/profile-<label>.json")
    options = parser.parse_args()
    rounds = []
    with clusters("ab", ONE_LINK) as (world, pipeline):
        meter = Meter(world, pipeline)
        for number in range(options.rounds + 1):
            one = round_of(world, meter, f"round-{number}", options.size, options.count)
            print(json.dumps(one), flush=True)
            if number:  # the first warms up the JVM
                rounds.append(one)
    if options.keep:
        kept = {
            "command": f"python -m bench.cpu --size {options.size} --count {options.count} "
            f"--rounds {options.rounds} --label {options.label} --keep",
            "entry_bytes": options.size,
            "entries": options.count,
            "cpus": os.cpu_count(),
            "rounds": rounds,
        }
        (RESULTS / f"profile-{options.label}.json").write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
