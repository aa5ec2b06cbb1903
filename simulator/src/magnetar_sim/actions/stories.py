"""How some worlds begin: several rare things in the one order in which a planted bug costs something, that chance hardly brings.

Everything that is done here the worlds' own actions do too, at times that are drawn; what follows is a storm like any other, and
the checkers are the same. A story yields how long to wait for what comes next, and ends early where the world does not suit it.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from magnetar.core.ids import EARLIEST, LATEST
from magnetar_sim.cluster import Cluster
from magnetar_sim.connections.clients import SHARED, Consumer, Publisher
from magnetar_sim.connections.long_link import LongLink
from magnetar_sim.connections.pipeline import Link
from magnetar_sim.memory.records import PLAIN
from magnetar_sim.world import Story, World

if TYPE_CHECKING:
    from magnetar.metadata.policies.namespace import SubscriptionMode
    from magnetar.replication.link.link_topic import LinkTopic

LOOK_MS = 100
PATIENCE = 600
"""So many looks, a minute, then what is waited for does not come."""


def _until(true: Callable[[], bool]) -> Iterator[int]:
    for _ in range(PATIENCE):
        if true():
            return
        yield LOOK_MS


def _publish(world: World, cluster: str, count: int) -> None:
    publisher = Publisher(world.around, cluster, world.context.topics[0])
    world.workload.publishers.append(publisher)
    for _ in range(count):
        publisher.publish(world.truth.publish(cluster, world.context.topics[0], PLAIN, None, 1))
    world.context.say(f"{cluster} is sent {count} messages")


def _consumer(world: World, cluster: str) -> Consumer:
    name = world.workload.subscriptions[0]
    kind = world.workload.kinds.setdefault(name, SHARED)
    consumer = Consumer(world.around, cluster, world.context.topics[0], name, kind, replicated=True, earliest=True)
    world.workload.consumers.append(consumer)
    world.context.say(f"a consumer of {name} comes to {cluster}")
    return consumer


def _stop(world: World, stopped: bool, source: str, *targets: str) -> None:
    for target in targets:
        if (source, target) in world.links:
            world.links[source, target].stopped = stopped


def _holds(world: World, cluster: str, count: int) -> Callable[[], bool]:
    def true() -> bool:
        copy = world.truth.copy(world.clusters[cluster], world.context.topics[0])
        return copy is not None and len(copy.ever) >= count

    return true


def _unstored(cluster: Cluster) -> "list[LinkTopic]":
    """Cursors of links that moved, and that the store does not have yet."""
    if cluster.broker is None:
        return []
    return [
        state
        for source in cluster.broker.links.sources.values()
        for state in source.topics.values()
        if state.durable is not None and state.durable.c < state.cursor.c == state.log.last
    ]


def trimmed_before_stored(world: World) -> Iterator[int]:
    """Retention looks right behind a commit, and the broker dies before the cursor is stored.

    See docs/design/links.md#durable-cursor.
    """
    rng = world.rng
    for _ in range(8):
        source, _target = rng.choice(list(world.links))
        cluster = world.clusters[source]
        yield from _until(lambda cluster=cluster: cluster.broker is not None)  # type: ignore[misc]
        _publish(world, source, rng.randint(1, 4))
        for _ in range(200):
            yield 20
            if _unstored(cluster):
                break
        else:
            continue
        world.faults.trim(cluster, everything=True)
        yield rng.randint(0, 100)
        cluster.die()
        cluster.revive_later()
        yield rng.randint(0, 2_000)


def sought_twice_at_one_time(world: World) -> Iterator[int]:
    """A cluster counts on from the seek of another whose clock is ahead, loses its disk, and counts on from it once more.

    Its own first seek went nowhere, so its new life cannot know of it, and gives the same time.
    """
    rng, topic = world.rng, world.context.topics[0]
    ahead, other = rng.sample(world.context.names, 2)
    if (ahead, other) not in world.links:
        return
    name = world.workload.subscriptions[0]

    def sought() -> bool:
        state = world.acks.state(world.clusters[other], topic, name)
        return state is not None and state.epoch.kind == 1

    world.clusters[ahead].skew_ms += 60_000
    _publish(world, ahead, rng.randint(1, 4))
    consumer = _consumer(world, ahead)
    yield rng.randint(500, 3_000)
    consumer.seek(EARLIEST)
    yield from _until(sought)
    for life in range(2):
        if not sought():
            return
        _stop(world, True, other, *world.context.names)
        consumer = _consumer(world, other)
        yield rng.randint(500, 2_000)
        consumer.seek(EARLIEST)
        yield rng.randint(500, 2_000)
        if not life:
            world.faults.lose_disk(world.clusters[other])
            yield from _until(lambda: world.clusters[other].broker is not None and sought())
    _stop(world, False, other, *world.context.names)


def marks_of_a_former_life(world: World) -> Iterator[int]:
    """A topic is created again, and a task brings it what its cluster had deleted and all others are about to forget.

    See docs/design/acknowledged-sets.md#forgetting.
    """
    rng, topic = world.rng, world.context.topics[0]
    if len(world.context.names) < 3:
        return
    origin, late, again = rng.sample(world.context.names, 3)
    clusters = world.clusters
    link = world.links[origin, again]
    assert isinstance(link, Link)  # planned for worlds with short batches
    link.twice = 1.0
    _publish(world, origin, count := rng.randint(1, 4))
    consumer = _consumer(world, origin)
    for name in (late, again):
        yield from _until(_holds(world, name, count))
    yield rng.randint(100, 1_000)
    if consumer.received:
        consumer.ack(list(consumer.received), answer=True)
    yield rng.randint(1_000, 4_000)
    # All but one delete it, and say so with what they acknowledge next.
    _publish(world, origin, 2)
    for name in (origin, again):
        world.faults.trim(clusters[name], everything=True)
    first, second = _consumer(world, again), _consumer(world, late)
    yield rng.randint(1_000, 3_000)
    world.faults.trim(clusters[again], everything=True)
    if first.received:
        first.ack(first.received[:1])
    yield rng.randint(1_500, 3_000)
    _stop(world, True, origin, again)
    _stop(world, True, late, again)
    _stop(world, True, again, late)
    world.faults.delete(clusters[again], topic)
    yield from _until(lambda: not _holds(world, again, 1)() and topic in _topics(clusters[again]))
    yield rng.randint(500, 1_500)
    _stop(world, True, again, origin)
    yield from _until(_holds(world, again, 1))
    world.faults.trim(clusters[late], everything=True)
    yield rng.randint(100, 1_000)
    if second.received:
        second.ack(second.received[:1])
    yield rng.randint(1_000, 3_000)
    for name in world.context.names:
        _stop(world, False, name, *world.context.names)


def _topics(cluster: Cluster) -> "set[str]":
    return set(cluster.broker.topics) if cluster.broker is not None else set()


def _modes(world: World, mode: "SubscriptionMode", *names: str) -> None:
    for name in names or world.context.names:
        world.faults.set_mode(world.clusters[name], mode)


def _has_read(world: World, cluster: str) -> Callable[[], bool]:
    """Whether a cluster has read an update of the first subscription."""

    def true() -> bool:
        truth = world.acks.of.get((cluster, world.context.topics[0], world.workload.subscriptions[0]))
        return truth is not None and any(truth.snapshot.must.values())

    return true


def published_before_the_disk_was_lost(world: World) -> Iterator[int]:
    """Snapshot mode published what was acknowledged, its writer lost its disk, and the mode changed."""
    rng = world.rng
    writer, reader = rng.sample(world.context.names, 2)
    _modes(world, "snapshot")
    yield 500
    _publish(world, reader, count := rng.randint(2, 6))
    consumer = _consumer(world, writer)
    yield from _until(_holds(world, writer, count))
    yield rng.randint(500, 2_000)
    if consumer.received:
        consumer.ack(list(consumer.received), answer=True)
    yield from _until(_has_read(world, reader))
    world.faults.lose_disk(world.clusters[writer])
    _modes(world, "exact")
    yield rng.randint(3_000, 6_000)


def _acknowledged_and_sought(world: World, stopped: tuple[str, str], *, first: bool) -> Iterator[int]:
    """`a` acknowledges in snapshot mode, `c` seeks in exact mode, `b` gets both, what a link holds back last."""
    a, b, c = world.context.names[:3]
    _modes(world, "snapshot", a)
    _modes(world, "exact", b, c)
    yield 500
    link = world.links[stopped]
    consumers = _consumer(world, a), _consumer(world, c)
    yield 1_000
    if first:
        link.stopped = True
    _publish(world, c, count := world.rng.randint(2, 6))
    yield from _until(_holds(world, a, count))
    if not first:
        yield from _until(_holds(world, b, count))
        yield 500
        link.stopped = True
    yield world.rng.randint(500, 1_500)
    if consumers[0].received:
        consumers[0].ack(list(consumers[0].received), answer=True)
    if first:
        yield from _until(_has_read(world, b))
    yield world.rng.randint(3_000, 5_000)
    again = _consumer(world, c)
    yield 500
    again.seek(EARLIEST)
    yield world.rng.randint(3_000, 5_000)
    link.stopped = False
    yield 3_000


def written_before_the_seek(world: World) -> Iterator[int]:
    """An update that was written in front of a seek comes behind it, to a third cluster, which follows the seek."""
    if len(world.context.names) > 2:
        yield from _acknowledged_and_sought(world, (world.context.names[0], world.context.names[1]), first=False)


def claimed_before_the_seek(world: World) -> Iterator[int]:
    """A message comes that an update had claimed, and that a seek took back."""
    if len(world.context.names) > 2:
        yield from _acknowledged_and_sought(world, (world.context.names[2], world.context.names[1]), first=True)


def sought_ahead_and_announced(world: World) -> Iterator[int]:
    """A cluster hears of a creation and of a seek at once, in exact mode, and of the creation again in snapshot mode."""
    rng, topic = world.rng, world.context.topics[0]
    here, there = rng.choice(list(world.links))
    _modes(world, "exact")
    _stop(world, True, here, there)
    consumer = _consumer(world, here)
    _publish(world, here, count := rng.randint(2, 6))
    yield from _until(lambda: len(consumer.received) >= count)

    def follows(cluster: str) -> Callable[[], bool]:
        def true() -> bool:
            state = world.acks.state(world.clusters[cluster], topic, consumer.subscription)
            return state is not None and state.epoch.kind == 1

        return true

    consumer.seek(LATEST)
    yield from _until(follows(here))
    yield rng.randint(100, 1_000)
    _stop(world, False, here, there)
    yield from _until(follows(there))
    _modes(world, "snapshot")
    yield rng.randint(2_000, 5_000)
    _modes(world, "exact")
    yield 3_000


def made_while_retention_deletes(world: World) -> Iterator[int]:
    """A consumer comes to messages that retention is deleting, and acknowledges those that follow them.

    See docs/design/snapshots.md#being-deleted.
    """
    rng, topic = world.rng, world.context.topics[0]
    here, there = rng.choice(list(world.links))
    cluster = world.clusters[here]
    _publish(world, here, count := rng.randint(2, 6))
    yield from _until(_holds(world, there, count))
    yield rng.randint(2_000, 4_000)
    if cluster.broker is None or topic not in cluster.broker.topics:
        return
    end = cluster.broker.topics[topic].log.last
    cluster.disk.fail_commit()  # it is tried again soon
    world.faults.trim(cluster, everything=True)
    consumer = _consumer(world, here)
    yield rng.randint(1_500, 3_000)
    _publish(world, here, rng.randint(1, 4))
    yield rng.randint(500, 1_500)
    if behind := [one for one in consumer.received if one.position > end]:
        consumer.ack(behind, answer=True)
    yield 4_000


def sought_in_a_former_life(world: World) -> Iterator[int]:
    """A topic is created again. One cluster names the former seek there, and an update of another comes, written before the seek.

    See docs/design/snapshots.md#former-seeks.
    """
    if len(world.context.names) < 3:
        return
    topic, name = world.context.topics[0], world.workload.subscriptions[0]
    a, b, c = world.context.names[:3]

    def names_seek(cluster: str) -> Callable[[], bool]:
        def true() -> bool:
            host = world.acks.updates.host(world.clusters[cluster], topic)
            state = host.snapshot.states.get(name) if host is not None else None  # type: ignore[attr-defined]
            return state is not None and c in state.seeks

        return true

    consumer, sought = _consumer(world, a), _consumer(world, c)
    _publish(world, a, count := world.rng.randint(2, 6))
    yield from _until(_holds(world, c, count))
    yield from _until(lambda: len(consumer.received) >= count)
    _stop(world, True, a, c)
    if consumer.received:
        consumer.ack(list(consumer.received), answer=True)
    yield from _until(_has_read(world, b))
    for other in (b, c):
        _stop(world, True, other, a)
    sought.seek(EARLIEST)
    yield from _until(names_seek(b))
    former = world.truth.copy(world.clusters[c], topic)
    world.faults.delete(world.clusters[c], topic)
    yield from _until(lambda: world.truth.copy(world.clusters[c], topic) not in (None, former))
    again = _consumer(world, c)
    yield from _until(names_seek(c))
    _stop(world, True, b, c)
    again.close()
    _stop(world, False, a, c)
    yield from _until(_has_read(world, c))
    yield world.rng.randint(100, 1_000)
    _consumer(world, c)
    yield 1_000
    for source, target in ((b, a), (c, a), (b, c)):
        _stop(world, False, source, target)


def left_behind_an_acknowledgement(world: World) -> Iterator[int]:
    """A third cluster leaves the policy when something was acknowledged and not published yet."""
    if len(world.context.names) < 3:
        return
    rng = world.rng
    writer, other, third = rng.sample(world.context.names, 3)
    consumer = _consumer(world, writer)
    yield 500
    _publish(world, other, count := rng.randint(2, 6))
    yield from _until(_holds(world, writer, count))
    yield from _until(lambda: len(consumer.received) >= count)
    # Both are on their way: it leaves when that was acknowledged, and before there is a snapshot of it.
    world.faults.set_policy(world.clusters[writer], [name for name in world.context.names if name != third])
    yield rng.randint(1, world.context.slow_disk_ms)
    consumer.ack(list(consumer.received), answer=True)
    yield 5_000


def _apart(world: World) -> Iterator[int]:
    """Each cluster is alone, and consumes what it publishes: no link concerns the topic, so nothing is kept but cursors."""
    rng = world.rng
    for name in world.context.names:
        world.faults.set_policy(world.clusters[name], [name])
    yield 200
    here = rng.choice(world.context.names)
    consumer = _consumer(world, here)
    yield 500
    _publish(world, here, count := rng.randint(2, 6))
    yield from _until(lambda: len(consumer.received) >= count)


def consumed_before_a_link(world: World) -> Iterator[int]:
    """A cluster joins in which the subscription is new, when messages were acknowledged in another one."""
    yield from _apart(world)
    for consumer in world.workload.consumers:
        consumer.ack(list(consumer.received), answer=True)
    yield 2_000


def expired_before_a_link(world: World) -> Iterator[int]:
    """The same, when they were not acknowledged, and expired there."""
    yield from _apart(world)
    for consumer in world.workload.consumers:
        consumer.close()
    for _ in range(10):
        yield 2_000
        world.workload.expire()
    yield 2_000


def forgotten_while_alone(world: World) -> Iterator[int]:
    """The middle of a star loses its topic, and its policy names no other cluster: it forgets what comes of former messages.

    One at the edge holds them still, and can get it over the middle only, when all are named again
    (docs/design/acknowledged-sets.md#forgetting).
    """
    rng, topic = world.rng, world.context.topics[0]
    if len(world.context.names) < 3:
        return
    hub = next(name for name in world.context.names if all(name in pair for pair in world.context.pairs))
    first, late = rng.sample([name for name in world.context.names if name != hub], 2)
    cluster = world.clusters[hub]
    _publish(world, hub, count := rng.randint(1, 4))
    consumer = _consumer(world, first)
    for name in (first, late):
        yield from _until(_holds(world, name, count))
    yield from _until(lambda: len(consumer.received) >= count)
    _stop(world, True, hub, late)
    consumer.ack(list(consumer.received), answer=True)
    yield rng.randint(500, 3_000)
    world.faults.delete(cluster, topic)
    world.faults.set_policy(cluster, [hub])
    yield from _until(lambda: topic in _topics(cluster))
    # What `first` has comes to the hub now, to be forgotten there.
    yield rng.randint(10_000, 30_000)
    _stop(world, False, hub, late)


def moved_to_a_lost_disk(world: World) -> Iterator[int]:
    """The target of a failover has its final state, says so, and loses its disk before it is activated."""
    rng = world.rng
    if not world.context.both:
        return
    source, target = rng.choice(world.context.both)
    cluster, name = world.clusters[target], world.workload.subscriptions[0]
    consumer = _consumer(world, source)
    _publish(world, source, count := rng.randint(2, 6))
    yield from _until(_holds(world, target, count))
    yield from _until(lambda: len(consumer.received) >= count)
    consumer.ack(list(consumer.received), answer=True)
    yield rng.randint(100, 2_000)
    operator = world.failovers.start(world.context.topics[0], name, source, target)
    # Not by looks of 100 ms: the operator goes on 150 ms later, and the disk must be lost and the topic back by then.
    while not (operator.over or operator.merged):
        yield 1
    if operator.over:
        return
    _stop(world, True, source, target)
    world.faults.lose_disk(cluster)
    yield rng.randint(1, 50)
    if cluster.broker is None:
        cluster.start()
    yield 1
    world.faults.create(target, world.context.topics[0])
    yield 1
    world.workload.follow(world.context.topics[0], name, target)
    yield rng.randint(500, 2_000)
    _stop(world, False, source, target)
    yield 2_000


def died_behind_its_own_update(world: World) -> Iterator[int]:
    """What was acknowledged stands in an update in the log and not in the store yet when the broker dies.

    See docs/design/acknowledged-sets.md#recovery.
    """
    rng, topic = world.rng, world.context.topics[0]
    for _ in range(6):
        writer = rng.choice(world.context.names)
        cluster = world.clusters[writer]
        yield from _until(lambda cluster=cluster: cluster.broker is not None)  # type: ignore[misc]
        consumer = _consumer(world, writer)
        _publish(world, writer, count := rng.randint(1, 4))
        yield from _until(lambda consumer=consumer, count=count: len(consumer.received) >= count)  # type: ignore[misc]
        if cluster.broker is None or topic not in cluster.broker.topics or not consumer.received:
            continue
        log = cluster.broker.topics[topic].log
        last = log.last
        consumer.ack(list(consumer.received))
        for _ in range(200):
            yield 1
            if log.last != last:
                break
        yield rng.randint(0, 5)
        cluster.die()
        cluster.revive_later()
        yield rng.randint(0, 2_000)


def _granted(world: World, source: str, target: str) -> Iterator[int]:
    """The source has the topic, and may hand it out for the target."""
    topic, here = world.context.topics[0], world.clusters[source]

    def granted() -> bool:
        sources = here.broker.links.sources if here.broker is not None else {}
        return target in sources and topic in sources[target]._sessions.whole.grants

    world.faults.create(source, topic)
    yield from _until(granted)


def handed_out_and_lost(world: World) -> Iterator[int]:
    """All attempts of a long batch die with what they were handed out, and the next batch begins."""
    source, target = world.rng.choice(list(world.links))
    link = world.links[source, target]
    if not isinstance(link, LongLink):
        return
    yield from _granted(world, source, target)
    link.faults.task_dies, link.faults.driver_dies = 1.0, 0.0
    _publish(world, source, world.rng.randint(1, 4))
    yield world.rng.randint(4_000, 10_000)
    link.faults.task_dies = 0.0
    yield 3_000


def confirmed_before_the_loss(world: World) -> Iterator[int]:
    """A destination confirms the first messages and loses its disk, and the confirmation comes when that was compared.

    See docs/design/pipeline.md#long-batches.
    """
    rng = world.rng
    source, target = rng.choice(list(world.links))
    link = world.links[source, target]
    if not isinstance(link, LongLink):
        return
    yield from _granted(world, source, target)
    link.faults.loses, link.faults.driver_dies = 1.0, 0.0
    _publish(world, source, count := rng.randint(1, 4))
    yield from _until(_holds(world, target, count))
    yield rng.randint(100, 600)
    link.kill_tasks(1.0)
    link.faults.loses, link.faults.task_dies = 0.0, 1.0
    world.faults.lose_disk(world.clusters[target])
    yield rng.randint(1, 50)
    if world.clusters[target].broker is None:
        world.clusters[target].start()
    yield rng.randint(5_000, 20_000)
    link.faults.task_dies = 0.0
    yield 3_000


STORIES: dict[str, Story] = {
    "any_grant": confirmed_before_the_loss,
    "begins_at_plan": handed_out_and_lost,
    "begins_behind_sent": handed_out_and_lost,
    "no_revocation": confirmed_before_the_loss,
    "epoch_volatile": died_behind_its_own_update,
    "activates_unasked": moved_to_a_lost_disk,
    "forgotten_for_good": forgotten_while_alone,
    "trim_volatile": trimmed_before_stored,
    "epoch_no_incarnation": sought_twice_at_one_time,
    "stale_low": marks_of_a_former_life,
    "leaving_silences": left_behind_an_acknowledgement,
    "updates_unlearnt": published_before_the_disk_was_lost,
    "own_seeks_only": written_before_the_seek,
    "goes_back_alone": claimed_before_the_seek,
    "begins_untold": consumed_before_a_link,
    "begins_expired": expired_before_a_link,
    "base_after_seek": sought_ahead_and_announced,
    "former_seeks_count": sought_in_a_former_life,
    "going_is_acked": made_while_retention_deletes,
}
"""By the planted bug that needs it."""
