"""Non-persistent topics as sessions see them (`ports`)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from magnetar.broker.client_bytes import ClientBytes
from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.nonpersistent.subscription import NonPersistentSubscription
from magnetar.broker.nonpersistent.topic import NonPersistentTopic
from magnetar.broker.nonpersistent.topics import NonPersistentTopics
from magnetar.broker.publish.producers import Producer
from magnetar.broker.publish.publishing import check_transaction, error_for_client, refused_id
from magnetar.broker.session.ports import ConsumerSide, Done, Publisher, PublishPort
from magnetar.broker.statistics.cardinality import Series
from magnetar.broker.statistics.subscription_stats import consumer_fields
from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.subscription import policy_of
from magnetar.broker.topics.limits import TopicLimits, check_type
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import check_encrypted, check_encrypts, check_size
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Note
from magnetar.storage.entries import NewEntry
from magnetar.wire import commands, metadata
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame


class Prober(Protocol):
    """Finds out whether clients live."""

    def probe(self, holder: int, asker: int, then: Callable[[], None]) -> None:
        """Check whether the client of connection `holder` is still alive; `then` is called with the answer known."""


class NonPersistentDomain:
    """The non-persistent topics of a broker (`ports.TopicDomain`).

    Args:
        context: the broker's context.
        topics: opens topics, and ends them when the last client left.
        schemas: checks the schemas of clients.
        client_bytes: counts the memory for clients' metadata.
        series: keeps the sums of topics and subscriptions that are gone.
        clients: probes clients.
        limits_of: gives the limits of a topic from its policies.
        producer_name, consumer_name: give names to clients that sent none.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: NonPersistentTopics,
        schemas: Schemas,
        client_bytes: ClientBytes,
        series: Series,
        clients: Prober,
        *,
        limits_of: Callable[[TopicName], TopicLimits],
        producer_name: Callable[[], str],
        consumer_name: Callable[[], str],
    ) -> None:
        self.context = context
        self.topics = topics
        self.limits_of = limits_of
        self.producer_name = producer_name
        self._schemas = schemas
        self._client_bytes = client_bytes
        self._series = series
        self._clients = clients
        self._consumer_name = consumer_name

    def open_for_producer(
        self, name: TopicName, then: Callable[[PublishPort | None, BrokerError | None], None]
    ) -> None:
        """See `ports.TopicDomain`."""
        try:
            topic = self.topics.open(name)
        except BrokerError as error:
            then(None, error)
        else:
            then(NonPersistentPort(self, topic), None)

    def subscribe(self, side: ConsumerSide, name: TopicName, command: pb.CommandSubscribe, done: Done) -> None:
        """See `ports.TopicDomain`."""
        create = command.force_topic_creation
        try:
            if command.subType not in set(SubType):
                raise BrokerError(ErrorCode.NOT_ALLOWED, f"subscription type {command.subType} is not known")
            if command.read_compacted:
                raise _stores_nothing("reading compacted")
            topic = self.topics.open(name, create=create)
        except BrokerError as error:
            done(error)
            return

        def checked(_version: bytes, error: BrokerError | None) -> None:
            if error is not None or not side.awaited(command):
                self.topics.left(topic)
                done(error)
            else:
                self._join(side, name, command, done, create=create)

        self._schemas.for_consumer(topic, command, checked)

    def _join(
        self, side: ConsumerSide, name: TopicName, command: pb.CommandSubscribe, done: Done, *, create: bool
    ) -> None:
        if not side.awaited(command):
            return
        try:
            # Others may have come and gone meanwhile, and the topic with them.
            topic = self.topics.open(name, create=create)
        except BrokerError as error:
            done(error)
            return
        connection = side.connection
        own_name = command.consumer_name or self._consumer_name()
        consumer = Consumer.of_command(connection, command, own_name, self.context.outbox.now_ms)
        consumer.paused = not connection.writable
        subscription = topic.subscriptions.get(command.subscription)
        if subscription is None:
            outbox, partition = self.context.outbox, topic.name.partition
            subscription = NonPersistentSubscription(outbox, topic, command.subscription, partition)
        joined = subscription

        def accepted() -> None:
            # The client has SUCCESS before whatever taking the consumer causes (ACTIVE_CONSUMER_CHANGE).
            topic.add_subscription(joined)
            side.joined(NonPersistentConsumer(self, consumer, joined), command.request_id)

        policy = policy_of(command.keySharedMeta if command.HasField("keySharedMeta") else None)
        try:
            self._check_room(topic, subscription, consumer)
            consumer.held = self._client_bytes.held(connection.number, topic.text, command)
            subscription.add(consumer, policy, accepted)
        except BrokerError as error:
            busy = error.code in (ErrorCode.CONSUMER_BUSY, ErrorCode.CONSUMER_ASSIGN)
            holder = subscription.in_the_way(consumer, policy) if busy else None
            if holder is not None and side.first_probe(command):
                # Its client may be gone without a word, and this be its successor.
                again = partial(self._join, side, name, command, done, create=True)
                self._clients.probe(holder.connection, connection.number, again)
                return
            self.topics.left(topic)
            done(error)
        else:
            done(None)

    def _check_room(
        self, topic: NonPersistentTopic, subscription: NonPersistentSubscription, consumer: Consumer
    ) -> None:
        """Refuse a consumer of a type that is not allowed, or one too many.

        Raises:
            BrokerError: it may not come.
        """
        limits = self.limits_of(topic.name)
        check_type(consumer.sub_type, limits, topic.text)
        if topic.consumer_count() >= limits.consumers:
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY,
                f"topic {topic.text} has {topic.consumer_count()} consumers, the most allowed "
                f"({limits.sources['max-consumers']})",
            )
        present = len(subscription.consumers)
        if consumer.sub_type is not SubType.EXCLUSIVE and present >= limits.consumers_per_subscription:
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY,
                f"subscription {subscription.name} of {topic.text} has {present} consumers, the most allowed "
                f"({limits.sources['max-consumers-per-subscription']})",
            )

    def consumer_left(self, consumer: Consumer, subscription: NonPersistentSubscription) -> None:
        """A consumer is gone; with the last one the subscription is, and with the last client the topic."""
        subscription.remove(consumer)
        topic = subscription.topic
        if not subscription.consumers and topic.subscriptions.get(subscription.name) is subscription:
            topic.drop_subscription(subscription.name)
            self._series.subscriptions.gone((topic.text, subscription.name), subscription.counters()[:2])
        self.topics.left(topic)


class NonPersistentPort:
    """A non-persistent topic to which a producer of a session publishes (`ports.PublishPort`)."""

    __slots__ = ("_domain", "topic")

    def __init__(self, domain: NonPersistentDomain, topic: NonPersistentTopic) -> None:
        self._domain = domain
        self.topic = topic

    def check(self, command: pb.CommandProducer) -> None:
        """See `ports.PublishPort`."""
        check_encrypts(command, self._domain.limits_of(self.topic.name), self.topic.text)

    def renewed(self) -> PublishPort:
        """See `ports.PublishPort`."""
        return NonPersistentPort(self._domain, self._domain.topics.open(self.topic.name))

    def name_for(self, connection: Connection) -> str:
        """See `ports.PublishPort`."""
        return self._domain.producer_name()

    def admits(
        self,
        connection: Connection,
        producer: Producer,
        command: pb.CommandProducer,
        again: Callable[[], None],
        give_up: Callable[[BrokerError], None],
    ) -> bool:
        """See `ports.PublishPort`. An initial subscription is ignored: it would keep nothing."""
        return True

    def begin(self, producer: Producer, then: Done) -> None:
        """See `ports.PublishPort`."""
        then(None)

    def publish(self, publisher: Publisher, producer: Producer, frames: list[Frame]) -> None:
        """See `ports.PublishPort`."""
        topic, connection = self.topic, publisher.connection
        limits, config = self._domain.limits_of(topic.name), self._domain.context.config
        entries: list[NewEntry] = []
        receipts: list[tuple[int, int]] = []
        for frame in frames:
            send = frame.send
            try:
                seen = metadata.inspect(frame.payload, message_bytes_max=config.message_bytes_max)
                metadata.check_client_entry(seen, marker=send.marker)
                check_transaction(send)
                check_size(seen, len(frame.payload), limits, topic.text)
                check_encrypted(seen, limits, topic.text)
            except BrokerError as error:
                text = f"refused a message of {connection.address} on {topic.text}: {error.message}"
                connection.outbox.put(Note("warning", text))
                if entries:
                    # Their receipts first: clients look for the error at the oldest message that they have pending.
                    topic.publish(producer, entries, receipts)
                    entries, receipts = [], []
                shown = error_for_client(error, connection.client_version)
                connection.send(commands.send_error(producer.producer_id, refused_id(send), shown.code, shown.message))
                continue
            entries.append(NewEntry(seen.payload, seen.flags, seen.count, seen.publish_time))
            receipts.append((send.sequence_id, send.highest_sequence_id))
        if entries:
            topic.publish(producer, entries, receipts)

    def when_answered(self, then: Callable[[], None]) -> None:
        """See `ports.PublishPort`. Everything published is answered at once."""
        then()

    def leaving(self, producer: Producer) -> None:
        """See `ports.PublishPort`."""

    def left(self) -> None:
        """See `ports.PublishPort`."""
        self._domain.topics.left(self.topic)


class NonPersistentConsumer:
    """A consumer of a non-persistent topic (`ports.OpenConsumer`)."""

    __slots__ = ("_domain", "consumer", "subscription")

    def __init__(
        self, domain: NonPersistentDomain, consumer: Consumer, subscription: NonPersistentSubscription
    ) -> None:
        self._domain = domain
        self.consumer = consumer
        self.subscription = subscription

    @property
    def topic_name(self) -> TopicName:
        """See `ports.OpenConsumer`."""
        return self.subscription.topic.name

    def leave(self) -> None:
        """See `ports.OpenConsumer`."""
        self._domain.consumer_left(self.consumer, self.subscription)

    def unsubscribe(self, *, force: bool, done: Done) -> None:
        """See `ports.OpenConsumer`."""
        subscription = self.subscription
        if len(subscription.consumers) > 1 and not force:
            done(BrokerError(ErrorCode.METADATA, f"subscription {subscription.name} has other consumers"))
            return
        self._domain.topics.detach(self.consumer)
        self.leave()
        self._domain.topics.evict(subscription.consumers)
        done(None)

    def when_durable(self, then: Callable[[str], None]) -> None:
        """See `ports.OpenConsumer`. Nothing has to become durable."""
        then("")

    def seek(self, command: pb.CommandSeek, done: Done) -> None:
        """See `ports.OpenConsumer`."""
        done(_stores_nothing("a seek"))

    def last_message_id(self, request_id: int) -> bytes:
        """See `ports.OpenConsumer`."""
        raise _stores_nothing("the last message id")

    def stats(self) -> dict[str, Any]:
        """See `ports.OpenConsumer`."""
        return consumer_fields(self.consumer, backlog=0)


def _stores_nothing(what: str) -> BrokerError:
    return BrokerError(ErrorCode.NOT_ALLOWED, f"{what} needs stored messages; a non-persistent topic stores none")
