"""The ledgers of one topic as one ordered sequence of entries: the next entry after a position, and the number of
entries between two positions.
"""

from collections.abc import Callable, Iterable

from pyroaring import BitMap

from magnetar.core.ids import LATEST, NONE, Identity, OriginKey, Position
from magnetar.storage.entries import EntryFlags
from magnetar.storage.ledger import Ledger, find
from magnetar.storage.records import LOCAL_HEADER_BYTES


class Ledgers:
    """The confirmed entries of one topic.

    Attributes:
        last: position of the newest entry, also when it was deleted; NONE if there never was one.
    """

    def __init__(self) -> None:
        self._ledgers: dict[int, Ledger] = {}
        self._ids: list[int] = []
        self.last = NONE

    def _find_last(self) -> Position:
        for ledger_id in reversed(self._ids):
            ledger = self._ledgers[ledger_id]
            if ledger.entries:
                return Position(ledger_id, ledger.entries - 1)
        return NONE

    @property
    def first(self) -> Position:
        """The first retained entry, or NONE."""
        for ledger_id in self._ids:
            if self._ledgers[ledger_id].entries:
                return Position(ledger_id, 0)
        return NONE

    def ledger_ids(self) -> list[int]:
        """Retained ledgers, ascending."""
        return list(self._ids)

    def ledger_infos(self) -> list[Ledger]:
        """Retained ledgers, ascending; to be read only."""
        return [self._ledgers[ledger_id] for ledger_id in self._ids]

    def valid(self, position: Position) -> bool:
        """Whether there is an entry at a position."""
        ledger = self._ledgers.get(position[0])
        return ledger is not None and 0 <= position[1] < ledger.entries

    def next_after(self, position: Position) -> Position | None:
        """The first entry after a position (any position, also of a ledger that is gone), or None."""
        ledger_id, entry = position
        at = find(self._ids, ledger_id)
        if at < len(self._ids) and self._ids[at] == ledger_id:
            if entry + 1 < self._ledgers[ledger_id].entries:
                return Position(ledger_id, max(entry + 1, 0))
            at += 1
        return Position(self._ids[at], 0) if at < len(self._ids) else None

    def position_before(self, position: Position) -> Position:
        """The entry in front of a position, or a position before everything retained."""
        ledger_id, entry = position
        at = find(self._ids, ledger_id)
        if at < len(self._ids) and self._ids[at] == ledger_id and entry > 0:
            return Position(ledger_id, min(entry, self._ledgers[ledger_id].entries) - 1)
        if at > 0:
            before = self._ids[at - 1]
            return Position(before, self._ledgers[before].entries - 1)
        if position == LATEST:
            return self.last
        return Position(self._ids[0], -1) if self._ids else self.last if position >= self.last else NONE

    def _pieces(self, after: Position, up_to: Position) -> Iterable[tuple[Ledger, int, int]]:
        """(ledger, first, end) of the entries with after < p <= up_to."""
        if up_to <= after:
            return
        at = find(self._ids, after[0])
        while at < len(self._ids) and self._ids[at] <= up_to[0]:
            ledger = self._ledgers[self._ids[at]]
            first = max(after[1] + 1, 0) if ledger.ledger == after[0] else 0
            end = min(up_to[1] + 1, ledger.entries) if ledger.ledger == up_to[0] else ledger.entries
            if first < end:
                yield ledger, first, end
            at += 1

    def pieces(self, after: Position, up_to: Position) -> Iterable[tuple[Ledger, int, int]]:
        """The entries with after < p <= up_to by ledger: (ledger, first, end); the ledgers are to be read only."""
        return self._pieces(after, up_to)

    def entries_between(self, after: Position, up_to: Position) -> int:
        """Entries with after < p <= up_to."""
        return sum(end - first for _, first, end in self._pieces(after, up_to))

    def messages_between(self, after: Position, up_to: Position) -> int:
        """Messages in those entries."""
        return sum(ledger.messages_in(first, end) for ledger, first, end in self._pieces(after, up_to))

    def markers_between(self, after: Position, up_to: Position) -> int:
        """Markers among those entries."""
        return sum(ledger.markers_in(first, end) for ledger, first, end in self._pieces(after, up_to))

    def message_ids(self, ledger_id: int) -> BitMap:
        """Entry ids of a ledger without its markers; the caller's own. Empty when it is not here."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return BitMap()
        found = BitMap(range(ledger.entries))
        found.difference_update(BitMap(ledger.markers))
        return found

    def bytes_between(self, after: Position, up_to: Position) -> int:
        """Bytes of those entries' records."""
        return sum(ledger.bytes_in(first, end) for ledger, first, end in self._pieces(after, up_to))

    def flags_at(self, position: Position) -> int:
        """The flags of an entry that is here."""
        return self._ledgers[position[0]].flags[position[1]]

    def count_at(self, position: Position) -> int:
        """Messages in an entry that is here."""
        return self._ledgers[position[0]].count(position[1])

    def size_at(self, position: Position) -> int:
        """The bytes of the data of an entry that is here, according to the index (a link's header counts as data)."""
        return self._ledgers[position[0]].sizes[position[1]] - LOCAL_HEADER_BYTES

    def time_at(self, position: Position) -> int:
        """Publish time of an entry that is here, ms."""
        return self._ledgers[position[0]].publish_times[position[1]]

    def stored_by(self, position: Position) -> int:
        """The latest time, in ms, at which an entry can have been stored: its publish time by the producer's clock, or
        the time at which the last entry of its ledger was stored, by the broker's clock.
        """
        ledger = self._ledgers[position[0]]
        return min(ledger.publish_times[position[1]], ledger.newest_ms)

    def batch_last_index(self, position: Position) -> int:
        """The last batch index of an entry that is here; -1 when it is no batch."""
        ledger = self._ledgers.get(position[0])
        if ledger is None or not ledger.flags[position[1]] & EntryFlags.BATCH:
            return -1
        return ledger.count(position[1]) - 1

    def last_dispatchable(self) -> Position:
        """The newest entry that a consumer can be given (markers are not), or NONE."""
        for ledger_id in reversed(self._ids):
            entry = self._ledgers[ledger_id].last_message()
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
            ledger = self._ledgers[ledger_id]
            if newest_ms(ledger) < time_ms:
                continue
            for entry, published in enumerate(ledger.publish_times):
                if published >= time_ms and not ledger.flags[entry] & EntryFlags.MARKER:
                    return Position(ledger_id, entry)
        return LATEST

    # ---------------------------------------------------------------------------------------------------------- origin

    def identity_of(self, position: Position) -> Identity | None:
        """The identity of the first message of an entry; the others of a batch follow it.

        The cluster is "" for entries published here. None: there is no such entry, or it is a marker, or it was lost to
        damage.
        """
        ledger = self._ledgers.get(position[0])
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
            entry = self._ledgers[ledger_id].entry_of(origin, identity.index)
            if entry is not None:
                return Position(ledger_id, entry)
        return None
