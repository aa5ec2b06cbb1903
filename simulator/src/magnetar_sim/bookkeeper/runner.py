"""Worlds of one ledger: how long they are, of which kind, and with which planted bug."""

import random
from collections.abc import Iterable, Iterator
from typing import Final

from magnetar_sim.bookkeeper.bugs import BUGS, planted
from magnetar_sim.bookkeeper.world import World
from magnetar_sim.host import outcomes
from magnetar_sim.host.outcomes import Outcome, outcome_of

STEPS: Final = (10, 25, 50, 100)
"""How long worlds are."""


def run_world(
    seed: int,
    *,
    bug: str = "",
    without: str = "",
    kind: str = "",
    steps: int = 0,
    trace: list[str] | None = None,
) -> Outcome:
    """Live through one world.

    Args:
        seed: of the world.
        bug: a planted one, see `BUGS`; its worlds are of its kind.
        without: the world of that planted bug, and no bug in it.
        kind: of the world; "": by the bug, or by the seed.
        steps: 0: by the seed.
        trace: what happened is appended here.
    """
    if bug or without:
        kind = kind or BUGS[bug or without].kind
    length = steps or random.Random(f"steps-{seed}").choice(STEPS)  # noqa: S311 - chance for tests
    with planted(bug):
        return outcome_of(seed, lambda: World(seed, trace, kind).run(length))


def run_many(seeds: Iterable[int], cores: int = 0) -> Iterator[Outcome]:
    """See `outcomes.run_many`."""
    return outcomes.run_many(run_world, seeds, cores)
