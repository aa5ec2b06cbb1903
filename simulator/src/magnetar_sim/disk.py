"""What a cluster keeps: segments, and the metadata store. Both outlive the broker, but not everything that was on its way.

`SimLog` is production's log thread without the thread: its cycle is called at virtual times, and its disk may fail, or
lose power between any two operations. `SimStore` commits in order, a group at a time, and answers later.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from magnetar.broker.catalog.deletion_proofs import begin_proving
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.log.thread import LogThread
from magnetar.storage.entries import Append, Location, StoredEntry
from magnetar.storage.files import Files
from magnetar.storage.records import SALT_BYTES
from magnetar.storage.recovery import Recovered, recover
from magnetar.storage.topiclog import Span
from magnetar_sim.clock import Clock
from magnetar_sim.host.breakable import Rule
from magnetar_sim.host.memory_files import MemoryFiles

FOLDER: Final = Path("/log")
HEAL_MS: Final = 200
"""From a failed write to the next attempt, at most."""
HELD_MS: Final = 20
"""A thread that has to wait looks as often whether it may go on."""


class PowerCut(BaseException):
    """The cluster died in the middle of an operation of its disk; no machine may catch it."""


class Reports(NamedTuple):
    """What the log and the store of one life report; called at the moment of the fact, and the caller makes events of them.

    Attributes:
        appended, failed, healed: see `LogThread`.
        answered: a transaction is stored, or not (the error).
        power_cut: the broker died inside an operation.
    """

    appended: Callable[[list[tuple[Append, Location]]], None]
    failed: Callable[[list[Append], str], None]
    healed: Callable[[], None]
    answered: Callable[[Callable[[str], None], str], None]
    power_cut: Callable[[], None]


class StateStore(Protocol):
    """The metadata store of one life."""

    @property
    def idle(self) -> bool:
        """Nothing waits."""

    def submit(self, puts: dict[str, bytes], deletes: tuple[str, ...], done: Callable[[str], None] | None) -> None:
        """Write soon, all or nothing."""

    def finish(self) -> bool:
        """The broker ends: commit what waits; whether all of it is."""

    def power_cut(self) -> None:
        """The broker died."""


class Opened(NamedTuple):
    """The log and the store of a new life.

    Attributes:
        log: has begun.
        store: of metadata.
        stored: what the store had; what is saved later is not in it.
        recovered: what the log had.
        save: stores keys at once.
        still: whether the broker may begin; not if it has lost its storage meanwhile.
        shut: the life is over, in good order (True) or not.
    """

    log: "SimLog"
    store: StateStore
    stored: dict[str, bytes]
    recovered: Recovered
    save: Callable[[Mapping[str, bytes]], None]
    still: Callable[[], bool]
    shut: Callable[[bool], None]


class Disk(Protocol):
    """What a cluster keeps, whether it has a broker or not."""

    @property
    def broken(self) -> int:
        """Operations that failed so far."""

    @property
    def skew_ms(self) -> int:
        """The clock of the machine of the broker that opens it next, against that of the cluster."""

    def ready(self) -> bool:
        """Whether a broker can open it now. If not, one is made to wait for it."""

    def open(self, reports: Reports, limits: BrokerConfig) -> Opened:
        """A life begins.

        Raises:
            PowerCut, OSError, StorageError: the disk failed, or does not hold what it should.
        """

    def crash(self) -> None:
        """The power is cut while nothing runs: what was not durable may be gone."""

    def ended(self) -> None:
        """The cluster has another one."""

    def awake(self) -> bool:
        """Whether the broker's process runs, or is stopped for a while."""

    def busy(self) -> bool:
        """Whether an operation has not ended, so that others wait."""

    def expired(self) -> str:
        """Why the broker must not handle anything any more; "": it may."""

    def sends(self) -> None:
        """The broker sends something to a client.

        Raises:
            Violation: another one may own the disk.
        """

    def inject(self, rule: Rule) -> None:
        """See `Breakable`."""

    def fail_next(self, operation: str, error: OSError) -> None:
        """The next such operation fails, once."""

    def fail_commit(self) -> None:
        """The next commit of the store fails."""

    def heal(self) -> None:
        """No more faults."""

    def without_faults(self) -> AbstractContextManager[None]:
        """For the world's own eyes."""


class LocalDisk:
    """`Disk`: a disk in memory, and a metadata store.

    Args:
        clock, rng: the world's.
        slow_ms: see `SimLog`.
    """

    def __init__(self, clock: Clock, rng: random.Random, slow_ms: int) -> None:
        self._clock, self._rng, self._slow_ms = clock, rng, slow_ms
        self.files = MemoryFiles(rng)
        self._meta: dict[str, bytes] = {}
        self._store: SimStore | None = None

    @property
    def broken(self) -> int:
        """See `Disk`."""
        return self.files.broken

    @property
    def skew_ms(self) -> int:
        """There is one machine."""
        return 0

    def ready(self) -> bool:
        """Always."""
        return True

    def open(self, reports: Reports, limits: BrokerConfig) -> Opened:
        """See `Disk`."""
        log = SimLog(
            self._clock,
            self._rng,
            self.files,
            limits,
            self._slow_ms,
            reports,
            holds=lambda: False,
        )
        store = self._store = SimStore(self._clock, self._rng, self._meta, self._slow_ms, reports.answered)
        recovered = log.start()
        for piece in begin_proving(self._meta, recovered.topics):
            self._meta.update(piece.puts)
        return Opened(log, store, self._meta, recovered, lambda _puts: None, lambda: True, lambda _clean: None)

    def crash(self) -> None:
        """See `Disk`."""
        self.files = self.files.crash()

    def ended(self) -> None:
        """Nothing is left of it."""

    def awake(self) -> bool:
        """Always."""
        return True

    def busy(self) -> bool:
        """Never."""
        return False

    def expired(self) -> str:
        """Never."""
        return ""

    def sends(self) -> None:
        """No other broker ever owns it."""

    def inject(self, rule: Rule) -> None:
        """See `Disk`."""
        self.files.inject(rule)

    def fail_next(self, operation: str, error: OSError) -> None:
        """See `Disk`."""
        self.files.fail_next(operation, error)

    def fail_commit(self) -> None:
        """See `Disk`."""
        if self._store is not None:
            self._store.failing += 1

    def heal(self) -> None:
        """See `Disk`."""
        self.files.heal()
        if self._store is not None:
            self._store.failing = 0

    def without_faults(self) -> AbstractContextManager[None]:
        """See `Disk`."""
        return self.files.without_faults()


class Turns:
    """What a thread of one life of a broker does, without the thread: its turns are events of the world.

    Args:
        clock: the world's.
        holds: whether the thread has to wait, because the process is stopped or another operation has not ended.
        power_cut: called when the broker dies inside an operation.

    Attributes:
        over: the life has ended; no turn comes any more.
    """

    def __init__(self, clock: Clock, holds: Callable[[], bool], power_cut: Callable[[], None]) -> None:
        self._clock, self._holds, self._power_cut = clock, holds, power_cut
        self.over = False

    def end(self) -> None:
        """The life ends."""
        self.over = True

    def after(self, ms: int, work: Callable[[], None]) -> None:
        """Do some work after so long, or later if the thread has to wait then."""
        self._clock.after(ms, self._turn, work)

    def _turn(self, work: Callable[[], None]) -> None:
        if self.over:
            return
        if self._holds():
            self.after(HELD_MS, work)
            return
        try:
            work()
        except PowerCut:
            self.over = True
            self._power_cut()


class SimLog(LogThread):
    """The log of one life of a broker.

    Args:
        clock, rng: the world's.
        files: the cluster's.
        config: limits.
        slow_ms: the longest time from a submit to the cycle that takes it.
        reports: called at the moment of the fact.
        holds: see `Turns`.

    Attributes:
        reading: the thread that is within an operation is one that reads for a client, and the log's is not.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        files: Files,
        config: BrokerConfig,
        slow_ms: int,
        reports: Reports,
        holds: Callable[[], bool],
    ) -> None:
        super().__init__(
            files,
            FOLDER,
            config,
            on_appended=reports.appended,
            on_failed=reports.failed,
            on_healed=reports.healed,
            salt=lambda: rng.randbytes(SALT_BYTES),
            step_aside=lambda: None,
        )
        self._rng, self._slow_ms = rng, slow_ms
        self._turns = Turns(clock, holds, reports.power_cut)
        self._due = False
        self._broken = False
        self.reading = False

    def read(self, spans: Sequence[Span]) -> list[StoredEntry]:
        """See `LogThread`."""
        self.reading = True
        try:
            return super().read(spans)
        finally:
            self.reading = False

    def start(self) -> Recovered:
        """Recover and begin a segment; no thread is started."""
        recovered = recover(self._files, FOLDER)
        self._log.begin(recovered)
        self._background.look_for_rewrites()
        return recovered

    def submit(self, append: Append) -> None:
        """Queue an append."""
        super().submit(append)
        self._arm()

    def drop(self, ledgers: Sequence[int]) -> None:  # type: ignore[override]  # the broker gives tuples
        """These ledgers are needed no more."""
        super().drop(ledgers)
        self._arm()

    def sync(self, then: Callable[[str], None]) -> None:
        """Queue a barrier."""
        super().sync(then)
        self._arm()

    def finish(self) -> bool:
        """The broker ends: write what waits; whether all of it, and everything before, is durable."""
        if self._broken:
            self._turns.end()
            return False
        try:
            while not self._broken and (self._queue or self._dropped or self._barriers or self._behind):
                self._landed = True
                self._cycle()
        except PowerCut:
            self._broken = True
        return self._ended()

    def _ended(self) -> bool:
        self._turns.end()
        try:
            if not self._broken:
                self._log.close()
        except (OSError, PowerCut):
            return False
        return not self._broken

    def power_cut(self) -> None:
        """The broker died."""
        self._turns.end()

    @property
    def idle(self) -> bool:
        """Nothing waits."""
        return not self._queue and not self._behind and not self._broken

    def _arm(self) -> None:
        if not self._due:
            self._due = True
            self._turns.after(int(self._rng.random() * self._slow_ms), self._round)

    def _round(self) -> None:
        self._due = False
        if self._broken:
            waiting, self._queue = self._queue, []
            self._refuse(waiting, "the log cannot be written")
        elif self._queue or self._dropped or self._barriers or self._behind or self._background.pending:
            # No other thread wakes this one: it looks each time what has become durable.
            self._landed = True
            self._cycle()
        if self._queue or self._barriers or self._behind or self._background.pending:
            self._arm()

    def _work(self, *, idle: bool) -> None:
        """Background work by chance instead of by a share of real time."""
        if self._background.pending and (idle or self._rng.random() < 0.3):
            try:
                self._report_durable(everything=True)
                self._background.step()
            except OSError as error:
                self._fail(error, sync_failed=True)

    def _fail(self, error: OSError, *, sync_failed: bool) -> None:
        """As in production, but it does not wait: healing is an event."""
        self._log.fail(sync_failed=sync_failed)
        self._background.abandon()
        self._broken = True
        self._refuse(self._in_flight(), f"the log cannot be written: {error.strerror}")
        waiting, self._queue = self._queue, []
        self._refuse(waiting, f"the log cannot be written: {error.strerror}")
        self._turns.after(int(self._rng.random() * HEAL_MS), self._mend)

    def _mend(self) -> None:
        waiting, self._queue = self._queue, []
        self._refuse(waiting, "the log cannot be written")
        if not self._log.heal():
            self._turns.after(int(self._rng.random() * HEAL_MS) + 1, self._mend)
            return
        self._broken = False
        self._on_healed()


class SimStore:
    """The metadata store of one life of a broker, over the cluster's durable keys.

    Args:
        clock, rng: the world's.
        data: what is durable; changed in place.
        slow_ms: the longest time from a submit to its commit, and from there to its answer.
        answer: makes an event of a callback.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        data: dict[str, bytes],
        slow_ms: int,
        answer: Callable[[Callable[[str], None], str], None],
    ) -> None:
        self._clock, self._rng, self._data, self._slow_ms, self._answer = clock, rng, data, slow_ms, answer
        self._waiting: list[tuple[dict[str, bytes], tuple[str, ...], Callable[[str], None] | None]] = []
        self._due = False
        self.over = False
        self.failing = 0

    @property
    def idle(self) -> bool:
        """Nothing waits."""
        return not self._waiting

    def submit(self, puts: dict[str, bytes], deletes: tuple[str, ...], done: Callable[[str], None] | None) -> None:
        """Write soon, all or nothing."""
        self._waiting.append((puts, deletes, done))
        if not self._due:
            self._due = True
            self._clock.after(int(self._rng.random() * self._slow_ms), self._commit)

    def _commit(self) -> None:
        self._due = False
        if self.over:
            return
        waiting, self._waiting = self._waiting, []
        for puts, deletes, done in waiting:
            error = ""
            if self.failing:
                self.failing -= 1
                error = "the metadata store failed"
            else:
                self._write(puts, deletes)
            if done is not None:
                self._answer(done, error)

    def _write(self, puts: dict[str, bytes], deletes: tuple[str, ...]) -> None:
        for key in deletes:
            self._data.pop(key, None)
        self._data.update(puts)

    def finish(self) -> bool:
        """The broker ends: commit what waits; whether all of it is."""
        whole = not self.failing
        self._commit()
        self.over = True
        return whole

    def power_cut(self) -> None:
        """The broker died: a part of what was on its way may have been committed, in order."""
        self.over = True
        for puts, deletes, _ in self._waiting[: self._rng.randint(0, len(self._waiting))]:
            self._write(puts, deletes)
        self._waiting.clear()
