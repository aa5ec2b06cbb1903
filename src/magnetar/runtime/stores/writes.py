"""Writes that wait for a store's thread, in the order in which they came."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import StorageError
from magnetar.metadata.store import VersionConflict

logger = logging.getLogger("magnetar.store")

GROUP_MAX: Final = 1000
"""Back-pressure: at most this number of writes share a commit, so that the first of them does not wait too long."""


Done = Callable[[VersionConflict | StorageError | None], None]
"""Called when a write is done, with None or the error."""


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction that waits.

    Attributes:
        puts, deletes, expected: see `metadata.store.Store.apply`.
        done: see `Done`.
    """

    puts: Mapping[str, bytes]
    deletes: tuple[str, ...]
    expected: Mapping[str, int] | None
    done: Done


class Writes:
    """The queue between a store's callers and its thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._ended = False

    def apply(self, puts: Mapping[str, bytes], deletes: tuple[str, ...], expected: Mapping[str, int] | None) -> None:
        """Wait until a write is done.

        Raises:
            VersionConflict, StorageError: see `metadata.store.Store.apply`.
        """
        wait_for(lambda done: self._queue.put(Write(dict(puts), deletes, expected, done)))

    def submit(self, puts: Mapping[str, bytes], deletes: tuple[str, ...], done: Callable[[str], None]) -> None:
        """Queue a write; `done` gets the error, or no text."""
        self._queue.put(Write(puts, deletes, None, as_text(done)))

    def end(self) -> None:
        """No more writes come."""
        self._queue.put(None)

    def take(self) -> list[Write]:
        """Wait for a write, and take all that wait then: `GROUP_MAX` at most, and none after the first one with `expected`.

        An empty list means that `end` was called and all writes were taken.
        """
        group: list[Write] = []
        while not self._ended:
            write = self._queue.get()
            if write is None:
                self._ended = True
                break
            group.append(write)
            if write.expected is not None or len(group) >= GROUP_MAX or self._queue.empty():
                break
        return group


def wait_for(submit: Callable[[Done], None]) -> None:
    """Submit a write, and wait until the store's thread has called its `Done`.

    Raises:
        VersionConflict, StorageError: see `metadata.store.Store.apply`.
    """
    answered = threading.Event()
    failures: list[VersionConflict | StorageError | None] = []

    def done(failure: VersionConflict | StorageError | None) -> None:
        failures.append(failure)
        answered.set()

    submit(done)
    answered.wait()
    if failures[0] is not None:
        raise failures[0]


def as_text(done: Callable[[str], None]) -> Done:
    """A callback that gets the text of the error, or no text."""
    return lambda failure: done(str(failure or ""))


def answer(done: Done, failure: VersionConflict | StorageError | None) -> None:
    """Call `done`. A callback that fails is a bug of its owner, and must not end the store's thread."""
    try:
        done(failure)
    except Exception as error:
        logger.critical("the callback of a write raised %s", type(error).__name__, exc_info=error)
