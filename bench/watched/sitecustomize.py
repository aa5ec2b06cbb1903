"""Loaded into a broker's process by `bench.load` (PYTHONPATH): how long its event loop was busy at a time.

A callback every 2 ms compares the processor time of the loop's thread with what it was at the last one: the difference is what
anybody else had to wait for, however busy the machine was with other things. Differences above 1 ms go to the file that
`MAGNETAR_BENCH_TURNS` names, one line each: wall clock in s, ms. So do the looks of Python's collector, marked "collector"; they
are part of a turn.
"""

import gc
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

EVERY_S = 0.002
LEAST_S = 0.001


def watch() -> None:
    """Make every driver watch the loop it is given."""
    driver: Any = importlib.import_module("magnetar.runtime.driver").Driver
    made = driver.__init__

    def init(self: Any, loop: Any, *rest: Any) -> None:
        made(self, loop, *rest)
        out = Path(os.environ["MAGNETAR_BENCH_TURNS"]).open("a", buffering=1)  # noqa: SIM115 - as long as the process lives
        before = time.thread_time()

        def beat() -> None:
            nonlocal before
            now = time.thread_time()
            if now - before > LEAST_S:
                out.write(f"{time.time():.3f} {(now - before) * 1000:.2f}\n")
            before = now
            loop.call_later(EVERY_S, beat)

        loop.call_soon(beat)

        looks = 0.0

        def look(phase: str, _info: Any) -> None:
            nonlocal looks
            now = time.thread_time()
            if phase == "stop" and now - looks > LEAST_S:
                out.write(f"{time.time():.3f} {(now - looks) * 1000:.2f} collector\n")
            looks = now

        gc.callbacks.append(look)

    driver.__init__ = init


class AtApp:
    """Tells when `magnetar.app` is imported: only then is this process a broker."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing, and notice."""
        if name == "magnetar.app":
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            watch()


if os.environ.get("MAGNETAR_BENCH_TURNS"):
    sys.meta_path.insert(0, AtApp())  # type: ignore[arg-type]
