"""Random worlds around the real machines of exact mode: no invention at any step, convergence and silence in the end.

`MAGNETAR_SEEDS=20000 pytest tests/property/test_ackworld.py` runs more of them. A failure prints its seed and story;
`python -c "from tests.support.ackbugs import run_world; print(run_world(SEED))"` replays it exactly.
"""

import os

import pytest

from tests.support.ackbugs import run_world

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "200"))
CHUNKS = 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_rules_hold(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        why, trace = run_world(seed)
        if why:
            pytest.fail(f"seed {seed}: {why}\n" + "\n".join(trace))


def test_a_world_replays_exactly() -> None:
    for seed in range(5):
        assert run_world(seed) == run_world(seed)
