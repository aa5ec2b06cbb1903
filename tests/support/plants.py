"""What the worlds of one machine prove with planted bugs: each fits the code, and is noticed."""

import inspect
import pkgutil
from collections.abc import Callable, Iterable

from magnetar_sim.host.outcomes import RunWorld
from magnetar_sim.host.patches import Patches


def check_noticed(run_world: RunWorld, bug: str, seeds: Iterable[int]) -> None:
    """The first of these worlds that notices a planted bug has nothing to say without it.

    Raises:
        AssertionError: it has, or no world notices the bug.
    """
    for seed in seeds:
        if why := run_world(seed, bug=bug).why:
            assert not why.startswith("TypeError"), f"the plant does not fit the code: {seed}: {why}"
            assert not run_world(seed, without=bug).why, f"without the bug seed {seed} is fine"
            return
    raise AssertionError(f"{bug}: a rule is missing and nothing notices")


def check_fits(patches: Patches) -> None:
    """What a plant replaces is still there, under that name, and is called in that way: a TypeError would pass for found.

    Raises:
        AttributeError, ImportError, TypeError: it is not.
    """
    for name, replacement in patches.items():
        real = pkgutil.resolve_name(name)
        if inspect.isfunction(real) and inspect.isfunction(replacement):
            places, names = _arguments(real)
            inspect.signature(replacement).bind(*places, **names)


def _arguments(function: Callable[..., object]) -> tuple[list[None], dict[str, None]]:
    """What a function must be given, in their places and by name."""
    in_places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    by_name = {one.name: None for one in wanted if one.kind is inspect.Parameter.KEYWORD_ONLY}
    return [None for one in wanted if one.kind in in_places], by_name
