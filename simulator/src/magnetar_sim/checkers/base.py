"""What a checker may be told of."""

from typing import TYPE_CHECKING

from magnetar.core.ids import Position
from magnetar.storage.entries import StoredEntry
from magnetar.wire.frames import Frame

if TYPE_CHECKING:
    from magnetar_sim.carrying import Peer
    from magnetar_sim.clients import Consumer
    from magnetar_sim.cluster import Cluster
    from magnetar_sim.truth import Copy, Published
    from magnetar_sim.world import World


class Checker:
    """Watches one promise; raises `Violation` when it is broken.

    Args:
        world: what it watches.
    """

    def __init__(self, world: "World") -> None:
        self.world = world

    def stored(self, cluster: "Cluster", topic: str, copy: "Copy", entry: StoredEntry, published: "Published") -> None:
        """An entry is durable in a cluster; `copy` does not have it yet."""

    def trimmed(self, cluster: "Cluster", topic: str, copy: "Copy", position: Position, published: "Published") -> None:
        """Retention deleted an entry."""

    def forgot(self, cluster: str, topic: str, copy: "Copy") -> None:
        """A life of a topic ended: deleted, or its disk was lost."""

    def died(self, cluster: "Cluster") -> None:
        """A broker lost its power."""

    def started(self, cluster: "Cluster") -> None:
        """A broker came back."""

    def sent(self, client: "Consumer", frame: Frame) -> None:
        """A broker sends a message to a consumer."""

    def told(self, cluster: "Cluster", peer: "Peer", frame: Frame) -> None:
        """A broker answers a link."""

    def after_event(self, cluster: "Cluster") -> None:
        """A broker handled an event."""

    def step(self) -> None:
        """Something was done to the world, and time passed."""

    def verdict(self) -> None:
        """Faults are over and everything came to rest."""
