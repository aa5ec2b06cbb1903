"""Planted bugs: one rule of the real code left out each, here and only here; the simulator has to notice."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.sim.world import World

BUGS: dict[str, type[World]] = {}


@contextmanager
def planted(bug: str) -> Iterator[type[World]]:
    """The kind of world in which a bug is planted; "" for the honest one."""
    yield World if not bug else BUGS[bug]
