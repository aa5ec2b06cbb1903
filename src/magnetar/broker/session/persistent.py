"""Persistent topics as sessions see them (`ports`)."""

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Protocol

from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.publish.deduplication import Status
from magnetar.broker.publish.deduplication_policy import Deduplications
from magnetar.broker.publish.opening import Elsewhere
from magnetar.broker.publish.producers import Producer, same_producer
from magnetar.broker.publish.publishing import Publishing
from magnetar.broker.security.access import Access
from magnetar.broker.security.authorization import Operation
from magnetar.broker.session.ports import ConsumerSide, Done, Publisher, PublishPort
from magnetar.broker.statistics.subscription_stats import consumer_stats
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import QuotaStop, Topic, check_encrypts
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.core.ids import NONE, Position
from magnetar.core.names import TopicName
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar.wire.idempotency_keys import Found


class Cursors(Protocol):
    """The part of the broker that consumers of persistent topics use."""

    def after_consumer_left(self, subscription: Subscription) -> None:
        """A reader's subscription ends with its consumer."""

    def when_cursor_durable(self, subscription: Subscription, then: Callable[[str], None]) -> None:
        """Call `then` when a subscription's cursor as it is now is durable."""


class PersistentDomain:
    """The persistent topics of a broker (`ports.TopicDomain`).

    Args:
        context: the broker's context.
        topics: the topics by name.
        catalog: opens topics and subscriptions.
        access: authorization.
        deduplications: deduplication of all topics; also says whether producer names begin with the client's role.
        cursors: stores cursors.
        producer_name: gives a name to a producer that sent none.
        quota_stop: the reason why a topic accepts no producers now; None: it does.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: MutableMapping[str, Topic],
        catalog: Catalog,
        access: Access,
        deduplications: Deduplications,
        cursors: Cursors,
        *,
        producer_name: Callable[[], str],
        quota_stop: Callable[[Topic], QuotaStop | None],
    ) -> None:
        self.context = context
        self.topics = topics
        self.catalog = catalog
        self.access = access
        self.deduplications = deduplications
        self.cursors = cursors
        self.producer_name = producer_name
        self.quota_stop = quota_stop

    def open_for_producer(
        self, name: TopicName, then: Callable[[PublishPort | None, BrokerError | None], None]
    ) -> None:
        """See `ports.TopicDomain`."""

        def opened(topic: Topic | None, error: BrokerError | None) -> None:
            then(PersistentPort(self, topic) if topic is not None else None, error)

        self.catalog.open(name, create=True, then=opened)

    def subscribe(self, side: ConsumerSide, name: TopicName, command: pb.CommandSubscribe, done: Done) -> None:
        """See `ports.TopicDomain`."""

        def opened(topic: Topic | None, error: BrokerError | None) -> None:
            if topic is None or not side.awaited(command):
                done(error or BrokerError(ErrorCode.UNKNOWN, "the topic could not be opened"))
            else:
                self.catalog.attach_consumer(side, topic, command, done)

        self.catalog.open(name, create=command.force_topic_creation, then=opened)


class PersistentPort:
    """A persistent topic to which a producer of a session publishes (`ports.PublishPort`)."""

    __slots__ = ("_domain", "topic")

    def __init__(self, domain: PersistentDomain, topic: Topic) -> None:
        self._domain = domain
        self.topic = topic

    def check(self, command: pb.CommandProducer) -> None:
        """See `ports.PublishPort`."""
        self.topic.check_writable()
        check_encrypts(command, self.topic.limits, self.topic.text)

    def renewed(self) -> PublishPort:
        """See `ports.PublishPort`. It is the same; if it is being deleted, `admits` says so."""
        return self

    def name_for(self, connection: Connection) -> str:
        """A name for a producer that sent none. The client sends this one when it reconnects."""
        name, role = self._domain.producer_name(), connection.role
        return f"{role}-{name}" if self._domain.deduplications.names_begin_with_role and role else name

    def admits(
        self,
        connection: Connection,
        producer: Producer,
        command: pb.CommandProducer,
        again: Callable[[], None],
        give_up: Callable[[BrokerError], None],
    ) -> bool:
        """See `ports.PublishPort`."""
        topic, deduplication = self.topic, self.topic.deduplication
        if deduplication is not None and deduplication.status is Status.RECOVERING:
            # The history decides which messages are new: no producer publishes until it is known again.
            deduplication.when_ready(again)
            return False
        rival = topic.producers.rival(producer.name)
        free = rival is None or same_producer(rival, producer)
        if free and deduplication is not None and topic.appending and deduplication.numbers.undecided(producer.name):
            # It begins after the last number: a number that gets into the log later would be used twice.
            topic.when_answered(again)
            return False
        idempotency = topic.idempotency
        if idempotency is not None and idempotency.status is Status.RECOVERING:
            idempotency.when_ready(again)
            return False
        topic.check_writable()
        if deduplication is not None:
            deduplication.check()
            self._check_name(connection, producer)
        if idempotency is not None:
            idempotency.check()
        if stop := self._domain.quota_stop(topic):
            raise BrokerError(stop.code, stop.reason)
        initial = command.initial_subscription_name
        if initial and not self._domain.catalog.subscription_stored(topic, initial):
            self._subscribe_first(initial, again, give_up)
            return False
        return True

    def _check_name(self, connection: Connection, producer: Producer) -> None:
        """Refuse a name that is not the role's, where names are (`names_begin_with_role`).

        Raises:
            BrokerError: NOT_ALLOWED.
        """
        if not self._domain.access.enabled or not self._domain.deduplications.names_begin_with_role:
            return
        role = connection.role
        if producer.name.startswith(role) or connection.allowed(Operation.ADMIN, self.topic.name):
            return
        raise BrokerError(
            ErrorCode.NOT_ALLOWED,
            f"producer name {producer.name[:100]!r} in {self.topic.text}: there it has to begin with the role's, {role!r} "
            "(names_begin_with_role of [deduplication])",
        )

    def _subscribe_first(self, name: str, again: Callable[[], None], give_up: Callable[[BrokerError], None]) -> None:
        """Create the initial subscription of a producer, or wait until it is stored. If that fails, the producer is refused."""
        topic = self.topic

        def created(error: BrokerError | None) -> None:
            if error is None:
                again()
            else:
                give_up(BrokerError(error.code, f"failed to create the initial subscription: {error.message}"))

        if name not in topic.subscriptions and not topic.limits.new_subscriptions:
            policy = topic.limits.sources["auto-subscription-creation"]
            reason = f"{topic.text} gets no subscriptions but an administrator's ({policy})"
            give_up(BrokerError(ErrorCode.NOT_ALLOWED, reason))
            return
        self._domain.catalog.create_subscription(topic, name, Position(*NONE), created)

    def begin(self, producer: Producer, then: Done) -> None:
        """Answer a producer with exclusive access when it is known where its numbers begin, and the topic's epoch is durable, so
        that after a restart no other producer gets the same one.
        """
        if producer.closed:
            return
        topic, deduplication = self.topic, self.topic.deduplication
        if deduplication is not None and producer.ready:
            # While one waits for access, the numbers are the holder's, which may have the same name.
            producer.numbers = deduplication.numbers.attach(producer.name, self._domain.context.outbox.day_ms)
            if topic.appending and deduplication.numbers.undecided(producer.name):
                # The former holder has messages in flight: the new one begins after them.
                topic.when_answered(partial(self.begin, producer, then))
                return
        if not (producer.exclusive and producer.ready):
            then(None)
            return

        def stored(error: BrokerError | None) -> None:
            if not producer.closed and not producer.answered:
                then(error)

        self._domain.catalog.store_epoch(topic, stored)

    def publish(self, publisher: Publisher, producer: Producer, frames: list[Frame]) -> None:
        """See `ports.PublishPort`."""
        if producer.closed:
            return
        topic = self.topic
        if topic.idempotency is None and not publisher.in_order:
            Publishing(publisher, producer, topic).take(frames, self._domain.context.config.message_bytes_max)
        else:
            keyed = _KeyedSends(publisher, topic, self._domain.context.config.message_bytes_max)
            publisher.in_order.publish(keyed, producer, frames)

    def when_answered(self, then: Callable[[], None]) -> None:
        """See `ports.PublishPort`."""
        self.topic.when_answered(then)

    def leaving(self, producer: Producer) -> None:
        """See `ports.PublishPort`."""
        topic, outbox = self.topic, self._domain.context.outbox
        topic.producer_left()
        if topic.deduplication is not None and producer.numbers is not None:
            topic.deduplication.numbers.detach(producer.name, outbox.day_ms)

    def left(self) -> None:
        """See `ports.PublishPort`. A persistent topic stays."""


class _KeyedSends:
    """SENDs of one connection to one topic with idempotency keys (`publish.opening.Publisher`)."""

    __slots__ = ("_message_bytes_max", "_publisher", "_topic")

    def __init__(self, publisher: Publisher, topic: Topic, message_bytes_max: int) -> None:
        self._publisher = publisher
        self._topic = topic
        self._message_bytes_max = message_bytes_max

    def take(self, producer: Producer, frames: list[Frame], found: Found | None) -> Elsewhere | None:
        """Publish SENDs up to one whose batch has to be opened elsewhere; `found` is of the first, when it was opened there."""
        if producer.closed:
            return None
        try:
            return Publishing(self._publisher, producer, self._topic).take(frames, self._message_bytes_max, found)
        except ProtocolError as error:
            if found is None:
                raise
            # It waited: there is no caller to end the connection.
            self._publisher.broke_protocol(error)
            return None

    def throttled(self, size: int) -> None:
        """Count this many more waiting bytes (or fewer, if negative)."""
        self._publisher.throttled(size)


class PersistentConsumer:
    """A consumer of a persistent topic (`ports.OpenConsumer`)."""

    __slots__ = ("_domain", "consumer", "subscription")

    def __init__(self, domain: PersistentDomain, consumer: Consumer, subscription: Subscription) -> None:
        self._domain = domain
        self.consumer = consumer
        self.subscription = subscription

    @property
    def topic_name(self) -> TopicName:
        """See `ports.OpenConsumer`."""
        return TopicName.parse(self.subscription.topic)

    def leave(self) -> None:
        """See `ports.OpenConsumer`."""
        self.subscription.remove_consumer(self.consumer)
        self._domain.cursors.after_consumer_left(self.subscription)

    def unsubscribe(self, *, force: bool, done: Done) -> None:
        """See `ports.OpenConsumer`."""
        self._domain.catalog.unsubscribe(self.subscription, self.consumer, force=force, done=done)

    def when_durable(self, then: Callable[[str], None]) -> None:
        """See `ports.OpenConsumer`."""
        if self.subscription.durable:
            self._domain.cursors.when_cursor_durable(self.subscription, then)
        else:
            then("")

    def seek(self, command: pb.CommandSeek, done: Done) -> None:
        """See `ports.OpenConsumer`."""
        if command.HasField("message_id"):
            self._domain.catalog.seek(self.subscription, command.message_id, None, done)
        elif command.HasField("message_publish_time"):
            self._domain.catalog.seek(self.subscription, None, command.message_publish_time, done)
        else:
            done(BrokerError(ErrorCode.METADATA, "SEEK names neither a message id nor a time"))

    def last_message_id(self, request_id: int) -> bytes:
        """See `ports.OpenConsumer`."""
        topic = self._domain.topics[self.subscription.topic]
        last, batch_index = topic.withdrawals.last_message(*self.subscription.left_out())
        return commands.last_message_id(
            request_id,
            last,
            batch_index=batch_index,
            partition=topic.name.partition,
            mark_delete=self.subscription.mark_delete,
        )

    def stats(self) -> dict[str, Any]:
        """See `ports.OpenConsumer`."""
        return consumer_stats(self.subscription, self.consumer)
