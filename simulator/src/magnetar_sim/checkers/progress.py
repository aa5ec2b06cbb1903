"""Snapshot mode, the upper bound of what comes twice: a cluster that has consumed everything has published that in the end.

In worlds of changing modes, too, whichever mode they end in.

A trailing snapshot follows the last message; the cursor at the end of the log has passed it. So what consumers acknowledged there
counts in every cluster with links both ways. With a hole that is so of what lies in front of the newest snapshot in front of it,
as long as its broker lives: one that was passed and not published is not read again.
"""

from typing import TYPE_CHECKING

from magnetar.core.ids import NONE
from magnetar_sim.checkers.base import Checker
from magnetar_sim.memory.records import Violation

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription


class Progress(Checker):
    """See the module."""

    def verdict(self) -> None:
        """A consumer gets everything in one cluster; then every pair of clusters."""
        world = self.world
        if self.context.mode == "exact":
            return
        if self.context.mode == "snapshot":
            self._passed()
        world.drain(world.rng.choice(self.context.names))
        world.calm()
        for (topic, subscription), shared in self.acks.shared.items():
            if shared.given_up or shared.sought:
                continue
            for one, other in world.links:
                if (other, one) in world.links:
                    self._published(topic, subscription, one, other)

    def _passed(self) -> None:
        world, acks = self.world, self.acks
        for (topic, subscription), shared in acks.shared.items():
            if shared.given_up or shared.sought:
                continue
            for one, other in world.links:
                here, there = (self._machine(name, topic, subscription) for name in (one, other))
                life, local = acks.updates.newest.get((one, topic), (0, NONE))
                copy = world.truth.copy(world.clusters[one], topic)
                if (other, one) not in world.links or here is None or there is None or copy is None:
                    continue
                if other in self.context.departed[one] or one in self.context.departed[other]:
                    continue  # it was not sent, or passed over what came
                if life != world.clusters[one].life or here.cursor.mark_delete < local:
                    continue
                truth = acks.get((one, topic, subscription))
                front = {
                    uid + number for at, uid in copy.at.items() if at <= local for number in range(acks.count(uid))
                }
                front &= truth.snapshot.own & acks.retained(world.clusters[other], topic)
                unknown = front - truth.expired - truth.snapshot.skipped
                unknown -= acks.now(world.clusters[other], topic, there.cursor)
                if unknown:
                    raise Violation(
                        f"{subscription} in {one} is past the snapshot at {local}, and {other} never got to know "
                        f"{acks.copies(unknown)}"
                    )
                if front:
                    self.context.count("in front of a snapshot and published")
                if front and any(self.context.departed.values()):
                    self.context.count("in front of a snapshot and published, although a cluster left a policy")

    def _published(self, topic: str, subscription: str, one: str, other: str) -> None:
        here, there = (self._machine(name, topic, subscription) for name in (one, other))
        if here is None or there is None or here.backlog_entries():
            return
        world, acks = self.world, self.acks
        both = acks.retained(world.clusters[one], topic) & acks.retained(world.clusters[other], topic)
        expired = acks.get((one, topic, subscription)).expired
        known = acks.now(world.clusters[other], topic, there.cursor)
        unknown = (both & acks.all(topic, subscription).acked) - expired - known
        if unknown:
            raise Violation(
                f"{subscription} is consumed to its end in {one}, and {other} never got to know {acks.copies(unknown)}"
            )
        if both:
            self.context.count("consumed and published")

    def _machine(self, name: str, topic: str, subscription: str) -> "Subscription | None":
        broker = self.world.clusters[name].broker
        found = broker.topics.get(topic) if broker is not None else None
        machine = found.subscriptions.get(subscription) if found is not None else None
        return machine if machine is not None and machine.durable and machine.replicated else None
