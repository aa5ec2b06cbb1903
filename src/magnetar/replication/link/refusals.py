"""The topics that this cluster has refused to links, so that their pipelines learn at once when the reason may be gone.

A blocked topic is tried again after pauses that grow to a minute. The reason at its destination (a deletion, a policy, a
topic of another form) ends when an operator changes something there. A pipeline with a blocked topic waits for that in a long
poll (GEO_WATERMARKS without topics, `wait_ms`). The poll is answered when one of the refused topics would be accepted: `news` is
another number then. The answer names no topic; the next handshake does.
"""

from collections.abc import Callable
from typing import Final

from magnetar.effects.outbox import Outbox, Timer

REFUSED_MAX: Final = 1_000
"""A ceiling on remembered topics: some 5 ms to look at them all. Of more, the pipelines' own pauses have to do."""

SETTLE_MS: Final = 20
"""Delay from a change to the check of all refused topics: creating a thousand topics causes one check, not a thousand."""

WAIT_MS_MAX: Final = 20_000
"""A ceiling on how long an answer is held."""

_SHIFT: Final = 20

Asked = tuple[str, str, int, int]
"""Topic, source cluster, the topic's incarnation and its partitions there."""


class Refusals:
    """The refused topics of one destination.

    Args:
        outbox: the broker's.
        boot: clock at this broker's start, ms; never the same twice.
        refused: whether a topic would be refused now.
    """

    def __init__(self, outbox: Outbox, boot: int, refused: Callable[[Asked], bool]) -> None:
        self._outbox, self._refused = outbox, refused
        self.news = (boot << _SHIFT) + 1
        self._known: dict[Asked, None] = {}
        self._waiting: dict[int, tuple[int, int, Callable[[], None]]] = {}
        self._settling = False

    def note(self, asked: Asked) -> None:
        """A link was refused a topic."""
        self._known.pop(asked, None)
        self._known[asked] = None
        if len(self._known) > REFUSED_MAX:
            del self._known[next(iter(self._known))]

    def changed(self) -> None:
        """A change may end refusals: a topic was created or created again, or a policy changed."""
        if self._known and not self._settling:
            self._settling = True
            self._outbox.put(Timer(self._outbox.now_ms + SETTLE_MS, self._settled))

    def _settled(self, _now_ms: int) -> None:
        self._settling = False
        passes = [asked for asked in self._known if not self._refused(asked)]
        for asked in passes:
            del self._known[asked]
        if passes:
            self.news += 1
            self._release(lambda _until_ms: True)

    def hold(self, connection: int, known: int, wait_ms: int, answer: Callable[[], None]) -> None:
        """Call `answer` when the number is another than `known`, at once if it is, and after `wait_ms` in any case."""
        before = self._waiting.pop(connection, None)
        if before is not None:
            before[2]()
        if known != self.news:
            answer()
            return
        until_ms = self._outbox.now_ms + min(wait_ms, WAIT_MS_MAX)
        self._waiting[connection] = (known, until_ms, answer)
        self._outbox.put(Timer(until_ms, lambda now_ms: self._release(lambda until: until <= now_ms)))

    def _release(self, due: Callable[[int], bool]) -> None:
        ready = [connection for connection, (_, until_ms, _) in self._waiting.items() if due(until_ms)]
        for connection in ready:
            self._waiting.pop(connection)[2]()

    def disconnected(self, connection: int) -> None:
        """The connection is gone, and its question with it."""
        self._waiting.pop(connection, None)
