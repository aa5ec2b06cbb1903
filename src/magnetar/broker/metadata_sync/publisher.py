"""What a broker publishes of its metadata: changes, beacons, snapshots; one append at a time."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from magnetar.broker.metadata_sync.messages import encode_entry
from magnetar.broker.metadata_sync.view import SyncView
from magnetar.core.errors import MagnetarError
from magnetar.metadata.sync.updates import Snapshot

if TYPE_CHECKING:
    from magnetar.storage.entries import Append

RETRY_MS: Final = 500
"""After a failed write, or while the topic takes nothing."""

GATHER_MS: Final = 50
"""Between two events of changes. The first of many is told at once, what follows it so closely goes together: a script that
makes a thousand namespaces costs every cluster some dozens of events, links included, not a thousand."""


class SyncTelling(SyncView):
    """Appends to the topic."""

    # ------------------------------------------------------------------------------------------------------- publishing

    def _publish(self) -> None:
        """Tell what was not told yet: one append at a time, for what gathers meanwhile goes into one event."""
        machine = self.machine
        if machine is None or self._publishing or self._starting or self.text not in self._broker.topics:
            return
        now_ms = self._outbox.now_ms
        if self._untold and now_ms < self._told_ms + GATHER_MS:
            if not self._gathering:
                self._gathering = True
                self._broker.timer(self._told_ms + GATHER_MS, self._gathered)
        elif self._untold:
            self._told_ms = now_ms
            told, self._untold = self._untold, {}

            def answered(error: str) -> None:
                if error:
                    self._untold = {**told, **self._untold}
                else:
                    self.counters["told"] += len(told)

            self._append(machine.changes(told, self._outbox.day_ms), answered)
        elif self._snapshot_due:
            self._snapshot_due, hello, self._hello = False, self._hello, False
            self._snapshot_ms = now_ms
            snapshot = machine.snapshot(self._outbox.day_ms, hello=hello)
            self._append(snapshot.messages, partial(self._snapshot_stored, snapshot, hello))

    def _gathered(self, _now_ms: int) -> None:
        self._gathering = False
        self._publish()

    def _append(self, messages: list[bytes], then: Callable[[str], None]) -> None:
        topic = self._broker.topics.get(self.text)
        if topic is None or not messages:
            then("" if topic is not None else "the topic is gone")
            return
        entries = [encode_entry(message, self._broker.cluster, self._outbox.day_ms) for message in messages]
        self._publishing = True
        assert self.machine is not None
        digest = self.machine.digest

        def answered(append: "Append", error: str) -> None:
            self._publishing = False
            if not error:
                self._said_ms, self._said_digest = self._outbox.now_ms, digest
                self.counters["published"] += len(entries)
            then(error)
            if error:
                self._retry(self._publish)
            else:
                self._publish()

        try:
            topic.append(entries, answered)
        except MagnetarError as error:
            self._publishing = False
            then(str(error))
            self._retry(self._publish)

    def _retry(self, again: Callable[[], None]) -> None:
        self._broker.timer(self._outbox.now_ms + RETRY_MS, lambda _now: again())

    def snapshot(self, done: Callable[[MagnetarError | None], None]) -> None:
        """Publish everything now; `done` when it is durable here."""
        self._snapshot_done.append(done)
        self._snapshot_due = True
        self._publish()

    def _snapshot_stored(self, snapshot: Snapshot, hello: bool, error: str) -> None:
        assert self.machine is not None
        if error:
            self._snapshot_due, self._hello = True, self._hello or hello
            return
        self.counters["snapshots"] += 1
        self.machine.listed(snapshot)
        waiting, self._snapshot_done = self._snapshot_done, []
        for done in waiting:
            done(None)
        self._collect()

    def _collect(self) -> None:
        """Deletions that everybody has confirmed may rest."""
        raise NotImplementedError
