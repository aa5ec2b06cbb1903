"""The topics that a broker has in memory: adding one to all parts of the broker, and removing it.

start     every topic of the store, its subscriptions, then the parts' state of it
later     one topic at a time: `add` after its record is durable, `remove` after its deletion is
"""

from collections.abc import Callable, Mapping
from typing import Final

from magnetar.broker.catalog.policy_limits import Limits
from magnetar.broker.clients import Clients
from magnetar.broker.context import BrokerContext
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.links.links import Links
from magnetar.broker.publish.deduplication import CURSOR_NAME
from magnetar.broker.statistics.cardinality import Series
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import NameNotValid, StorageError
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Drop, Note
from magnetar.metadata.topic_records import CURSOR_PREFIX, TOPIC_PREFIX, TopicRecord, cursor_key, split_cursor_key
from magnetar.storage.cursor import Cursor
from magnetar.storage.topiclog import EntryCache, LedgerIds, RecoveredTopic, TopicLog

LINK_CURSOR: Final = "pulsar.repl."
"""Cursors of links begin so; links load them."""


class LoadedTopics:
    """The topics of one broker.

    Args:
        context: of the broker.
        topics: by full name; filled and emptied here alone.
        ledger_ids: gives every ledger its id.
        cache: recent entries of all topics.
        cursor_bytes_max: so large a cursor may be stored.
        clients: of the broker.
        flusher: stores cursors.
        series: counts what is gone.
        limits, links, fences: parts that are asked for more than what every part is.
        parts: all that keep something of topics, in the order in which they hear of one.

    Attributes:
        left_out: stored topics that have no valid name, and why: they were not loaded.
        left_out_incarnations: their incarnations.
        ranges_left_out: of acknowledged ranges, that no cursor had room for, since the start.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: dict[str, Topic],
        *,
        ledger_ids: LedgerIds,
        cache: EntryCache,
        cursor_bytes_max: int,
        clients: Clients,
        flusher: CursorFlusher,
        series: Series,
        limits: Limits,
        links: Links,
        fences: Fences,
        parts: tuple[TopicPart, ...],
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._topics = topics
        self._ledger_ids = ledger_ids
        self._cache = cache
        self._cursor_bytes_max = cursor_bytes_max
        self._clients = clients
        self._flusher = flusher
        self._series = series
        self._limits = limits
        self._links = links
        self._fences = fences
        self._parts = parts
        self._on_confirmed = self._confirmed
        """One object for all topics."""
        self.left_out: dict[str, str] = {}
        self.left_out_incarnations: dict[str, int] = {}
        self.ranges_left_out = 0

    # --------------------------------------------------------------------------------------------------------- topics

    def load(self, stored: Mapping[str, bytes], recovered: Mapping[tuple[str, int], RecoveredTopic]) -> None:
        """Load every topic of the store, once, at the start.

        Args:
            stored: everything in the metadata store.
            recovered: the log's contents, by (topic, incarnation).

        Raises:
            StorageError: a record or a cursor is damaged.
        """
        for key, data in stored.items():
            if key.startswith(TOPIC_PREFIX):
                text = key.removeprefix(TOPIC_PREFIX)
                record = TopicRecord.decode(text, data)
                try:
                    name = TopicName.parse(text)
                except NameNotValid as error:
                    # One invalid name must not prevent loading the others; its stored state stays.
                    self.left_out[text] = str(error)
                    self.left_out_incarnations[text] = record.incarnation
                    continue
                self.add(name, record, recovered.get((text, record.incarnation)), fresh=False)
        if self.left_out:
            self._outbox.put(
                Note("error", f"{len(self.left_out)} stored topics are left out: {next(iter(self.left_out.values()))}")
            )
        for key, data in stored.items():
            if key.startswith(CURSOR_PREFIX):
                text, name_of = split_cursor_key(key)
                topic = self._topics.get(text)
                if topic is not None and name_of != CURSOR_NAME and not name_of.startswith(LINK_CURSOR):
                    try:
                        cursor = Cursor.decode(topic.log, data)
                    except StorageError as error:
                        raise StorageError(f"subscription {name_of} of {text}: {error}") from error
                    topic.add_subscription(self.make_subscription(topic, name_of, cursor, durable=True))
        for topic in self._topics.values():
            for part in self._parts:
                part.topic_loaded(topic)
        for part in self._parts:
            part.all_loaded()

    def add(
        self, name: TopicName, record: TopicRecord, recovered: RecoveredTopic | None = None, *, fresh: bool = True
    ) -> Topic:
        """Add a topic (its record is durable).

        Args:
            name, record: its name and record.
            recovered: its part of the log.
            fresh: it was just created; false: its subscriptions follow, and then the parts' state of it.
        """
        config, text = self._context.config, str(name)
        if recovered is not None:
            # Deleted by retention, and the broker stopped before their room was given back.
            dead = tuple(ledger for ledger in recovered.ledger_ids() if ledger < record.first_ledger)
            if dead:
                self._outbox.put(Drop(dead))
        log = TopicLog(
            text,
            record.incarnation,
            self._ledger_ids,
            self._cache,
            ledger_entries_max=config.ledger_entries_max,
            ledger_bytes_max=config.ledger_bytes_max,
            ledger_age_ms_max=config.ledger_age_ms_max,
            recovered=recovered,
            saved=record,
            fresh=fresh,
        )
        topic = Topic(name, record, log, self._outbox, limits=self._limits.of(name), on_confirmed=self._on_confirmed)
        self._topics[text] = topic
        topic.set_durable(config.fsync == "always" or self._links.geo_replicated(name))
        for part in self._parts:
            part.topic_added(topic)
        if fresh:
            for part in self._parts:
                part.topic_loaded(topic)
        return topic

    def _confirmed(self, topic: Topic) -> None:
        self._links.confirmed(topic)
        self._fences.confirmed(topic)

    def remove(self, topic: Topic) -> None:
        """A topic is gone (durably)."""
        self._topics.pop(topic.text, None)
        for subscription in list(topic.subscriptions.values()):
            subscription.close("topic deleted")
            self.forget_subscription(topic, subscription)
        self._series.topics.gone(topic.text, topic.traffic())
        for part in self._parts:
            part.topic_removed(topic)

    def deletion_keys(self, topic: Topic) -> list[str]:
        """The keys of all parts that the transaction that deletes a topic has to delete, see
        `TopicPart.deletion_keys`.
        """
        return [key for part in self._parts for key in part.deletion_keys(topic)]

    def deletion_failed(self, topic: Topic) -> None:
        """The store refused a topic's deletion: state that was not stored because of it is stored soon."""
        for subscription in topic.subscriptions.values():
            if subscription.durable:
                self._cursor_dirty(subscription)
        for part in self._parts:
            part.deletion_failed(topic)

    # -------------------------------------------------------------------------------------------------- subscriptions

    def make_subscription(
        self, topic: Topic, name: str, cursor: Cursor, *, durable: bool, from_beginning: bool = False
    ) -> Subscription:
        """Create a subscription of a topic with a cursor.

        Args:
            topic, name, cursor, durable: of the subscription.
            from_beginning: the cursor is at the beginning of the topic, and no consumer has read it yet.
        """
        topic.withdrawals.acknowledge_in(cursor)
        made = Subscription(
            self._outbox,
            topic.log,
            topic.text,
            name,
            cursor,
            durable=durable,
            partition=topic.name.partition,
            config=self._context.config,
            bytes_max=self._cursor_bytes_max,
            withdrawals=topic.withdrawals,
            from_beginning=from_beginning,
            ended=topic.ended,
            command=self._context.command,
            on_dirty=self._cursor_dirty if durable else _ignore,
            on_detached=self._clients.consumer_detached,
            on_left_out=self._ranges_left_out,
        )
        self._limits.made(topic, made)
        return made

    def _ranges_left_out(self, more: int) -> None:
        self.ranges_left_out += more

    def forget_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """A subscription no longer belongs to its topic."""
        topic.forget(subscription)
        self._series.subscriptions.gone((topic.text, subscription.name), subscription.counters()[:2])

    def after_consumer_left(self, subscription: Subscription) -> None:
        """A reader's subscription ends with its consumer; a fenced one may have waited for the consumer to leave."""
        self._fences.cursor_changed(subscription)
        if subscription.durable or subscription.consumers:
            return
        topic = self._topics.get(subscription.topic)
        if topic is not None and topic.subscriptions.get(subscription.name) is subscription:
            self.forget_subscription(topic, subscription)

    def _cursor_dirty(self, subscription: Subscription) -> None:
        if not self._going(subscription):
            self._flusher.dirty(cursor_key(subscription.topic, subscription.name), subscription)
        self._fences.cursor_changed(subscription)

    def _going(self, subscription: Subscription) -> bool:
        """Whether it, or its topic, is being deleted: state that is stored from now on would outlive the deletion, and
        appear in the next topic of this name.
        """
        topic = self._topics.get(subscription.topic)
        return subscription.closed or (topic is not None and topic.deleting)

    def when_cursor_durable(self, subscription: Subscription, then: Callable[[str], None]) -> None:
        """Call `then` when a subscription's cursor as it is now is durable."""
        if self._going(subscription):
            then("the subscription is gone")
        else:
            self._flusher.when_durable(cursor_key(subscription.topic, subscription.name), subscription, then)


def _ignore(subscription: Subscription) -> None:
    """A reader's cursor is stored nowhere."""
