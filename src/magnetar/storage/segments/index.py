"""The index of one segment, without its data: made by a scan and kept in a sidecar file, so that a restart need not
scan again.

A *piece* is a run of consecutive entries of one ledger in one segment, in parallel arrays. `Ledger` puts a ledger
together from its pieces, from any segments and in any order.

The sidecar file `<number>.idx` of a closed segment:

    magic (12) | crc32c of the rest (4) | MessagePack of `_File`

Arrays are little-endian bytes. A sidecar that is missing, torn, damaged or of another version costs a scan, nothing else.
"""

import sys
from array import array
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from magnetar.core.ids import Position
from magnetar.storage.entries import EntryFlags, StoredEntry
from magnetar.storage.records import EntryHead, LedgerOpened

INDEX_MAGIC: Final = b"MAGNETARI\x00\x00\x01"
INDEX_SUFFIX: Final = ".idx"

_MARKER: Final = int(EntryFlags.MARKER)


class Run(NamedTuple):
    """Consecutive entries of one origin whose indexes follow each other; markers inside take none.

    Attributes:
        entry: id of the first entry.
        origin: cluster, "" for this one.
        incarnation: of the topic there, 0 for this one.
        first_index: of the first entry's first message.
    """

    entry: int
    origin: str
    incarnation: int
    first_index: int


class LedgerOpening(NamedTuple):
    """A record that is not an entry, and its location."""

    opened: LedgerOpened
    offset: int
    size: int


class Piece:
    """The entries first..first+n-1 of a ledger that are in one segment."""

    __slots__ = (
        "counts",
        "damaged",
        "first",
        "flags",
        "ledger",
        "newest_ms",
        "next_index",
        "offsets",
        "publish_times",
        "run_next",
        "runs",
        "sizes",
        "watermarks",
    )

    def __init__(self, ledger: int, first: int) -> None:
        self.ledger = ledger
        self.first = first
        self.offsets: array[int] = array("Q")
        self.sizes: array[int] = array("I")
        self.flags = bytearray()
        self.counts: array[int] = array("I")
        self.publish_times: array[int] = array("q")
        self.newest_ms = 0
        self.next_index = 0
        self.runs: list[Run] = []
        self.run_next = -1
        self.watermarks: dict[str, Position] = {}
        self.damaged: list[int] = []

    def __len__(self) -> int:
        return len(self.flags)

    @property
    def end(self) -> int:
        """The entry id after the last."""
        return self.first + len(self.flags)

    def add_local(
        self, offset: int, size: int, flags: int, count: int, publish_time: int, broker_time: int, first_index: int
    ) -> None:
        """The next entry, published here."""
        if first_index >= 0:
            if first_index != self.run_next or self.runs[-1].origin:
                self.runs.append(Run(self.end, "", 0, first_index))
            self.run_next = following = first_index + count
            if following > self.next_index:
                self.next_index = following
        self.offsets.append(offset)
        self.sizes.append(size)
        self.flags.append(flags)
        self.counts.append(count)
        self.publish_times.append(publish_time)
        if broker_time > self.newest_ms:
            self.newest_ms = broker_time

    def add(self, offset: int, size: int, head: EntryHead | StoredEntry) -> None:
        """The next entry."""
        if not head.origin:
            self.add_local(offset, size, head.flags, head.count, head.publish_time, head.broker_time, head.first_index)
            return
        flags = head.flags
        count = head.count
        if head.first_index >= 0:
            index = head.first_index
            runs = self.runs
            if (
                not runs
                or self.run_next != index
                or runs[-1].origin != head.origin
                or runs[-1].incarnation != head.incarnation
            ):
                runs.append(Run(self.end, head.origin, head.incarnation, index))
            self.run_next = index + count
        known = self.watermarks.get(head.origin)
        if known is None or head.source > known:
            self.watermarks[head.origin] = head.source
        self.offsets.append(offset)
        self.sizes.append(size)
        self.flags.append(flags)
        self.counts.append(count)
        self.publish_times.append(head.publish_time)
        if head.broker_time > self.newest_ms:
            self.newest_ms = head.broker_time


@dataclass
class SegmentIndex:
    """The index of one segment.

    Attributes:
        number: number of the segment.
        end: bytes at or after this offset are not part of it.
        ledger_high: highest ledger id of the log when the segment was started.
        openings: openings of ledgers.
        pieces: runs of entries.
        problems: damage found, one line each.
    """

    number: int
    end: int = 0
    ledger_high: int = -1
    openings: list[LedgerOpening] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _last: dict[int, Piece] = field(default_factory=dict, init=False, repr=False, compare=False)

    def last_piece(self, ledger: int) -> Piece | None:
        """The piece of a ledger that was begun last by `piece`."""
        return self._last.get(ledger)

    def piece(self, ledger: int, entry: int) -> Piece:
        """The piece that an entry continues, or a new one."""
        piece = self._last.get(ledger)
        if piece is None or piece.end != entry:
            piece = self._last[ledger] = Piece(ledger, entry)
            self.pieces.append(piece)
        return piece

    def bytes_by_ledger(self) -> dict[int, int]:
        """Bytes of the entries of each ledger."""
        held: dict[int, int] = {}
        for piece in self.pieces:
            held[piece.ledger] = held.get(piece.ledger, 0) + sum(piece.sizes)
        for opening in self.openings:
            held.setdefault(opening.opened.ledger, 0)
        return held


# --------------------------------------------------------------------------------------------------------- sidecar file


class _Piece(msgspec.Struct, array_like=True):
    ledger: int
    first: int
    offsets: bytes
    sizes: bytes
    flags: bytes
    counts: bytes
    publish_times: bytes
    newest_ms: int
    next_index: int
    runs: list[tuple[int, str, int, int]]
    watermarks: dict[str, tuple[int, int]]
    damaged: list[int]


class _File(msgspec.Struct, array_like=True):
    number: int
    end: int
    ledger_high: int
    openings: list[tuple[int, int, int, str, int, int]]
    pieces: list[_Piece]
    problems: list[str]


def _little(values: "array[int]") -> bytes:
    if sys.byteorder != "little":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def _native(kind: str, data: bytes) -> "array[int]":
    values: array[int] = array(kind)
    values.frombytes(data)
    if sys.byteorder != "little":
        values.byteswap()
    return values


def encode_index(index: SegmentIndex) -> bytes:
    """A sidecar's bytes."""
    file = _File(
        index.number,
        index.end,
        index.ledger_high,
        [(*opening.opened, opening.offset, opening.size) for opening in index.openings],
        [
            _Piece(
                piece.ledger,
                piece.first,
                _little(piece.offsets),
                _little(piece.sizes),
                bytes(piece.flags),
                _little(piece.counts),
                _little(piece.publish_times),
                piece.newest_ms,
                piece.next_index,
                [(run.entry, run.origin, run.incarnation, run.first_index) for run in piece.runs],
                {source: (position.ledger, position.entry) for source, position in piece.watermarks.items()},
                piece.damaged,
            )
            for piece in index.pieces
        ],
        index.problems,
    )
    body = msgspec.msgpack.encode(file)
    return INDEX_MAGIC + crc32c(body).to_bytes(4, "little") + body


def decode_index(data: bytes, number: int) -> SegmentIndex | None:
    """Read a sidecar of segment `number`; None when it is torn, damaged, of another version or of another segment."""
    head = len(INDEX_MAGIC) + 4
    body = memoryview(data)[head:]
    if (
        len(data) < head
        or not data.startswith(INDEX_MAGIC)
        or crc32c(body) != int.from_bytes(data[head - 4 : head], "little")
    ):
        return None
    try:
        file = msgspec.msgpack.decode(body, type=_File)
    except msgspec.DecodeError:
        return None
    if file.number != number:
        return None
    index = SegmentIndex(number, file.end, file.ledger_high, problems=file.problems)
    for ledger, incarnation, created_ms, topic, offset, size in file.openings:
        index.openings.append(LedgerOpening(LedgerOpened(ledger, incarnation, created_ms, topic), offset, size))
    for stored in file.pieces:
        piece = Piece(stored.ledger, stored.first)
        piece.offsets = _native("Q", stored.offsets)
        piece.sizes = _native("I", stored.sizes)
        piece.flags = bytearray(stored.flags)
        piece.counts = _native("I", stored.counts)
        piece.publish_times = _native("q", stored.publish_times)
        piece.newest_ms = stored.newest_ms
        piece.next_index = stored.next_index
        piece.runs = [Run(*run) for run in stored.runs]
        piece.watermarks = {source: Position(*position) for source, position in stored.watermarks.items()}
        piece.damaged = stored.damaged
        index.pieces.append(piece)
    return index
