"""Bounded duplicates, snapshot mode: what an update that was read claims to be acknowledged is not given to a consumer again.

That, and what was acknowledged in the cluster itself, is all that lies in front of the newest snapshot that was passed: what
comes twice lies behind it. That the update is written is another promise (`progress`).

Exempt are claims of a cluster that the policy of the reader has ceased to name (`WorldContext.departed`): they are passed over,
also when they are read again after a restart. What others claim of the same messages counts.
"""

from magnetar.storage.cursor import bits_of
from magnetar.wire.frame import Frame
from magnetar_sim.checkers.base import Checker
from magnetar_sim.connections.clients import Consumer
from magnetar_sim.memory.records import Violation, uid_of


class ReadUpdatesCount(Checker):
    """See the module."""

    def sent(self, consumer: Consumer, frame: Frame) -> None:
        """A broker sends a message."""
        world = self.world
        truth = self.acks.of.get((consumer.cluster, consumer.topic, consumer.subscription))
        if self.context.mode != "snapshot" or truth is None or not truth.snapshot.must:
            return
        if self.acks.updates.host(world.clusters[consumer.cluster], consumer.topic) is None:
            return  # a replay is under way
        published = world.truth.published[uid_of(frame.payload)]
        message = frame.command.message
        bits = bits_of(message.ack_set) if message.ack_set else -1
        uids = {published.uid + number for number in range(published.count) if bits >> number & 1}
        if again := uids & self.acks.updates.stays(consumer.cluster, consumer.topic, consumer.subscription, truth):
            raise Violation(
                f"{consumer.cluster} sends {sorted(again)} to a consumer of {consumer.subscription}, although it has read "
                "that they are acknowledged"
            )

    def verdict(self) -> None:
        """Every cursor covers what the updates that came claim."""
        world = self.world
        if self.context.mode != "snapshot":
            return
        for (name, topic, subscription), truth in self.acks.of.items():
            cluster = world.clusters[name]
            if truth.machine is None or not truth.snapshot.must:
                continue
            if self.acks.updates.host(cluster, topic) is None:
                continue
            missing = self.acks.updates.stays(name, topic, subscription, truth) & self.acks.retained(cluster, topic)
            missing -= self.acks.now(cluster, topic, truth.machine.cursor)
            if missing:
                raise Violation(
                    f"{subscription} in {name} does not count {self.acks.copies(missing)}, of which it has read"
                )
            self.context.count("read and counted")
            if self.acks.all(topic, subscription).moved:
                self.context.count("read and counted behind a failover")
            if any(self.context.departed.values()):
                self.context.count("read and counted, although a cluster left a policy")
