"""A seeded world around the real machine of snapshot mode: two to four clusters, their logs and cursors, links that stall.

What is real: Snapshots, TopicLog, Cursor, the markers' bytes. What is the world's: disks that lose what was not synced,
links (exactly once and in order: what the chain rule gives), consumers, clocks, and the world's own memory of who
acknowledged what.

Promises that are checked at every step: whatever an update acknowledges was acknowledged by a consumer (or skipped, or
was behind the starting point of every creation), and no update undoes a seek. At the end, when everything is up again: the
tail of the acknowledgements is everywhere, and no cluster writes another marker.

The same seed makes the same world. A violation says what happened; the trace says how it came to it.
"""

import random
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple

from magnetar.core.ids import EARLIEST, LATEST, NONE, Position
from magnetar.replication.marker_host import Acked, Messages
from magnetar.replication.snapshots import Snapshots
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import Append, EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.ledger import Ledger
from magnetar.storage.positions import PositionSet
from magnetar.storage.topiclog import EntryCache, LedgerIds, RecoveredTopic, Retention, TopicLog
from magnetar.wire import markers
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import Epoch, SoughtEpoch
from magnetar.wire.metadata import build, parse_metadata
from magnetar.wire.text import text_is_valid as _text_is_valid

TOPIC = "persistent://public/default/t"
SUB = "s"
INTERVAL_MS, TIMEOUT_MS = 1000, 30_000
_MARKER = int(EntryFlags.MARKER)


class Violation(AssertionError):
    """A promise was broken."""


class Written(NamedTuple):
    """What the world knows of an update's writer at the moment of writing.

    Attributes:
        entitled: per cluster the number of its last seek that the writer knew and after which something was
            acknowledged in the writer.
    """

    entitled: dict[str, int]


_BYTES: dict[tuple[int, tuple[str, ...] | None, int], bytes] = {}


def message_bytes(uid: int, to: tuple[str, ...] | None, count: int) -> bytes:
    """An entry whose payload is its number; made once."""
    found = _BYTES.get((uid, to, count))
    if found is None:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=uid, publish_time=1)
        if count > 1:
            metadata.num_messages_in_batch = count
        if to is not None:
            metadata.replicate_to.extend(to or ("__local__",))
        found = _BYTES[uid, to, count] = build(metadata, b"%d" % uid)
    return found


class Message(NamedTuple):
    """What the world remembers of a published entry."""

    origin: str
    to: tuple[str, ...] | None


class Site:
    """One cluster's broker as far as snapshots see it, with a disk. It is the machine's host."""

    def __init__(self, world: "World", cluster: str) -> None:
        self.world, self.cluster = world, cluster
        self.lives = self.seeks = self.skew = 0
        self.wipe()

    # -- life and death

    def wipe(self) -> None:
        """A new disk."""
        self.lives += 1
        self.disk: dict[int, list[StoredEntry]] = {}
        self.cursors: dict[str, tuple[bytes, bytes]] = {}
        self.covered = NONE
        self.deletions: dict[str, bytes] = {}
        self.saved: Any = None
        self.uids: dict[Position, int] = {}
        self.ever: set[int] = set()
        self.expired_ever: set[int] = set()
        self.unpublished: set[int] = set()
        self.unreported: set[int] = set()
        self.reread: dict[int, int] = {}
        self.foreign_seeks: dict[str, int] = {}
        self.entitled: dict[str, int] = {}
        self.incarnation = self.world.incarnation(self)
        self.boot(fresh=True)

    @property
    def now_ms(self) -> int:
        return self.world.now_ms + self.skew

    def boot(self, *, fresh: bool = False) -> None:
        """Start with what the disk has."""
        self.writes: list[tuple[Append, list[Callable[[Position, str], None] | None]]] = []
        self.timers: list[tuple[int, Callable[[int], None]]] = []
        self.refusing = False
        recovered = RecoveredTopic()
        for ledger_id in sorted(self.disk):
            ledger = recovered.ledgers[ledger_id] = Ledger(ledger_id, 0)
            for e in self.disk[ledger_id]:
                marker = bool(e.flags & _MARKER)
                ledger.add(0, len(e.data), e.flags, e.count, e.publish_time, e.broker_time, marker=marker)
                if not marker:
                    key = (e.origin, e.incarnation) if e.origin else ("", self.incarnation)
                    self._run(ledger, key, e)
                    if not e.origin:
                        recovered.next_index = max(recovered.next_index, e.first_index + e.count)
        self.ids = self.world.make_ids(self)
        self.log = TopicLog(
            TOPIC, self.incarnation, self.ids, EntryCache(0), ledger_entries_max=self.world.ledger_entries,
            recovered=recovered, saved=self.saved, fresh=fresh,
        )  # fmt: skip
        self.open = {name: Cursor.decode(self.log, cursor) for name, (cursor, _) in self.cursors.items()}
        self.dirty_subs: set[str] = set()
        self.update: StoredEntry | None = None
        if SUB in self.open:
            acked = self.acked_uids()
            self.reread = {uid: number for uid, number in self.reread.items() if uid not in acked}
        self.machine = self.world.machine_class(
            self, new_id=self.world.new_id, interval_ms=INTERVAL_MS, timeout_ms=TIMEOUT_MS,
            cached_max=self.world.cached_max,
        )  # fmt: skip
        after = self.covered
        for name, data in self.deletions.items():
            self.machine.load(name, data)
        for name, (_, state) in sorted(self.cursors.items()):
            after = min(after, self.machine.load(name, state))
        self.replaying = True
        for ledger_id in sorted(self.disk):
            replayed = [e for e in self.disk[ledger_id] if e.flags & _MARKER and e.position > after]
            for batch in self.batches(replayed):
                self.note_updates(batch)
                self.machine.stored(batch)
        self.replaying = False
        self.machine.started()

    @staticmethod
    def _run(ledger: Ledger, key: tuple[str, int], e: StoredEntry) -> None:
        from magnetar.core.ids import OriginKey

        origin = OriginKey(*key)
        if ledger.run_origin != origin or ledger.run_next != e.first_index:
            ledger.begin_run(ledger.entries - 1, origin, e.first_index)
        ledger.run_next = e.first_index + e.count

    def crash(self) -> None:
        """Lose what is not on disk; of what is on its way some may have reached it."""
        whole = self.world.rng.randint(0, len(self.writes)) if self.world.rng.random() < 0.5 else 0
        for append, _ in self.writes[:whole]:
            self.to_disk(append.entries)
        self.boot()
        self.world.restarted(self)

    # -- the disk

    def stage(self, entries: list[NewEntry], thens: list[Callable[[Position, str], None] | None]) -> None:
        self.writes.append((self.log.stage(entries, self.now_ms), thens))

    def to_disk(self, entries: Collection[StoredEntry]) -> None:
        for entry in entries:
            self.disk.setdefault(entry.ledger, []).append(entry)
            self.world.persisted(self, entry)
            if not entry.flags & _MARKER:
                uid = int(entry.data[10 + int.from_bytes(entry.data[6:10], "big") :])
                self.uids[entry.position] = uid
                self.ever.add(uid)

    def sync(self, most: int = 1000) -> None:
        """The disk has the oldest appends, and the broker knows."""
        done, self.writes = self.writes[:most], self.writes[most:]
        entries: list[StoredEntry] = []
        for append, _ in done:
            self.to_disk(append.entries)
            self.log.confirm(append, Location(0, 0))
            entries += append.entries
        thens = [
            (then, entry.position)
            for append, waiting in done
            for then, entry in zip(waiting, append.entries, strict=True)
            if then is not None
        ]
        if self.world.then_first:
            for then, position in thens:
                then(position, "")
        for batch in self.batches(entries):
            self.note_updates(batch)
            self.machine.stored(batch)
        if not self.world.then_first:
            for then, position in thens:
                then(position, "")
        if entries:
            for cursor in self.open.values():
                cursor.step_over_markers()
        self.check()

    def fail_writes(self) -> None:
        """A write failed: nothing in flight was stored, and nothing is taken until the storage has healed."""
        failed, self.writes = self.writes, []
        for _ in failed:
            self.log.fail()
        self.refusing = True
        for _, thens in failed:
            for then in thens:
                if then is not None and self.world.rng.random() < 0.7:
                    then(NONE, "disk failed")
        self.world.restarted(self)

    def heal(self) -> None:
        if self.refusing:
            self.refusing = False
            self.machine.healed()

    def batches(self, entries: list[StoredEntry]) -> list[list[StoredEntry]]:
        """As they come, but at most one update of another cluster in each, so that what it does can be seen."""
        found: list[list[StoredEntry]] = []
        for entry in entries:
            if not found or self.foreign_update(found[-1][-1]) or self.world.one_by_one:
                found.append([])
            found[-1].append(entry)
        return found

    @staticmethod
    def foreign_update(entry: StoredEntry) -> bool:
        return bool(entry.flags & _MARKER and entry.origin and parse_metadata(entry.data).marker_type == 13)

    def note_updates(self, batch: list[StoredEntry]) -> None:
        """Which cluster wrote, for the checks; and seeks that markers name."""
        self.update: StoredEntry | None = None
        for entry in batch:
            if entry.flags & _MARKER and entry.origin:
                marker = markers.parse_marker(entry.data)
                if isinstance(marker, markers.Update):
                    self.update = entry
                elif isinstance(marker, SoughtEpoch):
                    number = self.world.seek_numbers.get(marker.epoch, 0)
                    if number > self.foreign_seeks.get(entry.origin, 0):
                        self.foreign_seeks[entry.origin] = number
                        self.unpublished.clear()

    def due(self) -> None:
        ready = [timer for timer in self.timers if timer[0] <= self.now_ms]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_ms]
        for _, then in ready:
            then(self.now_ms)

    def store(self) -> None:
        """The metadata store has the cursors, and up to where their states know the markers."""
        self.covered = self.log.last
        for name, cursor in self.open.items():
            self.cursors[name] = (cursor.encode(), self.machine.encode(name))
        for name in [name for name in self.cursors if name not in self.open]:
            del self.cursors[name]
            self.deletions[name] = self.machine.encode(name)
        for name in self.open:
            self.deletions.pop(name, None)

    # -- what the machine asks of its host

    @property
    def routes(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.world.routes)

    def incarnation_of(self, cluster: str) -> int:
        return self.world.sites[cluster].incarnation

    latest_incarnation_of = incarnation_of

    def append_marker(
        self, data: bytes, replicate_to: Collection[str], then: Callable[[Position, str], None] | None = None
    ) -> bool:
        if self.refusing:
            return False
        metadata = parse_metadata(data)
        assert sorted(metadata.replicate_to) == sorted(replicate_to)
        assert _text_is_valid(metadata)
        flags = _MARKER | (EntryFlags.RESTRICTED if replicate_to else 0)
        marker = markers.parse_marker(data)
        self.world.markers_written += 1
        if isinstance(marker, markers.Update):
            self.world.updates[self.cluster, self.lives, data] = Written(dict(self.entitled))
        elif isinstance(marker, SoughtEpoch):
            self.world.seek_numbers[marker.epoch] = self.seeks
        self.world.say(f"{self.cluster} writes {describe(marker)} to {sorted(replicate_to)}")
        self.stage([NewEntry(data, int(flags), 0, metadata.publish_time)], [then])
        return True

    def cursor(self, subscription: str) -> Cursor | None:
        return self.open.get(subscription)

    def subscriptions(self) -> list[str]:
        return sorted(self.open)

    def acknowledged(self, subscription: str) -> tuple[()]:
        return ()  # the other mode's machine is not there

    first_kept = 0
    """A trim is durable at once."""

    def epoch(self, subscription: str) -> Epoch | None:
        return None

    def learnt(
        self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None, *, made: bool
    ) -> None:
        """The other mode's machine is not there."""

    def create(self, subscription: str) -> None:
        if subscription in self.deletions:
            raise Violation(f"{self.cluster}: {subscription} was deleted here, and another cluster brings it back")
        self.open[subscription] = Cursor.at(self.log, EARLIEST)
        self.expired_ever |= self.ever - {uid for position, uid in self.uids.items() if self.log.valid(position)}
        self.world.say(f"{self.cluster} gets {subscription} from another cluster")

    def apply(self, subscription: str, entries: PositionSet, partial: Mapping[Position, int]) -> None:
        assert not partial
        entries.validate()
        fresh = self.open[subscription].ack_set(entries)
        uids = sorted(self.uids[position] for position in fresh)
        if uids:
            self.world.say(f"{self.cluster}: others acknowledged {uids}")
        self.world.applied(self, uids)

    def rebuild(self, subscription: str, acked: PositionSet, partial: Mapping[Position, int]) -> None:
        cursor = self.open[subscription]
        before = {position for position in self.uids if self.log.valid(position) and cursor.is_acked(position)}
        cursor.replace(acked, partial)
        back = sorted(self.uids[position] for position in before if not cursor.is_acked(position))
        self.world.say(f"{self.cluster}: {back} come back")
        assert back, "rebuilt for nothing"

    def dirty(self, subscription: str) -> None:
        self.dirty_subs.add(subscription)

    def timer(self, at_ms: int, then: Callable[[int], None]) -> None:
        assert len(self.timers) < 10, "timers pile up"
        self.timers.append((at_ms, then))

    def note(self, level: str, text: str) -> None:
        assert "\n" not in text

    # -- consumers

    def unacked(self, subscription: str = SUB) -> list[Position]:
        cursor = self.open[subscription]
        return [
            position for position in sorted(self.uids) if self.log.valid(position) and not cursor.is_acked(position)
        ]

    def acked_uids(self, subscription: str = SUB) -> set[int]:
        """Of the retained ones."""
        cursor = self.open[subscription]
        return {uid for position, uid in self.uids.items() if self.log.valid(position) and cursor.is_acked(position)}

    def check(self) -> None:
        self.machine.validate()
        for cursor in self.open.values():
            cursor.validate()


def describe(marker: Any) -> str:
    match marker:
        case markers.SnapshotRequest(snapshot_id, _, number):
            return f"REQUEST {snapshot_id} round {number}"
        case markers.SnapshotResponse(snapshot_id, _, position):
            return f"RESPONSE {snapshot_id} at {position}"
        case markers.Snapshot(snapshot_id, local, clusters, held):
            shown = {f"{key.cluster}/{key.incarnation}": runs for key, runs in held.items()}
            return f"SNAPSHOT {snapshot_id} at {local} = { {c: str(p) for c, p in clusters.items()} } {shown}"
        case markers.Update(_, clusters, claim):
            shown = (
                {f"{key.cluster}/{key.incarnation}": runs for key, runs in claim.acked.items()} if claim else "plain"
            )
            base = claim.base if claim else None
            return (
                f"UPDATE { {c: str(p) for c, p in clusters.items()} } {shown} base {base} seeks {claim and claim.seeks}"
            )
    return f"{marker}"


def plain(data: bytes) -> bytes:
    """A marker as Apache Pulsar would write it, or read it: without our fields."""
    metadata = parse_metadata(data)
    match markers.parse_marker(data):
        case markers.SnapshotRequest(snapshot_id, source):
            bare: Any = markers.SnapshotRequest(snapshot_id, source)
        case markers.SnapshotResponse(snapshot_id, cluster, position):
            bare = markers.SnapshotResponse(snapshot_id, cluster, position)
        case markers.Update(subscription, clusters):
            bare = markers.Update(subscription, clusters)
        case _:
            return data
    return markers.build_marker(bare, metadata.publish_time, list(metadata.replicate_to))


class World:
    """Clusters of one topic with one subscription.

    Args:
        rng: the only source of chance.
        trace: what happened, if wanted.
    """

    machine_class: type[Snapshots] = Snapshots
    reuse_ledgers = False
    plain: ClassVar[float] = 0.15
    """Share of worlds in which no markers carry our fields, as if all peers were Apache Pulsar."""
    boost: ClassVar[dict[str, float]] = {}
    """What a world does more (or less) often than others."""
    clusters_least: ClassVar[int] = 2
    one_way: ClassVar[float] = 0.0
    """Share of worlds in which single directions of links are taken away and given back."""
    warm: ClassVar[float] = 0.6
    """Share of worlds in which the subscription is there from the beginning."""

    def __init__(self, rng: random.Random, trace: list[str] | None = None) -> None:
        self.rng, self.trace = rng, trace
        self.now_ms = 1_000_000_000
        self.names = ["a", "b", "c", "d"][: max(self.clusters_least, rng.choice((2, 3, 3, 4)))]
        self.ledger_entries = rng.choice((2, 3, 5, 20))
        self.cached_max = rng.choice((3, 4, 30))
        self.then_first = rng.random() < 0.5
        self.one_by_one = rng.random() < 0.3
        self.is_plain = rng.random() < self.plain
        self.uid = self.id = 0
        self.messages: dict[int, Message] = {}
        self.done: set[int] = set()
        self.bases: list[set[int]] = []
        self.seek_numbers: dict[Any, int] = {}
        self.updates: dict[tuple[str, int, bytes], Written] = {}
        self.origins: dict[tuple[str, Position], tuple[str, int, bytes]] = {}
        self.markers_written = 0
        self.forgetful = self.settling = False
        self.routes = {(s, d) for s in self.names for d in self.names if s != d}
        self.members = set(self.names)
        self.cut: set[tuple[str, str]] = set()
        if len(self.names) > 2 and rng.random() < 0.3 and not self.is_plain:
            self.members.discard(self.names[-1])
            self.routes = {route for route in self.routes if self.names[-1] not in route}
        self.at: dict[tuple[str, str], Position] = {}
        self.durable: dict[tuple[str, str], Position] = {}
        self.stalled: set[tuple[str, str]] = set()
        self.filtered: set[tuple[str, str]] = set()
        if not self.is_plain and rng.random() < 0.2:
            self.filtered = {route for route in sorted(self.routes) if rng.random() < 0.3}
        self.home = rng.choice(sorted(self.members))
        # Chance of its own: worlds that have none of it stay as they are.
        fork = random.Random(rng.getstate()[1][0])
        self.one_ways = fork.choice((0.3, 1.0)) if fork.random() < self.one_way and not self.is_plain else 0.0
        self.mends = fork.random() < 0.7
        self.sites: dict[str, Site] = {}
        for name in self.names:
            self.sites[name] = Site(self, name)
        for site in self.sites.values():
            site.skew = rng.choice((0, 0, -3_600_000, 3_600_000)) if not self.is_plain else 0
        self.actions = self.make_actions()
        if rng.random() < self.warm:
            self.bases.append(set())
            self.make(self.sites[self.home], EARLIEST)

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(text)

    def new_id(self) -> str:
        self.id += 1
        return f"#{self.id}"

    # ---------------------------------------------------------------------------------------------- seams for planted bugs

    def incarnation(self, site: Site) -> int:
        return 7 if self.reuse_ledgers else self.now_ms + site.lives

    def make_ids(self, site: Site) -> LedgerIds:
        last = max([-1, *site.disk])
        if not self.reuse_ledgers:
            return LedgerIds(max(last, site.incarnation))

        class Reused(LedgerIds):
            def allocate(self, now_ms: int) -> int:
                self.last += 1
                return self.last

        return Reused(max(last, 7))

    # ----------------------------------------------------------------------------------------------------------- checks

    def applied(self, site: Site, uids: list[int]) -> None:
        """An update's claim was acknowledged somewhere."""
        skipped = set().union(*self.bases)
        for uid in uids:
            if uid not in self.done and uid not in skipped:
                raise Violation(f"{site.cluster}: an update acknowledges m{uid}, which was not acknowledged")
        if site.replaying or site.update is None:
            return
        written = self.updates[self.origins[site.cluster, site.update.position]]
        for uid in uids:
            if uid in site.reread and written.entitled.get(site.cluster, 0) < site.reread[uid]:
                raise Violation(f"{site.cluster}: an update of {site.update.origin} undoes the seek, m{uid} is skipped")

    def acknowledged(self, site: Site, uids: Collection[int]) -> None:
        """A consumer of a cluster did."""
        self.done.update(uids)
        for uid in uids:
            site.reread.pop(uid, None)
        site.entitled.update(site.foreign_seeks)
        site.unpublished.update(uids)

    # ------------------------------------------------------------------------------------------------------------ actions

    def make_actions(self) -> list[tuple[float, Callable[[], object], str]]:
        safe = not self.is_plain
        wipe, seek = self.rng.choice((0, 0.3)), self.rng.choice((0, 0, 0.5))
        weights: dict[str, float] = {
            "publish": 4, "link": 35, "sync": 20, "consume": 7, "tick": 6, "long": 0.3, "stall": 1.5, "store": 3,
            "crash": 0.3, "fail": 0.2, "heal": 1, "move": 0.1 if safe else 0, "subscribe": 0.5, "trim": 1 if safe else 0,
            "seek": seek if safe else 0, "wipe": wipe if safe else 0, "expire": self.rng.choice((0, 0.2)) if safe else 0,
            "join": 0.1 if safe else 0, "leave": 0.03 if safe else 0, "delete": self.rng.choice((0, 0, 0.1)) if safe else 0,
            "quota": self.rng.choice((0, 0, 0.3)) if safe else 0, "handshake": 0.1 if safe else 0,
            "part": self.one_ways, "mend": self.one_ways / 2,
        }  # fmt: skip
        for name, factor in self.boost.items():
            weights[name] *= factor
        return [(weight, getattr(self, name), name) for name, weight in weights.items() if weight]

    def site(self) -> Site:
        return self.sites[self.rng.choice(sorted(self.members))]

    def at_home(self, share: float = 0.9) -> Site:
        return self.sites[self.home] if self.rng.random() < share else self.site()

    def publish(self, site: Site | None = None, *, everywhere: bool = False) -> None:
        site = site or self.site()
        if site.refusing:
            return
        to = None
        if self.rng.random() < 0.2 and not self.is_plain and not everywhere:
            to = tuple(name for name in self.names if self.rng.random() < 0.5)
        count = self.rng.choice((1, 1, 3))
        self.uid += 1
        self.messages[self.uid] = Message(site.cluster, to)
        flags = (EntryFlags.BATCH if count > 1 else 0) | (EntryFlags.RESTRICTED if to is not None else 0)
        data = message_bytes(self.uid, to, count)
        site.stage([NewEntry(data, int(flags), count, self.now_ms)], [None])
        self.say(f"{site.cluster} publishes m{self.uid}{'' if to is None else f' only to {to}'}")

    def link(self, route: tuple[str, str] | None = None) -> bool:
        """Move one entry over a link; whether there was one."""
        ready = [route] if route else sorted(route for route in self.routes if route not in self.stalled)
        self.rng.shuffle(ready)
        for source, target in ready:
            site, to = self.sites[source], self.sites[target]
            if to.refusing:
                continue
            after = self.at.get((source, target), NONE)
            following = site.log.next_after(after)
            while following is not None:
                entry = site.disk[following.ledger][following.entry]
                self.at[source, target] = following
                if self.goes(entry, source, target):
                    self.push(entry, site, to)
                    return True
                following = site.log.next_after(following)
        return False

    def goes(self, entry: StoredEntry, source: str, target: str) -> bool:
        if entry.origin:
            return False
        if entry.flags & EntryFlags.RESTRICTED and target not in parse_metadata(entry.data).replicate_to:
            return False
        if (source, target) in self.filtered and not entry.flags & _MARKER:
            return self.sites[source].uids[entry.position] % 3 != 0
        return True

    def push(self, entry: StoredEntry, site: Site, to: Site) -> None:
        data = entry.data
        if entry.flags & _MARKER:
            if self.is_plain:
                data = plain(data)
        new = NewEntry(
            data, entry.flags | EntryFlags.REPLICATED, entry.count, entry.publish_time, site.cluster,
            site.incarnation, entry.first_index, entry.position,
        )  # fmt: skip
        to.stage([new], [None])
        if entry.flags & _MARKER:
            position = to.writes[-1][0].entries[0].position
            self.origins[to.cluster, position] = (site.cluster, site.lives, entry.data)

    def persisted(self, site: Site, entry: StoredEntry) -> None:
        if entry.origin:
            route = (entry.origin, site.cluster)
            self.durable[route] = max(entry.source, self.durable.get(route, NONE))

    def restarted(self, site: Site) -> None:
        """What was on its way to a cluster comes again."""
        for route in self.routes | self.cut:
            if route[1] == site.cluster:
                self.at[route] = self.durable.get(route, NONE)

    def sync(self) -> None:
        site = self.site()
        if not site.refusing:
            site.sync(self.rng.choice((1, 3, 1000)))

    def tick(self) -> None:
        self.now_ms += self.rng.choice((1, 100, 600, 1200))
        for site in self.sites.values():
            site.due()

    def long(self) -> None:
        self.now_ms += TIMEOUT_MS + 1
        for site in self.sites.values():
            site.due()

    def stall(self) -> None:
        if self.routes:
            self.stalled ^= {self.rng.choice(sorted(self.routes))}

    def store(self) -> None:
        self.site().store()

    def crash(self) -> None:
        site = self.site()
        self.say(f"{site.cluster} crashes")
        if self.rng.random() < 0.3:
            site.store()
        site.crash()

    def fail(self) -> None:
        site = self.site()
        self.say(f"the disk of {site.cluster} fails")
        site.fail_writes()

    def heal(self) -> None:
        for site in self.sites.values():
            site.heal()

    def move(self) -> None:
        """The consumer moves."""
        self.home = self.rng.choice(sorted(self.members))
        self.say(f"the consumer moves to {self.home}")

    def subscribe(self) -> None:
        site = self.at_home()
        if SUB in site.open:
            return
        latest = self.rng.random() < 0.5 and not self.is_plain
        base = set(site.ever) if latest else set()
        self.bases.append(base)
        self.say(f"a consumer subscribes in {site.cluster} at {'Latest' if latest else 'Earliest'}")
        self.make(site, LATEST if latest else EARLIEST)

    def make(self, site: Site, where: Position) -> None:
        site.deletions.pop(SUB, None)
        site.open[SUB] = Cursor.at(site.log, where)
        site.expired_ever |= site.ever - {uid for position, uid in site.uids.items() if site.log.valid(position)}
        site.machine.created(SUB)
        site.store()

    def consume(self, site: Site | None = None, most: int | None = None) -> None:
        site = site or self.at_home(0.95)
        if SUB not in site.open:
            return
        cursor = site.open[SUB]
        todo = site.unacked()
        if not todo:
            return
        kind = self.rng.random()
        if most is None and kind < 0.1:
            chosen = self.rng.sample(todo, self.rng.randint(1, len(todo)))
            cursor.ack(chosen)
            acked = Acked(entries=sorted(chosen))
        elif most is None and kind < 0.15 and site.log.count_at(todo[0]) == 3:
            chosen = []
            cursor.ack_indexes(todo[0], 0b011)
            acked = Acked(partial={todo[0]: 0b100})
        else:
            chosen = todo[: most or self.rng.choice((1, 3, 99))]
            before = cursor.mark_delete
            if self.rng.random() < 0.5:
                cursor.ack(chosen)
                acked = Acked(entries=chosen)
            else:
                chosen = [position for position in todo if position <= chosen[-1]]
                cursor.ack_up_to(chosen[-1])
                acked = Acked(before, chosen[-1])
        uids = [site.uids[position] for position in chosen]
        self.say(f"{site.cluster} consumes {uids}")
        self.acknowledged(site, uids)
        site.machine.acknowledged(SUB, acked)
        site.check()

    def expire(self) -> None:
        site = self.site()
        if SUB not in site.open or not (todo := site.unacked()):
            return
        self.let_expire(site, todo[min(len(todo) - 1, self.rng.randint(0, 2))])

    def let_expire(self, site: Site, last: Position) -> None:
        cursor = site.open[SUB]
        before = cursor.mark_delete
        uids = {site.uids[position] for position in site.unacked() if position <= last}
        site.expired_ever |= uids
        # What was acknowledged out of order below cannot be distinguished from what expired any more: it comes again elsewhere.
        site.unreported |= {uid for position, uid in site.uids.items() if before < position <= last}
        self.say(f"{site.cluster} lets {sorted(uids)} expire")
        cursor.ack_up_to(last)
        site.machine.expired(SUB, before, last)

    def seek(self) -> None:
        site = self.site()
        if SUB not in site.open or site.refusing:
            return
        cursor = site.open[SUB]
        positions = [position for position in sorted(site.uids) if site.log.valid(position)]
        if not positions:
            return
        to = self.rng.choice(positions)
        before = site.acked_uids()
        cursor.reset(to)
        after = site.acked_uids()
        site.seeks += 1
        site.unpublished.clear()
        for uid in before - after:
            site.reread[uid] = site.seeks
        self.done.update(uid for uid in site.ever if uid in after)
        self.say(f"{site.cluster} seeks to {to}: {sorted(before - after)} come again")
        site.machine.sought(SUB, lambda error: None)

    def delete(self) -> None:
        site = self.site()
        if SUB in site.open and site.cluster != self.home:
            self.say(f"{site.cluster} deletes the subscription")
            self.forgetful = True
            del site.open[SUB]
            site.unpublished.clear()
            site.machine.deleted(SUB)
            site.cursors.pop(SUB, None)
            site.deletions[SUB] = site.machine.encode(SUB)
            site.reread.clear()

    def trim(self) -> None:
        """Retention: what cursors and links have passed, durably."""
        site = self.site()
        site.store()
        keep = [cursor.mark_delete for cursor in site.open.values()]
        keep += [self.durable_from(site, route[1]) for route in self.routes | self.cut if route[0] == site.cluster]
        self.trim_to(site, min(keep, default=site.log.last))

    def durable_from(self, site: Site, target: str) -> Position:
        """What a link has settled: sent and stored, or filtered."""
        route = (site.cluster, target)
        to = self.sites[target]
        if not to.writes and not to.refusing:
            return self.at.get(route, NONE)
        return self.durable.get(route, NONE)

    def quota(self) -> None:
        """An operator's quota deletes what links and subscriptions still needed."""
        site = self.site()
        if SUB in site.open and (todo := site.unacked()):
            self.let_expire(site, todo[-1])
        site.store()
        self.say(f"a quota trims {site.cluster}")
        self.trim_to(site, site.log.last)
        # Links report that something was lost to them.
        for source, target in sorted(self.routes | self.cut):
            if source == site.cluster:
                site.machine.rebased(target)

    def trim_to(self, site: Site, keep: Position) -> None:
        trim = site.log.trim(keep, site.now_ms + 1, Retention(0, 0))
        if trim is None:
            return
        site.saved = Saved(trim.first_ledger, trim.next_index, dict(trim.watermarks), trim.end)
        site.log.forget(trim)
        for ledger in trim.ledgers:
            site.disk.pop(ledger, None)
        for cursor in site.open.values():
            cursor.step_over_markers()
        site.machine.trimmed()
        site.store()

    def wipe(self) -> None:
        site = self.site()
        self.say(f"{site.cluster} loses its disk")
        self.forgetful = True
        site.wipe()
        for route in self.routes | self.cut:
            if site.cluster in route:
                self.at[route] = self.durable[route] = NONE
        for other in sorted(self.members - {site.cluster}):
            self.sites[other].machine.rebased(site.cluster)

    def handshake(self) -> None:
        """A link begins again without reason."""
        site, other = self.site(), self.site()
        if site is not other:
            site.machine.rebased(other.cluster)

    def join(self) -> None:
        name = self.names[-1]
        if name not in self.members:
            self.say(f"{name} joins")
            self.members.add(name)
            self.routes |= {(s, d) for s in self.members for d in self.members if s != d and name in (s, d)}
            for member in sorted(self.members):
                self.sites[member].machine.routes_changed()

    def leave(self) -> None:
        name = self.names[-1]
        if name in self.members and len(self.members) > 2 and name != self.home:
            self.say(f"{name} leaves")
            self.forgetful = True
            self.members.discard(name)
            self.routes = {route for route in self.routes if name not in route}
            self.cut = {route for route in self.cut if name not in route}
            for other in self.names:
                self.sites[other].machine.routes_changed()

    def part(self) -> None:
        """One direction of a link is taken away: what it has not brought is held until it is given back."""
        ways = sorted(route for route in self.routes if route[::-1] in self.routes)
        if ways:
            route = self.rng.choice(ways)
            self.say(f"{route[0]} has no link to {route[1]} any more")
            self.routes.discard(route)
            self.cut.add(route)
            for member in sorted(self.members):
                self.sites[member].machine.routes_changed()

    def mend(self) -> None:
        """All links lead both ways again."""
        if self.cut:
            self.say("links lead both ways again")
            self.routes |= self.cut
            self.cut.clear()
            for member in sorted(self.members):
                self.sites[member].machine.routes_changed()

    # ---------------------------------------------------------------------------------------------------------- running

    def run(self, steps: int) -> None:
        weights = [weight for weight, _, _ in self.actions]
        chosen = self.rng.choices(self.actions, weights, k=steps)
        for _, action, _ in chosen:
            self.now_ms += 1
            action()
        self.settle()

    def quiet(self, limit: int = 4000) -> None:
        """Everything is up, links run, time passes, until nothing happens any more for two minutes."""
        self.stalled.clear()
        silent_ms = 0
        for _ in range(limit):
            self.heal()
            moved = False
            for site in self.sites.values():
                if site.writes:
                    site.sync()
                    moved = True
            while self.link():
                moved = True
            if moved:
                silent_ms = 0
                continue
            if silent_ms > 120_000:
                return
            step = 500 if silent_ms < 5000 else 20_000
            self.now_ms += step
            silent_ms += step
            for site in self.sites.values():
                site.due()
        raise Violation("clusters keep each other busy")

    def settle(self) -> None:
        self.settling = True
        if self.mends:
            self.mend()
        self.quiet()
        if self.cut:
            # Positions do not go where no answer comes from: nothing is promised but silence, and what every step checks.
            self.check_silence()
            return
        self.check_published()
        home = self.sites[self.home]
        if SUB not in home.open:
            self.bases.append(set())
            self.make(home, EARLIEST)
        self.publish(home, everywhere=True)
        self.publish(self.site(), everywhere=True)
        if self.rng.random() < 0.5:
            self.quiet()
        else:
            for _ in range(200):
                self.link()
                self.sync()
        while home.unacked():
            self.consume(home, self.rng.choice((1, 99)))
        self.quiet()
        while home.unacked():
            self.consume(home, 99)
        self.quiet()
        self.check_tail(home)
        self.check_silence()
        self.check_bases()

    def check_silence(self) -> None:
        """Nobody writes another marker, however long it takes."""
        written = self.markers_written
        self.now_ms += 3_600_000
        for site in self.sites.values():
            site.due()
        self.quiet()
        if self.markers_written != written:
            raise Violation("an idle topic writes markers")

    def check_bases(self) -> None:
        """What one creation of the subscription took for consumed, another did not: no cluster skips it."""
        if self.forgetful or self.is_plain or not self.bases:
            return
        skipped = set.intersection(*self.bases)
        for name in sorted(self.members):
            site = self.sites[name]
            if SUB in site.open and (wrong := sorted(site.acked_uids() - self.done - site.expired_ever - skipped)):
                raise Violation(f"{name} skips {wrong}, which a consumer that subscribed elsewhere still wants")

    def check_published(self) -> None:
        """A cluster that consumed everything has published what its own consumers acknowledged, however long ago."""
        skipped = set().union(*self.bases)
        for name in sorted(self.members):
            site = self.sites[name]
            if self.is_plain or SUB not in site.open or site.unacked():
                continue
            published = (site.unpublished & site.acked_uids()) - skipped - site.expired_ever - site.unreported
            for other in sorted(self.members - {name}):
                if SUB in self.sites[other].open:
                    backlog = {self.sites[other].uids[position] for position in self.sites[other].unacked()}
                    if missing := sorted(backlog & published - self.sites[other].reread.keys()):
                        raise Violation(f"{name} consumed {missing}, and never published that to {other}")

    def check_tail(self, home: Site) -> None:
        """What was acknowledged at home is acknowledged everywhere, and nothing else is."""
        skipped = set().union(*self.bases)
        for name in sorted(self.members):
            site = self.sites[name]
            if SUB not in site.open:
                if SUB not in site.deletions:
                    raise Violation(f"{name} never got the subscription")
                continue
            acked = site.acked_uids()
            missing = [
                site.uids[position] for position in site.unacked()
                if site.uids[position] in home.ever - skipped - home.expired_ever - home.unreported
            ]  # fmt: skip
            if missing and not self.is_plain:
                raise Violation(f"{name} has {missing} as backlog, which {home.cluster} published or should have")
            invented = acked - self.done - site.expired_ever - skipped
            if invented:
                raise Violation(f"{name} counts {sorted(invented)} as acknowledged")
            backlog = site.open[SUB].backlog_entries()
            if backlog != len(site.unacked()):
                raise Violation(f"{name}: {backlog} entries of backlog, {len(site.unacked())} messages: markers count")


class Saved(NamedTuple):
    """What the metadata store knows of a topic."""

    first_ledger: int
    next_index: int
    watermarks: dict[str, Position]
    end: Position

    def watermark_positions(self) -> dict[str, Position]:
        return self.watermarks

    def end_position(self) -> Position:
        return self.end


class OneWayWorld(World):
    """Links that lead one way for a while, or for good."""

    one_way = 1.0


def run_world(seed: int, world: type[World] = World, steps: int | None = None) -> tuple[str, list[str]]:
    """Run one world; what it violated ("" if nothing), and its trace."""
    rng = random.Random(f"snapshots-{seed}")
    steps = steps or rng.choice((60, 150, 300))
    trace: list[str] = []
    try:
        world(rng, trace).run(steps)
    except AssertionError as violation:
        return str(violation) or "assertion", trace
    return "", trace
