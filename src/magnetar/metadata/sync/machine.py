"""The machine of one cluster that synchronises its metadata with clusters that have another store. No clock, no I/O.

Theory. A document (a tenant, a namespace, ...) has a record: the stamp of its creation, of its deletion, and of each of
its fields. A stamp is a time and the cluster that made the change. Stamps are ordered totally (`stamps.beats`), and two
records merge field by field to the newest stamp (`records.merged`). So records are elements of a join semilattice:
merging is commutative, associative and idempotent. Every cluster ends with the same records, for any order, repetition
or loss of events, as long as snapshots replace what was lost. The documents that users see follow from the records
alone (`projection`), except for documents that a cluster keeps because topics of it need them.

Inputs and results:

    local change   local(...)  -> Update, stored in the transaction of the change itself -> commit -> changes(...) is published
    event          read(...) into a Batch -> merge(batch) -> Update -> stored -> commit; nothing is published
    time           release(...) -> Update of changes that were ahead of the clock and no longer are
    snapshot       snapshot(...) -> events with every record; listed(...) when they are durable
    collect        deletions that every cluster has confirmed are buried

An `Update` holds the new records and the documents that follow from them. A value and its stamp are stored in one transaction, or
neither is. From making an update until it is committed the host keeps other changes away from its keys (`Resources.begin`).

The rules with their reasons: docs/design/metadata.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from magnetar.core.errors import StorageError
from magnetar.core.hybrid_clock import HybridClock
from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.keys import PARTITIONED_PREFIX
from magnetar.metadata.sync import events
from magnetar.metadata.sync.deletions import Deletions
from magnetar.metadata.sync.digest import Digest
from magnetar.metadata.sync.documents import Kind, kind_of, parent_of, to_document, to_fields
from magnetar.metadata.sync.events import Event, Header
from magnetar.metadata.sync.patterns import Exclusions
from magnetar.metadata.sync.projection import Projector, SyncContext, there
from magnetar.metadata.sync.records import (
    DIGEST_MODULUS,
    EMPTY,
    Cell,
    Malformed,
    Record,
    covers,
    encoded,
    fingerprint,
    from_wire,
    merged,
    pruned,
    ready_us,
    split,
    to_wire,
)
from magnetar.metadata.sync.stamps import FILE_US, FOUND_US, US_PER_MS, Stamp
from magnetar.metadata.sync.updates import (
    AHEAD_PREFIX,
    BURIED_MAX,
    PEERS_MAX,
    RECORD_PREFIX,
    Batch,
    Peer,
    Snapshot,
    Update,
)


class Synchroniser:
    """The records of one cluster, and all operations on them.

    Args:
        cluster: its name.
        context: the cluster, as far as the machine needs it.
        ahead_ms_max: the most by which an event may be ahead of the wall clock before it has to wait
            (`metadata_clock_ahead_ms`).
        exclude: patterns of documents that stay local.
        buried_max: see `BURIED_MAX`.

    Attributes:
        records: the records of all known documents, by path.
        ahead: records that wait for the clock, by path.
        due: partitioned topics that have to be created or grown.
        peers: the last reported states of other clusters.
        clock: gives the stamps of local changes, in microseconds (docs/design/metadata.md#clock).
    """

    def __init__(
        self,
        cluster: str,
        context: SyncContext,
        *,
        ahead_ms_max: int,
        exclude: Iterable[str] = (),
        buried_max: int = BURIED_MAX,
    ) -> None:
        self.cluster = cluster
        self._context = context
        self._ahead_us = ahead_ms_max * US_PER_MS
        self.buried_max = buried_max
        self.exclusions = Exclusions(exclude)
        self.projector = Projector(context, self.exclusions)
        # Above FOUND_US also in a world whose clock begins at 0.
        self.clock = HybridClock(FOUND_US)
        self.records: dict[str, Record] = {}
        self.ahead: dict[str, Record] = {}
        self.peers: dict[str, Peer] = {}
        self.due: set[str] = set()
        self.deletions = Deletions()
        self._digest = Digest()

    @property
    def digest(self) -> int:
        """The digest of all existing documents: equal digests mean equal metadata."""
        return self._digest.value

    @property
    def count(self) -> int:
        """The number of existing documents."""
        return self._digest.count

    @property
    def dead(self) -> int:
        """The number of deletions that are not buried yet."""
        return self.deletions.announced

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
                stored_record = msgspec.json.decode(data)
                record = from_wire(stored_record)
            except (msgspec.DecodeError, Malformed) as error:
                raise StorageError(f"the stored value of {key} is damaged: {error}") from error
            if prefix == AHEAD_PREFIX:
                self.ahead[path] = record
                continue
            self._set(path, record)
            if stored_record.get("p"):
                self.projector.projected.add(path)
            if stored_record.get("b"):
                self.deletions.bury(path)
            for stamp in record.stamps():
                self.clock.see(stamp.time_us)

    def adopt(self, documents: Mapping[str, bytes], from_file: frozenset[str], now_ms: int) -> Update:
        """Compare the documents of the cluster with the records, at every start.

        Args:
            documents: all documents of the synchronised kinds.
            from_file: paths that were just created from the configuration file.
            now_ms: wall clock.

        A document without a record gets one whose time is before every real change. A document that was changed or
        deleted while synchronisation was off gets a new time: it was changed on purpose.
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
        ahead_ms = self.clock.ahead(now_ms * US_PER_MS) // US_PER_MS
        if ahead_ms > limit_ms:
            raise PreconditionFailed(
                f"the clock of cluster {self.cluster} is {ahead_ms / 1000:,.0f} s behind the newest change that is known here; "
                "set it right, or wait"
            )
        others = self._context.members() - {self.cluster}
        say = {
            name: peer.header.ahead[self.cluster]
            for name, peer in self.peers.items()
            if name in others and self._issued(peer.header)
        }
        if say and 2 * len(say) > len(others):
            raise PreconditionFailed(
                f"the clock of cluster {self.cluster} is {max(say.values()) / 1000:,.0f} s ahead of that of "
                f"{', '.join(sorted(say))}; set it right"
            )

    def _issued(self, header: Header) -> bool:
        """Whether what waits elsewhere in this cluster's name was stamped by this cluster's clock, and is not
        forged.
        """
        ahead_ms = header.ahead.get(self.cluster, 0)
        return ahead_ms > 0 and header.sent_ms + ahead_ms <= self.clock.latest // US_PER_MS

    def local(self, changes: Mapping[str, bytes | None], now_ms: int, *, found: bool = False) -> Update:
        """Stamp changes that are made here and now.

        Args:
            changes: the new documents by path; None: deleted. Keys of other kinds are ignored.
            now_ms: wall clock.
            found: no administrator decided it; it followed from something that arrived over a link.

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
        # A parent that was restored shows its other children again too.
        return self._projected(update, self.projector.touched([*mine, *update.records]), skip=set(changes))

    def _local(self, changes: Mapping[str, bytes | None], now_ms: int, *, found: bool = False) -> Update:
        update = Update()
        if not changes:
            return update
        stamp = Stamp(FOUND_US if found else self.clock.next(now_ms * US_PER_MS), self.cluster)
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
                update.to_publish.append(path)
        return update

    def _with_parents(self, changes: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        """A change below a document that was deleted elsewhere and kept here restores that document."""
        more = dict(changes)
        for path, data in changes.items():
            parent = parent_of(path)
            while data is not None and parent and parent not in more:
                record = self.records.get(parent)
                if record is not None and not there(parent, record):
                    document = self._context.local(parent)
                    if document is not None:
                        more[parent] = document
                parent = parent_of(parent)
        return more

    def _made(self, kind: Kind, path: str, stamp: Stamp, values: Mapping[str, bytes], old: Record) -> Record:
        """A record with this document's values; unchanged values keep their stamps."""
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
            batch: the batch that is applied together.
            data: the message.
            origin: the cluster that published it, according to its link.

        Raises:
            Malformed: nothing of it is used; one line says why.
        """
        event = events.decode(data, self._known)
        header = event.header
        if header is not None:
            if header.cluster != origin:
                raise Malformed(f"says that it is of {header.cluster[:60]!a}, but came from {origin}")
            if not self._context.known(header.cluster):
                raise Malformed(f"of cluster {header.cluster[:60]!a}, which is not known here")
            if header.cluster != self.cluster:
                batch.headers.append(header)
        else:
            for record in event.records.values():
                for stamp in record.stamps():
                    if not self._context.known(stamp.cluster):
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
        batch.awaited |= {path for path, names in event.awaits.items() if self.cluster in names}
        return event

    def _known(self, path: str) -> tuple[bytes, Record] | None:
        record = self.records.get(path)
        return None if record is None else (self._digest.encoded(path, record), record)

    def merge(self, batch: Batch, now_ms: int) -> Update:
        """The changes that a batch makes."""
        update = Update(headers=batch.headers, listings=batch.listings, awaited=batch.awaited)
        for path, record in batch.records.items():
            if record is self.records.get(path):
                continue
            self._merge(update, path, self.exclusions.shared(path, record), now_ms)
        return self._projected(update, self.projector.touched(update.records), skip=set())

    def _merge(self, update: Update, path: str, record: Record, now_ms: int) -> None:
        limit_us = now_ms * US_PER_MS + self._ahead_us
        ready, early = split(record, limit_us)
        if early is not EMPTY:
            # A change that has waited long enough takes effect now: a newer one must not hide it until its own time has
            # come.
            due, waiting = split(update.ahead.get(path, self.ahead.get(path, EMPTY)), limit_us)
            ready = merged(ready, due)
            both = merged(waiting, early)
            if both is not waiting:
                update.ahead[path] = both
        mine = self.records.get(path, EMPTY)
        new = merged(mine, ready)
        if new is not mine:
            for stamp in ready.stamps():
                self.clock.see(stamp.time_us)
            update.records[path] = new
        elif path in self.deletions.buried and not covers(ready, mine):
            # Another cluster does not know that this was deleted: the next snapshot lists it.
            update.awaited.add(path)

    def release(self, now_ms: int) -> Update:
        """The changes whose time the clock has reached since the last call."""
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
        """The time at which `release` will have a change; None: nothing waits."""
        times = [ready_us(record) for record in self.ahead.values() if record != EMPTY]
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
        """The documents that follow from the records after something around them changed (topics were deleted, a policy
        names this cluster).
        """
        return self._projected(Update(), self.projector.touched(paths), skip=set())

    def served(self, paths: Iterable[str]) -> None:
        """Note that policies of these namespaces are in force: partitioned topics that could not exist here before may
        exist now.
        """
        for path in paths:
            for child in self.projector.children.get(path, ()):
                if child.startswith(PARTITIONED_PREFIX) and child not in self.projector.projected:
                    self.due.add(child)

    def topic(self, path: str) -> bytes | None:
        """The document of a partitioned topic that is due; None when it is no longer."""
        kind, record = kind_of(path), self.records.get(path)
        if kind is None or record is None or not self.projector.seen(path, self.records.get)[0]:
            return None
        return self.projector.document(path, kind, record)

    def partitions_of(self, path: str) -> int:
        """The number of partitions of a partitioned topic in all clusters."""
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
        wire = to_wire(record)
        projected = path in update.puts or path in update.projected or path in self.projector.projected
        if projected and path not in update.deletes:
            wire["p"] = True
        if buried:
            wire["b"] = True
        return msgspec.json.encode(wire)

    def commit(self, update: Update, now_ms: int) -> None:
        """An update is durable."""
        for path, record in update.records.items():
            self._set(path, record)
            self.deletions.changed(path)
            if not there(path, record) and path in update.to_publish:
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
            self.deletions.bury(path)
        for path in update.forgotten:
            self._forget(path)
        self._note_peers(update, now_ms)

    def _note_peers(self, update: Update, now_ms: int) -> None:
        for header in update.headers:
            old = self.peers.get(header.cluster)
            if old is not None or len(self.peers) < PEERS_MAX:
                changed_ms = old.changed_ms if old is not None and old.header.digest == header.digest else now_ms
                self.peers[header.cluster] = Peer(header, now_ms, changed_ms)
        for cluster, path, record in update.listings:
            mine = self.records.get(path)
            if mine is not None and not there(path, mine) and covers(record, mine):
                self.deletions.confirmed(path, cluster)
        for path in update.awaited:
            self.deletions.announce_again(path, self._context.members())

    def _set(self, path: str, record: Record) -> None:
        old, exists = self.records.get(path), there(path, record)
        if old is not None and there(path, old):
            self._digest.remove(path, old)
        self.records[path] = record
        self.projector.known(path)
        self.deletions.known(path, exists=exists)
        if exists:
            self._digest.add(path, record)

    def _forget(self, path: str) -> None:
        self.records.pop(path, None)
        self._digest.forget(path)
        self.deletions.forget(path)
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
            shared = self.exclusions.shared(path, record)
            data = self._digest.encoded(path, record) if shared is record else encoded(shared)
            if page and size + len(data) > events.EVENT_BYTES:
                yield page
                page, size = [], 0
            page.append((path, msgspec.Raw(data)))
            size += len(data) + len(path)
        yield page

    def changes(self, paths: Iterable[str], now_ms: int) -> list[bytes]:
        """Events with local changes."""
        header = self._header("change", now_ms)
        return [events.encode(header, page, {}) for page in self._pages(paths) if page]

    def beacon(self, now_ms: int) -> bytes:
        """An event that is only a header."""
        return events.encode(self._header("beacon", now_ms), (), {})

    def snapshot(self, now_ms: int, *, hello: bool = False) -> Snapshot:
        """Everything, deletions included, with the stamps of the writers."""
        others = self._context.members() - {self.cluster}
        paths = [
            path
            for path in sorted(self.records)
            if path not in self.deletions.buried and not self.exclusions.path(path)
        ]
        pages = list(self._pages(paths))
        messages = []
        for number, page in enumerate(pages):
            header = self._header("snapshot", now_ms, part=number, last=number == len(pages) - 1, hello=hello)
            awaits = {}
            for path, _wire in page:
                waiting = self.deletions.unconfirmed(path, others) if path in self.deletions.dead else ()
                if waiting:
                    awaits[path] = tuple(sorted(waiting))
            messages.append(events.encode(header, page, awaits))
        return Snapshot(messages, {path: self.records[path] for path in paths})

    def listed(self, snapshot: Snapshot) -> None:
        """A snapshot is durable."""
        for path, record in snapshot.records.items():
            if path in self.deletions.dead and self.records.get(path) is record:
                self.deletions.listed(path)

    # -------------------------------------------------------------------------------------------------------- deletions

    def collect(self) -> Update:
        """Bury deletions that no cluster can contradict: this cluster listed them in a snapshot of its own, and in a
        snapshot of every other cluster it saw the same deletion or something newer (docs/design/metadata.md#deletions).
        """
        update, buried = Update(), self.deletions.buried
        others = self._context.members() - {self.cluster}
        for path in self.deletions.candidates():
            if (
                path not in self.projector.projected
                # A waiting record may be a newer deletion of the same document, published together with the creation
                # before it.
                and path not in self.ahead
                and not self.deletions.unconfirmed(path, others)
            ):
                update.buried.append(path)
        many = len(buried) + len(update.buried) - self.buried_max
        if many > 0:
            update.forgotten = sorted([*buried, *update.buried], key=self._buried_time)[:many]
        return update

    def _buried_time(self, path: str) -> int:
        latest = self.records[path].latest
        return latest.time_us if latest is not None else 0

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
            if path not in self.deletions.dead and path not in self.projector.projected and there(path, record)
        )

    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of all existing documents, to find differences between two clusters."""
        return {
            path: self._digest.fingerprint(path, record)
            for path, record in sorted(self.records.items())
            if path not in self.deletions.dead and not self.exclusions.path(path)
        }

    def validate(self) -> None:
        """Check what must hold after every event (tests and the simulator call it)."""
        digest = sum(fingerprint(path, record) for path, record in self.records.items() if there(path, record))
        assert digest % DIGEST_MODULUS == self.digest, "the digest is not that of the records"
        assert self.deletions.buried.keys() <= self.deletions.dead, "something that exists is buried"
        newest = max((stamp.time_us for record in self.records.values() for stamp in record.stamps()), default=0)
        assert newest <= self.clock.latest, "the clock is behind a stored stamp"
