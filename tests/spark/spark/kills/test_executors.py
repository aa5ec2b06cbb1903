"""Effectively once: executors (JVMs) are killed at every step of a micro-batch."""

from pathlib import Path

import pytest

from tests.support.brokers import BrokerProcess
from tests.support.killed_steps import KILLS_S, STEP_KILLS, killed_at_every_step


@pytest.mark.spark
@pytest.mark.timeout(KILLS_S)
def test_executors_are_killed_at_every_step(broker: BrokerProcess, tmp_path: Path) -> None:
    killed_at_every_step(broker, tmp_path, "executor", "local-cluster[1,4,1024]", STEP_KILLS)
