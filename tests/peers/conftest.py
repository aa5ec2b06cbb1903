"""Tests next to real peers: `make peers` runs all, `make test` one file. They skip with one line where a peer cannot run."""

import os
from pathlib import Path

HERE = Path(__file__).parent
ALWAYS = HERE / "bookkeeper" / "test_slice.py"
"""It takes about a minute. Everything else takes too long for `make test`."""

collect_ignore = [
    str(path.relative_to(HERE))
    for path in HERE.glob("*/test_*.py")
    if path != ALWAYS and not os.environ.get("MAGNETAR_PEERS")
]
