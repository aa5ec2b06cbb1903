"""What the parts of a world report, and to whom.

A part declares the reports that it makes as a protocol of its own (`cluster.ClusterEvents`, `clients.ClientEvents`,
`link_peer.LinkEvents`); `Observers` is all of them. The world's memories come first (`truth`, `acks`), then the checkers: a
checker may compare what a memory has just noted.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from magnetar.core.ids import Position
from magnetar.effects.outbox import Note
from magnetar.storage.entries import StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.frame import Frame
from magnetar_sim.cluster import Cluster
from magnetar_sim.connections.clients import Consumer
from magnetar_sim.connections.link_peer import Peer
from magnetar_sim.memory.records import Copy, Published


class Observer:
    """Gets all reports; each class overrides those that it needs."""

    # ------------------------------------------------------------------------------------------------ disks and brokers

    def appended(self, cluster: Cluster, topic: str, entries: Sequence[StoredEntry]) -> None:
        """Entries of a topic are durable; `Truth` reports them one by one (`stored`, `marker_stored`)."""

    def late(self, cluster: Cluster, topic: str, entries: Sequence[StoredEntry]) -> None:
        """A former owner learns that entries are durable, when another one has taken the log."""

    def stored(self, cluster: Cluster, topic: str, copy: Copy, entry: StoredEntry, published: Published) -> None:
        """A message is durable in a cluster; `copy` does not have it yet."""

    def marker_stored(self, cluster: Cluster, topic: str, entry: StoredEntry) -> None:
        """A marker is durable in a cluster."""

    def dropped(self, cluster: Cluster, ledgers: Iterable[int]) -> None:
        """Retention deleted ledgers; `Truth` reports their entries one by one (`trimmed`)."""

    def trimmed(self, cluster: Cluster, topic: str, copy: Copy, position: Position, published: Published) -> None:
        """Retention deleted a message."""

    def forgot(self, cluster: str, topic: str, copy: Copy) -> None:
        """A life of a topic ended: it was deleted, or its disk was lost."""

    def restarted(self, cluster: Cluster) -> None:
        """A broker runs; `Truth` compares the disk with what it knew and reports `started`."""

    def started(self, cluster: Cluster) -> None:
        """A broker runs, and what its disk had is known."""

    def stopped(self, cluster: Cluster) -> None:
        """A broker ended in good order."""

    def died(self, cluster: Cluster) -> None:
        """A broker is gone."""

    def deletion_stored(self, cluster: Cluster, keys: tuple[str, ...]) -> None:
        """A broker has the store's answer that these keys are deleted."""

    def noted(self, cluster: Cluster, note: Note) -> None:
        """A broker's log has a line."""

    def after_event(self, cluster: Cluster) -> None:
        """A broker handled an event."""

    # ---------------------------------------------------------------------------------------------- clients and links

    def before(self, consumer: Consumer, frame: Frame) -> None:
        """A consumer's frame is about to reach its broker."""

    def behind(self, consumer: Consumer, frame: Frame) -> None:
        """The broker has handled the frame."""

    def sent(self, consumer: Consumer, frame: Frame) -> None:
        """A broker sends a message to a consumer."""

    def delivered(self, consumer: Consumer, uids: set[int]) -> None:
        """Messages reached a consumer."""

    def ack_answered(self, consumer: Consumer, response: pb.CommandAckResponse) -> None:
        """A consumer's acknowledgement was answered."""

    def seek_answered(self, consumer: Consumer) -> None:
        """A consumer's seek was answered: it is durable."""

    def receipted(self, cluster: str, entry: Published) -> None:
        """A producer has the receipt of an entry."""

    def answered(self, cluster: str, peer: Peer, frame: Frame) -> None:
        """A broker answers a link."""

    # -------------------------------------------------------------------------------------------------------- the world

    def step(self) -> None:
        """Something was done to the world, and time passed."""

    def verdict(self) -> None:
        """Faults are over and everything came to rest."""


REPORTS: Final = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Observers(Observer):
    """All observers of a world: a report that is made here reaches those that have something to do with it."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[..., None]]] = {name: [] for name in REPORTS}

    def add(self, observer: Observer) -> None:
        """One more; it comes after those that are there."""
        for name, listeners in self._listeners.items():
            if getattr(type(observer), name) is not getattr(Observer, name):
                listeners.append(getattr(observer, name))
                setattr(self, name, _to_all(listeners))


def _to_all(listeners: list[Callable[..., None]]) -> Callable[..., None]:
    """Most reports have few listeners, and worlds make many reports: methods that do nothing are not called."""
    if len(listeners) == 1:
        return listeners[0]

    def report(*what: object) -> None:
        for listener in listeners:
            listener(*what)

    return report
