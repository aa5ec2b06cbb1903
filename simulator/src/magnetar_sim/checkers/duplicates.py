"""Bounded duplicates, exact mode, and where the mode changes: what the broker knows to be acknowledged is sent to nobody.

It knows what its own consumers acknowledged (unless it died before that was durable), and what stands in markers that it
has read. What it cannot know yet may come twice: that is the bound.
"""

from magnetar.storage.cursor import bits_of
from magnetar.wire.frames import Frame
from magnetar_sim.checkers.base import Checker
from magnetar_sim.clients import Consumer
from magnetar_sim.truth import Violation, uid_of


class BoundedDuplicates(Checker):
    """See the module."""

    def sent(self, client: Consumer, frame: Frame) -> None:
        """A broker sends a message."""
        acks = self.world.acks
        cluster = self.world.clusters[client.cluster]
        truth = acks.of.get((client.cluster, client.topic, client.subscription))
        state = acks.state(cluster, client.topic, client.subscription)
        if truth is None or state is None or not acks.sets(truth.machine):
            return
        if acks.all(client.topic, client.subscription).given_up:
            return
        published = self.world.truth.published[uid_of(frame.payload)]
        message = frame.command.message
        bits = bits_of(message.ack_set) if message.ack_set else -1
        uids = {published.uid + number for number in range(published.count) if bits >> number & 1}
        known = uids & acks.known((client.cluster, client.topic, client.subscription), truth, state)
        if known:
            raise Violation(
                f"{client.cluster} sends {sorted(known)} to a consumer of {client.subscription}, although it has read "
                "that they are acknowledged"
            )
