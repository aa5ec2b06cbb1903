"""Loggers that say nothing while worlds are lived through: in them, logs and stores fail all the time."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

QUIET: Final = ("magnetar.log", "magnetar.store")


@contextmanager
def quiet() -> Iterator[None]:
    """For as long as the block runs these loggers write nothing; afterwards they have their former levels."""
    loggers = [logging.getLogger(name) for name in QUIET]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)
