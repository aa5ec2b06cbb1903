"""Cursors go forward, in snapshot mode and where the mode changes: what a broker knows to be acknowledged stays.

Whatever the other mode's machine does to the cursor meanwhile. Only a seek takes it back, in worlds of changing modes also one
elsewhere that is followed. (In exact mode alone each event is checked by the machine: its cursor has what its set has, which is
`monotony`'s.)
"""

from typing import TYPE_CHECKING, Any

from magnetar_sim.checkers.base import Checker
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Violation
from magnetar_sim.world import World

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription


class Forward(Checker):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[tuple[str, str, str], tuple[Any, set[int]]] = {}

    def died(self, cluster: Cluster) -> None:
        """What was not durable may be forgotten."""
        for name in [name for name in self._seen if name[0] == cluster.name]:
            del self._seen[name]

    def step(self) -> None:
        """Compare with the last look."""
        if self.context.mode == "exact":
            return
        for cluster, broker in self.world.clusters.living():
            for text, topic in broker.topics.items():
                for machine in topic.subscriptions.values():
                    if machine.durable and machine.replicated:
                        self._look(cluster, text, machine)

    def _look(self, cluster: Cluster, topic: str, machine: "Subscription") -> None:
        acks = self.acks
        name = (cluster.name, topic, machine.name)
        state = acks.state(cluster, topic, machine.name)
        if state is None or acks.all(topic, machine.name).given_up:
            self._seen.pop(name, None)
            return
        truth, now = acks.get(name), acks.now(cluster, topic, machine.cursor)
        mixed = self.context.mode == "mixed"
        known = acks.known(name, truth, state) if mixed else acks.updates.stays(*name, truth)
        life = (machine, acks.key(state))
        before = self._seen.get(name)
        self._seen[name] = life, now & known
        if before is None or before[0] != life:
            return
        if gone := (before[1] & known & acks.retained(cluster, topic)) - now:
            raise Violation(
                f"the cursor of {machine.name} in {cluster.name} goes back over {acks.copies(gone)}, of which the broker "
                "knows that they are acknowledged"
            )
        if before[1] & now:
            self.context.count("known to be acknowledged, and stays so")
