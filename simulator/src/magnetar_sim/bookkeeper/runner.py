"""Many worlds of a ledger on all cores, one with its story, and seeds that find planted bugs."""

import argparse
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from magnetar_sim.bookkeeper.bugs import BUGS, planted
from magnetar_sim.bookkeeper.world import World
from magnetar_sim.host.processes import pool

STEPS: Final = (10, 25, 50, 100)
"""How long worlds are."""


class Outcome(NamedTuple):
    """How a world ended; `why` is "" when every promise held."""

    seed: int
    why: str


def run_world(seed: int, *, bug: str = "", kind: str = "", steps: int = 0, trace: list[str] | None = None) -> Outcome:
    """Live through one world; a planted bug may be in it.

    Args:
        seed: of the world.
        bug: see `BUGS`; its worlds are of its kind.
        kind: of the world; "": by the bug, or by the seed.
        steps: 0: by the seed.
        trace: what happened is appended here.
    """
    kind = kind or (BUGS[bug].kind if bug else "")
    length = steps or random.Random(f"steps-{seed}").choice(STEPS)  # noqa: S311 - chance for tests
    with planted(bug):
        try:
            World(seed, trace, kind).run(length)
        except AssertionError as broken:
            return Outcome(seed, str(broken) or "an assertion of the product")
        except Exception as broken:  # noqa: BLE001 - a machine must not raise, whatever happens to it
            return Outcome(seed, f"{type(broken).__name__}: {broken}")
    return Outcome(seed, "")


def _batch(seeds: list[int]) -> list[Outcome]:
    return [run_world(seed) for seed in seeds]


def run_many(seeds: Iterable[int], cores: int = 0) -> Iterator[Outcome]:
    """Live through many worlds, on all cores (0) or so many."""
    every = list(seeds)
    cores = cores or os.cpu_count() or 1
    size = max(1, min(100, len(every) // (cores * 4) or 1))
    pieces = [every[at : at + size] for at in range(0, len(every), size)]
    if cores == 1 or len(pieces) == 1:
        for piece in pieces:
            yield from _batch(piece)
        return
    with pool(cores) as processes:
        for outcomes in processes.imap_unordered(_batch, pieces):
            yield from outcomes


def find(bug: str, seeds: Iterable[int]) -> Outcome | None:
    """The first world that notices a planted bug and has nothing to say without it."""
    for seed in seeds:
        outcome = run_world(seed, bug=bug)
        if outcome.why and not run_world(seed, kind=BUGS[bug].kind).why:
            return outcome
    return None


def main(given: argparse.Namespace) -> int:
    """`python -m magnetar_sim --mode bookkeeper`; the exit code."""
    seeds = range(given.first, given.first + given.seeds)
    if given.find:
        found = find(given.find, seeds)
        sys.stdout.write(f"{given.find}: {f'seed {found.seed}: {found.why}' if found else 'not noticed'}\n")
        return 0 if found else 1
    if given.seed is not None:
        trace: list[str] | None = [] if given.trace else None
        outcome = run_world(given.seed, bug=given.bug, steps=given.steps, trace=trace)
        sys.stdout.write("".join(f"{line}\n" for line in trace or ()))
        sys.stdout.write(f"seed {given.seed}: {outcome.why or 'every promise held'}\n")
        return 1 if outcome.why else 0
    began, done, broken = time.monotonic(), 0, 0
    for outcome in run_many(seeds, given.cores):
        done += 1
        if outcome.why:
            broken += 1
            sys.stdout.write(
                f"seed {outcome.seed}: {outcome.why} | python -m magnetar_sim --mode bookkeeper --seed {outcome.seed} --trace\n"
            )
            sys.stdout.flush()
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{done} worlds (bookkeeper), seeds {given.first} to {given.first + given.seeds - 1}, {broken} broken promises, "
        f"{seconds:.0f} s\n"
    )
    return 1 if broken else 0
