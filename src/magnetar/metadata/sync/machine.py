"""One cluster's part in keeping metadata the same: local changes and events in, updates of the store out. No clock, no I/O.

    local change   local(...)  -> Update, stored in the transaction of the change itself -> commit -> changes(...) is published
    event          read(...) into a Batch -> merge(batch) -> Update -> stored -> commit; nothing is published
    time           release(...) -> Update of what was ahead of the clock and is not any more
    snapshot       snapshot(...) -> events with every record; listed(...) when they are durable
    collect        deletions that every cluster has confirmed are buried

An `Update` holds the new records and the documents that follow from them; stamp and value are stored in one transaction, or
not at all. Between making an update and committing it the host keeps others away from its keys (`Resources.begin`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from magnetar.core.errors import StorageError
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.sync import events
from magnetar.metadata.sync.documents import Kind, kind_of, parent_of, to_document, to_fields
from magnetar.metadata.sync.events import Event, Header
from magnetar.metadata.sync.patterns import Exclusions
from magnetar.metadata.sync.projecting import Projector, Surroundings, there
from magnetar.metadata.sync.records import (
    DIGEST_MODULUS,
    EMPTY,
    Cell,
    Malformed,
    Record,
    covers,
    fingerprint,
    from_wire,
    merged,
    pruned,
    split,
    to_wire,
)
from magnetar.metadata.sync.stamps import FILE_US, FOUND_US, US_PER_MS, HybridClock, Stamp

RECORD_PREFIX: Final = "metasync/record/"
"""Where records are stored, beside the documents that they stand for."""

AHEAD_PREFIX: Final = "metasync/ahead/"
"""Where what is ahead of the clock waits, as records."""

BURIED_MAX: Final = 100_000
"""Deletions that are remembered after every cluster has confirmed them, so that what comes back from an old backup is known to
be dead; beyond it the oldest are forgotten. Some 20 MB."""

PEERS_MAX: Final = 64
"""A ceiling, as for clusters of one file."""


@dataclass(slots=True)
class Update:
    """What has to be stored, all or nothing, and what is true then.

    Attributes:
        records: new states, by path.
        ahead: new states of what waits for the clock; EMPTY: nothing of it waits any more.
        puts, deletes: documents of `Resources`.
        due: partitioned topics that have to be made or grown (`topic`).
        told: paths to be published: the local changes.
        buried: deletions that nobody can contradict any more.
        forgotten: buried ones that are too many.
        heard: headers of the events in it.
        listings: what snapshots of others listed, as (cluster, path, record).
        wanted: paths of which somebody waits for this cluster's word.
        projected: paths whose document is there afterwards because of a local change.
    """

    records: dict[str, Record] = field(default_factory=dict)
    ahead: dict[str, Record] = field(default_factory=dict)
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    due: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    buried: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    heard: list[Header] = field(default_factory=list)
    listings: list[tuple[str, str, Record]] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    projected: set[str] = field(default_factory=set)

    @property
    def empty(self) -> bool:
        """Whether nothing has to be stored."""
        return not (self.records or self.ahead or self.puts or self.deletes or self.buried or self.forgotten)


@dataclass(slots=True)
class Batch:
    """Events that were read and are applied together."""

    records: dict[str, Record] = field(default_factory=dict)
    heard: list[Header] = field(default_factory=list)
    listings: list[tuple[str, str, Record]] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Peer:
    """What another cluster said of itself last."""

    header: Header
    heard_ms: int
    changed_ms: int = 0


class Snapshot(NamedTuple):
    """A snapshot to be published; `listed` is told when all of it is durable.

    Attributes:
        messages: events, in order.
        records: what they list.
    """

    messages: list[bytes]
    records: dict[str, Record]


class Change(NamedTuple):
    """One field of a preview.

    Attributes:
        field: its name; "" for the document itself.
        now, then: JSON, or None.
        set_by: the cluster that set what is there now.
        set_ms: when.
        local: it stays as it is: local here.
    """

    field: str
    now: Any
    then: Any
    set_by: str = ""
    set_ms: int = 0
    local: bool = False


class Synchroniser:
    """The state of one cluster.

    Args:
        cluster: its name.
        around: what it asks of the cluster.
        ahead_ms_max: how far an event may be ahead of the wall clock before it has to wait (`metadata_clock_ahead_ms`).
        exclude: patterns of what stays local.
    """

    def __init__(self, cluster: str, around: Surroundings, *, ahead_ms_max: int, exclude: Iterable[str] = ()) -> None:
        self.cluster = cluster
        self._around = around
        self._ahead_us = ahead_ms_max * US_PER_MS
        self.exclusions = Exclusions(exclude)
        self.projector = Projector(around, self.exclusions)
        self.clock = HybridClock()
        self.records: dict[str, Record] = {}
        self.ahead: dict[str, Record] = {}
        self.buried: dict[str, None] = {}
        self.peers: dict[str, Peer] = {}
        self.due: set[str] = set()
        self.digest = 0
        self.count = 0
        self._dead: set[str] = set()
        self._listed: set[str] = set()
        self._confirmed: dict[str, set[str]] = {}

    # --------------------------------------------------------------------------------------------------------- starting

    def load(self, stored: Mapping[str, bytes]) -> None:
        """Take what is stored.

        Raises:
            StorageError: it is damaged; names the key.
        """
        for key, data in stored.items():
            prefix = RECORD_PREFIX if key.startswith(RECORD_PREFIX) else AHEAD_PREFIX
            if not key.startswith(prefix):
                continue
            path = key.removeprefix(prefix)
            try:
                told = msgspec.json.decode(data)
                record = from_wire(told)
            except (msgspec.DecodeError, Malformed) as error:
                raise StorageError(f"the stored value of {key} is damaged: {error}") from error
            if prefix == AHEAD_PREFIX:
                self.ahead[path] = record
                continue
            self._set(path, record)
            if told.get("p"):
                self.projector.projected.add(path)
            if told.get("b"):
                self.buried[path] = None
            for stamp in record.stamps():
                self.clock.see(stamp)

    def adopt(self, documents: Mapping[str, bytes], from_file: frozenset[str], now_ms: int) -> Update:
        """At every start: what the cluster has, beside what the records say.

        Args:
            documents: everything of the kinds that are synchronised.
            from_file: paths that were made from the configuration file just now.
            now_ms: wall clock.

        What has no record gets one whose time is before everything that anybody sets. What was changed or deleted while
        synchronisation was off gets a new time: somebody did it.
        """
        fresh: dict[str, Record] = {}
        changed: dict[str, bytes | None] = {}
        for path, data in documents.items():
            kind = kind_of(path)
            if kind is None or self.exclusions.path(path):
                continue
            record = self.records.get(path)
            if record is None:
                stamp = Stamp(FILE_US if path in from_file else FOUND_US, self.cluster)
                fresh[path] = self._made(kind, path, stamp, to_fields(kind, kind.read(data)), EMPTY)
            elif there(path, record) or path not in self.projector.projected:
                changed[path] = data
        for path in self.projector.projected - documents.keys():
            if there(path, self.records.get(path)):
                changed[path] = None
        update = self._local(changed, now_ms)
        update.records = fresh | update.records
        update.projected |= set(fresh)
        return self._projected(update, [*self.records, *fresh], skip=set())

    # ---------------------------------------------------------------------------------------------------- local changes

    def check_clock(self, now_ms: int) -> None:
        """Refuse a local change that others would have to let wait, because this cluster's clock is wrong.

        Raises:
            PreconditionFailed: says which clock is how far off.
        """
        limit_ms = self._ahead_us // US_PER_MS
        ahead_ms = self.clock.ahead_ms(now_ms)
        if ahead_ms > limit_ms:
            raise PreconditionFailed(
                f"the clock of cluster {self.cluster} is {ahead_ms / 1000:,.0f} s behind the newest change that is known here; "
                "set it right, or wait"
            )
        others = self._around.members() - {self.cluster}
        say = {
            name: peer.header.ahead[self.cluster]
            for name, peer in self.peers.items()
            if name in others and peer.header.ahead.get(self.cluster, 0) > 0
        }
        if say and 2 * len(say) > len(others):
            raise PreconditionFailed(
                f"the clock of cluster {self.cluster} is {max(say.values()) / 1000:,.0f} s ahead of that of "
                f"{', '.join(sorted(say))}; set it right"
            )

    def local(self, changes: Mapping[str, bytes | None], now_ms: int, *, found: bool = False) -> Update:
        """Stamp changes that are made here and now.

        Args:
            changes: the new documents by path; None: deleted. Keys of other kinds are passed over.
            now_ms: wall clock.
            found: nobody decided it: it followed from something that came over a link.

        Raises:
            PreconditionFailed: see `check_clock`.
        """
        mine = {
            path: data for path, data in changes.items() if kind_of(path) is not None and not self.exclusions.path(path)
        }
        if mine and not found:
            self.check_clock(now_ms)
        update = self._local(mine, now_ms, found=found)
        for path, data in mine.items():
            if data is not None:
                update.projected.add(path)
        return self._projected(update, self.projector.touched(mine), skip=set(changes))

    def _local(self, changes: Mapping[str, bytes | None], now_ms: int, *, found: bool = False) -> Update:
        update = Update()
        if not changes:
            return update
        stamp = Stamp(FOUND_US if found else self.clock.next(now_ms), self.cluster)
        for path, data in self._with_parents(changes).items():
            kind = kind_of(path)
            assert kind is not None
            old = self.records.get(path, EMPTY)
            if data is None:
                new = self._deleted(kind, path, stamp, old)
            else:
                new = self._made(kind, path, stamp, to_fields(kind, kind.read(data)), old)
            if new != old:
                update.records[path] = merged(old, new) if found else new
                update.told.append(path)
        return update

    def _with_parents(self, changes: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        """What is done in something that was deleted elsewhere, and kept here, brings it back."""
        more = dict(changes)
        for path, data in changes.items():
            parent = parent_of(path)
            while data is not None and parent and parent not in more:
                record = self.records.get(parent)
                if record is not None and not there(parent, record):
                    document = self._around.local(parent)
                    if document is not None:
                        more[parent] = document
                parent = parent_of(parent)
        return more

    def _made(self, kind: Kind, path: str, stamp: Stamp, values: Mapping[str, bytes], old: Record) -> Record:
        """A record with this document's values; what did not change keeps its stamp."""
        exists = there(path, old)
        fields = dict(old.fields)
        present = old.values() if exists or kind.implicit else {}
        for name, value in values.items():
            if not self.exclusions.field(path, name) and present.get(name) != value:
                fields[name] = Cell(stamp, value)
        for name in old.values():
            base = name.partition("/")[0]
            if (
                name in values
                or self.exclusions.field(path, name)
                or (exists and (base not in kind.fields or base in kind.grows))
            ):
                continue
            fields[name] = Cell(stamp, None)
        created = old.created if exists or kind.implicit else stamp
        return Record(created, old.deleted, fields)

    @staticmethod
    def _deleted(kind: Kind, path: str, stamp: Stamp, old: Record) -> Record:
        if kind.implicit:
            gone = {name: Cell(stamp, None) for name in old.values()}
            return old._replace(fields={**old.fields, **gone})
        return pruned(old._replace(deleted=stamp))

    # ----------------------------------------------------------------------------------------------------------- events

    def read(self, batch: Batch, data: bytes, origin: str) -> Event:
        """Read an event into a batch.

        Args:
            batch: what is applied together.
            data: the message.
            origin: the cluster that published it, as its link says.

        Raises:
            Malformed: nothing of it is taken; one line says why.
        """
        event = events.decode(data)
        header = event.header
        if header is not None:
            if header.cluster != origin:
                raise Malformed(f"says that it is of {header.cluster[:60]!a}, but came from {origin}")
            if not self._around.known(header.cluster):
                raise Malformed(f"of cluster {header.cluster[:60]!a}, which is not known here")
            if header.cluster != self.cluster:
                batch.heard.append(header)
        else:
            for record in event.records.values():
                for stamp in record.stamps():
                    if not self._around.known(stamp.cluster):
                        raise Malformed(f"of cluster {stamp.cluster[:60]!a}, which is not known here")
        for path, record in event.records.items():
            mine = batch.records.get(path)
            batch.records[path] = record if mine is None else merged(mine, record)
            if (
                header is not None
                and header.kind == "snapshot"
                and header.cluster != self.cluster
                and not there(path, record)
            ):
                batch.listings.append((header.cluster, path, record))
        batch.wanted |= {path for path, names in event.awaits.items() if self.cluster in names}
        return event

    def merge(self, batch: Batch, now_ms: int) -> Update:
        """What a batch changes."""
        update = Update(heard=batch.heard, listings=batch.listings, wanted=batch.wanted)
        for path, record in batch.records.items():
            self._merge(update, path, self.exclusions.shared(path, record), now_ms)
        return self._projected(update, self.projector.touched(update.records), skip=set())

    def _merge(self, update: Update, path: str, record: Record, now_ms: int) -> None:
        ready, early = split(record, now_ms * US_PER_MS + self._ahead_us)
        if early is not EMPTY:
            waiting = update.ahead.get(path, self.ahead.get(path, EMPTY))
            both = merged(waiting, early)
            if both is not waiting:
                update.ahead[path] = both
        mine = self.records.get(path, EMPTY)
        new = merged(mine, ready)
        if new is not mine:
            for stamp in ready.stamps():
                self.clock.see(stamp)
            update.records[path] = new
        elif path in self.buried and not covers(ready, mine):
            # Somebody does not know that this was deleted: the next snapshot tells.
            update.wanted.add(path)

    def release(self, now_ms: int) -> Update:
        """What the clock has reached meanwhile."""
        update = Update()
        limit_us = now_ms * US_PER_MS + self._ahead_us
        for path, record in self.ahead.items():
            ready, early = split(record, limit_us)
            if ready is not record and ready == EMPTY:
                continue
            update.ahead[path] = early
            self._merge(update, path, ready, now_ms)
        return self._projected(update, self.projector.touched(update.records), skip=set())

    def next_release_ms(self) -> int | None:
        """When `release` will have something; None: nothing waits."""
        times = [min(stamp.time_us for stamp in record.stamps()) for record in self.ahead.values() if record != EMPTY]
        return (min(times) - self._ahead_us) // US_PER_MS + 1 if times else None

    # ------------------------------------------------------------------------------------------------------- documents

    def _projected(self, update: Update, paths: Iterable[str], skip: set[str]) -> Update:
        def of(path: str) -> Record | None:
            return update.records.get(path, self.records.get(path))

        puts, deletes, due = self.projector.difference((path for path in paths if path not in skip), of)
        update.puts |= puts
        update.deletes += deletes
        update.due |= due
        return update

    def again(self, paths: Iterable[str]) -> Update:
        """What follows from the records now that something around them changed (topics were deleted, a policy names this
        cluster).
        """
        return self._projected(Update(), self.projector.touched(paths), skip=set())

    def topic(self, path: str) -> bytes | None:
        """The document of a partitioned topic that is due; None when it is no longer."""
        kind, record = kind_of(path), self.records.get(path)
        if kind is None or record is None or not self.projector.seen(path, self.records.get)[0]:
            return None
        return self.projector.document(path, kind, record)

    def partitions_of(self, path: str) -> int:
        """How many partitions a partitioned topic has everywhere."""
        kind = kind_of(path)
        assert kind is not None
        return int(to_document(kind, self.records[path].values()).get("partitions", 0))

    # ---------------------------------------------------------------------------------------------------------- storing

    def stored(self, update: Update) -> tuple[dict[str, bytes], list[str]]:
        """The keys that an update puts and deletes, its documents included."""
        puts: dict[str, bytes] = dict(update.puts)
        deletes: list[str] = list(update.deletes)
        buried = set(update.buried)
        flipped = {path for path in update.puts if path not in self.projector.projected} | set(update.deletes)
        for path in update.records.keys() | flipped | buried | update.projected:
            record = update.records.get(path, self.records.get(path))
            if record is not None:
                puts[RECORD_PREFIX + path] = self._encoded(path, record, update, buried=path in buried)
        for path, waiting in update.ahead.items():
            if waiting == EMPTY:
                deletes.append(AHEAD_PREFIX + path)
            else:
                puts[AHEAD_PREFIX + path] = msgspec.json.encode(to_wire(waiting))
        for path in update.forgotten:
            puts.pop(RECORD_PREFIX + path, None)
            deletes.append(RECORD_PREFIX + path)
        return puts, deletes

    def _encoded(self, path: str, record: Record, update: Update, *, buried: bool) -> bytes:
        told = to_wire(record)
        projected = path in update.puts or path in update.projected or path in self.projector.projected
        if projected and path not in update.deletes:
            told["p"] = True
        if buried:
            told["b"] = True
        return msgspec.json.encode(told)

    def commit(self, update: Update, now_ms: int) -> None:
        """An update is durable."""
        for path, record in update.records.items():
            self._set(path, record)
            self.buried.pop(path, None)
            self._listed.discard(path)
            self._confirmed.pop(path, None)
            if not there(path, record) and path in update.told:
                # A local deletion takes the document with it.
                self.projector.projected.discard(path)
        for path, waiting in update.ahead.items():
            if waiting == EMPTY:
                self.ahead.pop(path, None)
            else:
                self.ahead[path] = waiting
        self.projector.projected |= update.puts.keys() | update.projected
        self.projector.projected -= set(update.deletes)
        self.due |= update.due
        for path in update.buried:
            self.buried[path] = None
            self._confirmed.pop(path, None)
        for path in update.forgotten:
            self._forget(path)
        self._hear(update, now_ms)

    def _hear(self, update: Update, now_ms: int) -> None:
        for header in update.heard:
            old = self.peers.get(header.cluster)
            if old is not None or len(self.peers) < PEERS_MAX:
                changed_ms = old.changed_ms if old is not None and old.header.digest == header.digest else now_ms
                self.peers[header.cluster] = Peer(header, now_ms, changed_ms)
        for cluster, path, record in update.listings:
            mine = self.records.get(path)
            if mine is not None and not there(path, mine) and covers(record, mine):
                self._confirmed.setdefault(path, set()).add(cluster)
        for path in update.wanted:
            if self.buried.pop(path, "") is None:
                self._listed.discard(path)
                # Everybody has confirmed it; that holds, only this cluster has to say so once more.
                self._confirmed[path] = set(self._around.members())

    def _set(self, path: str, record: Record) -> None:
        old = self.records.get(path)
        if there(path, old):
            assert old is not None
            self.digest = (self.digest - fingerprint(path, old)) % DIGEST_MODULUS
            self.count -= 1
        self.records[path] = record
        self.projector.known(path)
        self._dead.discard(path)
        if there(path, record):
            self.digest = (self.digest + fingerprint(path, record)) % DIGEST_MODULUS
            self.count += 1
        else:
            self._dead.add(path)

    def _forget(self, path: str) -> None:
        self.records.pop(path, None)
        self.buried.pop(path, None)
        self._dead.discard(path)
        self._listed.discard(path)
        self._confirmed.pop(path, None)
        self.projector.forgotten(path)

    # ------------------------------------------------------------------------------------------------------- publishing

    def _header(self, kind: events.EventKind, now_ms: int, **more: Any) -> Header:
        ahead: dict[str, int] = {}
        for record in self.ahead.values():
            for stamp in record.stamps():
                ahead[stamp.cluster] = max(ahead.get(stamp.cluster, 0), stamp.time_us // US_PER_MS - now_ms)
        return Header(
            self.cluster, kind, now_ms, self.digest, self.count, self.exclusions.patterns, ahead=ahead, **more
        )

    def _pages(self, paths: Iterable[str]) -> Iterator[list[tuple[str, Any]]]:
        page: list[tuple[str, Any]] = []
        size = 0
        for path in paths:
            record = self.records.get(path)
            if record is None:
                continue
            wire, weight = events.weigh(self.exclusions.shared(path, record))
            if page and size + weight > events.EVENT_BYTES:
                yield page
                page, size = [], 0
            page.append((path, wire))
            size += weight + len(path)
        yield page

    def changes(self, paths: Iterable[str], now_ms: int) -> list[bytes]:
        """Events that tell of local changes."""
        header = self._header("change", now_ms)
        return [events.encode(header, page, {}) for page in self._pages(paths) if page]

    def beacon(self, now_ms: int) -> bytes:
        """An event that tells nothing but its header."""
        return events.encode(self._header("beacon", now_ms), (), {})

    def snapshot(self, now_ms: int, *, hello: bool = False) -> Snapshot:
        """Everything, deletions included, with the stamps of the writers."""
        others = self._around.members() - {self.cluster}
        paths = [path for path in sorted(self.records) if path not in self.buried and not self.exclusions.path(path)]
        pages = list(self._pages(paths))
        messages = []
        for number, page in enumerate(pages):
            header = self._header("snapshot", now_ms, part=number, last=number == len(pages) - 1, hello=hello)
            awaits = {}
            for path, _wire in page:
                waiting = others - self._confirmed.get(path, set()) if path in self._dead else ()
                if waiting:
                    awaits[path] = tuple(sorted(waiting))
            messages.append(events.encode(header, page, awaits))
        return Snapshot(messages, {path: self.records[path] for path in paths})

    def listed(self, snapshot: Snapshot) -> None:
        """A snapshot is durable."""
        for path, record in snapshot.records.items():
            if path in self._dead and self.records.get(path) is record:
                self._listed.add(path)

    # -------------------------------------------------------------------------------------------------------- deletions

    def collect(self) -> Update:
        """Bury deletions that nobody can contradict any more: this cluster listed them in a snapshot of its own, and in a
        snapshot of every other cluster it saw the same deletion or something newer (FINDINGS D1).
        """
        update = Update()
        others = self._around.members() - {self.cluster}
        for path in sorted(self._listed - self.buried.keys()):
            if (
                path in self._dead
                and path not in self.projector.projected
                and others <= self._confirmed.get(path, set())
            ):
                update.buried.append(path)
        many = len(self.buried) + len(update.buried) - BURIED_MAX
        if many > 0:
            update.forgotten = sorted(self.buried, key=self._buried_time)[:many]
        return update

    def _buried_time(self, path: str) -> int:
        latest = self.records[path].latest
        return latest.time_us if latest is not None else 0

    @property
    def dead(self) -> int:
        """Deletions that are not buried yet."""
        return len(self._dead - self.buried.keys())

    # ---------------------------------------------------------------------------------------------------------- looking

    def view(self, path: str) -> dict[str, tuple[Any, Stamp]]:
        """The fields of a document with their stamps."""
        record = self.records.get(path)
        if record is None or not there(path, record):
            return {}
        return {
            name: (msgspec.json.decode(cell.value), cell.stamp)
            for name, cell in sorted(record.fields.items())
            if cell.value is not None
        }

    def kept(self) -> dict[str, str]:
        """Documents that were deleted elsewhere and stay because topics of this cluster need them, and why."""
        found = {}
        for path in sorted(self.projector.projected):
            seen, kept = self.projector.seen(path, self.records.get)
            if seen and kept:
                found[path] = self.projector.kept_because(path)
        return found

    def hidden(self) -> list[str]:
        """Documents that exist and are not seen here."""
        return sorted(
            path
            for path, record in self.records.items()
            if path not in self._dead and path not in self.projector.projected and there(path, record)
        )

    def fingerprints(self) -> dict[str, str]:
        """Of everything that exists: to see what differs between two clusters."""
        return {
            path: f"{fingerprint(path, record):016x}"
            for path, record in sorted(self.records.items())
            if path not in self._dead and not self.exclusions.path(path)
        }

    def validate(self) -> None:
        """Check what must hold after every event (tests and the simulator call it)."""
        digest = sum(fingerprint(path, record) for path, record in self.records.items() if there(path, record))
        assert digest % DIGEST_MODULUS == self.digest, "the digest is not that of the records"
        assert self.buried.keys() <= self._dead, "something that exists is buried"
        newest = max((stamp.time_us for record in self.records.values() for stamp in record.stamps()), default=0)
        assert newest <= self.clock.latest_us, "the clock is behind a stored stamp"
