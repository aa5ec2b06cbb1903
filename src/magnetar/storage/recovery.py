"""What a broker's segments hold, read back after a restart.

Rules (FINDINGS A4, A6; broker.md):

- what a seal names is cut: it never happened, whatever the disk says;
- the end of the *last* segment may be torn by the crash: the first record there that is not whole ends it, and the rest
  is cut off durably before anything new is written;
- damage anywhere else is reported with its place; records whose lengths can still be followed are served.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.core.errors import StorageError
from magnetar.storage.entries import EntryFlags
from magnetar.storage.files import Files
from magnetar.storage.ledger import SEGMENT_SHIFT, Ledger
from magnetar.storage.records import SEGMENT_MAGIC, EntryHead, LedgerOpened, Sealed, read_head, whole
from magnetar.storage.topiclog import RecoveredTopic

SEGMENT_SUFFIX = ".seg"
READ_BYTES = 8 * 1024 * 1024
"""Of a segment at a time; at least a record."""

_MARKER = int(EntryFlags.MARKER)


def segment_name(number: int) -> str:
    """File name of a segment."""
    return f"{number:020d}{SEGMENT_SUFFIX}"


@dataclass
class Recovered:
    """What the log holds.

    Attributes:
        topics: by (topic, incarnation).
        last_ledger: the highest ledger id seen, -1 if none.
        last_segment: the highest segment number, 0 if none.
        segment_ledgers: bytes of each ledger in each segment, for giving room back.
        problems: one line for each damage found.
    """

    topics: dict[tuple[str, int], RecoveredTopic] = field(default_factory=dict)
    last_ledger: int = -1
    last_segment: int = 0
    segment_ledgers: dict[int, dict[int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class _Scan:
    """One pass over all segments."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self.result = Recovered()
        self._owners: dict[int, RecoveredTopic] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._cuts: dict[int, int] = {}

    def run(self) -> Recovered:
        numbers = sorted(
            int(name.removesuffix(SEGMENT_SUFFIX))
            for name in self._files.names(self._folder)
            if name.endswith(SEGMENT_SUFFIX) and name.removesuffix(SEGMENT_SUFFIX).isdigit()
        )
        for number in numbers:
            self._seals(number)
        for number in numbers:
            self._segment(number, last=number == numbers[-1])
        self.result.last_segment = numbers[-1] if numbers else 0
        return self.result

    def _seals(self, number: int) -> None:
        """A segment that was started after a failure begins with its seals."""
        file = self._files.open(self._folder / segment_name(number))
        try:
            buffer = memoryview(file.pread(len(SEGMENT_MAGIC), 64 * 1024))
        finally:
            file.close()
        at = 0
        while (size := whole(buffer, at, check=True)) > 0:
            record = read_head(buffer, at)
            if not isinstance(record, Sealed):
                return
            self._cuts[record.segment] = min(record.offset, self._cuts.get(record.segment, record.offset))
            at += size

    def _segment(self, number: int, *, last: bool) -> None:
        path = self._folder / segment_name(number)
        length = self._files.size(path)
        end = min(length, self._cuts.get(number, length))
        file = self._files.open(path)
        try:
            magic = file.pread(0, len(SEGMENT_MAGIC))
            if not magic or end < len(SEGMENT_MAGIC):
                return
            if magic != SEGMENT_MAGIC:
                if last and not _other_version(magic):
                    # Torn while it was made. A segment's start is synced before anything is written behind it, so
                    # nothing was ever confirmed in this one.
                    file.truncate(0)
                    return
                raise StorageError(
                    f"{path} is not a log segment of this version (it starts with {magic[:12]!r}); "
                    "was it written by another version of Magnetar?"
                )
            good = self._records(number, file.pread, end, last=last)
            if number in self._cuts:
                # Cut for good: the segment that holds the seal may be deleted some day.
                file.truncate(end)
            elif last and good < length:
                file.truncate(good)
        finally:
            file.close()

    def _records(self, number: int, pread: Callable[[int, int], bytes], end: int, *, last: bool) -> int:
        """Read records up to `end`; the offset behind the last good one."""
        offset = len(SEGMENT_MAGIC)
        while offset < end:
            want = min(READ_BYTES, end - offset)
            buffer = memoryview(pread(offset, want))
            at = self._block(number, offset, buffer, last=last)
            if at == 0:
                # Not one whole record: it is larger than the block, torn, or damaged.
                larger = self._length_at(buffer)
                if larger > len(buffer) and offset + larger <= end:
                    buffer = memoryview(pread(offset, larger))
                    at = self._block(number, offset, buffer, last=last)
                if at == 0:
                    if not last:
                        self.result.problems.append(
                            f"segment {number} is damaged at offset {offset}: {end - offset} bytes behind it cannot be read"
                        )
                    return offset
            offset += at
        return offset

    @staticmethod
    def _length_at(buffer: memoryview) -> int:
        return int.from_bytes(buffer[:4], "little") + 8 if len(buffer) >= 8 else 0

    def _block(self, number: int, offset: int, buffer: memoryview, *, last: bool) -> int:
        """Take in the whole records at the start of a block; how many bytes they have."""
        at = 0
        while (size := whole(buffer, at, check=last)) > 0:
            record = read_head(buffer, at)
            if isinstance(record, EntryHead):
                self._entry(number, offset + at, size, record)
            elif isinstance(record, LedgerOpened):
                self._opened(record)
            at += size
        return at

    def _opened(self, record: LedgerOpened) -> None:
        topic = self.result.topics.setdefault((record.topic, record.incarnation), RecoveredTopic())
        self._owners[record.ledger] = topic
        if record.ledger not in topic.ledgers:
            topic.ledgers[record.ledger] = self._ledgers[record.ledger] = Ledger(record.ledger, record.created_ms)
        self.result.last_ledger = max(self.result.last_ledger, record.ledger)

    def _entry(self, number: int, offset: int, size: int, head: EntryHead) -> None:
        ledger = self._ledgers.get(head.ledger)
        if ledger is None:
            self.result.problems.append(
                f"segment {number}, offset {offset}: entry of ledger {head.ledger}, which was never opened"
            )
            return
        if head.entry != ledger.entries:
            if head.entry > ledger.entries:
                self.result.problems.append(
                    f"segment {number}, offset {offset}: entry {head.ledger}:{head.entry} follows {ledger.entries - 1}"
                )
            return
        ledger.add(
            number << SEGMENT_SHIFT | offset,
            size,
            head.flags,
            head.count,
            head.publish_time,
            head.broker_time,
            marker=bool(head.flags & _MARKER),
        )
        held = self.result.segment_ledgers.setdefault(number, {})
        held[head.ledger] = held.get(head.ledger, 0) + size
        topic = self._owners[head.ledger]
        if head.origin:
            topic.watermarks[head.origin] = max(head.source, topic.watermarks.get(head.origin, head.source))
        elif head.first_index >= 0:
            topic.next_index = max(topic.next_index, head.first_index + head.count)


def _other_version(magic: bytes) -> bool:
    """Whether the start of a segment was written whole by another version, rather than torn."""
    name = len(SEGMENT_MAGIC) - 4
    return len(magic) == len(SEGMENT_MAGIC) and magic[:name] == SEGMENT_MAGIC[:name] and any(magic[name:])


def recover(files: Files, folder: Path) -> Recovered:
    """Read all segments of a log.

    Raises:
        StorageError: a segment is of another version, or cannot be read.
    """
    files.make_folder(folder)
    try:
        return _Scan(files, folder).run()
    except OSError as error:
        raise StorageError(f"cannot read the log in {folder}: {error.strerror or error}") from error
