"""Epochs of exact mode: the name and the starting point of each seek, and what who adopts it keeps.

See docs/design/acknowledged-sets.md#epochs.

`Acks` says what is known within an epoch; here is what one begins with, by the world's own count: a seek that lets go of what
its cluster cannot know of makes it come again elsewhere, without losing anything.
"""

from typing import TYPE_CHECKING

from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState, marks_of, unstated
from magnetar.wire.acksets import AckedSet, Epoch
from magnetar_sim.ackrecords import Name, knows
from magnetar_sim.truth import Violation

if TYPE_CHECKING:
    from magnetar_sim.world import World


class Epochs:
    """Is told of them by exact mode's machines (`magnetar_sim.machines`).

    Args:
        world: the world.
    """

    def __init__(self, world: "World") -> None:
        self.world = world

    def begun(self, name: Name, epoch: Epoch, before: MessageSet) -> None:
        """A seek began an epoch: what it leaves consumed all have to know, once a marker of it is durable.

        Args:
            name: where.
            epoch: which no other seek may ever have, or two starting points would pass for one
                (docs/design/acknowledged-sets.md#epochs).
            before: what was consumed, held or not.
        """
        if self.world.mode == "snapshot":
            return
        cluster, topic, subscription = self.world.clusters[name[0]], name[1], name[2]
        acks = self.world.acks
        machine, seeks = acks.get(name).machine, acks.all(topic, subscription).seeks
        if epoch in seeks:
            raise Violation(f"{subscription} in {cluster.name}: epoch {epoch} names two seeks")
        seeks[epoch] = acks.uids(topic, before) - acks.retained(cluster, topic)
        if machine is not None:
            seeks[epoch] |= acks.now(cluster, topic, machine.cursor)

    def adopted(self, name: Name, state: SubscriptionState, told: AckedSet, before: MessageSet) -> None:
        """A cluster took a higher epoch, and kept bits that its seek states nothing about.

        Args:
            name: where.
            state: behind it.
            told: by the marker.
            before: what was consumed.
        """
        if told.base is None or not state.epoch.kind:
            return
        acks, (cluster, topic, subscription) = self.world.acks, name
        told_acks, told_base, told_floor = MessageSet(told.acks), MessageSet(told.base), marks_of(told.floor)
        key = acks.key(state)
        here = acks.get(name).told_here
        if self.world.mode == "mixed" and (here.follows is None or told.epoch > here.follows):
            # What was acknowledged before is as good as never, whichever mode told it. (Not where it is only read again.)
            here.follows = told.epoch
            there = acks.get(name)
            there.may = acks.uids(topic, told_base | told_acks | unstated(before, told_floor))
            # What came behind it is on the disk, and not all of it was read yet.
            there.may.update(*(one.may for one in there.coming if knows(one.told, told.epoch)))
        kept = acks.uids(topic, state.acks - told_acks)
        acks.all(topic, subscription).may.setdefault(key, set()).update(kept)
        # Below its floor, and of whom it never hears, the seeking cluster cannot know: that stays consumed.
        sources = self.world.sources(told.epoch.cluster)
        floor = {origin: mark for origin, mark in told_floor.items() if origin in sources}
        owed, truth = acks.uids(topic, unstated(before, floor)), acks.get(name)
        unsafe = owed & set().union(*(fresh for _, fresh in truth.unsafe))
        acks.owe(cluster, topic, subscription, key, owed - unsafe)
        if unsafe:
            truth.unsafe.append((key, unsafe))
