"""What benches share: percentiles, a steady rate, processor time of processes that end."""

import subprocess
import sys
import time

import psutil
import pytest
from bench import measuring


def test_percentiles_are_measured_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert measuring.latencies(values) == {"p50_ms": 51.0, "p99_ms": 100.0, "max_ms": 100.0}
    assert measuring.percentile([], 0.5) == 0.0


def test_a_number_is_never_early_by_more_than_the_shortest_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    due = [(number, now) for number in measuring.paced(5, 10.0)]
    assert [number for number, _ in due] == [0, 1, 2, 3, 4]
    assert [at for _, at in due] == pytest.approx([100.0, 100.1, 100.2, 100.3, 100.4])
    assert [(number, now) for number in measuring.paced(3, 0.0)] == [(0, now), (1, now), (2, now)]


def test_the_time_of_a_process_that_has_ended_stays() -> None:
    script = "import time; end = time.process_time() + 0.1\nwhile time.process_time() < end: pass\nprint(1, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdin is not None
    spent = measuring.ProcessorTime(psutil.Process())
    child.stdout.readline()
    before = spent.seconds()
    child.communicate(b"\n")
    assert spent.seconds() >= before >= 0.1
    assert time.process_time() < spent.seconds()  # this process alone has less
