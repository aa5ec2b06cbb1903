"""No loss: what was not acknowledged is delivered, wherever the subscription is consumed.

trimmed   retention took nothing that a subscription there still needed
verdict   a consumer that comes when all is over is given everything that is retained and was not acknowledged
"""

from magnetar.core.ids import Position
from magnetar_sim.checkers.base import Checker
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Copy, Published, Violation


class NoLoss(Checker):
    """See the module."""

    def trimmed(self, cluster: Cluster, topic: str, copy: Copy, position: Position, published: Published) -> None:
        """Retention waits for durable subscriptions."""
        uids = set(range(published.uid, published.uid + published.count))
        found = cluster.broker.topics.get(topic) if cluster.broker is not None else None
        if found is None or found.log.incarnation != copy.incarnation:
            return  # the whole topic goes
        for subscription, machine in found.subscriptions.items():
            known = self.acks.get((cluster.name, topic, subscription))
            missing = uids - self.acks.allowed(cluster, topic, machine) - known.late
            if self.acks.exact(machine) or machine.replicated:
                missing -= known.may | self.acks.all(topic, subscription).acked
            if missing and machine.durable:
                raise Violation(
                    f"{cluster.name} deletes {sorted(missing)}, which {subscription} did not acknowledge there"
                )

    def verdict(self) -> None:
        """Everything not acknowledged comes."""
        acks = self.acks
        before = {}
        for cluster, broker in self.world.clusters.living():
            for text, topic in broker.topics.items():
                for name, machine in topic.subscriptions.items():
                    before[cluster.name, text, name] = acks.allowed(cluster, text, machine)
        for known in acks.of.values():
            known.delivered = set()
        self.world.drain()
        for cluster, broker in self.world.clusters.living():
            for text, topic in broker.topics.items():
                for name in topic.subscriptions:
                    key = (cluster.name, text, name)
                    lost = acks.retained(cluster, text) - before.get(key, set()) - acks.get(key).delivered
                    if lost:
                        raise Violation(
                            f"lost: {acks.copies(lost)} never come to {name} in {cluster.name}, and they were not acknowledged"
                        )
