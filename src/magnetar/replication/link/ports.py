"""The interfaces that links need from their broker: its topics, and methods that take their reports.

`broker.links` implements these; tests and simulated worlds have their own. All methods are called on the broker's loop.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from magnetar.core.names import TopicName
from magnetar.storage.entries import Append, NewEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire.acksets import Mark
from magnetar.wire.idempotency_keys import Found


class KeysAhead(Protocol):
    """A topic's idempotency keys (`broker.publish.idempotency.topic.TopicIdempotency`): what links bring is searched for
    them, too.
    """

    def long_at(self, entries: Sequence[NewEntry], found: Found | None) -> int:
        """Which of some entries is the first that takes too long to be opened on the event loop; their number if none is.

        `found`: what was found in the first one off the loop; None: nothing yet.
        """
        ...

    def open_ahead(self, entry: NewEntry, then: Callable[[Found], None]) -> None:
        """Open an entry off the event loop, in its turn."""
        ...

    def known_ahead(self, found: Found | None) -> None:
        """Set the search result for the first entry of the append that comes now; None: the append is over."""
        ...


class DestinationTopic(Protocol):
    """A topic here (`broker.topics.topic.Topic`)."""

    log: TopicLog

    @property
    def idempotency(self) -> KeysAhead | None:
        """Its idempotency keys; None: it has none."""
        ...

    @property
    def terminated(self) -> bool:
        """Whether it has stopped taking messages. It still takes markers, as its subscriptions are still in use."""
        ...

    def append(
        self,
        entries: list[NewEntry],
        token: Callable[[Append, str], None],
        *,
        durable: bool | None = None,
        marker: bool = False,
    ) -> Append:
        """Send entries on their way; `token(append, error)` gets the outcome. Raises BrokerError when it cannot be now.

        `marker`: they are nothing but markers.
        """
        ...


class TopicHost(Protocol):
    """The topics of this cluster, as whatever brings messages from other clusters sees them."""

    def find(self, topic: str) -> DestinationTopic | None:
        """A topic that exists here; None: it does not, or it is being deleted."""
        ...

    def refuses_entries(
        self, topic: TopicName, source: str, incarnation: int | None = None, partitions: int = 0
    ) -> str:
        """Why entries of a cluster may not come into a topic: namespace missing, cluster not allowed, topic deleted here.

        `incarnation`: of the topic there (None: not known); `partitions`: of the topic that it is a partition of, there.
        One line with the command to run; "" when they may come in.
        """
        ...

    def reconcile(self, topic: TopicName, source: str, partitions: int) -> str:
        """Advice about a topic (not one partition) that has `partitions` at a source, and another form here.

        One line with the command to run.
        """
        ...

    def partitions(self, topic: TopicName) -> int | None:
        """Partitions of a topic (not of one partition): 0 if it is not partitioned, None if there is no such topic."""
        ...

    def create(self, topic: TopicName, partitions: int, then: Callable[[str], None]) -> None:
        """Create a topic (0 partitions), or a partitioned one with all its partitions, or grow it; what exists stays.

        Auto-creation settings do not matter. `then("")` when it is durable. Handshakes overlap: a call for a topic that is
        just being created must join the earlier one, for a second record stored over the first would lose its watermarks.
        """
        ...


class DestinationHost(TopicHost, Protocol):
    """The broker, as the destination side of all links sees it."""

    def source_active(self, topic: str, source: str, *, restarted: bool) -> None:
        """The link of a source cluster is at work in a topic here: for the first time since the start, or as another one.

        `restarted`: the cluster, or the topic's incarnation there, is not the one whose entries are here.
        """
        ...

    def learn_retained(self, topic: str, marks: tuple[Mark, ...]) -> None:
        """The source of a link has reported the first own index that each origin of a topic's messages retains."""
        ...

    def stored(self, topic: str, source: str, connection: int, messages: int, size: int) -> None:
        """The disk has messages that a link brought over a connection; `size` in bytes."""
        ...


class SourceHost(Protocol):
    """The broker, as the source side of its links sees it."""

    def partitions_of(self, topic: str) -> int:
        """Partitions of the partitioned topic that a topic belongs to; 0: it belongs to none."""
        ...

    def retained(self, topic: str) -> Iterable[Mark]:
        """First own index that each of a topic's origins retains, for the destination's sets (`AckedSets.own_marks`)."""
        ...

    def schema_numbering(self, topic: str) -> int:
        """The numbering that the schema versions in the topic's entries belong to; 0: it has no schemas."""
        ...

    def rebased(self, topic: str, target: str) -> None:
        """The link to `target` started over in a topic, or gave up entries of it: its destination lacks some."""
        ...
