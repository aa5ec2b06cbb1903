"""Links: every entry once, in its origin's order, complete but for declared gaps.

stored    not twice, not before an earlier one of the same source, not if it was never meant for this cluster
verdict   what the source retains and the link is for is there; what is missing was declared as a gap, and no gap is declared
          of what was there to be sent

A declared gap is held between two bounds, and is not the number of messages that are missing. It counts origin indexes, so
messages that a filter or `replicate_to` would have kept back are in it (the source does not remember what it deleted); and a
rewind to a watermark in front of a gap, after another loss of the destination, goes through it again and declares it again:
to distinguish the two, a source would have to keep every gap it ever declared. Within one generation of the cursor
an index is passed once, so a message is counted at most once in each.
"""

from typing import TYPE_CHECKING

from magnetar.core.ids import NONE, Position
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar_sim.checkers.base import Checker, unsendable
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Copy, Published, Violation
from magnetar_sim.world import World

if TYPE_CHECKING:
    from magnetar.replication.link.link_topic import LinkTopic


class OnceAndInOrder(Checker):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[tuple[str, str, str], Position] = {}
        self._exempt: dict[tuple[str, str, str], set[int]] = {}
        self._floor: dict[tuple[str, str, str], Position] = {}
        self._before: dict[tuple[str, str, str], set[int]] = {}
        self._begun: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._trimmed: set[tuple[str, str, str]] = set()
        self._gens: dict[tuple[str, str, str], int] = {}
        self._lost: dict[tuple[str, str, str], tuple[int, set[int]]] = {}

    def stored(self, cluster: Cluster, topic: str, copy: Copy, entry: StoredEntry, published: Published) -> None:
        """Once, in order, and meant for this cluster."""
        if not entry.origin:
            if published.cluster != cluster.name:
                raise Violation(f"message {published.uid} of {published.cluster} is stored as one of {cluster.name}")
            return
        name = (
            f"message {published.uid} ({entry.origin} {entry.incarnation}/{entry.first_index} at {entry.source}) "
            f"in {cluster.name}"
        )
        if published.uid in copy.ever:
            raise Violation(f"duplicate: {name}")
        key = (entry.origin, cluster.name, topic)
        if entry.source <= self._last.get(key, NONE):
            raise Violation(f"order: {name} after {self._last[key]}")
        if entry.origin != published.cluster or entry.count != published.count:
            raise Violation(f"not stored as what it is: {name}")
        if not entry.flags & EntryFlags.REPLICATED:
            raise Violation(f"not marked as replicated: {name}")
        if not self.world.links[entry.origin, cluster.name].filter.ever(published):
            raise Violation(f"never meant for it: {name}")
        self._last[key] = entry.source

    def forgot(self, cluster: str, topic: str, copy: Copy) -> None:
        """What a source deleted before the destination lost it cannot be brought back; a re-created source starts again."""
        for source, target in self.world.links:
            key = (source, target, topic)
            if source == cluster:
                self._exempt.pop(key, None)
                self._before.pop(key, None)
                self._floor.pop(key, None)
                self._lost.pop(key, None)
            if target == cluster:
                self._last.pop(key, None)
                there = self.world.truth.copies.get((source, topic))
                if there is not None:
                    self._exempt.setdefault(key, set()).update(there.deleted)
                    # A second loss may come before the source noticed the first.
                    lost = self._lost.get(key, (0, set()))[1] | copy.ever
                    self._lost[key] = (self._gen(source, target, topic), lost)

    def _gen(self, source: str, target: str, topic: str) -> int:
        return self._gens.get((source, target, topic), 0)

    def after_event(self, cluster: Cluster) -> None:
        """A source that meets a watermark of an earlier life cannot send what is at or below it; it declares that."""
        broker = cluster.broker
        assert broker is not None
        name, trimming = cluster.name, broker.upkeep._trimming
        for target, source in broker.links.sources.items():
            for topic, state in source.topics.items():
                key, cursor = (name, target, topic), state.cursor
                begun = (cluster.uuid, state.log.incarnation)
                if self._begun.get(key) != begun or not state.wanted or key in self._trimmed:
                    self._begun[key] = begun
                    # What retention takes while there is no such link was never the link's, nor is what it is about to take.
                    copy = self.world.truth.copies.get((name, topic))
                    if copy is not None and (copy.uuid, copy.incarnation) == begun:
                        before = self._before.setdefault(key, set())
                        if len(copy.deleted) > len(before):
                            before |= copy.deleted
                    (self._trimmed.add if topic in trimming else self._trimmed.discard)(key)
                floor = unsendable(state)
                if floor != NONE:
                    self._floor[key] = max(floor, self._floor.get(key, NONE))
                self._gens[key] = cursor.gen
                lost = self._lost.get(key)
                if lost is not None and cursor.gen > lost[0]:
                    # A rewind is in use: what the destination once had and was deleted here meanwhile is declared now. It may
                    # be one to a watermark of the life that was lost: then another follows, and declares the rest.
                    self._lost[key] = (cursor.gen, lost[1])
                    copy = self.world.truth.copies.get((name, topic))
                    if copy is not None:
                        self._exempt.setdefault(key, set()).update(copy.deleted & lost[1])

    def verdict(self) -> None:
        """Complete, or declared."""
        for (source, target), link in self.world.links.items():
            broker = self.world.clusters[source].broker
            assert broker is not None
            for topic, state in broker.links.sources[target].topics.items():
                here = self.world.truth.copy(self.world.clusters[source], topic)
                there = self.world.truth.copy(self.world.clusters[target], topic)
                if here is None or not state.wanted:
                    continue
                have = there.ever if there is not None else set()
                key = (source, target, topic)
                floor = self._floor.get(key, NONE)
                exempt = self._exempt.get(key, set())
                missing = [
                    published
                    for uid in here.ever
                    if uid not in self._before.get(key, set())
                    and (published := self.world.truth.published[uid]).cluster == source
                    and published.incarnation == here.incarnation
                    and uid not in have
                    and link.filter.always(published)
                ]
                for published in missing:
                    position = here.where.get(published.uid, NONE)
                    if published.uid not in exempt and not NONE < position <= floor:
                        raise Violation(
                            f"lost or stuck: message {published.uid} at {position} of {source} is not in {target}; "
                            f"cursor {state.cursor}, blocked {state.blocked}"
                        )
                lost = sum(published.count for published in missing)
                if lost > state.gap + state.skipped:
                    raise Violation(
                        f"{lost} messages of {source} are missing in {target}, but {state.gap + state.skipped} are declared"
                    )
                self._no_more_than_gone(state, here, floor, f"{source}>{target}")

    def _no_more_than_gone(self, state: "LinkTopic", here: Copy, floor: Position, link: str) -> None:
        gone = sum(
            published.count
            for uid in here.ever
            if (uid in here.deleted or here.where[uid] <= floor)
            and (published := self.world.truth.published[uid]).incarnation == here.incarnation
            and published.cluster == link.partition(">")[0]
        )
        if state.gap > gone * state.cursor.gen:
            raise Violation(
                f"{link} declares {state.gap} messages as lost, but {gone} are gone ({state.cursor.gen} generations)"
            )
