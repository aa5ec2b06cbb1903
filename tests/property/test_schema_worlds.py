"""Random worlds of links whose messages carry schemas: nothing lost, and everything is read with what it was written with.

`MAGNETAR_SEEDS=100000 pytest tests/property/test_schema_worlds.py` runs more of them. `python -c "from tests.support.schemaworld
import run_world; print(run_world(SEED))"` replays one.
"""

import os

import pytest

from tests.support.schemaworld import BUGS, run_world

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "600"))
CHUNKS = 3
SEARCH = 5_000
"""Seeds searched when a bug's known seed no longer finds it."""

KNOWN = {"AnyLife": 550, "KeepsForgotten": 61, "MissingForEver": 30, "TooEarly": 0, "TroubleIsNoTrouble": 113}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_rules_hold(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        why, trace = run_world(seed)
        if why:
            pytest.fail(f"seed {seed}: {why}\n" + "\n".join(trace))


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    assert any(run_world(seed, BUGS[bug])[0] for seed in [KNOWN[bug], *range(SEARCH)]), f"{bug}: nothing notices"


@pytest.mark.parametrize("bug", BUGS)
def test_without_the_bug_the_same_seed_is_fine(bug: str) -> None:
    why, trace = run_world(KNOWN[bug])
    assert not why, "\n".join(trace)
