"""What a cluster of several brokers keeps: ledgers and a record in ZooKeeper, and the processes of which one serves.

The files, the chain, the log, the file of states and the lease are the real ones (docs/simulator.md#takeovers).
"""

import errno
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from magnetar.broker.catalog.deletion_proofs import begin_proving
from magnetar.core.errors import StorageError
from magnetar.core.settings import BrokerConfig
from magnetar.runtime.bookkeeper.ledger_files import LedgerFiles
from magnetar.runtime.stores.file_store import HEAL_S
from magnetar.runtime.stores.state_file import StateFile
from magnetar.runtime.stores.writes import Write
from magnetar.storage.bookkeeper.chain import Chain
from magnetar_sim.bookkeeper.takeover.bookies import Bookies
from magnetar_sim.bookkeeper.takeover.ledgers import SimLedgers, SimRecord
from magnetar_sim.bookkeeper.takeover.process import Process
from magnetar_sim.bookkeeper.takeover.states import Expected, LedgerStore
from magnetar_sim.bookkeeper.takeover.zookeeper import ZooKeeper
from magnetar_sim.context import WorldContext
from magnetar_sim.disk import Opened, PowerCut, Reports, SimLog
from magnetar_sim.host.breakable import Breakable
from magnetar_sim.memory.records import Violation

ROOT: Final = Path("/")
END_MS: Final = 1_000
"""A process that has lost its lease notices within this time, and ends."""


SKEWS_MS: Final = (0, 2_000, 60_000, 300_000, 300_000)
"""How far the clock of a broker's machine is off, at most, in either direction."""

APART_MS: Final = 10_000
"""Clocks that differ by less than this are nothing special."""


class Served(Protocol):
    """A cluster (`cluster.Cluster`)."""

    name: str

    def start(self) -> None:
        """A broker begins, if the disk is ready."""

    def expire(self, reason: str) -> None:
        """The broker must not serve any longer."""

    def wake(self) -> None:
        """The broker's process runs again."""


class _AtStep:
    """`bookkeeper.takeover.ledgers.ProcessSteps` of one process."""

    def __init__(self, site: "Site", process: Process) -> None:
        self._site, self._process = site, process

    def step(self, kind: str) -> None:
        """See `Steps`."""
        self._site.step(self._process, kind)

    def changed(self, before: Chain, now: Chain) -> None:
        """See `ProcessSteps`."""
        self._site.changed(self._process, before, now)


class Site(Breakable):
    """`Disk` (`magnetar_sim.disk`).

    Args:
        context: of the world.
        cluster: whose.

    Attributes:
        bookies, zookeeper: what outlives brokers.
        processes: of its brokers, living and dead.
        serving: whose broker the cluster has.
    """

    def __init__(self, context: WorldContext, cluster: Served) -> None:
        super().__init__()
        self._context, self._cluster = context, cluster
        self.bookies = Bookies(context.rng)
        self.zookeeper = ZooKeeper(context.clock, context.rng)
        self.processes: list[Process] = []
        self.serving: Process | None = None
        self._names = context.rng.choice((("a", "b"), ("a", "b", "c"), ("a", "a")))
        # With a generator of its own, so that the other draws of a seed stay the same.
        clocks = random.Random(f"clocks-{context.seed}-{cluster.name}")  # noqa: S311 - chance that replays
        self._skews_ms = [clocks.choice((-1, 1)) * clocks.randint(0, clocks.choice(SKEWS_MS)) for _ in self._names]
        self._served: int | None = None
        self._taking: Process | None = None
        self._elected: Process | None = None
        self._taker: Process | None = None
        self._reader: Process | None = None
        self._expected = Expected()
        self._stopped = False

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """See `Breakable`. A read finds what is on bookies that do not answer now."""
        before, self.bookies.checked = self.bookies.checked, True
        try:
            with super().without_faults():
                yield
        finally:
            self.bookies.checked = before

    @property
    def skew_ms(self) -> int:
        """See `Disk`."""
        return self._skews_ms[self._elected.slot] if self._elected is not None else 0

    @property
    def stormy(self) -> bool:
        """See `process.Owns`."""
        return self._context.storm

    # ------------------------------------------------------------------------------------------------------- processes

    def ready(self) -> bool:
        """Whether a process has become the owner. If not, processes that are gone are started again."""
        if self._elected is not None:
            return True
        for number, name in enumerate(self._names):
            if not any(one.alive and one.slot == number for one in self.processes):
                made = Process(self._context.clock, self._context.rng, self.zookeeper, name, number, self)
                self.processes.append(made)
                self.say(f"{made} waits")
        return False

    def ended(self) -> None:
        """The cluster has a new disk: all processes of this one are gone."""
        self._stopped = True
        for process in self.processes:
            process.end()

    def elected(self, process: Process) -> None:
        """See `process.Owns`."""
        self._context.count("broker became the owner")
        self._one_lease()
        if self._stopped or process.lost():
            process.leave()
            return
        self._elected = process
        self._cluster.start()

    def confirmed(self, process: Process) -> None:
        """See `process.Owns`."""
        self._one_lease()

    def _one_lease(self) -> None:
        """No two processes may serve at the same time, whatever they believe."""
        holders = [one for one in self.processes if one.alive and one.lease.until_s >= one.now_s()]
        if len(holders) > 1:
            raise Violation(f"{self._cluster.name}: {holders[0]} and {holders[1]} may serve at the same time")

    def over(self, process: Process, reason: str) -> None:
        """See `process.Owns`."""
        if process is self._taker and not process.lease.lost(process.now_s()):
            raise Violation(f"{process} stops although the log is its own: {reason}")
        if process is self.serving:
            self._cluster.expire(reason)
        elif process is not self._taking:
            self._finish(process)

    def _finish(self, process: Process) -> None:
        """A process that serves no longer ends. If one of its threads is within an operation, that is cut off."""
        if process.alive:
            process.quit()
            process.leave()
            self.say(f"{process} has ended")
            self._restart()

    def say(self, text: str) -> None:
        """See `process.Owns`."""
        self._context.say(f"{self._cluster.name}: {text}")

    # ------------------------------------------------------------------------------------------------------------ lives

    def open(self, reports: Reports, limits: BrokerConfig) -> Opened:
        """See `Disk`: the elected process takes the log."""
        process, self._elected = self._elected, None
        assert process is not None
        outer, self._taking = self._taking, process
        self.say(f"{process} takes the log")
        try:
            return self._open(process, reports, limits)
        except (PowerCut, OSError, StorageError) as error:
            self.say(f"{process} has not taken the log: {str(error) or 'killed'}")
            if isinstance(error, PowerCut):
                process.end()
            else:
                process.leave()
            self._restart()
            if isinstance(error, StorageError) and (process is not self._taker or process.lost()):
                raise OSError(
                    errno.ESTALE, str(error)
                ) from error  # the log of a former owner may be gone while it reads it
            raise
        finally:
            self._taking = outer

    def killed(self) -> None:
        """See `process.Owns`."""
        self._restart()

    def _restart(self) -> None:
        """Processes that ended are started again, some time."""
        rng = self._context.rng
        self._context.clock.after(int(rng.random() * rng.choice((100, 2_000, 20_000))), self._start_again)

    def _start_again(self) -> None:
        if not self._stopped:
            self.ready()

    def _open(self, process: Process, reports: Reports, limits: BrokerConfig) -> Opened:
        context = self._context
        steps = _AtStep(self, process)
        files = LedgerFiles.take(
            SimLedgers(context.rng, self.bookies, self.zookeeper, steps),
            SimRecord(self.zookeeper, steps),
            ROOT,
            process.name,
        )

        def lost() -> str:
            return process.lost() or files.lost()

        def holds() -> bool:
            return process.paused or process.busy

        def wait(seconds: float) -> bool:
            if store is None or store.closing or store.over:
                return True
            self._hang(process, int(seconds * 1000))
            return store.closing or store.over

        store: LedgerStore | None = None
        states = StateFile(files, ROOT / "state", lost, wait, HEAL_S)
        current = partial(self._is_current, process)
        store = LedgerStore(
            context.clock,
            context.rng,
            states,
            self._expected,
            context.slow_disk_ms,
            reports,
            holds,
            current,
            lost,
        )
        log = SimLog(
            context.clock,
            context.rng,
            files,
            limits,
            context.slow_disk_ms,
            reports,
            holds,
        )
        recovered = log.start()
        stored = {key: value for key, (value, _version) in states.load().items()}
        if self._taker is process:
            self._expected.found(stored, str(process))
            self._reader = process

        def save(puts: Mapping[str, bytes]) -> None:
            with self.without_faults():
                _, (failure,) = states.commit([Write(dict(puts), (), None, lambda _failure: None)])
            if failure is not None:
                raise StorageError(str(failure))
            if current():
                self._expected.answered([(puts, ())])

        for piece in begin_proving(stored, recovered.topics):
            save(piece.puts)
            stored |= piece.puts

        def quit_() -> None:
            log.power_cut()
            store.power_cut()

        def still() -> bool:
            if not process.alive or self._taker is not process or lost():
                return False
            self.serving = process
            self._count_clocks(process)
            process.take(files.lost)
            return True

        process.quit, process.log = quit_, log
        return Opened(log, store, stored, recovered, save, still, partial(self._shut, process))

    def _count_clocks(self, process: Process) -> None:
        """A takeover between machines whose clocks differ."""
        former, self._served = self._served, process.slot
        ahead_ms = self._skews_ms[process.slot] - self._skews_ms[former if former is not None else process.slot]
        if abs(ahead_ms) >= APART_MS:
            self._context.count(f"taken over by a clock that is {'ahead' if ahead_ms > 0 else 'back'}")
            self.say(f"the clock of {process} differs by {ahead_ms} ms from that of the former owner")

    def _is_current(self, process: Process) -> bool:
        """Whether no later owner has read what this one stores."""
        return self._reader is None or self._reader is process

    def _shut(self, process: Process, clean: bool) -> None:
        if self.serving is process:
            self.serving = None
        self._restart()
        if not process.alive:
            return
        process.quit()
        if clean:
            self._all_closed(process)
            try:
                self.step(process, "session-end")
            except PowerCut:
                self._context.count("session left behind")
            else:
                process.leave()
        else:
            process.end()
            self._context.count("session left behind")

    def _all_closed(self, process: Process) -> None:
        """A clean stop closes the log first, and gives up the node after that.

        An open ledger without entries is one whose file failed: the answer to the change that added it to the chain was lost.
        The broker never writes to it, and the next owner recovers it.
        """
        if self._taker is not process:
            return
        chain = Chain.decode(self.zookeeper.data)
        for name, file in chain.files.items():
            ledger = self.bookies.ledgers[file.ledger]
            if ledger.payloads and not ledger.closed and not ledger.failed:
                raise Violation(f"{process} has stopped in good order, and {name} (ledger {file.ledger}) is not closed")

    def crash(self) -> None:
        """The power is cut where nothing runs any more: bookies and ZooKeeper are elsewhere."""

    def awake(self) -> bool:
        """See `Disk`."""
        return self.serving is None or not self.serving.paused

    def busy(self) -> bool:
        """See `Disk`."""
        return self.serving is not None and (self.serving.busy or self.serving.paused)

    def expired(self) -> str:
        """See `Disk`: as the driver asks before each event."""
        return self.serving.lease_over() if self.serving is not None else ""

    def sends(self) -> None:
        """See `Disk`: the node of the owner is still that of this broker's session, whatever the broker believes."""
        if self.serving is not None and self.zookeeper.owner != self.serving.session:
            raise Violation(f"{self.serving} sends to a client, and its node is gone")

    # ------------------------------------------------------------------------------------------------------ operations

    def step(self, process: Process, kind: str) -> None:
        """See `bookkeeper.takeover.ledgers.Steps`."""
        if not process.alive:
            raise PowerCut
        if self._stopped:
            return
        try:
            error = self.fault(kind, Path(str(process)))
        except PowerCut:
            self.say(f"{process} is killed at {kind}")
            process.end()
            raise
        if error is not None:
            self.say(f"{process}: {kind} fails")
            raise error
        if not process.alive:
            raise PowerCut

    def changed(self, process: Process, before: Chain, now: Chain) -> None:
        """The chain was written by a process."""
        if not process.epoch:
            process.epoch = now.epoch
            self._taker = process
        elif self._taker is not process or process.epoch != now.epoch:
            raise Violation(
                f"{process} (epoch {process.epoch}) changes the chain of {self._taker} (epoch {before.epoch})"
            )

    def pause(self, process: Process, ms: int) -> None:
        """A process is stopped, wherever it is, and goes on later; the rest of the world does not wait."""
        if process.paused or not process.alive or not self._context.may_nest:
            return
        self._context.count("broker stopped for a while")
        self.say(f"{process} is stopped for {ms} ms")
        process.paused = process.busy = True
        self._context.meanwhile(ms)
        process.paused = process.busy = False
        # It has to end its operation first; what came meanwhile is next.
        self._context.clock.after(0, self._wake, process, ms)

    def pause_idle(self, process: Process, ms: int) -> None:
        """A process is stopped while none of its threads is within an operation."""
        if process.paused or process.busy or not process.alive or process is self._taking:
            return
        self._context.count("broker stopped for a while")
        self.say(f"{process} is stopped for {ms} ms")
        process.paused = True
        self._context.clock.after(ms, self._wake, process, ms)

    def _wake(self, process: Process, ms: int) -> None:
        process.wake(ms)
        self._one_lease()
        if not process.alive:
            return
        self.say(f"{process} goes on")
        if process is self.serving:
            self._cluster.wake()
        elif process.epoch and process is not self._taking:
            self._context.count("former owner woke up")
            self._context.clock.after(int(self._context.rng.random() * END_MS), self._finish, process)

    def _hang(self, process: Process, ms: int) -> None:
        """A thread of a process waits: the log's, or one that reads for a client. Its broker does not."""
        log = process.log
        reads = log is not None and log.reading
        if log is not None:
            log.reading = False  # the log's thread goes on
        if reads:
            self._context.count("read hung")
        process.busy = not reads
        try:
            self._context.meanwhile(ms)
        finally:
            process.busy = False
            if log is not None:
                log.reading = reads
        if not process.alive:
            raise PowerCut

    def hang(self, process: Process, ms: int) -> None:
        """An operation takes this long."""
        if process.busy or process.paused or not self._context.may_nest:
            return
        self._context.count("operation hung")
        self.say(f"{process}: an operation takes {ms} ms")
        self._hang(process, ms)

    # ---------------------------------------------------------------------------------------------------------- faults

    def fail_commit(self) -> None:
        """See `Disk`."""
        self.fail_next("sync-answer", OSError(5, "Input/output error"))

    def heal(self) -> None:
        """See `Disk`."""
        super().heal()
        self.bookies.silent.clear()
        self.zookeeper.heal()
        for process in self.processes:
            if process.paused:
                self._wake(process, 0)
