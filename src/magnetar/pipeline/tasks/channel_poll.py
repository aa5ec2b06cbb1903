"""Waits for several connections with one selector that is kept: a new one for each wait costs three system calls more."""

import selectors
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Pollable(Protocol):
    """A connection, or anything else with a descriptor."""

    @property
    def wants_write(self) -> bool:
        """Whether to wait for room to write as well."""
        ...

    def fileno(self) -> int:
        """The descriptor; -1 once closed."""
        ...


P = TypeVar("P", bound=Pollable)


class ChannelPoll(Generic[P]):
    """A selector that follows the connections it is asked to wait for."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._known: dict[P, tuple[int, int]] = {}
        """Descriptor and events of each that is registered."""

    def wait(self, pollables: Iterable[P], timeout: float) -> list[tuple[P, bool, bool]]:
        """Wait until one is ready.

        Args:
            pollables: all of them, each time.
            timeout: seconds.

        Returns:
            (pollable, readable, writable) of each that can.
        """
        wanted: dict[P, tuple[int, int]] = {}
        for one in pollables:
            if (descriptor := one.fileno()) >= 0:
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
        return [
            (key.data, bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE))
            for key, events in self._selector.select(max(0.0, timeout))
        ]

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()
