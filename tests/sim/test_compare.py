"""The comparison of the modes counts what consumers did, and nothing that checkers have them do."""

import pytest

from magnetar_sim.compare import MODES, PlainWorld, compare
from magnetar_sim.runner import steps_of

SEEDS = range(12)


class Watched(PlainWorld):
    """Remembers what was acknowledged when nothing moved any more."""

    acknowledged: int | None = None

    def calm(self) -> None:
        super().calm()
        if self.acknowledged is None:
            self.acknowledged = sum(len(one.acked) for one in self.acks.shared.values())


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_acknowledged_behind_the_story(mode: str) -> None:
    seen = 0
    for seed in SEEDS:
        world = Watched(seed, mode)
        world.run(steps_of(seed))
        assert sum(len(one.acked) for one in world.acks.shared.values()) == world.acknowledged
        seen += world.acknowledged or 0
    assert seen > 50, "worlds in which nobody acknowledges compare nothing"


def test_both_modes_are_counted_on_the_same_seeds() -> None:
    found = compare(SEEDS, 1)
    assert not found["broken"]
    assert 0 < found["comparable"] <= found["seeds"] == len(SEEDS)
    assert found["more_in_snapshot"] + found["more_in_exact"] + found["equal"] == found["comparable"]
    exact, snapshot = (found["modes"][mode] for mode in MODES)
    assert 1 / 3 < exact["acknowledged"] / snapshot["acknowledged"] < 3, "the same consumers, as far as chance goes"
