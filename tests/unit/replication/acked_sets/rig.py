"""One cluster's topic around the machine: a real log, real cursors, a disk that answers when told to."""

from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.acked_sets import AckedSets, MarkerPacer
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags, Location, NewEntry
from magnetar.storage.topiclog import EntryCache, LedgerIds, Retention, TopicLog
from magnetar.wire.acksets import CREATION, AckedSet, AckedSetsMarker, FenceToken
from magnetar.wire.markers import build_marker, parse_marker

MESH = frozenset((s, d) for s in "abc" for d in "abc" if s != d)
INCARNATION = 7


class Rig:
    """A `MarkerHost` with the machine of cluster a."""

    cluster = "a"

    def __init__(self, routes=MESH, *, incarnation=INCARNATION, **options):
        self.ids = LedgerIds(incarnation)
        self.log = TopicLog("t", incarnation, self.ids, EntryCache(0), ledger_entries_max=4)
        self.routes = routes
        self.now_ms = 1_000_000
        self.incarnations = {}
        self.options = options
        self.cursors, self.plain = {}, {}
        self.disk = {}
        self.asked, self.notes = [], []
        self.sources = {}
        self.restart()

    def restart(self, *, state=True):
        self.timers, self.writing, self.refusing = [], [], False
        entries = getattr(self, "entries", [])
        self.entries = entries
        options = {"interval_ms": lambda: 100, "pacer": MarkerPacer(0), **self.options}
        self.machine = AckedSets(self, **options)
        covered = [self.machine.load(name, data if state else None) for name, data in sorted(self.disk.items())]
        after = min(covered, default=NONE)
        self.machine.stored([e for e in entries if e.flags & EntryFlags.MARKER and e.position > after])
        self.machine.started()

    # -- geo.host.MarkerHost

    def incarnation_of(self, cluster):
        return self.incarnations.get(cluster, 0)

    latest_incarnation_of = incarnation_of

    def append_marker(self, data, replicate_to, then=None):
        if self.refusing:
            return False
        append = self.log.stage([NewEntry(data, int(EntryFlags.MARKER), 0, self.now_ms)], self.now_ms)
        self.writing.append((append, then))
        return True

    def cursor(self, subscription):
        return self.cursors.get(subscription) or self.plain.get(subscription)

    def subscriptions(self):
        return sorted(self.cursors)

    def epoch(self, subscription):
        return None

    def learnt(self, subscription, at, writer, acked, base, *, made):
        """Only snapshot mode tells of what it reads."""

    def create(self, subscription):
        self.asked.append(("create", subscription))
        self.cursors[subscription] = Cursor.at(self.log, NONE)

    def apply(self, subscription, entries, partial):
        self.asked.append(("apply", subscription, sorted(entries), partial))
        self.take(subscription, entries, partial)

    def rebuild(self, subscription, acked, partial):
        self.asked.append(("rebuild", subscription, sorted(acked), partial))
        self.cursors[subscription] = Cursor(self.log)
        self.take(subscription, acked, partial)

    def take(self, subscription, entries, partial):
        self.cursors[subscription].ack(entries)
        for position, bits in partial.items():
            self.cursors[subscription].ack_indexes(position, ((1 << self.log.count_at(position)) - 1) & ~bits)

    def dirty(self, subscription):
        pass

    def timer(self, at_ms, then):
        self.timers.append((at_ms, then))

    def note(self, level, text):
        self.notes.append((level, text))

    # -- what happens

    def publish(self, count=1):
        return self.store(NewEntry(b"", 0, count, 1))

    def arrive(self, cluster, first, count=1, incarnation=3):
        return self.store(self.foreign(cluster, b"", 0, count, incarnation, first))

    def hear(self, marker, *, cluster=None):
        cluster = cluster or marker.writer
        return self.store(self.foreign(cluster, build_marker(marker, 1), int(EntryFlags.MARKER), 0, 3, -1))

    def foreign(self, cluster, data, flags, count, incarnation, first):
        self.sources[cluster] = self.sources.get(cluster, 0) + 1
        source = Position(incarnation, self.sources[cluster])
        return NewEntry(data, flags | EntryFlags.REPLICATED, count, 1, cluster, incarnation, first, source)

    def store(self, *entries):
        append = self.log.stage(list(entries), self.now_ms)
        assert not self.writing, "an append overtakes another"
        self.log.confirm(append, Location(0, 0))
        self.entries += append.entries
        self.machine.stored(append.entries)
        self.machine.validate()
        return append.entries[-1].position

    def sync(self, error=""):
        """The disk answers; the markers that it has now."""
        found = []
        writing, self.writing = self.writing, []
        for append, then in writing:
            if error:
                self.log.fail()
            else:
                self.log.confirm(append, Location(0, 0))
                self.entries += append.entries
                found.append(parse_marker(append.entries[0].data))
                self.machine.stored(append.entries)
            if then is not None:
                then(NONE if error else append.entries[0].position, error)
        self.machine.validate()
        return found

    def pass_time(self, ms=100):
        """Time goes by, the disk answers; the markers written."""
        self.now_ms += ms
        due = [then for at_ms, then in self.timers if at_ms <= self.now_ms]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_ms]
        for then in due:
            then(self.now_ms)
        return self.sync()

    def subscribe(self, name="s", position=NONE):
        self.cursors[name] = Cursor.at(self.log, position)
        self.machine.created(name)
        return self.sync()

    def ack(self, *positions, name="s"):
        self.cursors[name].ack(positions)
        self.machine.acknowledged(name, Acked(entries=positions))
        self.machine.validate()

    def persist(self):
        self.disk = {name: self.machine.encode(name) for name in {*self.cursors, *self.machine.topic.gone}}

    def trim(self):
        trim = self.log.trim(self.log.last, self.now_ms + 1, Retention(0, 0))
        self.log.forget(trim)
        self.entries = [entry for entry in self.entries if entry.position >= self.log.first]
        self.machine.trimmed()


def bits(cluster, *indexes, incarnation=None):
    found = MessageSet()
    key = OriginKey(cluster, incarnation or (INCARNATION if cluster == "a" else 3))
    for index in indexes:
        found.add_range(key, index, index + 1)
    return found


def union(*sets):
    found = MessageSet()
    for one in sets:
        found |= one
    return found


def told(name="s", acks=None, *, epoch=CREATION, full=False, base=None, floor=(), fence=None):
    return AckedSet(
        name, epoch, full, 1, 1, (acks or MessageSet()).origins, None if base is None else base.origins, floor, fence
    )


def marker(writer, *sets, low=(), own=(), next_index=100, incarnation=3):
    return AckedSetsMarker(writer, incarnation, next_index, tuple(low), tuple(own), sets)


FENCE = FenceToken(5, "b", "a", "final")
