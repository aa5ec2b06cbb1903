"""What happens to a world: dead brokers, bad disks, partitions, retention, lost disks, topics created again, wrong clocks."""

import errno
from collections.abc import Callable
from pathlib import Path

from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.namespace import SubscriptionMode
from magnetar_sim.actions.failovers import Failovers
from magnetar_sim.cluster import Cluster, Clusters
from magnetar_sim.connections.clients import Client
from magnetar_sim.connections.long_link import LongLink
from magnetar_sim.connections.net import Network
from magnetar_sim.connections.pipeline import Link
from magnetar_sim.context import WorldContext
from magnetar_sim.disk import PowerCut
from magnetar_sim.memory.truth import Truth

NAMESPACE = NamespaceName.parse("public/default")


class Faults:
    """Everything that goes wrong.

    Args:
        context: of the world.
        net: whose connections break.
        clusters: by their names.
        links: by source and target.
        truth: topics and disks that are gone are reported to it.
        failovers: operators begin them.
    """

    def __init__(
        self,
        context: WorldContext,
        net: Network,
        clusters: Clusters,
        links: dict[tuple[str, str], Link | LongLink],
        truth: Truth,
        failovers: Failovers,
    ) -> None:
        self.context, self._net, self._clusters, self._links = context, net, clusters, links
        self._truth, self._failovers = truth, failovers
        self.rng = context.rng

    def actions(self) -> dict[str, tuple[float, Callable[[], object]]]:
        """What may happen, and how often."""
        rng = self.rng
        rare = rng.choice((0, 0.3, 1))
        return {
            "die": (rng.choice((0, 0.5, 2)), self.die),
            "power_cut": (rng.choice((0, 0.5, 1)), self.power_cut),
            "revive": (2, self.revive),
            "disk_fails": (rng.choice((0, 0.5)), self.disk_fails),
            "store_fails": (rng.choice((0, 0.3)), self.store_fails),
            "retention": (rng.choice((0.5, 2)), self.retention),
            "part": (rng.choice((0, 0.7)), self.part),
            "break_link": (rng.choice((0, 1)), self.break_link),
            "stop_pipeline": (rng.choice((0, 0.3)), self.stop_pipeline),
            "change_filter": (0.3 * rare, self.change_filter),
            "wipe": (0.15 * rare, self.wipe),
            "recreate": (0.15 * rare, self.recreate),
            "clock": (rng.choice((0, 0, 0.3)), self.clock),
            "policy": (0.2 * rare, self.policy),
            "failover": (rng.choice((0, 0, 2)), self._failovers.begin),
            "mode": (0.5 if self.context.mode == "mixed" else 0, self.mode),
        }

    def any_living(self) -> Cluster | None:
        """A cluster whose broker serves, if there is one."""
        living = [cluster for cluster, _ in self._clusters.living()]
        return self.rng.choice(living) if living else None

    def die(self) -> None:
        """A broker dies; perhaps while it ends."""
        running = [one for one in self._clusters.values() if one.broker is not None and one.awake]
        if running:
            cluster = self.rng.choice(running)
            cluster.die()
            cluster.revive_later()

    def power_cut(self) -> None:
        """A broker dies in the middle of a disk operation to come."""
        cluster = self.any_living()
        if cluster is None:
            return
        kind = self.rng.choice(("write", "sync", "create", "unlink", "truncate"))
        life = cluster.life

        def rule(operation: str, _path: Path) -> OSError | None:
            if operation == kind and cluster.life == life:
                raise PowerCut
            return None

        cluster.disk.inject(rule)

    def revive(self) -> None:
        """A broker that is down is started."""
        for cluster in self._clusters.values():
            if cluster.broker is None:
                cluster.start()
                return

    def disk_fails(self) -> None:
        """One operation of a disk fails."""
        cluster = self.any_living()
        if cluster is not None:
            kind = self.rng.choice(("write", "sync", "sync"))
            self.context.say(f"{cluster.name}: the next {kind} fails")
            cluster.disk.fail_next(kind, OSError(errno.EIO, "Input/output error"))

    def store_fails(self) -> None:
        """One commit of a metadata store fails."""
        cluster = self.any_living()
        if cluster is not None:
            cluster.disk.fail_commit()

    def retention(self) -> None:
        """A broker looks for ledgers that are not needed."""
        cluster = self.any_living()
        if cluster is not None:
            self.trim(cluster, everything=self.rng.random() < 0.7)

    def trim(self, cluster: Cluster, *, everything: bool) -> None:
        """A broker looks for them; `everything` that is not needed goes, however young."""
        broker = cluster.broker
        if broker is None:
            return

        def trim() -> None:
            for topic in list(broker.topics.values()):
                topic.log.roll(cluster.outbox.now_ms)
                broker.upkeep.trim(topic, everything=everything)

        cluster.run(trim)

    def part(self) -> None:
        """Two sites cannot reach each other, or can again."""
        one, other = self.rng.sample(self.context.names, 2)
        apart = self._net.reachable(one, other)
        self.context.say(f"{one} and {other} {'cannot' if apart else 'can'} reach each other")
        self._net.part(one, other, apart)
        if apart:
            self.context.count("sites parted")

    def break_link(self) -> None:
        """A connection of the pipeline breaks."""
        found = [one for one in self._net.connections.values() if not isinstance(one.end, Client)]
        if found:
            self.context.count("link cut off")
            self.rng.choice(found).cut()

    def stop_pipeline(self) -> None:
        """The pipeline of a link stops, or goes on."""
        if self._links:
            link = self.rng.choice(list(self._links.values()))
            link.stopped = not link.stopped
            self.context.count("pipeline stopped or started")

    def change_filter(self) -> None:
        """A link's filter changes."""
        if self._links:
            self.context.count("filter changed")
            self.rng.choice(list(self._links.values())).filter.change()

    def wipe(self) -> None:
        """A cluster loses its disk, and perhaps its clock."""
        self.lose_disk(self._clusters[self.rng.choice(self.context.names)])

    def lose_disk(self, cluster: Cluster) -> None:
        """This one."""
        context = self.context
        cluster.die()
        cluster.wiped()
        context.count("disk lost")
        if self.rng.random() < 0.3:
            context.count("disk lost, and the clock is behind")
            cluster.skew_ms -= 500_000 + 13 * cluster.lives
        for topic in context.topics:
            self._truth.deleted(cluster.name, topic)
        context.say(f"{cluster.name} loses its disk")
        cluster.revive_later()

    def recreate(self) -> None:
        """A topic is deleted in one cluster, and created again there or over a link."""
        cluster = self.any_living()
        if cluster is not None:
            self.delete(cluster, self.rng.choice(self.context.topics))

    def delete(self, cluster: Cluster, topic: str, *, again: bool = True) -> None:
        """It is deleted there, and made again soon (`again`), or comes again over a link alone."""
        self.context.say(f"{cluster.name}: {topic} is deleted")

        def deleted(error: MagnetarError | None) -> None:
            if error is None and cluster.broker is not None:
                self.context.count("topic deleted")
                self._truth.deleted(cluster.name, topic)
                if not again:
                    return
                self.context.clock.after(int(self.rng.random() * 2_000), self.create, cluster.name, topic)

        try:
            cluster.control.topics.delete(topic, True, deleted)
        except MagnetarError:
            return

    def create(self, name: str, topic: str) -> None:
        """A topic is created."""
        cluster = self._clusters[name]
        if cluster.broker is not None and (
            topic not in cluster.broker.topics or cluster.control.topics.was_deleted(topic)
        ):
            try:
                cluster.control.topics.create(topic, None, {}, self._created)
            except MagnetarError:
                return

    def _created(self, error: MagnetarError | None) -> None:
        if error is None:
            self.context.count("topic created again")

    def clock(self) -> None:
        """A cluster's clock is set."""
        cluster = self._clusters[self.rng.choice(self.context.names)]
        self.context.count("clock set")
        cluster.skew_ms += self.rng.choice((-60_000, -500, 500, 60_000))
        self.context.say(f"the clock of {cluster.name} is off by {cluster.skew_ms} ms")

    def policy(self) -> None:
        """A cluster's policy of the namespace names other clusters than before."""
        cluster = self.any_living()
        if cluster is None or cluster.broker is None:
            return
        chosen = [name for name in self.context.names if name == cluster.name or self.rng.random() < 0.6]
        self.set_policy(cluster, chosen)

    def mode(self) -> None:
        """The mode of the namespace changes, in one cluster or in all."""
        mode: SubscriptionMode = "exact" if self.rng.random() < 0.5 else "snapshot"
        chosen = self.any_living() if self.rng.random() < 0.5 else None
        for cluster, _ in self._clusters.living():
            if chosen is None or chosen is cluster:
                self.set_mode(cluster, mode)

    def set_mode(self, cluster: Cluster, mode: SubscriptionMode) -> None:
        """Set it, now or when the policy is not being changed any more."""
        if cluster.broker is None:
            return
        try:
            change = cluster.broker.resources.change_policies(NAMESPACE, subscription_mode=mode)
            cluster.control.policies.apply(change, lambda _error: None)
            self.context.count("mode set")
            self.context.say(f"{cluster.name}: the namespace is in {mode} mode")
        except MagnetarError:
            self.context.clock.after(300, self.set_mode, cluster, mode)

    def set_policy(self, cluster: Cluster, chosen: list[str]) -> None:
        """Set it, if the broker takes it."""
        assert cluster.broker is not None
        self.context.say(f"{cluster.name}: the policy names {chosen}")
        before = set(cluster.broker.resources.replication_clusters(NAMESPACE))
        self.context.departed[cluster.name] |= before - set(chosen)

        def done(error: MagnetarError | None) -> None:
            if error is None and self.context.storm:
                for what, named in (("left", before - set(chosen)), ("joined", set(chosen) - before)):
                    if named:
                        self.context.count(f"cluster {what} the policy")

        try:
            change = cluster.broker.resources.set_replication(NAMESPACE, chosen)
            cluster.control.policies.apply(change, done)
        except MagnetarError:
            return
