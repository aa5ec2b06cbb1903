"""Worlds of synchronised metadata: none breaks a promise, and every planted bug is noticed by its known seed."""

import os

import pytest

from magnetar.sim.metadata_bugs import BUGS
from magnetar.sim.metadata_runner import run_many, run_world

SEEDS = int(os.environ.get("MAGNETAR_SEEDS", "300"))

KNOWN = {
    "tie_by_local_name": 93,
    "apply_time": 3,
    "no_tombstones": 0,
    "gc_by_age": 0,
    "drop_ahead": 21,
    "wall_clock": 2,
    "clock_not_recovered": 11,
    "snapshot_restamped": 0,
    "parent_check": 22,
    "whole_value": 0,
    "unset_forgotten": 0,
    "no_prune": 0,
    "told_again": 0,
    "one_peer_confirms": 125,
    "no_value_check": 11,
    "fewer_partitions": 5,
    "nothing_kept": 47,
}


def test_worlds_keep_every_promise() -> None:
    broken = [outcome for outcome in run_many(range(SEEDS), cores=1) if outcome.why]
    assert not broken, broken[:3]


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_noticed(bug: str) -> None:
    assert run_world(KNOWN[bug], bug=bug).why


def test_a_seed_is_one_world() -> None:
    one: list[str] = []
    two: list[str] = []
    run_world(11, trace=one)
    run_world(11, trace=two)
    assert one == two
    assert one
