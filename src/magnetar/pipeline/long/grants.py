"""Grants of one link: which topics its source may hand out to long batches. A pure machine.

A topic is granted while a long batch may send it: it was compared with its destination, is not waiting for a retry, and has no
large backlog. A pause does not matter here: the source hands out no entries of a paused topic.

Grants and revocations go to the source with GEO_COMMIT and are sent again until it has answered. While a revocation is
unanswered, the source may still accept confirmations under the old grant. So the topic is compared again only after the answer.

The source's side of these rules is `replication.link.fetching`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from magnetar.wire import pulsar_pb2 as pb

NOT_NOW: Final = -1
"""Not before something changes."""

TOPICS_MAX: Final = 1_000
"""Grants, revocations, or commits of topics in one command: some 100 bytes each, far below any frame limit."""

IGNORED_MS: Final = 200
"""A grant that the source ignores is about another generation; its report of that one is on its way."""


class Wanted(NamedTuple):
    """The topic as it would be granted.

    Attributes:
        at_ms: 0: now; `NOT_NOW`; else the time to look again.
        incarnation, gen: of the comparison.
    """

    at_ms: int
    incarnation: int = 0
    gen: int = 0


class LinkGrants:
    """The grants of one link.

    Args:
        numbers: gives grants their numbers, which grow, also over restarts of the pipeline.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._granted: dict[str, int] = {}
        self._owed: dict[str, pb.GeoGrant] = {}
        self._revoking: dict[str, None] = {}
        self._taken: dict[str, int] = {}
        """The source's change counter when it took a grant: its earlier reports do not reflect the grant."""
        self._look: set[str] = set()
        self._look_at_all = True
        self._later: dict[str, int] = {}
        self._open = False

    def carries(self, topic: str) -> bool:
        """Whether confirmations of a topic may still count."""
        return topic in self._granted or topic in self._revoking

    def source_restarted(self) -> None:
        """The source's change counter began again, perhaps lower: its clock may have been set back meanwhile."""
        self._taken.clear()

    def touch(self, topics: Iterable[str]) -> None:
        """Look at these topics again: something that decides about them may have changed."""
        self._look.update(topics)

    def touch_all(self) -> None:
        """The same for every topic."""
        self._look_at_all = True

    def forget(self, topic: str) -> None:
        """A topic is gone from the link, and its grant with it."""
        self._granted.pop(topic, None)
        self._owed.pop(topic, None)
        self._taken.pop(topic, None)
        self._later.pop(topic, None)
        self._revoking.pop(topic, None)
        self._look.discard(topic)

    def update(self, topics: Iterable[str], is_open: bool, wanted: Callable[[str], Wanted], now_ms: int) -> None:
        """Grant and revoke.

        Args:
            topics: all of the link.
            is_open: whether the link may carry anything at all.
            wanted: about one topic.
            now_ms: the clock.
        """
        names = set(topics) if self._look_at_all or is_open != self._open else self._look
        self._look = set()
        if self._later:
            names |= {topic for topic, at_ms in self._later.items() if at_ms <= now_ms}
        self._look_at_all, self._open = False, is_open
        for topic in names:
            self._later.pop(topic, None)
            verdict = wanted(topic) if is_open else Wanted(NOT_NOW)
            if verdict.at_ms:
                if topic in self._granted:
                    self._revoke(topic)
                if verdict.at_ms > 0:
                    self._later[topic] = verdict.at_ms
            elif not self.carries(topic):
                number = self._granted[topic] = next(self._numbers)
                self._owed[topic] = pb.GeoGrant(
                    topic=topic, incarnation=verdict.incarnation, gen=verdict.gen, number=number
                )

    def _revoke(self, topic: str) -> None:
        del self._granted[topic]
        self._owed.pop(topic, None)
        self._taken.pop(topic, None)
        self._revoking[topic] = None

    def next_ms(self) -> int:
        """When to decide again if nothing changes; 0: never."""
        return min(self._later.values(), default=0)

    def owed(self) -> tuple[list[pb.GeoGrant], list[str]]:
        """Grants and revocations that the source has not answered, as many as one command takes."""
        return list(islice(self._owed.values(), TOPICS_MAX)), list(islice(self._revoking, TOPICS_MAX))

    def answered(
        self, grants: Sequence[pb.GeoGrant], revoked: Sequence[str], ignored: Iterable[str], counter: int, now_ms: int
    ) -> None:
        """The source has answered the owed grants and revocations; it took all but the ignored ones.

        Args:
            grants, revoked: as they were sent.
            ignored: topics.
            counter: its change counter after that.
            now_ms: the clock.
        """
        for topic in revoked:
            self._revoking.pop(topic, None)
        self._look.update(revoked)
        ignored = set(ignored)
        for grant in grants:
            topic = grant.topic
            if self._owed.get(topic) is not grant:
                continue
            del self._owed[topic]
            if topic in ignored:
                del self._granted[topic]
                self._later[topic] = now_ms + IGNORED_MS
            else:
                self._taken[topic] = counter

    def reported(self, topic: str, number: int, counter: int) -> bool:
        """The source has reported which grant a topic has (0: none); returns whether ours has ended there.

        A grant of another run of this pipeline is revoked before the topic is compared.
        """
        taken = self._taken.get(topic, 0)
        own = self._granted.get(topic)
        if own == number or counter <= taken or topic in self._owed:
            return False
        if number:
            self._revoking[topic] = None
        if own is None:
            return False
        del self._granted[topic]
        self._taken.pop(topic, None)
        return True
