"""SIGKILL at random moments, round after round: brokers, drivers, executors. All messages are there once, in order.

`MAGNETAR_KILL_ROUNDS` says how many rounds of each kind, `MAGNETAR_KILL_SEED` repeats the choices of a run (its seed is
printed when a test fails). Moments are counted in messages, not in seconds: somewhere between two of them.

Topics at their end are carried by long batches here. `tests/spark/pipeline/test_query.py` kills the workers of short ones.
"""

import contextlib
import os
import random
from collections.abc import Callable
from typing import Final

import psutil
import pytest

from tests.support.brokers import eventually
from tests.support.pipelines import Pipeline
from tests.support.traffic import Flow

ROUNDS: Final = int(os.environ.get("MAGNETAR_KILL_ROUNDS", "10"))
SEED: Final = int(os.environ.get("MAGNETAR_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)

MOMENT: Final = 30
"""A kill comes within so many messages: some 300 ms of work, which is more than a batch takes, so in any phase of one."""

MARKS: Final = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120 + 40 * ROUNDS)]


def a_moment(chance: random.Random, flows: tuple[Flow, Flow], within: int = MOMENT) -> None:
    """Let a random number of messages be published."""
    chance.choice(flows).await_acknowledged(chance.randrange(within))


def all_arrive(flows: tuple[Flow, Flow]) -> None:
    """Everything published so far, and a bit of what comes, arrives in both directions."""
    for flow in flows:
        flow.await_arrivals(10)


def kill_one(pipeline: Pipeline, chance: random.Random, wanted: Callable[[], list[psutil.Process]], what: str) -> None:
    """SIGKILL one of the processes that fit; waits until there is one."""

    def attempt() -> bool:
        found = sorted(wanted(), key=lambda one: one.pid)
        if not found:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(found).kill()
            return True
        return False

    eventually(attempt, within_s=60, every_s=0.05, what=f"there is {what} to kill")
