"""Worlds of one cluster of several brokers, without links: how long they are, and with which planted bug."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from magnetar_sim.bookkeeper.takeover.actions import Takeovers
from magnetar_sim.bookkeeper.takeover.bugs import BUGS, planted
from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.host import outcomes
from magnetar_sim.host.outcomes import Outcome, outcome_of
from magnetar_sim.options import WorldOptions
from magnetar_sim.world import World

STEPS: Final = (24, 48, 96)
"""How long worlds are."""

ALONE: Final = WorldOptions(alone=True, takeover=True, focus=(), batches="short")


def run_world(
    seed: int, *, bug: str = "", without: str = "", steps: int = 0, trace: list[str] | None = None
) -> Outcome:
    """Live through one world. See `outcomes.RunWorld`."""
    length = steps or random.Random(f"steps-{seed}").choice(STEPS)  # noqa: S311 - chance for tests
    focus = BUGS[bug or without].focus if bug or without else ()

    def live() -> None:
        world = World(seed, "exact", trace, options=replace(ALONE, focus=focus), checkers=CHECKERS)
        world.run(length, more=lambda world: Takeovers(world).actions())

    with planted(bug):
        return outcome_of(seed, live)


def run_many(seeds: Iterable[int], cores: int = 0) -> Iterator[Outcome]:
    """See `outcomes.run_many`."""
    return outcomes.run_many(run_world, seeds, cores)
