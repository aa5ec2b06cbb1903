"""The thread that owns the files of the log, or of one of its lanes (`runtime.log.lanes`): group commit, failures,
background work.

    cycle:    take everything that waits -> one durable write -> report it as appended -> again

While one cycle writes, the next collects: a cycle is as long as the last write took, and one write serves all topics. It goes
through the caches (`storage.files`), or a sync follows it.

A failed write or sync ends the segment: all appends in flight fail, and nothing is tried again on that file (the content that a
failed fdatasync left on the disk is unknown). A *new* segment with a durable seal (bad segment, last good offset) is made before
any append is accepted again. While that does not work (disk full, disk gone), every append fails at once and the thread tries to
heal with a bounded backoff. On a full disk it meanwhile rewrites the segments that fit into the space that is kept free.

Where files become durable without a sync (`LogFile.behind`: the bookies of a log on BookKeeper), a cycle does not wait for the
one before. Up to `BEHIND_MAX` cycles are under way at the same time. Each is reported after those before it, when it is
durable. All else that the thread does (the next segment, background work, barriers, the end) begins after the last of them, and
a failure of one fails all that are not reported.

An append that was staged before its topic learned of a failure has invalid positions and origin indexes. It may reach this
thread after the log healed. Its `write_epoch` shows that, and it fails too.

Between cycles, and all the time when nothing is written or under way, the thread makes sidecars of closed segments and
rewrites mostly dead ones, in slices; under load that gets a small share of its time.
"""

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from magnetar.core.errors import StorageError
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.interpreter.gil_yield import ThreadState, pause, stand_back
from magnetar.runtime.log.housekeeping import Housekeeping
from magnetar.runtime.log.readers import SegmentReaders
from magnetar.storage.entries import Append, Location, StoredEntry
from magnetar.storage.files import Files
from magnetar.storage.ledgerfile import LedgerFile
from magnetar.storage.log import SegmentLog, SegmentNumbers
from magnetar.storage.records import SALT_BYTES
from magnetar.storage.recovery import Recovered, recover
from magnetar.storage.topiclog import Span

logger = logging.getLogger("magnetar.log")

CYCLE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Back-pressure inside the thread: one cycle writes at most this much, so that a receipt never waits for more."""

BEHIND_MAX: Final = 4
"""Cycles under way at the same time. With more, an append waits less, and costs more: each cycle is an entry of a ledger at
least, which three bookies answer. With one, the bookies have nothing to do while their answer is on its way."""

HEAL_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts to heal; the last one repeats."""

BACKGROUND_SHARE: Final = 10
"""Under load one part in this many of the thread's time is for sidecars and rewriting."""

COPYING_BYTES_MIN: Final = 64 * 1024
"""Bytes whose copy into the kernel takes long enough that a thread seen running is probably copying
(`runtime.interpreter.gil_yield`)."""

RECENTLY_S: Final = 10.0
"""A client that has published this recently may do so again while the other lane writes."""

MARK_S: Final = 0.1
"""How often the file of ledgers records what is on the disk: the next start notices when recorded content was cut off."""

MARK_SHARE: Final = 100
"""One part in this many of the thread's time is for that: with ten thousand busy topics it is recorded less often."""

ROOM_S: Final = 0.05
"""How often the thread looks how full the disk is, apart from what it writes itself: as quickly as others may fill it."""


class LogThread:
    """One lane of a broker's log: a thread, and the segments that it writes (`runtime.log.lanes` has both lanes).

    The simulator (its `SimLog`) and the tests of whole brokers derive from it and call its cycle without a thread.
    They replace what waits for real time: `start`, the share of background work, and the pauses between attempts to heal.

    Args:
        files: the file system.
        folder: of the segments.
        config: `fsync`, `fsync_interval_ms`, `segment_bytes`, `disk_free_bytes_min`.
        on_appended, on_failed, on_healed: called on this thread. Each append is answered once by one of the first two;
            those of one topic in the order of submission. `on_healed` follows every `on_failed` when appends are
            accepted again.
        heal_pauses_s: between attempts to heal.
        salt: random bytes, see `storage.records`.
        step_aside: see `runtime.log.readers`.
        discard: see `storage.log`.
        ledgers: the file that says what the log should hold; None: nothing does.
        beside: the usual lane, if this one is for large appends; both share readers and the numbers of segments.
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
        salt: Callable[[], bytes] = lambda: os.urandom(SALT_BYTES),
        step_aside: Callable[[], None] = pause,
        discard: Callable[[Path], None] | None = None,
        ledgers: LedgerFile | None = None,
        beside: "LogThread | None" = None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._fsync = config.fsync
        self._interval_s = config.fsync_interval_ms / 1000 if config.fsync == "interval" else None
        self._heal_pauses_s = heal_pauses_s
        self._on_appended = on_appended
        self._on_failed = on_failed
        self._on_healed = on_healed
        self._name = "log" if beside is None else "log-large"
        self._stands_back = beside is not None
        self._numbers: SegmentNumbers = SegmentNumbers() if beside is None else beside._numbers
        self._log = SegmentLog(
            files,
            folder,
            segment_bytes=config.segment_bytes,
            disk_free_bytes_min=config.disk_free_bytes_min,
            discard=discard,
            salt=salt,
            numbers=self._numbers,
            large=beside is not None,
            shares=lambda: beside is not None and beside.recent,
            ledgers=ledgers,
            woken=self._woken,
        )
        self._behind: deque[tuple[int, list[tuple[Append, Location]]]] = deque()
        self._landed = False
        self._readers: SegmentReaders = (
            SegmentReaders(files, folder, self, step_aside) if beside is None else beside._readers
        )
        self._background = Housekeeping(files, folder, self._log, self._readers)
        self._wake = threading.Condition()
        self._queue: list[Append] = []
        self._dropped: list[int] = []
        self._barriers: list[Callable[[str], None]] = []
        self._stopping = False
        self._looking = False
        self._thread: threading.Thread | None = None
        self._flying: list[Append] = []
        self._failed_write_epochs: dict[str, int] = {}
        self._ledgers = ledgers
        self._next_sync_s = 0.0
        self._next_mark_s = 0.0
        self._next_background_s = 0.0
        self._room_s = 0.0
        self._wrote_s = -RECENTLY_S
        self._state: ThreadState | None = None
        self._taken_bytes = 0
        self._copying = False
        self._no_room = ""
        self.cycles = 0
        self.steps = 0
        """Changes when the thread has had the interpreter, see `runtime.interpreter.gil_yield`."""

    # ------------------------------------------------------------------------------------------------- start and stop

    def start(self) -> Recovered:
        """Recover, open a new segment, start the thread.

        Raises:
            StorageError: the log cannot be read, or no new segment can be made.
        """
        recovered = self.recover()
        self.begin(recovered)
        self.run()
        return recovered

    def recover(self) -> Recovered:
        """Read the segments.

        Raises:
            StorageError: it cannot be read.
        """
        try:
            known = self._ledgers.read() if self._ledgers is not None else {}
        except OSError as error:
            raise StorageError(
                f"the file of ledgers next to {self._folder} cannot be read: {error.strerror}"
            ) from error
        recovered = recover(self._files, self._folder, known)
        for note in recovered.notes:
            logger.info("%s", note)
        for line in recovered.odd:
            logger.warning("%s", line)
        return recovered

    def begin(self, recovered: Recovered) -> None:
        """Open a new segment after the recovered ones. May be called again when that failed.

        Raises:
            StorageError: no new segment can be made.
        """
        try:
            if self._ledgers is not None and not self._stands_back:
                self._ledgers.begin(recovered.known)
            self._log.begin(recovered)
        except OSError as error:
            raise StorageError(f"cannot write to the log in {self._folder}: {error.strerror or error}") from error
        self._background.look_for_rewrites()

    def run(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, then end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        if self._state is not None:
            self._state.close()
        self._readers.close()
        try:
            self._log.close()
        except OSError as error:
            logger.error("the log's last sync failed: %s", error.strerror or error)

    # ---------------------------------------------------------------------------------------------- from other threads

    def submit(self, append: Append) -> None:
        """Queue an append; reported as appended or failed, see `on_appended`."""
        with self._wake:
            self._queue.append(append)
            if len(self._queue) == 1:
                self._wake.notify()

    def sync(self, then: Callable[[str], None]) -> None:
        """Make all submitted appends durable, also those that were answered before a sync; `then("")` follows their reports.

        `then` is called on this thread, with the error if there was one: the state of unsynced appends is unknown then.
        """
        with self._wake:
            self._barriers.append(then)
            self._wake.notify()

    def drop(self, ledgers: Iterable[int]) -> None:
        """Forget ledgers that are no longer needed; segments that hold nothing else are deleted, mostly dead ones rewritten."""
        with self._wake:
            self._dropped.extend(ledgers)
            self._wake.notify()

    def look_for_room(self) -> None:
        """Rewrite segments that are mostly dead, if they fit: another writer has no space."""
        with self._wake:
            self._looking = True
            self._wake.notify()

    def read(self, spans: Sequence[Span]) -> list[StoredEntry]:
        """Read entries, from any thread; those after a damaged one are left out.

        Raises:
            StorageError: the first one is damaged or gone; says which and where.
            OSError: the disk does not answer.
        """
        return self._readers.read(spans)

    def read_now(self, spans: Sequence[Span]) -> list[StoredEntry] | None:
        """The entries, if memory has all of them: the system's, that keeps what it read or wrote; None: ask `read`."""
        return self._readers.read_now(spans)

    @property
    def busy(self) -> bool:
        """Whether something waits to be written, or is being written. Cycles that were not waited for need this thread only when
        they are durable.
        """
        return bool(self._flying or (self._queue and len(self._behind) < BEHIND_MAX))

    @property
    def recent(self) -> bool:
        """Whether something was stored a short time ago."""
        return time.monotonic() - self._wrote_s < RECENTLY_S

    def waits(self) -> bool:
        """Whether this thread waits for the interpreter, see `runtime.interpreter.gil_yield`; while it writes much that is
        unknown.
        """
        return self._state is not None and not self._copying and self._state.waits()

    # ------------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._state = ThreadState()
        if self._stands_back:
            stand_back()
        try:
            while self._cycle():
                pass
        except Exception as error:  # a bug here must not leave publishers waiting for ever
            logger.critical("the log thread stops: unexpected %s: %s", type(error).__name__, error, exc_info=error)
            reason = f"the log has stopped: unexpected {type(error).__name__}: {error}"
            self._refuse(self._in_flight(), reason)
            self._refuse_for_ever(reason)

    def _cycle(self) -> bool:
        """One round; whether there is another."""
        with self._wake:
            while not self._has_work():
                if self._background.pending and not self._behind:
                    break
                pause_s = self._until_due_s()
                self._wake.wait(pause_s)
                if pause_s is not None:
                    break
            self._landed = False
            alone = bool(self._dropped or self._barriers or self._looking or self._stopping)
        failed = bool(self._behind) and not self._land(everything=alone)
        with self._wake:
            batch = self._take() if len(self._behind) < BEHIND_MAX else []
            dropped: list[int] = []
            barriers: list[Callable[[str], None]] = []
            looking = ends = False
            if not self._behind:
                dropped, self._dropped = self._dropped, []
                barriers, self._barriers = self._barriers, []
                looking, self._looking = self._looking, False
                ends = self._stopping and not batch and not dropped
        if ends:
            return False
        self._flying = batch
        self.steps += 1
        if failed:
            for then in barriers:
                then("the log could not be written")
            barriers = []
        if dropped:
            self._background.release(dropped)
        elif looking:
            self._background.look_for_rewrites()
        batch = self._flying = self._current(batch)
        if batch or barriers or self._sync_due():
            self._commit(batch, barriers)
        self._work(idle=not batch and not self._behind)
        # After a write its own moment is near enough: one look at the clock less for each publish.
        if (self._wrote_s if batch else time.monotonic()) >= self._next_mark_s and self._log.unmarked:
            self._mark()
        return True

    def _has_work(self) -> bool:
        """Whether there is something to do at once."""
        waits = bool(self._queue) and len(self._behind) < BEHIND_MAX
        return waits or bool(self._landed or self._dropped or self._barriers or self._looking or self._stopping)

    def _woken(self) -> None:
        """More of the cycles that were not waited for may be durable. Called on any thread."""
        with self._wake:
            self._landed = True
            self._wake.notify()

    def _land(self, *, everything: bool) -> bool:
        """Report the cycles that are durable; `everything`: wait for all of them. Returns whether the log has not failed."""
        try:
            self._report_durable(everything=everything)
        except OSError as error:
            self._fail(error, sync_failed=True)
            return False
        return True

    def _report_durable(self, *, everything: bool) -> None:
        if everything and self._behind:
            self._log.sync()
        while self._behind:
            durable = self._log.offset if everything else self._log.durable()
            located: list[tuple[Append, Location]] = []
            end = 0
            while self._behind and self._behind[0][0] <= durable:
                end, cycle = self._behind.popleft()
                located += cycle
            if not located:
                return
            self.cycles += 1
            self._log.settle(end)
            self._on_appended(located)
            # Ask again: writing may have failed right after this, and a failure is reported only if nothing more is durable.

    def _mark(self) -> None:
        """Record in the file of ledgers what is on the disk."""
        began_s = time.monotonic()
        try:
            self._log.mark()
        except OSError as error:
            logger.warning("the file of ledgers cannot be written: %s", error.strerror or error)
        now_s = time.monotonic()
        self._next_mark_s = now_s + max(MARK_S, MARK_SHARE * (now_s - began_s))

    def _until_due_s(self) -> float | None:
        """Time until there is work to do without a request."""
        sync_s = self._until_sync_s()
        if not self._log.unmarked:
            return sync_s
        mark_s = max(0.0, self._next_mark_s - time.monotonic())
        return mark_s if sync_s is None else min(mark_s, sync_s)

    def _take(self) -> list[Append]:
        """The appends that the next cycle writes: all of them, if a barrier waits for them. Called with the lock held."""
        queue = self._queue
        size = 0
        for count, append in enumerate(queue):
            size += append.bytes_total
            if size > CYCLE_BYTES_MAX and count and not self._barriers:
                self._taken_bytes = size
                self._queue = queue[count:]
                return queue[:count]
        self._taken_bytes = size
        self._queue = []
        return queue

    def _current(self, batch: list[Append]) -> list[Append]:
        """Leave out, and report, appends that were staged before their topic learned of a failure."""
        if not self._failed_write_epochs or not batch:
            return batch
        void = [append for append in batch if append.write_epoch <= self._failed_write_epochs.get(append.topic, -1)]
        for append in batch:
            if append.write_epoch > self._failed_write_epochs.get(append.topic, append.write_epoch):
                del self._failed_write_epochs[append.topic]
        if not void:
            return batch
        gone = set(map(id, void))
        self._on_failed(void, "the log failed while this was on its way")
        self._on_healed()
        return [append for append in batch if id(append) not in gone]

    def _until_sync_s(self) -> float | None:
        if self._interval_s is None or self._log.offset <= self._log.synced:
            return None
        return max(0.0, self._next_sync_s - time.monotonic())

    def _sync_due(self) -> bool:
        return self._until_sync_s() == 0.0

    def _commit(self, batch: list[Append], barriers: Sequence[Callable[[str], None]] = ()) -> None:
        """Write, sync, report."""
        at_once, later = self._split(batch)
        syncing = False
        now_s = time.monotonic()
        if batch:
            self._wrote_s = now_s
        if now_s > self._room_s:
            self._log.forget_room()
            self._room_s = now_s + ROOM_S
        if later and not (at_once or barriers) and self._log.writes_behind:
            self._write_behind(later)
            return
        try:
            if at_once:
                located = self._log.write(at_once)
                self._log.mark_reported()
                self._flying = later
                self._on_appended(located)
            through = syncing = bool(later) and self._log.synced == self._log.offset
            self._copying = self._taken_bytes >= COPYING_BYTES_MIN
            located = self._log.write(later, through=through)
            self._copying = False
            self.steps += 1
            behind = bool(barriers) and self._log.synced < self._log.offset
            if not through and (later or behind or self._sync_due()):
                syncing = True
                self._log.sync()
            if syncing:
                self._synced()
                self._log.mark_reported()
                self._flying = []
                if located:
                    self._on_appended(located)
        except OSError as error:
            self._copying = False
            for then in barriers:
                then(f"the log cannot be synced: {error.strerror or error}")
            self._fail(error, sync_failed=syncing)
            return
        for then in barriers:
            then("")

    def _write_behind(self, batch: list[Append]) -> None:
        """Write a cycle, which `_land` reports."""
        try:
            if self._log.ends_segment:
                self._report_durable(everything=True)
            located = self._log.write(batch, behind=True)
        except OSError as error:
            self._fail(error, sync_failed=True)
            return
        self._flying = []
        self._behind.append((self._log.offset, located))

    def _split(self, batch: list[Append]) -> tuple[list[Append], list[Append]]:
        """The appends to answer when they are written, and those to answer when they are synced; a topic's order is kept."""
        if self._fsync == "always":
            return [], batch
        durable = {append.topic for append in batch if append.durable}
        at_once = [append for append in batch if append.topic not in durable]
        return at_once, [append for append in batch if append.topic in durable]

    def _synced(self) -> None:
        self.cycles += 1
        if self._interval_s is not None:
            self._next_sync_s = time.monotonic() + self._interval_s

    def _work(self, *, idle: bool) -> None:
        """A slice of background work."""
        if not self._background.pending:
            return
        started = time.monotonic()
        if not idle and started < self._next_background_s:
            return
        try:
            self._report_durable(everything=True)
            self._background.step()
        except OSError as error:
            self._fail(error, sync_failed=True)
        now = time.monotonic()
        self._next_background_s = now + (BACKGROUND_SHARE - 1) * (now - started)

    # -------------------------------------------------------------------------------------------------------- failures

    def _fail(self, error: OSError, *, sync_failed: bool) -> None:
        """A write or sync failed: everything in flight never was. Ends when the log works again, or with the broker."""
        reason = "no space left on the device" if error.errno == errno.ENOSPC else error.strerror or str(error)
        broken = f"the log cannot be written: {reason or type(error).__name__}"
        logger.error("%s (segment %d); nothing is accepted until it can be", broken, self._log.segment)
        self._log.fail(sync_failed=sync_failed)
        self._background.abandon()
        self._no_room = ""
        self._refuse(self._in_flight(), broken)
        attempt = 0
        while True:
            with self._wake:
                waiting, self._queue = self._queue, []
                dropped, self._dropped = self._dropped, []
            if dropped:
                # Retention may free the space that is missing.
                self._background.release(dropped)
            self._refuse(waiting, broken)
            if self._log.heal():
                break
            if self._make_room():
                pause_s = 0.0
            else:
                pause_s = self._heal_pauses_s[min(attempt, len(self._heal_pauses_s) - 1)]
                attempt += 1
            waiting = []
            with self._wake:
                stopping = self._wake.wait_for(lambda: self._stopping, pause_s)
                if stopping:
                    waiting, self._queue = self._queue, []
            if stopping:
                self._refuse(waiting, broken)
                return
        logger.warning("the log works again, in segment %d", self._log.segment)
        self._on_healed()

    def _in_flight(self) -> list[Append]:
        """All appends that were taken and not reported, in order; they are forgotten here."""
        appends = [append for _, located in self._behind for append, _ in located] + self._flying
        self._behind.clear()
        self._flying = []
        return appends

    def _make_room(self) -> bool:
        """A slice of background work on a full disk; whether there is more to do at once."""
        try:
            return self._background.make_room()
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._no_room:  # it is tried every second or two, for as long as nothing changes
                logger.warning("space in the log cannot be freed: %s", reason)
            self._no_room = reason
            self._log.fail(sync_failed=True)
            self._background.abandon()
            # Each attempt begins a segment; the empty ones of those before must not pile up.
            self._background.release(())
            return False

    def _refuse(self, batch: list[Append], reason: str) -> None:
        if not batch:
            return
        for append in batch:
            self._failed_write_epochs[append.topic] = max(
                append.write_epoch, self._failed_write_epochs.get(append.topic, -1)
            )
        self._on_failed(batch, reason)

    def _refuse_for_ever(self, reason: str) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: bool(self._queue) or self._stopping)
                waiting, self._queue = self._queue, []
                stopping = self._stopping
            self._refuse(waiting, reason)
            if stopping:
                return
