"""Preparation of a Python process that Spark started for Magnetar, once before its first work.

Spark runs `gc.collect()` in a worker after every task. With numpy, pyarrow and protobuf loaded, that scans some 300,000
objects that are never freed: 50 ms of processor time for each of the four Python processes of a micro-batch, a third of
all processor time of the workers (docs/performance.md). Frozen objects are not scanned.
"""

import gc
import sys
from typing import Final

from magnetar.runtime.interpreter.memory import keep_freed_memory

MAINS: Final = (
    "magnetar.spark_session.daemon",
    "magnetar.spark_session.fork_server",
    "pyspark.daemon",
    "pyspark.worker",
)
"""The main modules of such processes."""

_settled = False


def settle() -> None:
    """Make this process cheap to reuse; does nothing but in Spark's worker processes, and there once."""
    global _settled  # noqa: PLW0603 - it is this process's state
    if _settled:
        return
    _settled = True
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is None or main.name not in MAINS:
        return
    gc.collect()
    gc.freeze()
    keep_freed_memory()
