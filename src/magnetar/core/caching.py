"""A cache that is bounded by the total cost of its entries, not by their number, because clients decide how large an
entry is.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

ENTRY_BYTES = 200
"""The cost of one entry in addition to its key and value: the slots and numbers in two dictionaries."""


class CostCache(Generic[Key, Value]):
    """A least-recently-used cache whose entries together cost at most `bytes_max`. A value that costs more is made and
    not kept.

    Args:
        bytes_max: limit on the total cost.
        make: a value from its key; what it raises is not kept.
        cost: bytes of a key and its value.
    """

    def __init__(self, bytes_max: int, make: Callable[[Key], Value], cost: Callable[[Key, Value], int]) -> None:
        self._bytes_max = bytes_max
        self._make = make
        self._cost = cost
        self._values: dict[Key, Value] = {}
        self._costs: dict[Key, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def __call__(self, key: Key) -> Value:
        """The value of a key, made if it is not there."""
        value = self._values.pop(key, None)
        if value is None:
            value = self._make(key)
            cost = self._cost(key, value) + ENTRY_BYTES
            if cost > self._bytes_max:
                return value
            self._costs[key] = cost
            self.bytes += cost
        self._values[key] = value  # last again
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._values))
            del self._values[oldest]
            self.bytes -= self._costs.pop(oldest)
        return value

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
        self._costs.clear()
        self.bytes = 0
