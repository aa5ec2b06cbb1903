"""The clients that are connected to a broker, as its other parts reach them."""

from collections.abc import Callable, Mapping
from typing import Protocol

from magnetar.broker.publish.producers import Producer
from magnetar.broker.security.authorization import Operation, Where
from magnetar.broker.security.credentials import Identity
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.topic import Topic
from magnetar.wire.connection import ServerHandshake
from magnetar.wire.pulsar_pb2 import CommandSubscribe


class OpeningConsumers(Protocol):
    """The consumers of one connection that are not there yet."""

    def awaited(self, command: CommandSubscribe) -> bool:
        """Whether the client still wants the consumer that it asked for."""

    def first_probe(self, command: CommandSubscribe) -> bool:
        """Whether nobody was asked on behalf of this consumer so far."""


class ClientSession(Protocol):
    """One connection as parts to the left of `broker.session` see it.

    Attributes:
        number: of the connection.
        address: of the client, as text.
        handshake: says which version of the protocol the client speaks.
        identity: who it is.
        writable: whether its socket takes more.
    """

    number: int
    address: str
    handshake: ServerHandshake
    identity: Identity
    writable: bool

    @property
    def remembers_migration(self) -> bool:
        """Whether the client can be sent TOPIC_MIGRATED."""

    @property
    def learns_end(self) -> bool:
        """Whether the client can be sent REACHED_END_OF_TOPIC."""

    @property
    def consumers(self) -> OpeningConsumers:
        """Its consumers."""

    def send(self, *buffers: bytes) -> None:
        """Send commands to the client."""

    def close(self, reason: str) -> None:
        """End the connection."""

    def check(self, operation: Operation, where: Where) -> None:
        """Refuse what the client's role may not do.

        Raises:
            BrokerError: AuthorizationError.
        """

    def probe(self, then: Callable[[], None]) -> None:
        """Find out whether its client lives; `then` when that is known."""

    def evict_producer(self, producer: Producer) -> None:
        """Close a producer from this side."""

    def consumer_attached(self, consumer: Consumer, request_id: int, at: int) -> None:
        """A subscription took the consumer; the answer goes to place `at` among the effects."""

    def consumer_detached(self, consumer_id: int) -> None:
        """A subscription let a consumer go."""


class Clients:
    """The sessions of a broker, for parts that have something for a client.

    Args:
        sessions: by the number of the connection; kept by the broker.
    """

    def __init__(self, sessions: Mapping[int, ClientSession]) -> None:
        self._sessions = sessions

    def session(self, connection: int) -> ClientSession | None:
        """The session of a connection; None: it is gone."""
        return self._sessions.get(connection)

    def close_producer(self, producer: Producer) -> None:
        """Close a producer from this side; its client looks the topic up again."""
        session = self._sessions.get(producer.connection)
        if session is not None:
            session.evict_producer(producer)

    def close_all(self, topic: Topic) -> None:
        """Close all producers and consumers of a topic from this side."""
        for producer in topic.producers.everybody():
            self.close_producer(producer)
        for subscription in list(topic.subscriptions.values()):
            subscription.disconnect_all()

    def consumer_detached(self, connection: int, consumer_id: int) -> None:
        """A subscription let a consumer go by itself (seek, deletion): its id is free again."""
        session = self._sessions.get(connection)
        if session is not None:
            session.consumer_detached(consumer_id)

    def probe(self, connection: int, session: ClientSession, then: Callable[[], None]) -> None:
        """Find out whether a client lives that another session's client would take something from; `then` when that is known."""
        holder = self._sessions.get(connection)
        if holder is None or holder is session:
            then()
        else:
            holder.probe(then)
