"""Processes that live through worlds at the same time."""

import gc
from multiprocessing import get_context
from multiprocessing.pool import Pool


def pool(cores: int) -> Pool:
    """Forked processes.

    They do not look for garbage of their parent. In a process of tests that may be a client of another library, with threads that
    a forked process does not have: its end would wait for them for ever.
    """
    return get_context("fork").Pool(cores, initializer=gc.freeze)
