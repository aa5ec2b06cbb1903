"""Many worlds on all cores, one world with its story, and shorter versions of what fails."""

import gc
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from magnetar_sim.actions.wide import Wide
from magnetar_sim.bookkeeper.takeover.actions import Takeovers
from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.host.processes import in_pieces
from magnetar_sim.options import BY_SEED, STEPS, WorldOptions, focus_of
from magnetar_sim.planted.bugs import BUGS, planted
from magnetar_sim.world import Actions, World


class Outcome(NamedTuple):
    """How a world ended.

    Attributes:
        seed: of the world.
        why: the broken promise, "" if none.
        digest: of all bytes that brokers sent.
        events: handled by all brokers.
        happened: what took place, by kind, see `WorldContext.count`.
    """

    seed: int
    why: str
    digest: int
    events: int
    happened: dict[str, int]


def steps_of(seed: int, bug: str = "") -> int:
    """How long a world is; one about lost disks has to live long enough to lose several."""
    if not bug and focus_of(seed) == ("wipe",):
        return max(STEPS)
    return (BUGS[bug].steps if bug else 0) or int(random.Random(f"steps-{seed}").choice(STEPS))  # noqa: S311 - chance for tests


def run_world(
    seed: int,
    mode: str = "exact",
    *,
    steps: int = 0,
    bug: str = "",
    without: str = "",
    trace: list[str] | None = None,
    wide: bool = False,
    takeover: bool = False,
    batches: str = "",
) -> Outcome:
    """Live through one world.

    Args:
        seed, mode: which world.
        steps: instead of what the seed says.
        bug: a planted one, see `magnetar_sim.planted.bugs`.
        without: the world of that planted bug, and no bug in it.
        trace: what happened is appended here.
        wide: more is done, and more goes wrong, see `magnetar_sim.actions.wide`.
        takeover: clusters have several brokers each, see `magnetar_sim.bookkeeper.takeover`.
        batches: what carries the links, see `options.WorldOptions`; "": by the seed.
    """
    steps = steps or steps_of(seed, bug or without)
    plant = BUGS[bug or without] if bug or without else None
    options = plant.options if plant is not None else BY_SEED
    options = replace(options, wide=wide, takeover=takeover or options.takeover, batches=batches or options.batches)
    story = plant.story if plant is not None else None
    world: World | None = None
    why = ""
    with planted(bug):
        try:
            world = World(seed, mode, trace, options=options, checkers=CHECKERS)
            world.run(steps, story=story, more=more_of(options))
        except AssertionError as broken:
            why = str(broken) or f"an assertion of the product: {_where(broken)}"
        except Exception as broken:  # noqa: BLE001 - a machine must not raise, whatever happens to it
            why = f"{type(broken).__name__}: {broken} at {_where(broken)}"
    if world is None:
        return Outcome(seed, why, 0, 0, {})
    return Outcome(seed, why, world.context.digest, world.events, dict(world.context.happened))


def more_of(options: WorldOptions) -> Callable[[World], Actions] | None:
    """What is done in addition in a world with these options."""
    if options.takeover:
        return lambda world: Takeovers(world).actions()
    return (lambda world: Wide(world).actions()) if options.wide else None


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    place = "?"
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"  # noqa: PTH119
        trace = trace.tb_next
    return place


PIECE: Final = 50
"""Worlds that a process lives through before it reports, at most."""

COLLECT_EVERY: Final = 10
"""Worlds are full of circles, and nearly all of one lives as long as it does: to look for garbage between worlds costs a tenth of
looking for it within them, and a few tens of MB.
"""


def _piece(live: Callable[[int], Outcome], first: bool, seeds: list[int]) -> list[Outcome]:
    found = []
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            outcome = live(seed)
            found.append(outcome)
            if first and outcome.why:
                break
            if number % COLLECT_EVERY == COLLECT_EVERY - 1:
                gc.collect()
    finally:
        gc.enable()
    return found


def run_many(
    seeds: Iterable[int],
    mode: str = "exact",
    *,
    bug: str = "",
    cores: int = 0,
    first: bool = False,
    wide: bool = False,
    takeover: bool = False,
    batches: str = "",
) -> Iterator[Outcome]:
    """Live through many worlds, on all cores.

    Args:
        seeds, mode, bug: which.
        cores: 0 for all.
        first: each piece of the work ends with its first broken promise.
        wide, takeover, batches: as `run_world`.
    """
    live = partial(run_world, mode=mode, bug=bug, wide=wide, takeover=takeover, batches=batches)
    return in_pieces(partial(_piece, live, first), seeds, cores, PIECE)


def shorter(
    seed: int, mode: str, bug: str = "", *, wide: bool = False, takeover: bool = False, batches: str = ""
) -> int:
    """The fewest steps with which the world still breaks a promise; 0 if it does not at all."""
    live = partial(run_world, seed, mode, bug=bug, wide=wide, takeover=takeover, batches=batches)
    full = steps_of(seed, bug)
    best: int = full if live().why else 0
    if not best:
        return 0
    fewer: list[int] = [*range(2, 20, 2), *range(20, full, 8)]
    for steps in fewer:
        if steps < best and live(steps=steps).why:
            return steps
    return best


__all__ = ["BUGS", "STEPS", "Outcome", "run_many", "run_world", "shorter", "steps_of"]
