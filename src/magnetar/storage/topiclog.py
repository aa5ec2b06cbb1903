r"""The log of one topic: its entries with their locations, and the next position and origin index.

    stage -> (written and synced by the log thread) -> confirm      now readable
                                                   \-> fail         never was

Between stage and confirm an entry has a position that is not reported yet. After a failed write all staged entries are
forgotten, and the next entry goes to a *new* ledger: a position that may be half on disk is never used again. Origin
indexes are used again, which is safe because the log first seals the failed part off
(docs/design/storage.md#failed-writes).

Every entry that this cluster publishes takes `count` origin indexes: 0, 1, 2, ... dense, per topic incarnation. Entries
from links keep their origin's indexes; their source position moves the watermark of that source, twice: staged
("pushed") and confirmed ("persisted").
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from pyroaring import BitMap

from magnetar.core.ids import LATEST, NONE, Identity, OriginKey, Position
from magnetar.storage.cache import EntryCache
from magnetar.storage.entries import Append, EntryFlags, Location, NewEntry, StoredEntry
from magnetar.storage.ledger import OFFSET_MASK, SEGMENT_SHIFT, Ledger, find, find_after
from magnetar.storage.ledgerids import LedgerIds
from magnetar.storage.records import LOCAL_HEADER_BYTES, pack_entry_head, pack_ledger
from magnetar.storage.retention import Retention, Trim, deletable

__all__ = ["EntryCache", "LedgerIds", "RecoveredTopic", "Retention", "Span", "TopicLog", "Trim"]

LARGE_BYTES = 256 * 1024
"""Appends of at least this size use a lane of their own: writing them takes a millisecond or more, and other appends
need not wait for that.
"""

TOGETHER_MIN = 4
"""Appends of at least this many entries are confirmed with a few operations for all of them. Fewer are faster one at a time."""

PACKED_ENTRIES_MAX: Final = 64
"""Entries of a ledger that is packed when its topic rests. A larger one takes about as much memory either way."""

_MARKER = int(EntryFlags.MARKER)
_REPLICATED = int(EntryFlags.REPLICATED)


@dataclass
class RecoveredTopic:
    """The recovered log of one incarnation of a topic.

    Attributes:
        ledgers: by id, with their entries.
        next_index: one above the highest origin index seen.
        watermarks: source cluster -> highest source position seen.
    """

    ledgers: dict[int, Ledger] = field(default_factory=dict)
    next_index: int = 0
    watermarks: dict[str, Position] = field(default_factory=dict)

    def ledger_ids(self) -> list[int]:
        """Ascending."""
        return sorted(self.ledgers)


class SavedTopic(Protocol):
    """The topic's record in the metadata store (`metadata.topic_records.TopicRecord`), as far as the log needs it."""

    first_ledger: int
    """The oldest that retention left: not the incarnation, which is the first that the topic ever had."""
    next_index: int

    def watermark_positions(self) -> dict[str, Position]:
        """Per source cluster."""

    def end_position(self) -> Position:
        """The position of the newest entry when all entries were deleted last, NONE if they never were."""


class Span(NamedTuple):
    """The location of one record, and the entry that it has to be."""

    segment: int
    offset: int
    size: int
    ledger: int
    entry: int


class TopicLog:
    """One topic's part of the broker's log. It has no I/O of its own.

    Args:
        name: of the topic.
        incarnation: the id that was reserved when it was created, normally that of its first ledger.
        ledger_ids: the broker's ledger ids.
        cache: the broker's cache.
        ledger_entries_max, ledger_bytes_max, ledger_age_ms_max: when a ledger is closed.
        recovered: what recovery found, after a restart.
        saved: its record in the metadata store.
        fresh: the topic was just created, so its first ledger gets the incarnation as its id. After a restart, and after a failed
            write, even an empty topic takes a new id, because an entry may be half written to the first ledger.

    Attributes:
        last: position of the newest entry, also when it was deleted; NONE if there never was one.
        cached_bytes: bytes of all entries of the last result of `cached`.
        read_entries: entries that were read from the disk since the broker's start.
    """

    __slots__ = (
        "_age_ms_max", "_bytes_max", "_cache", "_doomed", "_entries_max", "_fresh", "_here", "_ids", "_in_flight",
        "_large", "_ledger_ids", "_newest", "_older", "_opening", "_opening_ms", "_staged_bytes", "_staged_entries",
        "_staged_in", "_staged_index", "_staged_marks", "_watermarks", "_write_epoch", "bytes_retained",
        "cached_bytes", "incarnation", "last", "name", "next_index", "read_entries", "staged_last", "unsynced",
    )  # fmt: skip
    """As in `broker.topics.topic.Topic`: less memory for each idle topic."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        ledger_ids: LedgerIds,
        cache: EntryCache,
        *,
        ledger_entries_max: int = 50_000,
        ledger_bytes_max: int = 2 << 30,
        ledger_age_ms_max: int = 4 * 3_600_000,
        recovered: RecoveredTopic | None = None,
        saved: SavedTopic | None = None,
        fresh: bool = True,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self._ledger_ids = ledger_ids
        self._cache = cache
        self.cached_bytes = 0
        self.read_entries = 0
        self._entries_max = ledger_entries_max
        self._bytes_max = ledger_bytes_max
        self._age_ms_max = ledger_age_ms_max
        self._newest: Ledger | None = None
        self._older: dict[int, Ledger] | None = None
        """The others by their ids, ascending; None: there is none, as in most topics."""
        self._ids: tuple[int, ...] = ()
        self.next_index = 0
        self._watermarks: dict[str, Position] | None = None
        self._load(recovered, saved)
        self.bytes_retained = sum([ledger.bytes for ledger in self.ledger_infos()])
        self.last = max(self._find_last(), saved.end_position() if saved is not None else NONE)
        self.unsynced = False
        """Whether confirmed entries may not be on the disk although they have to be: links wait until they are."""
        # The staged, unconfirmed state.
        self._opening = 0
        self._opening_ms = 0
        self._staged_in: int | None = None
        self._staged_entries = 0
        self._staged_bytes = 0
        self._staged_index = self.next_index
        self._staged_marks = self._marks()
        self._fresh = fresh
        self.staged_last = self.last
        self._write_epoch = ledger_ids.next_write_epoch()
        self._in_flight = 0
        self._doomed = 0
        self._large = False
        self._here = OriginKey("", incarnation)

    def _load(self, recovered: RecoveredTopic | None, saved: SavedTopic | None) -> None:
        first = saved.first_ledger if saved is not None else 0
        if recovered is not None:
            for ledger_id in recovered.ledger_ids():
                ledger = recovered.ledgers[ledger_id]
                self._ledger_ids.raise_to(ledger_id)
                if ledger_id >= first and ledger.entries:
                    ledger.closed = True
                    self._add(ledger)
            self.next_index = recovered.next_index
            if recovered.watermarks:
                self._watermarks = dict(recovered.watermarks)
        if saved is not None:
            self.next_index = max(self.next_index, saved.next_index)
            for source, position in saved.watermark_positions().items():
                marks = self._watermarks
                if marks is None:
                    marks = self._watermarks = {}
                marks[source] = max(position, marks.get(source, NONE))
            self._ledger_ids.raise_to(saved.end_position().ledger)
        self._ledger_ids.raise_to(self.incarnation)

    def _add(self, ledger: Ledger) -> None:
        """A ledger more, with a higher id than the others."""
        if self._newest is not None:
            if self._older is None:
                self._older = {}
            self._older[self._newest.ledger] = self._newest
        self._newest = ledger
        self._ids = (*self._ids, ledger.ledger)

    def _find(self, ledger_id: int) -> Ledger | None:
        newest = self._newest
        if newest is not None and newest.ledger == ledger_id:
            return newest
        older = self._older
        return None if older is None else older.get(ledger_id)

    def _ledger(self, ledger_id: int) -> Ledger:
        """A ledger that is here."""
        newest = self._newest
        if newest is not None and newest.ledger == ledger_id:
            return newest
        older = self._older
        if older is None:
            raise KeyError(ledger_id)
        return older[ledger_id]

    # ------------------------------------------------------------------------------------------------------- writing

    def stage(self, entries: list[NewEntry], day_ms: int, *, durable: bool = True, token: Any = None) -> Append:
        """Give entries their positions (and local ones their origin indexes) and pack them for the log.

        Args:
            entries: in order; not empty.
            day_ms: the time of day (`Outbox.day_ms`), stored with each.
            durable: the answer waits for the sync whatever the broker's `fsync` says.
            token: kept for the caller.
        """
        records: list[bytes] = []
        sizes: list[int] = []
        preamble = 0
        ledger_id = self._staged_in
        if ledger_id is None or self._full(day_ms):
            ledger_id = self._open(day_ms)
            opening = pack_ledger(ledger_id, self.incarnation, day_ms, self.name)
            records.append(opening)
            sizes.append(len(opening))
            preamble = 1
        at = self._staged_entries
        index = self._staged_index
        stored: list[StoredEntry] = []
        total = 0
        for data, flags, count, publish_time, origin, origin_incarnation, first_index, source in entries:
            if not origin:
                if flags & _MARKER:
                    first = -1
                else:
                    first = index
                    index += count
                entry = StoredEntry(ledger_id, at, flags, count, publish_time, day_ms, "", 0, first, NONE, data)
            else:
                entry = StoredEntry(
                    ledger_id,
                    at,
                    flags,
                    count,
                    publish_time,
                    day_ms,
                    origin,
                    origin_incarnation,
                    first_index,
                    source,
                    data,
                )
                marks = self._staged_marks
                if marks is None:
                    marks = self._staged_marks = {}
                marks[origin] = max(source, marks.get(origin, NONE))
            head = pack_entry_head(entry)
            size = len(head) + len(data)
            records.append(head)
            records.append(data)
            sizes.append(size)
            stored.append(entry)
            total += size
            at += 1
        self._staged_entries = at
        self._staged_bytes += total
        self._staged_index = index
        self.staged_last = Position(ledger_id, at - 1)
        if not self._in_flight and not self._doomed:
            # Otherwise the lane of the appends that are not confirmed yet: if two lanes were used, the later append
            # could be stored and the earlier one lost.
            self._large = total >= LARGE_BYTES
        self._in_flight += 1
        return Append(
            topic=self.name,
            records=records,
            sizes=sizes,
            entries=stored,
            preamble=preamble,
            durable=durable,
            token=token,
            bytes_total=total + (sizes[0] if preamble else 0),
            write_epoch=self._write_epoch,
            large=self._large,
            next_index=index,
        )

    def sync_began(self) -> None:
        """Note that confirmed entries may not be on the disk although they have to be: links wait."""
        self.unsynced = True

    def synced(self) -> None:
        """All that links wait for is on the disk."""
        self.unsynced = False

    @property
    def write_epoch(self) -> int:
        """Number of the present period between two write failures: appends that were staged in an earlier one were given up."""
        return self._write_epoch

    def _full(self, day_ms: int) -> bool:
        return (
            self._staged_entries >= self._entries_max
            or self._staged_bytes >= self._bytes_max
            or abs(day_ms - self._opening_ms) >= self._age_ms_max  # the clock may be set back
        )

    def _open(self, day_ms: int) -> int:
        """Start a new ledger. The first one of a topic that was just created gets the incarnation as its id."""
        if self._fresh:
            self._staged_in = self.incarnation
        else:
            self._staged_in = self._ledger_ids.allocate(day_ms)
        self._fresh = False
        self._opening_ms = day_ms
        self._staged_entries = 0
        self._staged_bytes = 0
        return self._staged_in

    def confirm(self, append: Append, location: Location) -> None:
        """The log has stored an append; in the order of staging.

        Args:
            append: as staged.
            location: of its first record; the others follow it.
        """
        assert append.write_epoch == self._write_epoch, f"{self.name}: confirmed what was given up after a failure"
        self._in_flight -= 1
        segment = location.segment << SEGMENT_SHIFT
        offset = location.offset
        entries = append.entries
        sizes = append.sizes
        first = entries[0]
        ledger = self._find(first.ledger)
        if ledger is None:
            if self._newest is not None:
                self._newest.closed = True
            ledger = Ledger(first.ledger, first.broker_time)
            self._add(ledger)
        assert first.entry == ledger.entries, f"{self.name}: {first.position} confirmed behind {ledger.entries} entries"
        for number in range(append.preamble):
            offset += sizes[number]
        at = append.preamble
        size_total = 0
        one_by_one = entries
        # A list: a generator would cost more.
        if len(entries) >= TOGETHER_MIN and not any([e.origin or e.flags & _MARKER for e in entries]):  # noqa: C419
            size_total = self._confirm_together(ledger, segment | offset, sizes[at:], entries)
            one_by_one = []
        for entry in one_by_one:
            size = sizes[at]
            at += 1
            ledger.add(
                segment | offset,
                size,
                entry.flags,
                entry.count,
                entry.publish_time,
                entry.broker_time,
                marker=bool(entry.flags & _MARKER),
            )
            offset += size
            size_total += size
            origin = entry.origin
            if origin:
                marks = self._watermarks
                if marks is None:
                    marks = self._watermarks = {}
                marks[origin] = max(entry.source, marks.get(origin, NONE))
            index = entry.first_index
            if index >= 0:
                if not origin:
                    self.next_index = max(self.next_index, index + entry.count)
                if index != ledger.run_next or not self._same_origin(ledger.run_origin, entry):
                    key = OriginKey(origin, entry.incarnation) if origin else self._here
                    ledger.begin_run(ledger.entries - 1, key, index)
                ledger.run_next = index + entry.count
        self.bytes_retained += size_total
        self.last = Position(first.ledger, ledger.entries - 1)
        if ledger.entries == 1:
            ledger.pack()  # many idle topics never get a second one
        self._cache.add(first.ledger, entries, size_total)

    def _confirm_together(self, ledger: Ledger, location: int, sizes: list[int], entries: list[StoredEntry]) -> int:
        """Confirm entries of one append that were published here, none of them a marker; returns the bytes of their records."""
        first, last = entries[0], entries[-1]
        # Origin indexes of one append follow each other, so these entries belong to one run.
        if first.first_index != ledger.run_next or not self._same_origin(ledger.run_origin, first):
            ledger.begin_run(ledger.entries, self._here, first.first_index)
        ledger.add_all(location, sizes, entries)
        ledger.run_next = last.first_index + last.count
        self.next_index = max(self.next_index, ledger.run_next)
        return sum(sizes)

    @staticmethod
    def _same_origin(key: OriginKey | None, entry: StoredEntry) -> bool:
        if key is None or key.cluster != entry.origin:
            return False
        return not entry.origin or key.incarnation == entry.incarnation

    def fail(self) -> bool:
        """Handle a failed append: staged, unconfirmed entries are forgotten, and the next entry opens a new ledger.

        To be called once for each failed append.

        Returns:
            Whether this changed anything. An append that was already given up because an earlier one failed changes
            nothing: entries that were staged since then stay valid.
        """
        if self._doomed:
            self._doomed -= 1
            return False
        self._doomed = max(0, self._in_flight - 1)
        self._in_flight = 0
        self._write_epoch = self._ledger_ids.next_write_epoch()
        self._staged_in = None
        self._staged_entries = 0
        self._staged_bytes = 0
        self._staged_index = self.next_index
        self._staged_marks = self._marks()
        self._fresh = False
        self.staged_last = self.last
        return True

    def roll(self, now_ms: int, *, above: int = -1) -> None:
        """Close the open ledger: the next entry starts a new one, with an id over `above`."""
        self._ledger_ids.raise_to(above)
        self._staged_in = None
        self._fresh = False

    def rest(self) -> None:
        """The topic is not used at present: take less memory."""
        for ledger in self.ledger_infos():
            if ledger.entries <= PACKED_ENTRIES_MAX:
                ledger.pack()

    def incarnation_used(self, incarnation: int) -> None:
        """Note that this topic existed with this incarnation: no later one gets it, although the clock may be earlier.

        See docs/design/links.md#ledger-ids-grow.
        """
        self._ledger_ids.raise_to(incarnation)

    # ----------------------------------------------------------------------------------- positions, and what lies between

    def _find_last(self) -> Position:
        for ledger_id in reversed(self._ids):
            ledger = self._ledger(ledger_id)
            if ledger.entries:
                return Position(ledger_id, ledger.entries - 1)
        return NONE

    @property
    def first(self) -> Position:
        """The first retained entry, or NONE."""
        for ledger_id in self._ids:
            if self._ledger(ledger_id).entries:
                return Position(ledger_id, 0)
        return NONE

    def ledger_ids(self) -> list[int]:
        """Retained ledgers, ascending."""
        return list(self._ids)

    def ledger_infos(self) -> list[Ledger]:
        """Retained ledgers, ascending; to be read only."""
        return [self._ledger(ledger_id) for ledger_id in self._ids]

    def valid(self, position: Position) -> bool:
        """Whether there is an entry at a position."""
        ledger = self._find(position[0])
        return ledger is not None and 0 <= position[1] < ledger.entries

    def next_after(self, position: Position) -> Position | None:
        """The first entry after a position (any position, also of a ledger that is gone), or None."""
        ledger_id, entry = position
        at = find(self._ids, ledger_id)
        if at < len(self._ids) and self._ids[at] == ledger_id:
            if entry + 1 < self._ledger(ledger_id).entries:
                return Position(ledger_id, max(entry + 1, 0))
            at += 1
        return Position(self._ids[at], 0) if at < len(self._ids) else None

    def position_before(self, position: Position) -> Position:
        """The entry in front of a position, or a position before everything retained."""
        ledger_id, entry = position
        at = find(self._ids, ledger_id)
        if at < len(self._ids) and self._ids[at] == ledger_id and entry > 0:
            return Position(ledger_id, min(entry, self._ledger(ledger_id).entries) - 1)
        if at > 0:
            before = self._ids[at - 1]
            return Position(before, self._ledger(before).entries - 1)
        if position == LATEST:
            return self.last
        return Position(self._ids[0], -1) if self._ids else self.last if position >= self.last else NONE

    def pieces(self, after: Position, up_to: Position) -> Iterable[tuple[Ledger, int, int]]:
        """The entries with after < p <= up_to by ledger: (ledger, first, end); the ledgers are to be read only."""
        if up_to <= after:
            return
        at = find(self._ids, after[0])
        while at < len(self._ids) and self._ids[at] <= up_to[0]:
            ledger = self._ledger(self._ids[at])
            first = max(after[1] + 1, 0) if ledger.ledger == after[0] else 0
            end = min(up_to[1] + 1, ledger.entries) if ledger.ledger == up_to[0] else ledger.entries
            if first < end:
                yield ledger, first, end
            at += 1

    def entries_between(self, after: Position, up_to: Position) -> int:
        """Entries with after < p <= up_to."""
        return sum(end - first for _, first, end in self.pieces(after, up_to))

    def messages_between(self, after: Position, up_to: Position) -> int:
        """Messages in those entries."""
        return sum(ledger.messages_in(first, end) for ledger, first, end in self.pieces(after, up_to))

    def markers_between(self, after: Position, up_to: Position) -> int:
        """Markers among those entries."""
        return sum(ledger.markers_in(first, end) for ledger, first, end in self.pieces(after, up_to))

    def message_ids(self, ledger_id: int) -> BitMap:
        """Entry ids of a ledger without its markers; the caller's own. Empty when it is not here."""
        ledger = self._find(ledger_id)
        if ledger is None:
            return BitMap()
        found = BitMap(range(ledger.entries))
        found.difference_update(BitMap(ledger.markers))
        return found

    def bytes_between(self, after: Position, up_to: Position) -> int:
        """Bytes of those entries' records."""
        return sum(ledger.bytes_in(first, end) for ledger, first, end in self.pieces(after, up_to))

    def flags_at(self, position: Position) -> int:
        """The flags of an entry that is here."""
        return self._ledger(position[0]).flags[position[1]]

    def count_at(self, position: Position) -> int:
        """Messages in an entry that is here."""
        return self._ledger(position[0]).count(position[1])

    def size_at(self, position: Position) -> int:
        """The bytes of the data of an entry that is here, according to the index (a link's header counts as data)."""
        return self._ledger(position[0]).sizes[position[1]] - LOCAL_HEADER_BYTES

    def time_at(self, position: Position) -> int:
        """Publish time of an entry that is here, ms."""
        return self._ledger(position[0]).publish_times[position[1]]

    def stored_by(self, position: Position) -> int:
        """The latest time, in ms, at which an entry can have been stored: its publish time by the producer's clock, or
        the time at which the last entry of its ledger was stored, by the broker's clock.
        """
        ledger = self._ledger(position[0])
        return min(ledger.publish_times[position[1]], ledger.newest_ms)

    def batch_last_index(self, position: Position) -> int:
        """The last batch index of an entry that is here; -1 if it is not a batch."""
        ledger = self._find(position[0])
        if ledger is None or not ledger.flags[position[1]] & EntryFlags.BATCH:
            return -1
        return ledger.count(position[1]) - 1

    def last_dispatchable(self) -> Position:
        """The newest entry that a consumer can be given (markers are not), or NONE."""
        for ledger_id in reversed(self._ids):
            entry = self._ledger(ledger_id).last_message()
            if entry >= 0:
                return Position(ledger_id, entry)
        return NONE

    def seek_time(self, publish_time_ms: int) -> Position:
        """The first message with a publish time at or after `publish_time_ms`; LATEST when there is none.

        Markers do not count: their time is this broker's, that of the messages around them their producers'.
        """
        return self._first_since(publish_time_ms, lambda ledger: ledger.newest_publish)

    def first_since(self, time_ms: int) -> Position:
        """The first message that was not there before `time_ms` (`stored_by`); LATEST when there is none.

        Not `seek_time`: with it, a producer whose clock is ahead would keep all later messages from expiring.
        """
        return self._first_since(time_ms, lambda ledger: min(ledger.newest_publish, ledger.newest_ms))

    def _first_since(self, time_ms: int, newest_ms: Callable[[Ledger], int]) -> Position:
        """The first message published at that time or later, in a ledger that has something as new."""
        for ledger_id in self._ids:
            ledger = self._ledger(ledger_id)
            if newest_ms(ledger) < time_ms:
                continue
            for entry, published in enumerate(ledger.publish_times):
                if published >= time_ms and not ledger.flags[entry] & EntryFlags.MARKER:
                    return Position(ledger_id, entry)
        return LATEST

    def identity_of(self, position: Position) -> Identity | None:
        """The identity of the first message of an entry; the others of a batch follow it.

        The cluster is "" for entries published here. None: there is no such entry, or it is a marker, or it was lost to
        damage.
        """
        ledger = self._find(position[0])
        if ledger is None or not 0 <= position[1] < ledger.entries:
            return None
        found = ledger.index_at(position[1])
        return None if found is None else Identity(found[0].cluster, found[0].incarnation, found[1])

    def origin_index_of(self, position: Position) -> int:
        """The origin index of the first message of an entry; -1 where `identity_of` is None."""
        identity = self.identity_of(position)
        return -1 if identity is None else identity.index

    def position_of(self, identity: Identity) -> Position | None:
        """The entry here that holds a message; None when it is not (or no longer) here.

        Args:
            identity: with cluster "" for messages published here.
        """
        origin = OriginKey(identity.cluster, identity.incarnation)
        for ledger_id in reversed(self._ids):
            entry = self._ledger(ledger_id).entry_of(origin, identity.index)
            if entry is not None:
                return Position(ledger_id, entry)
        return None

    # ------------------------------------------------------------------------------------------------------- reading

    def cached(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Entries from `start` on that are in memory, in order; none if the first is not.

        Args:
            start: the first entry wanted; if there is none, the next one that is.
            entries_max, bytes_max: how many; one entry is given even if it is larger.
        """
        position = start if self.valid(start) else self.next_after(Position(start[0], start[1] - 1))
        found: list[StoredEntry] = []
        size = 0
        while position is not None and len(found) < entries_max and size < bytes_max:
            run = self._cache.run(position[0], position[1], entries_max - len(found), bytes_max - size)
            if not run:
                break
            found += run
            size += sum(len(entry.data) for entry in run)
            last = found[-1]
            if last.entry + 1 < self._ledger(last.ledger).entries:
                break
            position = self.next_after(Position(last.ledger, last.entry))
        self.cached_bytes = size
        return found

    def count_hits(self, entries: int, size: int) -> None:
        """Count entries and bytes that a reader took from memory."""
        self._cache.hits += entries
        self._cache.hit_bytes += size

    def count_reads(self, spans: Sequence[Span]) -> None:
        """A reader gets these from the disk."""
        self.read_entries += len(spans)
        self._cache.misses += len(spans)
        self._cache.miss_bytes += sum(span.size for span in spans)

    def cached_at(self, position: Position) -> StoredEntry | None:
        """The entry at a position, if it is in memory."""
        return self._cache.at(position[0], position[1])

    def locations(self, start: Position, entries_max: int, bytes_max: int) -> list[Span]:
        """The locations of the entries from `start` on, in order, for the reader."""
        position = start if self.valid(start) else self.next_after(Position(start[0], start[1] - 1))
        spans: list[Span] = []
        size = 0
        while position is not None and len(spans) < entries_max:
            ledger = self._ledger(position[0])
            columns = ledger.columns
            sizes, locations = columns.sizes, columns.locations
            for entry in range(position[1], ledger.entries):
                size += sizes[entry]
                if spans and (size > bytes_max or len(spans) >= entries_max):
                    return spans
                location = locations[entry]
                spans.append(
                    Span(location >> SEGMENT_SHIFT, location & OFFSET_MASK, sizes[entry], ledger.ledger, entry)
                )
            position = self.next_after(Position(ledger.ledger, ledger.entries - 1))
        return spans

    def locations_of(self, positions: Iterable[Position], bytes_max: int) -> list[Span]:
        """The locations of these entries, in order, for the reader; entries that are gone are left out.

        Args:
            positions: any.
            bytes_max: ceiling on all of them; one is returned even if it is larger.
        """
        spans: list[Span] = []
        size = 0
        for position in positions:
            if not self.valid(position):
                continue
            ledger, entry = self._ledger(position[0]), position[1]
            size += ledger.sizes[entry]
            if spans and size > bytes_max:
                break
            location = ledger.locations[entry]
            spans.append(
                Span(location >> SEGMENT_SHIFT, location & OFFSET_MASK, ledger.sizes[entry], ledger.ledger, entry)
            )
        return spans

    # ----------------------------------------------------------------------------------------------------------- links

    def _marks(self) -> dict[str, Position] | None:
        """A copy of those that are durable. A function: after `None` was assigned, mypy would believe that it is still there."""
        return dict(self._watermarks) if self._watermarks else None

    def watermark(self, source: str) -> Position:
        """The highest position of a source cluster that is durable here ("persisted"), or NONE."""
        return NONE if self._watermarks is None else self._watermarks.get(source, NONE)

    def watermark_pushed(self, source: str) -> Position:
        """The highest position of a source cluster that is on its way or durable ("pushed"), or NONE."""
        return NONE if self._staged_marks is None else self._staged_marks.get(source, NONE)

    def watermarks(self) -> dict[str, Position]:
        """All that are durable."""
        return dict(self._watermarks or {})

    # -------------------------------------------------------------------------------------------------------- retention

    def trim(
        self, keep_after: Position | None, now_ms: int, retention: Retention, *, whole: bool = False
    ) -> Trim | None:
        """The ledgers that may be deleted.

        Args:
            keep_after: everything after this *durable* position is needed (docs/design/links.md#durable-cursor); None:
                nothing is needed.
            now_ms: the clock.
            retention: how long entries stay that are not needed.
            whole: the last ledger may be deleted too, if it has no unconfirmed appends: it is closed then.

        Returns:
            None if there is nothing to delete.
        """
        whole = whole and not self._in_flight
        closed = [self._ledger(ledger_id) for ledger_id in (self._ids if whole else self._ids[:-1])]
        going = deletable(closed, self.bytes_retained, keep_after, now_ms, retention)
        if not going:
            return None
        at = find_after(self._ids, going[-1])
        if at < len(self._ids):
            return Trim(going, self._ids[at], self.next_index, self.watermarks())
        self.roll(now_ms)
        return Trim(going, going[-1] + 1, self.next_index, self.watermarks(), self.last)

    def forget(self, trim: Trim) -> None:
        """Remove the ledgers of a `trim` that was made durable elsewhere."""
        for ledger_id in trim.ledgers:
            ledger = self._find(ledger_id)
            if ledger is not None:
                self._remove(ledger)
                self.bytes_retained -= ledger.bytes
                self._cache.drop(ledger_id)

    def _remove(self, ledger: Ledger) -> None:
        older = self._older or {}
        if ledger is self._newest:
            self._newest = older.pop(max(older)) if older else None
        else:
            del older[ledger.ledger]
        if not older:
            self._older = None
        self._ids = tuple(ledger_id for ledger_id in self._ids if ledger_id != ledger.ledger)

    def validate(self) -> None:
        """Check what must hold after every step."""
        newest = () if self._newest is None else (self._newest.ledger,)
        assert self._ids == (*sorted(self._older or ()), *newest), "ledgers are out of order"
        assert self.bytes_retained == sum(ledger.bytes for ledger in self.ledger_infos())
        assert self.last == self._find_last() or not self._ids
        assert self._staged_index >= self.next_index
        for source, position in self.watermarks().items():
            assert self.watermark_pushed(source) >= position, f"staged watermark of {source} below the durable one"
