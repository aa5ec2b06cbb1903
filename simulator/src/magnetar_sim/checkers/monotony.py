"""Monotony, of the sets: within an epoch acknowledgements never shrink and the base never grows, as long as a broker lives.

A bit that is forgotten because no cluster can need it any more (docs/design/acknowledged-sets.md#forgetting) is not missed:
only messages that are held are looked at.
"""

from typing import NamedTuple

from magnetar.wire.acksets import Epoch
from magnetar_sim.checkers.base import Checker
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Violation
from magnetar_sim.world import World


class _Seen(NamedTuple):
    """What a cluster had at the last look, as far as it was held."""

    epoch: Epoch
    incarnation: int
    acks: set[int]
    base: set[int] | None
    floor: dict[str, tuple[int, int]]
    held: set[int]


class Monotony(Checker):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[tuple[str, str, str], _Seen] = {}

    def died(self, cluster: Cluster) -> None:
        """What was not durable may be forgotten."""
        for name in [name for name in self._seen if name[0] == cluster.name]:
            del self._seen[name]

    def step(self) -> None:
        """Compare with the last look."""
        if self.context.mode == "snapshot":
            return
        for cluster, broker in self.world.clusters.living():
            for text, topic in broker.topics.items():
                for name in topic.subscriptions:
                    self._look(cluster, text, name, topic.log.incarnation)

    def _look(self, cluster: Cluster, topic: str, name: str, incarnation: int) -> None:
        acks = self.acks
        state = acks.state(cluster, topic, name)
        if state is None:
            return
        held = acks.retained(cluster, topic)
        now = acks.uids(topic, state.acks) & held
        base = acks.uids(topic, state.base) & held if state.base is not None else None
        before = self._seen.get((cluster.name, topic, name))
        self._seen[cluster.name, topic, name] = _Seen(state.epoch, incarnation, now, base, dict(state.floor), held)
        if (
            before is None
            or (before.epoch, before.incarnation) != (state.epoch, incarnation)
            or acks.all(topic, name).given_up
        ):
            return
        gone = (before.acks & held) - now
        if gone:
            raise Violation(f"{name} in {cluster.name} forgets {acks.copies(gone)} within {state.epoch}")
        if before.base is not None and base is not None:
            grown = {uid for uid in (base - before.base) & before.held if self._stated(uid, before.floor)}
            if grown:
                raise Violation(f"the base of {name} in {cluster.name} grows by {acks.copies(grown)}")

    def _stated(self, uid: int, floor: dict[str, tuple[int, int]]) -> bool:
        """Whether a base with this floor said that the message is not consumed: what it does not state others may.

        See docs/design/acknowledged-sets.md#base-floor.
        """
        published = self.world.truth.entry_of(uid)
        identity = (published.incarnation, published.index + uid - published.uid)
        return published.cluster in floor and identity >= floor[published.cluster]
