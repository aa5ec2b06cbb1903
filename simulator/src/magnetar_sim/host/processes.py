"""Processes that live through worlds at the same time."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool
from typing import TypeVar

Result = TypeVar("Result")


def pool(cores: int) -> Pool:
    """Forked processes.

    They do not look for garbage of their parent. In a process of tests that may be a client of another library, with threads that
    a forked process does not have: its end would wait for them for ever.
    """
    return get_context("fork").Pool(cores, initializer=gc.freeze)


def in_pieces(
    live: Callable[[list[int]], list[Result]], seeds: Iterable[int], cores: int, largest: int
) -> Iterator[Result]:
    """What becomes of worlds, in any order.

    Args:
        live: lives through the worlds of a piece of the seeds. It is called in other processes.
        seeds: of all worlds.
        cores: how many processes; 0: one for each core. With 1 it is this process.
        largest: how many seeds a piece has at most. It has fewer if each process would get less than four pieces.
    """
    every = list(seeds)
    cores = cores or os.cpu_count() or 1
    size = min(largest, len(every) // (cores * 4) or 1)
    pieces = [every[at : at + size] for at in range(0, len(every), size)]
    if cores == 1 or len(pieces) == 1:
        for piece in pieces:
            yield from live(piece)
        return
    with pool(cores) as processes:
        for outcomes in processes.imap_unordered(live, pieces):
            yield from outcomes
