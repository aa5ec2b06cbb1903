"""Planned failover: nothing is sent while a subscription is fenced, and nothing acknowledged before it comes again behind it."""

from magnetar.storage.cursor import bits_of
from magnetar.wire.frame import Frame
from magnetar_sim.checkers.base import Checker
from magnetar_sim.connections.clients import Consumer
from magnetar_sim.memory.records import Copy, Violation, uid_of


class PlannedFailover(Checker):
    """See the module."""

    def forgot(self, cluster: str, topic: str, copy: "Copy") -> None:
        """What the target knew is gone."""
        done = self.world.failovers.done
        for name in [name for name in done if name[:2] == (cluster, topic)]:
            del done[name]

    def sent(self, consumer: Consumer, frame: Frame) -> None:
        """A fenced one sends nothing; the target none of what was acknowledged at the source."""
        cluster = self.world.clusters[consumer.cluster]
        if cluster.broker is None:
            return
        published = self.world.truth.published[uid_of(frame.payload)]
        if cluster.broker.fences.fence(consumer.topic, consumer.subscription).held:
            raise Violation(
                f"{consumer.cluster} sends {published.uid} to a consumer of {consumer.subscription}, which is fenced"
            )
        moved = self.world.failovers.done.get((consumer.cluster, consumer.topic, consumer.subscription))
        state = self.acks.state(cluster, consumer.topic, consumer.subscription)
        if moved is None or state is None or self.acks.key(state) != moved[0]:
            return
        if self.acks.all(consumer.topic, consumer.subscription).given_up:
            return
        message = frame.command.message
        bits = bits_of(message.ack_set) if message.ack_set else -1
        uids = {published.uid + number for number in range(published.count) if bits >> number & 1}
        if again := uids & moved[1]:
            raise Violation(
                f"{consumer.cluster} sends {sorted(again)} to a consumer of {consumer.subscription}, which was moved there "
                "after they were acknowledged"
            )

    def verdict(self) -> None:
        """Nothing stays fenced."""
        for cluster, broker in self.world.clusters.living():
            if broker.fences.held():
                raise Violation(f"{cluster.name} still has fences: {broker.fences.held()}")
