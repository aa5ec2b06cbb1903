"""One broker's process: its session of ZooKeeper, its lease, its turn. The counterpart of `runtime.bookkeeper.ownership`."""

import random
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.storage.bookkeeper.lease import Lease
from magnetar_sim.bookkeeper.takeover.zookeeper import SESSION_MS, ZooKeeper
from magnetar_sim.clock import Clock
from magnetar_sim.disk import PowerCut, SimLog

SLOW_MS: Final = 2_500
SLOW_SHARE: Final = 0.03
"""So many requests and answers are slow, up to so long."""

LOOK_MS: Final = 1_000
"""As `magnetar.app.FOLDER_LOOK_S`."""


class Owns(Protocol):
    """What a process does when it has the turn (`bookkeeper.takeover.site.Site`)."""

    @property
    def stormy(self) -> bool:
        """Whether things go wrong still."""

    def elected(self, process: "Process") -> None:
        """The node is its own."""

    def confirmed(self, process: "Process") -> None:
        """ZooKeeper has answered."""

    def over(self, process: "Process", reason: str) -> None:
        """It must not serve any longer."""

    def step(self, process: "Process", kind: str) -> None:
        """At an operation on ZooKeeper. Raises PowerCut: the process is killed there."""

    def killed(self) -> None:
        """A process that had no broker yet was killed."""

    def say(self, text: str) -> None:
        """A line of the trace."""


class Process:
    """A broker's process, from its start to its end.

    Args:
        clock, rng: the world's.
        zookeeper: of the cluster.
        name: of the broker; two processes may have one.
        slot: which of the brokers of the cluster it is.
        site: what it does when it has the turn.

    Attributes:
        alive: it has not ended.
        paused: it is stopped.
        slept_ms: how long it was stopped, all in all.
        busy: one of its threads is within an operation, so the others wait.
        epoch: of the chain that it has written; 0: none.
        lease: of the broker.
        quit: called at its end, when it has taken the log.
        log: that it has taken.
    """

    def __init__(
        self, clock: Clock, rng: random.Random, zookeeper: ZooKeeper, name: str, slot: int, site: Owns
    ) -> None:
        self._clock, self._rng, self._zookeeper, self._site = clock, rng, zookeeper, site
        self.name, self.slot = name, slot
        self.alive = True
        self.paused = False
        self.slept_ms = 0
        self.busy = False
        self.epoch = 0
        self.lease = Lease(SESSION_MS / 1000, "/owner")
        self.session = zookeeper.connect()
        self.quit: Callable[[], None] = _nothing
        self.log: SimLog | None = None
        self._lost: Callable[[], str] = str
        self._owner = False
        self._held: list[Callable[[], None]] = []
        self._turn = 0
        self._later(SESSION_MS // 3, self._heartbeat)
        self._try()

    def __str__(self) -> str:
        return f"{self.name}.{self.session}"

    def now_s(self) -> float:
        """The clock of its lease: it also counts while the process is stopped."""
        return self._clock.now_ms / 1000

    def end(self) -> None:
        """It is gone; its session ends later."""
        self.alive = False

    def wake(self, ms: int) -> None:
        """It runs again, after so long."""
        self.paused = False
        self.slept_ms += ms
        held, self._held = self._held, []
        for due in held:
            self._clock.after(int(self._rng.random() * 20), due)

    def leave(self) -> None:
        """It ends its session, and is gone."""
        self.lease.give_up()
        self._zookeeper.close(self.session)
        self.alive = False

    def _later(self, ms: int, event: Callable[[], None]) -> None:
        """An event of this process: while it is stopped it waits."""

        def due() -> None:
            if not self.alive:
                return
            if self.paused:
                self._held.append(due)
                return
            event()

        self._clock.after(ms, due)

    def _delay_ms(self) -> int:
        slow = self._site.stormy and self._rng.random() < SLOW_SHARE
        return int(self._rng.random() * (SLOW_MS if slow else 20))

    def _heartbeat(self) -> None:
        if self._zookeeper.alive(self.session):
            self._zookeeper.heard(self.session)
        elif not self._owner and self.session not in self._zookeeper.lagging:
            self.session = self._zookeeper.connect()
        self._later(SESSION_MS // 3, self._heartbeat)

    # --------------------------------------------------------------------------------------------------------- its turn

    def _try(self) -> None:
        """Make the node, or wait until there is none."""
        if self._owner:
            return
        self._turn += 1
        turn = self._turn
        asked_s = self.now_s()

        def arrive() -> None:
            if not self.alive or turn != self._turn or self.session in self._zookeeper.lagging:
                return
            if not self._survives("owner"):
                return
            self._zookeeper.heard(self.session)
            if self._zookeeper.become_owner(self.session):
                self._owner = True
                self._later(self._delay_ms(), lambda: self._is_owner(asked_s))
            elif not self._zookeeper.watch(lambda: self._later(0, self._try)):
                self._later(self._delay_ms(), self._try)

        self._clock.after(self._delay_ms(), arrive)
        # A watch may be lost, so it looks again after a session.
        self._later(SESSION_MS, lambda: self._try() if turn == self._turn else None)

    def _survives(self, kind: str) -> bool:
        """Whether it is not killed at an operation on ZooKeeper."""
        try:
            self._site.step(self, kind)
        except PowerCut:
            self._site.killed()
            return False
        return True

    def _is_owner(self, asked_s: float) -> None:
        if not self._survives("owner-answer"):
            return
        self.lease.taken(asked_s)
        self._later(int(self.lease.pause_s * 1000), self._ask)
        self._later(LOOK_MS, self._look)
        self._site.elected(self)

    # --------------------------------------------------------------------------------------------------------- its lease

    def synced(self) -> bool:
        """Whether the server of its session answers a `sync`."""
        return self.session not in self._zookeeper.lagging

    def _ask(self) -> None:
        """Ask for the node."""
        if self.lease.lost(self.now_s()):
            return
        asked_s = self.now_s()

        def arrive() -> None:
            if not self.synced():
                self._later(SESSION_MS // 2, self._ask)
                return
            self._zookeeper.heard(self.session)
            own = self._zookeeper.shown(self.session) == self.session
            self._later(self._delay_ms(), lambda: self._answered(asked_s, own))

        self._clock.after(self._delay_ms(), arrive)

    def _answered(self, asked_s: float, own: bool) -> None:
        self.lease.confirmed(asked_s, own=own)
        self._site.confirmed(self)
        self._later(int(self.lease.pause_s * 1000), self._ask)

    def _look(self) -> None:
        """An idle broker looks now and then whether it may serve."""
        if reason := self.lost():
            self._site.over(self, reason)
        else:
            self._later(LOOK_MS, self._look)

    def lost(self) -> str:
        """Why it must not serve, or ""."""
        return self.lease_over() or self._lost()

    def take(self, lost: Callable[[], str]) -> None:
        """It serves; `lost` says why the chain is no longer its own."""
        self._lost = lost

    def lease_over(self) -> str:
        """What the driver asks before each event: only the lease."""
        return self.lease.lost(self.now_s())


def _nothing() -> None: ...
