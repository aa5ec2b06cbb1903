"""The interface of a broker's part for topics: `broker.catalog.loaded_topics` has all parts in one tuple, in a fixed
order.
"""

from collections.abc import Iterable, Sequence

from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import Position


class TopicPart:
    """A part of the broker that has state of topics. It overrides the methods that concern it.

    A topic is added in two steps. `topic_added`: it has its log and its record. `topic_loaded`: it has its
    subscriptions too. At the start all topics are added before the first is loaded; later both steps of one topic are
    one event.
    """

    def topic_added(self, topic: Topic) -> None:
        """A topic exists; its subscriptions, if it was found at the start, follow."""

    def topic_loaded(self, topic: Topic) -> None:
        """A topic and its subscriptions are there."""

    def all_loaded(self) -> None:
        """Every topic that was found at the start is loaded: stored state of other topics is left over."""

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone, durably."""

    def deletion_keys(self, topic: Topic) -> Iterable[str]:
        """A topic is about to be deleted: the keys of this part that the transaction has to delete.

        `topic_removed` or `deletion_failed` follows.
        """
        return ()

    def deletion_failed(self, topic: Topic) -> None:
        """The store refused the transaction of `deletion_keys`: the topic stays."""

    def policies_changed(self, topics: Sequence[Topic]) -> None:
        """A change of policies of these topics is in force."""

    def durable_low(self, topic: Topic) -> Position | None:
        """The position up to which retention may delete; None: this part holds nothing back."""
        return None

    def trimmed(self, topic: Topic) -> None:
        """Retention deleted ledgers of a topic."""

    def tick(self, topic: Topic, now_ms: int) -> None:
        """Called from time to time for a topic that has messages: do what is due."""

    def flush(self) -> None:
        """Before the end: store state that waits for its interval."""

    def validate(self) -> None:
        """Check what must hold after every event."""
