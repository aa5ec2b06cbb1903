"""Tests next to real peers. Only `make peers` collects them, and they skip with one line where a peer cannot run."""

import os
from pathlib import Path

collect_ignore = (
    [] if os.environ.get("MAGNETAR_PEERS") else [path.name for path in Path(__file__).parent.iterdir() if path.is_dir()]
)
