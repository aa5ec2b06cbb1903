"""The linked clusters, and the marks below which no cluster needs a bit (docs/design/acknowledged-sets.md#forgetting).

    linked from c    clusters to which c has a link
    sources of c     c, and all clusters from which links lead to c, directly or over others
    peers of c       the sources of c to which links lead from c, too, and c

A bit about a message of origin o is forgotten below the minimum of: the low-water marks for o of all peers that have a link
from o (a cluster that never gets markers of this one cannot be waited for), and the first own index that o retains. A cluster
without a known mark counts as 0. A mark of a cluster says that it holds no message below, and that none can still come. It does
not say that those messages were acknowledged.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

from magnetar.core.ids import NONE, Position
from magnetar.replication.acked_sets.message_set import Marks
from magnetar.wire.acksets import LowWater, Mark

ZERO = (0, 0)

NAMED_MAX: Final = 128
"""A ceiling on the clusters whose marks are kept: twice what a configuration may have; markers name and are read with
`wire.acksets.CLUSTERS_MAX` at most, those of the links among them."""


class Routing:
    """Reachability between clusters, derived from the links of a topic. Immutable.

    Args:
        cluster: this one.
        routes: all links (source, destination).

    Attributes:
        into: per cluster those that have a link to it, and itself.
        out: per cluster those that it has a link to.
        sources: per cluster, see above.
        peers: of this cluster, see above.
        clusters: all that are named, and this one.
    """

    def __init__(self, cluster: str, routes: Collection[tuple[str, str]]) -> None:
        self.cluster = cluster
        self.clusters = frozenset({cluster, *(name for route in routes for name in route)})
        self.into = {name: {name} for name in self.clusters}
        self.out: dict[str, set[str]] = {name: set() for name in self.clusters}
        for source, destination in routes:
            self.into[destination].add(source)
            self.out[source].add(destination)
        self.sources = {name: self._leading_to(name) for name in self.clusters}
        self.peers = {name for name in self.sources[cluster] if cluster in self.sources[name]}

    def _leading_to(self, name: str) -> set[str]:
        found, ahead = {name}, [name]
        while ahead:
            for source in self.into[ahead.pop()] - found:
                found.add(source)
                ahead.append(source)
        return found

    def must_relay(self, writer: str) -> bool:
        """Whether a cluster linked from here will not get a marker from its writer, because no link leads from there.

        See docs/design/acknowledged-sets.md#relay.
        """
        return bool(self.out[self.cluster] - self.out.get(writer, set()) - {writer})


class LowWaterMarks:
    """The low-water marks that this cluster knows; of the topic, so all its subscriptions share them.

    Attributes:
        low: per other cluster the latest of its marks.
        own: per origin the first own index that it retains, as reported by its links and by all markers.
        next: per origin one above the highest index stored here or named by its own markers.
    """

    def __init__(self) -> None:
        self.low: dict[str, LowWater] = {}
        self.own: dict[str, tuple[int, int]] = {}
        self.next: dict[str, tuple[int, int]] = {}

    def raise_next(self, cluster: str, mark: tuple[int, int]) -> None:
        """Messages of a cluster up to a point were stored here, or will never come."""
        if mark > self.next.get(cluster, ZERO) and _has_room(self.next, cluster):
            self.next[cluster] = mark

    def learn_retained(self, marks: Iterable[Mark]) -> bool:
        """Take in the first own index that each origin retains, and return whether that is news.

        It only rises: deleted messages do not come back.
        """
        news = False
        for cluster, incarnation, index in marks:
            if (incarnation, index) > self.own.get(cluster, ZERO) and _has_room(self.own, cluster):
                self.own[cluster] = (incarnation, index)
                news = True
        return news

    def learn_low(self, low: LowWater, incarnation: int) -> bool:
        """Take in the marks below which a cluster retains nothing, and return whether that is news.

        Args:
            low: from itself, or passed on.
            incarnation: of its topic as its link reported it: marks of a former one are void, the new log may take in old
                messages again (docs/design/acknowledged-sets.md#forgetting).
        """
        if low.incarnation < incarnation:
            return False
        known = self.low.get(low.cluster)
        if known is not None and (low.incarnation, low.position) <= (known.incarnation, known.position):
            return False
        if not _has_room(self.low, low.cluster):
            return False
        self.low[low.cluster] = low
        return True

    def forget_peer(self, cluster: str, incarnation: int = 0) -> None:
        """A peer's log is new, or lost something: no mark is known until it writes. `incarnation`: of its topic; 0: unknown."""
        self.begin_incarnation(cluster, incarnation)
        known = self.low.get(cluster)
        if known is not None and known.marks:
            del self.low[cluster]

    def begin_incarnation(self, cluster: str, incarnation: int) -> None:
        """A peer's topic is in this incarnation (0: unknown): its marks of a former one are void.

        A list without marks says so: it has this incarnation and is older than everything that the peer will write in it.
        It travels on like any other list. So clusters without a link to the peer also stop using its former marks, and recognise
        them as old if a cluster that does not know yet sends them again.
        """
        known = self.low.get(cluster)
        if known is not None and known.incarnation < incarnation:
            self.low[cluster] = LowWater(cluster, incarnation, NONE, ())

    def here(self, routing: Routing, lowest: Marks) -> dict[str, tuple[int, int]]:
        """This cluster's own marks: per linked origin min(lowest retained, highest stored or named + 1)."""
        marks = dict.fromkeys(routing.into[routing.cluster], ZERO)
        marks.update(self.next)
        for cluster, mark in lowest.items():
            marks[cluster] = min(marks.get(cluster, mark), mark)
        return marks

    def floor(self, routing: Routing, here: Marks) -> dict[str, tuple[int, int]]:
        """Per cluster, below which no bit about its messages is needed here or by who hears this cluster.

        Args:
            routing: of now.
            here: this cluster's own marks (`here`).
        """
        return {origin: self._floor_of(routing, here, origin) for origin in routing.clusters}

    def _floor_of(self, routing: Routing, here: Marks, origin: str) -> tuple[int, int]:
        marks = [self.mark(peer, origin, routing, here) for peer in routing.peers if origin in routing.into[peer]]
        marks.append(here.get(origin, ZERO) if origin == routing.cluster else self.own.get(origin, ZERO))
        return min(marks)

    def holding(self, routing: Routing, here: Marks) -> dict[str, set[str]]:
        """Per origin the clusters that keep this one from forgetting more: their mark is the floor, below this one's own mark.

        Clusters without a known mark are among them. So is an origin that retains messages that are no longer here.
        """
        found: dict[str, set[str]] = {}
        for origin, own in here.items():
            floor = self._floor_of(routing, here, origin)
            if floor >= own:
                continue
            found[origin] = {
                peer
                for peer in routing.peers
                if origin in routing.into[peer] and self.mark(peer, origin, routing, here) == floor
            }
            if self.own.get(origin, ZERO) == floor:
                found[origin].add(origin)
            found[origin].discard(routing.cluster)
        return found

    def mark(self, cluster: str, origin: str, routing: Routing, here: Marks) -> tuple[int, int]:
        """The low-water mark of a cluster for an origin; 0 when none is known."""
        if cluster == routing.cluster:
            return here.get(origin, ZERO)
        known = self.low.get(cluster)
        if known is None:
            return ZERO
        return next(((mark.incarnation, mark.index) for mark in known.marks if mark.cluster == origin), ZERO)

    def all_marks(self, routing: Routing, here: Marks, incarnation: int, position: Position) -> tuple[LowWater, ...]:
        """All low-water marks, for a marker; this cluster's with the version (incarnation, position)."""
        mine = LowWater(
            routing.cluster, incarnation, position, tuple(Mark(name, *mark) for name, mark in sorted(here.items()))
        )
        return (mine, *(self.low[name] for name in sorted(self.low) if name != routing.cluster))

    def retained_marks(self, routing: Routing, here: Marks) -> tuple[Mark, ...]:
        """The first own index that each origin retains, for a marker or a link."""
        known = {**self.own, routing.cluster: here[routing.cluster]}
        return tuple(Mark(name, *mark) for name, mark in sorted(known.items()))


def _has_room(marks: Collection[Any], cluster: str) -> bool:
    """Whether a cluster's mark may be kept: every cluster stores and passes on what markers name."""
    return cluster in marks or len(marks) < NAMED_MAX
