"""Back-off: how long to wait after failures in a row."""

from typing import Final

DOUBLINGS_MAX: Final = 32
"""A ceiling on the exponent: a million failures in a row must not make a number of a million digits."""


def pause(failures: int, least: float, most: float) -> float:
    """The pause after a number of failures in a row: it doubles and is bounded. It is an integer for integers.

    Args:
        failures: from 1 on.
        least: the pause after the first one, in any unit.
        most: the longest pause.
    """
    return min(least * (1 << min(max(failures - 1, 0), DOUBLINGS_MAX)), most)
