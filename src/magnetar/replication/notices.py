"""Counters of one topic's machine, and lines for the broker's log, each of which is written once."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from magnetar.replication.marker_host import MarkerHost

NOTED_MAX: Final = 1000
"""A ceiling on the kinds of trouble that are remembered as noted; those beyond it are counted and not noted."""


class Notices:
    """The counters of a machine, and its messages to the operator.

    Args:
        host: the topic.
        names: counters that exist from the start, so that they are reported as 0.

    Attributes:
        counters: since the broker's start.
    """

    def __init__(self, host: MarkerHost, names: Iterable[str] = ()) -> None:
        self._host = host
        self.counters: Counter[str] = Counter(dict.fromkeys(names, 0))
        self._noted: set[tuple[str, str]] = set()

    def count(self, counter: str, number: int = 1) -> None:
        """Count something that happened."""
        self.counters[counter] += number

    def note(self, level: str, text: str) -> None:
        """Write one line to the broker's log, with the topic's name."""
        self._host.note(level, f"{self._host.log.name}: {text}")

    def note_once(self, counter: str, about: str, text: str, level: str = "warning") -> None:
        """Count every occurrence, and note the first one for each subject: ten a second would fill a log.

        Args:
            counter: which.
            about: the subject, such as a cluster or a subscription.
            text: the line.
            level: of the line.
        """
        self.counters[counter] += 1
        if (counter, about) not in self._noted and len(self._noted) < NOTED_MAX:
            self._noted.add((counter, about))
            self.note(level, text)
