"""What happens to clusters of several brokers, in addition to what happens in all worlds."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_sim.bookkeeper.takeover.bookies import BOOKIES, TooFew
from magnetar_sim.bookkeeper.takeover.process import Process
from magnetar_sim.bookkeeper.takeover.site import Site
from magnetar_sim.disk import PowerCut

if TYPE_CHECKING:
    from magnetar_sim.world import World

KINDS = (
    "create", "create-answer", "open", "open-answer", "unlink", "unlink-answer", "read", "write", "sync", "sync", "sync-answer",
    "sync-answer", "close", "close-answer", "chain", "chain", "chain-answer", "chain-answer", "chain-read",
)  # fmt: skip
"""Operations of BookKeeper and ZooKeeper, and their answers."""

PAUSES_MS = (300, 3_000, 6_000, 30_000)


class Takeovers:
    """The actions.

    Args:
        world: in which they are done.
    """

    def __init__(self, world: "World") -> None:
        self._world, self._context, self._rng = world, world.context, world.rng

    def actions(self) -> dict[str, tuple[float, Callable[[], object]]]:
        """What may happen, and how often."""
        rng = self._rng
        # Where nothing is about it, it would only make other worlds of the same seeds.
        rare = {"slow_read": (0.5, self.slow_read), "all_silent": (0.5, self.all_silent)}
        rare = {name: action for name, action in rare.items() if name in self._context.focus}
        return {
            **rare,
            "stop": (rng.choice((0, 0.5)), self.stop),
            "pause": (rng.choice((0, 0.5, 1)), self.pause),
            "pause_within": (rng.choice((0, 0.7, 2)), self.pause_within),
            "hang": (rng.choice((0, 0.5, 1)), self.hang),
            "kill_within": (rng.choice((0, 0.7, 1)), self.kill_within),
            "fail": (rng.choice((0, 0.7, 2)), self.fail),
            "part_server": (rng.choice((0, 0.5, 1)), self.part_server),
            "bookie_silent": (rng.choice((0, 0.4)), self.bookie_silent),
            "bookie_wiped": (rng.choice((0, 0.3)), self.bookie_wiped),
            "fence": (rng.choice((0, 0.5)), self.fence),
            "watches": (0.2, self.watches),
            "roll": (rng.choice((0, 1)), self.roll),
        }

    def _site(self) -> Site:
        site = self._world.clusters[self._rng.choice(self._context.names)].disk
        assert isinstance(site, Site)
        return site

    def stop(self) -> None:
        """A broker ends in good order, and another one takes over."""
        if (cluster := self._world.faults.any_living()) is not None:
            cluster.stop()
            cluster.revive_later()

    def pause(self) -> None:
        """A process is stopped for a while."""
        site = self._site()
        living = [one for one in site.processes if one.alive]
        if living:
            site.pause_idle(self._rng.choice(living), self._rng.choice(PAUSES_MS))

    def _at(self, site: Site, act: Callable[[Process], OSError | None]) -> None:
        """Something happens at one of the operations to come."""
        rng = self._rng
        kind, count = rng.choice(KINDS), rng.choice((1, 1, 1, 2, 5))

        def rule(operation: str, name: Path) -> OSError | None:
            nonlocal count
            if operation != kind:
                return None
            count -= 1
            if count:
                return None
            site.forget(rule)
            process = next(one for one in site.processes if str(one) == str(name))
            return act(process)

        site.inject(rule)

    def pause_within(self) -> None:
        """A process is stopped within an operation."""
        site = self._site()
        ms = self._rng.choice(PAUSES_MS)
        self._at(site, lambda process: site.pause(process, ms))

    def hang(self) -> None:
        """An operation takes long."""
        site = self._site()
        ms = self._rng.choice((100, 1_000, 8_000))
        self._at(site, lambda process: site.hang(process, ms))

    def slow_read(self) -> None:
        """The next read for a client takes long."""
        site = self._site()
        ms = self._rng.choice((1_000, 8_000))

        def rule(operation: str, name: Path) -> None:
            process = next(one for one in site.processes if str(one) == str(name))
            if operation == "read" and process.log is not None and process.log.reading:
                site.forget(rule)
                site.hang(process, ms)

        site.inject(rule)

    def kill_within(self) -> None:
        """A process is killed within an operation."""

        def kill(_process: Process) -> None:
            self._context.count("killed within an operation")
            raise PowerCut

        self._at(self._site(), kill)

    def fail(self) -> None:
        """A request or an answer is lost."""

        def lost(_process: Process) -> OSError:
            self._context.count("request or answer lost")
            return OSError(errno.ETIMEDOUT, "no answer")

        self._at(self._site(), lost)

    def part_server(self) -> None:
        """The server of a process's session does not reach the others."""
        site = self._site()
        living = [one for one in site.processes if one.alive]
        if living:
            self._context.count("server of ZooKeeper lags")
            process = self._rng.choice([site.serving or living[0], *living])
            site.say(f"the server of {process} reaches the others no longer")
            site.zookeeper.part(process.session, self._rng.choice((500, 5_000, 10_000)))

    def bookie_silent(self) -> None:
        """A bookie does not answer for a while."""
        site = self._site()
        bookie = self._rng.randrange(BOOKIES)
        if bookie not in site.bookies.silent:
            self._context.count("bookie silent")
            site.say(f"bookie {bookie} is silent")
            site.bookies.silent.add(bookie)
            self._context.clock.after(self._rng.choice((200, 5_000)), site.bookies.silent.discard, bookie)

    def all_silent(self) -> None:
        """No bookie answers a process that reads the log which it takes."""
        site = self._site()

        def rule(operation: str, name: Path) -> None:
            process = next(one for one in site.processes if str(one) == str(name))
            if operation == "read" and process.log is None:
                site.forget(rule)
                site.say(f"no bookie answers {process}")
                site.bookies.silent |= set(range(BOOKIES))
                self._context.clock.after(0, site.bookies.silent.clear)

        site.inject(rule)

    def bookie_wiped(self) -> None:
        """A bookie loses its disk; BookKeeper's repair copies what it had."""
        site = self._site()
        if site.bookies.silent:
            return
        bookie = self._rng.randrange(BOOKIES)
        self._context.count("bookie lost its disk")
        site.say(f"bookie {bookie} loses its disk")
        site.bookies.wiped(bookie)

        def repair() -> None:
            if self._context.storm and site.bookies.silent - {bookie}:
                self._context.clock.after(1_000, repair)
            else:
                site.bookies.silent.clear()
                site.bookies.replicated(bookie)

        self._context.clock.after(self._rng.choice((1_000, 10_000)), repair)

    def fence(self) -> None:
        """BookKeeper's repair closes an open ledger, although its writer lives."""
        site = self._site()
        open_ = [number for number, one in site.bookies.ledgers.items() if not one.closed and not one.deleted]
        if open_:
            try:
                site.bookies.recover(self._rng.choice(open_))
                self._context.count("ledger fenced by BookKeeper's repair")
            except TooFew:
                return

    def watches(self) -> None:
        """Watches get lost, or do not any more."""
        zookeeper = self._site().zookeeper
        zookeeper.lossy = not zookeeper.lossy

    def roll(self) -> None:
        """A broker looks for ledgers that are not needed, so that files are deleted."""
        self._world.faults.retention()
