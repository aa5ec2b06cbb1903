"""The comparison of the modes counts what consumers did, and nothing that checkers have them do."""

import pytest

from magnetar_sim.checkers.base import Checker
from magnetar_sim.compare import MODES, compare, plain_world
from magnetar_sim.runner import steps_of
from magnetar_sim.world import World

SEEDS = range(12)


class AtRest(Checker):
    """The first one: counts what was acknowledged when nothing moved any more."""

    def verdict(self) -> None:
        self.context.happened["at rest"] = acknowledged(self.world)


def acknowledged(world: World) -> int:
    return sum(len(one.acked) for one in world.acks.shared.values())


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_acknowledged_behind_the_story(mode: str) -> None:
    seen = 0
    for seed in SEEDS:
        world = plain_world(seed, mode, AtRest)
        world.run(steps_of(seed))
        assert acknowledged(world) == world.context.happened["at rest"]
        seen += acknowledged(world)
    assert seen > 50, "worlds in which consumers acknowledge nothing compare nothing"


def test_both_modes_are_counted_on_the_same_seeds() -> None:
    found = compare(SEEDS, 1)
    assert not found["broken"]
    assert 0 < found["comparable"] <= found["seeds"] == len(SEEDS)
    assert found["more_in_snapshot"] + found["more_in_exact"] + found["equal"] == found["comparable"]
    exact, snapshot = (found["modes"][mode] for mode in MODES)
    assert 1 / 3 < exact["acknowledged"] / snapshot["acknowledged"] < 3, "the same consumers, as far as chance goes"
