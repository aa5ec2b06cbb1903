"""Keeps Python's cyclic garbage collector from stopping the broker for long.

A full collection walks through every container object in the process: 225 ms with ten thousand topics, again whenever their
number grew by a quarter, and the broker serves no client meanwhile. New objects are expensive as well when they are no longer in
the processor's caches: each container, and each that it refers to, then costs cache misses of 2 us, and 20,000 took 20 to 30 ms.

So objects that survive their first collection, some 700 containers after they were made and still in the caches, are moved out of
the collector's sight (`gc.freeze`). That takes half a millisecond at a time, 1.4 at most. A frozen object is still freed when its
last reference goes; only reference cycles wait for a *complete* collection. Objects of the broker that come and go often form
no cycles: connections, producers, subscriptions (`tests/unit/broker/session/test_connections.py`).

A complete collection is due when the process has grown or a long time has passed. It then waits for a moment in which hardly any
client sends anything: growth that is mostly new topics needs no collection, and a broker that just grew is busy. It does not
wait when the process has grown so far that cycles could be the reason.
"""

import gc
import time
from collections.abc import Callable
from typing import Final

from magnetar.runtime.interpreter.memory import resident_bytes

CHECK_S: Final = 10.0
"""Time between two checks of the memory."""

GROWN_BYTES: Final = 64 * 1024 * 1024
"""Growth since the last complete collection that may be cycles: more than an allocator's noise, too little to be missed."""

GROWN_PART: Final = 4
"""The process must also have grown by one part in this many: the more there is to walk, the rarer are complete collections."""

COMPLETE_S: Final = 3_600.0
"""A complete look is due after this time in any case."""

CALM_S: Final = 0.25
"""How long a calm moment is, as long as a look takes."""

CALM_RECEIVES: Final = 10
"""Receives from all clients that a calm moment may have: the pings of a thousand idle ones."""

URGENT_BYTES: Final = 256 * 1024 * 1024
"""When a process has doubled and grown by this in addition, a complete collection waits for no calm moment."""


class Collector:
    """The policy of one process.

    Args:
        later: calls something after a number of seconds (`loop.call_later`).
        received: how often data came from a client until now.
        resident: memory of the process, bytes; 0 when it is unknown: then only the hour counts.
        clock: seconds.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object],
        received: Callable[[], int],
        resident: Callable[[], int] = resident_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._later = later
        self._received = received
        self._resident = resident
        self._clock = clock
        self._running = False
        self._base_bytes = 0
        self._complete_s = 0.0

    def start(self) -> None:
        """Keep watch. What is there now stays, as what a broker has loaded: to look through 100,000 topics takes a second."""
        self._running = True
        gc.callbacks.append(self._looked)
        gc.freeze()
        self._begin()
        self._later(CHECK_S, self._check)

    def stop(self) -> None:
        """Leave everything to Python again."""
        if self._running:
            self._running = False
            gc.callbacks.remove(self._looked)
            gc.unfreeze()

    def _looked(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "stop":
            gc.freeze()

    def _complete(self) -> None:
        gc.unfreeze()
        gc.collect()
        self._begin()

    def _begin(self) -> None:
        self._base_bytes = self._resident()
        self._complete_s = self._clock()

    def _check(self) -> None:
        if not self._running:
            return
        grown = self._resident() - self._base_bytes
        if grown > URGENT_BYTES + self._base_bytes:
            self._complete()
        elif grown > GROWN_BYTES + self._base_bytes // GROWN_PART or self._clock() - self._complete_s > COMPLETE_S:
            before = self._received()
            self._later(CALM_S, lambda: self._complete_if_calm(before))
            return
        self._later(CHECK_S, self._check)

    def _complete_if_calm(self, before: int) -> None:
        if not self._running:
            return
        if self._received() - before <= CALM_RECEIVES:
            self._complete()
        self._later(CHECK_S, self._check)
