"""What was acknowledged, by the frames that reached a broker: nothing else is true.

For each subscription in each cluster: `may`, the messages that it may count as acknowledged. They come from

    base       what the cursor covered when the subscription was made there (its starting point)
    acks       frames of consumers that the broker knew when they came; a cumulative one covers everything held below
    skips      an operator's
    seeks      take back what is at or behind their target
    expiry     local
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnetar.core.ids import Position
from magnetar.sim.clients import Client, Consumer
from magnetar.storage.cursor import Cursor, bits_of
from magnetar.wire.frames import Frame

if TYPE_CHECKING:
    from magnetar.broker.subscription import Subscription
    from magnetar.sim.cluster import Cluster
    from magnetar.sim.truth import Copy
    from magnetar.sim.world import World

Name = tuple[str, str, str]
"""Cluster, topic, subscription."""


@dataclass(slots=True)
class Acked:
    """The truth of one subscription in one cluster.

    Attributes:
        may: messages that may count as acknowledged there.
        machine: the broker's object, to notice a new one.
        delivered: messages that were sent to a consumer there, since the calm.
        late: messages that were about to be deleted when the subscription was made.
    """

    may: set[int] = field(default_factory=set)
    machine: "Subscription | None" = None
    delivered: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)


def messages(cursor: Cursor, copy: "Copy", counts: "Truthful") -> set[int]:
    """Uids of retained messages that a cursor counts as acknowledged."""
    found: set[int] = set()
    for position, uid in copy.at.items():
        count = counts(uid)
        if cursor.is_acked(position):
            found.update(range(uid, uid + count))
        elif position in cursor.partial:
            bits = cursor.partial[position].bits
            found.update(uid + number for number in range(count) if not bits >> number & 1)
    return found


class Truthful:
    """How many messages an entry has."""

    def __init__(self, world: "World") -> None:
        self._published = world.truth.published

    def __call__(self, uid: int) -> int:
        """Of an entry by its uid."""
        return self._published[uid].count


class Acks:
    """Everything that is known about acknowledgements.

    Args:
        world: the world.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.counts = Truthful(world)
        self.of: dict[Name, Acked] = {}
        self._seeking: tuple[Consumer, Subscription] | None = None

    def get(self, name: Name) -> Acked:
        """The truth of a subscription."""
        return self.of.setdefault(name, Acked())

    def now(self, cluster: "Cluster", topic: str, cursor: Cursor) -> set[int]:
        """What a cursor counts as acknowledged of what is retained."""
        copy = self.world.truth.copy(cluster, topic)
        return messages(cursor, copy, self.counts) if copy is not None else set()

    def retained(self, cluster: "Cluster", topic: str) -> set[int]:
        """All messages that a cluster has."""
        copy = self.world.truth.copy(cluster, topic)
        if copy is None:
            return set()
        return {uid + number for uid in copy.at.values() for number in range(self.counts(uid))}

    # --------------------------------------------------------------------------------------------- what brokers are told

    def before(self, client: Client, frame: Frame) -> None:
        """A frame is about to reach its broker."""
        if not isinstance(client, Consumer):
            return
        cluster = self.world.clusters[client.cluster]
        consumer = self._open(cluster, client)
        if consumer is None:
            return
        if frame.command.type == 10:
            self._acknowledge(cluster, client, frame)
        elif frame.command.type == 28:
            self._seeking = (client, consumer)

    def _open(self, cluster: "Cluster", client: Consumer) -> "Subscription | None":
        assert cluster.broker is not None
        assert client.connection is not None
        session = cluster.broker.sessions.get(client.connection.number)
        consumer = session.consumers.get(1) if session is not None else None
        return consumer.subscription if consumer is not None else None

    def _acknowledge(self, cluster: "Cluster", client: Consumer, frame: Frame) -> None:
        copy = self.world.truth.copy(cluster, client.topic)
        if copy is None:
            return
        ack = frame.command.ack
        fresh: set[int] = set()
        for item in ack.message_id:
            position = Position(item.ledgerId, item.entryId)
            if ack.ack_type == 1:
                for held, uid in copy.at.items():
                    if held <= position:
                        fresh.update(range(uid, uid + self.counts(uid)))
            elif position in copy.at:
                uid = copy.at[position]
                keep = bits_of(item.ack_set)
                fresh.update(uid + number for number in range(self.counts(uid)) if not keep >> number & 1)
        self.add(cluster, client.topic, client.subscription, fresh)

    def add(self, cluster: "Cluster", topic: str, subscription: str, fresh: set[int]) -> None:
        """These are acknowledged in a cluster from now on."""
        self.get((cluster.name, topic, subscription)).may |= fresh

    def behind(self, client: Client, frame: Frame) -> None:
        """The broker handled a frame."""
        if self._seeking is None:
            return
        consumer, machine = self._seeking
        self._seeking = None
        cluster = self.world.clusters[consumer.cluster]
        if cluster.broker is not None:
            self.moved(cluster, consumer.topic, machine)

    def moved(self, cluster: "Cluster", topic: str, machine: "Subscription") -> None:
        """A cursor was put somewhere else: what it no longer covers is to come again."""
        truth = self.get((cluster.name, topic, machine.name))
        truth.may = (truth.may - self.retained(cluster, topic)) | self.now(cluster, topic, machine.cursor)

    # ----------------------------------------------------------------------------------------------------- observation

    def after_event(self, cluster: "Cluster", *, loaded: bool = False) -> None:
        """Notice subscriptions that were made; what their cursor covers is their starting point."""
        broker = cluster.broker
        assert broker is not None
        for text, topic in broker.topics.items():
            for name, machine in topic.subscriptions.items():
                truth = self.get((cluster.name, text, name))
                if truth.machine is not machine:
                    truth.machine = machine
                    if not loaded:
                        truth.may = self.now(cluster, text, machine.cursor)
                        truth.delivered = set()
                        deleting = text in broker.upkeep._trimming
                        truth.late = self.retained(cluster, text) if deleting else set()

    def delivered(self, consumer: Consumer, uids: set[int]) -> None:
        """A consumer was given messages."""
        self.get((consumer.cluster, consumer.topic, consumer.subscription)).delivered |= uids
