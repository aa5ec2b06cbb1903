"""The background work of the log's thread: sidecars, rewriting, deleting segments."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from magnetar.runtime.log.readers import SegmentReaders
from magnetar.storage.files import Files, LogFile, read_whole
from magnetar.storage.log import SegmentLog
from magnetar.storage.recovery import index_name, segment_name
from magnetar.storage.rewriting import LIVE_FRACTION_MAX, REWRITE_BYTES_MIN, Rewrite, is_whole
from magnetar.storage.segments.index import SegmentIndex, decode_index
from magnetar.storage.segments.scanning import Scanner

logger = logging.getLogger("magnetar.log")

SCAN_BYTES: Final = 256 * 1024
"""Bytes of a segment scanned in one step: a fraction of a millisecond."""


class Housekeeping:
    """Background work of the log, a step at a time; all of it on the log's thread.

    Args:
        files, folder: of the log.
        log: the segments.
        readers: learn where rewritten records went.
    """

    def __init__(self, files: Files, folder: Path, log: SegmentLog, readers: SegmentReaders) -> None:
        self._files = files
        self._folder = folder
        self._log = log
        self._readers = readers
        self._scanner: Scanner | None = None
        self._scanned: LogFile | None = None
        self._candidates: list[int] = []
        self._rewrite: Rewrite | None = None
        self._source: LogFile | None = None
        self._damaged: set[int] = set()
        self._pins: set[int] = set()

    @property
    def pending(self) -> bool:
        """Whether there is something to do."""
        return bool(self._scanner is not None or self._log.closed or self._rewrite is not None or self._candidates)

    def step(self) -> None:
        """Do a little of it.

        Raises:
            OSError: the log could not be written; its failure is the caller's.
        """
        if self._scanner is not None or self._log.closed:
            self._index()
        elif self._rewrite is None:
            self._begin_rewrite(self._candidates.pop(0))
        elif self._rewrite.done:
            self._end_rewrite()
        else:
            self._copy()

    def make_room(self) -> bool:
        """While the log is full and nothing is accepted: do a little of a rewrite that fits into the room that is kept free.

        Returns:
            Whether there is more to do at once.

        Raises:
            OSError: the log could not be written; its failure is the caller's.
        """
        if not self._log.full:
            return False
        if self._rewrite is None:
            self.look_for_rewrites()
            fitting = [number for number in self._candidates if self._fits(number)]
            if not fitting:
                return self._leave_failed()
            self._candidates.remove(fitting[0])
            self._log.begin_for_copies()
            self._begin_rewrite(fitting[0])
        elif self._rewrite.done:
            self._end_rewrite()
            return True
        else:
            self._copy()
        return self._rewrite is not None

    def _leave_failed(self) -> bool:
        """Switch to a new segment if the one in which the log failed has nothing, or little, that is still needed."""
        if not self._log.spent(LIVE_FRACTION_MAX, REWRITE_BYTES_MIN):
            return False
        self._log.begin_for_copies()
        self.release(())
        return True

    # ---------------------------------------------------------------------------------------------------------- sidecars

    def _index(self) -> None:
        try:
            if self._scanner is None:
                closed = self._log.closed.pop(0)
                if closed.written is not None:
                    self._store(closed.written.ended(closed.end))
                    return
                self._scanned = self._files.open(self._folder / segment_name(closed.number))
                # This process wrote it a moment ago; checksums are for bytes that come back from a disk.
                self._scanner = Scanner(closed.number, self._scanned.pread, closed.end, verify=False)
            self._scanner.step(SCAN_BYTES)
        except OSError as error:
            logger.warning("no sidecar for a closed segment: %s", error.strerror or error)
            self._scanner = self._scanned = None
            return
        if self._scanner.done:
            self._store(self._scanner.index)
            self._scanner = self._scanned = None

    def _store(self, index: SegmentIndex) -> None:
        """Write a sidecar, if the segment has something that is needed."""
        if self._log.live_in(index.number):
            self._log.write_index(index)

    # --------------------------------------------------------------------------------------------------------- rewriting

    def look_for_rewrites(self) -> None:
        """See which segments are mostly dead."""
        busy = self._rewrite.number if self._rewrite is not None else -1
        self._candidates = [
            number
            for number in self._log.mostly_dead(LIVE_FRACTION_MAX, REWRITE_BYTES_MIN)
            if number != busy and number not in self._damaged
        ]

    def _fits(self, number: int) -> bool:
        return self._log.room_for_copies(sum(self._log.live_in(number).values()))

    def _begin_rewrite(self, number: int) -> None:
        living = set(self._log.live_in(number))
        if not living or not self._log.removable(number) or not self._fits(number):
            return
        try:
            source = self._files.open(self._folder / segment_name(number))
            index = self._load_index(number, source)
        except OSError as error:
            logger.warning("segment %d is not rewritten: %s", number, error.strerror or error)
            self._damaged.add(number)
            return
        if index.problems:
            self._damaged.add(number)
            return
        self._rewrite = Rewrite(index, living)
        self._source = source

    def _load_index(self, number: int, source: LogFile) -> SegmentIndex:
        path = self._folder / index_name(number)
        try:
            index = decode_index(read_whole(self._files, path), number)
            if index is not None:
                return index
        except FileNotFoundError:
            pass
        return Scanner(number, source.pread, self._log.sizes[number]).run()

    def _copy(self) -> None:
        rewrite, source = self._rewrite, self._source
        assert rewrite is not None
        assert source is not None
        if not self._log.room_for_copies(rewrite.bytes_left):
            self.abandon()
            return
        try:
            records = [source.pread(offset, size) for offset, size in rewrite.slice()]
            problem = "" if all(map(is_whole, records)) else "a record in it is damaged"
        except OSError as error:
            # An unreadable sector in an old segment does not concern the log's writes: they continue.
            problem = error.strerror or str(error)
        if problem:
            logger.error("segment %d is not rewritten: %s", rewrite.number, problem)
            self._damaged.add(rewrite.number)
            self.abandon()
            return
        locations = self._log.write_copies(records)
        rewrite.copied(locations)
        # A segment that has nothing but copies in it must not be taken for an empty one.
        for number in rewrite.copies.keys() - self._pins:
            self._pins.add(number)
            self._log.pin(number)

    def _end_rewrite(self) -> None:
        rewrite = self._rewrite
        assert rewrite is not None
        self._log.sync()
        self._log.mark_reported()
        living = set(self._log.live_in(rewrite.number))
        copies = {
            segment: {ledger: size for ledger, size in held.items() if ledger in living}
            for segment, held in rewrite.copies.items()
        }
        self._log.moved(rewrite.number, copies)
        self._readers.moved(rewrite.number, rewrite.new_locations)
        self._rewrite = self._source = None
        self._unpin()
        self._remove(rewrite.number)

    def abandon(self) -> None:
        """Forget a rewrite that was begun; its copies are dead weight until their segment goes."""
        self._rewrite = self._source = None
        self._unpin()

    def _unpin(self) -> None:
        for number in self._pins:
            self._log.unpin(number)
        self._pins.clear()

    # ----------------------------------------------------------------------------------------------------------- deleting

    def release(self, ledgers: Iterable[int]) -> None:
        """Forget ledgers that are no longer needed."""
        for number in self._log.release(ledgers):
            self._remove(number)
        self.look_for_rewrites()

    def _remove(self, number: int) -> None:
        if self._rewrite is not None and self._rewrite.number == number:
            self.abandon()
        if self._scanner is not None and self._scanner.index.number == number:
            self._scanner = self._scanned = None
        self._readers.forget(number)
        try:
            self._log.remove(number)
        except OSError as error:
            logger.error("cannot delete segment %d: %s", number, error.strerror or error)
