"""The interfaces that synchronisation needs of parts below it in the import order, which create topics and store
changes.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.broker.context import Done
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.metadata.change import Change


class DeletionMarks(Protocol):
    """The topics that were deleted in this cluster."""

    def of(self, name: TopicName) -> Sequence[object]:
        """The marks of a topic and of its partitioned topic; none: it was not deleted."""


class SyncCatalog(Protocol):
    """Creates topics and subscriptions."""

    @property
    def deleted(self) -> DeletionMarks:
        """The deletion marks of this cluster."""

    def check_namespace(self, name: TopicName) -> None:
        """Raise a BrokerError if a topic's namespace does not exist, or is on its way out."""

    def create(self, name: TopicName, *, then: Callable[[Topic | None, MagnetarError | None], None]) -> None:
        """Create a topic, durably; `then` gets it, or the reason why there is none."""

    def create_subscription(self, topic: Topic, name: str, position: Position, done: Done) -> None:
        """Create a durable subscription that begins at a position."""

    def coming(self, prefix: str = "") -> Sequence[str]:
        """Full names of topics that are just being created, of those that begin so."""


class SyncChanges(Protocol):
    """Stores changes."""

    def store(self, change: Change, done: Done) -> None:
        """Store a change; `done` follows when it is in force, or refused. Raises InFlight."""

    def create_partitions(
        self, name: TopicName, partitions: int, change: Change, done: Done, *, found: bool | None = False
    ) -> None:
        """Create what is missing of a partitioned topic, with its metadata; `found` None: stamps are in `change`."""
