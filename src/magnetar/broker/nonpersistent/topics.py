"""The non-persistent topics of one broker: one begins when a client opens it, and ends without clients."""

from collections.abc import Callable, Iterable, Sized
from typing import Final, Protocol

from magnetar.broker.context import BrokerContext
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.publish.producers import Producer
from magnetar.broker.statistics.cardinality import Series
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.storage.topiclog import LedgerIds

CLIENTS_BACK_MS: Final = 60_000
"""The time for which clients that were asked to reconnect find their topic: it is their longest pause between two
attempts.
"""


class Names(Protocol):
    """Decides which topics may exist (`catalog.catalog.Catalog`)."""

    def may_come(self, name: TopicName) -> bool:
        """Whether a client's use makes a topic."""

    def check_namespace(self, name: TopicName) -> None:
        """Raises BrokerError: the namespace does not exist, or is not of this cluster."""

    def check_creatable(self, name: TopicName, create: bool) -> None:
        """Raises BrokerError: the topic cannot be made."""

    def check_room(self, namespace: NamespaceName, more: int) -> None:
        """Raises BrokerError: the namespace has as many topics as it may."""


class Clients(Protocol):
    """The producers and consumers of all connections (`clients.Clients`)."""

    def close_producer(self, producer: Producer) -> None:
        """Close a producer from this side."""

    def close_consumer(self, consumer: Consumer) -> None:
        """Close a consumer from this side."""

    def consumer_detached(self, connection: int, consumer_id: int) -> None:
        """A consumer is removed without informing its client: its id is free again."""


class NonPersistentTopics:
    """The non-persistent topics by name.

    Args:
        context: the broker's context.
        stored: the persistent topics, which count with these.
        ledger_ids: gives every topic an id that is in its message ids.
        series: keeps the sums of topics and subscriptions that are gone.
        clients: closes clients.
        names: returns the object that decides which topics may exist; it is below in the import order and is
            created later.
        added: called with a topic that began: sets its limits.
    """

    def __init__(
        self,
        context: BrokerContext,
        stored: Sized,
        ledger_ids: LedgerIds,
        series: Series,
        clients: Clients,
        *,
        names: Callable[[], Names],
        added: Callable[[NonPersistentTopic], None],
    ) -> None:
        self._context = context
        self._stored = stored
        self._names = names
        self._ledger_ids = ledger_ids
        self._series = series
        self._clients = clients
        self._added = added
        self.topics: dict[str, NonPersistentTopic] = {}

    def open(self, name: TopicName, *, create: bool = True) -> NonPersistentTopic:
        """The topic; it is created if `create`, or if it is a partition of an existing partitioned topic.

        Raises:
            BrokerError: its namespace does not exist or is not of this cluster, it is partitioned, there are too many
                topics, or no client has it open.
        """
        return self._have(name, create and self._names().may_come(name))

    def _have(self, name: TopicName, create: bool) -> NonPersistentTopic:
        topic = self.topics.get(str(name))
        if topic is not None:
            return topic
        names = self._names()
        names.check_namespace(name)
        names.check_creatable(name, create)
        names.check_room(name.namespace_name, 1)
        most, outbox = self._context.config.topics_max, self._context.outbox
        if len(self._stored) + len(self.topics) >= most:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"{most} topics exist, the most allowed (topics_max)")
        topic = NonPersistentTopic(name, outbox, self._ledger_ids.allocate(outbox.now_ms))
        self.topics[topic.text] = topic
        self._added(topic)
        return topic

    def keep(self, name: TopicName) -> None:
        """Keep a topic, with or without clients, until it is deleted or the broker ends.

        An administrator requests it: it does not matter whether clients may create topics.

        Raises:
            BrokerError: as `open`.
        """
        self._have(name, create=True).keep(True)

    def delete(self, texts: list[str], *, force: bool) -> bool:
        """End topics, with `force` also those with clients; returns whether any of them existed.

        Raises:
            PreconditionFailed: a topic has clients.
        """
        found = [self.topics[text] for text in texts if text in self.topics]
        for topic in found:
            if topic.used and not force:
                raise PreconditionFailed(f"topic {topic.text} has producers or consumers; close them or use force")
        for topic in found:
            topic.keep(False)
            topic.expect_clients(False)
            self.close_clients(topic)
        return bool(found)

    def unload(self, topic: NonPersistentTopic) -> None:
        """Close its clients, which reconnect. It stays meanwhile, because clients that may not create a topic would not
        find it.
        """
        topic.expect_clients(True)
        self.close_clients(topic)

        def waited(_now_ms: int) -> None:
            topic.expect_clients(False)
            self.left(topic)

        self._context.timer(self._context.outbox.now_ms + CLIENTS_BACK_MS, waited)

    def delete_subscription(self, topic: NonPersistentTopic, name: str, *, force: bool) -> None:
        """Close the consumers of a subscription, which ends with the last one.

        Raises:
            NotFound: no such subscription. PreconditionFailed: not `force`: it has consumers as long as it exists.
        """
        found = topic.subscriptions.get(name)
        if found is None:
            raise NotFound(f"subscription {name} of {topic.text} does not exist")
        if not force:
            raise PreconditionFailed(f"subscription {name} of {topic.text} has consumers; close them or use force")
        self.evict(found.consumers)

    def evict(self, consumers: Iterable[Consumer]) -> None:
        """Close consumers from this side."""
        for consumer in list(consumers):
            self._clients.close_consumer(consumer)

    def detach(self, consumer: Consumer) -> None:
        """A consumer is removed without informing its client: its id is free again."""
        self._clients.consumer_detached(consumer.connection, consumer.consumer_id)

    def close_clients(self, topic: NonPersistentTopic) -> None:
        """Close all producers and consumers of a topic from this side; unless it is kept, it ends."""
        for producer in topic.producers.everybody():
            self._clients.close_producer(producer)
        self.evict(one for subscription in topic.subscriptions.values() for one in subscription.consumers)
        self.left(topic)

    def left(self, topic: NonPersistentTopic) -> None:
        """A client left a topic: without clients it ends."""
        if not (topic.used or topic.kept or topic.expecting) and self.topics.get(topic.text) is topic:
            del self.topics[topic.text]
            self._series.topics.gone(topic.text, topic.traffic())

    def of(self, namespace: NamespaceName) -> list[str]:
        """Names of those of a namespace, sorted."""
        prefix = f"non-persistent://{namespace}/"
        return sorted(text for text in self.topics if text.startswith(prefix))

    def validate(self) -> None:
        """Check what must hold after every step."""
        for topic in self.topics.values():
            topic.validate()
