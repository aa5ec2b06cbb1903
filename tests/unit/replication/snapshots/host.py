"""A topic in memory for the tests of one machine: what is written is stored at once, or when the test says so."""

from collections.abc import Callable, Collection, Mapping

from magnetar.core.ids import EARLIEST, NONE, OriginKey, Position
from magnetar.replication.marker_host import Acked, Messages
from magnetar.replication.snapshots import Snapshots
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.positions import PositionSet
from magnetar.storage.topiclog import EntryCache, LedgerIds, TopicLog
from magnetar.wire import markers
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.acksets import Epoch
from magnetar.wire.metadata import build

MARKER = int(EntryFlags.MARKER)
ANSWERED = Position(1, 5)


class Host:
    """`replication.marker_host.MarkerHost` of cluster `a`, linked both ways with the others."""

    def __init__(self, *others: str, start: bool = True, **settings: object) -> None:
        self.cluster = "a"
        names = ("a", *others)
        self.routes = frozenset((s, d) for s in names for d in names if s != d)
        self.now_ms = 1_000_000
        self.log = TopicLog("t", 7, LedgerIds(7), EntryCache(1 << 20))
        self.cursors: dict[str, Cursor] = {}
        self.replicated: set[str] = set()
        self.timers: list[tuple[int, Callable[[int], None]]] = []
        self.notes: list[str] = []
        self.written: list[tuple[object, tuple[str, ...]]] = []
        self.waiting: list[tuple[NewEntry, Callable[[Position, str], None] | None]] = []
        self.rebuilt: list[str] = []
        self.refusing = self.slow = False
        self.expired = NONE
        self.sources: dict[str, int] = {}
        self.known: list[tuple[OriginKey, int, int]] = []
        self.held_by_epoch: Epoch | None = None
        self.learned: list[tuple[str, str, dict[OriginKey, object], object]] = []
        self.ids = 0
        self.first_kept = 0
        self.machine = Snapshots(self, new_id=self.new_id, **settings)  # type: ignore[arg-type]
        self.entries: list[StoredEntry] = []
        if start:
            self.machine.started()

    def new_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    # -- what the machine asks

    def incarnation_of(self, cluster: str) -> int:
        return 1

    latest_incarnation_of = incarnation_of

    def append_marker(
        self, data: bytes, replicate_to: Collection[str], then: Callable[[Position, str], None] | None = None
    ) -> bool:
        if self.refusing:
            return False
        self.written.append((markers.parse_marker(data), tuple(replicate_to)))
        self.waiting.append((NewEntry(data, MARKER, 0, self.now_ms), then))
        return True

    def cursor(self, subscription: str) -> Cursor | None:
        return self.cursors.get(subscription)

    def subscriptions(self) -> list[str]:
        return sorted(self.replicated)

    def acknowledged(self, subscription: str) -> list[tuple[OriginKey, int, int]]:
        return self.known

    def epoch(self, subscription: str) -> Epoch | None:
        return self.held_by_epoch

    def learnt(
        self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None, *, made: bool
    ) -> None:
        self.learned.append((subscription, writer, dict(acked), base))

    def create(self, subscription: str) -> None:
        self.cursors[subscription] = Cursor.at(self.log, EARLIEST)
        self.replicated.add(subscription)

    def apply(self, subscription: str, entries: PositionSet, partial: Mapping[Position, int]) -> None:
        self.cursors[subscription].ack_set(entries)

    def rebuild(self, subscription: str, acked: PositionSet, partial: Mapping[Position, int]) -> None:
        self.rebuilt.append(subscription)
        self.cursors[subscription].replace(acked, partial, self.expired)

    def dirty(self, subscription: str) -> None: ...

    def timer(self, at_ms: int, then: Callable[[int], None]) -> None:
        self.timers.append((at_ms, then))

    def note(self, level: str, text: str) -> None:
        self.notes.append(text)

    # -- what the test does

    def run(self) -> None:
        """Store what was written, and what that makes the machine write."""
        while self.waiting:
            waiting, self.waiting = self.waiting, []
            append = self.log.stage([entry for entry, _ in waiting], self.now_ms)
            self.log.confirm(append, Location(0, 0))
            self.entries += append.entries
            self.machine.stored(append.entries)
            for (_, then), entry in zip(waiting, append.entries, strict=True):
                if then is not None:
                    then(entry.position, "")
            self.step()

    def step(self) -> None:
        for cursor in self.cursors.values():
            cursor.step_over_markers()
        self.machine.validate()

    def store(self, entry: NewEntry) -> Position:
        append = self.log.stage([entry], self.now_ms)
        self.log.confirm(append, Location(0, 0))
        self.entries += append.entries
        self.machine.stored(append.entries)
        self.step()
        self.run()
        return append.entries[0].position

    def publish(self, count: int = 1) -> Position:
        return self.store(NewEntry(message(), 0, count, self.now_ms))

    def arrives(self, origin: str, index: int, count: int = 1, incarnation: int = 1) -> Position:
        self.sources[origin] = self.sources.get(origin, -1) + 1
        source = Position(incarnation, self.sources[origin])
        return self.store(NewEntry(message(), 1, count, self.now_ms, origin, incarnation, index, source))

    def told(self, origin: str, marker: markers.Marker, to: Collection[str] = ()) -> Position:
        """A marker of another cluster arrives."""
        return self.raw(origin, markers.build_marker(marker, self.now_ms, list(to)))

    def raw(self, origin: str, data: bytes) -> Position:
        self.sources[origin] = self.sources.get(origin, -1) + 1
        return self.store(NewEntry(data, MARKER | 1, 0, self.now_ms, origin, 1, -1, Position(1, self.sources[origin])))

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        due = [timer for timer in self.timers if timer[0] <= self.now_ms]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_ms]
        for _, then in due:
            then(self.now_ms)
        self.run()

    def subscribe(self, name: str = "s", at: Position = EARLIEST) -> Cursor:
        cursor = self.cursors[name] = Cursor.at(self.log, at)
        self.replicated.add(name)
        self.machine.created(name)
        self.run()
        return cursor

    def ack(self, *positions: Position, name: str = "s") -> None:
        self.cursors[name].ack(positions)
        self.machine.acknowledged(name, Acked(entries=positions))
        self.run()

    def take(self, kind: type) -> list:
        """Markers of a kind that were written since; forgotten then."""
        found = [marker for marker, _ in self.written if isinstance(marker, kind)]
        self.written = [(marker, to) for marker, to in self.written if not isinstance(marker, kind)]
        return found

    def answer(self, cluster: str, position: Position = ANSWERED, *, round_: int | None = None) -> None:
        """A cluster answers the newest request."""
        request = [marker for marker, _ in self.written if isinstance(marker, markers.SnapshotRequest)][-1]
        number = request.round if round_ is None else round_
        self.told(cluster, markers.SnapshotResponse(request.snapshot_id, cluster, position, number), ["a"])


def message() -> bytes:
    return build(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"")
