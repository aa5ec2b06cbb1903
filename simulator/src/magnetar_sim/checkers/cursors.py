"""Cursors of links: what is at or below C is settled, and what a generation was used for is over when the next one begins.

after     C moves over a message only when the destination got it in this generation, or had it when that began
          (docs/design/links.md#generation)
          a generation that was used is never left for an earlier one, whatever dies: it would name two attempts
verdict   in the first generation, in which nothing came back, no gap is declared of what the destination got
          (docs/design/links.md#durable-cursor)
"""

from typing import TYPE_CHECKING, NamedTuple

from magnetar.core.ids import NONE, LinkCursor, Position
from magnetar.storage.entries import StoredEntry
from magnetar_sim.checkers.base import Checker, unsendable
from magnetar_sim.cluster import Cluster
from magnetar_sim.memory.records import Copy, Published, Violation
from magnetar_sim.world import World

if TYPE_CHECKING:
    from magnetar.replication.link.link_topic import LinkTopic

Key = tuple[str, str, str]
"""Source, target, topic."""


class _Seen(NamedTuple):
    """A cursor at the last look, and of which life of the topic."""

    uuid: str
    incarnation: int
    cursor: LinkCursor


class Cursors(Checker):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[Key, _Seen] = {}
        self._have: dict[Key, set[int]] = {}
        self._floor: dict[Key, Position] = {}

    def stored(self, cluster: Cluster, topic: str, copy: Copy, entry: StoredEntry, published: Published) -> None:
        """The destination has it, for now: the link that brought it may say so."""
        if entry.origin:
            self._have.setdefault((entry.origin, cluster.name, topic), set()).add(published.uid)

    def forgot(self, cluster: str, topic: str, copy: Copy) -> None:
        """A source's cursors are gone with it."""
        for key in [key for key in self._seen if (key[0], key[2]) == (cluster, topic)]:
            del self._seen[key]
            self._floor.pop(key, None)

    def after_event(self, cluster: Cluster) -> None:
        """Look at the cursors that moved."""
        broker = cluster.broker
        assert broker is not None
        for target, source in broker.links.sources.items():
            for topic, state in source.topics.items():
                key = (cluster.name, target, topic)
                floor = unsendable(state)
                if floor != NONE:
                    self._floor[key] = max(floor, self._floor.get(key, NONE))
                before, here = self._seen.get(key), (cluster.uuid, state.log.incarnation, state.cursor)
                if before == here:
                    continue
                self._seen[key] = now = _Seen(*here)
                if before is None or before[:2] != now[:2]:
                    self._have.setdefault(key, set())
                elif now.cursor.gen < before.cursor.gen:
                    raise Violation(
                        f"{cluster.name}>{target} leaves generation {before.cursor.gen} for {now.cursor.gen}"
                    )
                elif now.cursor.gen > before.cursor.gen:
                    there = self.world.truth.copies.get((target, topic))
                    self._have[key] = set(there.ever) if there is not None else set()
                elif now.cursor.c > before.cursor.c:
                    self._moved(key, before.cursor.c, now.cursor.c)

    def _moved(self, key: Key, start: Position, end: Position) -> None:
        source, target, topic = key
        copy = self.world.truth.copies.get((source, topic))
        link, floor = self.world.links[source, target], self._floor.get(key, NONE)
        for position, uid in copy.at.items() if copy is not None else ():
            if not start < position <= end or position <= floor or uid in self._have[key]:
                continue
            published = self.world.truth.published[uid]
            if published.cluster == source and link.filter.always(published):
                raise Violation(
                    f"{source}>{target} settles {uid} at {position}, which {target} never got in this generation"
                )

    def verdict(self) -> None:
        """No gap is declared of what arrived."""
        for source, target in self.world.links:
            broker = self.world.clusters[source].broker
            assert broker is not None
            for topic, state in broker.links.sources[target].topics.items():
                here = self.world.truth.copy(self.world.clusters[source], topic)
                if here is not None and state.cursor.gen == 1 and (source, target, topic) not in self._floor:
                    self._declared(state, here, (source, target, topic))

    def _declared(self, state: "LinkTopic", here: Copy, key: Key) -> None:
        gone = sum(
            published.count
            for uid in here.deleted - self._have.get(key, set())
            if (published := self.world.truth.published[uid]).cluster == key[0]
        )
        if state.gap > gone:
            raise Violation(f"{key[0]}>{key[1]} declares {state.gap} messages as lost, and {gone} never arrived")
