"""Waits at the start of a broker until enough bookies take entries.

Bookies register again some seconds after they or ZooKeeper were away. A broker that ended meanwhile would only be started again,
and its cluster would not serve until then.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import StorageError
from magnetar.runtime.bookkeeper.connecting import PATIENCE_S
from magnetar.runtime.broker_storage import GivenUp

logger = logging.getLogger("magnetar.broker")

BOOKIES_S: Final = 30.0
"""How long a start waits for bookies, as for ZooKeeper: longer than they need to register after a session of theirs has ended."""

LOOK_S: Final = 0.5
"""Between two looks whether the broker is still the owner."""


class EnoughBookies:
    """The wait of one broker.

    Args:
        needed: bookies of an ensemble.
        lost: the reason why this broker must not serve; empty: it may.
        bookies_s, patience_s: see `BOOKIES_S`, `connecting.PATIENCE_S`.
    """

    def __init__(
        self,
        needed: int,
        lost: Callable[[], str],
        bookies_s: float = BOOKIES_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._needed = needed
        self._lost = lost
        self._bookies_s = bookies_s
        self._patience_s = patience_s
        self._woken = threading.Event()
        self._given_up = False

    def changed(self) -> None:
        """The bookies have changed. May be called on any thread."""
        self._woken.set()

    def give_up(self) -> None:
        """Make `wait` end. May be called on any thread."""
        self._given_up = True
        self._woken.set()

    def wait(self, bookies: Callable[[], int], missing: Callable[[int], str]) -> None:
        """Wait.

        Args:
            bookies: how many take entries now.
            missing: one line for people; gets their number.

        Raises:
            StorageError: there were too few all the time, or another broker may serve.
            GivenUp: `give_up` was called.
        """
        began_s = time.monotonic()
        said = False
        while (number := bookies()) < self._needed:
            if self._given_up:
                raise GivenUp
            if reason := self._lost():
                raise StorageError(reason)
            waited_s = time.monotonic() - began_s
            if waited_s >= self._bookies_s:
                raise StorageError(missing(number))
            if waited_s >= self._patience_s and not said:
                said = True
                logger.warning("%s; the broker waits for %g s", missing(number), self._bookies_s)
            self._woken.wait(min(LOOK_S, self._bookies_s - waited_s))
            self._woken.clear()
