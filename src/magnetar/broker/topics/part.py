"""What a part of the broker is asked of every topic: `broker.catalog.loaded_topics` has all parts in one tuple, in one order."""

from collections.abc import Iterable, Sequence

from magnetar.broker.topics.topic import Topic
from magnetar.core.ids import Position


class TopicPart:
    """A part of the broker that keeps something of topics; what does not concern it, it leaves as it is here.

    A topic comes in two steps. `topic_added`: it has its log and its record. `topic_loaded`: its subscriptions are there, too. At
    the start all topics are added before the first is loaded; later both steps of one topic are one event.
    """

    def topic_added(self, topic: Topic) -> None:
        """A topic exists; its subscriptions, if it was found at the start, follow."""

    def topic_loaded(self, topic: Topic) -> None:
        """A topic and its subscriptions are there."""

    def all_loaded(self) -> None:
        """Every topic that was found at the start is loaded: what is stored of others is left over."""

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone, durably."""

    def deletion_keys(self, topic: Topic) -> Iterable[str]:
        """A topic is about to be deleted: what the transaction that does so has to delete for this part.

        `topic_removed` or `deletion_failed` follows.
        """
        return ()

    def deletion_failed(self, topic: Topic) -> None:
        """The store refused the transaction of `deletion_keys`: the topic stays."""

    def policies_changed(self, topics: Sequence[Topic]) -> None:
        """A change of policies of these topics is in force."""

    def durable_low(self, topic: Topic) -> Position | None:
        """Up to where retention may delete; None: this part needs nothing."""
        return None

    def trimmed(self, topic: Topic) -> None:
        """Retention deleted ledgers of a topic."""

    def tick(self, topic: Topic, now_ms: int) -> None:
        """Now and then: what is due of a topic that has messages."""

    def flush(self) -> None:
        """Before the end: store what waits for its interval."""

    def validate(self) -> None:
        """Check what must hold after every event."""
