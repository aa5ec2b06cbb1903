"""Partitioned topics of other clusters: created here, and grown, with all their partitions."""

from collections.abc import Callable

from magnetar.broker.context import BrokerContext
from magnetar.broker.metadata_sync.local_documents import change_of
from magnetar.broker.metadata_sync.ports import SyncChanges
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName
from magnetar.effects.outbox import Note
from magnetar.metadata.keys import PARTITIONED_PREFIX
from magnetar.metadata.partitions import check_names
from magnetar.metadata.sync.machine import Synchroniser
from magnetar.metadata.sync.updates import Update


class PartitionedTopics:
    """Creates and grows the topics that the machine reports as due.

    Args:
        context: the broker's context.
        machine: the machine of synchronisation.
        changes: returns the object that stores changes, which is made after this part.

    Attributes:
        stuck: documents that cannot be created as in other clusters, with the reasons.
    """

    def __init__(self, context: BrokerContext, machine: Synchroniser, changes: Callable[[], SyncChanges]) -> None:
        self._outbox = context.outbox
        self._machine = machine
        self._changes = changes
        self._making: set[str] = set()
        self.stuck: dict[str, str] = {}

    def make_due(self) -> None:
        """Make and grow everything that is due and not being made."""
        for path in sorted(self._machine.due - self._making):
            self._make(path)

    def _make(self, path: str) -> None:
        machine = self._machine
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
            # Events are checked too; documents stored by versions without the check are not.
            check_names(name, count)
            self._changes().create_partitions(name, count, change_of(puts, deletes), made, found=None)
        except MagnetarError as error:
            self._making.discard(path)
            self._stuck(path, str(error))

    def _stuck(self, path: str, why: str) -> None:
        if self.stuck.get(path) != why:
            self.stuck[path] = why
            topic = path.removeprefix(PARTITIONED_PREFIX)
            self._outbox.put(Note("warning", f"{topic} cannot be made as in other clusters: {why}"))
