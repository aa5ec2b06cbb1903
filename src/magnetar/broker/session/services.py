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
from magnetar.broker.security.credentials import Identity
from magnetar.broker.session.persistent import PersistentDomain
from magnetar.broker.session.ports import TopicDomain
from magnetar.broker.statistics.latency import Connections
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import ProtocolError
from magnetar.storage.entries import Append


class BrokerPort(Protocol):
    """The part of the broker itself (`broker.broker.Broker`) that a session uses."""

    def publishing(self, connection: Connection, append: Append, size: int) -> None:
        """Bytes that a client published are on their way to the disk."""

    def opening(self, connection: int, what: str) -> Opening[Any]:
        """The producers or consumers that a connection is opening; too many bytes of them stop reading its socket."""

    def broke_protocol(self, connection: int, error: ProtocolError) -> None:
        """End the connection of a client that sent what cannot be."""

    def disconnected(self, connection: int) -> None:
        """A client is gone."""

    def urls(self, listener: str) -> tuple[str, str]:
        """The addresses of a listener ("": the default one) for clients, without and with TLS.

        Raises:
            BrokerError: NOT_ALLOWED: there is no listener of that name.
        """


@dataclass(frozen=True)
class SessionServices:
    """The services of sessions.

    Attributes:
        context: the broker's context.
        broker: the broker itself.
        clients: all connections.
        domains: the topics by domain.
        persistent: the domain of persistent topics.
        topics: the persistent ones, by name.
        frame_bytes_max, command_bytes_max, link_frame_bytes_max: limits for clients and for links.
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

    def may_link(self, identity: Identity) -> bool:
        """Whether this role may be a link at all."""
        return self.access.authorizer.links_at_all(identity)
