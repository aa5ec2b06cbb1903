"""Worlds of synchronised metadata: how long they are, which of them are focused, and with which planted bug."""

import random
from collections.abc import Iterable, Iterator
from typing import Final

from magnetar_sim.host import outcomes
from magnetar_sim.host.outcomes import Outcome, outcome_of
from magnetar_sim.metadata_worlds.bugs import planted
from magnetar_sim.metadata_worlds.world import World

STEPS: Final = (15, 30, 60, 120)
"""How long worlds are."""

FOCUSED: Final = frozenset({"gc_by_age", "one_peer_confirms"})
"""Bugs whose worlds are `World.focus`ed."""

FOCUS_STEPS: Final = 240
"""How long those are: a deletion is confirmed, forgotten, and then a cluster comes that knows nothing of it."""

FOCUS_EVERY: Final = 4
"""Of so many worlds without a planted bug one is focused."""


def run_world(
    seed: int, *, bug: str = "", without: str = "", steps: int = 0, trace: list[str] | None = None
) -> Outcome:
    """Live through one world.

    Args:
        seed: of the world.
        bug: a planted one, see `BUGS`.
        without: the world of that planted bug, and no bug in it.
        steps: 0: by the seed.
        trace: what happened is appended here.
    """
    plant = bug or without
    # Worlds of both kinds take turns where no bug asks for one.
    focus = plant in FOCUSED if plant else seed % FOCUS_EVERY == 1
    with planted(bug):
        return outcome_of(seed, lambda: World(seed, trace, focus=focus).run(steps or _steps(seed, focus=focus)))


def _steps(seed: int, *, focus: bool) -> int:
    return FOCUS_STEPS if focus else int(random.Random(f"steps-{seed}").choice(STEPS))  # noqa: S311 - chance for tests


def run_many(seeds: Iterable[int], cores: int = 0) -> Iterator[Outcome]:
    """See `outcomes.run_many`."""
    return outcomes.run_many(run_world, seeds, cores)
