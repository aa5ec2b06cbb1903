"""What people do: they publish, subscribe, acknowledge in every way there is, seek, skip, and leave."""

from typing import TYPE_CHECKING

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar_sim.clients import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer, Publisher
from magnetar_sim.truth import FILTERED_1, FILTERED_2, PLAIN, RESTRICTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.admin.controller import Controller
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar_sim.cluster import Cluster
    from magnetar_sim.world import World


class Workload:
    """Users of all clusters.

    Args:
        world: the world.
    """

    def __init__(self, world: "World") -> None:
        self.world, self.rng = world, world.rng
        rng = world.rng
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self.subscriptions = ["s", "t"][: rng.choice((1, 1, 2))]
        self.kinds = {name: rng.choice((EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)) for name in self.subscriptions}
        self.earliest = rng.choice((0.2, 0.8, 1.0))
        self.writers = rng.choice((world.names[:1], world.names, world.names))
        self.home = rng.choice(world.names)
        self.wanders = rng.choice((0.0, 0.05, 0.5, 1.0))

    def actions(self) -> "dict[str, tuple[float, Callable[[], object]]]":
        """What may be done, and how often."""
        rng = self.rng
        return {
            "publish": (rng.choice((4, 12)), self.publish),
            "subscribe": (3, self.subscribe),
            "acknowledge": (10, self.acknowledge),
            "leave": (0.5, self.leave),
            "break": (0.5, self.hang_up),
            "redeliver": (0.3, self.redeliver),
            "seek": (rng.choice((0, 0, 1.5)), self.seek),
            "skip": (rng.choice((0, 0, 0.3)), self.skip),
            "expire": (rng.choice((0, 0, 0, 0.3)), self.expire),
            "unsubscribe": (rng.choice((0, 0, 0, 0.2)), self.unsubscribe),
        }

    # ------------------------------------------------------------------------------------------------------ publishing

    def publish(self) -> None:
        """One or a few entries from one producer."""
        rng, world, publisher = self.rng, self.world, self.publisher()
        if publisher is None:
            return
        for _ in range(rng.choice((1, 1, 2, 4))):
            kind = rng.choice(world.kinds)
            to = frozenset(name for name in world.names if rng.random() < 0.4) if kind == RESTRICTED else None
            entry = world.truth.publish(publisher.cluster, publisher.topic, kind, to, rng.choice((1, 1, 1, 3)))
            world.say(
                f"{publisher.cluster} is sent {entry.uid}" + (f" only for {sorted(to)}" if to is not None else "")
            )
            publisher.publish(entry)

    def publisher(self) -> Publisher | None:
        """One that is there, or comes; None if it cannot."""
        rng, world = self.rng, self.world
        self.publishers = [one for one in self.publishers if one.open]
        if not self.publishers or (len(self.publishers) < 4 and rng.random() < 0.2):
            self.publishers.append(Publisher(world, rng.choice(self.writers), rng.choice(world.topics)))
        publisher = rng.choice(self.publishers)
        return publisher if publisher.open else None

    # ------------------------------------------------------------------------------------------------------- consuming

    def subscribe(self) -> None:
        """A consumer comes, mostly where the others are."""
        rng, world = self.rng, self.world
        self.consumers = [one for one in self.consumers if one.open]
        if len(self.consumers) >= 5:
            return
        if rng.random() < self.wanders:
            self.home = rng.choice(world.names)
        name = rng.choice(self.subscriptions)
        consumer = Consumer(
            world, self.home, rng.choice(world.topics), name, self.kinds[name],
            replicated=world.replicated, earliest=rng.random() < self.earliest,
        )  # fmt: skip
        if consumer.open:
            world.say(f"a consumer of {name} comes to {self.home}")
            self.consumers.append(consumer)

    def follow(self, topic: str, subscription: str, cluster: str) -> None:
        """Consumers go where their subscription went, at once: so do clients that are told TOPIC_MIGRATED."""
        self.home = cluster
        self.world.say(f"consumers of {subscription} follow to {cluster}")
        self.consumers.append(
            Consumer(
                self.world, cluster, topic, subscription, self.kinds[subscription],
                replicated=self.world.replicated, earliest=True,
            )
        )  # fmt: skip

    def _busy(self) -> Consumer | None:
        ready = [one for one in self.consumers if one.open and one.received]
        return self.rng.choice(ready) if ready else None

    def acknowledge(self) -> None:
        """One by one, up to here, or a part of a batch."""
        consumer = self._busy()
        if consumer is None:
            # Nobody has anything: a step that does nothing finds nothing.
            if any(one.open for one in self.consumers):
                self.publish()
            else:
                self.subscribe()
            return
        self._acknowledge(consumer)

    def finish(self, cluster: str, subscription: str) -> None:
        """The consumers of a subscription in a cluster acknowledge something more, as work that was under way ends."""
        for consumer in self.consumers:
            if (
                (consumer.cluster, consumer.subscription) == (cluster, subscription)
                and consumer.open
                and consumer.received
            ):
                self._acknowledge(consumer)

    def _acknowledge(self, consumer: Consumer) -> None:
        rng = self.rng
        way = rng.random()
        if way < 0.2:
            batches = [one for one in consumer.received if one.count > 1]
            if batches:
                one = rng.choice(batches)
                keep = rng.getrandbits(one.count) & ((1 << one.count) - 1)
                self.world.say(f"{consumer.cluster}: {consumer.subscription} acknowledges a part of {one.uid}")
                self.world.count("part of a batch acknowledged")
                consumer.ack_some(one, keep)
                return
        if way < 0.6 and consumer.kind in (EXCLUSIVE, FAILOVER):
            one = rng.choice(consumer.received)
            self.world.say(f"{consumer.cluster}: {consumer.subscription} acknowledges through {one.uid}")
            self.world.count("acknowledged through")
            consumer.ack_through(one, answer=rng.random() < 0.3)
            return
        chosen = rng.sample(consumer.received, rng.randint(1, min(len(consumer.received), 6)))
        self.world.say(f"{consumer.cluster}: {consumer.subscription} acknowledges {sorted(one.uid for one in chosen)}")
        self.world.count("acknowledged one by one")
        consumer.ack(chosen, answer=rng.random() < 0.3)

    def _somebody(self) -> Consumer | None:
        ready = [one for one in self.consumers if one.open]
        return self.rng.choice(ready) if ready else None

    def leave(self) -> None:
        """A consumer goes."""
        consumer = self._somebody()
        if consumer is not None:
            consumer.close()

    def hang_up(self) -> None:
        """A client's connection breaks."""
        clients = [one for one in (*self.consumers, *self.publishers) if one.open]
        if clients:
            connection = self.rng.choice(clients).connection
            assert connection is not None
            self.world.count("client cut off")
            connection.cut()

    def redeliver(self) -> None:
        """A consumer wants everything again."""
        consumer = self._somebody()
        if consumer is not None:
            consumer.redeliver()

    def seek(self) -> None:
        """A consumer goes back, or ahead."""
        consumer = self._somebody()
        if consumer is None:
            return
        copy = self.world.truth.copy(self.world.clusters[consumer.cluster], consumer.topic)
        places: list[Position] = [EARLIEST, LATEST, *(copy.at if copy is not None else ())]
        target = self.rng.choice(places)
        self.world.say(f"{consumer.cluster}: {consumer.subscription} seeks to {target}")
        consumer.seek(target)

    def unsubscribe(self) -> None:
        """A consumer gives its subscription up."""
        consumer = self._somebody()
        if consumer is not None:
            self.world.say(f"{consumer.cluster}: {consumer.subscription} is given up")
            consumer.unsubscribe()

    def skip(self) -> None:
        """An operator skips messages, or the whole backlog."""
        entries = self.rng.choice((1, 2, 5, 0))
        if entries:
            self._operate(
                f"skips {entries}",
                lambda control, *what: control.subscriptions.skip(*what, entries, ignore),
                self._skipped,
            )
        else:
            self._operate(
                "skips all", lambda control, *what: control.subscriptions.skip_all(*what, ignore), self._skipped
            )

    def _skipped(self, cluster: "Cluster", topic: str, machine: "Subscription", fresh: set[int]) -> None:
        if fresh:
            self.world.count("skip")
        self.world.acks.add(cluster, topic, machine, fresh)

    def expire(self) -> None:
        """An operator lets what is old expire, in one cluster."""
        age_s = self.rng.choice((0, 1, 10))
        self._operate(
            f"expires what is older than {age_s} s",
            lambda control, *what: control.subscriptions.expire(*what, age_s, ignore),
            self._expired,
        )

    def _expired(self, cluster: "Cluster", topic: str, machine: "Subscription", fresh: set[int]) -> None:
        if fresh:
            self.world.count("expiry")
        self.world.acks.expire(cluster, topic, machine, fresh)

    def _operate(
        self,
        what: str,
        act: "Callable[[Controller, str, str], None]",
        then: "Callable[[Cluster, str, Subscription, set[int]], None]",
    ) -> None:
        """An operator moves a cursor; `then` hears what it covers that it did not cover before."""
        world, rng = self.world, self.rng
        cluster = world.clusters[rng.choice(world.names)]
        if cluster.broker is None:
            return
        topic, name = rng.choice(world.topics), rng.choice(self.subscriptions)
        found = cluster.topic(topic)
        machine = found.subscriptions.get(name) if found is not None else None
        if found is None or machine is None:
            return
        world.say(f"{cluster.name}: an operator of {name} {what}")
        subscriptions, before = found.subscriptions, set[int]()

        def look() -> None:
            before.update(world.acks.now(cluster, topic, machine.cursor))

        def count() -> None:
            if cluster.broker is not None and subscriptions.get(name) is machine:
                then(cluster, topic, machine, world.acks.now(cluster, topic, machine.cursor) - before)

        cluster.when_ready(topic, machine, look)
        try:
            act(cluster.control, topic, name)
        except MagnetarError:
            return
        cluster.when_ready(topic, machine, count)

    def kinds_of_entries(self) -> tuple[int, ...]:
        """What this world publishes."""
        return self.rng.choice(((PLAIN,), (PLAIN, FILTERED_1, FILTERED_2), (PLAIN, PLAIN, RESTRICTED, FILTERED_1)))


def ignore(_error: MagnetarError | None) -> None:
    """Operators look later."""
