"""What people do: they publish, subscribe, acknowledge in every way there is, seek, skip, and leave."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar_sim.cluster import Cluster, Clusters
from magnetar_sim.connections.clients import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer, Publisher, Surroundings
from magnetar_sim.context import WorldContext
from magnetar_sim.memory.acks import Acks
from magnetar_sim.memory.records import FILTERED_1, FILTERED_2, PLAIN, RESTRICTED
from magnetar_sim.memory.truth import Truth

if TYPE_CHECKING:
    from magnetar.broker.admin.controller import Controller
    from magnetar.broker.subscriptions.subscription import Subscription


class Workload:
    """Users of all clusters.

    Args:
        context: of the context.
        around: what its clients need.
        clusters: by their names.
        truth: what was published.
        acks: what is acknowledged.
    """

    def __init__(
        self, context: WorldContext, around: Surroundings, clusters: Clusters, truth: Truth, acks: Acks
    ) -> None:
        self.context, self.around, self._clusters, self._truth, self._acks = context, around, clusters, truth, acks
        self.rng = rng = context.rng
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self.subscriptions = ["s", "t"][: rng.choice((1, 1, 2))]
        self.kinds = {name: rng.choice((EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)) for name in self.subscriptions}
        self.earliest = rng.choice((0.2, 0.8, 1.0))
        self.writers = rng.choice((context.names[:1], context.names, context.names))
        self.home = rng.choice(context.names)
        self.wanders = rng.choice((0.0, 0.05, 0.5, 1.0))
        self.entry_kinds: tuple[int, ...] = rng.choice(
            ((PLAIN,), (PLAIN, FILTERED_1, FILTERED_2), (PLAIN, PLAIN, RESTRICTED, FILTERED_1))
        )

    def actions(self) -> dict[str, tuple[float, Callable[[], object]]]:
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
        rng, context, publisher = self.rng, self.context, self.publisher()
        if publisher is None:
            return
        for _ in range(rng.choice((1, 1, 2, 4))):
            kind = rng.choice(self.entry_kinds)
            to = frozenset(name for name in context.names if rng.random() < 0.4) if kind == RESTRICTED else None
            entry = self._truth.publish(publisher.cluster, publisher.topic, kind, to, rng.choice((1, 1, 1, 3)))
            context.say(
                f"{publisher.cluster} is sent {entry.uid}" + (f" only for {sorted(to)}" if to is not None else "")
            )
            publisher.publish(entry)

    def publisher(self) -> Publisher | None:
        """One that is there, or comes; None if it cannot."""
        rng = self.rng
        self.publishers = [one for one in self.publishers if one.open]
        if not self.publishers or (len(self.publishers) < 4 and rng.random() < 0.2):
            self.publishers.append(Publisher(self.around, rng.choice(self.writers), rng.choice(self.context.topics)))
        publisher = rng.choice(self.publishers)
        return publisher if publisher.open else None

    # ------------------------------------------------------------------------------------------------------- consuming

    def subscribe(self) -> None:
        """A consumer comes, mostly where the others are."""
        rng, context = self.rng, self.context
        self.consumers = [one for one in self.consumers if one.open]
        if len(self.consumers) >= 5:
            return
        if rng.random() < self.wanders:
            self.home = rng.choice(context.names)
        name = rng.choice(self.subscriptions)
        consumer = Consumer(
            self.around, self.home, rng.choice(context.topics), name, self.kinds[name],
            replicated=context.replicated, earliest=rng.random() < self.earliest,
        )  # fmt: skip
        if consumer.open:
            context.say(f"a consumer of {name} comes to {self.home}")
            self.consumers.append(consumer)

    def follow(self, topic: str, subscription: str, cluster: str) -> None:
        """Consumers go where their subscription went, at once: so do clients that get TOPIC_MIGRATED."""
        self.home = cluster
        self.context.say(f"consumers of {subscription} follow to {cluster}")
        self.consumers.append(
            Consumer(
                self.around, cluster, topic, subscription, self.kinds[subscription],
                replicated=self.context.replicated, earliest=True,
            )
        )  # fmt: skip

    def _busy(self) -> Consumer | None:
        ready = [one for one in self.consumers if one.open and one.received]
        return self.rng.choice(ready) if ready else None

    def acknowledge(self) -> None:
        """One by one, up to here, or a part of a batch."""
        consumer = self._busy()
        if consumer is None:
            # No consumer has anything: a step that does nothing finds nothing.
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
                self.context.say(f"{consumer.cluster}: {consumer.subscription} acknowledges a part of {one.uid}")
                self.context.count("part of a batch acknowledged")
                consumer.ack_some(one, keep)
                return
        if way < 0.6 and consumer.kind in (EXCLUSIVE, FAILOVER):
            one = rng.choice(consumer.received)
            self.context.say(f"{consumer.cluster}: {consumer.subscription} acknowledges through {one.uid}")
            self.context.count("acknowledged through")
            consumer.ack_through(one, answer=rng.random() < 0.3)
            return
        chosen = rng.sample(consumer.received, rng.randint(1, min(len(consumer.received), 6)))
        self.context.say(
            f"{consumer.cluster}: {consumer.subscription} acknowledges {sorted(one.uid for one in chosen)}"
        )
        self.context.count("acknowledged one by one")
        consumer.ack(chosen, answer=rng.random() < 0.3)

    def _any_consumer(self) -> Consumer | None:
        ready = [one for one in self.consumers if one.open]
        return self.rng.choice(ready) if ready else None

    def leave(self) -> None:
        """A consumer goes."""
        consumer = self._any_consumer()
        if consumer is not None:
            consumer.close()

    def hang_up(self) -> None:
        """A client's connection breaks."""
        clients = [one for one in (*self.consumers, *self.publishers) if one.open]
        if clients:
            connection = self.rng.choice(clients).connection
            assert connection is not None
            self.context.count("client cut off")
            connection.cut()

    def redeliver(self) -> None:
        """A consumer wants everything again."""
        consumer = self._any_consumer()
        if consumer is not None:
            consumer.redeliver()

    def seek(self) -> None:
        """A consumer goes back, or ahead."""
        consumer = self._any_consumer()
        if consumer is None:
            return
        copy = self._truth.copy(self._clusters[consumer.cluster], consumer.topic)
        places: list[Position] = [EARLIEST, LATEST, *(copy.at if copy is not None else ())]
        target = self.rng.choice(places)
        self.context.say(f"{consumer.cluster}: {consumer.subscription} seeks to {target}")
        consumer.seek(target)

    def unsubscribe(self) -> None:
        """A consumer gives its subscription up."""
        consumer = self._any_consumer()
        if consumer is not None:
            self.context.say(f"{consumer.cluster}: {consumer.subscription} is given up")
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

    def _skipped(self, cluster: Cluster, topic: str, machine: "Subscription", fresh: set[int]) -> None:
        if fresh:
            self.context.count("skip")
        self._acks.add(cluster, topic, machine, fresh)

    def expire(self) -> None:
        """An operator lets what is old expire, in one cluster."""
        age_s = self.rng.choice((0, 1, 10))
        self._operate(
            f"expires what is older than {age_s} s",
            lambda control, *what: control.subscriptions.expire(*what, age_s, ignore),
            self._expired,
        )

    def _expired(self, cluster: Cluster, topic: str, machine: "Subscription", fresh: set[int]) -> None:
        if fresh:
            self.context.count("expiry")
        self._acks.expire(cluster, topic, machine, fresh)

    def _operate(
        self,
        what: str,
        act: "Callable[[Controller, str, str], None]",
        then: "Callable[[Cluster, str, Subscription, set[int]], None]",
    ) -> None:
        """An operator moves a cursor; `then` gets what it covers that it did not cover before."""
        context, acks, rng = self.context, self._acks, self.rng
        cluster = self._clusters[rng.choice(context.names)]
        if not cluster.serves:
            return  # what an operator asks is done at once, so its effect can be counted
        topic, name = rng.choice(context.topics), rng.choice(self.subscriptions)
        found = cluster.topic(topic)
        machine = found.subscriptions.get(name) if found is not None else None
        if found is None or machine is None:
            return
        context.say(f"{cluster.name}: an operator of {name} {what}")
        subscriptions, before = found.subscriptions, set[int]()

        def look() -> None:
            before.update(acks.now(cluster, topic, machine.cursor))

        def count() -> None:
            if cluster.broker is not None and subscriptions.get(name) is machine:
                then(cluster, topic, machine, acks.now(cluster, topic, machine.cursor) - before)

        cluster.when_ready(topic, machine, look)
        try:
            act(cluster.control, topic, name)
        except MagnetarError:
            return
        cluster.when_ready(topic, machine, count)


def ignore(_error: MagnetarError | None) -> None:
    """Operators look later."""
