"""What every part of a world needs: one source of chance, one time, the topology, and a record of what happens."""

import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.core.settings import SubscriptionsConfig
from magnetar_sim.clock import Clock
from magnetar_sim.options import WorldOptions

TOPIC: Final = "persistent://public/default/t"
OTHER_TOPIC: Final = "persistent://public/default/u"
"""Of wide worlds."""

MEANWHILE_MAX: Final = 8
"""Actions while a process is within an operation, at most: where they follow one another at once, half a minute has thousands."""
NESTED_MAX: Final = 2
"""Operations that are not finished while others are."""
NESTED_ACTIONS_MAX: Final = 1_000
"""Actions within operations in one world, at most. Each may stop another operation, in which others act again: where most actions
do so they would never end. One world in two hundred has more than this.
"""


def topology(rng: random.Random, names: list[str], shape: str = "") -> tuple[str, list[tuple[str, str]]]:
    """A kind (or the one that is wanted), and who has a link to whom."""
    kind = shape or rng.choice(("mesh", "mesh", "mesh", "oneway", "star", "chain", "chain2", "export", "random"))
    every = [(one, other) for one in names for other in names if one != other]
    if kind == "oneway":
        return kind, [(one, other) for one, other in every if one < other]
    if kind == "export":
        return kind, [(one, other) for one, other in every if other != names[0]]
    if kind == "star":
        hub = rng.choice(names)
        return kind, [pair for pair in every if hub in pair]
    if kind in ("chain", "chain2"):
        line = rng.sample(names, len(names))
        ahead = list(itertools.pairwise(line))
        return kind, ahead if kind == "chain" else ahead + [(other, one) for one, other in ahead]
    if kind == "random":
        return kind, [pair for pair in every if rng.random() < 0.6]
    return kind, every


class WorldContext:
    """What the parts of one world share. The order of the draws is part of what a seed means.

    Args:
        seed: makes the world.
        mode: of replicated subscriptions: "exact" or "snapshot"; "mixed": it changes, and not everywhere at once.
        options: what the seed does not decide.
        trace: lines about what happens are appended here, if wanted.

    Attributes:
        pairs, routes: the links, in their order and as a set.
        both: links that another one leads back along.
        departed: per cluster the clusters that its policy named once and ceased to name: it passes over what they write, also
            what it had read before.
        batches: what carries its links, see `options.WorldOptions`.
        storm: whether things go wrong still.
        happened: how often what took place (an action may find nothing to do): tests require that worlds have some of everything.
        digest: of all bytes that brokers sent.
    """

    def __init__(self, seed: int, mode: str, options: WorldOptions, trace: list[str] | None) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"sim-{seed}")  # noqa: S311 - chance that replays
        self.mode, self.options, self.trace = mode, options, trace
        self.focus = options.focus_of(seed)
        self.batches = options.batches_of(seed)
        self.digest = 0
        self.happened: Counter[str] = Counter()
        self.clock = Clock()
        self.slow_disk_ms = rng.choice((2, 20, 200))
        self._slow_hop_ms = rng.choice((1, 5, 50))
        self.slow_net_ms = rng.choice((2, 20, 200))
        self.names = ["a", "b", "c", "d"][: rng.choice((2, 2, 3, 3, 3, 4))]
        if options.alone:
            del self.names[1:]
        self.topics = [TOPIC]
        self.replicated = rng.random() < options.replicated_share or options.plain
        self.storm = True
        self._act: Callable[[], None] | None = None
        self._nested = self._nested_actions = 0
        self.departed: dict[str, set[str]] = {name: set() for name in self.names}
        self.kind, self.pairs = topology(rng, self.names, "mesh" if options.plain else options.shape)
        self.routes = frozenset(self.pairs)
        self.both = [(one, other) for one, other in self.pairs if (other, one) in self.routes]
        self._sources = _reached(self.names, [(other, one) for one, other in self.pairs])
        self._peers = _reached(self.names, self.both)
        self.settings = SubscriptionsConfig(
            mode=rng.choice(("exact", "snapshot")) if mode == "mixed" else mode,  # type: ignore[arg-type]  # one of the two
            snapshot_interval_ms=rng.choice((100, 1_000)),
            snapshot_timeout_s=rng.choice((1, 5)),
            max_cached_snapshots=rng.choice((2, 5, 30)),
            ack_sync_interval_ms=rng.choice((5, 100, 1_000)),
        )

    def say(self, text: str) -> None:
        """One line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.clock.now_ms % 10_000_000:8d} {text}")

    def count(self, what: str) -> None:
        """Something took place that worlds are meant to have."""
        self.happened[what] += 1

    def sends(self, buffers: Sequence[bytes | memoryview]) -> None:
        """A broker sends these: they are part of the digest."""
        for buffer in buffers:
            self.digest = zlib.crc32(buffer, self.digest)

    def hop_ms(self) -> int:
        """From another thread to the broker's."""
        return int(self.rng.random() * self._slow_hop_ms)

    def storms(self, act: Callable[[], None]) -> None:
        """What `meanwhile` does again and again: an action, and a pause."""
        self._act = act

    @property
    def may_nest(self) -> bool:
        """Whether `meanwhile` may be called: processes are stopped within operations of others, but not without end."""
        return self.storm and self._nested < NESTED_MAX and self._nested_actions < NESTED_ACTIONS_MAX

    @property
    def _more(self) -> bool:
        """Whether the others may act within an operation."""
        return self.storm and self._nested <= NESTED_MAX and self._nested_actions < NESTED_ACTIONS_MAX

    def meanwhile(self, ms: int) -> None:
        """Time passes while a process is within an operation: the others act."""
        end_ms = self.clock.now_ms + ms
        left = MEANWHILE_MAX
        self._nested += 1
        try:
            while (left_ms := end_ms - self.clock.now_ms) > 0:
                if left and self._act is not None and self._more:
                    left -= 1
                    self._nested_actions += 1
                    self._act()
                else:
                    self.clock.run_for(left_ms)
        finally:
            self._nested -= 1

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.storm = False

    def sources(self, cluster: str) -> set[str]:
        """A cluster and all clusters from which links lead to it, directly or over others."""
        return self._sources[cluster]

    def peers(self, cluster: str) -> set[str]:
        """A cluster and all clusters that links in both directions connect it with, directly or over others."""
        return self._peers[cluster]

    def hearers(self, cluster: str) -> list[str]:
        """All clusters to which links lead from a cluster, itself included."""
        return [name for name in self.names if cluster in self._sources[name]]


def _reached(names: list[str], steps: list[tuple[str, str]]) -> dict[str, set[str]]:
    """Per name all names that steps lead to, itself included."""
    found = {name: {name} for name in names}
    for _ in names:
        for one, other in steps:
            found[one] |= found[other]
    return found
