"""A takeover that is killed at every one of its steps, and a hand-over that is killed at every step, on either side."""

from collections import Counter

import pytest

from magnetar_sim.bookkeeper.takeover.bugs import planted
from magnetar_sim.bookkeeper.takeover.kills import Killed, Who, run_killed

SEEDS = (0, 1, 4)
"""A cluster of three brokers, one of two, and one of two with the same name."""

STEPS_MAX = 150

TAKING = {
    "owner", "owner-answer", "chain-read", "chain", "chain-answer", "open", "open-answer", "read", "create", "create-answer",
    "write", "sync", "sync-answer", "unlink", "unlink-answer", "close", "close-answer",
}  # fmt: skip
LEAVING = {"write", "sync", "sync-answer", "close", "close-answer", "session-end"}

LEAST: dict[Who, tuple[int, set[str]]] = {"taker": (40, TAKING), "heir": (40, TAKING), "leaver": (7, LEAVING)}
"""So many steps each kind of process has at least, and these kinds of them: 51 to 61, and 8 to 11, when this was written."""


def killed_at_every_step(seed: int, who: Who) -> list[Killed]:
    """One world for each step, and at the end the one in which the process had finished before it was killed."""
    worlds: list[Killed] = []
    while not worlds or worlds[-1].killed:
        assert len(worlds) < STEPS_MAX, f"seed {seed}, {who}: it has no end"
        worlds.append(run_killed(seed, who, len(worlds)))
    return worlds


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", LEAST)
def test_a_process_is_killed_at_every_step(who: Who, seed: int) -> None:
    """Nothing that was confirmed is lost, nothing is invented, and a broker serves at the end."""
    worlds = killed_at_every_step(seed, who)
    broken = [f"run_killed({seed}, {who!r}, {at}): {one.why}" for at, one in enumerate(worlds) if one.why]
    assert not broken, broken[:3]
    *killed, finished = worlds
    assert [len(one.steps) for one in killed] == list(range(1, len(killed) + 1)), "each world was killed one step later"
    assert [one.steps[-1] for one in killed] == list(finished.steps), "up to the kill it is one story"
    least, kinds = LEAST[who]
    assert len(killed) >= least, Counter(finished.steps)
    assert kinds <= set(finished.steps)


def test_a_rule_that_only_a_kill_at_some_steps_shows() -> None:
    """A file of states that is replaced in two changes of the chain is lost by a kill between them, and by no other one."""
    with planted("replaced_in_two_changes"):
        worlds = killed_at_every_step(0, "taker")
    found = [at for at, one in enumerate(worlds) if one.why]
    assert 1 <= len(found) <= 6
    assert found == list(range(found[0], found[-1] + 1))
    assert all("finds other states" in worlds[at].why for at in found)
