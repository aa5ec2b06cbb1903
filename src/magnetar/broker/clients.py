"""The clients that are connected to a broker, for its other parts."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from magnetar.broker.connection import Connection
from magnetar.broker.publish.producers import Producer
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.topic import Topic


class ClientProducers(Protocol):
    """The producers of one connection."""

    def evict(self, producer: Producer) -> None:
        """Close a producer from this side, if it is still the one by its id."""

    def successor_ready(self, producer: Producer) -> None:
        """A producer that waited for exclusive access has it now."""


class ClientConsumers(Protocol):
    """The consumers of one connection."""

    def evict(self, consumer: Consumer) -> None:
        """Close a consumer from this side, if it is still the one by its id."""

    def detached(self, consumer_id: int) -> None:
        """A subscription disconnected a consumer: its id is free again."""


class ClientSession(Protocol):
    """One connection and what it has open (`session.session.Session`)."""

    @property
    def connection(self) -> Connection:
        """The connection."""

    @property
    def producers(self) -> ClientProducers:
        """Its producers."""

    @property
    def consumers(self) -> ClientConsumers:
        """Its consumers."""

    def probe(self, then: Callable[[], None]) -> None:
        """Check whether its client is still alive; `then` is called with the answer known."""


class Clients:
    """The sessions of a broker, for parts that have something for a client.

    Args:
        sessions: by the number of the connection; kept by the broker.
    """

    def __init__(self, sessions: Mapping[int, ClientSession]) -> None:
        self._sessions = sessions

    def connection(self, number: int) -> Connection | None:
        """A connection by its number; None: it is gone."""
        session = self._sessions.get(number)
        return session.connection if session is not None else None

    def close_producer(self, producer: Producer) -> None:
        """Close a producer from this side; its client looks the topic up again."""
        session = self._sessions.get(producer.connection)
        if session is not None:
            session.producers.evict(producer)

    def close_consumer(self, consumer: Consumer) -> None:
        """Close a consumer from this side; its client looks the topic up again."""
        session = self._sessions.get(consumer.connection)
        if session is not None:
            session.consumers.evict(consumer)

    def close_all(self, topic: Topic) -> None:
        """Close all producers and consumers of a topic from this side."""
        for producer in topic.producers.everybody():
            self.close_producer(producer)
        for subscription in list(topic.subscriptions.values()):
            subscription.disconnect_all()

    def consumer_detached(self, connection: int, consumer_id: int) -> None:
        """A subscription disconnected a consumer (seek, deletion): its id is free again."""
        session = self._sessions.get(connection)
        if session is not None:
            session.consumers.detached(consumer_id)

    def follow_up(self, waited: Iterable[Producer]) -> None:
        """Producers that waited for one that is gone now: one may have its access, those in front of it have become too old."""
        for producer in waited:
            session = self._sessions.get(producer.connection)
            if not producer.ready:
                self.close_producer(producer)
            elif session is not None:
                session.producers.successor_ready(producer)

    def probe(self, holder: int, asker: int, then: Callable[[], None]) -> None:
        """Check whether a client is still alive whose access another connection's client requires.

        Args:
            holder, asker: the two connections.
            then: called when that is known; at once if both are the same, or the holder is gone.
        """
        session = self._sessions.get(holder)
        if session is None or holder == asker:
            then()
        else:
            session.probe(then)
