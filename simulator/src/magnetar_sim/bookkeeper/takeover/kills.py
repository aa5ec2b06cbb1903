"""Takeovers and hand-overs of which one process is killed at a chosen step. Tests go through all steps, one world for each.

Worlds of chance kill processes within operations, too (`actions.Takeovers.kill_within`), but not at every one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from magnetar_sim.bookkeeper.takeover.runner import ALONE
from magnetar_sim.bookkeeper.takeover.site import Site
from magnetar_sim.checkers.all import CHECKERS
from magnetar_sim.cluster import Cluster
from magnetar_sim.disk import PowerCut
from magnetar_sim.host.outcomes import outcome_of
from magnetar_sim.memory.records import Violation
from magnetar_sim.world import World

Who = Literal["taker", "leaver", "heir"]
"""Which process is killed. taker: the one that takes over from a broker that was killed; leaver: a broker that stops in good
order; heir: the one that takes over from such a broker.
"""

ACTIONS: Final = 30
"""What users do before the takeover, and after it."""

SERVES_MS: Final = 60_000
"""Within this time a broker serves again: sessions of 4 s end, and processes that were killed start after 20 s at most."""

LOOK_MS: Final = 50


class Killed(NamedTuple):
    """How a world ended.

    Attributes:
        why: which promise was broken; "": none.
        steps: the kinds of the operations of the process, up to the one at which it was killed.
        killed: whether it was; if not, it had ended its takeover or its stop before.
    """

    why: str
    steps: tuple[str, ...]
    killed: bool


class _Killer:
    """Kills a process at one of its operations.

    Args:
        site: of the cluster.
        leaver: the process that serves before.
        who: which process it kills.
        at: at which of its operations; the first one is 0.
    """

    def __init__(self, site: Site, leaver: str, who: Who, at: int) -> None:
        self._site, self._leaver, self._who, self._at = site, leaver, who, at
        self._name = leaver if who == "leaver" else ""
        self.steps: list[str] = []
        self.killed = False

    def rule(self, operation: str, name: Path) -> None:
        """See `Breakable`."""
        if not self._name and str(name) != self._leaver and operation == "owner" and self._site.zookeeper.owner < 0:
            self._name = str(name)
        if str(name) != self._name:
            return
        if self._who != "leaver" and self._site.serving is not None and str(self._site.serving) == self._name:
            self._site.forget(self.rule)  # it has taken over
            return
        self.steps.append(operation)
        if len(self.steps) > self._at:
            self.killed = True
            self._site.forget(self.rule)
            raise PowerCut


def run_killed(seed: int, who: Who, at: int, trace: list[str] | None = None) -> Killed:
    """Live through one takeover, or one hand-over.

    Args:
        seed: of the world. Up to the kill all worlds of a seed are the same.
        who: which process is killed.
        at: at which of its operations; the first one is 0.
        trace: what happened is appended here.
    """
    killers: list[_Killer] = []

    def live() -> None:
        world = World(seed, "exact", trace, options=ALONE, checkers=CHECKERS)
        cluster = world.clusters["a"]
        site = cluster.disk
        assert isinstance(site, Site)
        _until_it_serves(world, cluster)
        _users(world)
        if site.serving is None:
            raise Violation("no broker serves before anything has happened")
        killer = _Killer(site, str(site.serving), who, at)
        killers.append(killer)
        site.inject(killer.rule)
        world.workload.publish()  # it is on its way
        if who == "taker":
            cluster.kill()
            cluster.revive_later()
        else:
            cluster.stop()
            cluster.revive_later()
        _until_it_serves(world, cluster)
        site.forget(killer.rule)
        _users(world)
        world.context.calm()
        world.heal()
        world.calm()
        world.acks.settle()
        world.observers.verdict()
        if not cluster.serves:
            raise Violation("no broker serves at the end")

    outcome = outcome_of(seed, live)
    killer = killers[0] if killers else None
    return Killed(outcome.why, tuple(killer.steps) if killer else (), killer is not None and killer.killed)


def _users(world: World) -> None:
    """What users do: messages, acknowledgements, and files of the log that are not needed any longer."""
    work = world.workload
    actions: list[Callable[[], object]] = [
        work.publish,
        work.publish,
        work.subscribe,
        work.acknowledge,
        work.acknowledge,
    ]
    for number in range(ACTIONS):
        world.rng.choice(actions)()
        if number % 10 == 9:
            world.faults.retention()
        world.context.clock.run_for(world.rng.choice((1, 20, 200)))
        world.observers.step()


def _until_it_serves(world: World, cluster: Cluster) -> None:
    end_ms = world.context.clock.now_ms + SERVES_MS
    while not cluster.serves:
        if world.context.clock.now_ms > end_ms:
            raise Violation(f"no broker serves after {SERVES_MS // 1000} s")
        world.context.clock.run_for(LOOK_MS)
        world.observers.step()
