"""What happens to a world: death, bad disks, partitions, retention, lost disks, topics made anew, clocks that are wrong."""

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName
from magnetar.metadata.policies.namespace import SubscriptionMode
from magnetar_sim.disk import PowerCut

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_sim.cluster import Cluster
    from magnetar_sim.world import World

NAMESPACE = NamespaceName.parse("public/default")


class Faults:
    """Everything that goes wrong.

    Args:
        world: the world.
    """

    def __init__(self, world: "World") -> None:
        self.world, self.rng = world, world.rng

    def actions(self) -> "dict[str, tuple[float, Callable[[], object]]]":
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
            "failover": (rng.choice((0, 0, 2)), self.world.failovers.begin),
            "mode": (0.5 if self.world.mode == "mixed" else 0, self.mode),
        }

    def somebody(self) -> "Cluster | None":
        """A cluster whose broker runs, if there is one."""
        living = [one for one in self.world.clusters.values() if one.broker is not None]
        return self.rng.choice(living) if living else None

    def die(self) -> None:
        """A broker dies."""
        cluster = self.somebody()
        if cluster is not None:
            cluster.die()
            self.world.revive_later(cluster)

    def power_cut(self) -> None:
        """A broker dies in the middle of a disk operation to come."""
        cluster = self.somebody()
        if cluster is None:
            return
        kind = self.rng.choice(("write", "sync", "create", "unlink", "truncate"))
        life = cluster.life

        def rule(operation: str, _path: Path) -> OSError | None:
            if operation == kind and cluster.life == life:
                raise PowerCut
            return None

        cluster.files.inject(rule)

    def revive(self) -> None:
        """Somebody starts a broker that is down."""
        for cluster in self.world.clusters.values():
            if cluster.broker is None:
                cluster.start()
                return

    def disk_fails(self) -> None:
        """One operation of a disk fails."""
        cluster = self.somebody()
        if cluster is not None:
            kind = self.rng.choice(("write", "sync", "sync"))
            self.world.say(f"{cluster.name}: the next {kind} fails")
            cluster.files.fail_next(kind, OSError(errno.EIO, "Input/output error"))

    def store_fails(self) -> None:
        """One commit of a metadata store fails."""
        cluster = self.somebody()
        if cluster is not None:
            cluster.store.failing += 1

    def retention(self) -> None:
        """A broker looks for ledgers that nobody needs."""
        cluster = self.somebody()
        if cluster is not None:
            self.trim(cluster, everything=self.rng.random() < 0.7)

    def trim(self, cluster: "Cluster", *, everything: bool) -> None:
        """A broker looks for them; `everything` that nobody needs goes, however young."""
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
        world, rng = self.world, self.rng
        one, other = rng.sample(world.names, 2)
        apart = world.net.reachable(one, other)
        world.say(f"{one} and {other} {'cannot' if apart else 'can'} reach each other")
        world.net.part(one, other, apart)
        if apart:
            world.count("sites parted")

    def break_link(self) -> None:
        """A connection of the pipeline breaks."""
        found = [one for one in self.world.net.connections.values() if one.client is None]
        if found:
            self.world.count("link cut off")
            self.rng.choice(found).cut()

    def stop_pipeline(self) -> None:
        """The pipeline of a link stops, or goes on."""
        if self.world.links:
            link = self.rng.choice(list(self.world.links.values()))
            link.stopped = not link.stopped
            self.world.count("pipeline stopped or started")

    def change_filter(self) -> None:
        """A link's filter changes."""
        if self.world.links:
            self.world.count("filter changed")
            self.rng.choice(list(self.world.links.values())).change_filter()

    def wipe(self) -> None:
        """A cluster loses its disk, and perhaps its clock."""
        self.lose_disk(self.world.clusters[self.rng.choice(self.world.names)])

    def lose_disk(self, cluster: "Cluster") -> None:
        """This one."""
        world, rng = self.world, self.rng
        cluster.die()
        cluster.wiped()
        world.count("disk lost")
        if rng.random() < 0.3:
            world.count("disk lost, and the clock is behind")
            cluster.skew_ms -= 500_000 + 13 * cluster.lives
        world.lost_disk(cluster)
        world.say(f"{cluster.name} loses its disk")
        world.revive_later(cluster)

    def recreate(self) -> None:
        """A topic is deleted in one cluster; somebody makes it again, there or over a link."""
        cluster = self.somebody()
        if cluster is not None:
            self.delete(cluster, self.rng.choice(self.world.topics))

    def delete(self, cluster: "Cluster", topic: str, *, again: bool = True) -> None:
        """It is deleted there, and made again soon (`again`), or comes again over a link alone."""
        self.world.say(f"{cluster.name}: {topic} is deleted")

        def deleted(error: MagnetarError | None) -> None:
            if error is None and cluster.broker is not None:
                self.world.count("topic deleted")
                self.world.forgotten(cluster.name, topic)
                if not again:
                    return
                self.world.clock.after(int(self.rng.random() * 2_000), self.create, cluster.name, topic)

        try:
            cluster.control.topics.delete(topic, True, deleted)
        except MagnetarError:
            return

    def create(self, name: str, topic: str) -> None:
        """Somebody makes a topic."""
        cluster = self.world.clusters[name]
        if cluster.broker is not None and (
            topic not in cluster.broker.topics or cluster.control.topics.was_deleted(topic)
        ):
            try:
                cluster.control.topics.create(topic, None, {}, self._created)
            except MagnetarError:
                return

    def _created(self, error: MagnetarError | None) -> None:
        if error is None:
            self.world.count("topic made anew")

    def clock(self) -> None:
        """A cluster's clock is set."""
        cluster = self.world.clusters[self.rng.choice(self.world.names)]
        self.world.count("clock set")
        cluster.skew_ms += self.rng.choice((-60_000, -500, 500, 60_000))
        self.world.say(f"the clock of {cluster.name} is off by {cluster.skew_ms} ms")

    def policy(self) -> None:
        """A cluster's policy of the namespace names other clusters than before."""
        cluster = self.somebody()
        if cluster is None or cluster.broker is None:
            return
        chosen = [name for name in self.world.names if name == cluster.name or self.rng.random() < 0.6]
        self.set_policy(cluster, chosen)

    def mode(self) -> None:
        """The mode of the namespace changes, in one cluster or in all."""
        mode: SubscriptionMode = "exact" if self.rng.random() < 0.5 else "snapshot"
        chosen = self.somebody() if self.rng.random() < 0.5 else None
        for cluster, _ in self.world.living():
            if chosen is None or chosen is cluster:
                self.set_mode(cluster, mode)

    def set_mode(self, cluster: "Cluster", mode: SubscriptionMode) -> None:
        """Set it, now or when the policy is not being changed any more."""
        if cluster.broker is None:
            return
        try:
            change = cluster.broker.resources.change_policies(NAMESPACE, subscription_mode=mode)
            cluster.control.policies.apply(change, lambda _error: None)
            self.world.count("mode set")
            self.world.say(f"{cluster.name}: the namespace is in {mode} mode")
        except MagnetarError:
            self.world.clock.after(300, self.set_mode, cluster, mode)

    def set_policy(self, cluster: "Cluster", chosen: list[str]) -> None:
        """Set it, if the broker takes it."""
        assert cluster.broker is not None
        self.world.say(f"{cluster.name}: the policy names {chosen}")
        before = set(cluster.broker.resources.replication_clusters(NAMESPACE))
        self.world.departed[cluster.name] |= before - set(chosen)

        def done(error: MagnetarError | None) -> None:
            if error is None and self.world.storm:
                for what, named in (("left", before - set(chosen)), ("joined", set(chosen) - before)):
                    if named:
                        self.world.count(f"cluster {what} the policy")

        try:
            change = cluster.broker.resources.set_replication(NAMESPACE, chosen)
            cluster.control.policies.apply(change, done)
        except MagnetarError:
            return
