"""Which topics and subscriptions have rows of their own in `/metrics`, so that no counter there ever falls.

There is a ceiling on rows; what all others count is in one row together. For whoever watches a counter a fall is a restart, and
everything that is left counts as new. Therefore

    who has a row keeps it until it is gone, however many come and whatever their names
    who is given a row later, when one becomes free, begins at zero in it: what it had counted stays in the common row
    who is gone without a row leaves what it counted in the common row; a row of its own ends with it

Sums over all rows are right for everything that is there.
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
    """What one look at the rows found.

    Attributes:
        rows: who has a row -> what it counted since.
        rest: what is counted in the common row; None: there is none yet.
        left_out: how many have no row.
    """

    rows: dict[Key, Counted]
    rest: Counted | None
    left_out: int


class Rows(Generic[Key]):
    """Who has a row.

    Args:
        counters: how many each has.
    """

    def __init__(self, counters: int) -> None:
        self._zero: Counted = (0,) * counters
        self._since: dict[Key, Counted] = {}
        self._others: set[Key] = set()
        self._left: Counted | None = None

    def gone(self, key: Key, counted: Counted) -> None:
        """One is gone, with what it had counted at last. While all have rows, one that nobody ever looked at leaves nothing."""
        if self._since.pop(key, None) is None and self._others:
            self._leave(counted)
            self._others.discard(key)

    def _leave(self, counted: Counted) -> None:
        self._left = tuple(map(add, self._left or self._zero, counted))

    def show(
        self, counted: Mapping[Key, Counted], most: int, may: Callable[[Key], bool] = lambda _key: True
    ) -> Shown[Key]:
        """Give out the rows that are free and read all of them.

        Args:
            counted: who is there, with what each has counted.
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
        """Read all rows; a subscription has none where its topic has none.

        Args:
            topics, subscriptions: everything that is there.
            topics_max, subscriptions_max: ceilings on rows.
        """
        shown = self.topics.show(topics, topics_max)
        return shown, self.subscriptions.show(subscriptions, subscriptions_max, lambda key: key[0] in shown.rows)
