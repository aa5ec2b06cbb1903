"""The non-persistent topics of one broker: they come when somebody opens them and go when nobody is there."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.errors import NotFound, PreconditionFailed

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

CLIENTS_BACK_MS: Final = 60_000
"""How long clients that were told to go and come back find their topic: they wait no longer between two attempts."""


class NonPersistentTopics:
    """By name.

    Args:
        broker: whose.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.topics: dict[str, NonPersistentTopic] = {}

    def open(self, name: TopicName, *, create: bool = True) -> NonPersistentTopic:
        """The topic; it comes into being if `create`, or as a partition of a topic that has it.

        Raises:
            BrokerError: its namespace does not exist or is not of this cluster, it is partitioned, there are too many topics, or
                nobody has it open.
        """
        return self._have(name, create and self._broker.catalog.may_come(name))

    def _have(self, name: TopicName, create: bool) -> NonPersistentTopic:
        topic = self.topics.get(str(name))
        if topic is not None:
            return topic
        broker = self._broker
        broker.catalog.check_namespace(name)
        broker.catalog.check_creatable(name, create)
        broker.catalog.check_room(name.namespace_name, 1)
        if len(broker.topics) + len(self.topics) >= broker.config.topics_max:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, f"{broker.config.topics_max} topics exist, the most allowed (topics_max)"
            )
        ledger = broker.ledger_ids.allocate(broker.outbox.now_ms)
        topic = NonPersistentTopic(name, broker.outbox, ledger)
        self.topics[topic.text] = topic
        broker.limits.passing_added(topic)
        return topic

    def keep(self, name: TopicName) -> None:
        """Have a topic, whoever is there, until it is deleted or the broker ends.

        An administrator asks for it: whether clients may create topics does not matter.

        Raises:
            BrokerError: as `open`.
        """
        self._have(name, create=True).kept = True

    def delete(self, texts: list[str], *, force: bool) -> bool:
        """End topics, with `force` also those where somebody is; whether there was any of them.

        Raises:
            PreconditionFailed: somebody is there.
        """
        found = [self.topics[text] for text in texts if text in self.topics]
        for topic in found:
            if topic.used and not force:
                raise PreconditionFailed(f"topic {topic.text} has producers or consumers; close them or use force")
        for topic in found:
            topic.kept = topic.expecting = False
            self.close_clients(topic)
        return bool(found)

    def unload(self, topic: NonPersistentTopic) -> None:
        """Close its clients, who come back. It stays for so long: those that want no new topic would not find it."""
        topic.expecting = True
        self.close_clients(topic)

        def waited(_now_ms: int) -> None:
            topic.expecting = False
            self.left(topic)

        self._broker.timer(self._broker.outbox.now_ms + CLIENTS_BACK_MS, waited)

    def delete_subscription(self, topic: NonPersistentTopic, name: str, *, force: bool) -> None:
        """Close the consumers of a subscription, which goes with the last one.

        Raises:
            NotFound: no such subscription. PreconditionFailed: not `force`, for it has consumers as long as it lives.
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
            self._broker.sessions[consumer.connection].nonpersistent.evict_consumer(consumer)

    def close_clients(self, topic: NonPersistentTopic) -> None:
        """Close all producers and consumers of a topic from this side; unless it is kept, it ends."""
        for producer in topic.producers.everybody():
            self._broker.clients.close_producer(producer)
        self.evict(one for subscription in topic.subscriptions.values() for one in subscription.consumers)
        self.left(topic)

    def left(self, topic: NonPersistentTopic) -> None:
        """Somebody left a topic: without anybody it ends."""
        if not (topic.used or topic.kept or topic.expecting) and self.topics.get(topic.text) is topic:
            del self.topics[topic.text]
            self._broker.series.topics.gone(topic.text, topic.traffic())

    def of(self, namespace: NamespaceName) -> list[str]:
        """Names of those of a namespace, sorted."""
        prefix = f"non-persistent://{namespace}/"
        return sorted(text for text in self.topics if text.startswith(prefix))

    def validate(self) -> None:
        """Check what must hold after every step."""
        for topic in self.topics.values():
            topic.validate()
