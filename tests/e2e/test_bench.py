"""A bench that is terminated ends what it started."""

import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.brokers import eventually

ROOT = Path(__file__).resolve().parents[2]


def started_by(bench: psutil.Process) -> list[psutil.Process]:
    """The broker and the load generator of a bench; nothing before both run."""
    found = bench.children()
    return found if len(found) == 2 else []


def test_sigterm_ends_its_broker() -> None:
    command = [sys.executable, "-m", "bench.singles", "--rounds", "1", "--messages", "1000000"]
    bench = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    started: list[psutil.Process] = []
    try:
        started = eventually(lambda: started_by(psutil.Process(bench.pid)), what="the broker and its load")
        bench.terminate()
        assert bench.wait(20) == 128 + 15
        assert not any(one.is_running() for one in started)
    finally:
        bench.kill()
        bench.wait()
        for one in started:
            if one.is_running():
                one.kill()
