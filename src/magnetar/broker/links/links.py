"""The links of a broker: one source machine for each target, one destination machine for all sources, and their topics.

This is where topics and `magnetar.replication` meet: policies and configuration decide which topics are on which link.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from magnetar.broker.clients import Clients
from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.links.link_host import CreatePartitions, CreateTopic, DeletionMarks, LinkHost, SourceActive
from magnetar.broker.links.reports import LinkReporter
from magnetar.broker.links.restores import Restores
from magnetar.broker.links.schemas import LinkSchemas
from magnetar.broker.links.states import SkipPreview
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.rates import Rate
from magnetar.effects.outbox import Sync
from magnetar.metadata.change import Change
from magnetar.metadata.errors import NotFound, PreconditionFailed
from magnetar.metadata.keys import namespace_key
from magnetar.metadata.policies.namespace import Policies
from magnetar.metadata.policies.topic import TopicPolicies, topic_policies_key
from magnetar.replication.link.destination import LinkDestination
from magnetar.replication.link.policy import targets
from magnetar.replication.link.records import targets_stored
from magnetar.replication.link.source import LinkSource
from magnetar.wire import pulsar_pb2 as pb

KNOWN_MS: Final = 3_000
"""The time for which creating a partitioned topic waits until other clusters have it. With a running pipeline that
takes a tenth of a second; a slow link must not delay an administrator who creates topics.
"""


class LinkRates(Protocol):
    """The policy `replicator-dispatch-rate` (`broker.catalog.policy_limits.Limits`)."""

    def link_rate(self, topic: Topic, before: Rate | None) -> Rate | None:
        """The rate of one more link of a topic; `before` where nothing changed; None: no limit."""
        ...


class Links(TopicPart):
    """All links of one broker.

    Args:
        context: the broker's context.
        topics: all topics of the broker, by name.
        schemas: the schemas of these topics.
        link_targets: clusters that a configured link leads to from here.
        stored: the metadata store's content at start.
        deleted, create_topic, create_partitions, source_active: see `LinkHost`.
        rates: limits on what topics send over links.
        clients: the connected peers.

    Attributes:
        host: the broker, as its links see it.
        sources: outgoing links, by target.
        destination: all incoming links.
        restores: restores of messages after this cluster lost its disk.
        schemas: answers requests of pipelines for schemas.
        reports: reports about links for administration.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        schemas: Schemas,
        link_targets: Iterable[str],
        stored: Mapping[str, bytes],
        *,
        deleted: DeletionMarks,
        create_topic: CreateTopic,
        create_partitions: CreatePartitions,
        source_active: SourceActive,
        rates: LinkRates,
        clients: Clients,
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._rates = rates
        self._linked = frozenset(link_targets)
        config = context.config
        self.schemas = LinkSchemas(context, schemas)
        self.host = LinkHost(
            context,
            topics,
            schemas,
            deleted=deleted,
            create_topic=create_topic,
            create_partitions=create_partitions,
            source_active=source_active,
        )
        self.destination = LinkDestination(
            context.outbox,
            cluster=context.cluster,
            uuid=context.uuid,
            host=self.host,
            boot=context.boot,
            schemas=self.schemas,
            message_bytes_max=config.message_bytes_max,
            silence_ms=config.identity_silence_ms,
            pending_bytes_max=config.pending_publish_bytes_max,
        )
        self.destination.load(stored)
        self.restores = Restores(context, topics, schemas, self.host)
        self.sources: dict[str, LinkSource] = {}
        for target in sorted(self._linked | targets_stored(stored)):
            source = LinkSource(
                context.outbox,
                cluster=context.cluster,
                uuid=context.uuid,
                to=target,
                boot=context.boot,
                host=self.host,
                linked=target in self._linked,
                read_bytes_max=config.link_read_bytes_max,
                poll_ms_max=config.link_poll_ms_max,
                orphan_ms=config.orphan_cursor_ms,
            )
            source.load(stored)
            self.sources[target] = source
        self._created: dict[str, frozenset[str]] = {}
        self._unknown: list[tuple[str, list[LinkSource], Callable[[], None]]] = []
        """New partitioned topics, by their first partition, whose creators wait for other clusters."""
        self._applies: dict[int, list[tuple[Topic, Callable[[], None]]]] = {}
        self._syncs = 0
        self._syncing: dict[str, int] = {}
        """Topics that are being synced -> which time it is."""
        self._sent: dict[str, list[int]] = {target: [0, 0] for target in self.sources}
        """By target, the messages and bytes that were confirmed since the start."""
        self.reports = LinkReporter(
            context,
            linked=self._linked,
            sources=self.sources,
            destination=self.destination,
            restores=self.restores,
            sent=self._sent,
            clients=clients,
        )

    def schemas_forgotten(self, id_: str) -> None:
        """A topic's schemas were forgotten here: their numbers begin again."""
        self.destination.schemas.forgotten(id_)
        self.restores.machine.schemas.forgotten(id_)

    def latest_incarnation_of(self, topic: str, cluster: str) -> int:
        """The incarnation of a topic in a linked cluster, as either direction has shown since the start; 0: neither has.

        If a link from `cluster` to here was seen, it decides: it shows the present incarnation, even when the number is lower
        than that of an earlier one. Else the answers to the handshakes of the link from here to `cluster` do.
        """
        source = self.sources.get(cluster)
        return self.destination.incarnations.of(topic, cluster) or (
            source.incarnation_of(topic) if source is not None else 0
        )

    # --------------------------------------------------------------------------------------------------- which topics

    def targets(self, name: TopicName) -> frozenset[str]:
        """Clusters that a topic's messages are sent to from here: those of its policy that a link leads to."""
        if not name.persistent:
            return frozenset()
        wanted = self._resources.topic_replication_clusters(name)
        return targets(self._context.cluster, wanted, self._linked)

    def geo_replicated(self, name: TopicName) -> bool:
        """Whether a policy says that the topic exists in other clusters too; such topics always sync.

        See docs/design/links.md#synced-only.
        """
        return bool(self._resources.topic_replication_clusters(name))

    def creation(self, name: TopicName, incarnation: int) -> dict[str, bytes]:
        """The writes for links in the transaction that creates a topic."""
        text = str(name)
        chosen = self._created[text] = self.targets(name)
        puts: dict[str, bytes] = {}
        for target in chosen:
            puts |= self.sources[target].creation(text, incarnation)
        return puts

    def deletion_keys(self, topic: Topic) -> list[str]:
        """The cursors of its links."""
        return [key for source in self.sources.values() for key in source.deletion(topic.text)]

    def highest_known_ids(self, name: TopicName) -> dict[str, int]:
        """By source cluster, the highest ledger id of a topic there: of its incarnation, or of the newest entry that came."""
        topic = self._topics.get(str(name))
        found = self.destination.incarnations.of_topic(str(name))
        for source, position in (topic.log.watermarks() if topic is not None else {}).items():
            found[source] = max(position.ledger, found.get(source, -1))
        return found

    def when_known(self, name: TopicName, done: Callable[[], None]) -> None:
        """Call `done` when every cluster to which a pipeline carries a new partitioned topic has it, too, after `KNOWN_MS` at the
        latest: after that clients may start in any cluster.
        """
        first = str(name.with_partition(0))
        waits = [source for source in self.sources.values() if source.carries(first)]
        if not waits:
            done()
            return
        waiting = (first, waits, done)
        self._unknown.append(waiting)

        def late(_now_ms: int) -> None:
            if waiting in self._unknown:
                self._unknown.remove(waiting)
                done()

        self._context.timer(self._outbox.now_ms + KNOWN_MS, late)

    def _look_for_known(self) -> None:
        for waiting in list(self._unknown):
            first, waits, done = waiting
            if not any(source.carries(first) and not source.incarnation_of(first) for source in waits):
                self._unknown.remove(waiting)
                done()

    def topic_added(self, topic: Topic) -> None:
        """A topic exists: just created, or found at start."""
        created = self._created.pop(topic.text, frozenset())
        wanted = self.targets(topic.name)
        latest = self._resources.replication_start(topic.name.namespace_name) == "latest"
        for target, source in self.sources.items():
            source.added(topic.text, topic.log, wanted=target in wanted, latest=latest, created=target in created)
        self.destination.refusals.changed()

        self.paced(topic)

    def paced(self, topic: Topic) -> None:
        """The policy `replicator-dispatch-rate` of a topic may have changed, or a link of it began."""
        for source in self.sources.values():
            source.set_rate(topic.text, self._rates.link_rate(topic, source.rate_of(topic.text)))

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone."""
        self.destination.refusals.changed()
        for source in self.sources.values():
            source.removed(topic.text)
        self._syncing.pop(topic.text, None)
        self.destination.removed(topic.text)
        self.restores.machine.removed(topic.text)

    def policy_puts(self, change: Change) -> dict[str, bytes]:
        """The writes in the transaction of a change of policies for the links that it starts or ends."""
        puts: dict[str, bytes] = {}
        applies: list[tuple[Topic, Callable[[], None]]] = []
        for topic, clusters, latest in self._rewanted(change):
            wanted = targets(self._context.cluster, clusters, self._linked)
            for target, source in self.sources.items():
                more, apply = source.rewanted(topic.text, topic.log, target in wanted, latest=latest)
                puts |= more
                applies.append((topic, apply))
        self._applies[id(change)] = applies
        return puts

    def _rewanted(self, change: Change) -> Iterator[tuple[Topic, Sequence[str], bool]]:
        """Topics whose links a change may concern, with the clusters they go to and whether a new link skips what is there."""
        resources = self._resources
        for text in change.namespaces:
            namespace = NamespaceName.parse(text)
            data = change.puts.get(namespace_key(namespace))
            policies = msgspec.json.decode(data, type=Policies) if data is not None else Policies()
            for topic in self._topics_of(namespace):
                own = resources.topic_policies(topic.name).replication_clusters
                clusters = policies.replication_clusters if own is None else own
                yield topic, clusters, policies.replication_start == "latest"
        for text in change.topics:
            base = TopicName.parse(text)
            key = topic_policies_key(base)
            if key in change.keys:
                data = change.puts.get(key)
                own = msgspec.json.decode(data, type=TopicPolicies).replication_clusters if data is not None else None
                shared = resources.shared_policies(base.namespace_name)
                for topic in self._topics_of(base.namespace_name):
                    if topic.name.base == base:
                        clusters = shared.replication_clusters if own is None else own
                        yield topic, clusters, shared.replication_start == "latest"

    def change_in_force(self, change: Change) -> None:
        """A change of policies is durable and in force."""
        self.destination.refusals.changed()
        for text in change.namespaces:
            for topic in self._topics_of(NamespaceName.parse(text)):
                self.follow_durability(topic)
        for text in change.topics:
            for topic in self._topics_of(TopicName.parse(text).namespace_name):
                self.follow_durability(topic)
        for topic, apply in self._applies.pop(id(change), ()):
            if self._topics.get(topic.text) is topic:
                apply()
                self.paced(topic)
        # Topics that were created while the change was being stored began with the policy before it.
        for topic, clusters, latest in self._rewanted(change):
            wanted = targets(self._context.cluster, clusters, self._linked)
            for target, source in self.sources.items():
                source.late(topic.text, topic.log, wanted=target in wanted, latest=latest)
            self.paced(topic)

    def follow_durability(self, topic: Topic) -> None:
        """A policy, or machines of replicated subscriptions, may have changed whether a topic always syncs.

        See docs/design/links.md#synced-only.

        What was answered without lies before everything that is synced from now on, but no link may read it until it is synced,
        too: after a power cut its indexes would be given again, and peers would take fresh messages for known ones.
        """
        always = self._context.config.fsync == "always"
        durable = always or topic.replicated_subscriptions is not None or self.geo_replicated(topic.name)
        begins = durable and not topic.durable
        topic.set_durable(durable)
        if begins:
            self._sync(topic)

    def _sync(self, topic: Topic) -> None:
        topic.log.sync_began()
        self._syncs += 1
        number = self._syncing[topic.text] = self._syncs

        def synced(error: str) -> None:
            if self._topics.get(topic.text) is not topic or self._syncing.get(topic.text) != number:
                return
            if error:
                self._sync(topic)
                return
            del self._syncing[topic.text]
            topic.log.synced()
            for source in self.sources.values():
                source.confirmed(topic.text)

        self._outbox.put(Sync(synced))

    def policies_refused(self, change: Change) -> None:
        """A change of policies never was."""
        self._applies.pop(id(change), None)

    def _topics_of(self, namespace: NamespaceName) -> list[Topic]:
        return [topic for topic in self._topics.values() if topic.name.namespace_name == namespace]

    def partitions_changed(self, name: TopicName) -> None:
        """A partitioned topic was created or grew."""
        self.destination.refusals.changed()
        for number in range(self._resources.partitions(name) or 0):
            for source in self.sources.values():
                source.touched(str(name.with_partition(number)))

    # ------------------------------------------------------------------------------------------------ what topics report

    def confirmed(self, topic: Topic) -> None:
        """Entries became readable."""
        for source in self.sources.values():
            source.confirmed(topic.text)

    def trimmed(self, topic: Topic) -> None:
        """Ledgers were deleted."""
        for source in self.sources.values():
            source.trimmed(topic.text)

    def durable_low(self, topic: Topic) -> Position | None:
        """The position up to which retention may delete without affecting links; None if no link holds anything
        back.
        """
        lows = [low for source in self.sources.values() if (low := source.durable_low(topic.text)) is not None]
        return min(lows, default=None)

    def look_after(self, now_ms: int) -> None:
        """Now and then."""
        for source in self.sources.values():
            source.tick(now_ms)

    def flush(self) -> None:
        """Store the cursors now."""
        for source in self.sources.values():
            source.flush()

    def disconnected(self, connection: int) -> None:
        """A link peer is gone."""
        for source in self.sources.values():
            source.disconnected(connection)
        self.destination.disconnected(connection)
        self.restores.machine.disconnected(connection)

    def commit(
        self,
        request: pb.CommandGeoCommit,
        reply: Callable[[pb.CommandGeoCommitResponse], None],
        *,
        connection: int = 0,
        whole: bool = True,
        narrow: str = "",
    ) -> None:
        """GEO_COMMIT, counted; `connection`, `whole`, `narrow`: see `LinkSource.commit`.

        Raises:
            BrokerError: there is no such link.
        """
        source = self.source(request.to)
        states = {commit.topic: source.topics.get(commit.topic) for commit in request.commits}
        before = {name: (state.index, state.cursor) for name, state in states.items() if state is not None}
        source.commit(request, reply, connection=connection, whole=whole, narrow=narrow)
        if self._unknown:
            self._look_for_known()
        sent = self._sent[request.to]
        for name, (index, cursor) in before.items():
            state = states[name]
            # A rewind sets both back; entries sent again count again.
            if state is not None and state.cursor.gen == cursor.gen and state.cursor.s > cursor.s:
                messages = max(0, state.index - index)
                size = state.log.bytes_between(cursor.c, state.cursor.s)
                sent[0] += messages
                sent[1] += size
                topic = self._topics.get(name)
                if topic is not None:
                    topic.flow(request.to).went(messages, size)

    def source(self, target: str) -> LinkSource:
        """The link to a cluster.

        Raises:
            BrokerError: there is none.
        """
        source = self.sources.get(target)
        if source is None:
            raise BrokerError(ErrorCode.NOT_ALLOWED, f"there is no link from {self._context.cluster} to {target!r}")
        return source

    # -------------------------------------------------------------------------------------------------- administration

    def _known(self, target: str) -> LinkSource:
        source = self.sources.get(target)
        if source is None:
            raise NotFound(f"there is no link from {self._context.cluster} to {target}")
        return source

    @staticmethod
    def _answered(done: Done) -> Callable[[str], None]:
        return lambda error: done(BrokerError(ErrorCode.METADATA, error) if error else None)

    def pause(self, target: str, topic: str | None, paused: bool, done: Done) -> None:
        """Pause or resume a link or one of its topics."""
        with _refusals():
            self._known(target).operations.pause(topic, paused, self._answered(done))

    def throttle(self, target: str, bytes_per_s: int | None, done: Done) -> None:
        """Limit a link's rate."""
        self._known(target).operations.throttle(bytes_per_s, self._answered(done))

    def skip_preview(self, target: str, topic: str | None, through: Position | None) -> list[SkipPreview]:
        """The messages that a skip would lose."""
        with _refusals():
            found = self._known(target).operations.skip_preview(topic, through)
        return [
            SkipPreview(
                topic=skip.topic,
                through=str(skip.through),
                messages=skip.messages,
                entries=skip.entries,
                bytes=skip.bytes,
            )
            for skip in found
        ]

    def skip(self, target: str, topic: str | None, through: Position | None, done: Done) -> None:
        """Settle entries without sending them."""
        with _refusals():
            self._known(target).operations.skip(topic, through, self._answered(done))

    def delete_orphan(self, target: str, topic: str, done: Done) -> None:
        """Give up what an orphan cursor holds."""
        with _refusals():
            self._known(target).operations.delete_orphan(topic, self._answered(done))

    def validate(self) -> None:
        """Check what must hold after every event."""
        self.destination.validate()
        self.restores.machine.validate()
        for source in self.sources.values():
            source.validate()


class _refusals:  # noqa: N801 - used like a function
    """Turns the machines' refusals into those of administration."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Translate."""
        if isinstance(error, BrokerError):
            if error.code is ErrorCode.TOPIC_NOT_FOUND:
                raise NotFound(error.message) from error
            raise PreconditionFailed(error.message) from error
