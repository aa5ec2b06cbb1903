"""The process that forks Python workers: what they need is there before they are, and nothing that a fork breaks."""

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

ALLOWED = {"jemalloc_bg_thd"}
"""Threads of the forking process beside its first: jemalloc's knows of `fork`."""


def in_a_worker(_: int) -> tuple[list[str], bool, list[str]]:
    """Modules that are there, whether they are out of the garbage collector's sight, and the forking process's threads."""
    parent = Path(f"/proc/{os.getppid()}/task")
    threads = [(one / "comm").read_text().strip() for one in parent.iterdir() if one.name != str(os.getppid())]
    return sorted(sys.modules), gc.get_freeze_count() > 50_000, threads


def test_workers_are_born_with_everything(spark: Any) -> None:
    [(modules, frozen, threads)] = spark.sparkContext.parallelize([0], 1).map(in_a_worker).collect()
    expected = {
        "magnetar.spark.sink",
        "magnetar.pipeline.tasks.task_write",
        "magnetar.pipeline.long.fetch_write",
        "pyarrow.compute",
    }
    assert expected <= set(modules)
    assert frozen
    assert set(threads) <= ALLOWED
