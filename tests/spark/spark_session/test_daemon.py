"""The process that forks Python workers: what they need is there before they are, and nothing that a fork breaks."""

import gc
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from magnetar.spark_session.forks import CLIENT, forks

pytestmark = pytest.mark.spark

ALLOWED = {"jemalloc_bg_thd"}
"""Threads of the forking process beside its first: jemalloc's knows of `fork`."""


def in_a_worker(_: int) -> tuple[list[str], bool, list[int]]:
    """Modules that are there, whether they are out of the garbage collector's sight, and the process ids of its parents."""
    return sorted(sys.modules), gc.get_freeze_count() > 50_000, [one.pid for one in psutil.Process().parents()]


def threads_of(pid: int) -> set[str]:
    """The names of a process's threads but its first."""
    tasks = Path(f"/proc/{pid}/task")
    return {(one / "comm").read_text().strip() for one in tasks.iterdir() if one.name != str(pid)}


def test_workers_are_born_with_everything(spark: Any) -> None:
    [(modules, frozen, parents)] = spark.sparkContext.parallelize([0], 1).map(in_a_worker).collect()
    expected = {
        "magnetar.spark.sink",
        "magnetar.pipeline.tasks.task_write",
        "magnetar.pipeline.long.fetch_write",
        "pyarrow.compute",
    }
    assert expected <= set(modules)
    assert frozen
    started = forks()
    assert started is not None
    assert parents[1] == started.server.pid, "the process that forks workers of tasks is itself forked"
    for pid in parents[:2]:
        assert threads_of(pid) <= ALLOWED


def test_all_python_processes_of_spark_are_forked(spark: Any) -> None:
    """Of the interpreters that Java started there are only clients, each of some 3 MB."""
    spark.sparkContext.parallelize([0], 1).count()
    java = spark.sparkContext._gateway.proc.pid
    started = [one.cmdline() for one in psutil.Process(java).children() if "python" in one.name()]
    assert started
    assert all(str(CLIENT) in words for words in started), started
