"""Publishing a broker's metadata: changes, status messages, snapshots; one append at a time."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from magnetar.broker.context import BrokerContext, Done
from magnetar.broker.metadata_sync.messages import encode_entry
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import MagnetarError
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.updates import Snapshot
from magnetar.storage.entries import Append

RETRY_MS: Final = 500
"""The pause after a failed write, or while the topic accepts nothing."""

GATHER_MS_MIN: Final = 10
GATHER_MS_MAX: Final = 50
"""Between two events of changes. The first of many is published at once; changes that follow it closely go together, and the time
between two events doubles while they continue. A single change is not late, and a script that makes a thousand namespaces costs
every cluster some dozens of events, links included, not a thousand."""

BEACON_MS: Final = 30_000
"""The interval at which a cluster publishes its state when that did not change, so that others see that it runs."""

ANSWER_MS: Final = 1_000
"""Between two snapshots for clusters that ask; ten that start together get one answer."""


class SyncPublisher:
    """Appends to the topic of synchronisation.

    Args:
        context: the broker's context.
        topics: the loaded topics, by full name.
        topic: full name of the topic.
        machine: the machine of synchronisation.
        snapshot_stored: called when a snapshot of this cluster is durable.

    Attributes:
        counters: events that were published, snapshots, and documents that changed here.
        snapshot_due: a snapshot follows as soon as nothing else is being published.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Mapping[str, Topic],
        topic: str,
        machine: Synchroniser,
        snapshot_stored: Callable[[], None],
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._topics = topics
        self._topic = topic
        self._machine = machine
        self._after_snapshot = snapshot_stored
        self.counters = {"published": 0, "snapshots": 0, "told": 0}
        self.snapshot_due = False
        self._started = self._appending = self._gathering = self._hello = False
        self._unpublished: dict[str, None] = {}
        self._waiting: list[Done] = []
        self._gather_ms = GATHER_MS_MIN
        self._snapshot_ms = self._changes_ms = self._last_ms = self._last_digest = 0

    def start(self) -> None:
        """Start publishing; a snapshot that requests those of others comes first."""
        self._started = self._hello = self.snapshot_due = True

    def changed(self, paths: Iterable[str]) -> None:
        """Local changes of these documents are stored."""
        self._unpublished.update(dict.fromkeys(paths))
        self.publish()

    def publish(self) -> None:
        """Publish what was not published yet: one append at a time, for what gathers meanwhile goes into one event."""
        if not self._started or self._appending or self._topic not in self._topics:
            return
        now_ms = self._outbox.now_ms
        if self._unpublished and now_ms < self._changes_ms + self._gather_ms:
            if not self._gathering:
                self._gathering = True
                self._context.timer(self._changes_ms + self._gather_ms, self._gathered)
        elif self._unpublished:
            follows = now_ms < self._changes_ms + 2 * self._gather_ms
            self._gather_ms = min(2 * self._gather_ms, GATHER_MS_MAX) if follows else GATHER_MS_MIN
            self._changes_ms = now_ms
            paths, self._unpublished = self._unpublished, {}
            self.append(self._machine.changes(paths, self._outbox.day_ms), partial(self._changes_stored, paths))
        elif self.snapshot_due:
            self.snapshot_due, hello, self._hello = False, self._hello, False
            self._snapshot_ms = now_ms
            snapshot = self._machine.snapshot(self._outbox.day_ms, hello=hello)
            self.append(snapshot.messages, partial(self._snapshot_stored, snapshot, hello))

    def _gathered(self, _now_ms: int) -> None:
        self._gathering = False
        self.publish()

    def _changes_stored(self, paths: dict[str, None], error: str) -> None:
        if error:
            self._unpublished = {**paths, **self._unpublished}
        else:
            self.counters["told"] += len(paths)

    def append(self, messages: list[bytes], then: Callable[[str], None]) -> None:
        """Append events to the topic; `then` gets the error, "" when they are durable."""
        topic = self._topics.get(self._topic)
        if topic is None or not messages:
            then("" if topic is not None else "the topic is gone")
            return
        entries = [encode_entry(message, self._context.cluster, self._outbox.day_ms) for message in messages]
        self._appending = True
        digest = self._machine.digest

        def answered(append: Append, error: str) -> None:
            self._appending = False
            if not error:
                self._last_ms, self._last_digest = self._outbox.now_ms, digest
                self.counters["published"] += len(entries)
            then(error)
            if error:
                self._retry()
            else:
                self.publish()

        try:
            topic.append(entries, answered)
        except MagnetarError as error:
            self._appending = False
            then(str(error))
            self._retry()

    def _retry(self) -> None:
        self._context.timer(self._outbox.now_ms + RETRY_MS, lambda _now: self.publish())

    # ------------------------------------------------------------------------------------------- beacons and snapshots

    def beacon(self) -> None:
        """Publish a header alone, unless something with a header is on its way."""
        if not self._appending and self._topic in self._topics:
            self.append([self._machine.beacon(self._outbox.day_ms)], lambda _error: None)

    def beacon_if_due(self, now_ms: int) -> None:
        """Publish a header if this cluster's state is another than it said last, or if that was long ago."""
        news = self._machine.digest != self._last_digest or now_ms - self._last_ms >= BEACON_MS
        if news and not self.snapshot_due:
            self.beacon()

    def snapshot_every(self, period_ms: int, now_ms: int) -> None:
        """A snapshot is due if the last one is this long ago."""
        if now_ms - self._snapshot_ms >= period_ms:
            self.snapshot_due = True

    def snapshot(self, done: Done) -> None:
        """Publish everything now; `done` when it is durable here."""
        self._waiting.append(done)
        self.snapshot_due = True
        self.publish()

    def answer(self) -> None:
        """Another cluster asked for a snapshot."""
        if not self.snapshot_due:
            at_ms = max(self._outbox.now_ms, self._snapshot_ms + ANSWER_MS)
            self._context.timer(at_ms, self._answer_now)

    def _answer_now(self, _now_ms: int) -> None:
        self.snapshot_due = True
        self.publish()

    def _snapshot_stored(self, snapshot: Snapshot, hello: bool, error: str) -> None:
        if error:
            self.snapshot_due, self._hello = True, self._hello or hello
            return
        self.counters["snapshots"] += 1
        self._machine.listed(snapshot)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None)
        self._after_snapshot()
