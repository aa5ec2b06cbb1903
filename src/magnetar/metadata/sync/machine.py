"""One cluster's part in keeping metadata the same: local changes and events in, updates of the store out. No clock, no I/O.

    local change   local(...)  -> Update, stored in the transaction of the change itself -> commit -> changes(...) is published
    event          read(...) into a Batch -> merge(batch) -> Update -> stored -> commit; nothing is published
    time           release(...) -> Update of what was ahead of the clock and is not any more
    snapshot       snapshot(...) -> events with every record; listed(...) when they are durable
    collect        deletions that every cluster has confirmed are buried

An `Update` holds the new records and the documents that follow from them; stamp and value are stored in one transaction, or
not at all. Between making an update and committing it the host keeps others away from its keys (`Resources.begin`).
"""

from collections.abc import Iterable, Mapping

from magnetar.metadata.errors import PreconditionFailed
from magnetar.metadata.keys import PARTITIONED_PREFIX
from magnetar.metadata.sync import events
from magnetar.metadata.sync.documents import Kind, kind_of, parent_of, to_document, to_fields
from magnetar.metadata.sync.events import Event, Header
from magnetar.metadata.sync.projecting import there
from magnetar.metadata.sync.records import (
    EMPTY,
    Cell,
    Malformed,
    Record,
    covers,
    merged,
    pruned,
    ready_us,
    split,
)
from magnetar.metadata.sync.stamps import FILE_US, FOUND_US, US_PER_MS, Stamp
from magnetar.metadata.sync.telling import Telling
from magnetar.metadata.sync.updates import Batch, Update


class Synchroniser(Telling):
    """The state of one cluster, and everything that can happen to it; see `State` for its arguments."""

    # --------------------------------------------------------------------------------------------------------- starting

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
            if name in others and self._issued(peer.header)
        }
        if say and 2 * len(say) > len(others):
            raise PreconditionFailed(
                f"the clock of cluster {self.cluster} is {max(say.values()) / 1000:,.0f} s ahead of that of "
                f"{', '.join(sorted(say))}; set it right"
            )

    def _issued(self, header: Header) -> bool:
        """Whether what waits elsewhere in this cluster's name is of this cluster's clock, and not somebody's forgery."""
        ahead_ms = header.ahead.get(self.cluster, 0)
        return ahead_ms > 0 and header.sent_ms + ahead_ms <= self.clock.latest_us // US_PER_MS

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
        # A parent that was brought back shows its other children again too.
        return self._projected(update, self.projector.touched([*mine, *update.records]), skip=set(changes))

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
        event = events.decode(data, self._known)
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

    def _known(self, path: str) -> tuple[bytes, Record] | None:
        record = self.records.get(path)
        return None if record is None else (self.wire(path, record), record)

    def merge(self, batch: Batch, now_ms: int) -> Update:
        """What a batch changes."""
        update = Update(heard=batch.heard, listings=batch.listings, wanted=batch.wanted)
        for path, record in batch.records.items():
            if record is self.records.get(path):
                continue
            self._merge(update, path, self.exclusions.shared(path, record), now_ms)
        return self._projected(update, self.projector.touched(update.records), skip=set())

    def _merge(self, update: Update, path: str, record: Record, now_ms: int) -> None:
        limit_us = now_ms * US_PER_MS + self._ahead_us
        ready, early = split(record, limit_us)
        if early is not EMPTY:
            # What has waited long enough comes into force now: what is newer must not hide it until its own time has come.
            due, waiting = split(update.ahead.get(path, self.ahead.get(path, EMPTY)), limit_us)
            ready = merged(ready, due)
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
        """What follows from the records now that something around them changed (topics were deleted, a policy names this
        cluster).
        """
        return self._projected(Update(), self.projector.touched(paths), skip=set())

    def served(self, paths: Iterable[str]) -> None:
        """Policies of these namespaces are in force: partitioned topics that had no place here may have one now."""
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
        """How many partitions a partitioned topic has everywhere."""
        kind = kind_of(path)
        assert kind is not None
        return int(to_document(kind, self.records[path].values()).get("partitions", 0))
