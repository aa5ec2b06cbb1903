"""Random worlds around the real link machines where long batches carry: once, in order, complete but for declared gaps.

`MAGNETAR_SEEDS=100000 pytest tests/property/test_fetch_worlds.py` runs more of them. A failure prints its seed and story.
"""

import os

import pytest

from tests.support.fetchbugs import FETCH_BUGS, FETCH_KNOWN, find_fetch_bug
from tests.support.fetchworld import FetchWorld
from tests.support.linkbugs import run_world

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "4000")) // 8
CHUNKS = 4
SEARCH = 3_000
"""Seeds searched when a bug's known seed no longer finds it, because the real code or the world draws chance differently."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_rules_hold_with_long_batches(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        why, trace = run_world(seed, FetchWorld)
        if why:
            pytest.fail(f"seed {seed}: {why}\n" + "\n".join(trace))


def test_a_world_replays_exactly_and_carries_much() -> None:
    stories = [run_world(seed, FetchWorld) for seed in range(40)]
    assert stories == [run_world(seed, FetchWorld) for seed in range(40)]
    said = [line for _, trace in stories for line in trace]
    for what in (
        "got [(",
        "compared, W",
        "no luck with",
        "loses its connection",
        "is going to rewind",
        "older disk",
        "driver p",
    ):
        assert any(what in line for line in said), f"no world had: {what}"


@pytest.mark.parametrize("bug", FETCH_BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    known = FETCH_KNOWN[bug]
    found = find_fetch_bug(bug, [known, *range(SEARCH)])
    assert found is not None, f"{bug}: a rule is missing and nothing notices"


@pytest.mark.parametrize("bug", FETCH_BUGS)
def test_without_the_bug_the_same_seed_is_fine(bug: str) -> None:
    why, trace = run_world(FETCH_KNOWN[bug], FetchWorld)
    assert not why, "\n".join(trace)
