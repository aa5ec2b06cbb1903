"""No invention: no cluster counts as acknowledged what no consumer acknowledged and no operator skipped."""

from magnetar_sim.checkers.base import Checker
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Violation


class NoInvention(Checker):
    """See the module."""

    def step(self) -> None:
        """Look at every cursor."""
        for cluster, _ in self.world.clusters.living():
            self._look(cluster)

    def _look(self, cluster: Cluster) -> None:
        acks = self.acks
        assert cluster.broker is not None
        for text, topic in cluster.broker.topics.items():
            for name, machine in topic.subscriptions.items():
                invented = acks.now(cluster, text, machine.cursor) - acks.allowed(cluster, text, machine)
                if invented:
                    raise Violation(
                        f"{name} in {cluster.name} counts {acks.copies(invented)} which were not acknowledged"
                    )
