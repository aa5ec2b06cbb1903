"""The world's own memory: what was published, which disk holds what, and what was acknowledged by whom.

Checkers compare it with what brokers do. It is told by the disks (an entry is durable, a ledger was dropped, this is what
came back after a crash), by the clients (this was acknowledged), and never by the machines that it judges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magnetar.core.ids import NONE, Position
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import AckedSetsMarker
from magnetar.wire.markers import parse_marker
from magnetar.wire.metadata import build

if TYPE_CHECKING:
    from magnetar_sim.cluster import Cluster
    from magnetar_sim.world import World

PLAIN, FILTERED_1, FILTERED_2, RESTRICTED = range(4)
"""Kinds of entries: for everybody; for whom the link's filter lets them through; for those they name."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Published:
    """One entry that a producer sent. Its messages are `uid`, `uid + 1`, ... `uid + count - 1`.

    Attributes:
        uid, count: its messages.
        cluster, topic: where it was sent to.
        kind, to: who may get it; `to` is None for everybody.
        sent_ms: by the producer's clock, which is right.
        receipted: the producer was told that it is stored.
        incarnation, index: its identity, once it was durable.
        schema: what it was written with; b"" for none.
        due_ms: when it is to be delivered, 0 for at once.
        chunk: of which message (its first entry's uid) it is which of how many chunks.
    """

    uid: int
    count: int
    cluster: str
    topic: str
    kind: int
    to: frozenset[str] | None
    receipted: bool = False
    sent_ms: int = 0
    incarnation: int = 0
    index: int = -1
    schema: bytes = b""
    due_ms: int = 0
    chunk: tuple[int, int, int] | None = None


@dataclass(slots=True)
class Copy:
    """What one life of a topic in one cluster has on its disk.

    Attributes:
        uuid, incarnation: which life.
        at: uid of the entry by position, in the log's order; markers are not in it.
        where: where each uid was or is.
        markers: positions of markers.
        sources: per cluster the newest position of its log that came from there, messages and markers.
        deleted: uids that retention took.
        ever: all uids it had.
    """

    uuid: str
    incarnation: int
    at: dict[Position, int] = field(default_factory=dict)
    where: dict[int, Position] = field(default_factory=dict)
    markers: set[Position] = field(default_factory=set)
    sources: dict[str, Position] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)


def entry_bytes(published: Published, version: bytes = b"") -> bytes:
    """What a producer sends."""
    meta = pb.MessageMetadata(producer_name="p", sequence_id=published.uid, publish_time=published.sent_ms)
    if published.count > 1:
        meta.num_messages_in_batch = published.count
    if published.to is not None:
        meta.replicate_to.extend(sorted(published.to) or ["__local__"])
    meta.partition_key = f"k{published.uid % 5}"
    if version:
        meta.schema_version = version
    if published.due_ms:
        meta.deliver_at_time = published.due_ms
    if published.chunk is not None:
        meta.uuid = f"p-{published.chunk[0]}"
        meta.chunk_id, meta.num_chunks_from_msg = published.chunk[1:]
        meta.total_chunk_msg_size = 100
    return build(meta, b"%d" % published.uid)


def uid_of(data: bytes) -> int:
    """The uid in an entry: no protobuf needed, the payload is behind the metadata."""
    return int(data[10 + int.from_bytes(data[6:10], "big") :])


def _told(entry: StoredEntry) -> str:
    what = str(uid_of(entry.data)) if not entry.flags & EntryFlags.MARKER else _marker_told(entry)
    return f"{what} at {entry.ledger % 10_000_000}:{entry.entry}" + (f" of {entry.origin}" if entry.origin else "")


def _marker_told(entry: StoredEntry) -> str:
    marker = parse_marker(entry.data)
    if not isinstance(marker, AckedSetsMarker):
        return type(marker).__name__
    return "; ".join(
        f"{one.subscription} {'full' if one.full else 'delta'} {one.epoch if one.epoch.kind else 'creation'} "
        f"acks {MessageSet(one.acks)}" + ("" if one.base is None else f" base {MessageSet(one.base)}")
        for one in marker.sets
    )


class Truth:
    """What really happened.

    Args:
        world: the world.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.published: dict[int, Published] = {}
        self.copies: dict[tuple[str, str], Copy] = {}
        self.identities: dict[tuple[str, str, int, int], int] = {}
        self.messages: dict[tuple[str, str, int, int], int] = {}
        self.next_uid = 0

    # ------------------------------------------------------------------------------------------------------ publishing

    def publish(self, cluster: str, topic: str, kind: int, to: frozenset[str] | None, count: int) -> Published:
        """Somebody sends an entry."""
        entry = Published(self.next_uid, count, cluster, topic, kind, to, sent_ms=self.world.clock.now_ms)
        self.published[entry.uid] = entry
        self.next_uid += count
        return entry

    def entry_of(self, uid: int) -> Published:
        """The entry that a message is in."""
        while uid not in self.published:
            uid -= 1
        return self.published[uid]

    # ---------------------------------------------------------------------------------------------------------- disks

    def copy(self, cluster: "Cluster", topic: str) -> Copy | None:
        """The present life of a topic in a living cluster; None when it does not exist there."""
        broker = cluster.broker
        found = broker.topics.get(topic) if broker is not None else None
        if found is None:
            return self.copies.get((cluster.name, topic)) if broker is None else None
        present = self.copies.get((cluster.name, topic))
        if present is None or (present.uuid, present.incarnation) != (cluster.uuid, found.log.incarnation):
            if present is not None:
                self.world.forgets(cluster.name, topic, present)
            present = Copy(cluster.uuid, found.log.incarnation)
            self.copies[cluster.name, topic] = present
        return present

    def stored(self, cluster: "Cluster", topic: str, entries: Sequence[StoredEntry]) -> None:
        """Entries are durable."""
        copy = self.copy(cluster, topic)
        if copy is None:
            return  # the topic was deleted while they were on their way
        if self.world.trace is not None:
            self.world.say(f"{cluster.name} has {', '.join(map(_told, entries))}")
        for entry in entries:
            position = entry.position
            if entry.origin:
                copy.sources[entry.origin] = max(entry.source, copy.sources.get(entry.origin, NONE))
            if entry.flags & EntryFlags.MARKER:
                copy.markers.add(position)
                if entry.origin and (cluster.name, entry.origin) not in self.world.links:
                    self.world.count("marker over a one-way link")
                self.world.marker_stored(cluster, topic, entry)
                continue
            uid = uid_of(entry.data)
            self._bind(cluster, topic, copy, entry, uid)
            if entry.origin and (cluster.name, entry.origin) not in self.world.links:
                self.world.count("entry over a one-way link")
            if self.published[uid].to is not None:
                self.world.count("restricted entry stored")
            for checker in self.world.checkers:
                checker.stored(cluster, topic, copy, entry, self.published[uid])
            copy.at[position] = uid
            copy.where[uid] = position
            copy.ever.add(uid)

    def _bind(self, cluster: "Cluster", topic: str, copy: Copy, entry: StoredEntry, uid: int) -> None:
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

    def dropped(self, cluster: "Cluster", ledgers: Iterable[int]) -> None:
        """Retention deleted ledgers."""
        gone = set(ledgers)
        for (name, topic), copy in self.copies.items():
            if name != cluster.name or copy.uuid != cluster.uuid:
                continue
            for position in [one for one in copy.at if one.ledger in gone]:
                uid = copy.at.pop(position)
                copy.deleted.add(uid)
                self.world.count("entry deleted by retention")
                for checker in self.world.checkers:
                    checker.trimmed(cluster, topic, copy, position, self.published[uid])
            copy.markers = {one for one in copy.markers if one.ledger not in gone}

    def died(self, cluster: "Cluster") -> None:
        """A broker is gone."""
        self.world.acks.died(cluster.name)
        self.world.failovers.died(cluster.name)
        for checker in self.world.checkers:
            checker.died(cluster)

    def restarted(self, cluster: "Cluster") -> None:
        """A broker came back: what was durable must be there, and what was half written may be."""
        broker = cluster.broker
        assert broker is not None
        for topic in self.world.topics:
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
            self.stored(cluster, topic, fresh)
            self.dropped_below(cluster, topic, copy, first)
        self.world.acks.after_event(cluster, loaded=True)
        for checker in self.world.checkers:
            checker.started(cluster)

    def dropped_below(self, cluster: "Cluster", topic: str, copy: Copy, first: int) -> None:
        """What retention deleted while nobody was told."""
        self.dropped(cluster, {one.ledger for one in (*copy.at, *copy.markers) if one.ledger < first})

    def last(self, copy: Copy) -> Position:
        """The newest entry."""
        return max((*copy.at, *copy.markers), default=NONE)
