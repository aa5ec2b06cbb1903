"""Worlds of whole brokers whose producers bring schemas: everything is read as it was written, and every other promise holds.

`MAGNETAR_SIM_SCHEMA_SEEDS=500` runs more.
"""

import os
from collections import Counter

import pytest

from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.options import WorldOptions
from magnetar_sim.world import World

SEEDS = int(os.environ.get("MAGNETAR_SIM_SCHEMA_SEEDS", "8"))
STEPS = 150


def test_read_as_written() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        trace: list[str] = []
        mode = ("exact", "snapshot")[seed % 2]
        world = World(seed, mode, trace, options=WorldOptions(schemas=True), checkers=CHECKERS)
        try:
            world.run(STEPS)
        except AssertionError as broken:
            pytest.fail(f"seed {seed}: {broken}\n" + "\n".join(trace[-40:]))
        happened.update(world.context.happened.keys())
    for what in ("schema wanted", "read as written", "read elsewhere as written"):
        assert happened[what] >= SEEDS // 2, f"{what}: only in {happened[what]} worlds of {SEEDS}"
