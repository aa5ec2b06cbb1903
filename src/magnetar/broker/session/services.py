"""The parts of a broker that sessions work with."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from magnetar.broker.catalog.auto_partitions import AutoPartitions
from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.catalog.watches import TopicWatches
from magnetar.broker.client_bytes import ClientBytes, Opening
from magnetar.broker.clients import Clients
from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.links.links import Links
from magnetar.broker.nonpersistent.topics import NonPersistentTopics
from magnetar.broker.publish.opening import Openings
from magnetar.broker.security.access import Access
from magnetar.broker.session.persistent import PersistentDomain
from magnetar.broker.session.ports import TopicDomain
from magnetar.broker.statistics.latency import Connections
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import ProtocolError
from magnetar.storage.entries import Append


class BrokerPort(Protocol):
    """What a session asks of the broker itself (`broker.broker.Broker`)."""

    def publishing(self, connection: Connection, append: Append, size: int) -> None:
        """Bytes that a client published are on their way to the disk."""

    def opening(self, connection: int, what: str) -> Opening[Any]:
        """What a connection opens and is not open yet; too many bytes of it stop its socket."""

    def broke_protocol(self, connection: int, error: ProtocolError) -> None:
        """End the connection of a client that sent what cannot be."""

    def disconnected(self, connection: int) -> None:
        """A client is gone."""

    def urls(self, listener: str) -> tuple[str, str]:
        """What a client connects to that asks for a listener ("": for none), and by TLS.

        Raises:
            BrokerError: NOT_ALLOWED: there is no listener of that name.
        """


@dataclass(frozen=True)
class SessionServices:
    """What sessions work with.

    Attributes:
        context: of the broker.
        broker: what is asked of the broker itself.
        clients: all connections.
        domains: by a topic name's domain, how producers and consumers come to such topics.
        persistent: the one of persistent topics.
        topics: the persistent ones, by name.
        frame_bytes_max, command_bytes_max, link_frame_bytes_max: of clients and of links.
    """

    context: BrokerContext
    broker: BrokerPort
    clients: Clients
    access: Access
    counters: Connections
    client_bytes: ClientBytes
    openings: Openings
    catalog: Catalog
    auto_partitions: AutoPartitions
    domains: Mapping[str, TopicDomain]
    persistent: PersistentDomain
    topics: MutableMapping[str, Topic]
    nonpersistent: NonPersistentTopics
    schemas: Schemas
    watches: TopicWatches
    links: Links
    frame_bytes_max: int
    command_bytes_max: int
    link_frame_bytes_max: int
