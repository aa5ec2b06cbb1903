"""Effectively once: drivers (a JVM and a Python process) are killed at every step of a micro-batch."""

from pathlib import Path

import pytest

from tests.support.brokers import BrokerProcess
from tests.support.killed_steps import KILLS_S, STEP_KILLS, killed_at_every_step


@pytest.mark.spark
@pytest.mark.timeout(KILLS_S)
def test_drivers_are_killed_at_every_step(broker: BrokerProcess, tmp_path: Path) -> None:
    killed_at_every_step(broker, tmp_path, "driver", "local[5,8]", STEP_KILLS)
