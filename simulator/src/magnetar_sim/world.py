"""A world: clusters, links, users, faults, from one seed; first the storm, then the calm in which all must come right."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.config import Config, parse
from magnetar.core.settings import SubscriptionsConfig
from magnetar.effects.outbox import Note
from magnetar.storage.entries import StoredEntry
from magnetar.wire.frames import Frame
from magnetar_sim.acks import Acks
from magnetar_sim.carrying import Peer
from magnetar_sim.checkers.base import Checker
from magnetar_sim.clients import SHARED, Client, Consumer
from magnetar_sim.clock import Clock
from magnetar_sim.cluster import Cluster, small_limits
from magnetar_sim.epochs import Epochs
from magnetar_sim.failovers import Failovers
from magnetar_sim.faults import Faults
from magnetar_sim.machines import SimMachines
from magnetar_sim.net import Network
from magnetar_sim.pipeline import Link
from magnetar_sim.truth import Copy, Published, Truth, Violation
from magnetar_sim.wide import OTHER_TOPIC, Wide
from magnetar_sim.workload import Workload

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

TOPIC: Final = "persistent://public/default/t"
LATE_MS: Final = 25_000
"""What is late is not later than this."""
CALM_MS: Final = 12_000
"""One look at whether the world has come to rest: longer than acknowledgements are ever collected."""
CALM_MAX: Final = 20
"""So many looks, then it never does: 240 s, longer than every timeout in it."""

STEPS: Final = (12, 24, 48, 96)
"""How long worlds are; most faults need few steps, some need time."""

FOCUS_EVERY: Final = 10
"""Of so many worlds one is about lost disks above all, and one about another of `FOCI`."""

FOCI: Final = (
    ("recreate", "part"), ("die", "retention"), ("policy",), ("seek", "wipe"), ("failover", "die"), ("expire", "clock"),
    ("retention", "wipe"), ("skip", "unsubscribe", "subscribe"), ("disk_fails", "power_cut"), ("mode", "die"),
)  # fmt: skip
"""What else may happen far more often in a world: two rare things meet by chance too seldom."""

UNPLAIN: Final = (
    "seek", "skip", "expire", "unsubscribe", "wipe", "recreate", "policy", "clock", "store_fails", "failover", "mode"
)  # fmt: skip
"""What a comparison leaves out: it makes messages come again on purpose, or in one mode only."""

_CONFIGS: dict[tuple[str, ...], Config] = {}


def config_of(names: tuple[str, ...]) -> Config:
    """A clusters.toml with these clusters."""
    if names not in _CONFIGS:
        lines = [
            f'[clusters.{name}]\npulsar = "127.0.0.1:{6650 + at}"\nhttp = "127.0.0.1:{8080 + at}"\n'
            for at, name in enumerate(names)
        ]
        _CONFIGS[names] = parse("\n".join(lines), Path("/sim/clusters.toml"))
    return _CONFIGS[names]


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


def _mesh(names: list[str]) -> tuple[str, list[tuple[str, str]]]:
    return "mesh", [(one, other) for one in names for other in names if one != other]


def focus_of(seed: int) -> tuple[str, ...]:
    """What a world does far more often than others; () for most."""
    turn, place = divmod(seed, FOCUS_EVERY)
    return ("wipe",) if place == 3 else FOCI[turn % len(FOCI)] if place == 7 else ()


class World:
    """Everything there is.

    Args:
        seed: makes it.
        mode: of replicated subscriptions: "exact" or "snapshot"; "mixed": it changes, and not everywhere at once.
        trace: what happened is appended here, if wanted.
        checkers: make what watches its promises; in this order they give their verdicts.
    """

    plain = False
    """Only what makes duplicates: no seeks, no lost disks, no changes of policies; both modes can be compared."""
    focus: tuple[str, ...] | None = None
    """Actions that are done far more often than elsewhere: for planted bugs that only they show; None: by the seed."""
    shape = ""
    """A kind of topology instead of a chance of each."""
    replicated_share = 0.9
    """How many worlds replicate their subscriptions."""
    schemas = False
    """Producers bring schemas. Not by chance: that would make all worlds others than they were."""
    wide = False
    """More is done, and more goes wrong (`magnetar_sim.wide`). Not by chance either."""
    story: "Callable[[World], Iterator[int]] | None" = None
    """How it begins, see `magnetar_sim.stories`: for planted bugs that hardly any other world shows."""
    link_class: type[Link] = Link

    def __init__(
        self,
        seed: int,
        mode: str = "exact",
        trace: list[str] | None = None,
        *,
        checkers: Sequence[Callable[["World"], Checker]],
    ) -> None:
        self.rng = rng = random.Random(f"sim-{seed}")  # noqa: S311 - chance that replays
        self.mode, self.trace = mode, trace
        if self.focus is None:
            self.focus = () if self.plain else focus_of(seed)
        self.digest = 0
        self.happened: Counter[str] = Counter()
        """What really took place (an action may find nothing to do): tests see to it that worlds have some of everything."""
        self.clock = Clock()
        self.slow_disk_ms = rng.choice((2, 20, 200))
        self._slow_hop_ms = rng.choice((1, 5, 50))
        self.net = Network(self.clock, rng, rng.choice((2, 20, 200)))
        self.names = ["a", "b", "c", "d"][: rng.choice((2, 2, 3, 3, 3, 4))]
        self.topics = [TOPIC]
        self.skipped: set[int] = set()
        self.replicated = rng.random() < self.replicated_share or self.plain
        self.storm = True
        self.departed: dict[str, set[str]] = {name: set() for name in self.names}
        """Per cluster whom its policy ceased to name, once: what they write is passed over, also what was read before."""
        self.truth = Truth(self)
        self.acks = Acks(self)
        self.epochs = Epochs(self)
        self.failovers = Failovers(self)
        self.checkers = [made(self) for made in checkers]
        self._watching = [one for one in self.checkers if type(one).after_event is not Checker.after_event]
        self.kind, self.pairs = kind, pairs = (
            topology(rng, self.names, self.shape) if not self.plain else _mesh(self.names)
        )
        self._sources = {name: {name} | {one for one, other in pairs if other == name} for name in self.names}
        for _ in self.names:
            for name in self.names:
                self._sources[name] |= set().union(*(self._sources[one] for one in self._sources[name]))
        self.both = [(one, other) for one, other in pairs if (other, one) in pairs]
        """Links that another one leads back along."""
        self._beside = {name: {name} for name in self.names}
        for _ in self.names:
            for one, other in self.both:
                self._beside[one] |= self._beside[other]
        self.settings = SubscriptionsConfig(
            mode=rng.choice(("exact", "snapshot")) if mode == "mixed" else mode,  # type: ignore[arg-type]  # one of the two
            snapshot_interval_ms=rng.choice((100, 1_000)),
            snapshot_timeout_s=rng.choice((1, 5)),
            max_cached_snapshots=rng.choice((2, 5, 30)),
            ack_sync_interval_ms=rng.choice((5, 100, 1_000)),
        )
        limits = small_limits(
            segment_bytes=rng.choice((1_000, 4_000, 100_000)),
            ledger_entries_max=rng.choice((1, 2, 5, 50)),
            cache_bytes_max=rng.choice((1, 2_000, 1 << 20)),
            disk_free_bytes_min=0,
            retention_interval_ms=20_000,
            message_bytes_max=1 << 20,
        )
        skews = {name: rng.choice((0, 0, rng.randint(-2_000, 2_000))) for name in self.names}
        self.clusters = {
            name: Cluster(
                self,
                name,
                config_of(tuple(self.names)),
                limits,
                skews[name],
                tuple(target for source, target in pairs if source == name),
            )
            for name in self.names
        }
        self.happened[f"topology: {kind}"] += 1
        if any(skews.values()):
            self.count("clocks differ")
        self.say(f"{kind}: {' '.join(f'{one}>{other}' for one, other in pairs)}, clocks {skews}")
        for cluster in self.clusters.values():
            cluster.start()
        self.links = {(source, target): self.link_class(self, source, target) for source, target in pairs}
        self.workload = Workload(self)
        self.kinds = self.workload.kinds_of_entries()
        self.faults = Faults(self)
        self.extra = Wide(self)
        if self.wide and rng.random() < 0.4:
            self.topics.append(OTHER_TOPIC)
            self.count("two topics")

    # --------------------------------------------------------------------------------------------------------- services

    def say(self, text: str) -> None:
        """One line of the story."""
        if self.trace is not None:
            self.trace.append(f"{self.clock.now_ms % 10_000_000:8d} {text}")

    def count(self, what: str) -> None:
        """Something took place that worlds are meant to have."""
        self.happened[what] += 1

    def hop_ms(self) -> int:
        """From another thread to the broker's."""
        return int(self.rng.random() * self._slow_hop_ms)

    def broker_extras(self, _cluster: Cluster) -> dict[str, Any]:
        """Further arguments of a broker."""
        return {
            "routes": frozenset(self.pairs),
            "subscriptions": self.settings,
            "machines": SimMachines(self.epochs),
        }

    def sources(self, cluster: str) -> set[str]:
        """A cluster and everything from which links lead to it, by any way."""
        return self._sources[cluster]

    def beside(self, cluster: str) -> set[str]:
        """A cluster and everything that links in both directions connect it with, by any way."""
        return self._beside[cluster]

    def hearers(self, cluster: str) -> list[str]:
        """Everybody who hears of a cluster, itself included."""
        return [name for name in self.names if cluster in self._sources[name]]

    def sent(self, client: Client, frames: list[Frame]) -> None:
        """A broker sends something to a client."""
        if isinstance(client, Consumer):
            for frame in frames:
                if frame.command.type == 9:
                    for checker in self.checkers:
                        checker.sent(client, frame)

    def told(self, cluster: Cluster, peer: Peer, frames: list[Frame]) -> None:
        """A broker answers a link."""
        for checker in self.checkers:
            for frame in frames:
                checker.told(cluster, peer, frame)

    def link(self, source: str, target: str) -> Link:
        """The pipeline of one link."""
        return self.links[source, target]

    def noted(self, cluster: Cluster, note: Note) -> None:
        """A broker's log has a line."""
        if note.level in ("warning", "error"):
            self.say(f"{cluster.name} {note.level}: {note.text}")
        elif note.text.endswith("was made because another cluster has it"):
            topic, _, rest = note.text.partition(": subscription ")
            self.acks.heard_of(cluster.name, topic, rest.split()[0])

    def after_event(self, cluster: Cluster) -> None:
        """A broker handled an event."""
        self.acks.after_event(cluster)
        self.failovers.after_event(cluster)
        for checker in self._watching:
            checker.after_event(cluster)

    def receipted(self, _cluster: str, entry: Published) -> None:
        """A producer was told that its entry is stored: then it is."""
        copy = self.truth.copies.get((entry.cluster, entry.topic))
        if copy is not None and entry.incarnation == copy.incarnation and entry.uid not in copy.ever:
            raise Violation(f"message {entry.uid} was answered as stored in {entry.cluster}, and is not")

    def marker_stored(self, cluster: Cluster, topic: str, entry: StoredEntry) -> None:
        """A marker is durable."""
        self.acks.marker(cluster, topic, entry)

    def forgets(self, cluster: str, topic: str, copy: Copy) -> None:
        """A life of a topic is over."""
        self.acks.lost(cluster, topic)
        for checker in self.checkers:
            checker.forgot(cluster, topic, copy)

    def forgotten(self, cluster: str, topic: str) -> None:
        """A topic was deleted."""
        copy = self.truth.copies.pop((cluster, topic), None)
        if copy is not None:
            self.forgets(cluster, topic, copy)

    def lost_disk(self, cluster: Cluster) -> None:
        """A disk is gone."""
        for topic in self.topics:
            self.forgotten(cluster.name, topic)

    def revive_later(self, cluster: Cluster) -> None:
        """Whoever looks after the cluster starts it again, some time."""
        life = cluster.life

        def start() -> None:
            if cluster.broker is None and cluster.life == life:
                cluster.start()
                if cluster.broker is None:
                    self.revive_later(cluster)

        self.clock.after(int(self.rng.random() * self.rng.choice((100, 2_000, 20_000))), start)

    # ------------------------------------------------------------------------------------------------------------- a run

    def run(self, steps: int) -> None:
        """Live.

        Raises:
            Violation: a promise was broken.
        """
        rng = self.rng
        table = self.workload.actions() | self.faults.actions() | (self.extra.actions() if self.wide else {})
        for name in UNPLAIN if self.plain else ():
            table.pop(name, None)
        # Swarm: each world does some things far more and some far less often than the others do.
        weights = [weight * rng.choice((0.2, 1, 1, 5)) for weight, _ in table.values()]
        if self.focus:
            self.say(f"above all: {', '.join(self.focus)}")
            # Only what there may be at all: the mode of the namespace changes in mixed worlds alone.
            about = [name in self.focus and (name != "mode" or self.mode == "mixed") for name in table]
            weights = [weight + 3 * more for more, weight in zip(about, weights, strict=True)]
        actions: list[Callable[[], object]] = [action for _, action in table.values()]
        paces = rng.choice(((0, 1, 5, 20), (1, 20, 100, 400), (5, 100, 1_000, 5_000)))
        story = type(self).story
        for pause in story(self) if story is not None else ():
            self.clock.run_for(pause)
            self._step()
        for action in rng.choices(actions, weights, k=steps):
            action()
            self.clock.run_for(rng.choice(paces))
            self._step()
        self.storm = False
        self.heal()
        self.calm()
        self.acks.settle()
        for checker in self.checkers:
            checker.verdict()

    def _step(self) -> None:
        for checker in self.checkers:
            checker.step()

    def heal(self) -> None:
        """Everything works from now on."""
        self.say("--- all is well from here on")
        self.net.apart.clear()
        for connection in list(self.net.connections.values()):
            if connection.stalled:
                connection.stall(False)
        for link in self.links.values():
            link.calm()
        for cluster in self.clusters.values():
            cluster.files.heal()
            cluster.store.failing = 0
            while cluster.broker is None:
                cluster.start()
        self.clock.run_for(LATE_MS)
        for cluster in self.clusters.values():
            assert cluster.broker is not None
            self.faults.set_policy(cluster, self.names)
            if self.mode == "mixed":
                self.faults.set_mode(cluster, self.settings.mode)
            for topic in self.topics:
                if cluster.control.topics.was_deleted(topic):
                    self.faults.create(cluster.name, topic)
        self.failovers.unfence()

    def calm(self) -> None:
        """Wait until nothing moves any more.

        Raises:
            Violation: it never does.
        """
        before: object = None
        for _ in range(CALM_MAX):
            self.clock.run_for(CALM_MS)
            self._step()
            now = [
                (cluster.name, [(text, topic.log.last) for text, topic in broker.topics.items()])
                for cluster, broker in self.living()
            ]
            if now == before and not self.busy():
                return
            before = now
        busy = self.busy()
        raise Violation(f"the world does not come to rest; links with something to do: {busy}")

    def busy(self) -> list[str]:
        """Links that have something to do."""
        found = []
        for (source, target), link in self.links.items():
            broker = self.clusters[source].broker
            behind = broker is None or any(
                state.wanted and state.cursor.c < state.log.last
                for state in broker.links.sources[target].topics.values()
            )
            if behind or link.tasks or self._unknown(source, target):
                found.append(f"{source}>{target}")
        return found

    def _unknown(self, source: str, target: str) -> bool:
        """Whether a destination takes the source for its former life still: tasks of that one came so late."""
        here, there = self.clusters[source].broker, self.clusters[target].broker
        if here is None or there is None or not any(one.wanted for one in here.links.sources[target].topics.values()):
            return False
        believed = there.links.destination.peers.known().get(source)
        return believed is not None and believed[0] != here.uuid

    def living(self) -> "list[tuple[Cluster, Broker]]":
        """Clusters whose broker runs."""
        return [(cluster, cluster.broker) for cluster in self.clusters.values() if cluster.broker is not None]

    def drain(self, where: str = "") -> None:
        """Somebody is given every subscription's messages in every cluster; or in one cluster, and acknowledges them all."""
        for client in (*self.workload.consumers, *self.workload.publishers):
            client.close()
        self.clock.run_for(1_000)
        self.extra.until_due()
        consumers = [
            Consumer(self, cluster.name, text, name, SHARED, replicated=False, earliest=True)
            for cluster, broker in self.living()
            if where in ("", cluster.name)
            for text, topic in broker.topics.items()
            for name in topic.subscriptions
        ]
        self.clock.run_for(10_000)
        for consumer in consumers:
            if where and consumer.open and consumer.received:
                consumer.ack(list(consumer.received))
        self.clock.run_for(1_000)
        for consumer in consumers:
            consumer.close()
