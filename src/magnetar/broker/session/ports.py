"""The interface of topics for sessions: the operations that differ between topics that store messages and those that do
not.

    PRODUCER, SEND      TopicDomain.open_for_producer -> PublishPort
    SUBSCRIBE           TopicDomain.subscribe -> OpenConsumer, of which ACK, FLOW and the like ask the subscription

`persistent` and `nonpersistent` implement them. The state of a producer or consumer that is being opened, probed or
closed is the same for both, and is kept by `producers` and `consumers`.
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
from magnetar.wire.frame import Frame

Done = Callable[[BrokerError | None], None]
"""Called once: None for success."""


class PublishTopic(SchemaTopic, Throttled, Protocol):
    """A topic of either domain, for its producers."""

    @property
    def producers(self) -> Producers:
        """The producers that may publish."""


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
        """This many published bytes are in flight to the disk."""

    def broke_protocol(self, error: ProtocolError) -> None:
        """End the connection: it broke the protocol, and there is no caller that could get the error."""

    def throttled(self, size: int) -> None:
        """Count this many more waiting bytes (or fewer, if negative)."""


class PublishPort(Protocol):
    """A topic to which a producer of a session publishes, or wants to."""

    @property
    def topic(self) -> PublishTopic:
        """The topic."""

    def check(self, command: pb.CommandProducer) -> None:
        """Refuse what can be refused before the schema is looked at.

        Raises:
            BrokerError: the producer is refused.
        """

    def renewed(self) -> "PublishPort":
        """The present topic of this name: a non-persistent one may have ended, and begun again, in the meantime.

        Raises:
            BrokerError: there is none.
        """

    def name_for(self, connection: Connection) -> str:
        """A name for a producer that sent none."""

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
        """A producer has its access: call `then` when its client may be informed."""

    def publish(self, publisher: Publisher, producer: Producer, frames: list[Frame]) -> None:
        """Publish SENDs that no rate holds back.

        Raises:
            ProtocolError: the connection has to end.
        """

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call `then` after the answers to everything that was published so far."""

    def leaving(self, producer: Producer) -> None:
        """A producer is about to lose its access."""

    def left(self) -> None:
        """A producer left, or an attempt to open one was given up."""


class ConsumedSubscription(Protocol):
    """A subscription of either domain, for its consumers."""

    @property
    def name(self) -> str:
        """The subscription's name."""

    def flow(self, consumer: Consumer, permits: int) -> None:
        """A consumer requests this many more messages."""

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
        """The topic's name."""

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
    """The topics of one domain, for opening producers and consumers."""

    def open_for_producer(
        self, name: TopicName, then: Callable[[PublishPort | None, BrokerError | None], None]
    ) -> None:
        """Have a topic for a producer, made if policies say so: `then` gets it, or why there is none."""

    def subscribe(self, side: ConsumerSide, name: TopicName, command: pb.CommandSubscribe, done: Done) -> None:
        """Let a consumer onto a subscription: success is answered through `side.joined`, `done` follows in any case."""
