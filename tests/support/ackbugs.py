"""The planted bugs of exact mode: each is one rule left out of the real machines, and must be found by the world."""

import random

from tests.support.ackworld import World

STEPS = (20, 30, 60)


def run_world(seed: int, world: type[World] = World, steps: int | None = None) -> tuple[str, list[str]]:
    """Run one world; what it violated ("" if nothing), and its trace."""
    rng = random.Random(f"acks-{seed}")
    steps = steps or rng.choice(STEPS)
    trace: list[str] = []
    try:
        world(rng, trace).run(steps)
    except AssertionError as violation:
        return str(violation) or "assertion", trace
    return "", trace
