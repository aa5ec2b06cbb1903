"""The one thread that owns the log's files: group commit, failures, seals.

    cycle:    take everything that waits -> write it -> one fdatasync -> report it as appended -> again

While one cycle syncs, the next collects: the cycle is as long as the last sync took, and one sync serves all topics.

A failed write or sync ends the segment: whatever was in flight fails, nothing is tried again on that file (what a failed
fdatasync left on disk is unknowable), and a *new* segment with a durable seal (bad segment, last good offset) is made
before anything is accepted again. While that does not work (disk full, disk gone), every append fails at once and the
thread tries to heal with a bounded backoff.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from magnetar.core.config import BrokerConfig
from magnetar.core.errors import StorageError
from magnetar.storage.entries import Append, Location, StoredEntry
from magnetar.storage.files import Files, LogFile
from magnetar.storage.records import SEGMENT_MAGIC, pack_seal, read_entry
from magnetar.storage.recovery import Recovered, recover, segment_name
from magnetar.storage.topiclog import Span

logger = logging.getLogger("magnetar.log")

CYCLE_BYTES_MAX = 32 * 1024 * 1024
"""Back-pressure inside the thread: one cycle writes at most this much, so that a receipt never waits for more."""

JOIN_BYTES = 8 * 1024
"""Buffers smaller than this on average are joined before writing: a copy is cheaper than a long vector."""

HEAL_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts to heal; the last one repeats."""

READ_GAP_BYTES = 64 * 1024
"""Records this near to each other are read in one go, with what lies between."""

READ_BLOCK_BYTES = 8 * 1024 * 1024
"""A ceiling on one such read."""


class LogThread:
    """The log of one broker.

    Args:
        files: the file system.
        folder: of the segments.
        config: `fsync`, `fsync_interval_ms`, `segment_bytes`, `disk_free_bytes_min`.
        on_appended, on_failed, on_healed: called on this thread.
        heal_pauses_s: between attempts to heal.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        config: BrokerConfig,
        *,
        on_appended: Callable[[list[tuple[Append, Location]]], None],
        on_failed: Callable[[list[Append], str], None],
        on_healed: Callable[[], None],
        heal_pauses_s: Sequence[float] = HEAL_S,
    ) -> None:
        self._files = files
        self._heal_pauses_s = heal_pauses_s
        self._folder = folder
        self._config = config
        self._on_appended = on_appended
        self._on_failed = on_failed
        self._on_healed = on_healed
        self._wake = threading.Condition()
        self._queue: list[Append] = []
        self._dropped: list[int] = []
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._readers: dict[int, LogFile] = {}
        self._readers_lock = threading.Lock()
        self._file: LogFile | None = None
        self._segment = 0
        self._offset = 0
        self._synced_offset = 0
        self._synced_at = 0.0
        self._seals: dict[int, int] = {}
        self._broken = ""
        self._live: dict[int, dict[int, int]] = {}
        self._keepers: set[int] = set()
        self.cycles = 0
        self.synced_bytes = 0

    # ------------------------------------------------------------------------------------------------- start and stop

    def start(self) -> Recovered:
        """Recover, open a new segment, start the thread.

        Raises:
            StorageError: the log cannot be read, or no new segment can be made.
        """
        recovered = recover(self._files, self._folder)
        self._live = recovered.segment_ledgers
        self._segment = recovered.last_segment
        try:
            self._next_segment()
        except OSError as error:
            raise StorageError(f"cannot write to the log in {self._folder}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()
        return recovered

    def stop(self) -> None:
        """Write what waits, then end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        for file in self._readers.values():
            file.close()
        self._readers.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---------------------------------------------------------------------------------------------- from other threads

    def submit(self, append: Append) -> None:
        """Queue an append; reported as appended or failed, in the order of submission."""
        with self._wake:
            self._queue.append(append)
            if len(self._queue) == 1:
                self._wake.notify()

    def drop(self, ledgers: Iterable[int]) -> None:
        """Nobody needs these ledgers any more; segments that hold nothing else are deleted."""
        with self._wake:
            self._dropped.extend(ledgers)
            self._wake.notify()

    def read(self, spans: list[Span]) -> list[StoredEntry]:
        """Read records, from any thread; those behind a damaged one are left out.

        Raises:
            StorageError: the first one is damaged, with its place.
        """
        entries: list[StoredEntry] = []
        at = 0
        while at < len(spans):
            first = spans[at]
            end = at + 1
            upto = first.offset + first.size
            while (
                end < len(spans)
                and spans[end].segment == first.segment
                and 0 <= spans[end].offset - upto <= READ_GAP_BYTES
                and spans[end].offset + spans[end].size - first.offset <= READ_BLOCK_BYTES
            ):
                upto = spans[end].offset + spans[end].size
                end += 1
            block = memoryview(self._pread(first.segment, first.offset, upto - first.offset))
            for span in spans[at:end]:
                entry = read_entry(block, span.offset - first.offset, span.size)
                if entry is None:
                    if entries:
                        return entries
                    raise StorageError(
                        f"corrupt entry in segment {span.segment} at offset {span.offset} ({span.size} bytes): "
                        "its checksum does not fit"
                    )
                entries.append(entry)
            at = end
        return entries

    def _pread(self, segment: int, offset: int, size: int) -> bytes:
        with self._readers_lock:
            file = self._readers.get(segment)
            if file is None:
                file = self._readers[segment] = self._files.open(self._folder / segment_name(segment))
        return file.pread(offset, size)

    # ------------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        interval_s = self._config.fsync_interval_ms / 1000 if self._config.fsync == "interval" else None
        while True:
            with self._wake:
                while not self._queue and not self._dropped and not self._stopping:
                    unsynced = self._offset > self._synced_offset
                    self._wake.wait(interval_s if interval_s is not None and unsynced else None)
                    if interval_s is not None and unsynced:
                        break
                batch = self._take()
                dropped, self._dropped = self._dropped, []
                if self._stopping and not batch and not dropped:
                    break
            if dropped:
                self._release(dropped)
            if batch:
                self._commit(batch)
            elif interval_s is not None and self._offset > self._synced_offset and not self._broken:
                self._commit([])
        if not self._broken and self._offset > self._synced_offset and self._file is not None:
            try:
                self._file.sync()
            except OSError as error:
                logger.error("the log's last sync failed: %s", error)

    def _take(self) -> list[Append]:
        """What the next cycle writes. Called with the lock held."""
        queue = self._queue
        size = 0
        for count, append in enumerate(queue):
            size += append.bytes_total
            if size > CYCLE_BYTES_MAX and count:
                self._queue = queue[count:]
                return queue[:count]
        self._queue = []
        return queue

    def _commit(self, batch: list[Append]) -> None:
        """Write, sync, report."""
        try:
            if self._offset >= self._config.segment_bytes:
                self._seal_off_full()
            located = self._write(batch)
            durable = self._config.fsync == "always" or not batch or any(append.durable for append in batch)
            overdue = (
                self._config.fsync == "interval"
                and time.monotonic() - self._synced_at >= self._config.fsync_interval_ms / 1000
            )
            if not durable and not overdue:
                self._on_appended(located)
                return
            early = [] if self._config.fsync == "always" else [item for item in located if not item[0].durable]
            # Order within a topic is kept: a topic's appends are all durable or all not.
            if early:
                self._on_appended(early)
                located = [item for item in located if item[0].durable]
            self._sync()
            if located:
                self._on_appended(located)
        except OSError as error:
            self._fail(batch, error)

    def _write(self, batch: list[Append]) -> list[tuple[Append, Location]]:
        assert self._file is not None
        if batch and self._files.free_bytes(self._folder) < self._config.disk_free_bytes_min:
            raise OSError(errno.ENOSPC, "less room is left than disk_free_bytes_min")
        located: list[tuple[Append, Location]] = []
        buffers: list[bytes] = []
        offset = self._offset
        for append in batch:
            located.append((append, Location(self._segment, offset)))
            offset += append.bytes_total
            records = append.records
            if append.bytes_total < JOIN_BYTES * len(records):
                buffers.append(b"".join(records))
            else:
                buffers.extend(records)
        if buffers:
            self._file.writev(buffers)
        self._offset = offset
        live = self._live.setdefault(self._segment, {})
        for append in batch:
            for entry in append.entries[:1]:
                live[entry.ledger] = live.get(entry.ledger, 0) + append.bytes_total
        return located

    def _sync(self) -> None:
        assert self._file is not None
        self._file.sync()
        self.cycles += 1
        self.synced_bytes += self._offset - self._synced_offset
        self._synced_offset = self._offset
        self._synced_at = time.monotonic()

    def _seal_off_full(self) -> None:
        """The segment is full: everything in it is synced, the next one begins."""
        assert self._file is not None
        if self._offset > self._synced_offset:
            self._sync()
        self._next_segment()

    def _next_segment(self) -> None:
        """Make the next segment, with the seals that are due, durably."""
        number = self._segment + 1
        path = self._folder / segment_name(number)
        self._segment = number  # also when it fails below: a number is not used twice
        file = self._files.create(path)
        try:
            head = SEGMENT_MAGIC + b"".join(pack_seal(bad, good) for bad, good in sorted(self._seals.items()))
            file.writev([head])
            file.sync()
            self._files.sync_folder(self._folder)
        except OSError:
            file.close()
            raise
        if self._file is not None:
            self._file.close()
        self._file = file
        self._offset = self._synced_offset = len(head)
        self._synced_at = time.monotonic()
        sealed, self._seals = self._seals, {}
        for bad, good in sealed.items():
            self._cut(bad, good, keeper=number)

    def _cut(self, bad: int, good: int, *, keeper: int) -> None:
        """Cut off what a durable seal names. Until that is done the segment with the seal may not be deleted."""
        try:
            file = self._files.open(self._folder / segment_name(bad))
            try:
                file.truncate(max(good, len(SEGMENT_MAGIC)))
            finally:
                file.close()
        except OSError:
            self._keepers.add(keeper)

    # -------------------------------------------------------------------------------------------------------- failures

    def _fail(self, batch: list[Append], error: OSError) -> None:
        """A write or sync failed: everything in flight never was."""
        reason = error.strerror or str(error) or type(error).__name__
        self._broken = f"the log cannot be written: {reason}"
        logger.error("%s (segment %d); nothing is accepted until it can be", self._broken, self._segment)
        self._seals[self._segment] = min(self._synced_offset, self._seals.get(self._segment, self._synced_offset))
        with self._wake:
            waiting, self._queue = self._queue, []
        self._on_failed(batch + waiting, self._broken)
        attempt = 0
        while not self._heal():
            pause = self._heal_pauses_s[min(attempt, len(self._heal_pauses_s) - 1)]
            attempt += 1
            with self._wake:
                self._wake.wait_for(lambda: self._stopping, pause)
                refused, self._queue = self._queue, []
                if self._stopping:
                    self._on_failed(refused, self._broken)
                    return
            if refused:
                self._on_failed(refused, self._broken)
        with self._wake:
            refused, self._queue = self._queue, []
        if refused:
            self._on_failed(refused, self._broken)
        self._broken = ""
        logger.warning("the log works again, in segment %d", self._segment)
        self._on_healed()

    def _heal(self) -> bool:
        try:
            # Room for more than the seal alone, or the next append would fail at once and so on for ever.
            if self._files.free_bytes(self._folder) < self._config.disk_free_bytes_min:
                return False
            self._next_segment()
        except OSError as error:
            logger.info("the log is not back yet: %s", error.strerror or error)
            self._seals[self._segment] = 0
            return False
        return True

    def _release(self, ledgers: list[int]) -> None:
        """Delete segments in which nothing lives."""
        gone = set(ledgers)
        for number, held in list(self._live.items()):
            for ledger in gone & held.keys():
                del held[ledger]
            if not held and number != self._segment and number not in self._keepers:
                del self._live[number]
                with self._readers_lock:
                    file = self._readers.pop(number, None)
                if file is not None:
                    file.close()
                try:
                    self._files.unlink(self._folder / segment_name(number))
                except OSError as error:
                    logger.error("cannot delete segment %d: %s", number, error.strerror or error)
