"""A world: clusters, links, users, faults, from one seed; first the storm, then the calm in which all must come right."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from magnetar.core.ids import NONE
from magnetar_sim.actions.failovers import Failovers
from magnetar_sim.actions.faults import Faults
from magnetar_sim.actions.workload import Workload
from magnetar_sim.cluster import Cluster, Clusters, small_limits
from magnetar_sim.connections.clients import SHARED, Consumer, Surroundings
from magnetar_sim.connections.long_link import LongLink
from magnetar_sim.connections.net import Network
from magnetar_sim.connections.pipeline import Link
from magnetar_sim.connections.workers import LinkSurroundings
from magnetar_sim.context import OTHER_TOPIC, WorldContext
from magnetar_sim.memory.acks import Acks
from magnetar_sim.memory.epochs import Epochs
from magnetar_sim.memory.records import Violation
from magnetar_sim.memory.truth import Truth
from magnetar_sim.observers import Observer, Observers
from magnetar_sim.options import BY_SEED, MESHED, UNPLAIN, WorldOptions

LATE_MS: Final = 25_000
"""What is late is not later than this."""
CALM_MS: Final = 12_000
"""One look at whether the world has come to rest: longer than acknowledgements are ever collected."""
CALM_MAX: Final = 20
"""So many looks, then it never does: 240 s, longer than every timeout in it."""

Actions = Mapping[str, tuple[float, Callable[[], object]]]
"""What may be done, by name: how often, and how."""


class World:
    """Everything there is.

    Args:
        seed: makes it.
        mode: of replicated subscriptions: "exact" or "snapshot"; "mixed": it changes, and not everywhere at once.
        trace: lines about what happens are appended here, if wanted.
        options: what the seed does not decide.
        checkers: make what watches its promises; in this order they give their verdicts.
    """

    def __init__(
        self,
        seed: int,
        mode: str = "exact",
        trace: list[str] | None = None,
        *,
        options: WorldOptions = BY_SEED,
        checkers: Sequence[Callable[["World"], Observer]],
    ) -> None:
        self.context = context = WorldContext(seed, mode, options, trace)
        self.rng = rng = context.rng
        self.net = Network(context.clock, rng, context.slow_net_ms)
        self.clusters = Clusters()
        self.links: dict[tuple[str, str], Link | LongLink] = {}
        """By source and target."""
        self.observers = observers = Observers()
        self.truth = Truth(context, observers)
        self.acks = Acks(context, self.clusters, self.truth)
        observers.add(self.truth)
        observers.add(self.acks)
        for made in checkers:
            observers.add(made(self))
        limits = small_limits(
            segment_bytes=rng.choice((1_000, 4_000, 100_000)),
            ledger_entries_max=rng.choice((1, 2, 5, 50)),
            cache_bytes_max=rng.choice((1, 2_000, 1 << 20)),
            disk_free_bytes_min=0,
            retention_interval_ms=20_000,
            message_bytes_max=1 << 20,
        )
        skews = {name: rng.choice((0, 0, rng.randint(-2_000, 2_000))) for name in context.names}
        epochs = Epochs(context, self.clusters, self.acks, self.truth)
        for name in context.names:
            self.clusters[name] = Cluster(context, self.net, observers, epochs, name, limits, skews[name])
        context.count(f"topology: {context.kind}")
        if any(skews.values()):
            context.count("clocks differ")
        context.say(f"{context.kind}: {' '.join(f'{one}>{other}' for one, other in context.pairs)}, clocks {skews}")
        for cluster in self.clusters.values():
            cluster.start()
        around = LinkSurroundings(context, self.net, self.clusters, self.truth, observers)
        for source, target in context.pairs:
            self.links[source, target] = (
                Link(around, source, target)
                if context.batches == "short"
                else LongLink(around, source, target, bulk=context.batches == "both")
            )
        context.count(f"batches: {context.batches}")
        self.around = Surroundings(context, self.net, self.clusters, self.truth.published, observers)
        self.workload = Workload(context, self.around, self.clusters, self.truth, self.acks)
        self.failovers = Failovers(context, self.clusters, self.truth, self.acks, self.workload)
        observers.add(self.failovers)
        self.faults = Faults(context, self.net, self.clusters, self.links, self.truth, self.failovers)
        if options.wide and rng.random() < 0.4:
            context.topics.append(OTHER_TOPIC)
            context.count("two topics")

    @property
    def events(self) -> int:
        """Handled by all brokers."""
        return sum(cluster.events for cluster in self.clusters.values())

    def run(
        self, steps: int, *, story: "Story | None" = None, more: "Callable[[World], Actions] | None" = None
    ) -> None:
        """Live.

        Args:
            steps: so many actions are taken.
            story: how it begins (`magnetar_sim.actions.stories`), for planted bugs that hardly any other world shows.
            more: what else may be done than all worlds do.

        Raises:
            Violation: a promise was broken.
        """
        rng, context = self.rng, self.context
        table = {**self.workload.actions(), **self.faults.actions(), **(more(self) if more is not None else {})}
        for name in UNPLAIN if context.options.plain else MESHED if context.options.alone else ():
            table.pop(name, None)
        # Swarm: each world does some things far more and some far less often than the others do.
        weights = [weight * rng.choice((0.2, 1, 1, 5)) for weight, _ in table.values()]
        if context.focus:
            context.say(f"above all: {', '.join(context.focus)}")
            # Only what there may be at all: the mode of the namespace changes in mixed worlds alone.
            about = [name in context.focus and (name != "mode" or context.mode == "mixed") for name in table]
            weights = [weight + 3 * chosen for chosen, weight in zip(about, weights, strict=True)]
        actions: list[Callable[[], object]] = [action for _, action in table.values()]
        paces = rng.choice(((0, 1, 5, 20), (1, 20, 100, 400), (5, 100, 1_000, 5_000)))
        for pause in story(self) if story is not None else ():
            context.clock.run_for(pause)
            self.observers.step()

        def act(action: Callable[[], object]) -> None:
            action()
            context.clock.run_for(rng.choice(paces))
            self.observers.step()

        # While a process is stopped within an operation the others act.
        context.storms(lambda: act(rng.choices(actions, weights)[0]))
        for action in rng.choices(actions, weights, k=steps):
            act(action)
        context.calm()
        self.heal()
        self.calm()
        self.acks.settle()
        self.observers.verdict()

    def heal(self) -> None:
        """Everything works from now on."""
        self.context.say("--- all is well from here on")
        self.net.apart.clear()
        for connection in list(self.net.connections.values()):
            if connection.stalled:
                connection.stall(False)
        for link in self.links.values():
            link.calm()
        for cluster in self.clusters.values():
            cluster.disk.heal()
            while cluster.broker is None:
                cluster.start()
                if cluster.broker is None:
                    self.context.clock.run_for(1_000)
        self.context.clock.run_for(LATE_MS)
        for cluster in self.clusters.values():
            while cluster.broker is None:  # a session of the storm may end only now, and another broker take over
                self.context.clock.run_for(1_000)
            self.faults.set_policy(cluster, self.context.names)
            if self.context.mode == "mixed":
                self.faults.set_mode(cluster, self.context.settings.mode)
            for topic in self.context.topics:
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
            self.context.clock.run_for(CALM_MS)
            self.observers.step()
            now = [
                (cluster.name, [(text, topic.log.last) for text, topic in broker.topics.items()])
                for cluster, broker in self.clusters.living()
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
        """Whether a destination takes the source for its former life still: tasks of that one came so late.

        A source that has sent nothing in its present life has nothing to say so with, and nothing depends on it.
        """
        here, there = self.clusters[source].broker, self.clusters[target].broker
        if here is None or there is None:
            return False
        if not any(one.wanted and one.cursor.s != NONE for one in here.links.sources[target].topics.values()):
            return False
        believed = there.links.destination.peers.known().get(source)
        return believed is not None and believed[0] != here.uuid

    def drain(self, where: str = "") -> None:
        """Consumers get every subscription's messages in every cluster; or in one cluster (`where`), and acknowledge them all."""
        for client in (*self.workload.consumers, *self.workload.publishers):
            client.close()
        self.context.clock.run_for(1_000)
        self._until_due()
        consumers = [
            Consumer(self.around, cluster.name, text, name, SHARED, replicated=False, earliest=True)
            for cluster, broker in self.clusters.living()
            if where in ("", cluster.name)
            for text, topic in broker.topics.items()
            for name in topic.subscriptions
        ]
        self.context.clock.run_for(10_000)
        for consumer in consumers:
            if where and consumer.open and consumer.received:
                consumer.ack(list(consumer.received))
        self.context.clock.run_for(1_000)
        for consumer in consumers:
            consumer.close()

    def _until_due(self) -> None:
        """Let all delayed messages come due, also where the clock is behind."""
        due_ms = max((entry.due_ms for entry in self.truth.published.values()), default=0)
        self.context.clock.run_for(max(0, due_ms - min(cluster.wall_ms for cluster in self.clusters.values())))


Story = Callable[[World], Iterator[int]]
"""Acts on a world, and yields how long to wait for what comes next."""
