"""Markers of other clusters that claim what this one never published: in both modes, both machines read both modes' markers."""

from collections.abc import Mapping

import pytest

from magnetar.core.ids import EARLIEST, OriginKey
from magnetar.wire.acksets import BELIEVED_MS_MAX, TIME_MS_MAX, AckedSet, AckedSetsMarker, Epoch, FenceToken
from magnetar.wire.markers import Claim, Marker, Update, build_marker
from tests.support.geosteps import consumer, got, two
from tests.support.geoworld import TOPIC, Node, World

MODES = pytest.mark.parametrize("mode", ["exact", "snapshot"])

Runs = Mapping[OriginKey, list[tuple[int, int]]]


def told(node: Node, name: str, acked: Runs, base: Runs) -> None:
    """A cluster writes an update with this claim."""
    written(node, Update(name, {}, Claim(acked, base)))


def written(node: Node, marker: Marker) -> None:
    """A cluster writes this marker."""
    data = build_marker(marker, node.world.now_ms)
    node.run(lambda: node.topic.replicated_subscriptions.append_marker(data, ()))  # type: ignore[union-attr]
    node.world.advance(3_000)


def warnings(world: World) -> list[str]:
    return [note.text for note in world["a"].notes if note.level == "warning" and "never published" in note.text]


def counted(world: World) -> int:
    replicated = world["a"].topic.replicated_subscriptions
    assert replicated is not None
    return int(replicated.metrics()["snapshot_never_assigned"])


@MODES
@pytest.mark.parametrize("known", [True, False], ids=["a subscription here", "one that the update makes"])
@pytest.mark.parametrize("part", ["acked", "base"])
def test_messages_to_come_are_not_born_acknowledged(mode: str, known: bool, part: str) -> None:
    world = two(mode=mode)
    name = "s" if known else "other"
    client, number = consumer(world["a"], name) if known else (None, 0)
    world.advance(3_000)
    world["a"].publish(b"there")
    world.advance(3_000)
    log = world["a"].topic.log
    forged: Runs = {OriginKey("a", log.incarnation): [(log.next_index - 1, log.next_index + 100)]}
    told(world["b"], name, *((forged, {}) if part == "acked" else ({}, forged)))
    if client is None:
        client, number = consumer(world["a"], name)
    got(client, number)
    world["a"].publish(*(b"%d" % each for each in range(5)))
    world.advance(3_000)
    assert got(client, number) == [b"%d" % each for each in range(5)]
    assert counted(world) == 1
    (line,) = warnings(world)
    assert f"b claims 100 acknowledgements of {name} for messages that were never published" in line


@MODES
def test_what_was_published_counts(mode: str) -> None:
    world = two(mode=mode)
    client, number = consumer(world["a"])
    world.advance(3_000)
    world["a"].publish(*(b"%d" % each for each in range(5)))
    world.advance(3_000)
    assert len(got(client, number)) == 5
    log = world["a"].topic.log
    told(world["b"], "s", {OriginKey("a", log.incarnation): [(0, log.next_index)]}, {})
    assert world["a"].topic.subscriptions["s"].backlog_entries() == 0
    assert not warnings(world)


@MODES
def test_a_life_that_no_clock_can_give_is_passed_over(mode: str) -> None:
    """An incarnation is a time: one beyond all times would also be what new topics have to be above."""
    world = two(mode=mode)
    consumer(world["a"])
    world.advance(3_000)
    told(world["b"], "s", {OriginKey("a", TIME_MS_MAX + 1): [(0, 10)]}, {})
    assert counted(world) == 1
    assert world["a"].topic.log._ledger_ids.last < TIME_MS_MAX


@MODES
def test_a_life_to_come_of_this_topic_is_never_lived(mode: str) -> None:
    """The clock will give that incarnation one day: whoever makes the topic then gets one above."""
    world = two(mode=mode)
    consumer(world["a"])
    world.advance(3_000)
    log = world["a"].topic.log
    later = world.now_ms + 1_000_000
    told(world["b"], "s", {OriginKey("a", later): [(0, 10)]}, {})
    assert log._ledger_ids.last == later


@MODES
@pytest.mark.parametrize("part", ["acked", "base"])
def test_an_origin_that_is_no_clusters_name_poisons_no_state(mode: str, part: str) -> None:
    """It would go into the acknowledged set, and the stored set could not be read at the next start."""
    world = two(mode=mode)
    client, number = consumer(world["a"], kind=1)
    world.advance(3_000)
    positions = world["a"].publish(*(b"%d" % each for each in range(4)))
    world.advance(3_000)
    forged: Runs = {OriginKey("no cluster!", 5): [(0, 1)]}
    told(world["b"], "s", *((forged, {}) if part == "acked" else ({}, forged)))
    client.ack(number, positions[2])
    world.advance(3_000)
    before = world["a"].topic.replicated_subscriptions
    assert before is not None
    for name in "ab":
        world[name].restart()
    world.advance(3_000)
    for name in "ab":
        replicated = world[name].topic.replicated_subscriptions
        assert replicated is not None
        assert replicated.metrics()["exact_damaged_states"] == 0
        assert len(got(*consumer(world[name], kind=1))) == (3 if mode == "exact" or name == "a" else 4)
    assert before.metrics()["snapshot_malformed"] == 1


def late(world: World, time_ms: int, kind: str) -> Marker:
    """A marker of b that names such a time for a seek, or a failover, or for a seek that a is to have made."""
    if kind == "a seek of ours":
        seek = Epoch(1, time_ms, "a", world["a"].topic.log.incarnation)
        return Update("s", {}, Claim({}, None, (seek,)))
    life = world["b"].topic.log.incarnation
    epoch = Epoch(1, time_ms if kind == "a seek" else world.now_ms, "b", life)
    fence = FenceToken(time_ms, "b", "a", "final") if kind == "a failover" else None
    part = AckedSet("s", epoch, True, 1, 1, {}, {}, (), fence)
    return AckedSetsMarker("b", life, 0, (), (), (part,))


@MODES
@pytest.mark.parametrize("kind", ["a seek", "a failover", "a seek of ours"])
@pytest.mark.parametrize("time_ms", [TIME_MS_MAX, BELIEVED_MS_MAX], ids=["the last time", "a late time"])
def test_however_late_the_others_say_it_is_there_is_a_later_time(mode: str, kind: str, time_ms: int) -> None:
    """What is sought or moved here afterwards is read by the others, and can be read after a restart."""
    world = two("abc", mode=mode)
    a, c = world["a"], world["c"]
    consumer(a, kind=1)
    world.advance(3_000)
    written(world["b"], late(world, time_ms, kind))
    a.publish(b"0", b"1")
    world.advance(3_000)
    for _ in range(2):
        client, number = consumer(a, kind=1)
        sought = client.seek(number, EARLIEST)
        world.advance(3_000)
        assert client.answered(sought) is not None
        assert a.control_call(lambda done: a.control.failovers.begin(TOPIC, "s", "c", "", 0, done)) is None
        world.advance(3_000)
        assert a.control_call(lambda done: a.control.failovers.unfence(TOPIC, "s", done)) is None
        world.advance(3_000)
    for node in (a, c):
        assert node.topic.replicated_subscriptions is not None
        told = node.topic.replicated_subscriptions.metrics()
        wrong = told["exact_malformed"] + told.get("snapshot_malformed", 0)
        assert wrong == (time_ms == TIME_MS_MAX and (node is a or kind != "a seek of ours")), node.name
        node.restart()
        world.advance(3_000)
        assert node.topic.replicated_subscriptions is not None
        assert node.topic.replicated_subscriptions.metrics()["exact_damaged_states"] == 0
