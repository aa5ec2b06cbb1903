"""GEO_READ: the entries after a position, those that are for the link and no others.

The walk uses the index first (one byte of flags per entry, no object). Entries that came from another cluster are skipped
without reading them (but for runs shorter than `BRIDGE`), so that a mesh of three clusters does not read three times the bytes
that it moves. The others are read in chunks; an entry that names its targets is parsed. `end` is the position up to which the
walk came; it moves the link's C past the entries that were left out.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import astuple

from magnetar.core.ids import Position
from magnetar.effects.outbox import Outbox, Read
from magnetar.replication.link.policy import MAY_GO, goes_to
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.topiclog import TopicLog
from magnetar.wire import pulsar_pb2 as pb
from magnetar.wire.positions import position_to_proto

ENTRIES_MAX: Final = 20_000
"""Entries in one answer: about 45 bytes of lists each, so that the command stays below a megabyte."""

LOOKED_MAX: Final = 200_000
"""Entries examined for one answer: a log full of other clusters' entries must not block the broker's loop (about 1 ms)."""

BRIDGE: Final = 32
"""Fewer unwanted entries in a row than this are read all the same: a read more would cost more than reading them."""

_ALL: Final = bytes([1]) * 256
_FOREIGN: Final = bytes(int(bool(flags & EntryFlags.REPLICATED)) for flags in range(256))

ReadReply = Callable[[pb.CommandGeoReadResponse, Sequence[bytes]], None]
Failed = Callable[[Position, str], None]


class Reading:
    """One GEO_READ under way.

    Args:
        outbox: the broker's.
        log: of the topic.
        cluster: this one; the origin of entries published here.
        to: the link's target; "" for every entry, whatever its kind (verify).
        origin: instead of `to`: only messages that this other cluster published, with where they stood there (restore).
        after, up_to: the range (after, up_to]; never past what is confirmed.
        bytes_max: of the entries' data; one entry is sent even if it is larger.
        reply: called once.
        failed: called with the entry that cannot be read, and why; only when nothing before it could be answered.
    """

    def __init__(
        self,
        outbox: Outbox,
        log: TopicLog,
        *,
        cluster: str,
        to: str,
        request_id: int,
        after: Position,
        up_to: Position | None,
        bytes_max: int,
        reply: ReadReply,
        failed: Failed,
        origin: str = "",
    ) -> None:
        self._outbox, self._log, self._cluster, self._to = outbox, log, cluster, to
        self._origin = origin
        self._reply, self._failed = reply, failed
        self._limit = log.last if up_to is None else min(up_to, log.last)
        self._left = bytes_max
        self._looked = 0
        self._end = after
        self._entries: list[StoredEntry] = []
        self._table = MAY_GO if to else _FOREIGN if origin else _ALL
        self._request_id = request_id

    def start(self) -> None:
        """Begin; the reply comes at once or after reads."""
        self._step()

    def _step(self) -> None:
        chunk = self._next_chunk() if self._left > 0 and len(self._entries) < ENTRIES_MAX else None
        if chunk is None:
            self._answer()
            return
        first, count = chunk

        def got(entries: list[StoredEntry], error: str) -> None:
            self._got(first, count, entries, error)

        self._outbox.put(Read(self._log.name, first, count, self._left, got))

    def _next_chunk(self) -> tuple[Position, int] | None:
        """The next run worth reading, within one ledger; moves the end past entries that are not for the link."""
        while self._end < self._limit and self._looked < LOOKED_MAX:
            begin = self._log.next_after(self._end)
            if begin is None or begin > self._limit:
                # Retention deleted all of them. They are looked at: else the link would ask for them for ever.
                self._end = self._limit
                return None
            ids = self._log.ledger_ids()
            ledger = self._log.ledger_infos()[bisect_left(ids, begin.ledger)]
            stop = min(self._limit.entry + 1, ledger.entries) if begin.ledger == self._limit.ledger else ledger.entries
            stop = min(stop, begin.entry + LOOKED_MAX - self._looked)
            segment = ledger.flags[begin.entry : stop].translate(self._table)
            skip = segment.find(1)
            if skip < 0:
                self._looked += len(segment)
                self._end = Position(begin.ledger, stop - 1)
                continue
            self._looked += skip
            if skip:
                self._end = Position(begin.ledger, begin.entry + skip - 1)
            count = _run(segment, skip, min(ENTRIES_MAX - len(self._entries), len(segment) - skip))
            return Position(begin.ledger, begin.entry + skip), count
        return None

    def _got(self, first: Position, count: int, entries: list[StoredEntry], error: str) -> None:
        if error or not entries:
            if error and not self._entries:
                self._failed(first, error)
                self._answer(blocked="corrupt", message=f"entry {first} of {self._log.name} cannot be read: {error}")
            else:
                self._answer()
            return
        last = Position(first.ledger, first.entry + count - 1)
        if not first <= entries[0].position <= last:
            # The entries are of another incarnation: the topic was deleted and created again, and this log is no longer in use.
            # Or retention was faster. Asking again would give the same answer.
            self._answer()
            return
        for entry in entries:
            position = entry.position
            if position > last or position > self._limit:
                break
            if self._for_link(entry):
                size = len(entry.data)
                if self._entries and size > self._left:
                    self._left = 0
                    break
                self._entries.append(entry)
                self._left -= size
            self._looked += 1
            self._end = position
        self._step()

    def _for_link(self, entry: StoredEntry) -> bool:
        if self._origin:
            return entry.origin == self._origin and entry.first_index >= 0
        return not self._to or goes_to(entry.flags, entry.data, self._to)

    def _answer(self, blocked: str = "", message: str = "") -> None:
        response = pb.CommandGeoReadResponse(request_id=self._request_id, end=position_to_proto(self._end))
        fill(response, self._entries, self._cluster, self._log.incarnation)
        if self._origin:
            response.source_ledgers.extend([entry.source.ledger for entry in self._entries])
            response.source_entries.extend([entry.source.entry for entry in self._entries])
        if blocked:
            response.blocked, response.message = blocked, message
        self._reply(response, [entry.data for entry in self._entries])


def _run(segment: bytes | bytearray, start: int, most: int) -> int:
    """How many entries from `start` on are worth one read: to the end of the last wanted one before a long hole."""
    hole = segment.find(bytes(BRIDGE), start, start + most)
    return (hole if hole >= 0 else start + most) - start


def fill(response: pb.CommandGeoReadResponse, entries: Sequence[StoredEntry], cluster: str, incarnation: int) -> None:
    """Put the lists that describe entries into an answer; those published here are of this topic's incarnation."""
    if not entries:
        return
    # One column at a time: the loop runs in C, and no object is made for an entry.
    ledgers, numbers, flags, counts, published, stamps, origins, incarnations, first_indexes, _, data = zip(
        *map(astuple, entries), strict=True
    )
    response.ledgers.extend(ledgers)
    response.entries.extend(numbers)
    response.first_indexes.extend(first_indexes)
    response.counts.extend(counts)
    response.flags.extend(flags)
    response.publish_times.extend(published)
    response.broker_times.extend(stamps)
    response.sizes.extend(map(len, data))
    response.incarnations.extend([foreign or incarnation for foreign in incarnations])
    distinct = list(dict.fromkeys(origins))
    response.origins.extend(origin or cluster for origin in distinct)
    if len(distinct) == 1:
        response.origin_ids.extend(array("I", bytes(4 * len(entries))))
    else:
        number = {origin: at for at, origin in enumerate(distinct)}
        response.origin_ids.extend([number[origin] for origin in origins])
