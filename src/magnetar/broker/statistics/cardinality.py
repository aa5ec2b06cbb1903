"""Choosing the topics and subscriptions with rows of their own in `/metrics`, so that no counter there ever falls.

There is a ceiling on rows; all others are counted together in one common row. A monitoring system takes a fall of a
counter for a restart, and counts the rest as new. Therefore:

    a topic with a row keeps it until it is gone, whatever other topics there are
    a topic that gets a row later, when one becomes free, begins at zero in it: its earlier counts stay in the common row
    a topic that ends without a row leaves its counts in the common row; a row of its own ends with the topic

Sums over all rows are right for everything that exists.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Reading(Generic[Key]):
    """One reading of all keys, which may take several steps.

    Attributes:
        most: a ceiling on rows.
        exists: whether a key is still there.
        rows: the rows so far.
        idle: number of keys so far that have no row and counted nothing.
        others: number of keys so far that have no row and counted something.
    """

    most: int
    exists: Callable[[Key], bool]
    rows: dict[Key, Counted] = field(default_factory=dict)
    idle: int = 0
    others: int = 0


class Rows(Generic[Key]):
    """The keys with a row. They are read one by one between `begin` and `end`; between two keys anything may happen.

    A key without a row that did not change since the last reading costs one comparison: the sum of these keys is kept.

    Args:
        counters: number of counters of each.
    """

    def __init__(self, counters: int) -> None:
        self._zero: Counted = (0,) * counters
        self._since: dict[Key, Counted] = {}
        self._others: dict[Key, Counted] = {}
        """Keys without a row that counted something, as they were read last."""
        self._rest = self._zero
        """The sum of these."""
        self._idle = 0
        """Keys without a row that counted nothing, in the last reading."""
        self._left: Counted | None = None
        self._reading: _Reading[Key] | None = None

    def gone(self, key: Key, counted: Counted) -> None:
        """One is gone, with its final counts. While all have rows, one that was never shown leaves nothing."""
        reading = self._reading
        without = self._others or self._idle or (reading is not None and reading.idle)
        if self._since.pop(key, None) is None and without:
            self._left = self._plus(self._left or self._zero, counted)
        self._forget(key)
        if reading is not None:
            reading.rows.pop(key, None)

    def _forget(self, key: Key) -> None:
        """A key no longer counts among those without a row."""
        if (read := self._others.pop(key, None)) is not None:
            self._rest = self._minus(self._rest, read)

    @staticmethod
    def _plus(one: Counted, other: Counted) -> Counted:
        return tuple(map(add, one, other))

    @staticmethod
    def _minus(one: Counted, other: Counted) -> Counted:
        return tuple(map(sub, one, other))

    def begin(self, most: int, exists: Callable[[Key], bool]) -> None:
        """Begin to read; the one before has ended.

        Args:
            most: a ceiling on rows.
            exists: whether a key is still there.
        """
        self._since = {key: had for key, had in self._since.items() if exists(key)}
        self._reading = _Reading(most, exists)

    def read(self, key: Key, now: Counted, *, may: bool = True) -> bool:
        """Read one of the existing keys, with its counts; a free row is assigned to it if it may have one.

        Returns:
            Whether it has a row.
        """
        reading, since = self._reading, self._since
        assert reading is not None, "not begun"
        had = since.get(key)
        if had is None:
            before = self._others.get(key)
            if len(since) >= reading.most or not may:
                if before is None and now == self._zero:
                    reading.idle += 1
                    return False
                reading.others += 1
                if before != now:
                    self._rest = self._plus(self._minus(self._rest, before or self._zero), now)
                    self._others[key] = now
                return False
            if before is not None:
                self._forget(key)
                self._left = self._plus(self._left or self._zero, now)
                had = now
            else:
                had = self._zero
            since[key] = had
        reading.rows[key] = self._minus(now, had)
        return True

    def end(self) -> Shown[Key]:
        """Everything was read."""
        reading = self._reading
        assert reading is not None, "not begun"
        self._reading, self._idle = None, reading.idle
        if reading.others < len(self._others):
            for key in [key for key in self._others if not reading.exists(key)]:
                self._forget(key)
        left_out = reading.idle + len(self._others)
        rest = self._plus(self._left or self._zero, self._rest) if left_out else self._left
        return Shown(reading.rows, rest, left_out)

    def give_up(self) -> None:
        """The reader does not want the rest."""
        self._reading = None


SubscriptionKey = tuple[str, str]
"""A topic and the name of one of its subscriptions."""


class Series:
    """The rows of topics (`Traffic`) and of their subscriptions (messages and bytes sent).

    Attributes:
        busy: they are being read; another reader has to wait.
    """

    def __init__(self) -> None:
        self.topics: Rows[str] = Rows(len(Traffic._fields))
        self.subscriptions: Rows[SubscriptionKey] = Rows(2)
        self.busy = False

    def begin(
        self,
        topics_max: int,
        subscriptions_max: int,
        topic_exists: Callable[[str], bool],
        subscription_exists: Callable[[SubscriptionKey], bool],
    ) -> None:
        """Begin to read; `read` follows for each topic that exists, then `end`, or `give_up` at any time.

        Args:
            topics_max, subscriptions_max: ceilings on rows.
            topic_exists, subscription_exists: whether one that has a row is still there.
        """
        self.busy = True
        self.topics.begin(topics_max, topic_exists)
        self.subscriptions.begin(subscriptions_max, subscription_exists)

    def read(self, topic: str, traffic: Traffic, subscriptions: Iterable[tuple[str, Counted]]) -> None:
        """Read one topic and its subscriptions; a subscription has no row if its topic has none."""
        shown = self.topics.read(topic, traffic)
        for name, counted in subscriptions:
            self.subscriptions.read((topic, name), counted, may=shown)

    def end(self) -> tuple[Shown[str], Shown[SubscriptionKey]]:
        """All topics were read."""
        self.busy = False
        return self.topics.end(), self.subscriptions.end()

    def give_up(self) -> None:
        """The reader does not want the rest."""
        self.busy = False
        self.topics.give_up()
        self.subscriptions.give_up()
