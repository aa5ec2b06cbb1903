"""What else people do, and what else goes wrong, in wide worlds: chunks, delays, foreign acknowledgements, operators at every
subscription, compaction, a second topic; brokers that are stopped, or killed while the machine lives on; disks that fail a read.

Worlds of their own (`python -m magnetar_sim --wide`): in all others chance would draw other things than it did, and the seeds
that find planted bugs would be others.
"""

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar_sim.actions.workload import ignore
from magnetar_sim.cluster import Cluster
from magnetar_sim.connections.clients import EXCLUSIVE, FAILOVER, Consumer, Received
from magnetar_sim.memory.records import PLAIN
from magnetar_sim.world import Actions, World

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription

DELAYS_MS: Final = (1, 500, 20_000)
NOWHERE: Final = 1 << 40
"""Behind every ledger and every entry that there is."""


class Operator:
    """Who moves a cursor from outside: one seek of an administrator.

    Args:
        cluster, topic, subscription: of what.
    """

    def __init__(self, cluster: str, topic: str, subscription: str) -> None:
        self.cluster, self.topic, self.subscription = cluster, topic, subscription


class Wide:
    """More of everything.

    Args:
        world: the world.
    """

    def __init__(self, world: World) -> None:
        self.world, self.context, self.rng = world, world.context, world.rng

    def actions(self) -> Actions:
        """What may happen, and how often."""
        rng = self.rng
        return {
            "chunks": (rng.choice((0, 2)), self.chunks),
            "delayed": (rng.choice((0, 2)), self.delayed),
            "foreign": (rng.choice((0, 1)), self.foreign),
            "again": (rng.choice((0, 1)), self.again),
            "seek_within": (rng.choice((0, 0, 1)), self.seek_within),
            "seek_time": (rng.choice((0, 0, 1)), self.seek_time),
            "reset": (rng.choice((0, 0, 1)), self.reset),
            "delete": (rng.choice((0, 0, 0.3)), self.delete),
            "make": (rng.choice((0, 0.5)), self.make),
            "properties": (rng.choice((0, 1)), self.properties),
            "unload": (rng.choice((0, 0.5)), self.unload),
            "truncate": (rng.choice((0, 0, 0.3)), self.truncate),
            "compact": (rng.choice((0, 1)), self.compact),
            "stop": (rng.choice((0, 0.5, 2)), self.stop),
            "kill": (rng.choice((0, 0.5, 2)), self.kill),
            "read_fails": (rng.choice((0, 1)), self.read_fails),
            "everywhere": (rng.choice((0, 0, 0.2)), self.everywhere),
        }

    # ------------------------------------------------------------------------------------------------------ publishing

    def chunks(self) -> None:
        """A message in several entries."""
        publisher = self.world.workload.publisher()
        if publisher is None:
            return
        number, truth = self.rng.choice((2, 3, 5)), self.world.truth
        entries = [truth.publish(publisher.cluster, publisher.topic, PLAIN, None, 1) for _ in range(number)]
        for at, entry in enumerate(entries):
            entry.chunk = (entries[0].uid, at, number)
        self.context.say(f"{publisher.cluster} is sent {entries[0].uid} to {entries[-1].uid}, chunks of one message")
        self.context.count("message in chunks")
        for entry in entries[: number if self.rng.random() < 0.9 else -1]:  # or its producer ends in the middle
            publisher.publish(entry)

    def delayed(self) -> None:
        """Messages that wait."""
        publisher = self.world.workload.publisher()
        if publisher is None:
            return
        for _ in range(self.rng.choice((1, 3))):
            entry = self.world.truth.publish(publisher.cluster, publisher.topic, PLAIN, None, 1)
            entry.due_ms = self.context.clock.now_ms + self.rng.choice(DELAYS_MS)
            self.context.say(f"{publisher.cluster} is sent {entry.uid}, for {entry.due_ms % 10_000_000}")
            publisher.publish(entry)
        self.context.count("delayed message")

    # ------------------------------------------------------------------------------------------------------- consuming

    def _consumer(self) -> Consumer | None:
        ready = [one for one in self.world.workload.consumers if one.open and one.ready]
        return self.rng.choice(ready) if ready else None

    def foreign(self) -> None:
        """A client acknowledges what is not there: another cluster's id, one that no cluster gave, or none."""
        consumer = self._consumer()
        if consumer is None:
            return
        here = self.world.truth.copy(self.world.clusters[consumer.cluster], consumer.topic)
        elsewhere = [
            position
            for (name, topic), copy in self.world.truth.copies.items()
            if name != consumer.cluster and topic == consumer.topic
            for position in copy.at
            if here is None or position not in here.at
        ]
        strange = [Position(NOWHERE, 0), Position(NOWHERE, NOWHERE), *elsewhere[:3], *elsewhere[-3:]]
        if here is not None and here.at:
            strange.append(max(here.at)._replace(entry=NOWHERE))
        consumer.ack_ids(self.rng.sample(strange, min(len(strange), 3)))
        self.context.say(f"{consumer.cluster}: {consumer.subscription} acknowledges what is not there")
        self.context.count("foreign id acknowledged")

    def again(self) -> None:
        """A client acknowledges once more what was acknowledged already; or what it was never sent."""
        consumer = self._consumer()
        if consumer is None:
            return
        cluster = self.world.clusters[consumer.cluster]
        copy, topic = self.world.truth.copy(cluster, consumer.topic), cluster.topic(consumer.topic)
        machine = topic.subscriptions.get(consumer.subscription) if topic is not None else None
        if copy is None or topic is None or machine is None:
            return
        # What is stored and not known to the broker yet is not there; and behind a seek an acknowledgement of what
        # was there at that time and was not sent again is taken for one that comes late.
        known = [one for one in copy.at if machine._late_up_to < one <= topic.log.last]
        if not known:
            return
        position = self.rng.choice(known)
        self.context.say(f"{consumer.cluster}: {consumer.subscription} acknowledges {copy.at[position]}, unasked")
        self.context.count("acknowledged unasked")
        if consumer.kind in (EXCLUSIVE, FAILOVER) and self.rng.random() < 0.3:
            consumer.ack_through(Received(position, copy.at[position], 1, 1))
        else:
            consumer.ack_ids([position, position])

    def seek_within(self) -> None:
        """A consumer goes into a batch."""
        consumer = self._consumer()
        if consumer is None:
            return
        copy = self.world.truth.copy(self.world.clusters[consumer.cluster], consumer.topic)
        batches = [
            (position, count)
            for position, uid in (copy.at.items() if copy is not None else ())
            if (count := self.world.truth.published[uid].count) > 1
        ]
        if batches:
            position, count = self.rng.choice(batches)
            first = self.rng.randrange(count)
            self.context.say(f"{consumer.cluster}: {consumer.subscription} seeks to message {first} of {position}")
            self.context.count("seek into a batch")
            consumer.seek(position, (1 << count) - (1 << first))

    def seek_time(self) -> None:
        """A consumer goes to a time."""
        consumer = self._consumer()
        if consumer is not None:
            ago_ms = self.rng.choice((0, 100, 5_000, 100_000))
            self.context.say(f"{consumer.cluster}: {consumer.subscription} seeks {ago_ms} ms back")
            self.context.count("seek by time")
            consumer.seek_time(self.context.clock.now_ms - ago_ms)

    # ------------------------------------------------------------------------------------------------------- operators

    def _subscription(self) -> "tuple[Cluster, str, Subscription] | None":
        found = [
            (cluster, text, machine)
            for cluster, broker in self.world.clusters.living()
            for text, topic in broker.topics.items()
            for machine in topic.subscriptions.values()
        ]
        return self.rng.choice(found) if found else None

    def _topic(self) -> tuple[Cluster, str] | None:
        found = [(cluster, text) for cluster, broker in self.world.clusters.living() for text in broker.topics]
        return self.rng.choice(found) if found else None

    def reset(self) -> None:
        """An operator puts a cursor somewhere else."""
        found = self._subscription()
        if found is None:
            return
        cluster, topic, machine = found
        copy = self.world.truth.copy(cluster, topic)
        places: list[Position | int] = [EARLIEST, LATEST, *(copy.at if copy is not None else ())]
        places.append(self.context.clock.now_ms - self.rng.choice((100, 10_000)))
        target, exclusive = self.rng.choice(places), self.rng.random() < 0.3
        self.context.say(f"{cluster.name}: an operator resets {machine.name} to {target}, exclusive {exclusive}")
        self.context.count("cursor reset by an operator")
        who, acks, before = Operator(cluster.name, topic, machine.name), self.world.acks, set[int]()

        def look() -> None:
            before.update(acks.consumed(cluster, topic, machine.name))

        def moved() -> None:
            if self._still(cluster, topic, machine):
                acks.has_moved(who, machine, before)

        def done(error: MagnetarError | None) -> None:
            self.context.say(f"{cluster.name}: the reset of {machine.name} is answered: {error or 'it is done'}")
            if error is None and self._still(cluster, topic, machine):
                acks.sought(who)

        cluster.when_ready(topic, machine, look)
        try:
            cluster.control.subscriptions.reset_cursor(topic, machine.name, target, exclusive, done)
        except MagnetarError:
            return
        cluster.when_ready(topic, machine, moved)

    def _still(self, cluster: Cluster, topic: str, machine: "Subscription") -> bool:
        found = cluster.topic(topic)
        return found is not None and found.subscriptions.get(machine.name) is machine

    def delete(self) -> None:
        """An operator deletes a subscription that may be in use."""
        found = self._subscription()
        if found is None:
            return
        cluster, topic, machine = found
        self.context.say(f"{cluster.name}: an operator deletes {machine.name}")
        self.context.count("subscription deleted by an operator")
        _try(lambda: cluster.control.subscriptions.delete(topic, machine.name, True, ignore))

    def make(self) -> None:
        """An operator makes a subscription."""
        found = self._topic()
        if found is None:
            return
        cluster, topic = found
        name = self.rng.choice(self.world.workload.subscriptions)
        position, replicated = self.rng.choice((None, EARLIEST)), self.context.replicated
        self.context.say(f"{cluster.name}: an operator makes {name}")
        _try(lambda: cluster.control.subscriptions.create(topic, name, position, replicated, {}, ignore))

    def everywhere(self) -> None:
        """A topic is deleted in all clusters, one soon after the other, and made again in one: links make it in the others."""
        topic = self.rng.choice(self.context.topics)
        living = [cluster for cluster, _ in self.world.clusters.living()]
        self.rng.shuffle(living)
        for number, cluster in enumerate(living):
            again = number == len(living) - 1
            self.context.clock.after(
                int(self.rng.random() * 300 * number), partial(self.world.faults.delete, again=again), cluster, topic
            )
        self.context.count("topic deleted everywhere")

    def properties(self) -> None:
        """An operator names a subscription's properties, or a topic's."""
        found = self._subscription()
        if found is None:
            return
        cluster, topic, machine = found
        named = {"a": str(self.rng.randrange(3))}
        self.context.count("properties set")
        if self.rng.random() < 0.5:
            _try(lambda: cluster.control.subscriptions.set_properties(topic, machine.name, named, ignore))
        else:
            _try(lambda: cluster.control.topics.change_properties(topic, named, None, ignore))

    def unload(self) -> None:
        """An operator unloads a topic: its clients come back, or not."""
        if (found := self._topic()) is not None:
            cluster, topic = found
            self.context.say(f"{cluster.name}: {topic} is unloaded")
            self.context.count("topic unloaded")
            _try(lambda: cluster.control.topics.unload(topic, ignore))

    def truncate(self) -> None:
        """An operator takes everything from a topic: all subscriptions skip it, and retention has it."""
        found = self._topic()
        if found is None:
            return
        (cluster, text), acks = found, self.world.acks
        topic = cluster.topic(text)
        machines = [one for one in topic.subscriptions.values() if one.durable] if topic is not None else []
        before: dict[str, set[int]] = {}
        self.context.say(f"{cluster.name}: {text} is truncated")
        self.context.count("topic truncated")

        def look(machine: "Subscription") -> None:
            before[machine.name] = acks.now(cluster, text, machine.cursor)

        def skipped(machine: "Subscription") -> None:
            if machine.name in before and self._still(cluster, text, machine):
                acks.add(cluster, text, machine, acks.now(cluster, text, machine.cursor) - before[machine.name])

        for one in machines:
            cluster.when_ready(text, one, lambda one=one: look(one))  # type: ignore[misc]
        if not _try(lambda: cluster.control.topics.truncate(text, ignore)):
            return
        for one in machines:
            cluster.when_ready(text, one, lambda one=one: skipped(one))  # type: ignore[misc]

    def compact(self) -> None:
        """An operator has a topic compacted."""
        if (found := self._topic()) is not None:
            cluster, topic = found
            self.context.say(f"{cluster.name}: {topic} is compacted")
            self.context.count("topic compacted")
            _try(lambda: cluster.control.topics.compact(topic))

    # ---------------------------------------------------------------------------------------------------------- faults

    def stop(self) -> None:
        """A broker ends in good order."""
        if (cluster := self.world.faults.any_living()) is not None:
            cluster.stop()
            cluster.revive_later()

    def kill(self) -> None:
        """A broker's process is killed; the machine goes on, and with it what was written and not synced."""
        if (cluster := self.world.faults.any_living()) is not None:
            cluster.kill()
            cluster.revive_later()

    def read_fails(self) -> None:
        """The next read of a disk fails."""
        if (cluster := self.world.faults.any_living()) is not None:
            self.context.say(f"{cluster.name}: the next read fails")
            self.context.count("read failed, or will")
            cluster.disk.fail_next("read", OSError(errno.EIO, "Input/output error"))


def _try(act: Callable[[], None]) -> bool:
    """Whether the broker took it."""
    try:
        act()
    except MagnetarError:
        return False
    return True
