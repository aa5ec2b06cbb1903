"""Adoption: a topic without partitions becomes partitioned and loses nothing. It becomes the first partition.

This is the solution if a topic of one name got partitions in one cluster and none in another: neither can accept the
other's messages.

    close      its clients are disconnected; until the end of this, neither it nor its partitions can be opened
    drain      appends in flight get into the log
    store      one transaction: its record, cursors and link cursors under the first partition's name, the other partitions, the
               partitioned topic's metadata
    take over  the topic ends in memory, and its log continues under the other name; other partitions get its subscriptions

No message moves. A ledger's opening has the name that the topic had when the ledger began. The record has that name too
(`stored_as`), and a start looks under both. State that follows from the log alone is built again: states of replicated
subscriptions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from magnetar.broker.catalog.catalog import Catalog
from magnetar.broker.catalog.changes import Changes
from magnetar.broker.catalog.deletion_marks import keys
from magnetar.broker.catalog.loaded_topics import LoadedTopics
from magnetar.broker.catalog.watches import TopicWatches
from magnetar.broker.clients import Clients
from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.links.links import Links
from magnetar.broker.metadata_sync.sync import MetadataSync
from magnetar.broker.publish.deduplication import CURSOR_NAME, Status
from magnetar.broker.publish.deduplication_policy import Deduplications
from magnetar.broker.publish.idempotency.policy import Idempotencies
from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.topics.compaction import PREFIX as COMPACTED_PREFIX
from magnetar.broker.topics.compaction_runs import Compactions
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode, MagnetarError
from magnetar.core.ids import NONE
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Note, Store
from magnetar.effects.store_batches import Piece, cut, store_in_turn, whole_or_cut
from magnetar.metadata.change import Change
from magnetar.metadata.errors import Conflict, NotFound, PreconditionFailed
from magnetar.metadata.topic_records import LAST_LEDGER_KEY, TOPIC_PREFIX, TopicRecord, cursor_key
from magnetar.replication.link.records import LinkTopicRecord, link_cursor_key
from magnetar.storage.cursor import Cursor
from magnetar.storage.topiclog import RecoveredTopic


@dataclass
class _Moving:
    """The parts of a topic that continue under another name.

    Attributes:
        record: the record of the first partition.
        cursors: its durable subscriptions, as stored.
        links: its cursor on each link.
        deduplication, compacted: as stored; None: there is none.
        puts, deletes: writes of the transaction.
    """

    record: TopicRecord
    cursors: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, LinkTopicRecord] = field(default_factory=dict)
    deduplication: bytes | None = None
    compacted: bytes | None = None
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)


class Adoption:
    """Adopts topics of one broker.

    Args:
        context: of the broker.
        topics: those that are loaded, by full name.
        loaded: loads and unloads them.
        the others: parts of the broker that keep something of a topic or a subscription.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        loaded: LoadedTopics,
        *,
        catalog: Catalog,
        changes: Changes,
        clients: Clients,
        flusher: CursorFlusher,
        links: Links,
        replicated_subscriptions: ReplicatedSubscriptions,
        deduplications: Deduplications,
        idempotencies: Idempotencies,
        compactions: Compactions,
        fences: Fences,
        watches: TopicWatches,
        metasync: MetadataSync,
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._loaded = loaded
        self._catalog = catalog
        self._changes = changes
        self._clients = clients
        self._flusher = flusher
        self._links = links
        self._replicated_subscriptions = replicated_subscriptions
        self._deduplications = deduplications
        self._idempotencies = idempotencies
        self._compactions = compactions
        self._fences = fences
        self._watches = watches
        self._metasync = metasync

    def adopt(self, name: TopicName, partitions: int, done: Done) -> None:
        """Give a topic partitions; its messages and subscriptions are in the first one.

        Args:
            name: a topic without partitions.
            partitions: number of partitions.
            done: called when it has taken effect or was refused.

        Raises:
            NotFound: there is none. Conflict: it has partitions. PreconditionFailed: a part of it prevents it, or the
                clock is wrong. NotAcceptable: the number.
            BrokerError: it is being deleted.
        """
        topic = self._checked(name, partitions)
        change = self._metasync.stamped(
            self._resources.create_partitioned(name, partitions, dict(topic.record.properties))
        )
        try:
            self._resources.begin(change)
        except MagnetarError:
            self._metasync.aborted(change)
            raise
        topic.begin_deletion()
        self._catalog.partitioning(name, True)
        self._clients.close_all(topic)
        topic.when_drained(lambda: self._store(topic, partitions, change, done))

    def _checked(self, name: TopicName, partitions: int) -> Topic:
        if present := self._resources.partitions(name):
            raise Conflict(f"topic {name} is partitioned already: it has {present} partitions")
        topic = self._topics.get(str(name))
        if topic is None:
            raise NotFound(f"topic {name} does not exist")
        topic.check_stays()
        first = name.with_partition(0)
        if str(first) in self._topics or self._catalog.coming(str(first)):
            raise Conflict(f"topic {first} exists: {name} cannot become it")
        if self._metasync.machine is not None and self._metasync.text == str(name):
            raise PreconditionFailed(f"{name} is the topic of synchronisation: it has no partitions")
        if self._fences.deletion_keys(topic):
            raise PreconditionFailed(f"subscriptions of {name} are moving or were moved by a failover; end that first")
        if topic.idempotency is not None:
            off = self._context.command("topics", "set-idempotency", str(name), "--off")
            raise PreconditionFailed(f"{name} has idempotency keys; switch them off first: {off}")
        if len(self._topics) + partitions > self._context.config.topics_max:
            raise PreconditionFailed(f"more than {self._context.config.topics_max} topics (topics_max)")
        return topic

    def _move(self, topic: Topic, first: str) -> _Moving:
        """The writes that let a topic continue under another name."""
        log, text = topic.log, topic.text
        watermarks = {source: (position[0], position[1]) for source, position in log.watermarks().items()}
        record = replace(
            topic.record,
            next_index=log.next_index,
            watermarks=watermarks,
            end=(log.last[0], log.last[1]),
            stored_as=text,
        )
        moving = _Moving(record)
        moving.puts[TOPIC_PREFIX + first] = record.encode()
        moving.deletes.append(TOPIC_PREFIX + text)
        for subscription in topic.durable_subscriptions():
            data = moving.cursors[subscription.name] = subscription.encode()
            moving.puts[cursor_key(first, subscription.name)] = data
            moving.deletes.append(cursor_key(text, subscription.name))
            self._flusher.forget(cursor_key(text, subscription.name))
        for target, source in self._links.sources.items():
            state = source.topics.get(text)
            if state is not None:
                moving.links[target] = state.record()
                moving.puts[link_cursor_key(first, target)] = moving.links[target].encode()
        moving.deletes += self._links.deletion_keys(topic)
        deduplication = topic.deduplication
        if deduplication is not None and deduplication.status is Status.ENABLED:
            moving.deduplication = deduplication.encode()
            moving.puts[cursor_key(first, CURSOR_NAME)] = moving.deduplication
        moving.deletes += self._deduplications.deletion_keys(topic)
        moving.deletes += self._replicated_subscriptions.deletion_keys(topic)
        if topic.horizon != NONE:
            moving.compacted = topic.compacted.encode()
            moving.puts[COMPACTED_PREFIX + first] = moving.compacted
        moving.deletes += self._compactions.deletion_keys(topic)
        return moving

    def _store(self, topic: Topic, partitions: int, change: Change, done: Done) -> None:
        name, catalog = topic.name, self._catalog
        others = [name.with_partition(number) for number in range(1, partitions)]
        others = [other for other in others if str(other) not in self._topics and not catalog.coming(str(other))]
        moving = self._move(topic, str(name.with_partition(0)))
        records: dict[TopicName, TopicRecord] = {}
        pieces = []
        for other in others:
            puts, records[other] = catalog.creation(other)
            pieces.append(Piece((str(other),), puts))
        marks = catalog.deleted.family(name)
        last = Piece((), {**change.puts, **moving.puts}, (*change.deletes, *moving.deletes, *keys(marks)))

        def stored(error: str, before: Sequence[Piece]) -> None:
            catalog.partitioning(name, False)
            if error:
                gone = [key for batch in before for key in batch.puts if key != LAST_LEDGER_KEY]
                for part in cut(Piece((), {}, (key,)) for key in gone):
                    self._outbox.put(Store({}, part.deletes, None))
                self._failed(topic, change)
                done(BrokerError(ErrorCode.METADATA, f"the metadata store refused: {error}"))
                return
            catalog.deleted.drop(marks)
            self._take_over(topic, moving)
            for other, record in records.items():
                self._loaded.add(other, record)
            self._resources.apply(change)
            self._metasync.committed(change)
            catalog.partitioned(name)
            self._links.partitions_changed(name)
            self._outbox.put(
                Note("info", f"topic {name} has {partitions} partitions now; its messages are in the first")
            )
            self._changes.subscribe_as_the_first(name, others, done)

        store_in_turn(self._outbox, whole_or_cut(pieces, last), stored)

    def _failed(self, topic: Topic, change: Change) -> None:
        """The store refused: the topic is what it was."""
        topic.deletion_failed()
        self._loaded.deletion_failed(topic)
        self._resources.abort(change)
        self._metasync.aborted(change)

    def _take_over(self, topic: Topic, moving: _Moving) -> None:
        """The first partition is there, with all that the topic had."""
        name, log = topic.name.with_partition(0), topic.log
        held = RecoveredTopic({info.ledger: info for info in log.ledger_infos()}, log.next_index, log.watermarks())
        self._loaded.remove(topic)
        for target, record in moving.links.items():
            self._links.sources[target].moved(str(name), record)
        made = self._loaded.add(name, moving.record, held, fresh=False)
        for subscription, data in moving.cursors.items():
            cursor = Cursor.decode(made.log, data)
            made.add_subscription(self._loaded.make_subscription(made, subscription, cursor, durable=True))
        self._replicated_subscriptions.topic_loaded(made)
        self._deduplications.added(made, moving.deduplication)
        self._idempotencies.topic_loaded(made)
        if moving.compacted is not None:
            made.compacted.load(moving.compacted)
        self._watches.topic_loaded(made)
