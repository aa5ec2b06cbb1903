"""The existing topics and subscriptions: creating and deleting them.

Creating is one transaction of the metadata store: the topic's record, its links' cursors and (if there is one) the
removal of the mark of an earlier deletion together, before the first publish can be answered. So a link cannot miss a
published message, whether a pipeline runs or not.

Methods whose effect has to become durable first take a `done` or `then` and call it exactly once, later or at once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from magnetar.broker.catalog.deletion_marks import Deletions, keys
from magnetar.broker.catalog.deletion_proofs import Proofs
from magnetar.broker.catalog.loaded_topics import LoadedTopics
from magnetar.broker.catalog.subscriber import Subscriber
from magnetar.broker.client_bytes import ClientBytes
from magnetar.broker.clients import Clients
from magnetar.broker.context import BrokerContext
from magnetar.broker.failover.fencing import Fences
from magnetar.broker.links.links import Links
from magnetar.broker.metadata_sync.sync import MetadataSync
from magnetar.broker.nonpersistent.topics import NonPersistentTopics
from magnetar.broker.replicated_subscriptions.registry import ReplicatedSubscriptions
from magnetar.broker.security.logins import host_of
from magnetar.broker.subscriptions.acked_ids import position_of
from magnetar.broker.subscriptions.consumer import Consumer, SubType
from magnetar.broker.subscriptions.cursor_flusher import CursorFlusher
from magnetar.broker.subscriptions.subscription import REPLICATED, Subscription
from magnetar.broker.topics import ways_out as waysout
from magnetar.broker.topics.compaction import Compacted
from magnetar.broker.topics.compaction_runs import Compactions
from magnetar.broker.topics.limits import check_type
from magnetar.broker.topics.schemas import Schemas
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import BrokerError, ErrorCode
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import NamespaceName, TopicName
from magnetar.effects.outbox import Drop, Note, Store
from magnetar.effects.store_batches import Piece, cut, store_in_turn, whole_or_cut
from magnetar.metadata.change import Change
from magnetar.metadata.errors import BadRequest, Conflict
from magnetar.metadata.keys import namespace_key, partitioned_key
from magnetar.metadata.policies.namespace import check_properties
from magnetar.metadata.topic_records import (
    DELETED_PREFIX,
    LAST_LEDGER_KEY,
    NOTHING,
    TOPIC_PREFIX,
    DeletedMark,
    TopicRecord,
    cursor_key,
)
from magnetar.storage.cursor import Cursor
from magnetar.storage.topiclog import LedgerIds
from magnetar.wire import commands
from magnetar.wire import pulsar_pb2 as pb

WAITING_MAX: Final = 10_000
"""A ceiling on attempts that wait for one topic or one subscription to be stored, or for one seek. An attempt that its client
gave up stays among them until the store answers. 10 MB; above it attempts are refused, and official clients try again
automatically.
"""

LATE_MS: Final = 60_000
"""The time after a topic got its partitions during which a client may open it without them, because it asked before: a
minute is longer than clients wait for the answer.
"""

LATE_MAX: Final = 10_000
"""A ceiling on topics that are remembered for that: 2 MB. Clients of what is forgotten early get a harder error."""

Done = Callable[[BrokerError | None], None]
Opened = Callable[[Topic | None, BrokerError | None], None]
_Then = TypeVar("_Then")

_IN_ORDER: Final = (SubType.EXCLUSIVE, SubType.FAILOVER)
"""Types of which one consumer gets everything."""


def _problem(error: str) -> BrokerError | None:
    return BrokerError(ErrorCode.METADATA, f"the metadata store refused: {error}") if error else None


def _waits(waiting: list[_Then] | None, then: _Then, refuse: Callable[[BrokerError], None], what: str) -> bool:
    """Whether there is something to wait for: `then` is called when it is over, or `refuse` at once where too many wait.

    Args:
        waiting: those who wait for the same; None: there is nothing to wait for.
        then: what waits.
        refuse: gets the refusal.
        what: the reason, for people.
    """
    if waiting is None:
        return False
    if len(waiting) < WAITING_MAX:
        waiting.append(then)
    else:
        text = f"{what}, and {len(waiting):,} wait for that; try again"
        refuse(BrokerError(ErrorCode.SERVICE_NOT_READY, text))
    return True


class Catalog:
    """Topics and subscriptions of one broker.

    Args:
        context: the broker's context.
        topics: the loaded topics, by full name.
        loaded: loads and unloads them.
        deleted: marks of topics that were deleted.
        ledger_ids: gives every topic its incarnation.
        topic_gone: called with a topic that was durably deleted: deletes its policies and permissions, then calls its
            second argument.
        names: gives a name to a consumer that sent none.
        the others: parts of the broker with state of topics or subscriptions.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        loaded: LoadedTopics,
        deleted: Deletions,
        *,
        ledger_ids: LedgerIds,
        clients: Clients,
        client_bytes: ClientBytes,
        flusher: CursorFlusher,
        links: Links,
        replicated_subscriptions: ReplicatedSubscriptions,
        compactions: Compactions,
        schemas: Schemas,
        fences: Fences,
        nonpersistent: NonPersistentTopics,
        metasync: MetadataSync,
        proofs: Proofs,
        topic_gone: Callable[[TopicName, Callable[[], None]], None],
        names: Callable[[], str],
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._loaded = loaded
        self._ledger_ids = ledger_ids
        self._clients = clients
        self._client_bytes = client_bytes
        self._flusher = flusher
        self._links = links
        self._replicated_subscriptions = replicated_subscriptions
        self._compactions = compactions
        self._schemas = schemas
        self._fences = fences
        self._nonpersistent = nonpersistent
        self._metasync = metasync
        self._proofs = proofs
        self._topic_gone = topic_gone
        self._consumer_name = names
        self.deleted = deleted
        self._creating: dict[str, list[Opened]] = {}
        self._partitioning: set[str] = set()
        self._partitioned_ms: dict[str, int] = {}
        """Topics that became partitioned since this broker's start -> when; oldest first."""
        self._seeking: dict[Subscription, list[Callable[[], None]]] = {}
        self._unstored: dict[Subscription, list[Done]] = {}

    # ------------------------------------------------------------------------------------------------------- looking

    def check_namespace(self, name: TopicName) -> None:
        """Refuse a topic whose namespace does not exist, or is on its way out.

        Raises:
            BrokerError: with the command that would help.
        """
        namespace = name.namespace_name
        self._check_stays(name)
        if not self._resources.has_namespace(namespace):
            raise BrokerError(
                ErrorCode.TOPIC_NOT_FOUND,
                f"namespace {namespace} does not exist; create it: {waysout.create_namespace(self._context, namespace)}",
            )

    def _check_stays(self, name: TopicName) -> None:
        """Neither a topic's namespace nor what it is a partition of may be on its way out: it would be there without that."""
        namespace, is_deleting = name.namespace_name, self._resources.is_deleting
        if is_deleting(namespace_key(namespace)):
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"namespace {namespace} is being deleted; try again")
        if is_deleting(partitioned_key(name.base)):
            raise BrokerError(ErrorCode.SERVICE_NOT_READY, f"topic {name.base} is being deleted; try again")

    def check_empty(self, change: Change) -> None:
        """Refuse the deletion of a namespace in which a topic is just being created: it would be there without one.

        Raises:
            Conflict: naming one.
        """
        for text in change.namespaces:
            if namespace_key(NamespaceName.parse(text)) in change.deletes:
                coming = self.coming(f"persistent://{text}/")
                if coming:
                    raise Conflict(f"namespace {text} is getting topic {coming[0]}; delete it first")

    def coming(self, prefix: str = "") -> list[str]:
        """Full names of topics that are just being created, of those that begin so."""
        return [topic for topic in self._creating if topic.startswith(prefix)]

    def known(self, name: TopicName) -> bool:
        """Whether a topic of that name exists in either form, or is just being created."""
        text = str(name)
        exists = text in self._topics or text in self._nonpersistent.topics
        exists = exists or self._resources.partitions(name) is not None
        return exists or text in self._creating or text in self._partitioning

    def partitions_for_client(self, name: TopicName, create: bool) -> int:
        """The number of partitions of a topic; 0 if it is not partitioned.

        Raises:
            BrokerError: the topic does not exist and would not be created.
        """
        self.check_namespace(name)
        count = self._resources.partitions(name)
        if count is not None:
            return count
        if str(name) in self._partitioning:
            raise BrokerError(
                ErrorCode.SERVICE_NOT_READY, f"the partitions of topic {name} are being created; try again"
            )
        exists = str(name) in self._topics or str(name) in self._nonpersistent.topics
        # Partitions of non-persistent topics exist as soon as a client opens them.
        if exists or ((create or name.partition >= 0) and self.may_come(name)):
            return 0
        raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {name} does not exist")

    def topics_of(self, namespace: NamespaceName) -> list[str]:
        """Names of the topics of a namespace, with each partition listed separately, sorted."""
        prefix = f"persistent://{namespace}/"
        return sorted(text for text in self._topics if text.startswith(prefix))

    # ------------------------------------------------------------------------------------------------------ creating

    def open(self, name: TopicName, *, create: bool, then: Opened) -> None:
        """Hand out a topic; one that does not exist is created if `create` and `may_come` say so."""
        topic = self._topics.get(str(name))
        if topic is not None:
            then(topic, None)
            return
        try:
            self.check_namespace(name)
            self.check_creatable(name, create and self.may_come(name))
            if str(name) not in self._creating:
                self.check_room(name.namespace_name, 1)
        except BrokerError as error:
            then(None, error)
            return
        self.create(name, then=then)

    def may_come(self, name: TopicName) -> bool:
        """Whether a topic of that name comes into being when a client opens it, as far as settings and policies say."""
        return self._resources.comes_when_opened(name, self._context.config.auto_create_topics)

    def check_creatable(self, name: TopicName, create: bool) -> None:
        """Refuse a name that is not to come into being by being opened.

        Raises:
            BrokerError: it is a partitioned topic, a partition that it does not have, or `create` is false.
        """
        base = name.base
        count = self._resources.partitions(base)
        if base != name:
            # Partitions are created with their topic (or by growing it), never one by one: otherwise clients of a
            # deleted topic would create them again, and a role that may use one topic could create thousands. This is
            # the code at which official clients give up.
            if name.partition >= (count or 0):
                has = "is not partitioned" if count is None else f"has {count} partitions"
                raise BrokerError(
                    ErrorCode.TOPIC_NOT_FOUND, f"topic {base} {has}; there is no partition {name.partition}"
                )
            return
        if count is not None or str(name) in self._partitioning:
            raise self._is_partitioned(name)
        if not create:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {name} does not exist")

    def _is_partitioned(self, name: TopicName) -> BrokerError:
        """The refusal to open a partitioned topic itself.

        A client that asked for the number of partitions before there were any has to try again: the error code says so.
        """
        at_ms = self._partitioned_ms.get(str(name))
        if str(name) in self._partitioning or (at_ms is not None and self._outbox.now_ms - at_ms < LATE_MS):
            text = f"topic {name} is partitioned since just now; open it again to use its partitions"
            return BrokerError(ErrorCode.SERVICE_NOT_READY, text)
        return BrokerError(ErrorCode.NOT_ALLOWED, f"topic {name} is partitioned; use its partitions")

    def partitioning(self, name: TopicName, begins: bool) -> None:
        """A topic is being given partitions, or no longer: meanwhile it cannot be opened."""
        (self._partitioning.add if begins else self._partitioning.discard)(str(name))

    def partitioned(self, name: TopicName) -> None:
        """A topic has become partitioned, or got more partitions."""
        known, now_ms = self._partitioned_ms, self._outbox.now_ms
        known.pop(str(name), None)
        known[str(name)] = now_ms
        while known:
            oldest = next(iter(known))
            if len(known) <= LATE_MAX and now_ms - known[oldest] < LATE_MS:
                break
            del known[oldest]

    def check_room(self, namespace: NamespaceName, topics: int) -> None:
        """Check that a client or an administrator may create this many topics here (those of links are not refused).

        Raises:
            BrokerError: NOT_ALLOWED: the policies of the namespace.
        """
        here, resources = self._context.cluster, self._resources
        if resources.has_namespace(namespace) and not resources.serves(namespace):
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"cluster {here} is not among the allowed clusters of namespace {namespace}; allow it: "
                f"{waysout.allow(self._context, namespace, (here,))}",
            )
        self._check_topics(namespace, topics)

    def _check_topics(self, namespace: NamespaceName, more: int) -> None:
        """Check that a namespace may have this many more topics.

        Raises:
            BrokerError: NOT_ALLOWED, naming the policy.
        """
        most = self._resources.shared_policies(namespace).max_topics_per_namespace
        if not most:
            return
        prefix = f"persistent://{namespace}/"
        present = sum(
            text.startswith(prefix) and not text.startswith(prefix + "__")
            for texts in (self._topics, self.coming(prefix))
            for text in texts
        )
        if present + more > most:
            more_allowed = str(max(2 * most, present + more))
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"namespace {namespace} has {present} topics and may have {most}: maxTopicsPerNamespace, "
                f"{self._context.command('namespaces', 'set', str(namespace), 'max-topics', more_allowed)}",
            )

    def create(
        self, name: TopicName, *, then: Opened, properties: dict[str, str] | None = None, by_link: bool = False
    ) -> None:
        """Create one topic (or one partition), durably; `by_link`: marks of its deletion stay."""
        text = str(name)
        if _waits(self._creating.get(text), then, partial(then, None), f"topic {text} is not stored yet"):
            return
        if len(self._topics) + len(self._creating) >= self._context.config.topics_max:
            then(
                None,
                BrokerError(
                    ErrorCode.NOT_ALLOWED,
                    f"{self._context.config.topics_max} topics exist, the most allowed (topics_max)",
                ),
            )
            return
        try:
            self._check_stays(name)
        except BrokerError as error:
            then(None, error)
            return
        if text in self._partitioning or self._resources.partitions(name) is not None:
            then(None, self._is_partitioned(name))
            return
        self._creating[text] = [then]
        puts, record = self.creation(name, properties)
        marks = () if by_link else self.deleted.family(name)

        def stored(error: str) -> None:
            if not error:
                self.deleted.drop(marks)
            topic = None if error else self._loaded.add(name, record)
            waiting = self._creating.pop(text)
            if error:
                self._metasync.not_made(name)
            for then in waiting:
                then(topic, _problem(error))

        self._outbox.put(Store(puts, keys(marks), stored))

    def creation(
        self, name: TopicName, properties: dict[str, str] | None = None
    ) -> tuple[dict[str, bytes], TopicRecord]:
        """The writes that create a topic, and its record."""
        record = TopicRecord(
            incarnation=self._ledger_ids.allocate(self._outbox.now_ms),
            created_ms=self._outbox.now_ms,
            properties=properties or NOTHING,
        )
        text = str(name)
        # The id outlives the topic: after deletions and with a clock set back no ledger id may come again
        # (docs/design/links.md#ledger-ids-grow).
        puts = {TOPIC_PREFIX + text: record.encode(), LAST_LEDGER_KEY: str(record.incarnation).encode()}
        puts |= self._links.creation(name, record.incarnation)
        return puts, record

    def create_many(
        self, base: TopicName, partitions: int, puts: dict[str, bytes], done: Done, *, by_link: bool = False
    ) -> None:
        """Create the missing partitions of a topic and store `puts` (its metadata), all or nothing; `by_link` as of `create`.

        What is more than ZooKeeper takes at once is several transactions, the metadata in the last. A crash in between leaves
        partitions that are topics of their own, until the same is asked for again.

        Raises:
            Conflict: a topic of that name, not partitioned, exists or is just being created.
            BrokerError: SERVICE_NOT_READY: it is being deleted.
        """
        text = str(base)
        self._check_stays(base)
        if text in self._topics or text in self._creating:
            adopt = waysout.adopt_partitions(self._context, base, partitions, self._context.cluster)
            raise Conflict(f"topic {text} exists and is not partitioned; to give it partitions: {adopt}")
        # Non-persistent partitions have nothing that is stored: they come into being when they are opened.
        topics = [base.with_partition(number) for number in range(partitions)] if base.persistent else []
        self._partitioning.add(text)
        missing = [name for name in topics if str(name) not in self._topics and str(name) not in self._creating]
        if len(self._topics) + len(missing) > self._context.config.topics_max:
            self._partitioning.discard(text)
            done(
                BrokerError(
                    ErrorCode.NOT_ALLOWED,
                    f"more than {self._context.config.topics_max} topics (topics_max)",
                )
            )
            return
        records = {}
        pieces: list[Piece] = []
        for name in missing:
            more, records[name] = self.creation(name)
            pieces.append(Piece((str(name),), more))
            self._creating[str(name)] = []
        marks = () if by_link else self.deleted.family(base)
        pieces += [Piece((), {}, (key,)) for key in keys(marks)]

        def stored(error: str, before: Sequence[Piece]) -> None:
            if error:
                gone = [key for batch in before for key in batch.puts if key != LAST_LEDGER_KEY]
                for part in cut(Piece((), {}, (key,)) for key in gone):
                    self._outbox.put(Store({}, part.deletes, None))
            self._partitioning.discard(text)
            if not error:
                self.deleted.drop(marks)
            for name, record in records.items():
                topic = None if error else self._loaded.add(name, record)
                for waiting in self._creating.pop(str(name)):
                    waiting(topic, _problem(error))
            if error:
                self._metasync.not_made(base)
            done(_problem(error))

        store_in_turn(self._outbox, whole_or_cut(pieces, Piece((), puts)), stored)

    def store_epoch(self, topic: Topic, done: Done) -> None:
        """Make the epoch of a topic's exclusive producers durable, as it is now."""
        epoch = topic.producers.topic_epoch
        if epoch <= topic.topic_epoch_stored:
            done(None)
            return
        topic.record_topic_epoch(epoch)

        def stored(error: str) -> None:
            if not error:
                topic.topic_epoch_is_durable(epoch)
            done(_problem(error))

        self._outbox.put(Store({TOPIC_PREFIX + topic.text: topic.record.encode()}, (), stored))

    # ------------------------------------------------------------------------------------------------------ deleting

    def unmark(self, name: TopicName, done: Done) -> None:
        """A topic that links have created again after its deletion is needed here: accept its earlier messages too."""
        marks = self.deleted.family(name)

        def stored(error: str) -> None:
            if not error:
                self.deleted.drop(marks)
                self._links.destination.refusals.changed()
            done(_problem(error))

        self._outbox.put(Store({}, keys(marks), stored))

    def mark(self, name: TopicName, partitions: int = 0) -> DeletedMark | None:
        """The mark that the deletion of a topic leaves (of a partitioned one, whose partitions are gone already); None: none."""
        if not self._links.geo_replicated(name):
            return None
        known = self.deleted.highest_known_ids(name)
        for source, ledger in self._links.highest_known_ids(name).items():
            known[source] = max(ledger, known.get(source, -1))
        return DeletedMark(self._outbox.now_ms, known, partitions)

    def delete(self, topic: Topic, *, force: bool, done: Done) -> None:
        """Delete a topic with its messages, subscriptions and link cursors; local to this cluster.

        A replicated topic leaves a mark that refuses links: see `broker.catalog.deletion_marks`.
        """
        if topic.deleting:
            done(
                BrokerError(
                    ErrorCode.SERVICE_NOT_READY,
                    f"topic {topic.text} is already being deleted",
                )
            )
            return
        busy = [name for name, subscription in topic.subscriptions.items() if subscription.consumers]
        if not force and (topic.producers.live or busy):
            done(
                BrokerError(
                    ErrorCode.NOT_ALLOWED,
                    f"topic {topic.text} has {len(topic.producers.live)} producers and {len(busy)} subscriptions with "
                    "consumers; close them or use force",
                )
            )
            return
        topic.begin_deletion()
        self._clients.close_all(topic)
        topic.when_drained(lambda: self._delete_drained(topic, done))

    def _delete_drained(self, topic: Topic, done: Done) -> None:
        deletes = [TOPIC_PREFIX + topic.text]
        for name, subscription in topic.subscriptions.items():
            if subscription.durable:
                key = cursor_key(topic.text, name)
                self._flusher.forget(key)
                deletes.append(key)
        deletes += self._loaded.deletion_keys(topic)
        deletes += self._schemas.deletion(topic)
        mark = self.mark(topic.name)
        puts = self._proofs.deletion(topic)
        if mark is not None:
            puts[DELETED_PREFIX + topic.text] = mark.encode()

        def stored(error: str) -> None:
            self._schemas.deleted(topic, failed=bool(error))
            if error:
                topic.deletion_failed()
                self._loaded.deletion_failed(topic)
                done(_problem(error))
                return
            if mark is not None:
                self.deleted.put(topic.name, mark)
            self._proofs.deleted(topic)
            self._loaded.remove(topic)
            self._outbox.put(Drop(tuple(topic.log.ledger_ids())))
            self._outbox.put(Note("info", f"deleted topic {topic.text}"))
            self._topic_gone(topic.name, lambda: done(None))

        self._outbox.put(Store(puts, tuple(deletes), stored))

    # ------------------------------------------------------------------------------------------------- subscriptions

    def create_subscription(
        self,
        topic: Topic,
        name: str,
        position: Position,
        done: Done,
        *,
        replicated: bool = False,
        properties: Mapping[str, str] | None = None,
        compacted: bool = False,
    ) -> None:
        """Create a durable subscription without a consumer, at `position` (EARLIEST, LATEST, or the first to deliver).

        `properties` are kept with it, within the limits that `check_properties` knows; one that exists keeps its own.
        `compacted`: it is for a consumer that reads compacted. One that exists and is not stored yet is waited for.
        """
        existing = topic.subscriptions.get(name)
        if existing is not None:
            if not self._waits_for_store(existing, done):
                done(None)
            return
        if leaving := topic.leaving:
            done(leaving)
            return
        if sum(1 for _ in topic.durable_subscriptions()) >= topic.limits.subscriptions:
            done(
                BrokerError(
                    ErrorCode.NOT_ALLOWED,
                    f"topic {topic.text} has {topic.limits.subscriptions} durable subscriptions or more, the most allowed "
                    f"({topic.limits.sources['max-subscriptions']})",
                )
            )
            return
        cursor, begins = Cursor.at(topic.log, position), position == EARLIEST
        subscription = self._loaded.make_subscription(topic, name, cursor, durable=True, from_beginning=begins)
        subscription.cursor.labels.update(properties or {})
        key = cursor_key(topic.text, name)
        puts: dict[str, bytes] = {}
        topic.add_subscription(subscription)
        wanted = self._replicated_subscriptions.wanted
        if replicated or wanted(topic, name, durable=True, asked=False, compacted=compacted):
            subscription.cursor.properties[REPLICATED] = 1
            puts = self._replicated_subscriptions.created(topic, subscription)

        def stored(error: str) -> None:
            if error:
                if topic.subscriptions.get(name) is subscription:
                    self._loaded.forget_subscription(topic, subscription)
                    self._replicated_subscriptions.creation_failed(topic, subscription)
                    subscription.close("it could not be stored")
                    # The acknowledgements of that subscription would store it again, or have done so already after the
                    # failure.
                    self._flusher.forget(key)
                    self._outbox.put(Store({}, (key,), None))
            else:
                self._fences.made(subscription)
            for answer in (done, *self._unstored.pop(subscription)):
                answer(_problem(error))

        self._unstored[subscription] = []
        self._outbox.put(Store({key: subscription.encode()} | puts, (), stored))

    def attach_consumer(self, subscriber: Subscriber, topic: Topic, command: pb.CommandSubscribe, done: Done) -> None:
        """Let a client's consumer onto a subscription, which is created if need be.

        `done` is called with a refusal only; success is answered by `Subscriber.attached`.
        """
        try:
            self._check_subscribe(topic, command)
            if topic.subscribing is not None:
                consumer = (host_of(subscriber.connection.address), command.consumer_name, command.consumer_id)
                topic.subscribing.check(topic.text, consumer, self._outbox.now_ms)
        except BrokerError as error:
            done(error)
            return

        def checked(_version: bytes, error: BrokerError | None) -> None:
            if error is not None:
                done(error)
            elif subscriber.awaited(command):
                self._attach_checked(subscriber, topic, command, done)

        self._schemas.for_consumer(topic, command, checked)

    def _attach_checked(self, subscriber: Subscriber, topic: Topic, command: pb.CommandSubscribe, done: Done) -> None:
        name = command.subscription
        replicated_subscriptions = self._replicated_subscriptions
        asked, compacted = command.replicate_subscription_state, command.read_compacted
        wanted = replicated_subscriptions.wanted(topic, name, durable=command.durable, asked=asked, compacted=compacted)

        def ready() -> None:
            if self._topics.get(topic.text) is not topic:
                done(BrokerError(ErrorCode.SERVICE_NOT_READY, f"topic {topic.text} was deleted meanwhile"))
            elif subscriber.awaited(command):
                self._attach_ready(subscriber, topic, command, done, replicated=wanted)

        def known() -> None:
            replicated_subscriptions.when_ready(topic, name, ready, replicated=wanted)

        # After a start: withdrawn messages are known when the idempotency keys are.
        if topic.idempotency is not None:
            topic.idempotency.when_ready(known)
        else:
            known()

    def _attach_ready(
        self, subscriber: Subscriber, topic: Topic, command: pb.CommandSubscribe, done: Done, *, replicated: bool
    ) -> None:
        name = command.subscription
        existing = topic.subscriptions.get(name)
        if existing is not None:
            self._attach_existing(subscriber, topic, existing, command, done)
            return
        if not command.durable:
            named = command.HasField("start_message_id")
            position = position_of(command.start_message_id) if named else _initial(command)
            cursor, begins = Cursor.at(topic.log, position), position == EARLIEST
            subscription = self._loaded.make_subscription(topic, name, cursor, durable=False, from_beginning=begins)
            self._rollback(topic, subscription, command)
            topic.add_subscription(subscription)
            self._attach(subscriber, subscription, command, done)
            self._loaded.after_consumer_left(subscription)  # it ends with its consumer, also with one that was refused
            return
        position = _initial(command)
        if command.start_message_rollback_duration_sec:
            position = topic.log.seek_time(self._rolled_back(command))
        try:
            properties = check_properties({pair.key: pair.value for pair in command.subscription_properties})
        except BadRequest as error:
            done(BrokerError(ErrorCode.NOT_ALLOWED, str(error)))
            return

        def created(error: BrokerError | None) -> None:
            subscription = topic.subscriptions.get(name)
            if error is not None or subscription is None:
                done(
                    error
                    or BrokerError(
                        ErrorCode.SERVICE_NOT_READY,
                        f"subscription {name} was deleted meanwhile",
                    )
                )
                return
            if subscription in self._unstored:  # another one of that name: the one that was made here is deleted
                self._attach_checked(subscriber, topic, command, done)
            elif subscriber.awaited(command):
                # No other client has come to it, so that no seek is on its way to the store.
                self._attach(subscriber, subscription, command, done)

        self.create_subscription(
            topic,
            name,
            position,
            created,
            replicated=replicated,
            properties=properties,
            compacted=command.read_compacted,
        )

    def _attach_existing(
        self, subscriber: Subscriber, topic: Topic, existing: Subscription, command: pb.CommandSubscribe, done: Done
    ) -> None:
        name = existing.name

        def attach() -> None:
            self._attach_checked(subscriber, topic, command, done)

        def stored(error: BrokerError | None) -> None:
            if error is not None:
                done(error)
            else:
                attach()

        if self._waits_for_store(existing, stored):
            return
        # A client discards its messages when its seek is answered: nothing may be delivered before.
        seeking = self._seeking.get(existing)
        if _waits(seeking, attach, done, f"a seek of subscription {name} is not stored yet"):
            return
        if existing.durable != command.durable:
            text = f"subscription {name} is {'durable' if existing.durable else 'not durable'}"
            done(BrokerError(ErrorCode.NOT_ALLOWED, text))
            return
        if not existing.durable and command.HasField("start_message_id") and command.subType in _IN_ORDER:
            self._go_on(existing, topic, position_of(command.start_message_id))
        if not self._fences.redirects(subscriber.connection, existing, command, done):
            self._attach(subscriber, existing, command, done)

    @staticmethod
    def _go_on(subscription: Subscription, topic: Topic, start: Position) -> None:
        """A reader reconnects after it was disconnected (an unloaded topic): it states its position. It may not have
        acknowledged its last messages, and will not. A position after the end means that it has read nothing yet, and
        misses nothing.

        After a seek its position is that of the seek, whatever it states.
        """
        if not subscription.consumers and not subscription.sought and start <= topic.log.last:
            subscription.advance_to(Cursor.at(topic.log, start).mark_delete)

    def subscription_stored(self, topic: Topic, name: str) -> bool:
        """Whether a topic has a subscription, and not one that is still on its way to the store."""
        return name in topic.subscriptions and topic.subscriptions[name] not in self._unstored

    def _waits_for_store(self, subscription: Subscription, then: Done) -> bool:
        """Whether the subscription is not stored yet: `then` is called when that is known.

        Its consumers would be answered, and a broker that ends now would leave nothing of it: a client that subscribes again
        at the latest message does not get those that were published meanwhile.
        """
        waiting = self._unstored.get(subscription)
        return _waits(waiting, then, then, f"subscription {subscription.name} is not stored yet")

    def _rolled_back(self, command: pb.CommandSubscribe) -> int:
        """The time at which a new subscription starts that requests messages published since a time, ms."""
        return self._outbox.day_ms - command.start_message_rollback_duration_sec * 1000

    def _rollback(self, topic: Topic, subscription: Subscription, command: pb.CommandSubscribe) -> None:
        """`start_message_rollback_duration_sec`: a new subscription starts this long ago."""
        if command.start_message_rollback_duration_sec:
            subscription.reset_to(topic.log.seek_time(self._rolled_back(command)))

    def _check_subscribe(self, topic: Topic, command: pb.CommandSubscribe) -> None:
        """Refuse what can be refused before anything is stored for it."""
        topic.check_stays()
        if command.subType not in set(SubType):
            raise BrokerError(
                ErrorCode.NOT_ALLOWED,
                f"subscription type {command.subType} is not known",
            )
        check_type(SubType(command.subType), topic.limits, topic.text)
        if command.read_compacted and command.subType not in _IN_ORDER:
            raise BrokerError(
                ErrorCode.NOT_ALLOWED, "reading compacted is possible with Exclusive and Failover subscriptions only"
            )
        if command.durable and not topic.limits.new_subscriptions and command.subscription not in topic.subscriptions:
            raise BrokerError(
                ErrorCode.SUBSCRIPTION_NOT_FOUND,
                f"{topic.text} has no subscription {command.subscription}, and consumers make none there "
                f"({topic.limits.sources['auto-subscription-creation']}): create it first",
            )
        self._check_consumers(topic, command)

    def _check_consumers(self, topic: Topic, command: pb.CommandSubscribe) -> None:
        """Refuse a consumer above the limit. An Exclusive one is alone in any case: the present one may have lost its
        connection unnoticed.
        """
        if topic.consumer_count() >= topic.limits.consumers:
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY,
                f"topic {topic.text} has {topic.consumer_count()} consumers, the most allowed "
                f"({topic.limits.sources['max-consumers']})",
            )
        present = topic.subscriptions.get(command.subscription)
        if (
            present is not None
            and command.subType != SubType.EXCLUSIVE
            and len(present.consumers) >= topic.limits.consumers_per_subscription
        ):
            raise BrokerError(
                ErrorCode.CONSUMER_BUSY,
                f"subscription {present.name} of {topic.text} has {len(present.consumers)} consumers, the most allowed "
                f"({topic.limits.sources['max-consumers-per-subscription']})",
            )

    def _attach(
        self,
        subscriber: Subscriber,
        subscription: Subscription,
        command: pb.CommandSubscribe,
        done: Done,
    ) -> None:
        connection = subscriber.connection
        own_name = command.consumer_name or self._consumer_name()
        consumer = Consumer.of_command(connection, command, own_name, self._outbox.now_ms)
        topic = self._topics.get(subscription.topic)
        compacted = topic.compacted if command.read_compacted and topic is not None else None
        try:
            if topic is not None:
                self._check_consumers(topic, command)  # again: others may have come while something was being stored
            self._compactions.check(subscription, compacted)
            consumer.held = self._client_bytes.held(connection.number, subscription.topic, command)
        except BrokerError as error:
            done(error)
            return
        asked = command.replicate_subscription_state
        if topic is not None and self._replicated_subscriptions.wanted(
            topic,
            subscription.name,
            durable=subscription.durable,
            asked=asked,
            compacted=command.read_compacted,
        ):
            self._replicated_subscriptions.set_replicated(topic, subscription, True)

        def accepted() -> None:
            # The client has SUCCESS before whatever taking the consumer causes (ACTIVE_CONSUMER_CHANGE).
            subscriber.attached(consumer, subscription, command.request_id)
            self._accepted(topic, subscription, compacted)

        key_shared = command.keySharedMeta if command.HasField("keySharedMeta") else None
        try:
            subscription.add_consumer(consumer, key_shared, accepted)
        except BrokerError as error:
            busy = error.code in (ErrorCode.CONSUMER_BUSY, ErrorCode.CONSUMER_ASSIGN)
            holder = subscription.in_the_way(consumer, key_shared) if busy else None
            if topic is not None and holder is not None and subscriber.first_probe(command):
                # Its client may be gone without a word, and this be its successor.
                again = partial(self._attach_checked, subscriber, topic, command, done)
                self._clients.probe(holder.connection, connection.number, again)
            else:
                done(error)
            return
        if not connection.writable:
            subscription.pause(connection.number)
        done(None)

    def _accepted(self, topic: Topic | None, subscription: Subscription, compacted: Compacted | None) -> None:
        """A consumer is let in that reads compacted, or not (None)."""
        if topic is not None and compacted is not None:
            if subscription.replicated:
                self._replicated_subscriptions.set_replicated(topic, subscription, False)
                text = f"subscription {subscription.name} of {topic.text} reads compacted: it is no longer replicated"
                self._outbox.put(Note("warning", text))
            self._replicated_subscriptions.reads_compacted(topic, subscription)
        subscription.read(compacted)

    def unsubscribe(self, subscription: Subscription, consumer: Consumer, *, force: bool, done: Done) -> None:
        """Delete a consumer's subscription, if it is alone on it (or `force`)."""
        if len(subscription.consumers) > 1 and not force:
            done(
                BrokerError(
                    ErrorCode.METADATA,
                    f"subscription {subscription.name} has other consumers",
                )
            )
            return
        # It is not sent CLOSE_CONSUMER, as in Pulsar: it would reconnect before the answer, and create the subscription
        # again.
        subscription.remove_consumer(consumer)
        self._clients.consumer_detached(consumer.connection, consumer.consumer_id)

        def deleted(error: BrokerError | None) -> None:
            connection = self._clients.connection(consumer.connection)
            if error is not None and connection is not None:
                connection.send(commands.close_consumer(consumer.consumer_id))
            done(error)

        self.delete_subscription(subscription, deleted)

    def delete_subscription(self, subscription: Subscription, done: Done) -> None:
        """Delete a subscription with its cursor; its consumers are closed."""
        topic = self._topics.get(subscription.topic)
        if topic is None or topic.subscriptions.get(subscription.name) is not subscription:
            done(
                BrokerError(
                    ErrorCode.SUBSCRIPTION_NOT_FOUND,
                    f"subscription {subscription.name} does not exist",
                )
            )
            return
        if leaving := topic.leaving:
            done(leaving)
            return
        self._loaded.forget_subscription(topic, subscription)
        subscription.close("unsubscribed")
        if not subscription.durable:
            done(None)
            return
        self._fences.deleted(topic.text, subscription.name)
        key = cursor_key(topic.text, subscription.name)
        puts, deletes = self._replicated_subscriptions.deleted(topic, subscription)
        self._outbox.put(Store(puts, (key, *deletes), lambda error: done(_problem(error))))
        # Last, and after the deletion: this answers a seek in progress, and a client that waited for that creates the
        # subscription again.
        self._flusher.forget(key)

    def seek(
        self,
        subscription: Subscription,
        message_id: pb.MessageIdData | None,
        time_ms: int | None,
        done: Done,
    ) -> None:
        """Move a subscription; its consumers are disconnected first, the answer waits for the disk, and they for the answer."""
        topic = self._topics.get(subscription.topic)
        if topic is None:
            done(BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {subscription.topic} is gone"))
            return
        if leaving := topic.leaving:
            done(leaving)
            return
        if message_id is not None:
            subscription.seek_to(position_of(message_id), message_id.ack_set)
        else:
            subscription.seek_time(time_ms or 0)
        if not subscription.durable:
            done(None)
            return
        self._seeking[subscription] = []  # no other client can seek: it has no consumers until this is answered

        def moved(error: str) -> None:
            done(_problem(error))
            for attach in self._seeking.pop(subscription):
                attach()

        self.when_moved(subscription, moved)

    def when_moved(self, subscription: Subscription, then: Callable[[str], None]) -> None:
        """Call `then` when a seek of a durable subscription may be answered: it is durable here, and so is the marker
        that reports it to other clusters.
        """
        left, problem = 2, ""

        def one(error: str) -> None:
            nonlocal left, problem
            left -= 1
            problem = problem or error
            if not left:
                then(problem)

        self._replicated_subscriptions.sought(subscription, one)
        self._loaded.when_cursor_durable(subscription, one)


def _initial(command: pb.CommandSubscribe) -> Position:
    """The start of a new subscription that names no message."""
    return EARLIEST if command.initialPosition == 1 else LATEST
