"""SIGKILL at random moments: drivers (tests/support/random_kills.py)."""

import random
from typing import Any

import psutil

from tests.replication.conftest import Mesh
from tests.support.brokers import eventually
from tests.support.random_kills import MARKS, MOMENT, ROUNDS, a_moment, all_arrive
from tests.support.traffic import Flow
from tests.support.workers import below

pytestmark = MARKS


PHASES = ("works", "works", "connected", "java", "java")
"""When a driver is killed: it has moved messages; it talks to the brokers; it has started Java (which takes longest)."""


def await_phase(mesh: Mesh, phase: str, flows: tuple[Flow, Flow]) -> None:
    """Until the driver has come so far."""
    pipeline = mesh.pipeline
    assert pipeline.process is not None
    driver, port = psutil.Process(pipeline.process.pid), mesh["a"].pulsar_port
    if phase == "works":
        all_arrive(flows)
    elif phase == "connected":
        eventually(lambda: any(one.raddr and one.raddr.port == port for one in driver.net_connections()), within_s=60)
    else:
        eventually(lambda: below(pipeline, lambda words: words and words[0].endswith("java")), within_s=60)


def test_kills_of_drivers(mesh: Mesh, run_pipeline: Any, flows: tuple[Flow, Flow], chance: random.Random) -> None:
    pipeline = run_pipeline(name="drivers")
    phases = [PHASES[number % len(PHASES)] for number in range(ROUNDS)]
    chance.shuffle(phases)
    for phase in phases:
        await_phase(mesh, phase, flows)
        a_moment(chance, flows, MOMENT if phase == "works" else 5 * MOMENT)
        pipeline.kill()
        pipeline.start(wait=False)
    all_arrive(flows)
    for flow in flows:
        flow.finish(origin_kills=0)
