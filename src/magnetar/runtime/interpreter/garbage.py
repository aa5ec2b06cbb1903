"""Python's cyclic collector, kept from stopping the broker for long.

A full look walks through every container in the process: 225 ms with ten thousand topics, again whenever their number grew
by a quarter, and nobody is served meanwhile. Even what is new is no trifle when it has been lying about: each container, and
each that it refers to, is a miss of the processor's caches by then, 2 us of them, and 20,000 were 20 to 30 ms.

So what survives its first look, some 700 containers after it was made and as good as warm, is set aside (`gc.freeze`), and
looked at no more: half a millisecond at a time, 1.4 at most. What is set aside still goes when its last reference does;
only circles in it wait, for a *complete* look. The broker leaves none of those that come often: connections, producers,
subscriptions (`tests/unit/broker/session/test_connections.py`).

A complete look is due when the process has grown or a long time has passed. It then waits for a moment in which hardly
anybody sends anything: growth that is mostly new topics needs none, and a broker that just grew is one that is used. It waits
no longer when the process has grown by so much that circles could be what fills it.
"""

import gc
import time
from collections.abc import Callable
from typing import Final

from magnetar.runtime.interpreter.memory import resident_bytes

CHECK_S: Final = 10.0
"""Between two looks at the memory."""

GROWN_BYTES: Final = 64 * 1024 * 1024
"""Growth since the last complete look that may be circles: more than the noise of an allocator, less than anybody misses."""

GROWN_PART: Final = 4
"""Beside it the process must have grown by one part in so many: with more to walk through, complete looks are rarer."""

COMPLETE_S: Final = 3_600.0
"""A complete look is due after this time in any case."""

CALM_S: Final = 0.25
"""How long a calm moment is, as long as a look takes."""

CALM_RECEIVES: Final = 10
"""What may come in from all clients in a calm moment: the pings of a thousand idle ones."""

URGENT_BYTES: Final = 256 * 1024 * 1024
"""Growth, beside as much as the process was large, that waits for no calm moment."""


class Collector:
    """The policy of one process.

    Args:
        later: calls something after so many seconds (`loop.call_later`).
        received: how often something came from a client so far.
        resident: memory of the process, bytes; 0 when nobody knows, which leaves the hour.
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
        """Look completely, and keep watch."""
        self._running = True
        gc.callbacks.append(self._looked)
        self._complete()
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
