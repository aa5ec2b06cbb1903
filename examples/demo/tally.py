"""Who saw which flight, how often, in which order, how late: what the demo's verdict is made of."""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

LOOK_S: Final = 0.05
"""Between two looks at whether what is waited for has come true."""


@dataclass(slots=True)
class Link:
    """What came from one origin to one observer.

    Attributes:
        flights: how many the origin has in all.
        seen: one byte a flight: how often it came, at most 255.
        first_ms: when each flight first came; 0 while it has not.
        expected: the number that should come next.
        arrived: different flights.
        disorder: flights that came before an earlier one.
        again: deliveries beyond the first.
        lag_max_ms: from publishing to the first delivery.
        calm: ms from publishing to first delivery, of flights published while nothing was broken.
        busy_ms: for how long, in calm times, something was published and had not arrived yet.
    """

    flights: int
    seen: bytearray = field(default_factory=bytearray)
    first_ms: "array[int]" = field(default_factory=lambda: array("q"))
    expected: int = 0
    arrived: int = 0
    disorder: int = 0
    again: int = 0
    size: int = 0
    lag_max_ms: int = 0
    calm: "array[int]" = field(default_factory=lambda: array("q"))
    busy_ms: int = 0
    busy_until_ms: int = 0

    def __post_init__(self) -> None:
        self.seen = bytearray(self.flights)
        self.first_ms = array("q", bytes(8 * self.flights))

    def arrive(self, number: int, size: int, published_ms: int, now_ms: int, calm: bool) -> None:
        """Note one delivery."""
        if self.seen[number]:
            self.again += 1
            self.seen[number] = min(255, self.seen[number] + 1)
            return
        self.seen[number] = 1
        self.arrived += 1
        self.size += size
        if number != self.expected:
            self.disorder += 1
        self.expected = number + 1
        self.first_ms[number] = now_ms
        lag_ms = max(0, now_ms - published_ms)
        self.lag_max_ms = max(self.lag_max_ms, lag_ms)
        if calm:
            self.calm.append(lag_ms)
            # Both times only grow along a link, so the union of [published, arrived] can be measured on the way.
            self.busy_ms += max(0, now_ms - max(published_ms, self.busy_until_ms))
            self.busy_until_ms = max(self.busy_until_ms, now_ms)

    @property
    def missing(self) -> int:
        """Flights that never came."""
        return self.flights - self.arrived

    @property
    def per_second(self) -> float:
        """Flights per second while there was something to send and nothing was broken; 0 when too few came."""
        return len(self.calm) * 1000 / self.busy_ms if self.busy_ms else 0.0


class Tally:
    """One observer: a reader of everything in one cluster, or the consumer.

    Args:
        name: of the observer.
        flights: origin -> how many flights it has.
        number_of: payload -> (origin, number).
        board: where progress is reported.
    """

    def __init__(
        self, name: str, flights: Mapping[str, int], number_of: Mapping[bytes, tuple[str, int]], board: "Board"
    ) -> None:
        self.name = name
        self.links = {origin: Link(count) for origin, count in flights.items()}
        self.unknown = 0
        """Messages that are no flight as published: altered or foreign."""
        self.reasons: Counter[str] = Counter()
        """Second deliveries by their reason (`reasons.judge`)."""
        self.versions: dict[int, list[tuple[str, int]]] = {}
        """Schema version in the observer's cluster -> the flights that came with it."""
        self.decoded: Counter[int] = Counter()
        """Schema version in the observer's cluster -> messages that were decoded with it."""
        self.evolved = 0
        """Those of them that have the field that was added."""
        self.undecoded = 0
        """Messages that could not be decoded to what was published."""
        self.strange: Counter[str] = Counter()
        """Second deliveries without a reason, by what is known of them; for the reader of a failed demo."""
        self.number_of = number_of
        self._board = board

    def arrive(self, payload: bytes, published_ms: int) -> None:
        """Note one delivery.

        Args:
            payload: as received.
            published_ms: the publisher's clock, as the message says.
        """
        found = self.number_of.get(payload)
        if found is None:
            self.unknown += 1
        else:
            origin, number = found
            now_ms = time.time_ns() // 1_000_000
            self.links[origin].arrive(number, len(payload), published_ms, now_ms, self._board.calm_at(published_ms))
        self._board.moved()

    def came(self, version: int, payload: bytes) -> int:
        """Note with which schema version (-1: none) a message came; how many came with it before."""
        several = self.versions.setdefault(version, [])
        found = self.number_of.get(payload)
        if found is not None:
            several.append(found)
        return len(several) - 1

    def decode(self, version: int, age: str | None, count: int = 1) -> None:
        """Note what became of messages' bytes.

        Args:
            version: of their schema; -1: they have none.
            age: of the schema that they were decoded with; None: they could not be.
            count: how many.
        """
        if age is None or version < 0:
            self.undecoded += count
            return
        self.decoded[version] += count
        if age == "new":
            self.evolved += count

    @property
    def arrived(self) -> int:
        """Different flights so far."""
        return sum(link.arrived for link in self.links.values())

    @property
    def again(self) -> int:
        """Deliveries beyond the first."""
        return sum(link.again for link in self.links.values())

    @property
    def explained(self) -> int:
        """Deliveries beyond the first that have a reason."""
        return self.reasons.total()

    @property
    def disorder(self) -> int:
        """Flights that came before an earlier one of their origin."""
        return sum(link.disorder for link in self.links.values())

    @property
    def missing(self) -> int:
        """Flights that never came."""
        return sum(link.missing for link in self.links.values())

    def faults(self, where: str) -> list[str]:
        """Everything about deliveries that must not be, a line each.

        Args:
            where: the observer, as lines name it.
        """
        lines = []
        if self.missing:
            lines.append(f"{where} never got {self.missing:,} flights")
        if self.unknown:
            lines.append(f"{where} got {self.unknown:,} messages that are no flights as published")
        if self.disorder:
            lines.append(f"{where} got {self.disorder:,} flights out of their origin's order")
        if self.again > self.explained:
            story = ", ".join(f"{count:,} {what}" for what, count in self.strange.items())
            lines.append(
                f"{where} got {self.again - self.explained:,} flights twice without a reason"
                + (f" ({story})" if story else "")
            )
        return lines


class Board:
    """Where all threads of the demo report progress and failures, and where its story waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._moves = 0
        self._failure = ""
        self._troubles: list[list[int]] = []

    def moved(self) -> None:
        """Something made progress.

        Called once a message by several threads. It wakes no thread: the waiter checks at intervals. A count that is lost
        between two threads does no harm.
        """
        self._moves += 1

    def fail(self, line: str) -> None:
        """A thread cannot continue; the first line counts."""
        with self._changed:
            self._failure = self._failure or line
            self._changed.notify_all()

    def trouble(self, now_ms: int) -> None:
        """From now on something is broken on purpose: what is published meanwhile is not calm."""
        self._troubles.append([now_ms, 2**62])

    def healed(self, now_ms: int) -> None:
        """It works again, and what had piled up is through."""
        if self._troubles:
            self._troubles[-1][1] = now_ms

    def calm_at(self, when_ms: int) -> bool:
        """Whether nothing was broken at a time."""
        return not any(start <= when_ms <= end for start, end in self._troubles)

    def wait(
        self, until: Callable[[], bool], *, patience_s: float, look: Callable[[], None] = lambda: None
    ) -> str | None:
        """Wait for something that the other threads bring about.

        Args:
            until: asked after every progress.
            patience_s: how long without any progress at all until it is given up.
            look: called now and then meanwhile (to redraw).

        Returns:
            None when it came true; else why not: a thread's failure, or "" when nothing moved for too long.
        """
        moves, since = self._moves, time.monotonic()
        while not until():
            if self._failure:
                return self._failure
            now = time.monotonic()
            if self._moves != moves:
                moves, since = self._moves, now
            elif now - since > patience_s:
                return ""
            with self._changed:
                self._changed.wait(LOOK_S)
            look()
        return None
