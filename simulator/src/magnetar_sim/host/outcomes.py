"""How worlds of one machine end: many on all cores, one with its story, the seed that finds a planted bug.

The modes `metadata` and `bookkeeper` are such worlds.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol

from magnetar_sim.host.processes import in_pieces

PIECE: Final = 100
"""Worlds that a process lives through before it reports, at most."""


class Outcome(NamedTuple):
    """How a world ended; `why` is "" when every promise held."""

    seed: int
    why: str


class RunWorld(Protocol):
    """Lives through one world."""

    def __call__(
        self, seed: int, *, bug: str = "", without: str = "", steps: int = 0, trace: list[str] | None = None
    ) -> Outcome:
        """How it ended.

        Args:
            seed: of the world.
            bug: a planted one is in it.
            without: the world of that planted bug, and no bug in it.
            steps: how long it is; 0: by the seed.
            trace: what happened is appended here.
        """


def outcome_of(seed: int, live: Callable[[], object]) -> Outcome:
    """How a world ends that `live` lives through."""
    try:
        live()
    except AssertionError as broken:
        return Outcome(seed, str(broken) or "an assertion of the product")
    except Exception as broken:  # noqa: BLE001 - a machine must not raise, whatever happens to it
        return Outcome(seed, f"{type(broken).__name__}: {broken}")
    return Outcome(seed, "")


def run_many(run_world: RunWorld, seeds: Iterable[int], cores: int = 0) -> Iterator[Outcome]:
    """Live through many worlds, on all cores (0) or so many."""
    return in_pieces(partial(_piece, run_world), seeds, cores, PIECE)


def _piece(run_world: RunWorld, seeds: list[int]) -> list[Outcome]:
    return [run_world(seed) for seed in seeds]


def find(run_world: RunWorld, bug: str, seeds: Iterable[int]) -> Outcome | None:
    """The first world that notices a planted bug and has nothing to say without it."""
    for seed in seeds:
        outcome = run_world(seed, bug=bug)
        if outcome.why and not run_world(seed, without=bug).why:
            return outcome
    return None


def command(mode: str, run_world: RunWorld, given: argparse.Namespace) -> int:
    """`python -m magnetar_sim` with `--mode` and this mode; the exit code."""
    seeds = range(given.first, given.first + given.seeds)
    if given.find:
        found = find(run_world, given.find, seeds)
        sys.stdout.write(f"{given.find}: {f'seed {found.seed}: {found.why}' if found else 'not noticed'}\n")
        return 0 if found else 1
    if given.seed is not None:
        trace: list[str] | None = [] if given.trace else None
        outcome = run_world(given.seed, bug=given.bug, steps=given.steps, trace=trace)
        sys.stdout.write("".join(f"{line}\n" for line in trace or ()))
        sys.stdout.write(f"seed {given.seed}: {outcome.why or 'every promise held'}\n")
        return 1 if outcome.why else 0
    began, done, broken = time.monotonic(), 0, 0
    for outcome in run_many(run_world, seeds, given.cores):
        done += 1
        if outcome.why:
            broken += 1
            sys.stdout.write(
                f"seed {outcome.seed}: {outcome.why} | python -m magnetar_sim --mode {mode} --seed {outcome.seed} --trace\n"
            )
            sys.stdout.flush()
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{done} worlds ({mode}), seeds {given.first} to {given.first + given.seeds - 1}, {broken} broken promises, "
        f"{seconds:.0f} s\n"
    )
    return 1 if broken else 0
