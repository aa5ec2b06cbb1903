"""Waits for several connections with one selector that is kept: a new one for each wait costs three system calls more."""

import selectors
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Generic, Protocol, TypeVar


class Pollable(Protocol):
    """A connection, or anything else with a descriptor.

    Attributes:
        wake_at: when it has to be called although nothing is ready, by the clock; `inf`: never.
    """

    @property
    def wake_at(self) -> float:
        """See above."""
        ...

    @property
    def wants_write(self) -> bool:
        """Whether to wait for room to write as well."""
        ...

    def fileno(self) -> int:
        """The descriptor; -1 once closed."""
        ...


class Poll(Protocol):
    """A way to wait for connections: `ChannelPoll`, or one that does other work meanwhile."""

    def wait(self, pollables: Iterable[Pollable], timeout: float) -> list[tuple[Pollable, bool, bool]]:
        """See `ChannelPoll.wait`."""
        ...

    def close(self) -> None:
        """It waits no more."""
        ...


P = TypeVar("P", bound=Pollable)


class ChannelPoll(Generic[P]):
    """A selector that follows the connections it is asked to wait for.

    Args:
        clock: seconds, monotonic; that of the pollables.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._known: dict[P, tuple[int, int]] = {}
        """Descriptor and events of each that is registered."""

    def wait(self, pollables: Iterable[P], timeout: float) -> list[tuple[P, bool, bool]]:
        """Wait until one is ready, or the time of one has come.

        Args:
            pollables: all of them, each time.
            timeout: seconds.

        Returns:
            (pollable, readable, writable) of each that can; both are False if its time has come and nothing is ready.
        """
        wanted: dict[P, tuple[int, int]] = {}
        wake_at = inf
        for one in pollables:
            if (descriptor := one.fileno()) >= 0:
                wake_at = min(wake_at, one.wake_at)
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.wants_write else 0)
                wanted[one] = (descriptor, events)
        for one, (descriptor, _) in self._known.items():
            if one not in wanted or wanted[one][0] != descriptor:
                self._selector.unregister(descriptor)
        for one, (descriptor, events) in wanted.items():
            before = self._known.get(one)
            if before is None or before[0] != descriptor:
                self._selector.register(descriptor, events, one)
            elif before[1] != events:
                self._selector.modify(descriptor, events, one)
        self._known = wanted
        if wake_at != inf:
            timeout = min(timeout, wake_at - self._clock())
        ready = [
            (key.data, bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE))
            for key, events in self._selector.select(max(0.0, timeout))
        ]
        if wake_at != inf:
            now, seen = self._clock(), {one for one, _, _ in ready}
            ready += [(one, False, False) for one in wanted if one.wake_at <= now and one not in seen]
        return ready

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()
