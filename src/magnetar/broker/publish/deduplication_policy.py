"""Deduplication in all topics of a broker: where it is on (broker, namespace, topic: the most specific setting wins),
and since when.
"""

from collections.abc import Callable, Mapping, Sequence

from magnetar.broker.context import BrokerContext
from magnetar.broker.publish.deduplication import CURSOR_NAME, Counters, TopicDeduplication
from magnetar.broker.publish.producers import Producer
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import StorageError
from magnetar.core.ids import Position
from magnetar.core.settings import DeduplicationConfig
from magnetar.effects.outbox import Note, Store
from magnetar.metadata.topic_records import cursor_key


class Deduplications(TopicPart):
    """Switches deduplication on and off per topic.

    Args:
        context: of the broker.
        topics: all of the broker's.
        flusher: stores cursors; the numbers of a topic are one.
        settings: the `[deduplication]` table.
        close_producer: closes a producer from this side, so that its client comes back.
        stored: everything in the metadata store at start.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        flusher: CursorFlusher,
        settings: DeduplicationConfig,
        close_producer: Callable[[Producer], None],
        stored: Mapping[str, bytes],
    ) -> None:
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._flusher = flusher
        self._close_producer = close_producer
        self._stored = {key: stored[key] for key in stored if key.endswith(f"/{CURSOR_NAME}")}
        self._settings = settings
        self.counters = Counters()

    @property
    def default(self) -> bool:
        """Whether topics without a policy are deduplicated."""
        return self._settings.enabled

    @property
    def snapshot_s(self) -> int:
        """Seconds between two snapshots of numbers, for topics without a policy."""
        return self._settings.snapshot_s

    @property
    def names_begin_with_role(self) -> bool:
        """See `core.settings.DeduplicationConfig`."""
        return self._settings.names_begin_with_role

    def _wanted(self, topic: Topic) -> tuple[bool, int | None]:
        enabled, every = self._resources.deduplication(topic.name)
        if not topic.name.persistent or topic.name.local.startswith("__"):  # system topics are the broker's own matter
            return False, every
        return self._settings.enabled if enabled is None else enabled, every

    def added(self, topic: Topic, stored: bytes | None = None) -> None:
        """A topic exists: just created, or found at start with its stored cursor `pulsar.dedup`."""
        enabled, every = self._wanted(topic)
        if enabled:
            self._switch_on(topic, every, stored)
        elif stored is not None:
            # Switched off while the broker was down.
            self._delete_cursor(topic)

    def topic_loaded(self, topic: Topic) -> None:
        """Switch it on where policies say so, with the numbers that were stored."""
        self.added(topic, self._stored.pop(self.key(topic), None) if self._stored else None)

    def all_loaded(self) -> None:
        """Delete the remaining cursors: they belong to topics without deduplication."""
        self._stored.clear()

    def deletion_failed(self, topic: Topic) -> None:
        """Continue after a failed deletion, with the numbers that can be read in the log."""
        self.added(topic)

    def policies_changed(self, topics: Sequence[Topic]) -> None:
        """A change of policies of these topics is in force."""
        for topic in topics:
            self._follow(topic)

    def _follow(self, topic: Topic) -> None:
        enabled, every = self._wanted(topic)
        if enabled and topic.deduplication is None:
            self._switch_on(topic, every, None)
        elif not enabled and topic.deduplication is not None:
            self._switch_off(topic)
        elif topic.deduplication is not None:
            topic.deduplication.set_interval(every)

    def _switch_on(self, topic: Topic, every: int | None, stored: bytes | None) -> None:
        deduplication = TopicDeduplication(
            self._outbox,
            topic.text,
            topic.log,
            flusher=self._flusher,
            settings=self._settings,
            counters=self.counters,
            when_drained=topic.when_drained,
            snapshot_s=every,
        )
        topic.switch_deduplication(deduplication)
        # Producers that publish without numbers reconnect when the numbers are known.
        for producer in topic.producers.everybody():
            self._close_producer(producer)
        try:
            deduplication.start(stored)
        except StorageError as error:
            self._outbox.put(
                Note("warning", f"{error}; deduplication of {topic.text} starts from its retained messages instead")
            )
            deduplication.start(None)

    def _switch_off(self, topic: Topic) -> None:
        if self.deletion_keys(topic):
            self._delete_cursor(topic)

    def deletion_keys(self, topic: Topic) -> list[str]:
        """Stop it, and return the keys that the caller's transaction has to delete. `added` starts it again if that
        fails.
        """
        deduplication = topic.deduplication
        if deduplication is None:
            return []
        topic.switch_deduplication(None)
        deduplication.stop()
        return [deduplication.key]

    def _delete_cursor(self, topic: Topic) -> None:
        key = self.key(topic)

        def deleted(error: str) -> None:
            if error:
                self._outbox.put(
                    Note(
                        "warning",
                        f"cannot delete the deduplication cursor of {topic.text}: {error}; the next start will",
                    )
                )

        self._outbox.put(Store({}, (key,), deleted))

    @staticmethod
    def key(topic: Topic) -> str:
        """The key of a topic's cursor."""
        return cursor_key(topic.text, CURSOR_NAME)

    def durable_low(self, topic: Topic) -> Position | None:
        """The position up to which retention may delete; None if deduplication holds nothing back."""
        return topic.deduplication.durable_mark_delete if topic.deduplication is not None else None

    def tick(self, topic: Topic, now_ms: int) -> None:
        """Now and then."""
        if topic.deduplication is not None:
            topic.deduplication.tick(now_ms)

    def stats(self, on: Sequence[TopicDeduplication]) -> dict[str, int]:
        """Figures since the broker's start. `on`: of all topics that have it."""
        counters = self.counters
        return {
            "topics": len(on),
            "producerNames": sum(len(one.numbers) for one in on),
            "duplicates": counters.duplicates,
            "unknown": counters.unknown,
            "evictedLimit": counters.evicted_limit,
            "evictedInactive": counters.evicted_inactive,
            "replayedEntries": counters.replayed,
        }
