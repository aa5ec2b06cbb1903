"""Choosing the topics and subscriptions with rows of their own in `/metrics`, so that no counter there ever falls.

There is a ceiling on rows; all others are counted together in one common row. A monitoring system takes a fall of a
counter for a restart, and counts the rest as new. Therefore:

    a topic with a row keeps it until it is gone, whatever other topics there are
    a topic that gets a row later, when one becomes free, begins at zero in it: its earlier counts stay in the common row
    a topic that ends without a row leaves its counts in the common row; a row of its own ends with the topic

Sums over all rows are right for everything that exists.
"""

from collections.abc import Callable, Mapping
from operator import add, sub
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")

Counted = tuple[int, ...]
"""Counters of one topic or subscription, none of which falls while it is there."""


class Traffic(NamedTuple):
    """Counters of a topic."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


class Shown(NamedTuple, Generic[Key]):
    """The result of reading the rows.

    Attributes:
        rows: key with a row -> its counts since it has the row.
        rest: counts of the common row; None: there is none yet.
        left_out: number of keys without a row.
    """

    rows: dict[Key, Counted]
    rest: Counted | None
    left_out: int


class Rows(Generic[Key]):
    """The keys with a row.

    Args:
        counters: number of counters of each.
    """

    def __init__(self, counters: int) -> None:
        self._zero: Counted = (0,) * counters
        self._since: dict[Key, Counted] = {}
        self._others: set[Key] = set()
        self._left: Counted | None = None

    def gone(self, key: Key, counted: Counted) -> None:
        """One is gone, with its final counts. While all have rows, one that was never shown leaves nothing."""
        if self._since.pop(key, None) is None and self._others:
            self._leave(counted)
            self._others.discard(key)

    def _leave(self, counted: Counted) -> None:
        self._left = tuple(map(add, self._left or self._zero, counted))

    def show(
        self, counted: Mapping[Key, Counted], most: int, may: Callable[[Key], bool] = lambda _key: True
    ) -> Shown[Key]:
        """Assign free rows and read all of them.

        Args:
            counted: the existing keys with their counts.
            most: a ceiling on rows.
            may: whether one may have a row.
        """
        since = self._since = {key: had for key, had in self._since.items() if key in counted}
        without: list[Key] = []
        for key, now in counted.items():
            if key in since:
                continue
            if len(since) >= most or not may(key):
                without.append(key)
            elif key in self._others:
                since[key] = now
                self._leave(now)
            else:
                since[key] = self._zero
        rest = self._left
        if without:
            rest = tuple(map(sum, zip(rest or self._zero, *map(counted.__getitem__, without), strict=True)))
        self._others = set(without)
        return Shown({key: tuple(map(sub, counted[key], had)) for key, had in since.items()}, rest, len(without))


SubscriptionKey = tuple[str, str]
"""A topic and the name of one of its subscriptions."""


class Series:
    """The rows of topics (`Traffic`) and of their subscriptions (messages and bytes sent)."""

    def __init__(self) -> None:
        self.topics: Rows[str] = Rows(len(Traffic._fields))
        self.subscriptions: Rows[SubscriptionKey] = Rows(2)

    def show(
        self,
        topics: Mapping[str, Traffic],
        subscriptions: Mapping[SubscriptionKey, Counted],
        topics_max: int,
        subscriptions_max: int,
    ) -> tuple[Shown[str], Shown[SubscriptionKey]]:
        """Read all rows; a subscription has none if its topic has none.

        Args:
            topics, subscriptions: all that exist.
            topics_max, subscriptions_max: ceilings on rows.
        """
        shown = self.topics.show(topics, topics_max)
        return shown, self.subscriptions.show(subscriptions, subscriptions_max, lambda key: key[0] in shown.rows)
