"""`make soak`: the tests with faults and kills, again and again with other seeds, until the time is up or one fails."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/property", "tests/sim", "tests/replication", "tests/e2e")
ROUNDS = 100
"""Kills in one run of a test that kills; `make test` does 10."""


def main() -> None:
    """Run until the deadline; the exit code is that of the first run that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="how long")
    hours = parser.parse_args().hours
    folders = [name for name in FOLDERS if any((ROOT / name).glob("**/test_*.py"))]
    deadline = time.monotonic() + hours * 3600
    seed = int(time.time())
    while time.monotonic() < deadline:
        print(f"soak: seed {seed}, {(deadline - time.monotonic()) / 3600:.2f} hours left", flush=True)
        environment = os.environ | {
            "HYPOTHESIS_PROFILE": "sim",
            "MAGNETAR_KILL_ROUNDS": str(ROUNDS),
            "MAGNETAR_SEED": str(seed),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=0", f"--hypothesis-seed={seed}", *folders]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code != 0:
            sys.exit(f"soak: failed with seed {seed}: MAGNETAR_SEED={seed} repeats it")
        seed += 1


if __name__ == "__main__":
    main()
