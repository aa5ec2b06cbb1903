"""Topics that begin to be replicated in a broker that answers without a sync (`fsync` is not "always")."""

import errno
import random
from typing import Any

import pytest

from magnetar.core.ids import NONE
from magnetar.core.names import NamespaceName
from magnetar.storage.entries import NewEntry
from magnetar.wire import metadata
from magnetar.wire import pulsar_pb2 as pb
from tests.support.geosteps import set_replication_clusters
from tests.support.geoworld import TOPIC, Node, World

NAMESPACE = NamespaceName.parse("public/default")


class _Worst(random.Random):
    """Of the worst power cut: nothing survives that was not synced."""

    def random(self) -> float:
        return 0.99

    def randint(self, a: int, b: int) -> int:
        return a


def _world(fsync: str = "never", names: str = "ab") -> World:
    """Messages in `a` that were answered and are not on its disk, in a namespace that is not replicated; links of `a` and `b`."""
    world = World(names, [("a", "b"), ("b", "a")], limits={"fsync": fsync, "fsync_interval_ms": 3_600_000})
    node = world["a"]
    set_replication_clusters(node, "a")
    world.settle()
    node.create()
    for number in range(6):
        node.publish(b"old%d" % number)
    assert node.log._log.synced < node.log._log.offset, "they are synced already, or this tests nothing"
    return world


def _messages(node: Node) -> list[tuple[str, int, int, int]]:
    """Who published what is in the topic: (cluster, incarnation, index, checksum of the payload's end)."""
    topic = node.broker.topics.get(TOPIC)
    if topic is None or topic.log.first == NONE:
        return []
    entries = node.log.read(topic.log.locations(topic.log.first, 1000, 1 << 20))
    return [
        (one.origin or node.name, one.incarnation or topic.log.incarnation, one.first_index, hash(one.data[-4:]))
        for one in entries
        if one.first_index >= 0
    ]


@pytest.mark.parametrize("fsync", ["never", "interval"])
def test_what_a_link_carried_survives_a_power_cut(fsync: str) -> None:
    """Else the origin gives the indexes again, and peers take fresh messages for those that they have."""
    world = _world(fsync)
    a, b = world["a"], world["b"]
    set_replication_clusters(a, "a", "b")
    world.settle()
    carried = _messages(b)
    assert len(carried) == 6
    a.files.random = _Worst()
    a.restart()
    world.settle()
    assert _messages(a) == carried
    a.publish(b"new0", b"new1")
    world.settle()
    assert _messages(b) == _messages(a) and len(_messages(b)) == 8


def test_a_link_waits_for_the_sync() -> None:
    world = _world()
    a, b = world["a"], world["b"]
    a.hold_log = True
    answers = set_replication_clusters(a, "a", "b")
    world.settle()
    assert answers == [None] and a.topic.durable
    state = a.broker.links.sources["b"].topics[TOPIC]
    assert (state.last, state.pending(state.last), state.cursor.c) == (NONE, (0, 0, 0), NONE)
    assert _messages(b) == []
    changed = state.changed
    a.hold_log = False
    a.work()
    assert state.last == a.topic.log.last and state.pending(state.last)[0] == 6
    assert state.changed > changed, "the pipeline is told that there is something"
    world.settle()
    assert len(_messages(b)) == 6


def test_what_is_answered_while_the_policy_changes_is_synced_too() -> None:
    world = _world()
    a = world["a"]
    a.hold_log = True
    data = metadata.build(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=7), b"late")
    a.run(lambda: a.topic.append([NewEntry(data, 0, 1, 7)], lambda _append, _error: None))
    set_replication_clusters(a, "a", "b")
    world.settle()
    a.hold_log = False
    world.settle()
    assert len(_messages(world["b"])) == 7
    assert a.log._log.synced == a.log._log.offset


def test_a_sync_that_fails_is_tried_again_before_the_link_reads() -> None:
    world = _world()
    a, b = world["a"], world["b"]
    seen: list[bool] = []

    def rule(operation: str, _path: Any) -> OSError | None:
        if operation == "sync" and not seen:
            seen.append(bool(_messages(b)))
            return OSError(errno.EIO, "Input/output error")
        return None

    a.files.inject(rule)
    set_replication_clusters(a, "a", "b")
    world.settle()
    assert seen == [False]
    assert not a.topic.log.unsynced and a.topic.log.last == a.broker.links.sources["b"].topics[TOPIC].last
    world.settle()
    assert len(_messages(b)) == 6


def test_a_policy_that_comes_goes_and_comes_again_waits_for_its_own_sync() -> None:
    world = _world(names="abc")
    a = world["a"]
    a.hold_log = True
    for clusters in ("ac", "a", "ab"):
        set_replication_clusters(a, *clusters)
        world.settle()
    syncs = list(a.log._barriers)
    a.log._barriers.clear()
    assert len(syncs) == 2
    syncs[0]("")
    assert a.topic.log.unsynced, "it says nothing of what was answered between the two"
    syncs[1]("")
    assert not a.topic.log.unsynced


def test_a_topic_that_is_known_by_a_link_alone_is_synced() -> None:
    """A link leads here although no policy here names its source: acknowledgements are told, and must not outlive messages."""
    world = _world()
    a, b = world["a"], world["b"]
    set_replication_clusters(b, "a", "b")
    world.settle()
    b.create()
    assert a.topic.replicated_subscriptions is None and not a.topic.durable
    world.settle()
    a.run(lambda: a.broker.replicated_subscriptions.source_active(TOPIC, "b", restarted=True))
    assert a.topic.replicated_subscriptions is not None and a.topic.durable
    world.settle()
    assert a.log._log.synced == a.log._log.offset
    assert not a.topic.log.unsynced
