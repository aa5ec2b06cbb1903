"""Reading a segment from front to back, in steps, into a `SegmentIndex`.

There are three kinds of segments:

- a closed or sealed segment is whole up to its end: any other content is damage, reported with its location;
- the *tail* of the log (the last segment after a crash) may be torn: nothing after the last check that can be found is
  known to be durable, so the first record there that is not whole ends the segment. Before that check such a record is
  damage;
- a segment that this process wrote itself is trusted (`verify=False`): only the locations of its records are wanted.
"""

from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from magnetar.storage.entries import EntryFlags
from magnetar.storage.records import (
    CHECK_RECORD_BYTES,
    LOCAL,
    LOCAL_HEADER_BYTES,
    LOCAL_RECORD,
    PREFIX_BYTES,
    RECORD_BYTES_MAX,
    REPLICATED,
    SEGMENT_MAGIC,
    Checked,
    EntryHead,
    LedgerOpened,
    Started,
    check_pattern,
    read_head,
    whole,
)
from magnetar.storage.segments.index import LedgerOpening, Piece, Run, SegmentIndex

READ_BYTES: Final = 4 * 1024 * 1024
"""The bytes of a segment that are read at a time: enough to be sequential, and little memory."""

HEAD_BYTES: Final = 4 * 1024
"""The bytes that are read of a record whose data are not wanted: more than its head can have, and one page of the
file.
"""

_COUNT_MAX: Final = 65_536


class Scanner:
    """One scan of one segment.

    Args:
        number: of the segment.
        pread: reads (offset, size).
        end: the size of the segment, or the offset at which a seal cuts it.
        tail: the segment may be torn.
        verify: compare checksums.

    Attributes:
        durable: up to this offset the segment was on the disk when its last check was written.
    """

    def __init__(
        self, number: int, pread: Callable[[int, int], bytes], end: int, *, tail: bool = False, verify: bool = True
    ) -> None:
        self.index = SegmentIndex(number, end)
        self.offset = len(SEGMENT_MAGIC)
        self.torn_bytes = 0
        self.durable = 0
        self.done = self.offset >= end
        self._number = number
        self._pread = pread
        self._end = end
        self._tail = tail
        self._verify = verify
        self._heads = False
        self._salt = b""

    def run(self) -> SegmentIndex:
        """Scan to the end."""
        while not self.done:
            self.step(READ_BYTES)
        return self.index

    def step(self, bytes_max: int) -> None:
        """Scan about this many more bytes, at least one record."""
        block = HEAD_BYTES if self._heads else bytes_max
        buffer = memoryview(self._pread(self.offset, min(block, self._end - self.offset)))
        at = self._records(buffer)
        if not self._verify:
            at = self._entry_without_data(buffer, at)
            # After a record that is larger than the block, another one is likely: reading its data is useless.
            self._heads = at > len(buffer)
        if not at:
            # Not one whole record: it is larger than the block, or torn, or damaged.
            size = int.from_bytes(buffer[:4], "little") + PREFIX_BYTES
            if len(buffer) < size <= min(RECORD_BYTES_MAX + PREFIX_BYTES, self._end - self.offset):
                at = self._records(memoryview(self._pread(self.offset, size)))
        if at:
            self.offset += at
        else:
            self._damaged()
        if self.offset >= self._end:
            self.done = True

    def _records(self, buffer: memoryview) -> int:
        """Take in the whole records at the start of a block; how many bytes they have."""
        at = self._local_records(buffer, 0)
        verify = self._verify
        base = self.offset
        while (size := whole(buffer, at, check=verify)) > 0:
            record = read_head(buffer, at)
            if type(record) is EntryHead:
                self._entry(record, base + at, size)
            else:
                self._other(record, base + at, size)
            at = self._local_records(buffer, at + size)
        return at

    def _local_records(self, buffer: memoryview, at: int) -> int:
        """The same for a stretch of entries published here, which is what most of a log is; no object is made for one."""
        verify = self._verify
        base = self.offset
        unpack = LOCAL_RECORD.unpack_from
        limit = len(buffer) - LOCAL_HEADER_BYTES
        piece: Piece | None = None
        while at <= limit:
            length, checksum, kind, ledger, entry, flags, count, published, stored, first = unpack(buffer, at)
            end = at + PREFIX_BYTES + length
            if kind != LOCAL or end > len(buffer):
                break
            if verify and crc32c(buffer[at + PREFIX_BYTES : end], crc32c(buffer[at : at + 4])) != checksum:
                break
            if piece is None or piece.ledger != ledger or piece.end != entry:
                piece = self.index.piece(ledger, entry)
            piece.add_local(base + at, end - at, flags, count, published, stored, first)
            at = end
        return at

    def _entry_without_data(self, buffer: memoryview, at: int) -> int:
        """Add an entry that begins in a block and ends after it, by its head. Returns its end, or `at` if it is not an
        entry.
        """
        if len(buffer) - at < HEAD_BYTES - CHECK_RECORD_BYTES or buffer[at + PREFIX_BYTES] not in (LOCAL, REPLICATED):
            return at
        length = int.from_bytes(buffer[at : at + 4], "little")
        size = PREFIX_BYTES + length
        if length > RECORD_BYTES_MAX or self.offset + at + size > self._end:
            return at
        head = read_head(buffer, at)
        assert isinstance(head, EntryHead)
        self._entry(head, self.offset + at, size)
        return at + size

    def _entry(self, head: EntryHead, offset: int, size: int) -> None:
        self.index.piece(head.ledger, head.entry).add(offset, size, head)

    def _other(self, record: object, offset: int, size: int) -> None:
        if isinstance(record, LedgerOpened):
            self.index.openings.append(LedgerOpening(record, offset, size))
        elif isinstance(record, Checked):
            if record.salt == self._salt:
                self.durable = max(self.durable, min(record.offset, offset))
        elif isinstance(record, Started):
            self._salt = record.salt
            self.index.ledger_high = record.ledger_high

    # ---------------------------------------------------------------------------------------------------------- damage

    def _damaged(self) -> None:
        """Handle bytes at `offset` that are not a record."""
        checks = self._checks_behind()
        durable = max([offset for _, offset in checks], default=0) if self._tail else self._end
        if self.offset >= durable:
            self.torn_bytes = self._end - self.offset
            self.index.end = self._end = self.offset
            return
        start = self.offset
        size = int.from_bytes(self._pread(start, 4), "little") + PREFIX_BYTES
        if self._whole_at(start + size) or (start + size == self._end and not self._tail):
            self.offset = start + size
            self.index.problems.append(
                f"segment {self._number}, offset {start}: a record of {size} bytes is damaged{self._name(start, size)}"
            )
            return
        self.offset = min((at for at, _ in checks), default=self._end)
        self.index.problems.append(
            f"segment {self._number}, offset {start}: damaged; {self.offset - start} bytes from there on cannot be read"
        )

    def _whole_at(self, offset: int) -> bool:
        """Whether a whole record starts there."""
        if offset + PREFIX_BYTES > self._end:
            return False
        size = int.from_bytes(self._pread(offset, 4), "little") + PREFIX_BYTES
        if size > min(RECORD_BYTES_MAX + PREFIX_BYTES, self._end - offset):
            return False
        return whole(memoryview(self._pread(offset, size)), 0, check=True) > 0

    def _name(self, offset: int, size: int) -> str:
        """The entry that a damaged record seems to be.

        It is added to the index if it is the next of its ledger, so that a reader of it gets an error.
        """
        buffer = memoryview(self._pread(offset, size))
        try:
            head = read_head(buffer, 0)
        except Exception:  # noqa: BLE001 - damaged bytes may break any assumption of the parser
            return ""
        if not isinstance(head, EntryHead):
            return ""
        piece = self.index.last_piece(head.ledger)
        if not 0 <= head.count <= _COUNT_MAX:
            return ""
        opened_here = any(opening.opened.ledger == head.ledger for opening in self.index.openings)
        if piece is None and head.entry == 0 and opened_here:
            piece = self.index.piece(head.ledger, head.entry)
        if piece is None or piece.end != head.entry:
            return ""
        # Nothing else in the damaged header is believed: no origin index and no watermark comes from it.
        flags = head.flags & ~int(EntryFlags.MARKER) if head.count else head.flags
        plain = head._replace(origin="", incarnation=0, first_index=-1, flags=flags, broker_time=0)
        piece.damaged.append(head.entry)
        piece.add(offset, size, plain)
        piece.runs.append(Run(head.entry, "", 0, -1))
        piece.run_next = -1
        return f": entry {head.ledger}:{head.entry}"

    def _checks_behind(self) -> list[tuple[int, int]]:
        """(location, durable offset) of the first and of the last check after `offset`."""
        if not self._salt:
            return []
        pattern = check_pattern(self._salt)
        found: list[tuple[int, int]] = []
        at = self.offset
        while at < self._end:
            block = self._pread(at, min(READ_BYTES, self._end - at))
            found_at = block.find(pattern)
            while found_at >= 0:
                check = self._check_at(at + found_at - PREFIX_BYTES)
                if check is not None:
                    found[1:] = [(at + found_at - PREFIX_BYTES, check)]
                found_at = block.find(pattern, found_at + 1)
            if at + len(block) >= self._end or not block:
                break
            at += len(block) - len(pattern) + 1
        return found

    def _check_at(self, offset: int) -> int | None:
        if offset <= self.offset:
            return None
        buffer = memoryview(self._pread(offset, CHECK_RECORD_BYTES))
        if whole(buffer, 0, check=True) != CHECK_RECORD_BYTES:
            return None
        record = read_head(buffer, 0)
        return record.offset if isinstance(record, Checked) and record.salt == self._salt else None
