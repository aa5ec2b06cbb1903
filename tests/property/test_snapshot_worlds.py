"""Random worlds around the real machine of snapshot mode: nothing invented, no seek undone, the tail told, then silence.

`MAGNETAR_SEEDS=20000 pytest tests/property/test_snapshot_worlds.py` runs more of them. A failure prints its seed and story;
`python -c "from tests.support.snapworld import OneWayWorld, run_world; print(run_world(SEED))"` replays it exactly.
"""

import os
from unittest.mock import patch

import pytest

from tests.support.snapbugs import BUGS, KNOWN, find
from tests.support.snapworld import OneWayWorld, run_world

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "240"))
CHUNKS = 8
SEARCH = 3000
"""Seeds searched when a bug's known seed no longer finds it, because the real code or the world draws chance differently."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_rules_hold(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        why, trace = run_world(seed)
        if why:
            pytest.fail(f"seed {seed}: {why}\n" + "\n".join(trace))


@pytest.mark.parametrize("chunk", range(2))
def test_rules_hold_where_links_lead_one_way(chunk: int) -> None:
    for seed in range(chunk, SEEDS // 2, 2):
        why, trace = run_world(seed, OneWayWorld)
        if why:
            pytest.fail(f"seed {seed}: {why}\n" + "\n".join(trace))


def test_a_link_that_is_taken_away_has_to_be_noticed() -> None:
    with patch("magnetar.replication.snapshots.machine.Snapshots.routes_changed", lambda _self: None):
        assert any(run_world(seed, OneWayWorld)[0] for seed in (13, *range(300)))


def test_a_world_replays_exactly() -> None:
    for seed in range(10):
        assert run_world(seed) == run_world(seed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    assert find(bug, [KNOWN[bug]]) or find(bug, range(SEARCH)), f"{bug}: a rule is missing and nothing notices"


@pytest.mark.parametrize("bug", [bug for bug, world in BUGS.items() if world.patches])
def test_without_the_bug_the_same_seed_is_fine(bug: str) -> None:
    why, trace = run_world(KNOWN[bug], BUGS[bug], BUGS[bug].steps)
    assert not why, "\n".join(trace)
