"""Bounded duplicates, snapshot mode: what an update that was read says to be acknowledged is not given to a consumer again.

That, and what was acknowledged in the cluster itself, is all that lies in front of the newest snapshot that was passed: what
comes twice lies behind it. That the update is written is another promise (`progress`).
"""

from magnetar.sim.checkers.base import Checker
from magnetar.sim.clients import Consumer
from magnetar.sim.truth import Violation, uid_of
from magnetar.storage.cursor import bits_of
from magnetar.wire.frames import Frame


class ToldStaysTold(Checker):
    """See the module."""

    def sent(self, client: Consumer, frame: Frame) -> None:
        """A broker sends a message."""
        world = self.world
        truth = world.acks.of.get((client.cluster, client.topic, client.subscription))
        if world.mode != "snapshot" or truth is None or not truth.told_here.must or self._may_forget():
            return
        if world.acks.all(client.topic, client.subscription).moved:
            return
        if world.acks.updates.host(world.clusters[client.cluster], client.topic) is None:
            return  # a replay is under way
        published = world.truth.published[uid_of(frame.payload)]
        message = frame.command.message
        bits = bits_of(message.ack_set) if message.ack_set else -1
        uids = {published.uid + number for number in range(published.count) if bits >> number & 1}
        if again := uids & truth.told_here.must:
            raise Violation(
                f"{client.cluster} sends {sorted(again)} to a consumer of {client.subscription}, although it has read "
                "that they are acknowledged"
            )

    def verdict(self) -> None:
        """Every cursor is where the updates that came say."""
        world = self.world
        if world.mode != "snapshot" or self._may_forget():
            return
        for (name, topic, subscription), truth in world.acks.of.items():
            cluster = world.clusters[name]
            if truth.machine is None or not truth.told_here.must or world.acks.all(topic, subscription).moved:
                continue
            if world.acks.updates.host(cluster, topic) is None:
                continue
            missing = truth.told_here.must & world.acks.retained(cluster, topic)
            missing -= world.acks.now(cluster, topic, truth.machine.cursor)
            if missing:
                raise Violation(
                    f"{subscription} in {name} does not count {world.acks.copies(missing)}, of which it was told"
                )
            world.count("told and counted")

    def _may_forget(self) -> bool:
        """Updates of a cluster that the policy does not name are passed over, also when they are read again after a restart."""
        return self.world.happened["cluster left the policy"] > 0
