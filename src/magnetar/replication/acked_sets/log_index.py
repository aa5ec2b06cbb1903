"""Converts positions of a topic's log here to sets of messages, which mean the same in every cluster, and back.

All conversions use the runs of the log's origin index map (`storage.ledger`): within a run an index is the run's first plus
the messages in between. So nothing loops over messages, and only single acknowledgements need a loop over entries.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pyroaring import BitMap, BitMap64

from magnetar.core.ids import NONE, OriginKey, Position
from magnetar.replication.acked_sets.message_set import MessageSet, between, runs_of
from magnetar.replication.marker_host import Acked
from magnetar.storage.cursor import Cursor
from magnetar.storage.ledger import Ledger
from magnetar.storage.positions import PositionSet
from magnetar.storage.positions import runs_of as entry_runs_of
from magnetar.storage.topiclog import TopicLog


class Located(NamedTuple):
    """Messages as positions of this cluster's log.

    Attributes:
        entries: of which all messages are meant; markers are never among them.
        partial: position -> bit set of the messages of an entry that are meant, when it is not all.
    """

    entries: PositionSet
    partial: dict[Position, int]

    def __bool__(self) -> bool:
        return bool(self.entries) or bool(self.partial)


class LogIndex:
    """One topic's log as sets of messages.

    Args:
        log: the topic's.
        cluster: this one; the log calls it "".
    """

    def __init__(self, log: TopicLog, cluster: str) -> None:
        self.log = log
        self.cluster = cluster
        self.here = OriginKey(cluster, log.incarnation)
        self._lowest: dict[OriginKey, int] = {}
        self._lowest_of: tuple[int, ...] = ()

    def _named(self, origin: OriginKey) -> OriginKey:
        return origin if origin.cluster else self.here

    # ------------------------------------------------------------------------------------------------- log -> messages

    def spans(self, after: Position, up_to: Position) -> Iterator[tuple[OriginKey, int, int]]:
        """The messages of the entries with after < p <= up_to, as (origin, first index, end), in the log's order."""
        for ledger, first, end in self.log.pieces(after, up_to):
            yield from self._spans(ledger, first, end)

    def _spans(self, ledger: Ledger, first: int, end: int) -> Iterator[tuple[OriginKey, int, int]]:
        columns = ledger.columns
        starts = columns.run_entries
        run = max(0, bisect_right(starts, first) - 1)
        while run < len(starts) and starts[run] < end:
            origin = columns.run_origins[run]
            if origin is not None:
                begin = max(starts[run], first)
                stop = min(starts[run + 1], end) if run + 1 < len(starts) else end
                index = columns.run_firsts[run] + ledger.messages_in(starts[run], begin)
                count = ledger.messages_in(begin, stop)
                if count:
                    yield self._named(origin), index, index + count
            run += 1

    def held(self, after: Position = NONE, up_to: Position | None = None) -> MessageSet:
        """The messages of the entries with after < p <= up_to (the newest)."""
        found = MessageSet()
        for origin, first, end in self.spans(after, self.log.last if up_to is None else up_to):
            found.add_range(origin, first, end)
        return found

    def of_entries(self, positions: Iterable[Position]) -> MessageSet:
        """The messages of single entries; neighbours are taken together."""
        found = MessageSet()
        start = last = NONE
        for position in positions:
            if position.entry == last.entry + 1 and position.ledger == last.ledger:
                last = position
                continue
            self._take(found, start, last)
            start = last = position
        self._take(found, start, last)
        return found

    def _take(self, found: MessageSet, start: Position, last: Position) -> None:
        if start != NONE:
            for origin, first, end in self.spans(Position(start.ledger, start.entry - 1), last):
                found.add_range(origin, first, end)

    def add_partial(self, found: MessageSet, partial: Mapping[Position, int]) -> None:
        """Add messages of batches: position -> bit set."""
        for position, given in partial.items():
            identity = self.log.identity_of(position)
            if identity is None:
                continue
            origin = self._named(OriginKey(identity.cluster, identity.incarnation))
            at, bits = identity.index, given & ((1 << self.log.count_at(position)) - 1)
            while bits:
                skip = (bits & -bits).bit_length() - 1
                bits >>= skip
                length = (~bits & (bits + 1)).bit_length() - 1
                found.add_range(origin, at + skip, at + skip + length)
                at += skip + length
                bits >>= length

    def of_acked(self, acked: Acked) -> MessageSet:
        """The messages that a local acknowledgement covers: those *held*, never "all indexes up to".

        See docs/design/acknowledged-sets.md#only-what-is-held.
        """
        found = self.of_entries(acked.entries) if acked.entries else MessageSet()
        if acked.up_to > acked.after:
            for origin, first, end in self.spans(acked.after, acked.up_to):
                found.add_range(origin, first, end)
        if acked.partial:
            self.add_partial(found, acked.partial)
        return found

    def of_cursor(self, cursor: Cursor) -> MessageSet:
        """The messages here that a cursor has acknowledged: those up to mark-delete, and those above it."""
        found = self.held(NONE, cursor.mark_delete)
        for ledger, entries in cursor.acked.ledgers.items():
            for first, last in entry_runs_of(entries):
                self._take(found, Position(ledger, first), Position(ledger, last))
        acked = {position: ((1 << partial.size) - 1) & ~partial.bits for position, partial in cursor.partial.items()}
        self.add_partial(found, acked)
        return found

    # ------------------------------------------------------------------------------------------------- messages -> log

    def held_of(self, messages: MessageSet) -> MessageSet:
        """The messages of a set that are in this log."""
        found = MessageSet()
        for _, _, _, origin, _, piece in self._meets(messages):
            mine = found.origins.get(origin)
            if mine is None:
                found.origins[origin] = piece
            else:
                mine |= piece
        return found

    def locate(self, messages: MessageSet) -> Located:
        """The positions of some messages in this log; those that are not here are left out."""
        ledgers: dict[int, BitMap] = {}
        partial: dict[Position, int] = {}
        for ledger, start, stop, _, first, piece in self._meets(messages):
            entries = ledgers.setdefault(ledger.ledger, BitMap())
            if len(piece) == ledger.messages_in(start, stop):
                entries.add_range(start, stop)
            else:
                self._locate(ledger, start, stop, first, piece, entries, partial)
            if ledger.markers_in(start, stop):
                low, high = (bisect_right(ledger.markers, entry - 1) for entry in (start, stop))
                entries -= BitMap(ledger.markers[low:high])
        located = PositionSet()
        for ledger_id, found in ledgers.items():
            if found:
                located.ledgers[ledger_id] = found
                located.size += len(found)
        return Located(located, partial)

    @staticmethod
    def _locate(
        ledger: Ledger,
        start: int,
        stop: int,
        first: int,
        piece: BitMap64,
        entries: BitMap,
        partial: dict[Position, int],
    ) -> None:
        """Part of one run: `piece` are indexes, `first` is that of the first message of entry `start`."""
        offset = (ledger.messages[start - 1] if start else 0) - first
        messages = ledger.messages
        for low, high in runs_of(piece):  # of indexes low..high-1
            head = bisect_right(messages, low + offset, start, stop)
            tail = bisect_right(messages, high - 1 + offset, head, stop)
            head_first = (messages[head - 1] if head else 0) - offset
            tail_end = messages[tail] - offset
            whole, whole_end = head, tail + 1
            if low > head_first:
                most = messages[head] - offset
                bits = (1 << (min(high, most) - head_first)) - (1 << (low - head_first))
                _add(partial, Position(ledger.ledger, head), bits)
                whole = head + 1
            if high < tail_end and (tail > head or low == head_first):
                tail_first = (messages[tail - 1] if tail else 0) - offset
                _add(partial, Position(ledger.ledger, tail), (1 << (high - tail_first)) - 1)
                whole_end = tail
            if whole < whole_end:
                entries.add_range(whole, whole_end)

    def _meets(self, messages: MessageSet) -> Iterator[tuple[Ledger, int, int, OriginKey, int, BitMap64]]:
        """(ledger, first entry, end, origin, first index, those of the messages) of each run that holds some of them."""
        if not messages:
            return
        bounds = {key: (bitmap.min(), bitmap.max()) for key, bitmap in messages.origins.items()}
        for ledger in self.log.ledger_infos():
            columns = ledger.columns
            starts, firsts = columns.run_entries, columns.run_firsts
            for origin, runs in columns.origins.items():
                key = self._named(origin)
                bound = bounds.get(key)
                if bound is None:
                    continue
                begin, end = 0, len(runs)
                if not columns.disordered:
                    begin = max(0, bisect_right(runs, bound[0], key=firsts.__getitem__) - 1)
                    end = bisect_right(runs, bound[1], key=firsts.__getitem__)
                for run in runs[begin:end]:
                    start = starts[run]
                    stop = starts[run + 1] if run + 1 < len(starts) else ledger.entries
                    first = firsts[run]
                    last = first + ledger.messages_in(start, stop)
                    wanted = messages.origins[key]
                    count = wanted.range_cardinality(first, last) if last > first else 0
                    if count:
                        piece = between(first, last)
                        if count < last - first:
                            piece &= wanted
                        yield ledger, start, stop, key, first, piece

    # ----------------------------------------------------------------------------------------------------------- marks

    def lowest(self) -> dict[str, tuple[int, int]]:
        """Per cluster the first of its messages that is retained here: (incarnation, index)."""
        ledgers = self.log.ledger_infos()
        closed = tuple(ledger.ledger for ledger in ledgers[:-1])
        if closed != self._lowest_of:
            self._lowest_of, self._lowest = closed, {}
            for ledger in ledgers[:-1]:
                self._lower(self._lowest, ledger)
        found = self._lowest
        if ledgers:
            found = dict(self._lowest)
            self._lower(found, ledgers[-1])
        marks: dict[str, tuple[int, int]] = {}
        for key, index in found.items():
            mark = marks.get(key.cluster)
            if mark is None or (key.incarnation, index) < mark:
                marks[key.cluster] = (key.incarnation, index)
        return marks

    def highest(self) -> dict[str, tuple[int, int]]:
        """Per cluster one above the last of its messages that is retained here: (incarnation, index)."""
        marks: dict[str, tuple[int, int]] = {}
        for ledger in self.log.ledger_infos():
            columns = ledger.columns
            starts = columns.run_entries
            for origin, runs in columns.origins.items():
                key = self._named(origin)
                for run in runs if columns.disordered else runs[-1:]:
                    stop = starts[run + 1] if run + 1 < len(starts) else ledger.entries
                    end = columns.run_firsts[run] + ledger.messages_in(starts[run], stop)
                    marks[key.cluster] = max(marks.get(key.cluster, (0, 0)), (key.incarnation, end))
        return marks

    def newest_incarnation(self, cluster: str) -> int:
        """The incarnation of the newest message here that a cluster published; 0 when there is none."""
        for ledger in reversed(self.log.ledger_infos()):
            origins = ledger.columns.origins
            runs = [(runs[-1], key.incarnation) for key, runs in origins.items() if key.cluster == cluster]
            if runs:
                return max(runs)[1]
        return 0

    def _lower(self, lowest: dict[OriginKey, int], ledger: Ledger) -> None:
        columns = ledger.columns
        for origin, runs in columns.origins.items():
            key = self._named(origin)
            firsts = columns.run_firsts
            first = min(firsts[run] for run in runs) if columns.disordered else firsts[runs[0]]
            lowest[key] = min(first, lowest.get(key, first))


def _add(partial: dict[Position, int], position: Position, bits: int) -> None:
    partial[position] = partial.get(position, 0) | bits
