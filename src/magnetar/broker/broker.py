"""One broker as a deterministic machine: connections, topics, and the events that reach them.

The driver calls one event at a time; every event may put effects into the outbox. Nothing here waits: what has to
become durable first is continued by a later event.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from magnetar.broker.catalog.adoption import Adoption
from magnetar.broker.catalog.auto_partitions import AutoPartitions
from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.catalog.changes import Changes, concerned
from magnetar.broker.catalog.deletion_marks import Deletions
from magnetar.broker.catalog.deletion_proofs import Proofs
from magnetar.broker.catalog.former_names import by_present_name
from magnetar.broker.catalog.loaded_topics import LoadedTopics
from magnetar.broker.catalog.maintenance import Upkeep
from magnetar.broker.catalog.policy_limits import Limits
from magnetar.broker.catalog.watches import TopicWatches
from magnetar.broker.client_bytes import ClientBytes, Opening
from magnetar.broker.clients import Clients
from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.links.links import Links
from magnetar.broker.metadata_sync.sync import MetadataSync
from magnetar.broker.nonpersistent.topics import NonPersistentTopics
from magnetar.broker.publish.deduplication_policy import Deduplications
from magnetar.broker.publish.idempotency.policy import Idempotencies
from magnetar.broker.publish.opening import Openings
from magnetar.broker.replicated_subscriptions.machine_factory import Machines
from magnetar.broker.replicated_subscriptions.registry import MakeMachines, ReplicatedSubscriptions
from magnetar.broker.security.access import NO_SECURITY, Access
from magnetar.broker.security.credentials import Keys
from magnetar.broker.session.connect_deadlines import ConnectDeadlines
from magnetar.broker.session.frame_limits import frame_limits
from magnetar.broker.session.nonpersistent import NonPersistentDomain
from magnetar.broker.session.persistent import PersistentDomain
from magnetar.broker.session.services import SessionServices
from magnetar.broker.session.session import Session
from magnetar.broker.statistics.cardinality import Series
from magnetar.broker.statistics.latency import Connections, PublishLatency
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.topics.compaction_runs import Compactions
from magnetar.broker.topics.damaged_entries import Damage
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.addresses import SQLITE
from magnetar.core.errors import BrokerError, ErrorCode, ProtocolError
from magnetar.core.security import Security
from magnetar.core.settings import BrokerConfig, DeduplicationConfig, MetadataConfig, SubscriptionsConfig
from magnetar.effects.outbox import Close, Drop, Note, Outbox
from magnetar.effects.store_batches import CURSOR_BYTES_MAX
from magnetar.metadata.change import Change
from magnetar.metadata.resources import Resources
from magnetar.storage.cursor import BYTES_STORED_MAX
from magnetar.storage.entries import Append, Location, StoredEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, RecoveredTopic, TopicLog
from magnetar.wire.frame import Frame

NO_KEYS: Final = Keys()
NO_DEDUPLICATION: Final = DeduplicationConfig()
NO_SYNCHRONISATION: Final = MetadataConfig()
DEFAULT_SUBSCRIPTIONS: Final = SubscriptionsConfig()


class Broker:
    """The broker of one cluster.

    Args:
        outbox: gets the effects; the driver drains it.
        config: the limits.
        cluster, uuid: name and uuid of this cluster.
        service_url: address for clients, `pulsar://host:port`.
        link_token: the shared secret of links.
        resources: tenants, namespaces, policies, partitioned topics.
        stored: everything in the metadata store at start.
        recovered: contents of the log, by (topic, incarnation).
        ledger_ids: gives every ledger its id.
        cache: recent entries of all topics.
        link_targets: clusters to which a link leads from here.
        routes: all links (source, target), also those between other clusters; None: a mesh of all clusters linked from here.
        subscriptions: the `[subscriptions]` table.
        machines: makes the two machines of a topic with replicated subscriptions; None: production's.
        deduplication: the `[deduplication]` table.
        metadata: the `[metadata]` table.
        from_file: keys that were made from the configuration file at this start.
        boot: clock at the start, ms; never the same twice.
        service_url_tls: address for clients with TLS, `pulsar+ssl://host:port`; "" without.
        listeners: name -> the same two for clients that ask for a listener by name.
        security: the tables for authentication and authorization.
        keys: keys for checking credentials.
        lost_entries: number of entries that were stored and are not in the log.
        admin_url: address of this broker's REST interface, for commands in messages.
        admin_urls: the same of other clusters.
        web_url: address of this broker's REST interface without TLS.
    """

    def __init__(
        self,
        outbox: Outbox,
        config: BrokerConfig,
        *,
        cluster: str,
        uuid: str,
        service_url: str,
        link_token: bytes,
        resources: Resources,
        stored: Mapping[str, bytes],
        recovered: Mapping[tuple[str, int], RecoveredTopic],
        ledger_ids: LedgerIds,
        cache: EntryCache,
        link_targets: tuple[str, ...] = (),
        routes: frozenset[tuple[str, str]] | None = None,
        subscriptions: SubscriptionsConfig = DEFAULT_SUBSCRIPTIONS,
        machines: MakeMachines | None = None,
        deduplication: DeduplicationConfig = NO_DEDUPLICATION,
        metadata: MetadataConfig = NO_SYNCHRONISATION,
        from_file: frozenset[str] = frozenset(),
        boot: int = 0,
        service_url_tls: str = "",
        listeners: Mapping[str, tuple[str, str]] | None = None,
        security: Security = NO_SECURITY,
        keys: Keys = NO_KEYS,
        lost_entries: int = 0,
        admin_url: str = "",
        admin_urls: Mapping[str, str] | None = None,
        web_url: str = "",
    ) -> None:
        self.context = BrokerContext(
            outbox, config, resources, cluster, uuid, boot, admin_url, admin_urls or {}, web_url
        )
        self.outbox = outbox
        self.admin_url = admin_url
        self.config = config
        self.cluster = cluster
        self.uuid = uuid
        self.boot = boot
        self.service_url = service_url
        self.service_url_tls = service_url_tls
        self._listeners = listeners or {}
        self.link_token = link_token
        limits = frame_limits(config, security)
        self.login_frame_bytes_max, self.frame_bytes_max = limits.login, limits.client
        self.command_bytes_max, self.link_frame_bytes_max = limits.command, limits.link
        self.resources = resources
        self.ledger_ids = ledger_ids
        self.cache = cache
        self.sessions: dict[int, Session] = {}
        self.clients = Clients(self.sessions)
        self.client_bytes = ClientBytes(config)
        self.openings = Openings(outbox)
        self.damage = Damage(outbox)
        self.connections = Connections()
        self.publish_latency = PublishLatency()
        self.series = Series()
        self._connect_deadlines = ConnectDeadlines(self.context, self.connections, self._client)
        self.access = Access(outbox, security, keys, resources, self.sessions)
        self.topics: dict[str, Topic] = {}
        self.lost_entries = lost_entries
        self.flusher = CursorFlusher(
            outbox,
            config.cursor_flush_ms,
            companions=lambda keys: self.replicated_subscriptions.companions(keys),  # noqa: PLW0108 - made further down
        )
        self.started_ms = outbox.now_ms
        self.healthy = True
        self._pending_bytes = 0
        self._held: set[int] = set()
        self._names = 0
        self.limits = Limits(
            self.context,
            self.topics,
            paced=lambda topic: self.links.paced(topic),  # noqa: PLW0108 - links are made further down
            enforce=lambda topic, day_ms: self.upkeep.enforce(topic, day_ms),  # noqa: PLW0108 - so is upkeep
        )
        deletions = Deletions(stored)
        self.schemas = Schemas(
            self.context,
            self.topics,
            stored,
            geo_replicated=lambda name: self.links.geo_replicated(name),  # noqa: PLW0108 - links are made next
            forgotten=lambda id_: self.links.schemas_forgotten(id_),  # noqa: PLW0108 - as above
        )
        self.links = Links(
            self.context,
            self.topics,
            self.schemas,
            link_targets,
            stored,
            deleted=deletions,
            create_topic=lambda name, then: self.catalog.create(name, then=then, by_link=True),
            create_partitions=lambda name, partitions, change, done: self.changes.create_partitions(
                name, partitions, change, done, found=True
            ),
            source_active=lambda topic, source, restarted: self.replicated_subscriptions.source_active(
                topic, source, restarted=restarted
            ),
            rates=self.limits,
            clients=self.clients,
        )
        mesh = {cluster, *link_targets}
        self.replicated_subscriptions = ReplicatedSubscriptions(
            self.context,
            self.topics,
            self.flusher,
            self.links,
            subscriptions,
            routes if routes is not None else frozenset((a, b) for a in mesh for b in mesh if a != b),
            stored,
            machines or Machines(),
            make_subscription=lambda topic, name, cursor: self.loaded.make_subscription(
                topic, name, cursor, durable=True
            ),
            fences=lambda: self.fences,
        )
        self.deduplications = Deduplications(
            self.context, self.topics, self.flusher, deduplication, self.clients.close_producer, stored
        )
        self.idempotencies = Idempotencies(
            self.context, self.topics, self.openings, link_token, self.clients.close_producer, stored
        )
        self.fences = Fences(
            self.context, self.topics, self.links.sources, self.replicated_subscriptions.mode_of, stored
        )
        self.nonpersistent = NonPersistentTopics(
            self.context,
            self.topics,
            ledger_ids,
            self.series,
            self.clients,
            names=lambda: self.catalog,
            added=self.limits.nonpersistent_added,
        )
        self.compactions = Compactions(self.context, self.topics, stored)
        self.watches = TopicWatches(self.context, self.topics, self.access)
        self.metasync = MetadataSync(
            self.context,
            self.topics,
            metadata,
            stored,
            from_file,
            catalog=lambda: self.catalog,
            changes=lambda: self.changes,
        )
        self.parts: tuple[TopicPart, ...] = (
            self.limits,
            self.links,
            self.replicated_subscriptions,
            self.deduplications,
            self.idempotencies,
            self.compactions,
            self.fences,
            self.metasync,
            self.watches,
        )
        """In the order in which they are called for a topic."""
        recovered = by_present_name(stored, recovered)
        self.proofs = Proofs(outbox, cluster, stored, recovered)
        self.loaded = LoadedTopics(
            self.context,
            self.topics,
            ledger_ids=ledger_ids,
            cache=cache,
            cursor_bytes_max=BYTES_STORED_MAX if metadata.store == SQLITE else CURSOR_BYTES_MAX,
            clients=self.clients,
            flusher=self.flusher,
            series=self.series,
            limits=self.limits,
            links=self.links,
            fences=self.fences,
            parts=self.parts,
        )
        self.catalog = Catalog(
            self.context,
            self.topics,
            self.loaded,
            deletions,
            ledger_ids=ledger_ids,
            clients=self.clients,
            client_bytes=self.client_bytes,
            flusher=self.flusher,
            links=self.links,
            replicated_subscriptions=self.replicated_subscriptions,
            compactions=self.compactions,
            schemas=self.schemas,
            fences=self.fences,
            nonpersistent=self.nonpersistent,
            metasync=self.metasync,
            proofs=self.proofs,
            topic_gone=lambda name, done: self.changes.topic_deleted(name, done),  # noqa: PLW0108 - made next
            names=self.consumer_name,
        )
        self.changes = Changes(
            self.context,
            self.topics,
            self.catalog,
            self.links,
            self.schemas,
            self.metasync,
            lambda change, narrow: self.policies_changed(change, limits_alone=narrow),
        )
        self.auto_partitions = AutoPartitions(resources, self.catalog, self.changes)
        self.adoption = Adoption(
            self.context,
            self.topics,
            self.loaded,
            catalog=self.catalog,
            changes=self.changes,
            clients=self.clients,
            flusher=self.flusher,
            links=self.links,
            replicated_subscriptions=self.replicated_subscriptions,
            deduplications=self.deduplications,
            idempotencies=self.idempotencies,
            compactions=self.compactions,
            fences=self.fences,
            watches=self.watches,
            metasync=self.metasync,
        )
        if self.proofs.dead:
            outbox.put(Drop(tuple(self.proofs.dead)))
        self.loaded.load(stored, recovered)
        self.fences.started()
        self.metasync.started()
        self.upkeep = Upkeep(
            self.context,
            self.topics,
            self.nonpersistent,
            self.loaded,
            self.catalog,
            cache,
            self.clients,
            lambda: self.healthy,
            links=self.links,
            parts=self.parts,
        )
        self._services = self._session_services()

    def _session_services(self) -> SessionServices:
        """The services of sessions."""
        persistent = PersistentDomain(
            self.context,
            self.topics,
            self.catalog,
            self.access,
            self.deduplications,
            self.loaded,
            producer_name=self.producer_name,
            quota_stop=self.upkeep.stop_now,
        )
        nonpersistent = NonPersistentDomain(
            self.context,
            self.nonpersistent,
            self.schemas,
            self.client_bytes,
            self.series,
            self.clients,
            limits_of=self.limits.of,
            producer_name=self.producer_name,
            consumer_name=self.consumer_name,
        )
        return SessionServices(
            context=self.context,
            broker=self,
            clients=self.clients,
            access=self.access,
            counters=self.connections,
            client_bytes=self.client_bytes,
            openings=self.openings,
            catalog=self.catalog,
            auto_partitions=self.auto_partitions,
            domains={"persistent": persistent, "non-persistent": nonpersistent},
            persistent=persistent,
            topics=self.topics,
            nonpersistent=self.nonpersistent,
            schemas=self.schemas,
            watches=self.watches,
            links=self.links,
            frame_bytes_max=self.frame_bytes_max,
            command_bytes_max=self.command_bytes_max,
            link_frame_bytes_max=self.link_frame_bytes_max,
        )

    # ------------------------------------------------------------------------------------------------- driver's events

    def connected(self, connection: int, address: str, certificate: str = "", tls: bool = False) -> None:
        """A client came; `certificate` is the common name of the one that TLS checked."""
        self.connections.made += 1
        client = Connection(
            self.context,
            self.access,
            connection,
            address,
            certificate=certificate,
            tls=tls,
            link_token=self.link_token,
        )
        self.sessions[connection] = Session(client, self._services)
        self._connect_deadlines.began(connection)

    def _client(self, connection: int) -> Connection | None:
        session = self.sessions.get(connection)
        return session.connection if session is not None else None

    def frames(self, connection: int, frames: list[Frame]) -> None:
        """A client sent commands."""
        session = self.sessions.get(connection)
        if session is None or session.connection.closed:
            return
        try:
            session.frames(frames)
        except ProtocolError as error:
            self.broke_protocol(connection, error)

    def broke_protocol(self, connection: int, error: ProtocolError) -> None:
        """End the connection of a client that sent what cannot be."""
        self.outbox.put(Close(connection, f"broke the protocol: {error}"))
        self.disconnected(connection)

    def disconnected(self, connection: int) -> None:
        """A client is gone."""
        session = self.sessions.pop(connection, None)
        self._held.discard(connection)
        if session is not None:
            self.connections.ended += 1
            session.disconnected()

    def writable(self, connection: int, writable: bool) -> None:
        """A client's socket takes no more, or takes more again."""
        session = self.sessions.get(connection)
        if session is not None:
            session.set_writable(writable)

    def appended(self, batch: list[tuple[Append, Location]]) -> None:
        """The log holds these, durably (or written, where that is what was asked for)."""
        touched: dict[str, Topic] = {}
        confirmed: list[Append] = []
        concerned: dict[str, list[StoredEntry]] = {}
        for append, location in batch:
            topic = self.topics.get(append.topic)
            if topic is None:
                continue
            topic.confirm(append, location)
            touched[append.topic] = topic
            confirmed.append(append)
            if topic.replicated_subscriptions is not None or append.entries[0].origin:
                concerned.setdefault(append.topic, []).extend(append.entries)
        # Messages that other clusters have acknowledged already must not be dispatched: the machines see entries first.
        for text, entries in concerned.items():
            self.replicated_subscriptions.stored(touched[text], entries)
        later: dict[str, list[Append]] = {}
        for append in confirmed:
            if append.entries[0].origin or append.topic in later:
                later.setdefault(append.topic, []).append(append)
            else:
                self._answer(append, touched[append.topic])
        for topic in touched.values():
            topic.dispatch()
        # Publishers wait for their receipts. No one waits for the answer to a link, which took 0.1 to 0.2 ms before the messages:
        # they go to the consumers first. The appends of one topic keep their order.
        for text, appends in later.items():
            for append in appends:
                self._answer(append, touched[text])
        self.metasync.confirmed(touched)

    def _answer(self, append: Append, topic: Topic) -> None:
        """The log holds an append, and it is readable: answer it, and what waited for that."""
        if self._settle(append):
            self.publish_latency.add(self.outbox.moment_s - append.asked_s, len(append.entries))
        append.token(append, "")
        if append.behind is not None:
            topic.answer_behind(append)
        if append.answered is not None:
            topic.answered(append)

    def append_failed(self, batch: list[Append], error: str) -> None:
        """The log does not hold these and never will."""
        self.healthy = False
        topics: dict[str, Topic] = {}
        for append in batch:
            topic = self.topics.get(append.topic)
            if topic is None:
                continue
            topic.fail()
            topics[topic.text] = topic
        for append in batch:
            if append.topic in topics:
                self._settle(append)
                append.token(append, error)
                topics[append.topic].answered(append)
        if topics:
            self.outbox.put(Note("error", f"cannot store messages of {len(topics)} topics: {error}"))
        for topic in topics.values():
            if topic.write_failed:
                for producer in list(topic.producers.live.values()):
                    self.clients.close_producer(producer)
            topic.failed_all()

    def healed(self) -> None:
        """The storage takes writes again."""
        self.healthy = True
        failed = [topic for topic in self.topics.values() if topic.write_failed]
        self.outbox.put(Note("info", f"storage works again; {len(failed)} topics continue"))
        for topic in failed:
            topic.healed()
            self.replicated_subscriptions.healed(topic)

    def log_of(self, text: str) -> TopicLog | None:
        """The log of a topic, for the driver's reads."""
        topic = self.topics.get(text)
        return topic.log if topic is not None else None

    def shut_down(self) -> None:
        """Before the end: store cursors without waiting for their interval."""
        for part in self.parts:
            part.flush()
        self.flusher.flush()

    # --------------------------------------------------------------------------------------------------------- helpers

    def urls(self, listener: str) -> tuple[str, str]:
        """The address for clients, and the one with TLS ("" without).

        Args:
            listener: name of the requested listener; "": the default one.

        Raises:
            BrokerError: NOT_ALLOWED: there is no listener of that name. Clients do not try again after this error.
        """
        if not listener:
            return self.service_url, self.service_url_tls
        urls = self._listeners.get(listener)
        if urls is None:
            known = ", ".join(sorted(self._listeners)) or "none"
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, f"listener {listener!r:.80} is not one of this cluster's ({known})"
            )
        return urls

    def producer_name(self) -> str:
        """A name for a producer that sent none; unique in this cluster for ever."""
        self._names += 1
        return f"{self.cluster}-{self.boot}-{self._names}"

    def consumer_name(self) -> str:
        """A name for a consumer that sent none."""
        self._names += 1
        return f"{self._names:x}"

    def publishing(self, connection: Connection, append: Append, size: int) -> None:
        """Bytes are on their way to the disk; too many stop their publisher's socket (`pending_publish_bytes_max`)."""
        append.connection = connection.number
        append.client_bytes = size
        self._pending_bytes += size
        if self._pending_bytes > self.config.pending_publish_bytes_max and connection.number not in self._held:
            connection.hold(True)
            self._held.add(connection.number)

    def _settle(self, append: Append) -> bool:
        """A client's append is on the disk, or never will be; returns whether it was a client's."""
        size = append.client_bytes
        if not size:
            return False
        self._pending_bytes -= size
        if self._held and self._pending_bytes <= self.config.pending_publish_bytes_max // 2:
            for number in self._held:
                self.sessions[number].connection.hold(False)
            self._held.clear()
        return True

    def opening(self, connection: int, what: str) -> "Opening[Any]":
        """The producers or consumers that a connection is opening; too many bytes of them stop reading its socket."""

        def hold(hold: bool) -> None:
            session = self.sessions.get(connection)
            if session is not None:
                session.connection.hold(hold, what)

        return Opening(_bytes_of, hold)

    @property
    def pending_bytes(self) -> int:
        """Published bytes on their way to the disk."""
        return self._pending_bytes

    def policies_changed(self, change: Change, *, limits_alone: bool = False) -> None:
        """A change of resources is in force: access, then limits, then links and the other parts follow it.

        Args:
            change: of what.
            limits_alone: it concerns only policies of `changes.LIMITS`.
        """
        self.access.policies_changed(change)
        topics = concerned(change, self.topics)
        self.limits.follow(topics, concerned(change, self.nonpersistent.topics))
        if limits_alone:
            return
        self.links.change_in_force(change)
        for part in self.parts:
            part.policies_changed(topics)

    def validate(self) -> None:
        """Check what must hold after every event (tests and the simulator call it)."""
        for topic in self.topics.values():
            topic.validate()
        for part in self.parts:
            part.validate()
        self.schemas.validate()
        self.nonpersistent.validate()
        self.client_bytes.validate(self.sessions)
        self.openings.validate()
        assert self._pending_bytes >= 0, "more bytes settled than sent"


def _bytes_of(command: Message) -> int:
    return command.ByteSize()
