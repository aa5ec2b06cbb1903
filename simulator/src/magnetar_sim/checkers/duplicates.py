"""Bounded duplicates, exact mode, and where the mode changes: what the broker knows to be acknowledged is not sent.

It knows what its own consumers acknowledged (unless it died before that was durable), and what stands in markers that it
has read. What it cannot know yet may come twice: that is the bound.
"""

from magnetar.storage.cursor import bits_of
from magnetar.wire.frame import Frame
from magnetar_sim.checkers.base import Checker
from magnetar_sim.connections.clients import Consumer
from magnetar_sim.memory.records import Violation, uid_of


class BoundedDuplicates(Checker):
    """See the module."""

    def sent(self, consumer: Consumer, frame: Frame) -> None:
        """A broker sends a message."""
        acks = self.acks
        cluster = self.world.clusters[consumer.cluster]
        truth = acks.of.get((consumer.cluster, consumer.topic, consumer.subscription))
        state = acks.state(cluster, consumer.topic, consumer.subscription)
        if truth is None or state is None or not acks.sets(truth.machine):
            return
        if acks.all(consumer.topic, consumer.subscription).given_up:
            return
        published = self.world.truth.published[uid_of(frame.payload)]
        message = frame.command.message
        bits = bits_of(message.ack_set) if message.ack_set else -1
        uids = {published.uid + number for number in range(published.count) if bits >> number & 1}
        known = uids & acks.known((consumer.cluster, consumer.topic, consumer.subscription), truth, state)
        if known:
            raise Violation(
                f"{consumer.cluster} sends {sorted(known)} to a consumer of {consumer.subscription}, although it has read "
                "that they are acknowledged"
            )
