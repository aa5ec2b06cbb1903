"""The world's own memory: what was published, and which disk holds what.

Checkers compare it with what brokers do. Disks report to it (an entry is durable, a ledger was dropped, this is what came back
after a crash), and the machines that are checked never do.
"""

from collections.abc import Iterable, Sequence

from magnetar.core.ids import NONE
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire.acksets import AckedSetsMarker
from magnetar.wire.markers import parse_marker
from magnetar_sim.cluster import Cluster
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.records import Copy, Published, Violation, uid_of
from magnetar_sim.observers import Observer, Observers


def _shown(entry: StoredEntry) -> str:
    what = str(uid_of(entry.data)) if not entry.flags & EntryFlags.MARKER else _marker_shown(entry)
    return f"{what} at {entry.ledger % 10_000_000}:{entry.entry}" + (f" of {entry.origin}" if entry.origin else "")


def _marker_shown(entry: StoredEntry) -> str:
    marker = parse_marker(entry.data)
    if not isinstance(marker, AckedSetsMarker):
        return type(marker).__name__
    return "; ".join(
        f"{one.subscription} {'full' if one.full else 'delta'} {one.epoch if one.epoch.kind else 'creation'} "
        f"acks {MessageSet(one.acks)}" + ("" if one.base is None else f" base {MessageSet(one.base)}")
        for one in marker.sets
    )


class Truth(Observer):
    """What really happened.

    Args:
        context: of the world.
        observers: it reports to them what it makes of the reports of clusters.

    Attributes:
        published: entries by their uid.
        copies: by cluster and topic the life of the topic that is on the disk.
        messages: uid of a message by topic, origin, incarnation and origin index.
    """

    def __init__(self, context: WorldContext, observers: Observers) -> None:
        self.context, self._observers = context, observers
        self.published: dict[int, Published] = {}
        self.copies: dict[tuple[str, str], Copy] = {}
        self.identities: dict[tuple[str, str, int, int], int] = {}
        self.messages: dict[tuple[str, str, int, int], int] = {}
        self.next_uid = 0

    # ------------------------------------------------------------------------------------------------------ publishing

    def publish(self, cluster: str, topic: str, kind: int, to: frozenset[str] | None, count: int) -> Published:
        """A producer sends an entry."""
        entry = Published(self.next_uid, count, cluster, topic, kind, to, sent_ms=self.context.clock.now_ms)
        self.published[entry.uid] = entry
        self.next_uid += count
        return entry

    def entry_of(self, uid: int) -> Published:
        """The entry that a message is in."""
        while uid not in self.published:
            uid -= 1
        return self.published[uid]

    # ---------------------------------------------------------------------------------------------------------- disks

    def copy(self, cluster: Cluster, topic: str) -> Copy | None:
        """The present life of a topic in a living cluster; None when it does not exist there."""
        broker = cluster.broker
        found = broker.topics.get(topic) if broker is not None else None
        if found is None:
            return self.copies.get((cluster.name, topic)) if broker is None else None
        present = self.copies.get((cluster.name, topic))
        if present is None or (present.uuid, present.incarnation) != (cluster.uuid, found.log.incarnation):
            if present is not None:
                self._observers.forgot(cluster.name, topic, present)
            present = Copy(cluster.uuid, found.log.incarnation)
            self.copies[cluster.name, topic] = present
        return present

    def appended(self, cluster: Cluster, topic: str, entries: Sequence[StoredEntry]) -> None:
        """Entries are durable."""
        copy = self.copy(cluster, topic)
        if copy is None:
            return  # the topic was deleted while they were on their way
        if self.context.trace is not None:
            self.context.say(f"{cluster.name} has {', '.join(map(_shown, entries))}")
        for entry in entries:
            position = entry.position
            if entry.origin:
                copy.sources[entry.origin] = max(entry.source, copy.sources.get(entry.origin, NONE))
            if entry.flags & EntryFlags.MARKER:
                copy.markers.add(position)
                if entry.origin and (cluster.name, entry.origin) not in self.context.routes:
                    self.context.count("marker over a one-way link")
                self._observers.marker_stored(cluster, topic, entry)
                continue
            uid = uid_of(entry.data)
            self._bind(cluster, topic, copy, entry, uid)
            if entry.origin and (cluster.name, entry.origin) not in self.context.routes:
                self.context.count("entry over a one-way link")
            if self.published[uid].to is not None:
                self.context.count("restricted entry stored")
            self._observers.stored(cluster, topic, copy, entry, self.published[uid])
            copy.at[position] = uid
            copy.retained = None
            copy.where[uid] = position
            copy.ever.add(uid)

    def late(self, cluster: Cluster, topic: str, entries: Sequence[StoredEntry]) -> None:
        """A former owner learns that entries are durable: then the new one has found them."""
        copy = self.copies.get((cluster.name, topic))
        if copy is None:
            return
        for entry in entries:
            if entry.position.ledger < copy.incarnation:
                continue  # of a former life of the topic, which has been deleted
            if entry.flags & EntryFlags.MARKER:
                known = entry.position in copy.markers
            else:
                known = copy.at.get(entry.position) == uid_of(entry.data) or uid_of(entry.data) in copy.deleted
            if not known:
                raise Violation(
                    f"a former owner of {cluster.name} stores {entry.position} after another one has taken the log"
                )
            self.context.count("former owner learned late what is stored")

    def _bind(self, cluster: Cluster, topic: str, copy: Copy, entry: StoredEntry, uid: int) -> None:
        """An identity names one message, for ever."""
        origin = entry.origin or cluster.name
        incarnation = entry.incarnation or copy.incarnation
        name = (topic, origin, incarnation, entry.first_index)
        if self.identities.setdefault(name, uid) != uid:
            raise Violation(f"identity {name} names messages {self.identities[name]} and {uid}")
        published = self.published[uid]
        for number in range(published.count):
            self.messages[topic, origin, incarnation, entry.first_index + number] = uid + number
        if not entry.origin:
            published.incarnation, published.index = incarnation, entry.first_index

    def dropped(self, cluster: Cluster, ledgers: Iterable[int]) -> None:
        """Retention deleted ledgers."""
        gone = set(ledgers)
        for (name, topic), copy in self.copies.items():
            if name != cluster.name or copy.uuid != cluster.uuid:
                continue
            for position in [one for one in copy.at if one.ledger in gone]:
                uid = copy.at.pop(position)
                copy.retained = None
                copy.deleted.add(uid)
                self.context.count("entry deleted by retention")
                self._observers.trimmed(cluster, topic, copy, position, self.published[uid])
            copy.markers = {one for one in copy.markers if one.ledger not in gone}

    def receipted(self, cluster: str, entry: Published) -> None:
        """A producer has a receipt for its entry: then the entry is stored."""
        copy = self.copies.get((entry.cluster, entry.topic))
        if copy is not None and entry.incarnation == copy.incarnation and entry.uid not in copy.ever:
            raise Violation(f"message {entry.uid} was answered as stored in {entry.cluster}, and is not")

    def deleted(self, cluster: str, topic: str) -> None:
        """A topic was deleted, or its disk was lost."""
        copy = self.copies.pop((cluster, topic), None)
        if copy is not None:
            self._observers.forgot(cluster, topic, copy)

    def restarted(self, cluster: Cluster) -> None:
        """A broker came back: what was durable must be there, and what was half written may be."""
        broker = cluster.broker
        assert broker is not None
        for topic in self.context.topics:
            if topic not in broker.topics:
                continue
            copy = self.copy(cluster, topic)
            assert copy is not None
            found = cluster.entries(topic)
            here = {entry.position for entry in found}
            first = broker.topics[topic].record.first_ledger
            lost = [one for one in copy.at if one not in here and one.ledger >= first]
            if lost:
                raise Violation(
                    f"{cluster.name} lost durable entries of {topic}: {[(str(one), copy.at[one]) for one in lost]}"
                )
            fresh = [entry for entry in found if entry.position not in copy.at and entry.position not in copy.markers]
            self.appended(cluster, topic, fresh)
            self.dropped_below(cluster, topic, copy, first)
        self._observers.started(cluster)

    def dropped_below(self, cluster: Cluster, topic: str, copy: Copy, first: int) -> None:
        """What retention deleted unseen."""
        self.dropped(cluster, {one.ledger for one in (*copy.at, *copy.markers) if one.ledger < first})
