"""Convergence, where exact mode is the last: when all is over, all agree; and no cluster writes another marker.

must      every acknowledgement that something durable knew is known to every cluster that links from there lead to
epochs    every cluster has the latest seek of those from which links lead to it
bases     what counts as consumed and was not acknowledged was skipped by every creation that it could know of
equal     clusters with links both ways count the same, of what both hold
silence   in both modes: nothing is written any more

What was acknowledged while no link concerned the topic is owed to no cluster. No set is kept then (`TopicHost` has no
machine), and the first one begins where the cursor stands: that is a base, which other creations may
want delivered, and not acknowledgements. That all others know it is therefore not promised, and does not hold: where another
cluster made the subscription in front of it, it comes again. What is promised is checked by the bases: it is never lost to one
that wants it.
"""

from magnetar_sim.checkers.base import Checker
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.acks import CREATION
from magnetar_sim.memory.records import Violation

SILENCE_MS = 30_000


class Convergence(Checker):
    """See the module."""

    def verdict(self) -> None:
        """All of it."""
        # A world of changing modes ends in one of them, in all clusters: then its promises hold.
        if self.context.mode == "exact" or (self.context.mode == "mixed" and self.context.settings.mode == "exact"):
            for (topic, subscription), shared in self.acks.shared.items():
                if not shared.given_up:
                    self._agree(topic, subscription)
        self._silence()

    def _agree(self, topic: str, subscription: str) -> None:
        acks, world = self.acks, self.world
        states = {
            name: state
            for name, cluster in world.clusters.items()
            if (state := acks.state(cluster, topic, subscription)) is not None
        }
        shared = acks.all(topic, subscription)
        for name, state in states.items():
            cluster = world.clusters[name]
            sources = [source for source in sorted(self.context.sources(name)) if source in states]
            latest = max(states[source].epoch for source in sources)
            if state.epoch != latest:
                if (latest.cluster, name) in world.links and (latest.cluster, topic) not in world.truth.copies:
                    continue  # that link is to bring it, and has no such topic any more: see `Acks.waits`
                raise Violation(f"{subscription} in {name} has epoch {state.epoch}, its sources {latest}")
            held = acks.retained(cluster, topic)
            consumed = acks.uids(topic, state.consumed())
            key = acks.key(state)
            lost = (shared.must.get(key, {}).get(name, set()) & held) - consumed
            lost -= acks.waits(topic, subscription, key, name)
            if lost:
                raise Violation(
                    f"{subscription} in {name} never gets to know {acks.copies(lost)}, acknowledged in {key}"
                )
            if key == CREATION:
                self._bases(topic, subscription, cluster, (consumed & held) - shared.may.get(key, set()))
            for other in sources:
                if name in self.context.sources(other) and other < name:
                    self._equal(topic, subscription, cluster, world.clusters[other])

    def _bases(self, topic: str, subscription: str, cluster: Cluster, extra: set[int]) -> None:
        truth = self.world.truth
        for creation in self.acks.all(topic, subscription).created:
            there = truth.copies.get((creation.cluster, topic))
            lives = there is not None and (there.uuid, there.incarnation) == (creation.uuid, creation.incarnation)
            if not creation.durable or not lives or creation.cluster not in self.context.sources(cluster.name):
                continue
            wrong = {uid for uid in extra - creation.base if truth.entry_of(uid).cluster in creation.scope}
            if wrong:
                raise Violation(
                    f"{subscription} in {cluster.name} takes {self.acks.copies(wrong)} for consumed, but it was made "
                    f"in {creation.cluster} in front of them"
                )

    def _equal(self, topic: str, subscription: str, one: Cluster, other: Cluster) -> None:
        acks = self.acks
        found = []
        for cluster in (one, other):
            assert cluster.broker is not None
            found.append(acks.now(cluster, topic, cluster.broker.topics[topic].subscriptions[subscription].cursor))
        both = acks.retained(one, topic) & acks.retained(other, topic)
        for cluster in (one, other):
            both -= acks.get((cluster.name, topic, subscription)).expired
        differ = (found[0] ^ found[1]) & both
        if differ:
            raise Violation(
                f"{subscription} differs in {one.name} and {other.name}: {acks.copies(differ)} are acknowledged in one only"
            )

    def _silence(self) -> None:
        before = self._ends()
        self.context.clock.run_for(SILENCE_MS)
        after = self._ends()
        if before != after:
            raise Violation(f"markers never stop: {before} became {after}")

    def _ends(self) -> dict[tuple[str, str], str]:
        return {
            (cluster.name, text): str(topic.log.last)
            for cluster, broker in self.world.clusters.living()
            for text, topic in broker.topics.items()
        }
