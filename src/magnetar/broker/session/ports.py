"""A topic as a session sees it: what differs between topics that store messages and those that store none.

    PRODUCER, SEND      TopicDomain.open_for_producer -> PublishPort
    SUBSCRIBE           TopicDomain.subscribe -> OpenConsumer, of which ACK, FLOW and the like ask the subscription

`persistent` and `nonpersistent` implement them. The state of a producer or consumer on its way
(being opened, probed, closed) is one for both, and is kept by `producers` and `consumers`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from magnetar.broker.catalog.subscriber import Subscriber
from magnetar.broker.connection import Connection
from magnetar.broker.publish.opening import InOrder
from magnetar.broker.publish.producers import Producer, Producers
from magnetar.broker.publish.throttling import Throttled
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.schemas import SchemaTopic
from magnetar.core.errors import BrokerError, ProtocolError
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.storage.entries import Append
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frames import Frame

Done = Callable[[BrokerError | None], None]
"""Called once: None for success."""


class PublishTopic(SchemaTopic, Throttled, Protocol):
    """What is asked of a topic of either domain."""

    @property
    def producers(self) -> Producers:
        """Who may publish."""


class Publisher(Protocol):
    """The producers of one connection (`session.producers.SessionProducers`).

    Attributes:
        connection: whose.
        in_order: SENDs that wait until a batch is opened off the event loop.
    """

    connection: Connection
    in_order: InOrder

    def evict(self, producer: Producer) -> None:
        """The broker closes a producer."""

    def publishing(self, append: Append, size: int) -> None:
        """So many published bytes are on their way to the disk."""

    def broke_protocol(self, error: ProtocolError) -> None:
        """End the connection: it sent what cannot be, and there is no caller who could be told."""

    def throttled(self, size: int) -> None:
        """So many bytes more (or fewer, below 0) wait."""


class PublishPort(Protocol):
    """A topic to which a producer of a session publishes, or wants to."""

    @property
    def topic(self) -> PublishTopic:
        """The topic."""

    def check(self, command: pb.CommandProducer) -> None:
        """Refuse what can be refused before the schema is looked at.

        Raises:
            BrokerError: the producer may not come.
        """

    def renewed(self) -> "PublishPort":
        """The topic as it is now: one that stores nothing may have ended, and begun again, meanwhile.

        Raises:
            BrokerError: there is none any more.
        """

    def name_for(self, connection: Connection) -> str:
        """A name for a producer that brought none."""

    def admits(
        self,
        connection: Connection,
        producer: Producer,
        command: pb.CommandProducer,
        again: Callable[[], None],
        give_up: Callable[[BrokerError], None],
    ) -> bool:
        """Whether a producer may be taken in now.

        Returns:
            False: something has to happen first; then `again` is called, or `give_up`.

        Raises:
            BrokerError: it may not come.
        """

    def begin(self, producer: Producer, then: Done) -> None:
        """A producer has its place: call `then` when its client may know it."""

    def publish(self, publisher: Publisher, producer: Producer, frames: list[Frame]) -> None:
        """Publish SENDs that no rate holds back.

        Raises:
            ProtocolError: the connection has to end.
        """

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call `then` behind the answers to everything that was published so far."""

    def leaving(self, producer: Producer) -> None:
        """A producer is about to lose its place."""

    def left(self) -> None:
        """A producer left, or an attempt to open one was given up."""


class ConsumedSubscription(Protocol):
    """What is asked of a subscription of either domain."""

    @property
    def name(self) -> str:
        """Of the subscription."""

    def flow(self, consumer: Consumer, permits: int) -> None:
        """A consumer asks for so many messages more."""

    def ack(self, consumer: Consumer, ids: Sequence[pb.MessageIdData], *, cumulative: bool) -> bool:
        """Acknowledge; whether anything changed that is stored.

        Raises:
            BrokerError: a cumulative acknowledgement is not possible here.
        """

    def redeliver(self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None) -> None:
        """Send again what a consumer did not acknowledge."""

    def pause(self, connection: int) -> None:
        """A connection takes no more bytes."""

    def resume(self, connection: int) -> None:
        """A connection takes bytes again."""


class OpenConsumer(Protocol):
    """A consumer that a subscription took, and where it is."""

    @property
    def consumer(self) -> Consumer:
        """The consumer."""

    @property
    def subscription(self) -> ConsumedSubscription:
        """The subscription that took it."""

    @property
    def topic_name(self) -> TopicName:
        """Of its topic."""

    def leave(self) -> None:
        """The consumer is gone: its subscription lets it go, and ends if it was the last one and keeps nothing."""

    def unsubscribe(self, *, force: bool, done: Done) -> None:
        """Delete the subscription, if the consumer is alone on it (or `force`)."""

    def when_durable(self, then: Callable[[str], None]) -> None:
        """Call `then` with "" when everything acknowledged is durable, or with what went wrong."""

    def seek(self, command: pb.CommandSeek, done: Done) -> None:
        """Move the subscription."""

    def last_message_id(self, request_id: int) -> bytes:
        """The answer to GET_LAST_MESSAGE_ID.

        Raises:
            BrokerError: the topic stores no messages.
        """

    def stats(self) -> dict[str, Any]:
        """The fields of CommandConsumerStatsResponse, without the request's."""


class ConsumerSide(Subscriber, Protocol):
    """A connection on behalf of which a consumer subscribes (`session.consumers.SessionConsumers`)."""

    def joined(self, opened: OpenConsumer, request_id: int) -> None:
        """A subscription takes a consumer: its client is answered before it is sent anything else."""


class TopicDomain(Protocol):
    """How producers and consumers come to the topics of one domain."""

    def open_for_producer(
        self, name: TopicName, then: Callable[[PublishPort | None, BrokerError | None], None]
    ) -> None:
        """Have a topic for a producer, made if policies say so: `then` gets it, or why there is none."""

    def subscribe(self, side: ConsumerSide, name: TopicName, command: pb.CommandSubscribe, done: Done) -> None:
        """Let a consumer onto a subscription: success is answered through `side.joined`, `done` follows in any case."""
