"""A seeded world around the real machines of exact mode: 2 to 4 clusters, each with a real topic log and real cursors.

What is real: AckedSets, TopicLog, Cursor, the markers' bytes. What is the world's: disks that lose what was not synced,
links (exactly once, in order, which tests/support/linkworld.py establishes), clocks that are wrong, consumers, and the
world's own memory of who acknowledged what.

The rules that are checked are those of docs/design/acknowledged-sets.md; planted bugs (ackbugs.py) leave one out each.
The same seed makes the same world. A violation says what happened; the trace says how it came to it.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.acked_sets import AckedSets, MarkerPacer
from magnetar.replication.acked_sets.low_water import Routing
from magnetar.replication.acked_sets.marker_reader import Outcome
from magnetar.replication.acked_sets.message_set import MessageSet
from magnetar.replication.acked_sets.state import SubscriptionState, marks_of
from magnetar.replication.marker_host import Acked, Messages
from magnetar.storage.cursor import Cursor
from magnetar.storage.entries import Append, EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.ledger import Ledger
from magnetar.storage.positions import PositionSet
from magnetar.storage.topiclog import EntryCache, LedgerIds, RecoveredTopic, Retention, TopicLog
from magnetar.wire.acksets import AckedSet, AckedSetsMarker, Epoch, StateRequest
from magnetar.wire.markers import parse_marker

TOPIC = "persistent://public/default/t"
NOTHING_KEPT = Retention(0, 0)
START_MS = 100_000

Message = tuple[str, int, int]
"""(origin, incarnation, index): what the model calls an ident."""


class Violation(AssertionError):
    """A promise was broken."""


def ids(messages: MessageSet) -> set[Message]:
    """A set, message by message."""
    return {(key.cluster, key.incarnation, index) for key, bitmap in messages.origins.items() for index in bitmap}


def index_set(messages: Iterable[Message]) -> MessageSet:
    """The reverse of `ids`."""
    found = MessageSet()
    for cluster, incarnation, index in messages:
        found.add_range(OriginKey(cluster, incarnation), index, index + 1)
    return found


def unstated(floor: Mapping[str, tuple[int, int]], message: Message) -> bool:
    return message[0] not in floor or message[1:] < floor[message[0]]


def epoch_key(epoch: Epoch) -> Any:
    return epoch if epoch.kind else "creation"


def observe(machine: AckedSets, node: "Node") -> None:
    """Report what is read and merged to the world's memory, from around the two functions that do it."""
    parse, merge = machine.reader.parse, machine.reader.merge

    def observed_parse(entry: StoredEntry) -> AckedSetsMarker | StateRequest | None:
        node.reading = (entry.origin or node.cluster, entry.source if entry.origin else entry.position)
        return parse(entry)

    def observed_merge(marker: AckedSetsMarker, part: AckedSet) -> Outcome | None:
        state = machine.topic.states.get(part.subscription)
        before, consumed = (state.epoch, ids(state.consumed())) if state is not None else (part.epoch, set[Message]())
        outcome = merge(marker, part)
        if outcome is not None:
            node.world.merged(node, outcome.state, part, before, consumed)
        return outcome

    machine.reader.parse = observed_parse  # type: ignore[method-assign]
    machine.reader.merge = observed_merge  # type: ignore[method-assign]


@dataclass
class Disk:
    """What was persisted of one subscription."""

    cursor: bytes
    state: bytes
    mark_delete: Position
    covered: Position
    expired: Position
    made: set[int]


@dataclass
class Writing:
    """An append on its way to the disk."""

    append: Append
    then: Callable[[Position, str], None] | None
    marker: AckedSetsMarker | None = None


class Node:
    """One cluster's topic: a `replication.marker_host.MarkerHost` with a disk, consumers, and the machine."""

    def __init__(self, world: "World", cluster: str, incarnation: int) -> None:
        self.world, self.cluster = world, cluster
        self.ids = LedgerIds(incarnation)
        self.entries: list[StoredEntry] = []  # durable, trimmed ones included
        self.to: dict[Position, frozenset[str]] = {}
        self.where: dict[Message, tuple[Position, int]] = {}
        self.markers: dict[Position, AckedSetsMarker] = {}
        self.disk: dict[str, Disk] = {}
        self.incs: dict[str, int] = {}
        self.cursors: dict[str, Cursor] = {}
        self.expired: dict[str, Position] = {}
        self.delivered: dict[str, set[Message]] = {}  # what consumers may acknowledge
        self.since: dict[str, set[Message]] = {}  # what they were given since they were last disconnected, or should be
        self.known: dict[str, set[Message]] = {}
        self.made: dict[str, set[int]] = {}
        self.notes: list[str] = []
        self.reading: tuple[str, Position] = (
            "",
            NONE,
        )  # the marker that is being read: its writer, and where it stands there
        self.log = self.new_log(incarnation, RecoveredTopic(), fresh=True)
        self.boot()

    def new_log(self, incarnation: int, recovered: RecoveredTopic, *, fresh: bool) -> TopicLog:
        return TopicLog(
            TOPIC, incarnation, self.ids, EntryCache(0), ledger_entries_max=self.world.ledger_entries,
            recovered=recovered, fresh=fresh,
        )  # fmt: skip

    def boot(self) -> None:
        """A new machine, with what the disk has."""
        self.writing: list[Writing] = []
        self.timers: list[tuple[int, Callable[[int], None]]] = []
        self.refusing = False
        self.cursors = {name: Cursor.decode(self.log, disk.cursor) for name, disk in self.disk.items()}
        self.expired = {name: disk.expired for name, disk in self.disk.items()}
        self.made = {name: set(disk.made) for name, disk in self.disk.items()}
        self.delivered, self.since, self.known = {}, {}, {}
        self.machine = AckedSets(
            self, interval_ms=lambda: 0, pacer=MarkerPacer(0), marker_bytes_max=self.world.marker_bytes_max
        )
        observe(self.machine, self)
        covered = [self.machine.load(name, disk.state) for name, disk in sorted(self.disk.items())]
        self.world.replay(self, min(covered, default=NONE))
        self.machine.started()
        for name, state in self.machine.topic.states.items():
            self.known[name] = ids(state.acks)

    # -- asked by the machine (geo.host.MarkerHost)

    @property
    def now_ms(self) -> int:
        return max(1, self.world.now_ms + self.world.skew[self.cluster])

    @property
    def routes(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.world.at)

    def incarnation_of(self, cluster: str) -> int:
        return self.incs.get(cluster, 0)

    latest_incarnation_of = incarnation_of

    def append_marker(
        self, data: bytes, replicate_to: Collection[str], then: Callable[[Position, str], None] | None = None
    ) -> bool:
        if self.refusing:
            return False
        marker = parse_marker(data)
        assert isinstance(marker, AckedSetsMarker)
        entry = NewEntry(data, int(EntryFlags.MARKER), 0, self.now_ms)
        position = self.append([entry], then, marker)
        self.markers[position] = marker
        for one in marker.sets:
            self.world.made_of[self.cluster, position, one.subscription] = set(self.made.get(one.subscription, ()))
        self.world.say(f"{self.cluster} writes {position}: {show(marker)}")
        return True

    def cursor(self, subscription: str) -> Cursor | None:
        return self.cursors.get(subscription)

    def subscriptions(self) -> list[str]:
        return sorted(self.cursors)

    def acknowledged(self, subscription: str) -> tuple[()]:
        return ()

    def epoch(self, subscription: str) -> Epoch | None:
        return None

    def learnt(
        self, subscription: str, at: Position, writer: str, acked: Messages, base: Messages | None, *, made: bool
    ) -> None:
        """The other mode's machine is not there."""

    def create(self, subscription: str) -> None:
        assert subscription not in self.cursors
        self.cursors[subscription] = Cursor.at(self.log, NONE)

    def apply(self, subscription: str, entries: PositionSet, partial: Mapping[Position, int]) -> None:
        self.take(self.cursors[subscription], entries, partial)

    def take(self, cursor: Cursor, entries: PositionSet, partial: Mapping[Position, int]) -> None:
        entries.validate()
        for position in entries:
            assert self.log.valid(position), f"{self.cluster}: {position} is no entry"
            assert not self.log.flags_at(position) & EntryFlags.MARKER, (
                f"{self.cluster}: the marker {position} is named"
            )
        cursor.ack(entries)
        for position, bits in partial.items():
            full = (1 << self.log.count_at(position)) - 1
            assert 0 < bits < full, f"{self.cluster}: {bits:b} of {position} is no part of a batch"
            cursor.ack_indexes(position, full & ~bits)

    def rebuild(self, subscription: str, acked: PositionSet, partial: Mapping[Position, int]) -> None:
        cursor = self.cursors[subscription] = Cursor(self.log)
        self.take(cursor, acked, partial)
        cursor.ack_up_to(self.expired.get(subscription, NONE))
        self.since[subscription] = set()
        self.world.disconnect(self, subscription)

    def dirty(self, subscription: str) -> None:
        # What markers bring during the replay is made at its end.
        assert subscription in self.cursors or self.machine.topic.loading

    def timer(self, at_ms: int, then: Callable[[int], None]) -> None:
        self.timers.append((at_ms, then))

    def note(self, level: str, text: str) -> None:
        self.notes.append(text)

    # -- log and disk

    def append(
        self,
        entries: list[NewEntry],
        then: Callable[[Position, str], None] | None = None,
        marker: AckedSetsMarker | None = None,
    ) -> Position:
        append = self.log.stage(entries, self.now_ms)
        self.writing.append(Writing(append, then, marker))
        return append.entries[-1].position

    def sync(self) -> None:
        """The disk has everything."""
        while self.writing:
            one = self.writing.pop(0)
            self.log.confirm(one.append, Location(0, 0))
            self.durable(one.append.entries)
            self.machine.stored(one.append.entries)
            if one.then is not None:
                one.then(one.append.entries[-1].position, "")

    def durable(self, entries: Iterable[StoredEntry]) -> None:
        for entry in entries:
            self.entries.append(entry)
            origin, incarnation = (
                (entry.origin, entry.incarnation) if entry.origin else (self.cluster, self.log.incarnation)
            )
            for number in range(entry.count):
                self.where[origin, incarnation, entry.first_index + number] = (entry.position, number)

    def fail(self) -> None:
        """The disk failed: nothing in flight is stored; then it is well again."""
        failed, self.writing = self.writing, []
        self.refusing = True
        for _ in failed:
            self.log.fail()
        for one in failed:
            if one.then is not None:
                one.then(NONE, "disk failed")
        self.refusing = False
        self.machine.healed()

    def tick(self) -> bool:
        """Timers that are due."""
        due = [then for at_ms, then in self.timers if at_ms <= self.now_ms]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_ms]
        for then in due:
            then(self.now_ms)
        return bool(due)

    def crash(self) -> None:
        """What was on its way may have reached the disk."""
        for one in self.writing[: self.world.rng.randint(0, len(self.writing))]:
            self.durable(one.append.entries)
        recovered = RecoveredTopic(next_index=self.log.next_index, watermarks=self.log.watermarks())
        first = self.log.first
        for entry in self.entries:
            if entry.position < first:
                continue
            ledger = recovered.ledgers.get(entry.ledger)
            if ledger is None:
                ledger = recovered.ledgers[entry.ledger] = Ledger(entry.ledger, 0)
            marker = bool(entry.flags & EntryFlags.MARKER)
            ledger.add(0, len(entry.data), entry.flags, entry.count, 0, entry.broker_time, marker=marker)
            if entry.origin:
                recovered.watermarks[entry.origin] = max(entry.source, recovered.watermarks.get(entry.origin, NONE))
            if not marker:
                key = OriginKey(entry.origin, entry.incarnation if entry.origin else self.log.incarnation)
                ledger.begin_run(entry.entry, key, entry.first_index)
                if not entry.origin:
                    recovered.next_index = max(recovered.next_index, entry.first_index + entry.count)
        self.log = self.new_log(self.log.incarnation, recovered, fresh=False)
        self.boot()

    def persist(self) -> None:
        self.disk = {
            name: Disk(
                cursor.encode(), self.machine.encode(name), cursor.mark_delete, self.machine.covered(name),
                self.expired.get(name, NONE), set(self.made.get(name, ())),
            )
            for name, cursor in self.cursors.items()
        }  # fmt: skip

    # -- what there is

    @property
    def first(self) -> int:
        """How many entries are trimmed."""
        first = self.log.first
        return next((number for number, entry in enumerate(self.entries) if entry.position >= first), len(self.entries))

    def held(self) -> dict[Message, tuple[Position, int]]:
        first = self.log.first
        return {message: at for message, at in self.where.items() if at[0] >= first}

    def is_acked(self, subscription: str, at: tuple[Position, int]) -> bool:
        cursor = self.cursors[subscription]
        if cursor.is_acked(at[0]):
            return True
        partial = cursor.partial.get(at[0])
        return partial is not None and not partial.bits >> at[1] & 1


def show(marker: AckedSetsMarker) -> str:
    return ", ".join(
        f"{one.subscription} {'full' if one.full else 'delta'} {one.part}/{one.parts} {one.epoch} acks {MessageSet(one.acks)}"
        + ("" if one.base is None else f" base {MessageSet(one.base)} floor {[tuple(mark) for mark in one.floor]}")
        for one in marker.sets
    )


def topology(rng: random.Random, names: list[str]) -> tuple[str, set[tuple[str, str]]]:
    """Set of (source, destination) links."""
    kind = rng.choice(("mesh", "mesh", "mesh", "oneway", "star", "fan_out", "fan_in", "chain", "chain2", "random"))
    if kind == "oneway":
        return kind, {(s, d) for i, s in enumerate(names) for d in names[i + 1 :]}
    if kind in ("star", "fan_out", "fan_in"):
        hub = rng.choice(names)
        out, back = {(hub, x) for x in names if x != hub}, {(x, hub) for x in names if x != hub}
        return kind, {"star": out | back, "fan_out": out, "fan_in": back}[kind]
    if kind in ("chain", "chain2"):
        line = rng.sample(names, len(names))
        forth = set(pairwise(line))
        return kind, forth if kind == "chain" else forth | {(d, s) for s, d in forth}
    every = {(s, d) for s in names for d in names if s != d}
    return kind, every if kind == "mesh" else {p for p in sorted(every) if rng.random() < 0.6}


@dataclass
class Memory:
    """What the world knows of one subscription.

    Attributes:
        must: epoch -> cluster -> acknowledgements it must know in the end.
        may: epoch -> acknowledgements that may be known.
        created: (base, origins it states something about) of each creation.
    """

    must: dict[Any, dict[str, set[Message]]] = field(default_factory=dict)
    may: dict[Any, set[Message]] = field(default_factory=dict)
    created: list[tuple[set[Message], set[str]]] = field(default_factory=list)


Topology = tuple[list[str], str, set[tuple[str, str]]]
"""Clusters, a kind, and who has a link to whom."""


def by_chance(rng: random.Random, names: list[str]) -> Topology:
    """Any topology of these clusters."""
    return names, *topology(rng, names)


def subscribed_in_a(world: "World") -> None:
    """One subscription, in one cluster."""
    world.subscribe("a")


@dataclass(frozen=True, slots=True)
class Options:
    """What chance does not decide of a world.

    Attributes:
        boost: actions that are done more (or less) often than in other worlds.
        restricted: share of messages with `replicate_to`.
        right_clocks: share of clusters whose clock is right.
        ledger_sizes: entries of a ledger, one of these.
        links: makes the topology.
        begin: what is done first.
    """

    boost: Mapping[str, float] = field(default_factory=dict)
    restricted: float = 0.2
    right_clocks: float = 2 / 3
    ledger_sizes: tuple[int, ...] = (1, 1, 2, 3)
    links: Callable[[random.Random, list[str]], Topology] = by_chance
    begin: Callable[["World"], None] = subscribed_in_a


BY_CHANCE = Options()


class World:
    """Some clusters, one topic, one or two subscriptions.

    Args:
        rng: the only source of chance.
        trace: what happened, if wanted.
        options: what chance does not decide.
    """

    def __init__(self, rng: random.Random, trace: list[str] | None = None, options: Options = BY_CHANCE) -> None:
        self.rng, self.trace, self.options = rng, trace, options
        self.names, self.kind, links = options.links(rng, ["a", "b", "c", "d"][: rng.randint(2, 4)])
        self.at = dict.fromkeys(sorted(links), 0)
        self.route = {name: Routing(name, links) for name in self.names}
        self.src = {name: set(self.route[name].sources.get(name, {name})) for name in self.names}
        self.out = {name: {d for s, d in links if s == name} for name in self.names}
        self.ledger_entries = rng.choice(options.ledger_sizes)
        self.marker_bytes_max = rng.choice((1 << 20, 1 << 20, 0))
        self.slow_disk = rng.random() < 0.3
        self.skew = {name: 0 if rng.random() < options.right_clocks else rng.randint(-400, 400) for name in self.names}
        self.now_ms = START_MS
        self.stalled: set[tuple[str, str]] = set()
        self.subscriptions = ["s", "t"] if rng.random() < 0.15 else ["s"]
        self.memory = {name: Memory() for name in self.subscriptions}
        self.made_of: dict[tuple[str, Position, str], set[int]] = {}
        self.touched: set[str] = set(self.names)
        self.nodes = {name: Node(self, name, 1 + number) for number, name in enumerate(self.names)}
        self.next_incarnation = 10
        self.say(f"{self.kind}: {' '.join(s + '>' + d for s, d in self.at)}, clocks {self.skew}")
        options.begin(self)

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(text)

    def owe(self, subscription: str, epoch: Epoch, node: Node, messages: set[Message]) -> None:
        """A cluster acknowledged: all that hear it must learn it."""
        memory, key = self.memory[subscription], epoch_key(epoch)
        memory.may.setdefault(key, set()).update(messages)
        for name in self.names:
            if node.cluster in self.src[name]:
                memory.must.setdefault(key, {}).setdefault(name, set()).update(messages)

    # ------------------------------------------------------------------------------------------- seams for planted bugs

    def replay(self, node: Node, covered: Position) -> None:
        node.machine.stored([
            entry for entry in node.entries if entry.position > covered and entry.flags & EntryFlags.MARKER
            and entry.position >= node.log.first
        ])  # fmt: skip

    def disconnect(self, node: Node, subscription: str) -> None:
        node.delivered[subscription] = set()

    def handshake(self, source: Node, destination: Node) -> None:
        """The link reports what its source knows: no subscription is needed for it."""
        destination.machine.learn_own(source.machine.own_marks())

    def expire_one(self, node: Node, subscription: str, position: Position) -> None:
        node.expired[subscription] = max(position, node.expired.get(subscription, NONE))
        node.cursors[subscription].ack_up_to(position)

    def new_incarnation(self, _old: Node) -> int:
        return self.now_ms + self.next_incarnation

    def rebase(self, node: Node, peer: str) -> None:
        node.machine.rebased(peer)

    # ------------------------------------------------------------------------------------------------------ observing

    def merged(
        self, node: Node, state: SubscriptionState, part: AckedSet, before: Epoch, consumed: set[Message]
    ) -> None:
        subscription = part.subscription
        if part.epoch.kind == 0 and state.epoch.kind == 0 and part.full:
            writer, position = node.reading
            node.made.setdefault(subscription, set()).update(self.made_of.get((writer, position, subscription), ()))
        if state.epoch != before:
            node.known[subscription] = set()
            if part.base is not None and state.epoch.kind:
                floor = marks_of(part.floor)
                # What the seeking cluster could not know stays consumed, here and wherever this cluster is heard.
                self.owe(subscription, state.epoch, node, {m for m in consumed if unstated(floor, m)})
        node.known.setdefault(subscription, set()).update(ids(state.acks))

    def skipped(self, node: Node, subscription: str, message: Message) -> bool:
        """Every creation that was heard of, and that states anything about it, starts past it."""
        if node.machine.topic.states[subscription].epoch.kind:
            return False
        created = self.memory[subscription].created
        says = [
            message in base
            for base, scope in (created[number] for number in node.made.get(subscription, ()))
            if message[0] in scope
        ]
        return bool(says) and all(says)

    # ------------------------------------------------------------------------------------------------------ log and links

    def pick(self) -> Node:
        node = self.nodes[self.rng.choice(self.names)]
        self.touched.add(node.cluster)
        return node

    def pick_subscribed(self) -> tuple[Node, str] | None:
        ready = [(name, sub) for name in self.names for sub in self.subscriptions if sub in self.nodes[name].cursors]
        if not ready:
            return None
        name, subscription = self.rng.choice(ready)
        self.touched.add(name)
        return self.nodes[name], subscription

    def publish(self) -> None:
        node = self.pick()
        entries, count = [], 0
        to = (
            frozenset(n for n in self.names if self.rng.random() < 0.6)
            if self.rng.random() < self.options.restricted
            else None
        )
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            count = self.rng.choice((1, 1, 3))
            flags = (EntryFlags.BATCH if count > 1 else 0) | (EntryFlags.RESTRICTED if to is not None else 0)
            entries.append(NewEntry(b"", int(flags), count, self.now_ms))
        position = node.append(entries)
        index = node.writing[-1].append.entries[0].first_index
        for entry in node.writing[-1].append.entries:
            if to is not None:
                node.to[entry.position] = to
            for number in range(entry.count):
                self.check_new((node.cluster, node.log.incarnation, entry.first_index + number))
        self.say(
            f"{node.cluster} publishes {node.cluster}.{node.log.incarnation}:{index}.. at {position} to {to or 'all'}"
        )

    def check_new(self, message: Message) -> None:
        for node in self.nodes.values():
            for subscription, state in node.machine.topic.states.items():
                if (OriginKey(*message[:2]), message[2]) in state.consumed():
                    raise Violation(
                        f"new message {message} is already acknowledged for {subscription} in {node.cluster}"
                    )

    def link(self, pair: tuple[str, str] | None = None) -> bool:
        ready = [p for p in self.at if self.at[p] < len(self.nodes[p[0]].entries) and p not in self.stalled]
        if not ready:
            return False
        pair = pair or self.rng.choice(ready)
        source, destination = self.nodes[pair[0]], self.nodes[pair[1]]
        self.touched.add(pair[1])
        self.handshake(source, destination)
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            if self.at[pair] >= len(source.entries):
                break
            entry = source.entries[self.at[pair]]
            self.at[pair] += 1
            self.carry(source, destination, entry)
        destination.sync()
        return True

    def carry(self, source: Node, destination: Node, entry: StoredEntry) -> None:
        if entry.origin or destination.cluster not in source.to.get(entry.position, {destination.cluster}):
            return
        self.say(f"{source.cluster} -> {destination.cluster}: {entry.position} index {entry.first_index}")
        copy = NewEntry(
            entry.data, entry.flags | EntryFlags.REPLICATED, entry.count, entry.publish_time, source.cluster,
            source.log.incarnation, entry.first_index, entry.position,
        )  # fmt: skip
        destination.append([copy])

    def tick(self) -> None:
        self.pick().tick()

    def sync(self) -> None:
        self.pick().sync()

    def fail(self) -> None:
        node = self.pick()
        if node.writing:
            self.say(f"{node.cluster}: the disk fails")
            node.fail()

    # ------------------------------------------------------------------------------------------------------ subscriptions

    def subscribe(self, name: str | None = None) -> None:
        node = self.nodes[name] if name else self.pick()
        for subscription in self.subscriptions:
            if subscription in node.cursors or (name is None and self.rng.random() < 0.3):
                continue
            latest = self.rng.random() < 0.5
            cursor = Cursor.at(node.log, node.log.last if latest else NONE)
            if latest:
                cursor.ack_up_to(node.log.last)
            node.cursors[subscription] = cursor
            base = set(node.held()) if latest else set()
            memory = self.memory[subscription]
            node.made[subscription] = {len(memory.created)}
            memory.created.append((base, self.src[node.cluster]))
            self.say(f"{node.cluster} creates {subscription} {'latest' if latest else 'earliest'}")
            node.machine.created(subscription)
            self.after_creation(node, subscription, base)

    def after_creation(self, node: Node, subscription: str, base: set[Message]) -> None:
        node.known.setdefault(subscription, set())

    def consume(self) -> None:
        found = self.pick_subscribed()
        if found is None:
            return
        node, subscription = found
        held = node.held()
        delivered = node.delivered.setdefault(subscription, set())
        todo = sorted((m for m, at in held.items() if not node.is_acked(subscription, at)), key=held.__getitem__)
        given = set(todo[: self.rng.randint(1, 6)])
        delivered |= given
        node.since.setdefault(subscription, set()).update(given)
        can = sorted(
            (m for m in delivered if m in held and not node.is_acked(subscription, held[m])), key=held.__getitem__
        )
        if not can or self.rng.random() < 0.3:
            return
        state = node.machine.topic.states[subscription]
        before = ids(state.consumed())
        if self.rng.random() < 0.5:
            acked = self.cumulative(node, subscription, held[can[-1]])
        else:
            acked = self.individual(node, subscription, held, self.rng.sample(can, self.rng.randint(1, len(can))))
        node.machine.acknowledged(subscription, acked)
        new = ids(state.consumed()) - before
        node.known.setdefault(subscription, set()).update(new)
        self.owe(subscription, state.epoch, node, new & node.since[subscription])
        self.say(f"{node.cluster} acknowledges {subscription}: {index_set(new)}")

    def cumulative(self, node: Node, subscription: str, at: tuple[Position, int]) -> Acked:
        """Everything held up to the last delivered one, as a broker does it."""
        cursor, (position, number) = node.cursors[subscription], at
        after, size = cursor.mark_delete, node.log.count_at(position)
        if number == size - 1:
            cursor.ack_up_to(position)
            return Acked(after, position)
        bits = (1 << (number + 1)) - 1
        cursor.ack_up_to(position, ((1 << size) - 1) & ~bits)
        return Acked(after, node.log.position_before(position), (), {position: bits})

    def individual(
        self, node: Node, subscription: str, held: dict[Message, tuple[Position, int]], messages: list[Message]
    ) -> Acked:
        """One by one, batch indexes included."""
        cursor, bits = node.cursors[subscription], dict[Position, int]()
        for message in messages:
            position, number = held[message]
            bits[position] = bits.get(position, 0) | 1 << number
        full = {position: (1 << node.log.count_at(position)) - 1 for position in bits}
        whole = [position for position in bits if bits[position] == full[position]]
        partial = {position: some for position, some in bits.items() if some != full[position]}
        cursor.ack(whole)
        for position, some in partial.items():
            cursor.ack_indexes(position, full[position] & ~some)
        return Acked(NONE, NONE, whole, partial)

    def seek(self) -> None:
        found = self.pick_subscribed()
        if found is None:
            return
        node, subscription = found
        state, held, cursor = node.machine.topic.states[subscription], node.held(), node.cursors[subscription]
        old, old_known = ids(state.consumed()), set(node.known.get(subscription, ()))
        retained = [entry for entry in node.entries if entry.position >= node.log.first]
        number = self.rng.randint(0, len(retained))
        if number == len(retained):
            cursor.reset(Position(2**63 - 1, 2**63 - 1))
        else:
            entry = retained[number]
            bits = ((1 << entry.count) - 2) if entry.count > 1 and self.rng.random() < 0.3 else 0
            cursor.reset(entry.position, bits)
        before = {message for message, at in held.items() if node.is_acked(subscription, at)}
        node.expired.pop(subscription, None)
        node.since[subscription] = set()
        self.disconnect(node, subscription)
        node.machine.sought(subscription, lambda _error: None)
        memory = self.memory[subscription]
        true = (old | old_known) - set(held) | before
        memory.may[epoch_key(state.epoch)] = set(true)
        memory.must[epoch_key(state.epoch)] = {}
        self.owe(subscription, state.epoch, node, {m for m in true if not unstated(state.floor, m)})
        node.known[subscription] = set()
        self.say(f"{node.cluster} seeks {subscription} to {cursor.mark_delete}: {state.epoch}")

    def expire(self) -> None:
        found = self.pick_subscribed()
        if found is None:
            return
        node, subscription = found
        held = node.held()
        todo = sorted(at[0] for at in held.values() if not node.is_acked(subscription, at))
        if todo:
            self.say(f"{node.cluster} expires {subscription} up to {todo[:2][-1]}")
            self.expire_one(node, subscription, todo[:2][-1])

    # ------------------------------------------------------------------------------------------------------------ faults

    def persist(self) -> None:
        node = self.pick()
        node.persist()
        self.say(f"{node.cluster} persists")

    def crash(self) -> None:
        node = self.pick()
        before = {
            name: (state.epoch, ids(state.acks), self.unwritten(node, name, state))
            for name, state in node.machine.topic.states.items()
        }
        self.say(f"{node.cluster} restarts")
        node.crash()
        for name, (epoch, acks, unwritten) in before.items():
            state = node.machine.topic.states.get(name)
            kept = ids(state.consumed()) if state is not None and state.epoch == epoch else set()
            for owed in self.memory[name].must.get(epoch_key(epoch), {}).values():
                owed.difference_update((acks & unwritten) - kept)  # the last interval, neither persisted nor written

    @staticmethod
    def unwritten(node: Node, name: str, state: SubscriptionState) -> set[Message]:
        found = ids(state.dirty)
        for one in node.writing:
            for part in one.marker.sets if one.marker is not None else ():
                if part.subscription == name:
                    found |= ids(MessageSet(part.acks))
        return found

    def trim(self) -> None:
        node = self.pick()
        limits = [self.before(node, self.at[node.cluster, d]) for d in self.out[node.cluster]]
        for name, cursor in node.cursors.items():
            disk = node.disk.get(name)
            if disk is None:
                return
            limits += [cursor.mark_delete, disk.mark_delete, disk.covered]
        keep_after = min(limits, default=node.log.last)
        trim = node.log.trim(keep_after, node.now_ms + 1, NOTHING_KEPT)
        if trim is not None:
            node.log.forget(trim)
            node.machine.trimmed()
            self.say(f"{node.cluster} trims to {node.log.first}")

    @staticmethod
    def before(node: Node, number: int) -> Position:
        return node.entries[number - 1].position if number else NONE

    def recreate(self) -> None:
        """The topic is deleted and created again, or the disk is lost (and the clock's memory with it): links are rebased."""
        name = self.rng.choice(self.names)
        old = self.nodes[name]
        self.next_incarnation += 1
        incarnation = self.new_incarnation(old)
        node = self.nodes[name] = Node(self, name, incarnation)
        self.touched |= set(self.names)
        self.say(f"{name}: topic re-created as {incarnation}")
        for subscription, memory in self.memory.items():
            for key, owed in memory.must.items():  # what only the lost log knew may come again
                known = {other: self.published_by(self.nodes[other], subscription, key) for other in self.names}
                for other in owed:
                    owed[other] &= set().union(*(known[source] for source in self.src[other]))
        for source, destination in self.at:
            if name in (source, destination):
                self.at[source, destination] = self.nodes[source].first
                other = self.nodes[destination if source == name else source]
                other.incs[name] = incarnation
                node.incs[other.cluster] = other.log.incarnation
                self.rebase(other, name)

    def published_by(self, node: Node, subscription: str, key: Any) -> set[Message]:
        """What a cluster knows in an epoch, or has published in what it retains."""
        found: set[Message] = set()
        for entry in node.entries:
            marker = node.markers.get(entry.position)
            if marker is None or entry.origin or entry.position < node.log.first:
                continue
            for one in marker.sets:
                if one.subscription == subscription and epoch_key(one.epoch) == key:
                    found |= ids(MessageSet(one.acks)) | (ids(MessageSet(one.base or {})) if one.epoch.kind else set())
        state = node.machine.topic.states.get(subscription)
        if state is not None and epoch_key(state.epoch) == key:
            found |= ids(state.consumed()) if state.epoch.kind else ids(state.acks)
        return found

    def stall(self) -> None:
        if self.at:
            self.stalled ^= {self.rng.choice(list(self.at))}

    # ------------------------------------------------------------------------------------------------------------ checks

    def check(self) -> None:
        for name in self.touched:
            node = self.nodes[name]
            if not self.slow_disk:
                node.sync()
            node.machine.validate()
            held = node.held().keys()
            for subscription, state in node.machine.topic.states.items():
                memory = self.memory[subscription]
                wrong = (ids(state.consumed()) & held) - memory.may.get(epoch_key(state.epoch), set())
                wrong = {message for message in wrong if not self.skipped(node, subscription, message)}
                if wrong:
                    raise Violation(
                        f"{name} invents acknowledgements {sorted(wrong)} of {subscription} in {state.epoch}"
                    )
        self.touched.clear()

    def run(self, steps: int) -> None:
        rng = self.rng
        seek, again = rng.choice((0, 0, 0.3)), rng.choice((0, 0, 0.3))
        expire, stall = rng.choice((0, 0.3)), rng.choice((0, 1, 2))
        weights = {
            "publish": 3.0, "link": 10.0, "consume": 4.0, "tick": 2.0, "persist": 1.0, "crash": 0.7, "trim": 2.0, "seek": seek,
            "recreate": again, "subscribe": 0.4, "expire": expire, "stall": stall, "sync": 2.0 * self.slow_disk,
            "fail": 0.5 * self.slow_disk,
        }  # fmt: skip
        for name, more in self.options.boost.items():
            weights[name] = more if not weights[name] and more > 1 else weights[name] * more
        functions: list[Callable[[], object]] = [getattr(self, name) for name in weights]
        chances = list(weights.values())
        for _ in range(steps * 2):
            self.now_ms += 1
            rng.choices(functions, chances)[0]()
            self.check()
        self.settle()

    def drain(self) -> int:
        busy = 0
        while self.link():
            busy += 1
            self.check()
        return busy

    def settle(self) -> None:
        """Nothing is published or acknowledged any more, and everything works: all must come to agree, and fall silent."""
        self.stalled = set()
        for _ in range(50):
            self.now_ms += 1
            busy = 0
            for node in self.nodes.values():
                node.sync()
                self.touched.add(node.cluster)
                busy += node.tick()
                node.sync()
            busy += self.drain()
            if not busy:
                break
        else:
            raise Violation("markers never stop")
        for name in self.names:
            for subscription in self.subscriptions:
                self.check_settled(self.nodes[name], subscription)
        self.check_forgotten()

    def check_settled(self, node: Node, subscription: str) -> None:
        name, state = node.cluster, node.machine.topic.states.get(subscription)
        sources = [self.nodes[x] for x in sorted(self.src[name]) if subscription in self.nodes[x].machine.topic.states]
        if state is None:
            if sources:
                raise Violation(f"{name} lacks {subscription}")
            return
        epochs = {x.cluster: x.machine.topic.states[subscription].epoch for x in sources}
        if state.epoch != max(epochs.values()):
            raise Violation(f"epochs differ: {epochs}")
        held, have = node.held(), ids(state.consumed())
        lost = (self.memory[subscription].must.get(epoch_key(state.epoch), {}).get(name, set()) & held.keys()) - have
        if lost:
            raise Violation(f"{name} never learns {sorted(lost)} of {subscription} in {state.epoch}")
        again = {m for m in held.keys() - have if self.skipped(node, subscription, m)}
        if again:
            raise Violation(f"{name} delivers {sorted(again)} of {subscription}, which all creations had skipped")
        for other in sources:
            theirs = ids(other.machine.topic.states[subscription].consumed())
            differ = (have ^ theirs) & held.keys() & other.held().keys()
            if name in self.src[other.cluster] and differ and self.must_agree():
                raise Violation(f"{name} and {other.cluster} differ about {subscription}: {sorted(differ)}")
        for message, at in held.items():
            if node.is_acked(subscription, at) != (message in have or at[0] <= node.expired.get(subscription, NONE)):
                raise Violation(
                    f"{name}: {message} is {message in have} in the set of {subscription}, not on the cursor"
                )

    def must_agree(self) -> bool:
        return True

    def check_forgotten(self) -> None:
        """After all clusters wrote as often as a low-water mark may be relayed: no bit that no cluster can need."""
        for _ in self.names:
            for source, destination in self.at:
                self.handshake(self.nodes[source], self.nodes[destination])
            for node in self.nodes.values():
                for state in node.machine.topic.states.values():
                    state.full = "test"
                node.machine.writer.write(list(node.machine.topic.states))
                node.sync()
            self.drain()
        for _ in range(50):
            self.now_ms += 1
            if not sum([node.tick() for node in self.nodes.values()]) + sum(
                map(bool, [n.writing for n in self.nodes.values()])
            ):
                break
            for node in self.nodes.values():
                node.sync()
            self.drain()
        for name, node in self.nodes.items():
            node.machine.topic.tidy()
            lows = [self.nodes[x].machine.topic.low_marks() for x in self.src[name]]
            for subscription, state in node.machine.topic.states.items():
                extra = {
                    m for m in ids(state.consumed()) if all(m[1:] < low[m[0]] for low in lows if m[0] in low)
                }  # fmt: skip
                if extra and self.must_forget():
                    raise Violation(f"{name} keeps bits of {subscription} that no cluster can need: {sorted(extra)}")

    def must_forget(self) -> bool:
        return True
