"""The list of the log's ledgers with their lengths, kept outside the log, so that a missing or cut segment is noticed.

The log says what is there; only this file says what should be there. It is next to the log's folder, because that
folder may be missing as a whole.

    magic (12), then frames (`storage.frames`) of MessagePack [openings, marks, dropped]

    opening   (ledger, incarnation, created ms, topic)
    mark      (ledger, entries, next origin index): number of entries that were on the disk when this was written
    dropped   ledgers that are no longer needed

A mark is written after the sync of the entries that it counts, and without a sync of its own: it may lag behind the
log, as after a power cut, and is never ahead of it. The first frame that is not whole ends the file. Each start of the
broker writes the file again, durably.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

from magnetar.storage.files import Files, LogFile, read_whole, write_over
from magnetar.storage.frames import pack_frame, read_frames

MAGIC: Final = b"MAGNETARL\x00\x00\x01"
REWRITE_BYTES_MIN: Final = 8 << 20
"""The file is rewritten after this many bytes were appended, or after four times its last size, if that is more."""

EARLY_MAX: Final = 10_000
"""A ceiling on marks that wait for an opening: those of ledgers that were dropped meanwhile never see one."""

_GROWTH: Final = 4
_LEDGERS_PER_FRAME: Final = 4_096


class Known(msgspec.Struct, gc=False):
    """The expected content of one ledger.

    Attributes:
        topic, incarnation, created_ms: as in its opening.
        entries: number of stored entries.
        next_index: the origin index after the last of them.
    """

    topic: str
    incarnation: int
    created_ms: int
    entries: int = 0
    next_index: int = 0


Opening = tuple[int, int, int, str]
LedgerMark = tuple[int, int, int]


class _Frame(msgspec.Struct, array_like=True):
    openings: list[Opening]
    marks: list[LedgerMark]
    dropped: list[int]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Frame)


class LedgerFile:
    """The file of one broker; its two log threads write to it.

    Args:
        files: the file system.
        path: of the file.
        lock: held while it is written to, where there are several threads.

    Attributes:
        missing: there was none.
        damaged: there was one that is no such file.
    """

    def __init__(self, files: Files, path: Path, lock: AbstractContextManager[Any] | None = None) -> None:
        self._files = files
        self._path = path
        self._lock = nullcontext() if lock is None else lock
        self._file: LogFile | None = None
        self._known: dict[int, Known] = {}
        self._early: dict[int, LedgerMark] = {}
        self._size = self._base = 0
        self.missing = self.damaged = False

    # --------------------------------------------------------------------------------------------------------- reading

    def read(self) -> dict[int, Known]:
        """Read the file: its content by ledger, or nothing if it is missing or damaged.

        Raises:
            OSError: it cannot be read.
        """
        try:
            data = memoryview(read_whole(self._files, self._path))
        except FileNotFoundError:
            self.missing = True
            return {}
        if bytes(data[: len(MAGIC)]) != MAGIC:
            self.damaged = True
            return {}
        known: dict[int, Known] = {}
        early: dict[int, LedgerMark] = {}
        for body, _ in read_frames(data, len(MAGIC)):
            try:
                frame = _DECODER.decode(body)
            except msgspec.DecodeError:
                break
            _take(known, early, frame)
        return known

    # --------------------------------------------------------------------------------------------------------- writing

    def begin(self, known: Mapping[int, Known]) -> None:
        """Write the file again, durably; later records are appended.

        Raises:
            OSError: it cannot be written; the former file is unchanged.
        """
        with self._lock:
            self._known = dict(known)
            self._rewrite()

    def _rewrite(self) -> None:
        items = list(self._known.items())
        frames = [MAGIC]
        for at in range(0, len(items), _LEDGERS_PER_FRAME):
            part = items[at : at + _LEDGERS_PER_FRAME]
            openings = [(ledger, each.incarnation, each.created_ms, each.topic) for ledger, each in part]
            frames.append(
                _pack(_Frame(openings, [(ledger, each.entries, each.next_index) for ledger, each in part], []))
            )
        file, size = write_over(self._files, self._path, frames)
        if self._file is not None:
            self._file.close()
        self._file = file
        self._size = self._base = size

    def tell(self, openings: Iterable[Opening], marks: Iterable[LedgerMark], dropped: Iterable[int] = ()) -> None:
        """Record what the log has done and made durable.

        Raises:
            OSError: the record was not written; the log itself is not affected.
        """
        with self._lock:
            gone = [ledger for ledger in dropped if ledger in self._known]
            frame = _Frame(list(openings), list(marks), gone)
            _take(self._known, self._early, frame)
            if self._file is None or not (frame.openings or frame.marks or gone):
                return
            self._size += self._file.writev([_pack(frame)])
            if self._size > max(REWRITE_BYTES_MIN, _GROWTH * self._base):
                self._rewrite()

    def close(self) -> None:
        """Make it durable.

        Raises:
            OSError: it may not be.
        """
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                try:
                    file.sync()
                finally:
                    file.close()


def _take(known: dict[int, Known], early: dict[int, LedgerMark], frame: _Frame) -> None:
    """Add a frame; `early` has marks that came before the opening of their ledger, which the other lane records."""
    marks = frame.marks
    for ledger, incarnation, created_ms, topic in frame.openings:
        if ledger not in known:
            known[ledger] = Known(topic, incarnation, created_ms)
        if ledger in early:
            marks = [*marks, early.pop(ledger)]
    if len(early) > EARLY_MAX:
        early.clear()
    for ledger, entries, next_index in marks:
        found = known.get(ledger)
        if found is None:
            early[ledger] = max((ledger, entries, next_index), early.get(ledger, (ledger, 0, 0)))
        else:
            found.entries = max(found.entries, entries)
            found.next_index = max(found.next_index, next_index)
    for ledger in frame.dropped:
        known.pop(ledger, None)


def _pack(frame: _Frame) -> bytes:
    return pack_frame(_ENCODER.encode(frame))
