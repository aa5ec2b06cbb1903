"""Epochs of exact mode: the name and the starting point of each seek, and what who adopts it keeps.

See docs/design/acknowledged-sets.md#epochs.

`Acks` says what is known within an epoch; here is what one begins with, by the world's own count: a seek that lets go of what
its cluster cannot know of makes it come again elsewhere, without losing anything.
"""

from magnetar.broker.broker import Broker
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState, marks_of, unstated
from magnetar.wire.acksets import AckedSet, Epoch
from magnetar_sim.cluster import Clusters
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.ackrecords import Name, knows
from magnetar_sim.memory.acks import Acks
from magnetar_sim.memory.records import Violation
from magnetar_sim.memory.truth import Truth


class Epochs:
    """Exact mode's machines report to it (`magnetar_sim.machines`).

    Args:
        context: of the world.
        clusters: by their names.
        acks: what is acknowledged.
        truth: what is stored.
    """

    def __init__(self, context: WorldContext, clusters: Clusters, acks: Acks, truth: Truth) -> None:
        self.context, self._clusters, self._acks, self._truth = context, clusters, acks, truth
        self._begun_by: dict[tuple[str, str, Epoch], Broker | None] = {}

    def begun(self, name: Name, epoch: Epoch, before: MessageSet) -> None:
        """A seek began an epoch: what it leaves consumed all have to know, once a marker of it is durable.

        Args:
            name: where.
            epoch: which no other seek may ever have, or two starting points would pass for one
                (docs/design/acknowledged-sets.md#epochs). A broker that dies before anything names the epoch takes it with it.
            before: what was consumed, held or not.
        """
        if self.context.mode == "snapshot":
            return
        cluster, topic, subscription = self._clusters[name[0]], name[1], name[2]
        acks = self._acks
        machine, shared = acks.get(name).machine, acks.all(topic, subscription)
        seeks = shared.seeks
        if epoch in seeks and (epoch in shared.named or self._begun_by[topic, subscription, epoch] is cluster.broker):
            raise Violation(f"{subscription} in {cluster.name}: epoch {epoch} names two seeks")
        self._begun_by[topic, subscription, epoch] = cluster.broker
        seeks[epoch] = acks.uids(topic, before) - acks.retained(cluster, topic)
        if machine is not None:
            seeks[epoch] |= acks.now(cluster, topic, machine.cursor)

    def adopted(self, name: Name, state: SubscriptionState, part: AckedSet, before: MessageSet) -> None:
        """A cluster took a higher epoch, and kept bits that its seek states nothing about.

        Args:
            name: where.
            state: behind it.
            part: of the marker.
            before: what was consumed.
        """
        acks, (cluster, topic, subscription) = self._acks, name
        acks.get(name).late |= acks.being_deleted(self._clusters[cluster], topic)
        if part.base is None or not state.epoch.kind:
            return
        new_acks, new_base, new_floor = MessageSet(part.acks), MessageSet(part.base), marks_of(part.floor)
        key = acks.key(state)
        here = acks.get(name).snapshot
        if self.context.mode == "mixed" and (here.follows is None or part.epoch > here.follows):
            # What was acknowledged before is as good as never, whichever mode it came by. (Not where it is only read again.)
            here.follows = part.epoch
            there = acks.get(name)
            there.may = acks.uids(topic, new_base | new_acks | unstated(before, new_floor))
            # What came behind it is on the disk, and not all of it was read yet.
            there.may.update(*(one.may for one in there.coming if knows(one.content, part.epoch)))
        kept = acks.uids(topic, state.acks - new_acks)
        acks.all(topic, subscription).may.setdefault(key, set()).update(kept)
        # Below its floor, and of clusters from which no links lead to it, the seeking cluster cannot know: that stays consumed.
        sources = self.context.sources(part.epoch.cluster)
        floor = {origin: self._present(topic, origin, mark) for origin, mark in new_floor.items() if origin in sources}
        owed, truth = acks.uids(topic, unstated(before, floor)), acks.get(name)
        unsafe = owed & set().union(*(fresh for _, fresh in truth.unsafe))
        acks.owe(cluster, topic, subscription, key, owed - unsafe)
        if unsafe:
            truth.unsafe.append((key, unsafe))

    def _present(self, topic: str, origin: str, mark: tuple[int, int]) -> tuple[int, int]:
        """A mark of a former incarnation with a higher number is the beginning of the present one
        (docs/design/acknowledged-sets.md#base-floor).
        """
        copy = self._truth.copies.get((origin, topic))
        return mark if copy is None or mark[0] <= copy.incarnation else (copy.incarnation, 0)
