"""Bounded duplicates, snapshot mode: what an update that was read says to be acknowledged is not given to a consumer again.

That, and what was acknowledged in the cluster itself, is all that lies in front of the newest snapshot that was passed: what
comes twice lies behind it. That the update is written is another promise (`progress`).

Exempt is what a cluster says whom the policy of the reader has ceased to name (`World.departed`): that is passed over, also when
it is read again after a restart. What others say of the same messages counts.
"""

from magnetar.storage.cursor import bits_of
from magnetar.wire.frames import Frame
from magnetar_sim.checkers.base import Checker
from magnetar_sim.clients import Consumer
from magnetar_sim.truth import Violation, uid_of


class ToldStaysTold(Checker):
    """See the module."""

    def sent(self, client: Consumer, frame: Frame) -> None:
        """A broker sends a message."""
        world = self.world
        truth = world.acks.of.get((client.cluster, client.topic, client.subscription))
        if world.mode != "snapshot" or truth is None or not truth.told_here.must:
            return
        if world.acks.updates.host(world.clusters[client.cluster], client.topic) is None:
            return  # a replay is under way
        published = world.truth.published[uid_of(frame.payload)]
        message = frame.command.message
        bits = bits_of(message.ack_set) if message.ack_set else -1
        uids = {published.uid + number for number in range(published.count) if bits >> number & 1}
        if again := uids & world.acks.updates.stays(client.cluster, client.topic, client.subscription, truth):
            raise Violation(
                f"{client.cluster} sends {sorted(again)} to a consumer of {client.subscription}, although it has read "
                "that they are acknowledged"
            )

    def verdict(self) -> None:
        """Every cursor is where the updates that came say."""
        world = self.world
        if world.mode != "snapshot":
            return
        for (name, topic, subscription), truth in world.acks.of.items():
            cluster = world.clusters[name]
            if truth.machine is None or not truth.told_here.must:
                continue
            if world.acks.updates.host(cluster, topic) is None:
                continue
            missing = world.acks.updates.stays(name, topic, subscription, truth) & world.acks.retained(cluster, topic)
            missing -= world.acks.now(cluster, topic, truth.machine.cursor)
            if missing:
                raise Violation(
                    f"{subscription} in {name} does not count {world.acks.copies(missing)}, of which it was told"
                )
            world.count("told and counted")
            if world.acks.all(topic, subscription).moved:
                world.count("told and counted behind a failover")
            if any(world.departed.values()):
                world.count("told and counted, although a cluster left a policy")
