"""Synchronisation of metadata with clusters that share no store: the pure machine of `metadata.sync` on its topic.

    a local change   gets its stamps in the transaction that stores it; when that is durable, its event is appended to the topic,
                     which ordinary links carry to the other clusters
    an event         is read from the topic behind a cursor of its own, merged, stored with the documents that follow from it in
                     one transaction, and then in force; nothing is published
    a snapshot       is appended at the start (a change may have been stored, its event never published), every
                     `metadata_sync_snapshot_s`, when a cluster that has just started knows less, and on demand

The broker is the one consumer and producer of its cluster, so that being the leader and running are the same thing.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from magnetar.broker.metadata_sync.messages import decode_entry
from magnetar.broker.metadata_sync.publisher import RETRY_MS, SyncTelling
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, NONE, Position
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Read
from magnetar.effects.store_batches import WHOLE_BYTES_MAX, Piece
from magnetar.metadata.change import Change
from magnetar.metadata.errors import InFlight
from magnetar.metadata.keys import CLUSTER_PREFIX, NAMESPACE_PREFIX, PARTITIONED_PREFIX, partitioned_key
from magnetar.metadata.partitions import check_names
from magnetar.metadata.policies.topic import TOPIC_POLICIES_PREFIX
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.records import Malformed
from magnetar.metadata.sync.updates import Batch, Update

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.topics.topic import Topic
    from magnetar.storage.entries import StoredEntry

SUBSCRIPTION: Final = "pulsar.metadata-sync"
"""The broker's own cursor on the topic; a name that clients cannot use."""

READ_ENTRIES: Final = 200
READ_BYTES: Final = 1 << 20
"""One read of the topic."""

STEP_DOCUMENTS: Final = 500
"""A step of applying: some 50 ms, so that producers and consumers hardly notice."""

ROUND_MS: Final = 5_000
"""Between two looks at what is due: what the others know of this cluster's state is late by so much."""

BEACON_MS: Final = 30_000
"""How often a cluster says which state it is in when that did not change: others see that it lives."""

BUSY_MS: Final = 20
"""While something else is being applied."""

ANSWER_MS: Final = 1_000
"""Between two snapshots for clusters that ask; ten that start together get one answer."""

REFUSED_KEPT: Final = 20
"""Refused events that are shown."""


class MetadataSync(SyncTelling):
    """One broker's part; does nothing while no topic is configured. `SyncView` has its arguments."""

    # --------------------------------------------------------------------------------------------------------- starting

    def started(self) -> None:
        """The broker has loaded everything: adopt what the cluster has, then open the topic."""
        if self.machine is None:
            return
        update = self.machine.adopt(self._broker.resources.documents(), self._from_file, self._outbox.day_ms)
        self._starting = True
        self._hello = self._snapshot_due = True
        self._adopt(list(update.pieces(STEP_DOCUMENTS)))

    def _adopt(self, pieces: list[Update]) -> None:
        """One transaction after the other: stores have limits. A crash in between leaves the rest to the next start."""
        if pieces:
            self._apply(pieces[0], lambda: self._adopt(pieces[1:]))
        else:
            self._adopted()

    def _adopted(self) -> None:
        self._starting = False
        self._open()
        self._schedule_round()

    def _schedule_round(self) -> None:
        self._broker.timer(self._outbox.now_ms + ROUND_MS, self._round)

    def _round(self, now_ms: int) -> None:
        assert self.machine is not None
        if now_ms - self._snapshot_ms >= self.config.metadata_sync_snapshot_s * 1000:
            self._snapshot_due = True
        self._open()
        news = self.machine.digest != self._said_digest or now_ms - self._said_ms >= BEACON_MS
        if news and not self._publishing and not self._snapshot_due:
            self._append([self.machine.beacon(self._outbox.day_ms)], lambda _error: None)
        self._make_topics()
        self._schedule_round()

    def _open(self) -> None:
        """See to it that the topic and the cursor are there; then go on."""
        topic = self._broker.topics.get(self.text)
        if topic is None:
            try:
                self._broker.catalog.check_namespace(self.name)
            except MagnetarError as error:
                self._note("error", f"metadata is not synchronised: {error}")
                return
            self._broker.catalog.create(self.name, then=self._opened)
        elif SUBSCRIPTION not in topic.subscriptions:
            self._broker.catalog.create_subscription(
                topic, SUBSCRIPTION, EARLIEST, lambda error: self._opened(topic, error)
            )
        else:
            self._go_on()

    def _opened(self, topic: "Topic | None", error: MagnetarError | None) -> None:
        if error is not None or topic is None:
            self._note("error", f"metadata is not synchronised: {error}; trying again")
            self._broker.timer(self._outbox.now_ms + RETRY_MS, lambda _now: self._open())
        else:
            self._open()

    def _go_on(self) -> None:
        self._publish()
        self._read()

    # ---------------------------------------------------------------------------------------------------- local changes

    def stamped(self, change: Change, *, found: bool = False) -> Change:
        """A change with its stamps, to be stored in one transaction; `committed` or `aborted` must follow.

        Args:
            change: validated.
            found: it follows from what came over a link, nobody decided it.

        Raises:
            PreconditionFailed: this cluster's clock is wrong.
        """
        machine = self.machine
        if machine is None:
            return change
        changes: dict[str, bytes | None] = {**dict.fromkeys(change.deletes), **change.puts}
        update = machine.local(changes, self._outbox.day_ms, found=found)
        if update.empty:
            return change
        puts, deletes = machine.stored(update)
        more = _change(puts, deletes)
        stamped = more.merged(change)
        self._pending[id(stamped)] = update
        return stamped

    def committed(self, change: Change, *, found: bool = False) -> None:
        """A change is stored and in force: tell the others."""
        update = self._pending.pop(id(change), None)
        if update is None:
            return
        assert self.machine is not None
        self.machine.commit(update, self._outbox.day_ms)
        self.machine.served(key for key in change.puts if key.startswith(NAMESPACE_PREFIX))
        if not found:
            self._untold.update(dict.fromkeys(update.to_publish))
            self._publish()
        self._make_topics()

    def aborted(self, change: Change) -> None:
        """A change was refused."""
        self._pending.pop(id(change), None)

    # ----------------------------------------------------------------------------------------------------------- events

    def confirmed(self, touched: Iterable[str]) -> None:
        """Topics have new entries that can be read."""
        if self.machine is not None and self.text in touched:
            self._read()

    def _cursor(self) -> "tuple[Topic, Subscription] | None":
        topic = self._broker.topics.get(self.text)
        subscription = topic.subscriptions.get(SUBSCRIPTION) if topic is not None else None
        return (topic, subscription) if topic is not None and subscription is not None else None

    def _read(self) -> None:
        found = self._cursor()
        if found is None or self._reading or self._applying or self._starting:
            return
        topic, subscription = found
        start = topic.log.next_after(subscription.mark_delete)
        if start is None:
            self._quiet()
            return
        self._reading = True
        self._outbox.put(Read(self.text, start, READ_ENTRIES, READ_BYTES, partial(self._got, topic, start)))

    def _quiet(self) -> None:
        """Everything is applied: what was asked meanwhile is answered, what waits for the clock is looked after."""
        assert self.machine is not None
        at_ms = self.machine.next_release_ms()
        if at_ms is not None and (self._release_at is None or at_ms < self._release_at):
            self._release_at = at_ms
            self._broker.timer(max(at_ms + self._outbox.ahead_ms, self._outbox.now_ms + BUSY_MS), self._released)

    def _released(self, now_ms: int) -> None:
        assert self.machine is not None
        self._release_at = None
        if self._applying or self._reading:
            self._broker.timer(now_ms + BUSY_MS, self._released)
            return
        self._apply(
            self.machine.release(self._outbox.day_ms), self._read, again=lambda: self._released(self._outbox.day_ms)
        )

    def _got(self, topic: "Topic", start: Position, entries: list["StoredEntry"], error: str) -> None:
        self._reading = False
        if self._broker.topics.get(self.text) is not topic:
            return
        if not entries:
            self._unreadable(topic, start, error)
            return
        assert self.machine is not None
        batch, last = Batch(), start
        for entry in entries:
            self._take(batch, entry)
            last = entry.position
            if len(batch.records) >= STEP_DOCUMENTS:
                break
        self._applying = True
        self._merge(batch, last)

    def _unreadable(self, topic: "Topic", start: Position, error: str) -> None:
        """One event less is made good by the next snapshot; never going on is not."""
        self._refuse(start, self._broker.cluster, f"cannot be read: {error or 'nothing is there'}")
        self._passed(start)
        self._read()

    def _take(self, batch: Batch, entry: "StoredEntry") -> None:
        assert self.machine is not None
        origin = entry.origin or self._broker.cluster
        try:
            for message, own in decode_entry(entry):
                # What this broker published is what it has stored; what a client published here is judged as any other's.
                if own and not entry.origin:
                    continue
                self.machine.read(batch, message, origin)
                self.counters["applied"] += 1
        except (Malformed, MagnetarError) as error:
            self._refuse(entry.position, origin, str(error))

    def _refuse(self, position: Position, origin: str, why: str) -> None:
        line = f"metadata event {position} of {origin} is refused: {why}"
        self.counters["refused"] += 1
        self.refused = [*self.refused[1 - REFUSED_KEPT :], line]
        if self.counters["refused"] <= REFUSED_KEPT or self.counters["refused"] % 100 == 0:
            self._note("warning", line)

    def _merge(self, batch: Batch, last: Position) -> None:
        assert self.machine is not None
        update = self.machine.merge(batch, self._outbox.day_ms)
        was_ahead = set(self.machine.ahead)

        def applied() -> None:
            assert self.machine is not None
            self._passed(last)
            self._answer(batch)
            if set(self.machine.ahead) - was_ahead:
                self._early(update)
            self._read()

        self._apply(update, applied, again=lambda: self._merge(batch, last))

    def _early(self, update: Update) -> None:
        """Something waits for the clock: its writer has to know that its clock is off."""
        assert self.machine is not None
        writers = sorted({stamp.cluster for record in update.ahead.values() for stamp in record.stamps()})
        self._note(
            "warning",
            f"{len(update.ahead)} documents of {', '.join(writers)} are ahead of this cluster's clock and wait for it",
        )
        if not self._publishing and self.text in self._broker.topics:
            self._append([self.machine.beacon(self._outbox.day_ms)], lambda _error: None)

    def _answer(self, batch: Batch) -> None:
        """A cluster that has just started, or that does not know of a deletion, is told everything."""
        assert self.machine is not None
        asked = any(header.hello and header.last and header.digest != self.machine.digest for header in batch.headers)
        if (asked or batch.awaited) and not self._snapshot_due:
            at_ms = max(self._outbox.now_ms, self._snapshot_ms + ANSWER_MS)
            self._broker.timer(at_ms, lambda _now: self._tell_all())

    def _tell_all(self) -> None:
        self._snapshot_due = True
        self._publish()

    def _passed(self, position: Position) -> None:
        found = self._cursor()
        if found is not None and found[0].log.last != NONE:
            found[1].advance_to(position)

    # --------------------------------------------------------------------------------------------------------- applying

    def _apply(self, update: Update, then: Callable[[], None], again: Callable[[], None] | None = None) -> None:
        """Store an update with what follows from it, and put it in force; `again` makes it anew when it has to wait."""
        machine, now_ms = self.machine, self._outbox.day_ms
        assert machine is not None
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
            assert self.machine is not None
            if error is not None:
                self._note("error", f"cannot store metadata of other clusters: {error}; trying again")
                self._retry(repeat)
                return
            self.machine.commit(update, self._outbox.day_ms)
            self.counters["documents"] += len(update.records)
            self._applying = False
            self.machine.served(update.puts)
            self._make_topics()
            then()

        puts, deletes = machine.stored(update)
        documents = len(update.paths)
        if documents > 1 and Piece((), puts, tuple(deletes)).weight > WHOLE_BYTES_MAX:
            self._apply_all(list(update.pieces(-(-documents // 2))), then, again)
            return
        try:
            self._broker.changes.store(_change(puts, deletes), stored)
        except InFlight:
            self._broker.resources.when_one_ended(lambda: self._outbox_later(repeat))

    def _apply_all(self, pieces: list[Update], then: Callable[[], None], again: Callable[[], None] | None) -> None:
        """Store what is too much for one transaction in several. After a crash in between the events are applied once more, which
        changes nothing, and what else follows is found anew.
        """
        rest = pieces[1:]
        self._apply(pieces[0], (lambda: self._apply_all(rest, then, again)) if rest else then, again)

    def _make_topics(self) -> None:
        """Make and grow the partitioned topics that other clusters have."""
        machine = self.machine
        if machine is None:
            return
        for path in sorted(machine.due - self._making):
            self._make_topic(machine, path)

    def _make_topic(self, machine: Synchroniser, path: str) -> None:
        data = machine.topic(path)
        if data is None:
            machine.due.discard(path)
            self.stuck.pop(path, None)
            return
        name = TopicName.parse(path.removeprefix(PARTITIONED_PREFIX))
        update = Update(puts={path: data})
        puts, deletes = machine.stored(update)
        count = machine.partitions_of(path)
        self._making.add(path)

        def made(error: MagnetarError | None) -> None:
            self._making.discard(path)
            if error is not None:
                self._stuck(path, str(error))
                return
            machine.commit(update, self._outbox.day_ms)
            machine.due.discard(path)
            self.stuck.pop(path, None)

        try:
            # Events are checked, too; what was stored before they were is not.
            check_names(name, count)
            self._broker.changes.create_partitions(name, count, _change(puts, deletes), made, found=None)
        except MagnetarError as error:
            self._making.discard(path)
            self._stuck(path, str(error))

    def _stuck(self, path: str, why: str) -> None:
        if self.stuck.get(path) != why:
            self.stuck[path] = why
            self._note("warning", f"{path.removeprefix(PARTITIONED_PREFIX)} cannot be made as in other clusters: {why}")

    def topic_removed(self, name: TopicName) -> None:
        """A topic is gone: what was only kept for it goes too."""
        if self.machine is None:
            return
        if self.text == str(name):
            self._retry(self._open)
        self.not_made(name)

    def not_made(self, name: TopicName) -> None:
        """A topic that was being created, or its partitions, will not be there: as when one is gone."""
        machine = self.machine
        if machine is None:
            return
        paths = [f"{NAMESPACE_PREFIX}{name.namespace_name}", partitioned_key(name.base)]
        if any(path in machine.projector.projected for path in paths):
            self._outbox_later(lambda: self._again(paths))

    def _outbox_later(self, then: Callable[[], None]) -> None:
        """After this event: the deletion that is just happening has its own transaction."""
        self._broker.timer(self._outbox.now_ms, lambda _now: then())

    def _again(self, paths: list[str]) -> None:
        assert self.machine is not None
        if self._applying:
            self._broker.timer(self._outbox.now_ms + BUSY_MS, lambda _now: self._again(paths))
            return
        known = [path for path in paths if path in self.machine.records]
        self._apply(self.machine.again(known), self._read, again=lambda: self._again(paths))

    def _collect(self) -> None:
        assert self.machine is not None
        if not self._applying:
            self._apply(self.machine.collect(), self._read, again=self._collect)


def _change(puts: Mapping[str, bytes], deletes: Iterable[str]) -> Change:
    """A change of the store that says whom it concerns."""
    keys = [*puts, *deletes]
    named = (PARTITIONED_PREFIX, TOPIC_POLICIES_PREFIX)
    topics = [key.removeprefix(prefix) for prefix in named for key in keys if key.startswith(prefix)]
    return Change(
        puts=dict(puts),
        deletes=tuple(deletes),
        clusters=tuple(key.removeprefix(CLUSTER_PREFIX) for key in keys if key.startswith(CLUSTER_PREFIX)),
        namespaces=tuple(key.removeprefix(NAMESPACE_PREFIX) for key in keys if key.startswith(NAMESPACE_PREFIX)),
        topics=tuple(topics),
    )
