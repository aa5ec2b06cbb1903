"""Forgetting, of the sets: no cluster forgets an acknowledgement while a cluster with links both ways holds the message.

That one may lose its state and its log's markers, and then only the cluster that forgot it could have brought it back
(docs/design/acknowledged-sets.md#forgetting). Exempt is a cluster that has begun a new life of which no marker can have come yet,
and one that a policy did not name; and what was published in a life whose number is lower than that of an earlier one (a lost
disk, and a clock that is behind): marks are ordered by these numbers, and one of the earlier life is above everything of the
later one.
"""

from typing import NamedTuple

from magnetar.wire.acksets import Epoch
from magnetar_sim.checkers.base import Checker
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Copy, Violation
from magnetar_sim.world import World


class _Seen(NamedTuple):
    """What a cluster knew at the last look.

    Attributes:
        epoch, acks: of the subscription.
        incarnation: of the topic.
        into: per peer the clusters that have links to it, by the policy there.
    """

    epoch: Epoch
    incarnation: int
    acks: set[int]
    into: dict[str, frozenset[str]]


class Forgetting(Checker):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[tuple[str, str, str], _Seen] = {}
        self._held: dict[tuple[str, str], set[int]] = {}
        self._lives: dict[tuple[str, str], int] = {}

    def died(self, cluster: Cluster) -> None:
        """What was not durable may be forgotten."""
        for name in [name for name in self._seen if name[0] == cluster.name]:
            del self._seen[name]

    def forgot(self, cluster: str, topic: str, copy: Copy) -> None:
        """From now on it is in another life than its first."""
        self._lives[cluster, topic] = max(copy.incarnation, self._lives.get((cluster, topic), 0))
        self._held.pop((cluster, topic), None)

    def step(self) -> None:
        """Compare with the last look."""
        if self.context.mode == "snapshot":
            return
        before, self._held = self._held, {}
        for cluster, broker in self.world.clusters.living():
            for text in broker.topics:
                self._held[cluster.name, text] = self.acks.retained(cluster, text)
        stayed = {name: held & before.get(name, set()) for name, held in self._held.items()}
        for cluster, broker in self.world.clusters.living():
            for text, topic in broker.topics.items():
                for name in topic.subscriptions:
                    self._look(cluster, text, name, stayed)

    def _look(self, cluster: Cluster, topic: str, name: str, stayed: dict[tuple[str, str], set[int]]) -> None:
        acks = self.acks
        state = acks.state(cluster, topic, name)
        copy = self.world.truth.copy(cluster, topic)
        assert cluster.broker is not None
        host = cluster.broker.replicated_subscriptions.topics.get(topic)
        if state is None or copy is None or host is None:
            return
        routing = host.exact.topic.routing  # type: ignore[attr-defined]
        into = {peer: frozenset(routing.into[peer]) for peer in routing.peers}
        now = _Seen(state.epoch, copy.incarnation, acks.uids(topic, state.acks), into)
        before = self._seen.get((cluster.name, topic, name))
        self._seen[cluster.name, topic, name] = now
        if before is None or before[:2] != now[:2] or acks.all(topic, name).given_up:
            return
        gone = {uid for uid in before.acks - now.acks if not self._descends(topic, uid)}
        for peer in sorted((now.into.keys() & before.into.keys()) - {cluster.name}) if gone else ():
            there = self.world.truth.copies.get((peer, topic))
            again = (peer, topic) in self._lives
            if there is None or (again and host.latest_incarnation_of(peer) != there.incarnation):
                continue
            needed = {
                uid
                for uid in gone & stayed.get((peer, topic), set())
                if self.world.truth.entry_of(uid).cluster in now.into[peer] & before.into[peer]
            }
            if needed:
                raise Violation(
                    f"{cluster.name} forgets that {name} acknowledged {acks.copies(needed)}, which {peer} still holds"
                )

    def _descends(self, topic: str, uid: int) -> bool:
        published = self.world.truth.entry_of(uid)
        return published.incarnation < self._lives.get((published.cluster, topic), 0)
