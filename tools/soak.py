"""`make soak`: the tests with faults and kills, again and again with other seeds, until the time is up or one fails."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/property", "tests/clients", "tests/replication", "tests/e2e")
FILES = ("tests/spark/test_pulsar_kills.py",)

SEEDS = 20_000
"""Random worlds of each kind in the first round; one more time as many in each round after it."""

KILLS = 50
"""Kills of a process that writes, in the same way; `make test` does 6."""

KILL_ROUNDS = 50
"""SIGKILLs of brokers, drivers, Python workers and executors, of each kind, in the same way; `make test` does 10."""


def main() -> None:
    """Run until the deadline; the exit code is that of the first run that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="how long")
    hours = parser.parse_args().hours
    folders = [name for name in FOLDERS if any((ROOT / name).glob("**/test_*.py"))] + list(FILES)
    deadline = time.monotonic() + hours * 3600
    number = 0
    while time.monotonic() < deadline:
        number += 1
        seed = int(time.time())
        print(f"soak: round {number}, {(deadline - time.monotonic()) / 3600:.2f} hours left", flush=True)
        changes = {
            "HYPOTHESIS_PROFILE": "soak",
            "MAGNETAR_SEEDS": str(SEEDS * number),
            "MAGNETAR_KILLS": str(KILLS * number),
            "MAGNETAR_KILL_ROUNDS": str(KILL_ROUNDS * number),
            "MAGNETAR_KILL_SEED": str(seed),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=0", f"--hypothesis-seed={seed}", *folders]
        code = subprocess.run(command, cwd=ROOT, env=os.environ | changes, check=False).returncode
        if code != 0:
            again = " ".join([*(f"{key}={value}" for key, value in changes.items()), *command])
            sys.exit(f"soak: round {number} failed; the same again: {again}")


if __name__ == "__main__":
    main()
