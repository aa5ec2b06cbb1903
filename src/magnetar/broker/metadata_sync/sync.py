"""Synchronisation of metadata with clusters that share no store: the pure machine of `metadata.sync` on its topic.

    a local change   gets its stamps in the transaction that stores it; when that is durable, its event is appended to the topic,
                     which normal links carry to the other clusters
    an event         is read from the topic with a cursor of its own, merged, stored with the documents that follow from it in
                     one transaction, and then takes effect; nothing is published
    a snapshot       is appended at the start (a change may have been stored, its event never published), every
                     `metadata_sync_snapshot_s`, when a cluster that has just started knows less, and on demand

The broker is the only consumer and producer of its cluster on this topic, so no leader has to be elected.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.metadata_sync.local_documents import LocalDocuments, change_of
from magnetar.broker.metadata_sync.messages import decode_entry
from magnetar.broker.metadata_sync.partitioned_topics import PartitionedTopics
from magnetar.broker.metadata_sync.ports import SyncCatalog, SyncChanges
from magnetar.broker.metadata_sync.publisher import RETRY_MS, SyncPublisher
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.part import TopicPart
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, NONE, Position
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.settings import MetadataConfig
from magnetar.effects.outbox import Note, Read
from magnetar.effects.store_batches import WHOLE_BYTES_MAX, Piece
from magnetar.metadata.change import Change
from magnetar.metadata.errors import InFlight
from magnetar.metadata.keys import NAMESPACE_PREFIX, partitioned_key
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.records import Malformed
from magnetar.metadata.sync.updates import Batch, Update
from magnetar.storage.entries import StoredEntry

SUBSCRIPTION: Final = "pulsar.metadata-sync"
"""The broker's own cursor on the topic; clients cannot use this name."""

READ_ENTRIES: Final = 200
READ_BYTES: Final = 1 << 20
"""One read of the topic."""

STEP_DOCUMENTS: Final = 500
"""A step of applying: some 50 ms, so that producers and consumers hardly notice."""

ROUND_MS: Final = 5_000
"""The interval of checks for due work: other clusters' knowledge of this cluster's state is late by this much."""

BUSY_MS: Final = 20
"""While something else is being applied."""

REFUSED_KEPT: Final = 20
"""Refused events that are shown."""

COUNTERS: Final = ("applied", "published", "refused", "snapshots", "documents", "told")
"""The counters in the order in which they are shown; `told` counts documents that changed here and were published."""

USUAL_TOPIC: Final = "persistent://pulsar/system/metadata-sync"
"""Used as the name of the topic while synchronisation is off."""


class MetadataSync(TopicPart):
    """One broker's part; does nothing while no topic is configured.

    Args:
        context: of the broker.
        topics: those that are loaded, by full name.
        config: the `[metadata]` table.
        stored: the metadata store's content at start.
        from_file: keys that were made from the configuration file at this start.
        catalog, changes: give what creates topics and stores changes; both are made after this part.

    Attributes:
        text: full name of the topic.
        publisher: appends to it.
        refused: one line for each of the last refused events.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        config: MetadataConfig,
        stored: Mapping[str, bytes],
        from_file: frozenset[str],
        *,
        catalog: Callable[[], SyncCatalog],
        changes: Callable[[], SyncChanges],
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._resources = context.resources
        self._topics = topics
        self._config = config
        self._from_file = from_file
        self._catalog = catalog
        self._changes = changes
        self._on = bool(config.metadata_sync_topic)
        self._name = TopicName.parse(config.metadata_sync_topic or USUAL_TOPIC)
        self.text = str(self._name)
        self._documents = LocalDocuments(context, topics, self._name, catalog)
        self._machine = Synchroniser(
            context.cluster,
            self._documents,
            ahead_ms_max=config.metadata_clock_ahead_ms,
            exclude=config.metadata_sync_exclude,
        )
        if self._on:
            self._machine.load(stored)
        self.publisher = SyncPublisher(context, topics, self.text, self._machine, self._collect)
        self._partitioned = PartitionedTopics(context, self._machine, changes)
        self._counters = {"applied": 0, "refused": 0, "documents": 0}
        self.refused: list[str] = []
        self._pending: dict[int, Update] = {}
        self._started = self._reading = self._applying = False
        self._release_at: int | None = None

    @property
    def machine(self) -> Synchroniser | None:
        """The state of this cluster; None while synchronisation is off."""
        return self._machine if self._on else None

    @property
    def stuck(self) -> Mapping[str, str]:
        """Partitioned topics that cannot be made as in other clusters, and why."""
        return self._partitioned.stuck

    def shares(self, namespace: NamespaceName, path: str) -> bool:
        """Whether a document of a namespace is in force in other clusters, too: it is synchronised, and they serve that."""
        if not self._on or self._machine.exclusions.path(path):
            return False
        policies = self._resources.shared_policies(namespace)
        return bool({*policies.replication_clusters, *policies.allowed_clusters} - {self._context.cluster})

    # --------------------------------------------------------------------------------------------------------- starting

    def started(self) -> None:
        """The broker has loaded everything: adopt what the cluster has, then open the topic."""
        if not self._on:
            return
        update = self._machine.adopt(self._resources.documents(), self._from_file, self._outbox.day_ms)
        self._adopt(list(update.pieces(STEP_DOCUMENTS)))

    def _adopt(self, pieces: list[Update]) -> None:
        """One transaction after the other: stores have limits. A crash in between leaves the rest to the next start."""
        if pieces:
            self._apply(pieces[0], lambda: self._adopt(pieces[1:]))
        else:
            self._adopted()

    def _adopted(self) -> None:
        self._started = True
        self.publisher.start()
        self._open()
        self._schedule_round()

    def _schedule_round(self) -> None:
        self._context.timer(self._outbox.now_ms + ROUND_MS, self._round)

    def _round(self, now_ms: int) -> None:
        self.publisher.snapshot_every(self._config.metadata_sync_snapshot_s * 1000, now_ms)
        self._open()
        self.publisher.beacon_if_due(now_ms)
        self._partitioned.make_due()
        self._schedule_round()

    def _open(self) -> None:
        """Create the topic and the cursor if needed, then continue."""
        topic = self._topics.get(self.text)
        if topic is None:
            try:
                self._catalog().check_namespace(self._name)
            except MagnetarError as error:
                self._note("error", f"metadata is not synchronised: {error}")
                return
            self._catalog().create(self._name, then=self._opened)
        elif SUBSCRIPTION not in topic.subscriptions:
            self._catalog().create_subscription(topic, SUBSCRIPTION, EARLIEST, lambda error: self._opened(topic, error))
        else:
            self.publisher.publish()
            self._read()

    def _opened(self, topic: Topic | None, error: MagnetarError | None) -> None:
        if error is not None or topic is None:
            self._note("error", f"metadata is not synchronised: {error}; trying again")
            self._later(RETRY_MS, self._open)
        else:
            self._open()

    # ---------------------------------------------------------------------------------------------------- local changes

    def stamped(self, change: Change, *, found: bool = False) -> Change:
        """A change with its stamps, to be stored in one transaction; `committed` or `aborted` must follow.

        Args:
            change: validated.
            found: no administrator decided it; it follows from something that arrived over a link.

        Raises:
            PreconditionFailed: this cluster's clock is wrong.
        """
        machine = self._machine
        if not self._on:
            return change
        changes: dict[str, bytes | None] = {**dict.fromkeys(change.deletes), **change.puts}
        update = machine.local(changes, self._outbox.day_ms, found=found)
        if update.empty:
            return change
        puts, deletes = machine.stored(update)
        more = change_of(puts, deletes)
        stamped = more.merged(change)
        self._pending[id(stamped)] = update
        return stamped

    def committed(self, change: Change, *, found: bool = False) -> None:
        """A change is stored and in force: publish it."""
        update = self._pending.pop(id(change), None)
        if update is None:
            return
        self._machine.commit(update, self._outbox.day_ms)
        self._machine.served(key for key in change.puts if key.startswith(NAMESPACE_PREFIX))
        if not found:
            self.publisher.changed(update.to_publish)
        self._partitioned.make_due()

    def aborted(self, change: Change) -> None:
        """A change was refused."""
        self._pending.pop(id(change), None)

    # ----------------------------------------------------------------------------------------------------------- events

    def confirmed(self, touched: Iterable[str]) -> None:
        """Topics have new entries that can be read."""
        if self._on and self.text in touched:
            self._read()

    def _cursor(self) -> tuple[Topic, Subscription] | None:
        topic = self._topics.get(self.text)
        subscription = topic.subscriptions.get(SUBSCRIPTION) if topic is not None else None
        return (topic, subscription) if topic is not None and subscription is not None else None

    def _read(self) -> None:
        found = self._cursor()
        if found is None or self._reading or self._applying or not self._started:
            return
        topic, subscription = found
        start = topic.log.next_after(subscription.mark_delete)
        if start is None:
            self._quiet()
            return
        self._reading = True
        self._outbox.put(Read(self.text, start, READ_ENTRIES, READ_BYTES, partial(self._got, topic, start)))

    def _quiet(self) -> None:
        """Everything is applied: a timer is set for what waits for the clock."""
        at_ms = self._machine.next_release_ms()
        if at_ms is not None and (self._release_at is None or at_ms < self._release_at):
            self._release_at = at_ms
            self._context.timer(max(at_ms + self._outbox.ahead_ms, self._outbox.now_ms + BUSY_MS), self._released)

    def _released(self, now_ms: int) -> None:
        self._release_at = None
        if self._applying or self._reading:
            self._context.timer(now_ms + BUSY_MS, self._released)
            return
        self._apply(
            self._machine.release(self._outbox.day_ms), self._read, again=lambda: self._released(self._outbox.day_ms)
        )

    def _got(self, topic: Topic, start: Position, entries: list[StoredEntry], error: str) -> None:
        self._reading = False
        if self._topics.get(self.text) is not topic:
            return
        if not entries:
            self._unreadable(topic, start, error)
            return
        batch, last = Batch(), start
        for entry in entries:
            self._take(batch, entry)
            last = entry.position
            if len(batch.records) >= STEP_DOCUMENTS:
                break
        self._applying = True
        self._merge(batch, last)

    def _unreadable(self, topic: Topic, start: Position, error: str) -> None:
        """A missing event is replaced by the next snapshot; a permanent stop is not."""
        self._refuse(start, self._context.cluster, f"cannot be read: {error or 'nothing is there'}")
        self._passed(start)
        self._read()

    def _take(self, batch: Batch, entry: StoredEntry) -> None:
        origin = entry.origin or self._context.cluster
        try:
            for message, own in decode_entry(entry):
                # This broker's own events are stored already; an event of a client here is treated like those of other
                # clusters.
                if own and not entry.origin:
                    continue
                self._machine.read(batch, message, origin)
                self._counters["applied"] += 1
        except (Malformed, MagnetarError) as error:
            self._refuse(entry.position, origin, str(error))

    def _refuse(self, position: Position, origin: str, why: str) -> None:
        line = f"metadata event {position} of {origin} is refused: {why}"
        self._counters["refused"] += 1
        self.refused = [*self.refused[1 - REFUSED_KEPT :], line]
        if self._counters["refused"] <= REFUSED_KEPT or self._counters["refused"] % 100 == 0:
            self._note("warning", line)

    def _merge(self, batch: Batch, last: Position) -> None:
        update = self._machine.merge(batch, self._outbox.day_ms)
        was_ahead = set(self._machine.ahead)

        def applied() -> None:
            self._passed(last)
            self._answer(batch)
            if set(self._machine.ahead) - was_ahead:
                self._early(update)
            self._read()

        self._apply(update, applied, again=lambda: self._merge(batch, last))

    def _early(self, update: Update) -> None:
        """Something waits for the clock: its writer has to know that its clock is off."""
        writers = sorted({stamp.cluster for record in update.ahead.values() for stamp in record.stamps()})
        self._note(
            "warning",
            f"{len(update.ahead)} documents of {', '.join(writers)} are ahead of this cluster's clock and wait for it",
        )
        self.publisher.beacon()

    def _answer(self, batch: Batch) -> None:
        """A cluster that has just started, or that does not know of a deletion, gets a snapshot."""
        asked = any(header.hello and header.last and header.digest != self._machine.digest for header in batch.headers)
        if asked or batch.awaited:
            self.publisher.answer()

    def _passed(self, position: Position) -> None:
        found = self._cursor()
        if found is not None and found[0].log.last != NONE:
            found[1].advance_to(position)

    # --------------------------------------------------------------------------------------------------------- applying

    def _apply(self, update: Update, then: Callable[[], None], again: Callable[[], None] | None = None) -> None:
        """Store an update with what follows from it, and put it in force; `again` makes it once more if it has to wait."""
        machine, now_ms = self._machine, self._outbox.day_ms
        if update.empty:
            machine.commit(update, now_ms)
            self._applying = False
            then()
            return
        self._applying = True

        def repeat() -> None:
            self._applying = False
            if again is None:
                self._apply(update, then)
            else:
                again()

        def stored(error: MagnetarError | None) -> None:
            if error is not None:
                self._note("error", f"cannot store metadata of other clusters: {error}; trying again")
                self._later(RETRY_MS, repeat)
                return
            self._machine.commit(update, self._outbox.day_ms)
            self._counters["documents"] += len(update.records)
            self._applying = False
            self._machine.served(update.puts)
            self._partitioned.make_due()
            then()

        puts, deletes = machine.stored(update)
        documents = len(update.paths)
        if documents > 1 and Piece((), puts, tuple(deletes)).weight > WHOLE_BYTES_MAX:
            self._apply_all(list(update.pieces(-(-documents // 2))), then, again)
            return
        try:
            self._changes().store(change_of(puts, deletes), stored)
        except InFlight:
            self._resources.when_one_ended(lambda: self._later(0, repeat))

    def _apply_all(self, pieces: list[Update], then: Callable[[], None], again: Callable[[], None] | None) -> None:
        """Store what is too much for one transaction in several. After a crash in between the events are applied once more, which
        changes nothing, and finds what else follows.
        """
        rest = pieces[1:]
        self._apply(pieces[0], (lambda: self._apply_all(rest, then, again)) if rest else then, again)

    def topic_removed(self, topic: Topic) -> None:
        """A topic is gone: documents that were kept only for it are removed."""
        if not self._on:
            return
        name = topic.name
        if self.text == str(name):
            self._later(RETRY_MS, self._open)
        self.not_made(name)

    def not_made(self, name: TopicName) -> None:
        """A topic that was being created, or its partitions, will not be there: as when one is gone."""
        if not self._on:
            return
        paths = [f"{NAMESPACE_PREFIX}{name.namespace_name}", partitioned_key(name.base)]
        if any(path in self._machine.projector.projected for path in paths):
            # After this event: the deletion in progress has a transaction of its own.
            self._later(0, lambda: self._again(paths))

    def _later(self, delay_ms: int, then: Callable[[], None]) -> None:
        self._context.timer(self._outbox.now_ms + delay_ms, lambda _now: then())

    def _again(self, paths: list[str]) -> None:
        if self._applying:
            self._context.timer(self._outbox.now_ms + BUSY_MS, lambda _now: self._again(paths))
            return
        known = [path for path in paths if path in self._machine.records]
        self._apply(self._machine.again(known), self._read, again=lambda: self._again(paths))

    def _collect(self) -> None:
        if not self._applying:
            self._apply(self._machine.collect(), self._read, again=self._collect)

    # ---------------------------------------------------------------------------------------------------------- looking

    def snapshot(self, done: Done) -> None:
        """Publish everything now; `done` when it is durable here."""
        self.publisher.snapshot(done)

    def _note(self, level: str, text: str) -> None:
        self._outbox.put(Note(level, text))

    def describe(self) -> dict[str, Any]:
        """The data of `GET /geo/v1/metadata`."""
        machine = self.machine
        if machine is None:
            return {"enabled": False}
        now_ms, counted = self._outbox.now_ms, self._counters | self.publisher.counters
        others = sorted(self._documents.members() - {self._context.cluster})
        return {
            "enabled": True,
            "topic": self.text,
            "digest": f"{machine.digest:016x}",
            "documents": machine.count,
            "deletions": machine.dead,
            "exclude": list(machine.exclusions.patterns),
            "clusters": {name: self._peer(name, now_ms) for name in others},
            "waiting": {
                path: max(0, max(stamp.time_us for stamp in record.stamps()) // 1000 - now_ms)
                for path, record in sorted(machine.ahead.items())
            },
            "kept": machine.kept(),
            "hidden": machine.hidden(),
            "stuck": dict(self.stuck),
            "refused": list(self.refused),
            "counters": {name: counted[name] for name in COUNTERS},
        }

    def _peer(self, name: str, now_ms: int) -> dict[str, Any]:
        peer = self._machine.peers.get(name)
        if peer is None:
            return {"heard_ms": None, "agrees": None}
        return {
            "heard_ms": peer.received_ms,
            "digest": f"{peer.header.digest:016x}",
            "documents": peer.header.documents,
            "agrees": peer.header.digest == self._machine.digest,
            "ahead": dict(peer.header.ahead),
            "exclude": list(peer.header.exclude),
        }
